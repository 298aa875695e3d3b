"""Which agent read which. Exact, since every prompt is stored as references to what it quotes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from consilience.domain.sections import Block, Bullets, Item, Matrix, MatrixCell, Paragraph, Table, View
from consilience.reporting.formatting import count, describe_phase, one_line
from consilience.reporting.record import SessionRecord

MAX_COLUMNS = 14
HEADING = "Who read whom"
UNKNOWN = "unknown author"

ReadCounts = Mapping[tuple[str, str], int]
"""How many messages of an author a reader was shown, once per call, by (reader, author)."""


def view(record: SessionRecord) -> View:
    """Return what was read, in all and by phase. An agent also reads its own messages.

    A document with the id of an agent is called `document S1`. The picture has the cells that are not zero, so its size grows
    with what was read.
    """
    phases = _phases(record)
    total = sum(phases.values(), Counter[tuple[str, str]]())
    if not total:
        nothing = Paragraph(text="No agent has read a message of another.")
        return View(name="reads", heading=HEADING, blocks=(nothing,), is_empty=True)
    order = list(dict.fromkeys([*record.agents, *(id for _, id in total), *(id for id, _ in total)]))
    readers, authors = ([id for id in order if id in {pair[end] for pair in total}] for end in (0, 1))

    def name(id: str) -> str:
        return one_line(record.names.get(id, id))

    def number(reader: str, author: str) -> str:
        n = total[reader, author]
        return "" if not n else f"({n})" if reader == author else str(n)

    def by_reader(edges: ReadCounts) -> Bullets:
        items = []
        for reader in readers:
            read = [(author, edges[reader, author]) for author in authors if (reader, author) in edges]
            words = [("its own" if a == reader else name(a)) + (f" ×{n}" if n > 1 else "") for a, n in read]
            items += [Item(text=f"{name(reader)} read {', '.join(words)}")] if words else []
        return Bullets(items=tuple(items))

    cells = Table(
        heads=("reader", *map(name, authors)),
        rows=tuple((name(reader), *(number(reader, author) for author in authors)) for reader in readers),
    )
    blocks: list[Block] = [
        Paragraph(
            text="How often a call of the reader (row) was shown a message of the author (column); (n): its own."
        ),
        cells if len(authors) <= MAX_COLUMNS else by_reader(total),
    ]
    for phase, edges in phases.items():
        words, _, index = phase.rpartition(" ")
        lead = one_line(f"{describe_phase(words, record.labels)} {index}".strip())
        blocks += [Paragraph(text=f"{lead}: {count(edges.total(), 'message')} shown"), by_reader(edges)]

    def cell(reader: str, author: str) -> MatrixCell:
        pair, whose = (reader, author), "its own" if reader == author else name(author)
        n, when = total[pair], ", ".join(f"{phase} ×{edges[pair]}" for phase, edges in phases.items() if pair in edges)
        tip = f"{name(reader)} was shown {count(n, 'message')} of {whose}: {when}"
        return MatrixCell(row=name(reader), column=name(author), value=n, text=number(reader, author), tip=tip)

    picture = Matrix(
        title="Messages that each reader (row) was shown of each author (column)",
        rows=tuple(map(name, readers)),
        columns=tuple(map(name, authors)),
        cells=tuple(cell(reader, author) for reader in readers for author in authors if (reader, author) in total),
        legend=("(n): its own messages",),
    )
    return View(name="reads", heading=HEADING, blocks=tuple(blocks), picture=picture)


def _phases(record: SessionRecord) -> dict[str, Counter[tuple[str, str]]]:
    phases: dict[str, Counter[tuple[str, str]]] = {}
    for reading in record.readings.values():
        authors = [record.authors.get(quoted.message, UNKNOWN) for quoted in reading.quoted]
        documents = [f"document {id}" if id in record.agents else id for id in reading.documents]
        if pairs := [(reading.reader, author) for author in (*authors, *documents)]:
            phases.setdefault(reading.phase, Counter()).update(pairs)
    return phases
