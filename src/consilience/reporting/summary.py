"""A report on at most two printed pages, for readers who were not there: no transcript, no commands, nothing folded.

It is the document of the report page, cut. The size of a page is estimated in lines, since only a browser knows it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from markupsafe import Markup, escape

from consilience.domain.presenting import present_plainly
from consilience.domain.report import Report
from consilience.domain.sections import (
    AgentText,
    Block,
    Bullets,
    Details,
    Diff,
    Item,
    KeyFigures,
    Paragraph,
    QuoteBlock,
    ReportPart,
    Subheading,
    Table,
)
from consilience.reporting.files import PAGE
from consilience.reporting.formatting import demote_markdown, one_line, printable
from consilience.reporting.html import about_session, describe_run
from consilience.reporting.markdown import blocks_markdown
from consilience.reporting.page_parts import PageParts, render
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import Chapter, report_document
from consilience.reporting.styles import style_sheet

LINES = 128
"""Lines of text on two pages of A4 with `LINE_CHARS` narrow characters each, counted with care."""
LINE_CHARS = 84
HEADING_LINES, BLOCK_GAP, ITEM_GAP = 3.0, 0.6, 0.3
MAX_QUESTION_LINES = 24
MAX_TITLE_CHARS = 240
"""A longer question is set in the size of the text."""
MAX_ITEM_LINES, MAX_CELL_CHARS = 3, 120
"""Of each text of the items, and of the cells, of a chapter that is too long."""
SHARES: Mapping[ReportPart | None, float] = {
    "answer": 0.40,
    "differences": 0.24,
    "trust": 0.13,
    "unknown": 0.13,
    "basis": 0.10,
}
"""What each chapter may take of the lines; what one leaves goes to the others, in this order."""


def summary_page(report: Report, record: SessionRecord | None = None) -> str:
    """Return the page. With the `record` of the session it has the date."""
    return render("summary.html.j2", **summary_parts(report, record), style=Markup(style_sheet("page", "summary")))


def summary_parts(report: Report, record: SessionRecord | None = None, *, full: str = PAGE) -> dict[str, object]:
    """Return what the page shows, for its template or another one. `full`: what the whole report is called."""
    document = report_document(report, present_plainly(report))
    question = _cut_text(printable(report.task).strip(), MAX_QUESTION_LINES)
    documents = one_line("; ".join(f"{d.id} {d.name}".strip() for d in report.documents), 4 * LINE_CHARS)
    remarks = [printable(remark) for document in report.documents for remark in document.remarks]
    unread = one_line("; ".join(remarks), 4 * LINE_CHARS)
    room = LINES - _text_lines(question) * (1.4 if len(question) <= MAX_TITLE_CHARS else 1)
    room -= _text_lines(documents) + _text_lines(unread)
    document = replace(document, chapters=_fitted(document.chapters, room, full), folded=())
    body = PageParts({}, {}).document(document)
    is_listed = all(escape(one_line(d.name)) in body for d in report.documents)
    return {
        "title": one_line(report.task, 160),
        "question": question,
        "is_long": len(question) > MAX_TITLE_CHARS,
        "about": about_session(record) if record else describe_run(report.protocol, report.agents),
        "report": body,
        "documents": "" if is_listed else documents,
        "unread": "" if all(escape(one_line(remark)) in body for remark in remarks) else unread,
        "session": report.session,
    }


def _fitted(chapters: Sequence[Chapter], room: float, full: str) -> tuple[Chapter, ...]:
    """Return chapters without what is folded, each cut to its share of the lines and of those that others leave."""
    shown = [replace(chapter, blocks=tuple(b for b in chapter.blocks if _is_shown(b))) for chapter in chapters]
    needs = {chapter.part: _height(chapter.blocks) for chapter in shown}
    room -= HEADING_LINES * len(shown)
    rooms = {part: min(need, SHARES.get(part, 0.4) * room) for part, need in needs.items()}
    for part in sorted(rooms, key=lambda part: -SHARES.get(part, 0.4)):
        rooms[part] += max(0.0, min(needs[part] - rooms[part], room - sum(rooms.values())))
    return tuple(replace(c, blocks=_cut(c.blocks, rooms[c.part] + 0.01, full)) for c in shown)


def _is_shown(block: Block) -> bool:
    return not isinstance(block, Details | Diff | KeyFigures)


def _cut(blocks: Sequence[Block], room: float, full: str) -> tuple[Block, ...]:
    """Return what fits of the blocks. Long items are shortened before any is left out, an agent's text before what is below it."""
    if _height(blocks) <= room:
        return tuple(blocks)
    room -= 1 + BLOCK_GAP  # for the remark
    blocks = [_shortened(block) for block in blocks]
    kept: list[Block] = []
    for n, block in enumerate(blocks):
        left = room - _height(kept)
        below = min(_height(blocks[n + 1 :]), left / 2) if isinstance(block, AgentText) else 0.0
        part = block if _height([block]) <= left - below else _beginning(block, left - below)
        if part is not None:
            kept.append(part)
        if part is not block and not isinstance(block, AgentText):
            break
    while kept and isinstance(kept[-1], Subheading):
        kept.pop()
    listed = _number(blocks) - _number(kept)
    words = f"{listed} more in {full}." if listed else f"Shortened here; {full} has all of it."
    return (*kept, Paragraph(text=words, tone="remark"))


