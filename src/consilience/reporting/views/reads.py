"""Who read whom: exact, since every prompt is stored as references to what it showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import accumulate

from consilience.reporting.formatting import count, one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.views.drawing import Drawing, fitted, pixels
from consilience.reporting.views.words import paragraph

_MOST_COLUMNS = 14
UNKNOWN = "somebody else"

Edges = Mapping[tuple[str, str], int]
"""How many times reader was shown a message of author, once per call: by (reader, author)."""


@dataclass(frozen=True)
class Reads:
    """Agents and documents in their order, what was read in all, and by phase. Reading one's own words is an edge too.

    A document whose id an agent has too is called `document S1`, so that nobody is said to have read itself."""

    readers: tuple[str, ...]
    authors: tuple[str, ...]
    edges: Edges
    phases: Mapping[str, Edges]


def fold(record: SessionRecord) -> Reads:
    total: Counter[tuple[str, str]] = Counter()
    phases: dict[str, Counter[tuple[str, str]]] = {}
    for reading in record.readings.values():
        authors = [record.authors.get(quoted.message, UNKNOWN) for quoted in reading.quoted]
        documents = [f"document {id}" if id in record.agents else id for id in reading.documents]
        pairs = [(reading.reader, author) for author in (*authors, *documents)]
        total.update(pairs)
        if pairs:
            phases.setdefault(reading.phase, Counter()).update(pairs)
    order = list(dict.fromkeys([*record.agents, *(id for _, id in total), *(id for id, _ in total)]))
    reading_ids, read_ids = {reader for reader, _ in total}, {author for _, author in total}
    return Reads(
        readers=tuple(id for id in order if id in reading_ids),
        authors=tuple(id for id in order if id in read_ids),
        edges=_ordered(total, order),
        phases={phase: _ordered(found, order) for phase, found in phases.items()},
    )


def _ordered(edges: Mapping[tuple[str, str], int], order: Iterable[str]) -> dict[tuple[str, str], int]:
    rank = {id: n for n, id in enumerate(order)}
    return dict(sorted(edges.items(), key=lambda edge: (rank[edge[0][0]], rank[edge[0][1]])))


def plain(reads: Reads) -> dict[str, object]:
    """For JSON, whose keys are no pairs."""
    return {
        "readers": list(reads.readers),
        "authors": list(reads.authors),
        "edges": _rows(reads.edges),
        "phases": {phase: _rows(edges) for phase, edges in reads.phases.items()},
    }


def _rows(edges: Edges) -> list[dict[str, object]]:
    return [{"reader": reader, "author": author, "messages": n} for (reader, author), n in edges.items()]


def text(reads: Reads, width: int) -> str:
    if not reads.edges:
        return "Nobody was shown anything of anybody.\n"
    head = "How often a call of the reader (row) was shown a message of the author (column); (n) is one's own."
    lines = [*paragraph(head, width), ""]
    if len(reads.authors) <= min(_MOST_COLUMNS, (width - 14) // 7):
        lines += _matrix(reads, width)
    else:
        lines += _wrapped(_listed(reads.edges), width)
    for phase, edges in reads.phases.items():
        head = f"{one_line(phase)}: {count(sum(edges.values()), 'message')} shown"
        lines += ["", *_wrapped([head, *_listed(edges)], width)]
    return "\n".join(lines) + "\n"


def _listed(edges: Edges) -> list[str]:
    by_reader: dict[str, list[str]] = {}
    for (reader, author), n in edges.items():
        who = "its own" if author == reader else one_line(author)
        by_reader.setdefault(reader, []).append(who if n == 1 else f"{who} ×{n}")
    return [f"  {one_line(reader)} read {', '.join(whom)}" for reader, whom in by_reader.items()]


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [shown for line in lines for shown in paragraph(line, width, "    ")]


def _matrix(reads: Reads, width: int) -> list[str]:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("reader")
    for author in reads.authors:
        table.add_column(Text(one_line(author)), justify="right")
    for reader in reads.readers:
        table.add_row(Text(one_line(reader)), *(_number(reads, reader, author) for author in reads.authors))
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return [line.rstrip() for line in stream.getvalue().strip("\n").splitlines()]


def _number(reads: Reads, reader: str, author: str) -> str:
    n = reads.edges.get((reader, author), 0)
    return "·" if not n else f"({n})" if reader == author else str(n)


# --- as a picture

_CELL, _TOP = 44.0, 84.0
_LONGEST_NAME = 22


def draw(reads: Reads) -> Drawing:
    """A matrix in which only what was read is drawn, so that its size follows what was read and not the square of agents."""
    drawing = Drawing("reads", "Who read whom", _description(reads))
    if not reads.edges:
        drawing.words(16, 28, "Nobody was shown anything of anybody.")
        return drawing
    heads = [fitted(author, _LONGEST_NAME) for author in reads.authors]
    wide = {id: max(_CELL, pixels(head, "cv-strong") + 10) for id, head in zip(reads.authors, heads, strict=True)}
    left = 30 + max(pixels(fitted(reader, _LONGEST_NAME), "cv-strong") for reader in ("to whom ", *reads.readers))
    across = dict(zip(reads.authors, accumulate(wide.values(), initial=left), strict=False))
    down = {reader: _TOP + n * _CELL for n, reader in enumerate(reads.readers)}
    right, bottom = left + sum(wide.values()), _TOP + len(down) * _CELL
    drawing.words(left, 28, "whose messages were shown", "cv-head")
    drawing.words(16, _TOP - 12, "to whom", "cv-head")
    for head, (author, x) in zip(heads, across.items(), strict=True):
        drawing.words(x + wide[author] / 2, _TOP - 12, head, "cv-strong", "middle")
        drawing.line([(x, _TOP), (x, bottom)], "cv-faint")
    for reader, y in down.items():
        drawing.words(16, y + _CELL / 2 + 5, fitted(reader, _LONGEST_NAME), "cv-strong")
        drawing.line([(left, y), (right, y)], "cv-faint")
    drawing.line([(right, _TOP), (right, bottom), (left, bottom)], "cv-faint")
    when: dict[tuple[str, str], list[str]] = {}
    for phase, edges in reads.phases.items():
        for pair, n in edges.items():
            when.setdefault(pair, []).append(f"{phase} ×{n}")
    for (reader, author), n in reads.edges.items():
        x, y = across[author], down[reader]
        own = reader == author
        tip = f"{reader} was shown {count(n, 'message')} of {'its own' if own else author}: {', '.join(when[reader, author])}"
        drawing.box(x + 4, y + 4, wide[author] - 8, _CELL - 8, "cv-own" if own else "cv-cell", tip=tip)
        drawing.words(x + wide[author] / 2, y + _CELL / 2 + 5, str(n), "cv-strong", "middle", room=10)
    drawing.box(16, bottom + 16, 16, 16, "cv-own", round=3)
    drawing.words(40, bottom + 29, "one's own words", "cv-small")
    return drawing


def _description(reads: Reads) -> str:
    if not reads.edges:
        return "Nobody was shown anything of anybody."
    return "How often a call was shown a message. " + "; ".join(line.strip() for line in _listed(reads.edges)) + "."
