"""A provider that takes its time on a loop whose clock jumps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from consilience.domain.errors import ProviderError
from consilience.models.limiter import Limiter, Pace
from consilience.models.port import Completion, Model, ModelRequest
from kit.jumping import now, run

__all__ = ["REQUEST", "Provider", "first", "limiter", "many", "now", "run"]

REQUEST = ModelRequest(agent="a", key="k", system="", user="?")
STEADY = Pace(initial_window=4, max_window=4)


def limiter(pace: Pace = STEADY, seed: int = 1) -> Limiter:
    return Limiter("acme", pace, clock=asyncio.get_running_loop().time, rng=random.Random(seed))


@dataclass
class Provider:
    """A model that takes `seconds` and then does what `outcome(n)` says of its n-th request, from 1."""

    seconds: float = 1.0
    outcome: Callable[[int], ProviderError | None] = lambda _: None
    name: str = "acme:one"
    account: str = "acme"
    dispatched: list[float] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    flying: int = 0
    most: int = 0
    closed: bool = False

    async def complete(self, request: ModelRequest) -> Completion:
        self.dispatched.append(now())
        self.asked.append(request.key)
        number = len(self.dispatched)
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.flying -= 1
        error = self.outcome(number)
        if error is not None:
            raise error
        return Completion("yes", self.name)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return tokens_in + 2.0 * tokens_out

    async def close(self) -> None:
        self.closed = True


def first(count: int, error: Callable[[], ProviderError]) -> Callable[[int], ProviderError | None]:
    """The first `count` requests fail."""
    return lambda number: error() if number <= count else None


async def many(model: Model, count: int) -> list[Completion | BaseException]:
    requests = [ModelRequest(agent="a", key=str(number), system="", user="?") for number in range(count)]
    return await asyncio.gather(*(model.complete(request) for request in requests), return_exceptions=True)
