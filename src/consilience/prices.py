"""What the calls of a plan cost: at most, and as expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from consilience.domain.outcome import Limits
from consilience.engine.drafts import PlannedCall, PlannedCalls
from consilience.engine.sizes import CallSizes
from consilience.models.endpoints import Endpoints
from consilience.models.facts import ModelFacts

USUAL_THINKING_SHARE = 1 / 4
"""Of the max thinking tokens of a reply, what models use as a rule."""


@dataclass(frozen=True, slots=True)
class ExpectedUse:
    """What a run uses: at most, or as expected from counted prompts and replies of usual length."""

    calls: int
    tokens: int
    cost: float | None
    """US dollars; 0 if nothing is paid for, None if a price is unknown."""

    def limited_to(self, bound: ExpectedUse) -> ExpectedUse:
        """Return the use of a run that may use no more than the bound."""
        costs = [cost for cost in (self.cost, bound.cost) if cost is not None]
        return ExpectedUse(
            min(self.calls, bound.calls),
            min(self.tokens, bound.tokens),
            None if self.cost is None else min(costs),
        )


def expected_range(
    planned: PlannedCalls,
    bound: ExpectedUse,
    chains: Mapping[str, Sequence[str]],
    thinking: Mapping[str, int],
    known: Endpoints,
) -> tuple[ExpectedUse, ExpectedUse]:
    """Return what a run uses that ends early, and one in its usual course. `chains` are models by agent, `thinking` max tokens."""
    least = _expected(planned.least, chains, thinking, known)
    usual = _expected(planned.usual, chains, thinking, known)
    return least.limited_to(bound), usual.limited_to(bound)


def _expected(
    calls: Iterable[PlannedCall], chains: Mapping[str, Sequence[str]], thinking: Mapping[str, int], known: Endpoints
) -> ExpectedUse:
    """Return what calls use on the first model of each agent's chain."""
    n, tokens = 0, 0
    cost: float | None = 0.0
    for call in calls:
        model = chains[call.agent][0]
        written = call.tokens_out + int(thinking[model] * USUAL_THINKING_SHARE)
        price = ModelFacts(model, known).price(call.tokens_in, written)
        n, tokens = n + 1, tokens + call.tokens_in + written
        cost = None if cost is None or price is None else cost + price
    return ExpectedUse(n, tokens, cost)


def largest_use(
    sizes: CallSizes,
    calls: int,
    limits: Limits,
    thinking: Mapping[str, int],
    paid_models: Sequence[str],
    known: Endpoints,
) -> ExpectedUse:
    """Return what so many calls use at most, within the limits. `thinking`: max tokens by model."""
    largest_calls = sizes.largest_calls(calls)
    tokens = sum(n * (read + written + max(thinking.values())) for n, read, written in largest_calls)
    if limits.tokens is not None:
        tokens = min(tokens, limits.tokens)
    cost = max_cost_of(largest_calls, {name: thinking[name] for name in paid_models}, known)
    if limits.cost is not None and cost is not None:
        cost = min(cost, limits.cost)
    return ExpectedUse(calls, tokens, cost)


def max_cost_of(sizes: Iterable[tuple[int, int, int]], thinking: Mapping[str, int], known: Endpoints) -> float | None:
    """US dollars of calls by number, tokens read and tokens of the answer, each to the most expensive of the models, which think
    so long; None if a price is unknown."""
    cost: float | None = 0.0
    for n, read, written in sizes:
        price = max_price({name: written + tokens for name, tokens in thinking.items()}, read, known)
        cost = None if cost is None or price is None else cost + n * price
    return cost


def token_prices(chain: Sequence[str], known: Endpoints) -> tuple[float, float]:
    """US dollars per token read and written, of the most expensive model of a chain; 0 if it is free or unknown."""
    million = 1_000_000
    facts = [ModelFacts(name, known) for name in chain]
    read = max(model.price(million, 0) or 0.0 for model in facts)
    written = max(model.price(0, million) or 0.0 for model in facts)
    return read / million, written / million


def max_price(written: Mapping[str, int], read: int, known: Endpoints) -> float | None:
    """Return the price of a request to the most expensive model, or None if a price is unknown.

    `written` holds the output tokens of each model; `read` is the number of input tokens.
    """
    prices = [ModelFacts(name, known).price(read, tokens) for name, tokens in written.items()]
    return None if None in prices else max((price for price in prices if price is not None), default=0.0)
