"""Agents as ports: models, people, programs, tickets and agents with tools, which all answer requests."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Protocol, runtime_checkable

from consilience.domain.errors import ProviderError, SettingsError, Timeout
from consilience.domain.model_names import kind_of
from consilience.domain.outcome import FailureKind, Thinks
from consilience.models.port import Completion, Model, ModelRequest, Steps, Worker, context_window, links, thinks


class OpenTicket(Protocol):
    """A request that agents of other processes can claim."""

    @property
    def id(self) -> str: ...

    async def is_live(self) -> bool:
        """Return whether an agent holds it now, or it has ended, which this process will notice soon."""
        ...

    async def withdraw(self, reason: str, kind: FailureKind | None = None) -> Completion | None:
        """Take it back, unless it is answered; return the answer then. Raises `ProviderError`s.

        `kind`: as which failure that counts; None if it is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """The answer will come from outside, now or after this process has ended; `arrival` gives it if it comes now."""

    arrival: Awaitable[Completion]
    person: bool = False
    """Whether a person is asked, so that the deadline for people applies and no limit on time."""
    ticket: OpenTicket | None = None
    """The session is not parked while the ticket is live."""


class AnswerDeferred(Exception):
    """Raised by an arrival if the person has left and the answer will not come to this process."""


@runtime_checkable
class AgentPort(Protocol):
    """`name` is recorded as the agent's model. `send` and `collect` raise `ProviderError`s only. `FreePort` has defaults."""

    counts_tokens: bool
    """Whether its replies cost tokens; those that it does not count are estimated."""
    cacheable: bool
    """Whether the recorded reply to an identical request, also of another session, serves as its own."""
    keeps_requests: bool
    """Whether a request can be collected later, also by another process. Else it is lost with the process, and may be charged."""
    max_steps: int
    """Max steps of an agent with tools, which `work`s through them; 0 for another one, which `send`s."""

    @property
    def name(self) -> str: ...

    async def send(self, request: ModelRequest) -> Completion | PendingAnswer: ...

    async def work(self, request: ModelRequest, steps: Steps) -> str: ...

    async def collect(self, key: str, digest: str) -> Completion | PendingAnswer | None:
        """What has come of a request sent before, perhaps by another process; None when none was sent.

        `digest` is that of the `ModelRequest`.
        """
        ...

    def price(self, tokens_in: int, tokens_out: int) -> float | None: ...

    async def close(self) -> None: ...


async def withdraw_sent(
    port: AgentPort, key: str, digest: str, reason: str, kind: FailureKind | None = None
) -> Completion | None:
    """Take back the ticket of a call, if it has one; return the answer if it came first."""
    with suppress(ProviderError):
        sent = await port.collect(key, digest)
        if isinstance(sent, PendingAnswer):
            return await sent.ticket.withdraw(reason, kind) if sent.ticket is not None else None
        return sent
    return None


class FreePort:
    """Nothing to pay, to collect or to close."""

    counts_tokens = False
    cacheable = False
    keeps_requests = True
    max_steps = 0

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, request: ModelRequest) -> Completion | PendingAnswer:
        raise AssertionError(f"{self.name} is sent nothing")

    async def work(self, request: ModelRequest, steps: Steps) -> str:
        raise AssertionError(f"{self.name} has no steps")

    async def collect(self, key: str, digest: str) -> Completion | PendingAnswer | None:
        return None

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None


class _PricedPort(FreePort):
    keeps_requests = False

    def __init__(self, agent: Model | Worker) -> None:
        super().__init__(agent.name)
        self._agent = agent

    @property
    def thinks(self) -> Thinks:
        return thinks(self._agent)

    @property
    def context_window(self) -> int | None:
        return context_window(self._agent)

    @property
    def links(self) -> Sequence[Model | Worker]:
        return links(self._agent)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self._agent.price(tokens_in, tokens_out)

    async def close(self) -> None:
        await self._agent.close()


class ModelPort(_PricedPort):
    """A language model as an agent. It remembers nothing, so there is nothing to collect."""

    counts_tokens = True
    cacheable = True

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.model = model

    async def send(self, request: ModelRequest) -> Completion:
        answer: object = self.model.complete(request)
        completion = await answer if (is_async := isawaitable(answer)) else answer
        if is_async and isinstance(completion, Completion):
            return completion
        raise SettingsError(
            f"`complete` of the model {self.name} returns {type(completion).__name__}{'' if is_async else ', not awaitable'}",
            do="Write `async def complete(self, request)` that returns consilience.models.port.Completion(text, self.name).",
        )


