"""Tables and paragraphs for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from consilience.reporting.views.drawing import cells, wrapped
from consilience.reporting.words import one_line

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
