"""EPUB: the chapters in reading order."""

from __future__ import annotations

import posixpath

from consilience.documents.archive import Archive, resolved
from consilience.documents.converting import Converted, Unreadable
from consilience.documents.markup import HtmlText
from consilience.documents.reading import decoded
from consilience.domain.messages import place_line


def convert_ebook(archive: Archive) -> Converted:
    """Return the lines of a book, with a line before each chapter, and in what they differ from the file."""
    package = next(root.get("full-path", "") for root in archive.xml("META-INF/container.xml").iter("rootfile"))
    folder, root = posixpath.dirname(package), archive.xml(package)
    hrefs = {item.get("id"): resolved(folder, item.get("href", "")) for item in root.iter("item")}
    spine = [path for ref in root.iter("itemref") if (path := hrefs.get(ref.get("idref"))) in archive.names]
    if "META-INF/encryption.xml" in archive.names:
        protected = {item.get("URI") for item in archive.xml("META-INF/encryption.xml").iter("CipherReference")}
        if protected & set(spine):
            raise Unreadable("its chapters are encrypted (DRM)", "Give a file without protection.")
    lines, pictures = [], 0
    for number, path in enumerate(spine, 1):
        chapter = HtmlText()
        chapter.feed(decoded(archive.read(path), []))
        chapter.close()
        text = chapter.lines
        pictures += chapter.counts["pictures left out"]
        lines += [place_line("chapter", number, chapter.title), *text]
    return lines, [f"pictures left out: {pictures}"] if pictures else []
