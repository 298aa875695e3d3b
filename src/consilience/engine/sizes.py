"""How large calls may be: in requests, tokens and money."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Protocol

from consilience.domain.agents import Agent
from consilience.domain.outcome import THINKING_TOKENS, CallKind, Estimate, Limits, LimitUnit, SpendingLimits
from consilience.domain.tokens import estimate_tokens
from consilience.engine.prompt import Opening
from consilience.engine.readers import judging_tokens, readers_of, with_inventories
from consilience.engine.sources import Document, parse_reference

MONEY_DIGITS = 12
"""Decimal places of US dollars that sums keep, so that three times 0.10 fit into 0.30."""
MIN_FIT = 0.25
"""Smallest share of its size to which limits shrink a reply. Most replies are shorter than that; a smaller one would be cut."""
_FIT_STEPS = 64
_TEMPLATE_TOKENS = 256
"""Tokens that a template adds to a prompt without quotations."""
_INVENTORY_TOKENS = 1_280
"""Tokens of the request for an inventory, or to judge pairs of rows, with notes and the schema of the reply."""
_SCHEMA_TOKENS = 2_048
"""Max tokens of the JSON Schema of a reply, which some servers put into the prompt."""
_CORRECTION_TOKENS = 640
"""What a corrective request adds: 600 characters of the last reply, and its error."""
_QUOTE_TOKENS = 32
"""Tokens that the fence of a quotation adds to its text."""


@dataclass(frozen=True, slots=True)
class Usage:
    """An amount of what limits bound; infinity is no limit."""

    calls: float = 0
    """Requests to models."""
    tokens: float = 0
    """Tokens read and written."""
    cost: float = 0
    """US dollars."""

    def __add__(self, other: Usage) -> Usage:
        cost = round(self.cost + other.cost, MONEY_DIGITS)
        return Usage(self.calls + other.calls, self.tokens + other.tokens, cost)

    def __sub__(self, other: Usage) -> Usage:
        cost = round(self.cost - other.cost, MONEY_DIGITS)
        return Usage(self.calls - other.calls, self.tokens - other.tokens, cost)

    def __mul__(self, times: float) -> Usage:
        return Usage(self.calls * times, self.tokens * times, self.cost * times)

    def covers(self, other: Usage) -> bool:
        return self.calls >= other.calls and self.tokens >= other.tokens and self.cost >= other.cost

    def lacks(self, other: Usage) -> LimitUnit:
        """The first figure that does not cover the other amount's."""
        if self.calls < other.calls:
            return "calls"
        if self.tokens < other.tokens:
            return "tokens"
        return "cost" if self.cost < other.cost else ""

    def limited_to(self, other: Usage) -> Usage:
        """The smaller of both in each figure, at least 0."""
        return Usage(
            max(min(self.calls, other.calls), 0),
            max(min(self.tokens, other.tokens), 0),
            max(min(self.cost, other.cost), 0),
        )


NOTHING = Usage()
ONE_REQUEST = Usage(1)
UNLIMITED = Usage(math.inf, math.inf, math.inf)


def usage_allowed(limits: SpendingLimits) -> Usage:
    """Limits as usage; infinity for those that are not set."""
    values = (limits.calls, limits.tokens, limits.cost)
    return Usage(*(math.inf if value is None else value for value in values))


@dataclass(frozen=True, slots=True)
class ReplySize:
    """Max tokens of one reply."""

    answer: int
    thinking: int = 0
    """Tokens for the thinking before the answer."""
    enlarged: bool = False
    """Whether the reply has more room than the first attempt had."""

    @property
    def tokens(self) -> int:
        return self.answer + self.thinking

    def doubled(self) -> ReplySize:
        """Twice the room, for a closing call whose reply was cut."""
        return ReplySize(2 * self.answer, 2 * self.thinking, enlarged=True)

    def cut_error(self, text: str, tokens_thought: int, error: str) -> str:
        """The error of an unusable reply that was cut at this size, with what to do."""
        limit = f"the reply was cut at its limit of {self.tokens:,} tokens"
        if text.strip():
            return f"{error}; {limit}"
        thinking_note = f" ({tokens_thought:,} of them went into thinking)" if tokens_thought else ""
        return f"{limit} before an answer began{thinking_note}; give it more room (--reply-tokens) or another --thinking level"


@dataclass(frozen=True, slots=True)
class Demand:
    """What a branch asks for at a fork."""

    need: Usage
    """All that it may spend without retries."""
    retry: Usage
    """The size of one retry."""
    divisible: bool = False
    """Whether the need counts several calls at their largest size, so that a part of it is enough to begin."""


