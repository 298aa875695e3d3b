"""Plain text for a terminal: measured, wrapped, in tables, and the blocks of a view."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from io import StringIO

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
    Subheading,
    Table,
    View,
)
from consilience.reporting.formatting import one_line, printable

MAX_LINE_CHARS = 2_000
"""Characters shown of one line of a text."""
_BETWEEN = 2
"""Cells between two columns."""
_MAYBE_WIDE = re.compile("[\u1100-\U0010ffff]")

Measure = Callable[[str], float]
"""Returns the width of a text: the sum of its letters' widths."""


def cells(text: str) -> int:
    """Return the width of a text in terminal cells."""
    return len(text) + sum(unicodedata.east_asian_width(letter) in "WF" for letter in _MAYBE_WIDE.findall(text))


def fitted(text: str, width: float, measure: Measure = cells) -> str:
    """Return text on one line of at most `width` (cells, or the unit of `measure`), cut with an ellipsis."""
    line = one_line(text)
    if measure(line) <= width:
        return line
    return f"{_longest_prefix(line, width - measure('…'), measure).rstrip()}…"


def wrapped(text: str, width: float, max_lines: int, measure: Measure = cells) -> list[str]:
    """Return at most `max_lines` lines of at most `width`, broken at spaces if possible; the last one is cut with an ellipsis."""
    lines: list[str] = []
    remaining = one_line(text, int(width) * (max_lines + 1))
    while remaining and len(lines) < max_lines - 1 and measure(remaining) > width:
        line = _longest_prefix(remaining, width, measure) or remaining[0]
        space = line.rfind(" ")
        if measure(line[: max(space, 0)]) > width / 2 and not remaining[len(line)].isspace():
            line = line[:space]
        lines.append(line.rstrip())
        remaining = remaining[len(line) :].lstrip()
    return [*lines, fitted(remaining, width, measure)] if remaining else lines


def _longest_prefix(line: str, width: float, measure: Measure) -> str:
    """Return the longest beginning that is no wider than `width`."""
    if measure is cells and cells(head := line[: int(width)]) <= width:
        return head
    room = width
    for n, letter in enumerate(line):
        room -= measure(letter)
        if room < 0:
            return line[:n]
    return line


def fits(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> bool:
    """Whether every cell of a table fits on one line."""
    columns = zip(*(map(one_line, row) for row in (heads, *rows)), strict=True)
    widths = [max(map(cells, column)) for column in columns]
    return sum(widths) + _BETWEEN * (len(widths) - 1) <= width


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int, *, left_columns: int = 1) -> list[str]:
    """Return lines of at most `width` cells. The first `left_columns` columns are aligned left, the others right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for n, head in enumerate(heads):
        grid.add_column(
            Text(one_line(head)), justify="left" if n < left_columns else "right", overflow="fold", no_wrap=n == 0
        )
    for row in rows:
        grid.add_row(*(Text(one_line(cell)) for cell in row))
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(grid)
    return [line.rstrip() for line in stream.getvalue().strip("\n").splitlines()]


def paragraph(line: str, width: int, hang: str = "") -> list[str]:
    """Return lines of at most `width` cells. The first keeps its indent, the others get `hang`."""
    width = max(width, 20)
    indent = line[: len(line) - len(line.lstrip(" "))]
    shortened = one_line(line, MAX_LINE_CHARS)
    lines = wrapped(shortened, width - max(len(indent), len(hang)), len(shortened) + 1)
    return [f"{hang if n else indent}{line}" for n, line in enumerate(lines)]


def view_text(view: View, width: int) -> str:
    """Return a view for a terminal of `width` columns."""
    return "\n".join(block_lines(view.blocks, width)) + "\n"


def block_lines(blocks: Sequence[Block], width: int) -> list[str]:
    """Return blocks as lines of at most `width` cells, separated by empty lines."""
    lines_so_far: list[str] = []
    for block in blocks:
        lines = _lines(block, width)
        lines_so_far += ["", *lines] if lines_so_far and lines else lines
    return lines_so_far


def _lines(block: Block, width: int) -> list[str]:
    match block:
        case Paragraph():
            return paragraph(" ".join(filter(None, (block.lead, block.text))), width)
        case Subheading():
            return paragraph(block.text, width)
        case AgentText():
            return [line for raw in printable(block.text).split("\n") for line in paragraph(raw, width) or [""]]
        case QuoteBlock():
            return paragraph(f"  “{block.text}”" + (f" — {block.by}" if block.by else ""), width, "    ")
        case Bullets():
            return [line for item in block.items for line in _item_lines(item, width)]
        case Table():
            return _table(block, width)
        case KeyFigures():
            return [line for f in block.figures for line in paragraph(f"{f.name}: {f.value}", width, "  ")]
        case Diff():
            return _diff(block, width)
        case Details():
            return [*paragraph(block.summary, width), *(f"  {line}" for line in block_lines(block.blocks, width - 2))]


def _item_lines(item: Item, width: int) -> list[str]:
    opening = " ".join(filter(None, (item.lead, item.text)))
    indent = "  " * min(1 + 2 * item.depth, width // 4)
    lines = paragraph(indent + " — ".join(filter(None, (opening, item.by, item.note))), width, f"{indent}  ")
    return [*lines, *(paragraph(f"{indent}  {item.below}", width, f"{indent}  ") if item.below else ())]


def _table(block: Table, width: int) -> list[str]:
    """Return a table, or a list of its rows if it is too wide."""
    if not block.rows or fits(block.heads, block.rows, width):
        return table(block.heads, block.rows, width, left_columns=block.left)
    lines: list[str] = []
    for row in block.rows:
        cells_text = ", ".join(
            f"{head} {cell}".strip() for head, cell in zip(block.heads[1:], row[1:], strict=True) if cell
        )
        lines += paragraph(f"  {row[0]}: {cells_text}" if row[0] else f"    {cells_text}", width, "    ")
    return lines


def _diff(block: Diff, width: int) -> list[str]:
    lines = paragraph(f"  {block.heading}", width) if block.heading else []
    for line in printable(block.text).split("\n"):
        if line.startswith("@@"):
            lines.append("  …")
        else:
            sign = "−" if line.startswith("-") else line[:1] or " "
            lines += paragraph(f"  {sign} {one_line(line[1:])}", width, "    ")
    return lines
