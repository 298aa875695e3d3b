"""Which agent read which. Exact, since every prompt is stored as references to what it quotes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from consilience.domain.sections import Matrix, MatrixCell
from consilience.reporting.formatting import count, describe_phase, one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.terminal import paragraph, table
from consilience.reporting.views.charts import draw_picture
from consilience.reporting.views.drawing import Drawing

MAX_COLUMNS = 14
HEADING = "Who read whom"
UNKNOWN = "unknown author"
NONE_READ = "No agent has read a message of another."

ReadCounts = Mapping[tuple[str, str], int]
"""How many messages of an author a reader was shown, once per call, by (reader, author)."""


@dataclass(frozen=True)
class Reads:
    """What was read, in all and by phase. An agent that reads its own messages has an edge too.

    A document with the id of an agent is called `document S1`.
    """

    readers: tuple[str, ...]
    authors: tuple[str, ...]
    """Agents and documents."""
    edges: ReadCounts
    phases: Mapping[str, ReadCounts]
    labels: Mapping[str, str] = field(default_factory=dict)
    """The protocol's words for phases."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The agents' names for readers, by id."""

    def name(self, id: str) -> str:
        return one_line(self.names.get(id, id))


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
    reader_ids, author_ids = {reader for reader, _ in total}, {author for _, author in total}
    return Reads(
        readers=tuple(id for id in order if id in reader_ids),
        authors=tuple(id for id in order if id in author_ids),
        edges=_ordered(total, order),
        phases={phase: _ordered(edges, order) for phase, edges in phases.items()},
        labels=record.labels,
        names=record.names,
    )


def _ordered(edges: Mapping[tuple[str, str], int], order: Iterable[str]) -> dict[tuple[str, str], int]:
    rank = {id: n for n, id in enumerate(order)}
    return dict(sorted(edges.items(), key=lambda edge: (rank[edge[0][0]], rank[edge[0][1]])))


def plain(reads: Reads) -> dict[str, object]:
    """Return the view for JSON, whose keys cannot be pairs."""
    return {
        "readers": list(reads.readers),
        "authors": list(reads.authors),
        "edges": _rows(reads.edges),
        "phases": {phase: _rows(edges) for phase, edges in reads.phases.items()},
    }


def _rows(edges: ReadCounts) -> list[dict[str, object]]:
    return [{"reader": reader, "author": author, "messages": n} for (reader, author), n in edges.items()]


def text(reads: Reads, width: int) -> str:
    if not reads.edges:
        return f"{NONE_READ}\n"
    head = "How often a call of the reader (row) was shown a message of the author (column); (n): its own."
    lines = [*paragraph(head, width), ""]
    columns = ["reader", *map(reads.name, reads.authors)]
    widths = [max(len(reads.name(reader)) for reader in reads.readers), *map(len, columns[1:])]
    if len(reads.authors) <= MAX_COLUMNS and sum(max(n, 5) + 2 for n in widths) <= width:
        rows = [
            [reads.name(reader), *(_number(reads, reader, author) or "·" for author in reads.authors)]
            for reader in reads.readers
        ]
        lines += table(columns, rows, width)
    else:
        lines += _wrapped(_by_reader(reads, reads.edges), width)
    for phase, edges in reads.phases.items():
        name, _, number = phase.rpartition(" ")
        words = f"{describe_phase(name, reads.labels)} {number}".strip()
        head = f"{one_line(words)}: {count(sum(edges.values()), 'message')} shown"
        lines += ["", *_wrapped([head, *_by_reader(reads, edges)], width)]
    return "\n".join(lines) + "\n"


def _by_reader(reads: Reads, edges: ReadCounts) -> list[str]:
    authors: dict[str, list[str]] = {}
    for (reader, author), n in edges.items():
        name = "its own" if author == reader else reads.name(author)
        authors.setdefault(reader, []).append(name if n == 1 else f"{name} ×{n}")
    return [f"  {reads.name(reader)} read {', '.join(names)}" for reader, names in authors.items()]


def _wrapped(lines: Iterable[str], width: int) -> list[str]:
    return [wrapped for line in lines for wrapped in paragraph(line, width, "    ")]


def _number(reads: Reads, reader: str, author: str) -> str:
    """Return how many messages were read, in parentheses if they are the reader's own; "" for none."""
    n = reads.edges.get((reader, author), 0)
    return "" if not n else f"({n})" if reader == author else str(n)


def draw(reads: Reads) -> Drawing:
    """Draw a matrix of the cells that are not zero, so that its size grows with what was read."""
    if not reads.edges:
        return Drawing("reads", HEADING, NONE_READ, empty=True)
    lines = "; ".join(line.strip() for line in _by_reader(reads, reads.edges))
    drawing = Drawing("reads", HEADING, f"How often a call was shown a message. {lines}.")
    phases: dict[tuple[str, str], list[str]] = {}
    for phase, edges in reads.phases.items():
        for pair, n in edges.items():
            phases.setdefault(pair, []).append(f"{phase} ×{n}")
    cells = [
        MatrixCell(
            row=reads.name(reader),
            column=reads.name(author),
            value=n,
            text=_number(reads, reader, author),
            tip=f"{reads.name(reader)} was shown {count(n, 'message')} of "
            f"{'its own' if reader == author else reads.name(author)}: " + ", ".join(phases[reader, author]),
        )
        for (reader, author), n in reads.edges.items()
    ]
    matrix = Matrix(
        title="Messages that each reader (row) was shown of each author (column)",
        rows=tuple(map(reads.name, reads.readers)),
        columns=tuple(map(reads.name, reads.authors)),
        cells=tuple(cells),
        legend=("(n): its own messages",),
    )
    draw_picture(drawing, matrix)
    return drawing
