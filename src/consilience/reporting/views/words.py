"""Blocks, tables and paragraphs for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    Quote,
    Subheading,
    Table,
    View,
)
from consilience.reporting.formatting import one_line, printable
from consilience.reporting.views.drawing import cells, wrapped

_LONGEST = 2_000
"""Characters shown of one line of somebody's text."""
_BETWEEN = 2
"""Cells between two columns."""


def fits(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> bool:
    """Whether a table has room for every cell on one line, so that no word or number is broken."""
    columns = zip(*(map(one_line, row) for row in (heads, *rows)), strict=True)
    widths = [max(map(cells, column)) for column in columns]
    return sum(widths) + _BETWEEN * (len(widths) - 1) <= width


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int, *, left: int = 1) -> list[str]:
    """Lines of at most `width` cells; the first `left` columns begin at their left, the others are figures."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for n, head in enumerate(heads):
        made.add_column(Text(one_line(head)), justify="left" if n < left else "right", overflow="fold", no_wrap=n == 0)
    for row in rows:
        made.add_row(*(Text(one_line(cell)) for cell in row))
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(made)
    return [line.rstrip() for line in stream.getvalue().strip("\n").splitlines()]


def paragraph(line: str, width: int, hang: str = "") -> list[str]:
    """Lines of at most `width` cells; the first keeps its indent, the others have `hang`."""
    width = max(width, 20)
    indent = line[: len(line) - len(line.lstrip(" "))]
    shown = one_line(line, _LONGEST)
    lines = wrapped(shown, width - max(len(indent), len(hang)), len(shown) + 1)
    return [f"{hang if n else indent}{line}" for n, line in enumerate(lines)]


def view_lines(view: View, width: int) -> str:
    """A view for a terminal of `width` columns."""
    return "\n".join(block_lines(view.blocks, width)) + "\n"


def block_lines(blocks: Sequence[Block], width: int) -> list[str]:
    """Blocks as lines of at most `width` cells, an empty line between two."""
    found: list[str] = []
    for block in blocks:
        lines = _lines(block, width)
        found += ["", *lines] if found and lines else lines
    return found


def _lines(block: Block, width: int) -> list[str]:
    match block:
        case Paragraph():
            return paragraph(" ".join(filter(None, (block.lead, block.text))), width)
        case Subheading():
            return paragraph(block.text, width)
        case AgentText():
            return [line for given in printable(block.text).split("\n") for line in paragraph(given, width) or [""]]
        case Quote():
            return paragraph(f"  “{block.text}”" + (f" — {block.by}" if block.by else ""), width, "    ")
        case Bullets():
            return [line for item in block.items for line in paragraph(f"  {_item(item)}", width, "    ")]
        case Table():
            return _table(block, width)
        case KeyFigures():
            return [line for one in block.figures for line in paragraph(f"{one.name}: {one.value}", width, "  ")]
        case Diff():
            return _diff(block, width)
        case Details():
            return [*paragraph(block.summary, width), *(f"  {line}" for line in block_lines(block.blocks, width - 2))]


def _item(item: Item) -> str:
    head = " ".join(filter(None, (item.lead, item.text)))
    return " — ".join(filter(None, (head, item.by, item.note)))


def _table(block: Table, width: int) -> list[str]:
    """A table, or a line for each row where the table has no room."""
    if not block.rows:
        return []
    if fits(block.heads, block.rows, width):
        return table(block.heads, block.rows, width, left=block.left)
    found: list[str] = []
    for row in block.rows:
        said = ", ".join(f"{head} {cell}".strip() for head, cell in zip(block.heads[1:], row[1:], strict=True) if cell)
        found += paragraph(f"  {row[0]}: {said}" if row[0] else f"    {said}", width, "    ")
    return found


def _diff(block: Diff, width: int) -> list[str]:
    lines = paragraph(f"  {block.heading}", width) if block.heading else []
    for line in printable(block.text).split("\n"):
        if line.startswith("@@"):
            lines.append("  …")
        else:
            sign = "−" if line.startswith("-") else line[:1] or " "
            lines += paragraph(f"  {sign} {one_line(line[1:])}", width, "    ")
    return lines
