"""The index of dealt documents: who holds what, for every prompt of the session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from consilience.documents.numbered import heading
from consilience.domain.document_shares import DocumentShare
from consilience.domain.tokens import estimate_tokens

if TYPE_CHECKING:
    from consilience.engine.sources import Document

MAX_INDEX_TOKENS = 1_000
"""Max size of the index."""

INDEX_NOTE = (
    "The documents are dealt: each reader is shown its own part of them, and lines of other parts that are related to it. Whoever "
    "has no part is shown none. The index lists all documents and who holds which lines, whichever of them you are shown."
)


def make_index(documents: Sequence[Document]) -> str:
    """Return the index of dealt documents: number, name, lines, holders, and as many headings as have room, with their lines. Of a
    document that not everybody may read it has no heading.

    Holders are numbered in the order of the agents, since their names may not be shown to others.
    """
    numbers = reader_numbers(documents)
    lines = [_index_line(document, numbers) for document in documents]
    used = sum(map(estimate_tokens, lines))
    if used > MAX_INDEX_TOKENS:
        return "\n".join(_shortened(documents, numbers))
    texts = [list(_headings(document.text)) if document.agents is None else [] for document in documents]
    chosen: list[list[str]] = [[] for _ in documents]
    for rank in range(max(map(len, texts), default=0)):
        for n, headings in enumerate(texts):
            if rank < len(headings):
                used += estimate_tokens(headings[rank])
                if used > MAX_INDEX_TOKENS:
                    break
                chosen[n].append(headings[rank])
        else:
            continue
        break
    left_out = sum(map(len, texts)) - sum(map(len, chosen))
    blocks = ["\n".join([line, *headings]) for line, headings in zip(lines, chosen, strict=True)]
    return "\n".join([*blocks, *([f"({left_out:,} further headings left out)"] if left_out else [])])


def reader_numbers(documents: Sequence[Document]) -> dict[str, int]:
    """Return the numbers by which the index calls the holders of shares."""
    holders = {share.agent for document in documents for share in document.shares if share.lines}
    return {agent: n for n, agent in enumerate(sorted(holders, key=lambda agent: (len(agent), agent)), 1)}


def _index_line(document: Document, numbers: dict[str, int]) -> str:
    name = " ".join(document.name.split())[:120]
    return f"{document.id} {name} ({document.line_count:,} lines): {_holders(document, numbers)}"


def _holders(document: Document, numbers: dict[str, int]) -> str:
    holders = [f"reader {numbers[share.agent]}{_lines_of(document, share)}" for share in document.shares if share.lines]
    return "; ".join(holders) or ("all" if document.agents is None else "private")


def _lines_of(document: Document, share: DocumentShare) -> str:
    if share.lines == ((1, max(document.line_count, 1)),):
        return ""
    return " lines " + ", ".join(f"{first}-{last}" for first, last in share.lines)


def _headings(text: str) -> Iterator[str]:
    for n, line in enumerate(text.splitlines(), 1):
        if words := heading(line):
            yield f"  {n}: {words[:80]}"


def _shortened(documents: Sequence[Document], numbers: dict[str, int]) -> Iterator[str]:
    """Yield an index of too many documents: ranges of neighbours with the same holders, without names."""
    runs: list[tuple[str, list[str]]] = []
    for document in documents:
        holders = _holders(document, numbers)
        if not runs or runs[-1][0] != holders:
            runs.append((holders, []))
        runs[-1][1].append(document.id)
    by_holders: dict[str, list[str]] = {}
    for holders, ids in runs:
        by_holders.setdefault(holders, []).append(ids[0] if len(ids) == 1 else f"{ids[0]}–{ids[-1]}")
    room = MAX_INDEX_TOKENS // max(len(by_holders), 1)
    for holders, ids in by_holders.items():
        listed: list[str] = []
        for id in ids:
            if estimate_tokens(", ".join([*listed, id])) > room:
                break
            listed.append(id)
        more = f" and {len(ids) - len(listed):,} further ranges" if len(ids) > len(listed) else ""
        yield f"{holders}: {', '.join(listed)}{more}"
    yield f"({len(documents):,} documents; their names are left out)"
