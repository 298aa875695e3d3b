"""Dealing documents to the agents of a protocol: how many agents the documents need, and what each is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from consilience.documents.dealing import Deal, Dealer, Hand, with_shares
from consilience.documents.numbered import FENCE_TOKENS, NumberedLines
from consilience.documents.related import related_lines
from consilience.domain.detail import REPLY_TOKENS, Detail
from consilience.domain.document_shares import DocumentShare, Lines
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.panels import Panel
from consilience.domain.tokens import estimate_tokens
from consilience.engine.document_index import make_index
from consilience.engine.prompt import Opening
from consilience.engine.readers import INVENTORY_TOKENS
from consilience.engine.seats import Models, choose_detail, longest_thinking, smallest_window
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import Document, number_documents
from consilience.engine.templates import INSTRUCTIONS

if TYPE_CHECKING:
    from consilience.domain.events import SessionStarted
    from consilience.engine.execution import Options
    from consilience.engine.protocol import Protocol

SHARE_OF_WINDOW = 0.5
"""Share of a context window that documents may take in one reading."""
MAX_SHARES = 12
"""Agents, at most, that documents are dealt to if their number follows from the documents."""
RELATED_SHARE = 0.75
"""Related lines, at most, as a share of the tokens of an agent's own."""
RELATED_WINDOW = 0.2
"""Related lines, at most, as a share of the context window."""
TRADES = (
    ((2_000, 1.0), (1_500, 1.0), (1_000, 1.0), (1_000, 0.5)),
    ((750, 1.0),),
    ((500, 1.0),),
    ((750, 0.5), (500, 0.5)),
    ((500, 0.25), (400, 0.0)),
)
"""What prompts in a small window have room for, best first: tokens of a reply, and the least share of the related lines. The first
for which any number of agents fits is taken; before those of a later group documents are cut smaller, to fill shares evenly."""
HOLDERS_TOKENS = 24
"""What the index says of the holders of a document."""
WINDOW_STEP = 1_000
MAX_WINDOW = 2_000_000


