"""A table for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from consilience.reporting.words import one_line


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], width: int, *, left: int = 1) -> list[str]:
    """Lines of at most `width` cells; the first `left` columns begin at their left, the others are figures."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for n, head in enumerate(heads):
        made.add_column(Text(one_line(head)), justify="left" if n < left else "right", overflow="fold", no_wrap=n == 0)
    for row in rows:
        made.add_row(*(Text(one_line(cell)) for cell in row))
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(made)
    return [line.rstrip() for line in stream.getvalue().strip("\n").splitlines()]
