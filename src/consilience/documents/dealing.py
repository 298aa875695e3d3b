"""Dealing documents to agents: shares by directory, by document or by size. Pure: the same documents are dealt the same way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import PurePath
from typing import Literal

from consilience.documents.numbered import FENCE_TOKENS, NumberedLines
from consilience.domain.document_shares import DocumentShare, Lines
from consilience.domain.messages import Source

Deal = Literal["auto", "none", "directory", "document", "size"]
"""How documents are dealt to agents: `auto` by document if they exceed half of the smallest context window, `none` shows all of
them to every agent."""

SIZE_STEPS = 8
"""Dealing by size cuts documents into ranges of this fraction of a share, so shares differ by no more."""


@dataclass(frozen=True)
class Piece:
    """Lines of a document that stay together."""

    source: int
    """Index of the document."""
    lines: Lines
    tokens: int


@dataclass(frozen=True)
class Hand:
    """The share of one agent."""

    pieces: tuple[Piece, ...]

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @cached_property
    def ranges(self) -> Mapping[int, tuple[Lines, ...]]:
        """The lines by index of their document, those that meet as one range."""
        ranges: dict[int, list[Lines]] = {}
        for piece in sorted(self.pieces, key=lambda piece: (piece.source, piece.lines)):
            of_source = ranges.setdefault(piece.source, [])
            first, last = piece.lines
            if of_source and of_source[-1][1] + 1 == first:
                first = of_source.pop()[0]
            of_source.append((first, last))
        return {source: tuple(lines) for source, lines in ranges.items()}


class Dealer:
    """Deals the documents that are open to all agents; the others stay with the agents that they were given to."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.texts = [NumberedLines(source.text) for source in sources]
        self._open = [n for n, source in enumerate(sources) if source.agents is None]

    @cached_property
    def tokens(self) -> int:
        """Size of the documents that can be dealt."""
        return sum(self._whole(n).tokens for n in self._open)

    @property
    def has_documents(self) -> bool:
        return bool(self._open)

    def private_tokens(self, agent: str) -> int:
        """Size of the documents that were given to this agent."""
        given = (n for n, source in enumerate(self.sources) if source.agents and agent in source.agents)
        return sum(self._whole(n).tokens for n in given)

    def too_long(self, room: int) -> tuple[Source, int, int] | None:
        """Return a document with a line that is larger than a share, the number of the line and its tokens."""
        for n in self._open:
            for line in range(1, len(self.texts[n]) + 1):
                if (tokens := self.texts[n].tokens(line, line)) > room:
                    return self.sources[n], line, tokens
        return None

    def shares(self, how: Deal, agents: int, room: int | None) -> int:
        """Return how many of so many agents get a share: no more than there are directories or documents, and at least two."""
        groups = sum(1 for _ in self._groups(how, room))
        return agents if how == "size" or groups < 2 else min(agents, groups)

    def hands(self, how: Deal, agents: Sequence[str], room: int | None) -> tuple[Hand, ...]:
        """Return the share of each agent. A share may exceed `room` (tokens) if the documents do not fit."""
        used = [self.private_tokens(agent) for agent in agents]
        groups = [group for group in self._groups(how, room) if group]
        if how == "size" or len(groups) < 2:
            return self._in_order(used, room)
        hands: list[list[Piece]] = [[] for _ in agents]
        largest_first = sorted(groups, key=_size, reverse=True)  # stable: equal ones keep the order of the documents
        for group in largest_first:
            agent = used.index(min(used))
            hands[agent] += group
            used[agent] += _size(group)
        return tuple(Hand(tuple(hand)) for hand in hands)

    def _groups(self, how: Deal, room: int | None) -> Iterator[list[Piece]]:
        """Yield what stays together: the documents of a directory, or each by itself; lines of one that is larger than a share."""
        directories: dict[str, list[int]] = defaultdict(list)
        for n in self._open:
            name = str(PurePath(self.sources[n].name).parent) if how == "directory" else str(n)
            directories[name].append(n)
        for members in directories.values():
            whole = [self._whole(n) for n in members]
            if room is None or _size(whole) <= room:
                yield whole
            else:
                for piece in whole:
                    yield from ([part] for part in self._parts(piece, room))

    def _parts(self, whole: Piece, room: int) -> Iterator[Piece]:
        if whole.tokens <= room:
            yield whole
        else:
            even = ceil(whole.tokens / ceil(whole.tokens / room)) + FENCE_TOKENS
            yield from self._cut(whole.source, min(even, room))

    def _in_order(self, used: Sequence[int], room: int | None) -> tuple[Hand, ...]:
        """Deal by size: neighbouring text goes to one agent, as much to each as keeps the prompts of equal size."""
        target = ceil((self.tokens + sum(used)) / len(used))
        step = max(min(target, room or target) // SIZE_STEPS, 2 * FENCE_TOKENS)
        pieces = [piece for n in self._open for piece in self._cut(n, step)]
        left = sum(piece.tokens for piece in pieces) + sum(used)
        hands: list[list[Piece]] = [[] for _ in used]
        agent, held = 0, used[0]
        for piece in pieces:
            share = left / (len(used) - agent)
            if agent + 1 < len(used) and held + piece.tokens / 2 > share:
                left -= held
                agent += 1
                held = used[agent]
            hands[agent].append(piece)
            held += piece.tokens
        return tuple(Hand(tuple(hand)) for hand in hands)

    def _whole(self, n: int) -> Piece:
        text = self.texts[n]
        return Piece(n, (1, max(len(text), 1)), text.tokens(*text.all) if len(text) else FENCE_TOKENS)

    def _cut(self, n: int, tokens: int) -> Iterator[Piece]:
        text = self.texts[n]
        if self._whole(n).tokens <= tokens:
            yield self._whole(n)
            return
        for first, last in text.cut(1, len(text), tokens, sections=True):
            yield Piece(n, (first, last), text.tokens(first, last))


def with_shares(
    sources: Sequence[Source],
    agents: Sequence[str],
    hands: Sequence[Hand],
    related: Sequence[Mapping[int, tuple[Lines, ...]]] = (),
    left_out: Sequence[Mapping[int, int]] = (),
) -> tuple[Source, ...]:
    """Return the documents with the shares of the agents, for the record."""
    shares: dict[int, list[DocumentShare]] = defaultdict(list)
    for n, (agent, hand) in enumerate(zip(agents, hands, strict=True)):
        more, without = (related[n] if related else {}), (left_out[n] if left_out else {})
        for source in sorted({*hand.ranges, *more, *without}):
            shares[source].append(
                DocumentShare(
                    agent=agent,
                    lines=hand.ranges.get(source, ()),
                    related=more.get(source, ()),
                    left_out=without.get(source, 0),
                )
            )
    return tuple(
        source.model_copy(update={"shares": tuple(shares[n])}) if n in shares else source
        for n, source in enumerate(sources)
    )


def _size(pieces: Iterable[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)
