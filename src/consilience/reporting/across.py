"""Findings across documents, as a report shows them: two passages side by side, who brought them together, what each is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from consilience.domain.across import AcrossDocuments, AskedPassage, DocumentPair, NotedPassage
from consilience.domain.messages import ReadDocument
from consilience.domain.sections import Block, Bullets, Item, Paragraph, Table
from consilience.domain.wording import count
from consilience.reporting.formatting import one_line

MAX_FINDINGS = 30
"""Findings that a report prints; the JSON report has all."""
MAX_NAME_CHARS = 60


def across_blocks(
    across: AcrossDocuments | None, documents: Sequence[ReadDocument], names: Mapping[str, str]
) -> Iterator[Block]:
    """Yield the contradictions that agents stated, each with both passages, and how many pairs came to nothing."""
    if across is None:
        return
    titles = {document.id: one_line(document.name, MAX_NAME_CHARS) for document in documents}
    for pair in across.findings[:MAX_FINDINGS]:
        yield from _finding(pair, titles, names)
    if (more := len(across.findings) - MAX_FINDINGS) > 0:
        yield Paragraph(text=f"{count(more, 'further finding')} in the JSON report.", tone="remark")
    if across.rows:
        yield Paragraph(text=f"{_basis(across)}.", tone="remark")


def _finding(pair: DocumentPair, titles: Mapping[str, str], names: Mapping[str, str]) -> Iterator[Block]:
    sides = (pair.first, pair.second)
    yield Paragraph(lead=f"{one_line(pair.entity)}, {one_line(pair.attribute)}:", text=one_line(pair.why))
    rows = [
        ("words", *(f"“{one_line(side.words)}” [{side.document}:{side.line}]" for side in sides)),
        ("value", *(one_line(side.value) for side in sides)),
        ("noted by", *(names.get(side.reader, side.reader) for side in sides)),
    ]
    if any(side.worth for side in sides):
        rows.append(("worth", *(one_line(side.worth) for side in sides)))
    yield Table(heads=("", *(_head(side, titles) for side in sides)), rows=tuple(rows), left=3)
    judge = names.get(pair.judge, pair.judge)
    yield Paragraph(
        text=f"Joined by the engine from the inventories; called a contradiction by {judge}.", tone="remark"
    )


def _head(side: NotedPassage, titles: Mapping[str, str]) -> str:
    return f"{side.document} {titles.get(side.document, '')}".rstrip()


def _basis(across: AcrossDocuments) -> str:
    """Return what the findings were chosen from: rows, pairs, and what no agent judged."""
    judged = [pair for pair in across.pairs if pair.verdict != "not judged"]
    words = [
        f"{count(across.rows, 'row')} of the inventories with verified quotations",
        f"{count(len(judged), 'pair')} with different values judged, {len(across.findings):,} called a contradiction",
    ]
    if unjudged := len(across.pairs) - len(judged):
        words.append(f"{count(unjudged, 'pair')} not judged, because no agent may read both documents or no reply came")
    if across.left_out:
        words.append(f"{count(across.left_out, 'further pair')} shown to no agent, for want of room")
    return "; ".join(words)


def requests_blocks(across: AcrossDocuments | None, names: Mapping[str, str]) -> Iterator[Block]:
    """Yield the passages that agents asked for, and what they were shown."""
    if across is not None and across.requests:
        yield Bullets(items=tuple(_request(passage, names) for passage in across.requests))


def _request(passage: AskedPassage, names: Mapping[str, str]) -> Item:
    shown = f"shown {passage.shown[0]}-{passage.shown[1]}" if passage.shown else f"not shown: {passage.refusal}"
    return Item(
        lead="Asked for:",
        text=f"{one_line(passage.place)}, {shown}",
        by=names.get(passage.agent, passage.agent),
        note=one_line(passage.why),
    )
