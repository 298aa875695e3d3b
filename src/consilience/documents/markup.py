"""HTML as text: headings, paragraphs, lists and tables, without scripts, styles and pictures."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

from consilience.documents.converting import Converted, remarks_of
from consilience.documents.reading import decoded

_SKIPPED = frozenset({"script", "style", "template", "noscript", "svg", "math", "iframe", "object", "select"})
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl", "dt"),
        *(
            "fieldset",
            "figcaption",
            "figure",
            "footer",
            "form",
            "h1",
            "h2",
            "h3",
            "h4",
            "h5",
            "h6",
            "header",
            "hr",
            "html",
        ),
        *("legend", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead"),
        *("title", "tr", "ul"),
    }
)
_LOST = {
    "img": "pictures",
    "picture": "pictures",
    "svg": "pictures",
    "video": "videos",
    "audio": "sounds",
    "iframe": "frames",
}
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]{2,40})", re.IGNORECASE)


def convert_html(data: bytes) -> Converted:
    """Return the lines of an HTML page and in what they differ from the file.

    Without a declared encoding it is read as UTF-8 and, if it is not that, as Windows-1252.
    """
    declared = _CHARSET.search(data[:4096])
    text = decoded(data, [declared[1].decode("ascii")] if declared else [])
    page = HtmlText()
    page.feed(text)
    page.close()
    return page.lines, remarks_of(page.counts)


class HtmlText(HTMLParser):
    """Collects the lines of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.counts: Counter[str] = Counter()
        self._finished: list[str] = []
        self._line: list[str] = []
        self._prefix = ""
        self._skipping = ""
        self._depth = 0
        """Open elements of the one that is skipped."""
        self._preformatted = 0
        self._in_title = False
        self._cells = 0

    @property
    def lines(self) -> list[str]:
        self._end_line()
        return self._finished

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping:
            self._depth += tag == self._skipping
            return
        if tag in _LOST and tag != "picture":
            self.counts[f"{_LOST[tag]} left out"] += 1
            if alternative := dict(attrs).get("alt"):
                self._line.append(f"[picture: {' '.join(alternative.split())}]")
        if tag in _SKIPPED:
            self._skipping, self._depth = tag, 1
        elif tag == "br":
            self._end_line()
        elif tag in ("td", "th"):
            self._line.append(" | " if self._cells else "")
            self._cells += 1
        elif tag in _BLOCKS:
            self._begin_block(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag in _SKIPPED:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            self._depth -= tag == self._skipping
            self._skipping = self._skipping if self._depth else ""
            return
        if tag in _BLOCKS and not self._is_in_cell(tag):
            self._end_line()
            if tag == "tr":
                self._cells = 0
        self._preformatted = max(self._preformatted - (tag == "pre"), 0)
        self._in_title = self._in_title and tag != "title"

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        if self._in_title:
            self.title += data
        elif self._preformatted:
            first, *others = data.split("\n")
            self._line.append(first)
            for line in others:
                self._end_line()
                self._line.append(line)
        else:
            self._line.append(re.sub(r"\s+", " ", data))

    def _begin_block(self, tag: str) -> None:
        if self._is_in_cell(tag):
            self._line.append(" ")
            return
        self._end_line()
        if tag == "tr":
            self._cells = 0
        elif tag == "li":
            self._prefix = "- "
        elif tag[0] == "h" and tag[1:].isdigit():
            self._finished.append("")
            self._prefix = "#" * int(tag[1:]) + " "
        elif tag in ("p", "table", "ul", "ol", "pre", "blockquote", "section", "article"):
            self._finished.append("")
        self._preformatted += tag == "pre"
        self._in_title = tag == "title"

    def _is_in_cell(self, tag: str) -> bool:
        return bool(self._cells) and tag not in ("tr", "table", "tbody", "thead", "tfoot")

    def _end_line(self) -> None:
        text = "".join(self._line)
        text = text if self._preformatted else re.sub(" +", " ", text).strip()
        if text:
            self._finished.append(self._prefix + text)
            self._prefix = ""
        elif self._preformatted:
            self._finished.append("")
        self._line.clear()
