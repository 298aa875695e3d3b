"""Links from the lines of a report to the calls and messages on which they rest, in the page of a session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from consilience.domain.sections import Block, Bullets, Item, Paragraph, QuoteBlock, Refs, Table
from consilience.reporting.document import MarkdownBlock
from consilience.reporting.formatting import escape_xml

MAX_LINKS = 8
"""Links of one line; a line on more messages says how many."""
_MARK = re.compile("\ue000(\\d+)\ue001")
"""Stands for the links of a line until the line is HTML. The characters are for private use, and no markup."""


class LineLinks:
    """Marks the lines of blocks, and replaces the marks by links once the blocks are rendered."""

    def __init__(self, anchors: Mapping[str, str], own: Mapping[str, str] | None = None) -> None:
        """`anchors`: places on the page, by id; `own`: those of paragraphs that show a message."""
        self._own = own or {}
        self._anchors = {**self._own, **anchors}
        self._lines: list[str] = []

    def marked(self, block: Block | MarkdownBlock) -> Block | MarkdownBlock:
        """Return a block with a mark at the end of each line that rests on calls or messages of the page, and before a paragraph to
        which these link."""
        match block:
            case Paragraph() if block.shows and block.shows in self._own:
                name = "lead" if block.lead else "text"
                return block.model_copy(update={name: self._place(self._own[block.shows]) + getattr(block, name)})
            case Paragraph():
                return block.model_copy(update={"text": block.text + self._mark(block.refs)})
            case QuoteBlock():
                name = "by" if block.by else "text"
                return block.model_copy(update={name: getattr(block, name) + self._mark(block.refs)})
            case Bullets():
                return block.model_copy(update={"items": tuple(map(self._item, block.items))})
            case Table() if block.refs:
                rows = zip(block.rows, block.refs, strict=True)
                return block.model_copy(update={"rows": tuple(self._row(row, refs) for row, refs in rows)})
        return block

    def linked(self, html: str) -> str:
        """Return HTML with links for marks. A mark of an agent's own making is dropped or links to a line's messages."""

        def links(match: re.Match[str]) -> str:
            n = int(match[1][:9])
            return self._lines[n] if n < len(self._lines) else ""

        return _MARK.sub(links, html)

    def _item(self, item: Item) -> Item:
        name = "note" if item.note or item.by else "text"
        return item.model_copy(update={name: getattr(item, name) + self._mark(item.refs)})

    def _row(self, row: Sequence[str], refs: Refs) -> tuple[str, ...]:
        return (*row[:-1], row[-1] + self._mark(refs))

    def _mark(self, refs: Refs) -> str:
        known = [ref for ref in dict.fromkeys(refs) if ref in self._anchors]
        if not known:
            return ""
        links = [
            f'<a href="#{self._anchors[ref]}" title="{escape_xml(ref)}" aria-label="{escape_xml(ref)}">↗</a>'
            for ref in known[:MAX_LINKS]
        ]
        more = f" +{len(known) - MAX_LINKS}" if len(known) > MAX_LINKS else ""
        return self._replaced_by(f' <span class="refs">{"".join(links)}{more}</span>')

    def _place(self, anchor: str) -> str:
        return self._replaced_by(f'<span id="{anchor}"></span>')

    def _replaced_by(self, html: str) -> str:
        self._lines.append(html)
        return f"\ue000{len(self._lines) - 1}\ue001"