class WorkerPort(_PricedPort):
    """An agent with tools. Its steps are recorded one by one, so there is nothing to collect."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.max_steps = worker.max_steps
        self._worker = worker

    async def work(self, request: ModelRequest, steps: Steps) -> str:
        return await self._worker.work(request, steps)


class ReplayPort(FreePort):
    """An agent that is sent nothing, in a replay or after a cancel."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.keeps_requests = kind_of(name) in ("person", "workspace")


AskPerson = Callable[[ModelRequest], Awaitable[str]]
"""Puts a question to a person and gives their answer; raises `AnswerDeferred` when they leave without one."""


def seconds_since_epoch() -> float:
    return round(time.time(), 3)


@dataclass(frozen=True, slots=True)
class AnswerDeadline:
    """When a person's answer is due: `seconds` of wall time (None: no limit) after `asked_at`, in seconds since the epoch."""

    asked_at: float
    seconds: float | None

    async def wait_for(
        self, arrival: Awaitable[Completion], posted: asyncio.Future[None], departed: Callable[[], None]
    ) -> Completion | None:
        """The answer, if it is there in time; None if it was `posted` to the session first. Past the deadline `arrival` is not
        begun.

        Calls `departed` if the person leaves, and goes on waiting for a post until the deadline. Raises `Timeout`.
        """
        seconds_left = None if self.seconds is None else self.asked_at + self.seconds - time.time()
        limit = asyncio.timeout(seconds_left)
        try:
            async with limit:
                await asyncio.sleep(0)  # a deadline that has passed cancels here
                return await _arrival_of(arrival, posted, departed)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"no answer within {self.seconds:g} s, the deadline for people") from None
        finally:
            posted.cancel()
            if asyncio.iscoroutine(arrival):
                arrival.close()


async def _arrival_of(
    arrival: Awaitable[Completion], posted: asyncio.Future[None], departed: Callable[[], None]
) -> Completion | None:
    waiting = asyncio.ensure_future(arrival)
    try:
        await asyncio.wait((waiting, posted), return_when=asyncio.FIRST_COMPLETED)
        if posted.done():
            return None
        return waiting.result()
    except AnswerDeferred:
        departed()
        await posted
        return None
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait((waiting,))


class AwaitedAnswer:
    """Begins to wait for an answer when it is awaited: a call that ends before leaves no coroutine behind."""

    def __init__(self, answer: Callable[[], Coroutine[Any, Any, Completion]]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, Completion]:
        return self._answer().__await__()


class Person(FreePort):
    """A person in a seat: `human`, or `human:NAME`.

    Without `ask`, which puts the question in this process, the answer comes through the store. The session can wait for days.
    An answer given meanwhile is in the journal; a question without one is put again.
    """

    def __init__(self, name: str = "human", ask: AskPerson | None = None) -> None:
        super().__init__(name)
        self._ask = ask

    async def send(self, request: ModelRequest) -> PendingAnswer:
        return PendingAnswer(AwaitedAnswer(lambda: self._answer(request)), person=True)

    async def _answer(self, request: ModelRequest) -> Completion:
        if self._ask is None:
            raise AnswerDeferred
        return Completion(text=await self._ask(request), model=self.name, cost=0.0)


def to_port(agent: object) -> AgentPort:
    """Return a port for what can take a seat. Raises `SettingsError` for anything else."""
    if isinstance(agent, type):
        raise SettingsError(f"{agent.__name__} is a class, not a model", do=f"Pass an object: {agent.__name__}().")
    if isinstance(agent, AgentPort):
        return agent
    if isinstance(agent, Model):
        return ModelPort(agent)
    if isinstance(agent, Worker):
        return WorkerPort(agent)
    if "pydantic_ai" in sys.modules:  # else nobody can have made one of its agents
        from consilience.models.tool_agent import as_tool_agent

        if (worker := as_tool_agent(agent)) is not None:
            return WorkerPort(worker)
    members = ("name", "account", "complete", "price", "close")
    missing = [name for name in members if not hasattr(agent, name)]
    if hasattr(agent, "complete"):
        raise SettingsError(
            f"the model {type(agent).__name__} has no {' and no '.join(missing)}",
            do="Add it, or derive the class from consilience.models.port.Model, which then needs `name` and `complete` only.",
        )
    raise SettingsError(
        f"{type(agent).__name__} is not a model",
        do=f"Give a model's name, a pydantic-ai Agent, or an object with {', '.join(members)}.",
    )
