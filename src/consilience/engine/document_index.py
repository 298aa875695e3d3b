"""The index of dealt documents: who holds what, for every prompt of the session."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from consilience.documents.numbered import heading
from consilience.domain.document_shares import DocumentShare
from consilience.domain.tokens import estimate_tokens

if TYPE_CHECKING:
    from consilience.engine.sources import Document

INDEX_NOTE = (
    "The documents are dealt: each reader is shown its own part of them, and lines of other parts that are related to it. Whoever "
    "has no part is shown none. The index lists all documents and who holds which lines, whichever of them you are shown. To quote "
    "a table, copy cells of one row that stand side by side, with the marks between them."
)


def make_index(documents: Sequence[Document], room: int) -> str:
    """Return the index of dealt documents in at most `room` tokens: number, name, lines, holders, and headings with their lines, of
    all documents equally many, higher ones first and those of one level from all over the text. Of a document that not everybody
    may read it has no heading.

    Holders are numbered in the order of the agents, since their names may not be shown to others.
    """
    numbers = reader_numbers(documents)
    lines = [_index_line(document, numbers) for document in documents]
    used = sum(map(estimate_tokens, lines))
    if used > room:
        return "\n".join(_shortened(documents, numbers, room))
    texts = [_by_rank(document.text) if document.agents is None else [] for document in documents]
    chosen: list[list[tuple[int, str]]] = [[] for _ in documents]
    for n, found in (item for rank in zip_longest(*texts) for item in enumerate(rank) if item[1] is not None):
        used += estimate_tokens(found[1])
        if used > room:
            break
        chosen[n].append(found)
    left_out = sum(map(len, texts)) - sum(map(len, chosen))
    blocks = [
        "\n".join([line, *(text for _, text in sorted(headings))]) for line, headings in zip(lines, chosen, strict=True)
    ]
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


def _by_rank(text: str) -> list[tuple[int, str]]:
    """Return the headings of a text with the numbers of their lines, those first that tell most of where things stand: higher ones,
    and of one level first the middle one, then the middle ones of both halves, and so on."""
    levels: dict[int, list[tuple[int, str]]] = {}
    for n, line in enumerate(text.splitlines(), 1):
        if words := heading(line):
            level = len(line) - len(line.lstrip("#"))
            levels.setdefault(level, []).append((n, f"  {n}: {words[:80]}"))
    return [level[n] for _, level in sorted(levels.items()) for n in _spread(len(level))]


def _spread(length: int) -> Iterator[int]:
    """Yield the numbers below `length`, each the middle of a gap that those before it leave, the widest gaps first."""
    gaps = deque([(0, length)])
    while gaps:
        first, end = gaps.popleft()
        if first < end:
            middle = (first + end) // 2
            yield middle
            gaps += [(first, middle), (middle + 1, end)]


def _shortened(documents: Sequence[Document], numbers: dict[str, int], room: int) -> Iterator[str]:
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
    room //= max(len(by_holders), 1)
    for holders, ids in by_holders.items():
        listed: list[str] = []
        for id in ids:
            if estimate_tokens(", ".join([*listed, id])) > room:
                break
            listed.append(id)
        more = f" and {len(ids) - len(listed):,} further ranges" if len(ids) > len(listed) else ""
        yield f"{holders}: {', '.join(listed)}{more}"
    yield f"({len(documents):,} documents; their names are left out)"
