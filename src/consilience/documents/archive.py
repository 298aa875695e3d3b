"""Word, Excel, PowerPoint and EPUB: ZIP archives of XML, read within bounds by the standard library alone."""

from __future__ import annotations

import io
import posixpath
import zipfile
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from consilience.documents.converting import Unreadable

MAX_EXPANDED_BYTES = 200_000_000
"""Max size of what is read of an archive, expanded."""
_ENTITY = ["<!ENTITY".encode(encoding) for encoding in ("ascii", "utf-16-le", "utf-16-be")]


class PartRelation(NamedTuple):
    """What one part of an Office file refers to."""

    kind: str
    """The last word of its type: `slide`, `image`."""
    path: str
    """A member of the archive; "" for an address outside."""


class Archive:
    """The parts of an archive. DocumentText raises `Unreadable` for a missing one and beyond the bounds."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError) as error:
            raise Unreadable(f"the archive is damaged: {error}", "Save it once more, or as text.") from None
        self.names = frozenset(self._zip.namelist())
        self._left = MAX_EXPANDED_BYTES

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise Unreadable(f"it has no part {name!r:.80}", "The file may be damaged: save it once more, or as text.")
        if self._zip.getinfo(name).flag_bits & 1:
            raise Unreadable("it needs a password", "Save it without one.")
        with self._zip.open(name) as file:
            data = file.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            size = f"{MAX_EXPANDED_BYTES / 1e6:g} MB"
            raise Unreadable(f"it expands to more than {size}", "Give the part that matters, as text.")
        return data

    def xml(self, name: str) -> Element:
        """Return a part as a tree whose tags have no namespace."""
        *_, (_, root) = self.events(name)
        return root

    def events(self, name: str) -> Iterator[tuple[str, Element]]:
        """Yield the elements of a part as they end, with their tags without namespace; the root last."""
        data = self.read(name)
        if any(mark in data for mark in _ENTITY):
            raise Unreadable(
                f"its part {name!r:.80} declares entities, as no office program does", "Do not trust the file."
            )
        for _, element in ElementTree.iterparse(io.BytesIO(data)):
            element.tag = _local(element.tag)
            for key in [key for key in element.attrib if key[0] == "{"]:
                element.attrib[_local(key)] = element.attrib[key]
            yield element.tag, element

    def relations(self, part: str) -> dict[str, PartRelation]:
        """Return what a part refers to, by id; "" is the whole file."""
        folder, _, name = part.rpartition("/")
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        if path not in self.names:
            return {}
        return {
            element.get("Id", ""): PartRelation(
                element.get("Type", "").rpartition("/")[2],
                "" if element.get("TargetMode") == "External" else resolved(folder, element.get("Target", "")),
            )
            for element in self.xml(path)
        }

    def related(self, part: str, kind: str) -> list[str]:
        """Return the parts of one kind that a part refers to."""
        return [r.path for r in self.relations(part).values() if r.kind == kind and r.path in self.names]


def _local(name: str) -> str:
    """Return a name without its namespace; `rid` for the id of a relation, beside which there may be another id."""
    return "rid" if name.endswith("/relationships}id") else name.rpartition("}")[2]


def resolved(folder: str, target: str) -> str:
    """Return the member that a reference in a folder of the archive names."""
    path = unquote(target.partition("#")[0])
    return posixpath.normpath(posixpath.join("/" + folder, path)).lstrip("/")
