"""Dealing documents to the agents of a protocol: how many agents the documents need, and what each is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from consilience.documents.dealing import Deal, Dealer, Hand, with_shares
from consilience.documents.numbered import FENCE_TOKENS, NumberedLines
from consilience.documents.related import related_lines
from consilience.domain.document_shares import Lines
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source

if TYPE_CHECKING:
    from consilience.engine.protocol import Protocol

SHARE_OF_WINDOW = 0.5
"""Share of a context window that documents may take in one reading."""
MAX_SHARES = 12
"""Agents, at most, that documents are dealt to if their number follows from the documents."""
RELATED_SHARE = 0.75
"""Related lines, at most, as a share of the tokens of an agent's own."""
RELATED_WINDOW = 0.2
"""Related lines, at most, as a share of the context window."""


def deal_to_agents(
    protocol: Protocol, sources: Sequence[Source], deal: Deal, window: int | None
) -> tuple[Protocol, Sequence[Source]]:
    """Return the protocol with the agents that the documents need, and the documents with what each of them is shown.

    `window` is the smallest known context window, in tokens. If the documents exceed half of it and the number of agents is not
    set, it is the smallest whose shares do not. Documents that are dealt already stay so. Raises `SettingsError` if they do not
    fit.
    """
    undealt = protocol, sources
    if deal == "none" or any(source.shares for source in sources):
        return undealt
    dealer = Dealer(sources)
    room = None if window is None else int(window * SHARE_OF_WINDOW)
    is_large = room is not None and dealer.tokens > room
    if not dealer.has_documents or (deal == "auto" and not is_large):
        return undealt
    if len(protocol.share_holders) < 2:
        if deal == "auto":
            return undealt
        raise SettingsError(
            f"{protocol.name} cannot deal documents: its agents do not exchange what they read in shares",
            field="deal",
            do="Use a protocol whose agents read each other's texts, or show all documents to every agent (none).",
        )
    how: Deal = "document" if deal == "auto" else deal
    whole = protocol.share_holders
    tried: set[int] = set()
    for size in range(2, MAX_SHARES + 1) if is_large else (dealer.shares(how, len(whole), room),):
        sized = protocol.with_share_holders(size) if is_large or size < len(whole) else protocol
        if len(sized.share_holders) in tried:
            continue
        tried.add(len(sized.share_holders))
        hands = dealer.hands(how, sized.share_holders, room)
        used = [
            dealer.private_tokens(agent) + hand.tokens for agent, hand in zip(sized.share_holders, hands, strict=True)
        ]
        if room is None or max(used) <= room:
            return sized, _with_related(dealer, sized.share_holders, hands, window)
    assert room is not None
    raise _too_large(dealer, room, max(tried))


def _with_related(
    dealer: Dealer, agents: Sequence[str], hands: Sequence[Hand], window: int | None
) -> tuple[Source, ...]:
    caps = [int(hand.tokens * RELATED_SHARE) for hand in hands]
    if window is not None:
        caps = [min(cap, int(window * RELATED_WINDOW)) for cap in caps]
    related = related_lines(dealer.texts, [hand.ranges for hand in hands], caps)
    return with_shares(dealer.sources, agents, hands, [r.ranges for r in related], [r.left_out for r in related])


def _too_large(dealer: Dealer, room: int, agents: int) -> SettingsError:
    advice = "name a model with a larger window, or leave documents out"
    if (long := dealer.too_long(room)) is not None:
        source, line, tokens = long
        return SettingsError(
            f"line {line:,} of {source.name or 'a document'} has about {tokens:,} tokens, and a share may have {room:,} (half of "
            "the context window)",
            field="deal",
            do=f"Break the line, {advice}.",
        )
    return SettingsError(
        f"the documents have about {dealer.tokens:,} tokens, too many for {agents} shares of {room:,} (half of the context window)",
        field="deal",
        do=f"Deal by size, set more agents, {advice}.",
    )


class DealRow(NamedTuple):
    """The share of an agent."""

    agent: str
    documents: list[str]
    """Its lines: `S1`, `S4:1-120`."""
    tokens: int
    related_tokens: int
    """Size of the lines that are shown because they are related to these."""
    left_out: int
    """Related passages for which there was no room."""


def deal_rows(sources: Sequence[Source]) -> list[DealRow]:
    """Return the shares of dealt documents, by agent."""
    rows: dict[str, DealRow] = {}
    for n, source in enumerate(sources, 1):
        text = NumberedLines(source.text) if source.shares else NumberedLines("")
        for share in source.shares:
            row = rows.get(share.agent) or DealRow(share.agent, [], 0, 0, 0)
            rows[share.agent] = row._replace(
                documents=[*row.documents, *(reference_to(f"S{n}", lines, max(len(text), 1)) for lines in share.lines)],
                tokens=row.tokens + sum(text.tokens(*lines) for lines in share.lines if len(text)),
                related_tokens=row.related_tokens + sum(text.tokens(*lines) - FENCE_TOKENS for lines in share.related),
                left_out=row.left_out + share.left_out,
            )
    return list(rows.values())


def reference_to(document: str, lines: Lines, line_count: int) -> str:
    """Return the name of lines in prompts: `S4`, or `S4:120-380` for a part."""
    return document if lines == (1, line_count) else f"{document}:{lines[0]}-{lines[1]}"


def left_out_lines(sources: Sequence[Source]) -> list[str]:
    """Return a warning for each agent for whose related lines there was no room."""
    return [
        f"related lines for {row.agent}: {row.left_out:,} passages left out, because there was no room"
        for row in deal_rows(sources)
        if row.left_out
    ]