class SizedProtocol(Protocol):
    """What sizes follow from in a protocol (`engine.protocol.Protocol`)."""

    @property
    def closing(self) -> bool: ...
    @property
    def max_quoted_replies(self) -> int: ...
    def quoted_by(self, agent: str) -> int: ...
    @property
    def max_reply_tokens(self) -> int: ...
    @property
    def longest_reply(self) -> int: ...
    @property
    def closing_reply_tokens(self) -> int | None: ...
    @property
    def first_speakers(self) -> tuple[str, ...]: ...
    @property
    def shown_together(self) -> tuple[tuple[str, ...], ...] | None: ...
    @property
    def call_kinds(self) -> tuple[CallKind, ...]: ...
    def estimate(self) -> Estimate: ...


@dataclass(frozen=True)
class CallSizes:
    """Sizes of a session's calls. Mappings are by agent id."""

    opening: Opening
    protocol: SizedProtocol
    agents: Sequence[Agent]
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """US dollars per token, read and written."""
    thinking_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens for the thinking before one reply."""
    steps: Mapping[str, int] = field(default_factory=dict)
    """Max steps for one reply."""
    fit: float = 1.0
    """Share of its size that the answer of a reply may have."""
    inventory_tokens: int = 0
    """Max tokens of the inventory of a reader of dealt documents; 0 without inventories."""

    @property
    def estimate(self) -> Estimate:
        """Calls of the session: those of the protocol, and those for inventories."""
        return with_inventories(self.protocol.estimate(), self.opening.documents, self.agents, self.inventory_tokens)

    @property
    def longest_reply(self) -> int:
        """Max tokens of the longest reply of the session."""
        return max(self.protocol.longest_reply, self.inventory_tokens)

    @property
    def longest_closing_reply(self) -> int:
        """Max tokens of a reply if it is that of the closing call."""
        return max(self.longest_reply, self.protocol.closing_reply_tokens or 0)

    def closing_reply(self, agent: str, room: int) -> int:
        """Max tokens of the answer of the closing call, beside whose prompt a window has so much room."""
        reply = self.protocol.max_reply_tokens
        room -= _SCHEMA_TOKENS + _CORRECTION_TOKENS + self.thinking_tokens.get(agent, 0)
        return max(reply, min(room, self.protocol.closing_reply_tokens or reply))

    def reply(self, agent: str, max_tokens: int, *, enlarged: bool = False) -> ReplySize:
        """Size of a reply whose answer may have `max_tokens`; `enlarged` if thinking used up the reply before."""
        return _reply_size(max_tokens, self.thinking_tokens.get(agent, 0), self.fit, enlarged=enlarged)

    def request(self, agent: str, estimate_tokens: int, tokens_out: int) -> Usage:
        """One request of this size. An unknown price counts as 0."""
        input_price, output_price = self.prices.get(agent, (0.0, 0.0))
        return Usage(1, estimate_tokens + tokens_out, estimate_tokens * input_price + tokens_out * output_price)

    def ask(self, agent: str, prompt_tokens: int, max_tokens: int) -> Demand:
        """Demand of one call. Its retry has more room if thinking may have used up the first attempt."""
        steps = self.steps.get(agent, 1)
        first_size = self.reply(agent, max_tokens)
        retry_size = self.reply(agent, max_tokens, enlarged=agent in self.thinking_tokens)
        return Demand(
            self.request(agent, prompt_tokens, first_size.tokens) * steps,
            self.request(agent, prompt_tokens, retry_size.tokens) * steps,
        )

    def subtask(self, calls: float) -> Demand:
        """Demand of a branch of up to `calls` calls, each at its largest size and with all its steps."""
        need = self.max_call * (calls * max(self.steps.values(), default=1))
        return Demand(need, need, divisible=True)

    @cached_property
    def max_call(self) -> Usage:
        """The largest size of one call: the longest beginning of a prompt, the quotations of the prompt that quotes most, at full
        length, and the reply with its thinking."""
        return self._max_call(self.fit)

    @cached_property
    def closing_call(self) -> Usage:
        """The largest size of the closing call, which limits hold back."""
        return self._closing_call(self.fit)

    def largest_calls(self, calls: int) -> list[tuple[int, int, int]]:
        """Return how many calls read how many tokens and answer in how many, at most, if `calls` are made: the largest."""
        kinds = self.protocol.call_kinds
        sizes = [(kind.calls, self._prompt_of(kind, 1.0), kind.reply) for kind in kinds] or [
            (1, self._longest_prompt(1.0), self.longest_closing_reply),
            (calls - 1, self._longest_prompt(1.0), self.longest_reply),
        ]
        largest: list[tuple[int, int, int]] = []
        for n, read, written in sorted(sizes, key=lambda size: size[1] + size[2], reverse=True):
            n = min(n, calls - sum(made for made, _, _ in largest))
            largest += [(n, read, written)] if n > 0 else []
        return largest

    def first_of(self, agent: str) -> int:
        """Tokens of a call of an agent that quotes nothing: prompt, reply and thinking."""
        return int(
            self.ask(agent, self._beginnings[agent] + _TEMPLATE_TOKENS, self.protocol.max_reply_tokens).need.tokens
        )

    def largest_of(self, agent: str, *, showing_documents: bool = False) -> int:
        """Tokens of the largest call of an agent: prompt with the schema of the reply and a correction, reply and thinking. With
        `showing_documents` only calls count that show what the agent may read."""
        kinds = self.protocol.call_kinds
        sizes = [self._prompt_of(kind, 1.0) + kind.reply for kind in kinds] or [
            self._longest_prompt(1.0, agent) + self.protocol.longest_reply
        ]
        largest = max(sizes) + _SCHEMA_TOKENS
        if agent in self._readers:
            inventory = self._beginnings[agent] - 2 * self.opening.aside_tokens + self.inventory_tokens
            largest = max(largest, inventory + _INVENTORY_TOKENS)
            if not showing_documents:  # pairs of rows
                judging = judging_tokens(self.inventory_tokens, self.opening.window)
                pairs = self._common_tokens + self.opening.aside_tokens + 2 * judging
                largest = max(largest, pairs + _INVENTORY_TOKENS)
        return largest + _CORRECTION_TOKENS + self.thinking_tokens.get(agent, 0)

    def largest_fit(self, limits: Limits) -> float:
        """The largest share of their size that replies may have so that the first phase and the closing call fit into the limits
        on tokens and money: from `MIN_FIT` to 1, and `MIN_FIT` if nothing fits."""
        if limits.tokens is None and limits.cost is None:
            return 1.0
        steps = range(_FIT_STEPS, int(MIN_FIT * _FIT_STEPS), -1)
        return next((n / _FIT_STEPS for n in steps if self.fits(n / _FIT_STEPS, usage_allowed(limits))), MIN_FIT)

    def fits(self, fit: float, whole: Usage) -> bool:
        """Whether the first phase and the closing call fit if replies have this share of their size."""
        need = self._first_phase(fit) + (self._closing_call(fit) if self.protocol.closing else NOTHING)
        for reader in self._readers:
            need += self._first_call(reader, fit, self.inventory_tokens)
        return whole.tokens >= need.tokens and whole.cost >= need.cost

    def describe_reply(self, limits: Limits) -> str:
        """Return the max length of a reply in words, and what the limits on tokens and money make of it."""
        fit = self.largest_fit(limits)
        words = f"replies up to {math.ceil(self.longest_reply * fit):,} tokens"
        if self.longest_closing_reply > self.longest_reply:
            words += f", the closing one up to {math.ceil(self.longest_closing_reply * fit):,}"
        if fit == 1:
            return words
        words += f" ({fit:.0%} of their size, to fit the limits"
        short = not self.fits(fit, usage_allowed(limits))
        return f"{words}{', which may still end the run before every agent has replied' if short else ''})"

    @cached_property
    def next_call(self) -> Usage:
        """What a limit must leave for any one further call to be made: its largest size, and that of the closing call."""
        closing = self._closing_call(1.0) * self.protocol.closing
        return self._max_call(1.0) * max(self.steps.values(), default=1) + closing

    def _max_call(self, fit: float) -> Usage:
        kinds = self.protocol.call_kinds
        sizes = [self._of_any_agent(self._prompt_of(kind, fit), kind.reply, fit) for kind in kinds]
        if not sizes:
            return self._of_any_agent(self._longest_prompt(fit), self.longest_reply, fit)
        return Usage(1, max(size.tokens for size in sizes), max(size.cost for size in sizes))

    def _closing_call(self, fit: float) -> Usage:
        kinds = self.protocol.call_kinds
        if not kinds:
            return self._of_any_agent(self._longest_prompt(fit), self.longest_closing_reply, fit)
        kind = next((kind for kind in kinds if kind.closing), None)
        return self._of_any_agent(self._prompt_of(kind, fit), kind.reply, fit) if kind else self._max_call(fit)

    def _of_any_agent(self, prompt: int, answer: int, fit: float) -> Usage:
        """A request of this size to the most expensive agent that thinks longest."""
        reply = _reply_size(answer, max(self.thinking_tokens.values(), default=0), fit).tokens
        sizes = [self.request(agent, prompt, reply) for agent in self.prices]
        return Usage(1, prompt + reply, max((size.cost for size in sizes), default=0.0))

    def _longest_prompt(self, fit: float, agent: str = "") -> int:
        """Of one agent, or of any."""
        protocol = self.protocol
        begun = max(self._beginnings.values(), default=0) if not agent else self._beginnings[agent]
        quoted = protocol.max_quoted_replies if not agent else protocol.quoted_by(agent)
        quoted_tokens = quoted * (math.ceil(protocol.max_reply_tokens * fit) + _QUOTE_TOKENS)
        return begun + quoted_tokens + 2 * _TEMPLATE_TOKENS

    def _prompt_of(self, kind: CallKind, fit: float) -> int:
        quoted_tokens = math.ceil(kind.quoted * fit)
        return self._common_tokens + self._group_tokens(kind.documents) + quoted_tokens + kind.request

    def _first_phase(self, fit: float) -> Usage:
        """The first replies of the agents that speak first, together; without the last of them if that is the closing call. Where
        documents say what is usual, one of full length and the others as usual: a call waits for what those before it leave."""
        seats, protocol = self.protocol.first_speakers, self.protocol
        first_agents = seats if not protocol.closing or protocol.estimate().max > len(seats) else seats[:-1]
        first_kinds = [kind for kind in protocol.call_kinds if kind.usual_reply]
        if not first_kinds:
            return sum((self._first_call(agent, fit) for agent in first_agents), NOTHING)
        prompt = max(self._prompt_of(kind, fit) for kind in first_kinds)
        usual = max(map(self._usual_reply, first_kinds))
        sizes = [self._of_any_agent(prompt, protocol.max_reply_tokens, fit)]
        sizes += [self.request(agent, prompt, usual) for agent in first_agents[1:]]
        return sum(sizes, NOTHING) * max(self.steps.values(), default=1)

    def _usual_reply(self, kind: CallKind) -> int:
        tokens, for_each_token = kind.usual_reply or (kind.reply, 0.0)
        return min(kind.reply, tokens + int(self._group_tokens(kind.documents) * for_each_token))

    @cached_property
    def _readers(self) -> list[str]:
        """The agents that take an inventory."""
        documents = self.opening.documents if self.inventory_tokens else ()
        return [agent.id for agent in readers_of(documents, self.agents)]

    def _first_call(self, agent: str, fit: float, answer: int | None = None) -> Usage:
        """A call of `agent` that quotes nothing; `answer`: max tokens of its reply, if not those of the protocol."""
        prompt = self._beginnings.get(agent, 0) + _TEMPLATE_TOKENS
        size = self.protocol.max_reply_tokens if answer is None else answer
        reply = _reply_size(size, self.thinking_tokens.get(agent, 0), fit).tokens
        return self.request(agent, prompt, reply) * self.steps.get(agent, 1)

    @cached_property
    def _beginnings(self) -> dict[str, int]:
        """Tokens of the text with which a prompt begins, by agent: the opening with the documents that the agent is shown, the
        texts that the settings hold and the longest description of a seat."""
        aside = self.opening.aside_tokens if self.inventory_tokens else 0
        common = self._common_tokens + aside
        if (groups := self.protocol.shown_together) is not None:
            largest = max((self._group_tokens(group) for group in groups), default=0)
            return {agent.id: common + largest for agent in self.agents}
        size = cache(_shown_tokens)
        return {
            agent.id: common
            + aside * (agent.id in self._readers)
            + sum(map(size, self.opening.documents_for(agent.id)))
            for agent in self.agents
        }

    @cached_property
    def _common_tokens(self) -> int:
        """Tokens with which every prompt begins, before documents."""
        text = self.opening.instructions + self.opening.task + self.opening.index
        text += "".join(value for value in vars(self.protocol).values() if isinstance(value, str))
        text += max((_description(agent) for agent in self.agents), key=len, default="")
        return estimate_tokens(text)

    def _group_tokens(self, group: Sequence[str]) -> int:
        documents = self.opening.documents
        parts = (parse_reference(reference, documents) for reference in group)
        return sum(estimate_tokens(part.numbered) + _QUOTE_TOKENS for part in parts)


def _shown_tokens(document: Document) -> int:
    return estimate_tokens(document.referenced if document.is_related else document.numbered)


def _description(agent: Agent) -> str:
    return agent.persona + agent.perspective + "".join(agent.interests) + agent.horizon + agent.evidence + agent.claim


@lru_cache(maxsize=256)
def _reply_size(max_tokens: int, thinking: int, fit: float, *, enlarged: bool = False) -> ReplySize:
    """`fit` shrinks the answer only: a reply whose thinking uses up its room is lost. An `enlarged` reply has twice the room for
    thinking, also if the model was believed not to think."""
    if enlarged:
        thinking = 2 * thinking or THINKING_TOKENS["minimal"]
    return ReplySize(math.ceil(max_tokens * fit), thinking, enlarged)
