"""Agents as ports: what answers a request, be it a model, a person, a program or a ticket somewhere."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from consilience.domain.errors import SettingsError
from consilience.models.port import Completion, Model, ModelRequest, Worker


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


class WorkerPort:
    """An agent with tools. Its steps are recorded one by one, so there is nothing to collect."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def name(self) -> str:
        return self.worker.name

    async def send(self, request: ModelRequest) -> Completion:
        raise AssertionError("an agent with tools works through its steps")

    async def collect(self, key: str, digest: str) -> None:
        return None

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self.worker.price(tokens_in, tokens_out)

    async def close(self) -> None:
        await self.worker.close()


def as_port(agent: object) -> AgentPort:
    """Whatever can take a seat, as a port. Raises `SettingsError` for what cannot."""
    if isinstance(agent, AgentPort):
        return agent
    if isinstance(agent, Model):
        return ModelPort(agent)
    if isinstance(agent, Worker):
        return WorkerPort(agent)
    if "pydantic_ai" in sys.modules:  # else nobody can have made one of its agents
        from consilience.models.tools import seated

        if (worker := seated(agent)) is not None:
            return WorkerPort(worker)
    raise SettingsError(
        f"{type(agent).__name__} cannot take a seat", do="Give a model's name, a model, a pydantic-ai Agent or a port."
    )
