"""What the calls of a plan cost at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from consilience.models.endpoints import Endpoints
from consilience.models.facts import ModelFacts


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
