"""Agents as ports: what answers a request, be it a model, a person, a program or a ticket somewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from consilience.domain.errors import SettingsError, Timeout
from consilience.models.port import Completion, Model, ModelRequest, Worker


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """The answer will come from outside, now or after this process has ended; `arrival` gives it if it comes now."""

    arrival: Awaitable[Completion]
    person: bool = False
    """Whether a person is asked, so that the deadline for people applies."""


class AnswerDeferred(Exception):
    """Raised by an arrival if the person has left and the answer will not come to this process."""


@runtime_checkable
class AgentPort(Protocol):
    """`name` is recorded as the agent's model. `send` and `collect` raise `ProviderError`s only."""

    @property
    def name(self) -> str: ...

    async def send(self, request: ModelRequest) -> Completion | PendingAnswer: ...

    async def collect(self, key: str, digest: str) -> Completion | PendingAnswer | None:
        """What has come of a request sent before, perhaps by another process; None when none was sent."""
        ...

    def price(self, tokens_in: int, tokens_out: int) -> float | None: ...

    async def close(self) -> None: ...


class _NothingToCollect:
    async def collect(self, key: str, digest: str) -> None:
        return None


class ModelPort(_NothingToCollect):
    """A language model as an agent: it remembers nothing, so there is never anything to collect."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def name(self) -> str:
        return self.model.name

    async def send(self, request: ModelRequest) -> Completion:
        return await self.model.complete(request)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self.model.price(tokens_in, tokens_out)

    async def close(self) -> None:
        await self.model.close()


class WorkerPort(_NothingToCollect):
    """An agent with tools. Its steps are recorded one by one, so there is nothing to collect."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def name(self) -> str:
        return self.worker.name

    async def send(self, request: ModelRequest) -> Completion:
        raise AssertionError("an agent with tools works through its steps")

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self.worker.price(tokens_in, tokens_out)

    async def close(self) -> None:
        await self.worker.close()


AskPerson = Callable[[ModelRequest], Awaitable[str]]
"""Puts a question to a person and gives their answer; raises `AnswerDeferred` when they leave without one."""


def seconds_since_epoch() -> float:
    return round(time.time(), 3)


@dataclass(frozen=True, slots=True)
class AnswerDeadline:
    """When a person's answer is due: `seconds` of wall time (None: no limit) after `asked_at`, in seconds since the epoch."""

    asked_at: float
    seconds: float | None

    async def wait_for(self, arrival: Awaitable[Completion], departed: Callable[[], None]) -> Completion:
        """The answer, if it is there in time; past the deadline `arrival` is not begun. Raises `Timeout`.

        Calls `departed` if the person leaves, and goes on waiting: for the deadline, without one until cancelled.
        """
        left = None if self.seconds is None else self.asked_at + self.seconds - time.time()
        limit = asyncio.timeout(left)
        try:
            async with limit:
                await asyncio.sleep(0)  # a deadline that has passed cancels here
                return await _arrival_of(arrival, departed)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"no answer within {self.seconds:g} s, the deadline for people") from None
        finally:
            if asyncio.iscoroutine(arrival):
                arrival.close()


async def _arrival_of(arrival: Awaitable[Completion], departed: Callable[[], None]) -> Completion:
    try:
        return await arrival
    except AnswerDeferred:
        departed()
        never: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        return await never


class Person:
    """A person in a seat: `human`, or `human:NAME`. Without `put` they cannot be asked in this process, and the answer comes
    through the store; the session can wait for it for days."""

    def __init__(self, name: str = "human", put: AskPerson | None = None) -> None:
        self.name = name
        self._put = put

    async def send(self, request: ModelRequest) -> PendingAnswer:
        return PendingAnswer(self._answer(request), person=True)

    async def collect(self, key: str, digest: str) -> None:
        """An answer given meanwhile is in the journal; a question without one is put again."""
        return

    async def _answer(self, request: ModelRequest) -> Completion:
        if self._put is None:
            raise AnswerDeferred
        return Completion(text=await self._put(request), model=self.name, cost=0.0)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None


def to_port(agent: object) -> AgentPort:
    """Whatever can take a seat, as a port. Raises `SettingsError` for what cannot."""
    if isinstance(agent, AgentPort):
        return agent
    if isinstance(agent, Model):
        return ModelPort(agent)
    if isinstance(agent, Worker):
        return WorkerPort(agent)
    if "pydantic_ai" in sys.modules:  # else nobody can have made one of its agents
        from consilience.models.tool_agent import seated

        if (worker := seated(agent)) is not None:
            return WorkerPort(worker)
    raise SettingsError(
        f"{type(agent).__name__} cannot take a seat", do="Give a model's name, a model, a pydantic-ai Agent or a port."
    )