def _number(blocks: Sequence[Block]) -> int:
    """Return how many items and rows blocks have."""
    return sum(len(b.items) if isinstance(b, Bullets) else len(b.rows) if isinstance(b, Table) else 0 for b in blocks)


def _shortened(block: Block) -> Block:
    match block:
        case Bullets():
            return Bullets(items=tuple(map(_short_item, block.items)))
        case QuoteBlock():
            return block.model_copy(update={"text": _cut_text(one_line(block.text), MAX_ITEM_LINES)})
        case Table():
            rows = tuple(tuple(one_line(cell, MAX_CELL_CHARS) for cell in row) for row in block.rows)
            return block.model_copy(update={"rows": rows})
    return block


def _short_item(item: Item) -> Item:
    texts = {name: one_line(getattr(item, name)) for name in ("lead", "text", "note", "below")}
    fields = {name: _cut_text(text, MAX_ITEM_LINES) for name, text in texts.items()}
    return item.model_copy(update=fields)


def _beginning(block: Block, room: float) -> Block | None:
    """Return the part of a block that fits, None for none."""
    match block:
        case AgentText():
            text = _cut_text(block.text, room - BLOCK_GAP)
            return AgentText(text=text) if text else None
        case Paragraph():
            text = _cut_text(block.text, room - BLOCK_GAP)
            return block.model_copy(update={"text": text}) if text else None
        case Bullets():
            items = block.items[
                : _fitting((_height([Bullets(items=(item,))]) - BLOCK_GAP for item in block.items), room)
            ]
            return Bullets(items=items) if items else None
        case Table():
            head = Table(heads=block.heads, rows=())
            rows = (_height([Table(heads=block.heads, rows=(row,))]) - _height([head]) for row in block.rows)
            n = _fitting(rows, room - _height([head]))
            return block.model_copy(update={"rows": block.rows[:n], "refs": block.refs[:n]}) if n else None
    return None


def _fitting(heights: Iterable[float], room: float) -> int:
    """Return how many of the parts, from the first, fit."""
    n = 0
    for height in heights:
        room -= height
        if room < BLOCK_GAP:
            break
        n += 1
    return n


def _height(blocks: Sequence[Block]) -> float:
    """Return about how many lines blocks take."""
    lines = 0.0
    for block in blocks:
        match block:
            case Table():
                lines += sum(map(_row_height, (block.heads, *block.rows)))
            case Bullets():
                lines += _text_lines(blocks_markdown([block]), LINE_CHARS - 6)
            case AgentText():
                lines += _text_lines(demote_markdown(block.text))
            case Subheading():
                lines += HEADING_LINES - 1
            case _:
                lines += _text_lines(blocks_markdown([block]))
        lines += BLOCK_GAP
    return lines


def _text_lines(text: str, chars: int = LINE_CHARS) -> float:
    """Return how many lines a text takes: an empty one less, a heading more."""
    return sum(_line_height(line, chars) for line in text.split("\n")) if text else 0.0


def _line_height(line: str, chars: int) -> float:
    text = line.lstrip()
    if not text:
        return BLOCK_GAP
    if text[0] == "|":
        return _row_height(text.strip("| ").split("|"))
    indented = len(line) - len(text)
    gap = 1.0 if text[0] == "#" else ITEM_GAP if text[0] in "-*+0123456789" else 0.0
    return ceil(_width(text) / max(chars - 2 * indented, 8)) + gap


def _row_height(cells: Sequence[str]) -> float:
    chars = max(LINE_CHARS // max(len(cells), 1) - 3, 8)
    return max((ceil(_width(cell) / chars) for cell in cells), default=1) + BLOCK_GAP


def _width(text: str) -> int:
    return len(text) + sum(unicodedata.east_asian_width(char) in "WF" for char in text)


def _cut_text(text: str, room: float) -> str:
    """Return the beginning of a text, down to the end of a paragraph or sentence, or a word."""
    kept: list[str] = []
    for line in text.split("\n"):
        height = _line_height(line, LINE_CHARS)
        if height > room:
            chars = int(max(room - line.startswith("#"), 0)) * LINE_CHARS * len(line) // max(_width(line), 1) - 2
            beginning = line[: max(chars, 0)]
            end = max(beginning.rfind(mark) for mark in (". ", "? ", "! ", "。"))
            if end > chars // 2:
                kept.append(beginning[: end + 1])
            elif chars > 0 and not line.startswith("#"):
                kept.append(f"{beginning.rpartition(' ')[0] or beginning} …")
            while kept and (not kept[-1].strip() or kept[-1].startswith("#")):  # a heading of nothing
                kept.pop()
            break
        kept.append(line)
        room -= height
    return "\n".join(kept).rstrip()