@dataclass(frozen=True)
class PromptBudget:
    """How a context window is divided between the documents that a prompt shows and all else that a session puts into it: what
    agents write to each other, index, inventories, request, schema, reply and thinking. See `CallSizes.largest_of`."""

    window: int
    """The smallest known context window of the agents, in tokens."""
    dealer: Dealer
    panel: Panel | None = None
    task: str = ""
    detail: Detail = "full"
    thinking: int = 0
    """Tokens for the thinking before a reply."""
    inventory_tokens: int = INVENTORY_TOKENS

    def trades(self, protocol: Protocol) -> list[list[tuple[int, float]]]:
        """Return `TRADES` as far as the settings leave a choice."""
        if (fixed := protocol.reply_tokens) is not None:
            return [[(fixed, 1.0), (fixed, 0.5)], [(fixed, 0.25), (fixed, 0.0)]]
        return [[(min(reply, REPLY_TOKENS[self.detail]), related) for reply, related in group] for group in TRADES]

    def documents(self, protocol: Protocol, reply: int) -> int:
        """Return the tokens of documents for which the prompts of a share holder have room beside replies of this length; 0 if the
        prompts of another agent do not fit."""
        holders, agents = protocol.share_holders, protocol.agents(self.panel)
        shares = tuple(DocumentShare(agent=holder, lines=((1, 1),)) for holder in holders)
        opening = Opening(self._instructions(protocol), self.task, (Document("S1", "", "", shares=shares),))
        sizes = CallSizes(
            replace(opening, window=self.window),
            with_reply(protocol, reply),
            agents,
            {},
            {agent.id: self.thinking for agent in agents},
            inventory_tokens=self.inventory_tokens,
        )
        room = self.window - self._index_tokens
        if any(
            sizes.largest_of(agent.id) + (agent.id not in holders) * self.dealer.private_tokens(agent.id) > room
            for agent in agents
        ):
            return 0
        return room - max(sizes.largest_of(holder, showing_documents=True) for holder in holders)

    def share(self, protocol: Protocol, reply: int, related: float) -> int:
        """Return how large a share may be, if at least this share of its related lines is to have room."""
        left = self.documents(protocol, reply)
        most = max(left / (1 + RELATED_SHARE * related), left - RELATED_WINDOW * related * self.window)
        return min(int(most), int(self.window * SHARE_OF_WINDOW))

    def longest_reply(self, protocol: Protocol, reply: int, related: float, used: int) -> int:
        """Return how long replies may be, at least `reply`, beside a share of `used` tokens."""
        default = REPLY_TOKENS[self.detail]
        longer = (reply + (default - reply) * eighths // 8 for eighths in range(8, 0, -1))
        if protocol.reply_tokens is not None:
            return reply
        return next((n for n in longer if n > reply and used <= self.share(protocol, n, related)), reply)

    @cached_property
    def _index_tokens(self) -> int:
        documents, most = number_documents(self.dealer.sources), Opening("", "", window=self.window).index_tokens
        return min(most, estimate_tokens(make_index(documents, most)) + HOLDERS_TOKENS * len(documents))

    def _instructions(self, protocol: Protocol) -> str:
        return protocol.load_templates(None, self.detail).render(INSTRUCTIONS, documents=True)


@dataclass(frozen=True)
class _Deal:
    protocol: Protocol
    hands: Sequence[Hand]
    related_room: Sequence[int]
    """Tokens of related lines, at most, for each holder."""


def deal_to_agents(
    protocol: Protocol,
    sources: Sequence[Source],
    deal: Deal,
    window: int | None,
    *,
    panel: Panel | None = None,
    task: str = "",
    detail: Detail = "full",
    thinking: int = 0,
    inventory_tokens: int | None = None,
) -> tuple[Protocol, Sequence[Source]]:
    """Return the protocol with the agents that the documents need, and the documents with what each of them is shown.

    `window` is the smallest known context window, in tokens. If the documents exceed half of it and the number of agents is not
    set, it is the smallest with which every prompt fits; if the length of replies is not set, they are as long as then fit.
    Documents that are dealt already stay so. Raises `SettingsError` if they do not fit.
    """
    undealt = protocol, sources
    if deal == "none" or any(source.shares for source in sources):
        return undealt
    dealer = Dealer(sources)
    is_large = window is not None and dealer.tokens > int(window * SHARE_OF_WINDOW)
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
    if window is None:
        sized = next(_sizes(protocol, dealer, how, None))
        hands = dealer.hands(how, sized.share_holders, None)
        return sized, _with_related(dealer, _Deal(sized, hands, [hand.tokens for hand in hands]))
    inventory = INVENTORY_TOKENS if inventory_tokens is None else inventory_tokens
    budget = PromptBudget(window, dealer, panel, task, detail, thinking, inventory)
    dealt = _fitting(protocol, how, budget)
    if dealt is None:
        raise _too_large(protocol, how, budget)
    return dealt.protocol, _with_related(dealer, dealt)


def deal_for(
    protocol: Protocol, sources: Sequence[Source], options: Options, models: Models, panel: Panel | None, task: str
) -> tuple[Protocol, Sequence[Source]]:
    """Deal documents for a session on these models, all of which are named or given."""
    known = options.endpoints
    return deal_to_agents(
        protocol,
        sources,
        options.deal,
        smallest_window(models, known),
        panel=panel,
        task=task,
        detail=choose_detail(options.detail, protocol.agents(panel), models),
        thinking=longest_thinking(models, known, options.thinking),
        inventory_tokens=options.inventory_tokens,
    )


def deal_as_begun(
    protocol: Protocol,
    sources: Sequence[Source],
    options: Options,
    started: SessionStarted,
    panel: Panel | None,
    task: str,
) -> tuple[Protocol, Sequence[Source]]:
    """Deal documents as for the session that began so, with the same arguments."""
    return deal_to_agents(
        protocol,
        sources,
        options.deal,
        min(started.windows.values(), default=None),
        panel=panel,
        task=task,
        detail=started.detail,
        thinking=max(started.thinking_tokens.values(), default=0),
        inventory_tokens=options.inventory_tokens,
    )


def _sizes(protocol: Protocol, dealer: Dealer, how: Deal, room: int | None) -> Iterator[Protocol]:
    """Yield the protocol with each number of share holders that it may have, the fewest first."""
    whole = len(protocol.share_holders)
    is_large = room is not None and dealer.tokens > room
    tried: set[int] = set()
    for size in range(2 if is_large else dealer.shares(how, whole, room), MAX_SHARES + 1):
        sized = protocol if size == whole else protocol.with_share_holders(size)
        if len(sized.share_holders) not in tried:
            tried.add(len(sized.share_holders))
            yield sized


def _fitting(protocol: Protocol, how: Deal, budget: PromptBudget) -> _Deal | None:
    """Return the best deal that fits; None if none does."""
    dealer, window = budget.dealer, budget.window
    sizes = list(_sizes(protocol, dealer, how, int(window * SHARE_OF_WINDOW)))
    for trades, cuts in product(budget.trades(protocol), (1, 2)):
        for (reply, related), sized in product(trades, sizes):
            room, holders = budget.share(sized, reply, related), sized.share_holders
            if room <= 0 or dealer.tokens > room * len(holders):
                continue
            hands = dealer.hands(how, holders, room // cuts)
            used = [dealer.private_tokens(holder) + hand.tokens for holder, hand in zip(holders, hands, strict=True)]
            if max(used) <= room:
                longest = budget.longest_reply(sized, reply, related, max(used))
                left = budget.documents(sized, longest)
                caps = [min(left - size, int(window * RELATED_WINDOW)) for size in used]
                return _Deal(with_reply(sized, longest, closing=REPLY_TOKENS[budget.detail]), hands, caps)
    return None


def with_reply(protocol: Protocol, tokens: int, *, closing: int = 0) -> Protocol:
    """Return the protocol with replies of at most so many tokens, and a `closing` one if that may be longer; itself if replies
    have that length already."""
    if tokens == protocol.max_reply_tokens:
        return protocol
    changes = {"reply_tokens": tokens, "closing_reply_tokens": closing if closing > tokens else None}
    return protocol.model_copy(update=changes)


def _with_related(dealer: Dealer, dealt: _Deal) -> tuple[Source, ...]:
    agents, hands = dealt.protocol.share_holders, dealt.hands
    caps = [min(int(hand.tokens * RELATED_SHARE), cap) for hand, cap in zip(hands, dealt.related_room, strict=True)]
    related = related_lines(dealer.texts, [hand.ranges for hand in hands], caps)
    return with_shares(dealer.sources, agents, hands, [r.ranges for r in related], [r.left_out for r in related])


def _too_large(protocol: Protocol, how: Deal, budget: PromptBudget) -> SettingsError:
    dealer, window = budget.dealer, budget.window
    reply, related = budget.trades(protocol)[-1][-1]
    rooms = {
        len(sized.share_holders): max(budget.share(sized, reply, related), 0)
        for sized in _sizes(protocol, dealer, how, int(window * SHARE_OF_WINDOW))
    }
    agents = max(rooms, key=lambda number: number * rooms[number])
    room = rooms[agents]
    wider = _fitting_window(protocol, how, budget)
    advice = "name a model with a larger window" + (f", of {wider:,} tokens or more" if wider else "")
    if room and (long := dealer.too_long(room)) is not None:
        source, line, tokens = long
        return SettingsError(
            f"line {line:,} of {source.name or 'a document'} has about {tokens:,} tokens, and a share may have {room:,} in a "
            f"context window of {window:,}",
            field="deal",
            do=f"Break the line, {advice}, or leave documents out.",
        )
    fit = f"{agents} shares of {room:,}" if room else "any share"
    return SettingsError(
        f"the documents have about {dealer.tokens:,} tokens, too many for {fit} in a context window of {window:,}: the prompts of "
        f"{protocol.name} also have to hold what its agents write to each other",
        field="deal",
        do=f"Deal by size, set other numbers of agents or shorter replies, {advice}, or leave documents out.",
    )


def _fitting_window(protocol: Protocol, how: Deal, budget: PromptBudget) -> int | None:
    """Return the smallest window in which the documents can be dealt, in steps; None if there is none."""
    low, high = budget.window // WINDOW_STEP, MAX_WINDOW // WINDOW_STEP
    while high - low > 1:
        middle = (low + high) // 2
        fits = _fitting(protocol, how, replace(budget, window=middle * WINDOW_STEP)) is not None
        low, high = (low, middle) if fits else (middle, high)
    return high * WINDOW_STEP if high < MAX_WINDOW // WINDOW_STEP else None


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
    """Return the shares of dealt documents, in the order of the agents."""
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
    return sorted(rows.values(), key=lambda row: (len(row.agent), row.agent))


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
