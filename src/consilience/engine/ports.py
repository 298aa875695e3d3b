"""Agents as ports: what answers a request, be it a model, a person, a program or a ticket somewhere."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from consilience.models.port import Completion, Model, ModelRequest


@dataclass(frozen=True, slots=True)
class Awaited:
    """The answer will come from outside, now or after this process has ended; `arrival` gives it if it comes now."""

    arrival: Awaitable[Completion]


class Later(Exception):
    """Raised by an arrival: whoever is asked has left, and the answer will not come to this process."""


@runtime_checkable
class AgentPort(Protocol):
    """`name` is recorded as the agent's model. `send` and `collect` raise `ProviderError`s only."""

    @property
    def name(self) -> str: ...

    async def send(self, request: ModelRequest) -> Completion | Awaited: ...

    async def collect(self, key: str, digest: str) -> Completion | Awaited | None:
        """What has come of a request sent before, perhaps by another process; None when none was sent."""
        ...

    def price(self, tokens_in: int, tokens_out: int) -> float | None: ...

    async def close(self) -> None: ...


class ModelPort:
    """A language model as an agent: it remembers nothing, so there is never anything to collect."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    async def send(self, request: ModelRequest) -> Completion:
        return await self.model.complete(request)

    async def collect(self, key: str, digest: str) -> None:
        return None

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self.model.price(tokens_in, tokens_out)

    async def close(self) -> None:
        await self.model.close()


def as_port(agent: Model | AgentPort) -> AgentPort:
    return agent if isinstance(agent, AgentPort) else ModelPort(agent)
