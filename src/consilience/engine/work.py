"""Branches and their work: calls, subtasks, and awaiting what another branch started. Failures are values too.

A place is the ordinal of an operation in its branch, prefixed by the place of the gather or start that opened the branch and by the
branch's index there. Places depend on the program alone, never on who answered first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, get_args

from pydantic_core import CoreSchema, PydanticSerializationUnexpectedValue, core_schema

from consilience.domain.outcome import FailureKind
from consilience.engine.activity import Activity, Phase
from consilience.engine.ledger import BranchBudget
from consilience.engine.prompt import Prompt

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Accept = Callable[[T], Awaitable[None] | None]
"""Rejects the value of a reply with a `ValueError`."""


@dataclass(slots=True)
class Branch:
    """A line of execution. Its operations get ordinals from 0 in program order."""

    prefix: str
    """Opens the place of each of its operations."""
    budget: BranchBudget
    pending_calls: float = 0
    """Upper bound on the calls it still makes."""
    ordinal: int = 0
    embedded: set[str] = field(default_factory=set)
    """Ids of the texts that have recorded vectors in its past."""

    def join(self, parent: Branch) -> None:
        """Give `parent` what is unspent and what has vectors."""
        self.budget.join(parent.budget)
        if self.embedded is not parent.embedded:
            parent.embedded |= self.embedded

    def next_place(self) -> str:
        place = f"{self.prefix}{self.ordinal}"
        self.ordinal += 1
        return place


current_branch: ContextVar[Branch] = ContextVar("current_branch")
current_phase: ContextVar[Phase | None] = ContextVar("current_phase", default=None)


class SessionHost(Protocol):
    """What work needs from the session that runs it."""

    @property
    def activity(self) -> Activity: ...

    def perform(self, ask: Ask[T]) -> Coroutine[Any, Any, Reply[T] | Failure]: ...


class Reply(Generic[T_co]):
    """A call that was answered. Nothing changes it. No dataclass, because pydantic would look into one."""

    __slots__ = ("agent", "cut", "key", "labels", "reserve", "shown", "text", "value")

    key: str
    """Also the id of the message that the reply is."""
    agent: str
    value: T_co
    text: str
    """Its prose."""
    shown: tuple[str, ...]
    """Ids of the messages in its prompt."""
    labels: Mapping[str, str]
    """Ids of the messages of other agents in its prompt, by label."""
    reserve: bool
    """Whether it was paid from the reserve for the closing call."""
    cut: bool
    """Whether it ended at the token limit."""

    def __init__(
        self,
        key: str,
        agent: str,
        value: T_co,
        text: str,
        shown: tuple[str, ...] = (),
        labels: Mapping[str, str] | None = None,
        reserve: bool = False,
        cut: bool = False,
    ) -> None:
        self.key, self.agent, self.value, self.text = key, agent, value, text
        self.shown, self.labels = shown, labels or {}
        self.reserve, self.cut = reserve, cut

    def __repr__(self) -> str:
        return f"Reply({self.key!r}, {self.agent!r}, {self.value!r})"

    def holding(self, value: T) -> Reply[T]:
        """Return the same reply with another value."""
        return Reply(self.key, self.agent, value, self.text, self.shown, self.labels, self.reserve, self.cut)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, _: object) -> CoreSchema:
        """In the result of a round a reply is a reference (`engine.settling`)."""
        types = [kind for given in get_args(source) for kind in get_args(given) or (given,) if isinstance(kind, type)]

        def refer(reply: object, info: Any) -> Any:
            if isinstance(reply, Reply):
                return info.context.refer(reply, types)
            raise PydanticSerializationUnexpectedValue("not a reply")  # of a union, the next type is tried

        return core_schema.with_info_plain_validator_function(
            lambda reference, info: info.context.reply(reference, types),
            serialization=core_schema.plain_serializer_function_ser_schema(refer, info_arg=True),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A call without a reply, and the reason. Also the result of a branch without funds."""

    key: str
    agent: str
    kind: FailureKind
    detail: str = ""


class Work(ABC, Generic[T_co]):
    """What `gather` and `start` open as a branch, or `await` runs in the current one. `T_co` is its result."""

    @property
    @abstractmethod
    def calls(self) -> int:
        """Max calls it makes, without retries."""

    @abstractmethod
    def coroutine(self) -> Coroutine[Any, Any, T_co]:
        """The work itself, to be run once."""

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.coroutine().__await__()


@dataclass(eq=False, slots=True)
class Ask(Work["Reply[T] | Failure"], Generic[T]):
    """One call, not made yet: await it, or pass it to `gather` or `start`."""

    session: SessionHost
    agent: str
    prompt: Prompt
    key: str
    returns: type[T]
    kind: str
    audience: tuple[str, ...]
    accept: Accept[T] | None
    closing: bool
    max_tokens: int
    quoted: Callable[[T], str] | None = None

    @property
    def calls(self) -> int:
        return 1

    def coroutine(self) -> Coroutine[Any, Any, Reply[T] | Failure]:
        return self.session.perform(self)


@dataclass(frozen=True, eq=False)
class Subtask(Work[T]):
    """A coroutine that makes up to `max_calls` calls, to run as a branch."""

    session: SessionHost
    body: Coroutine[Any, Any, T]
    max_calls: int

    @property
    def calls(self) -> int:
        return self.max_calls

    def coroutine(self) -> Coroutine[Any, Any, T]:
        return self.body


def has_failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a branch ended in a defect."""
    return task.done() and not task.cancelled() and task.exception() is not None


class Pending(Generic[T]):
    """The result of work that was started. Any branch may await it, any number of times."""

    def __init__(
        self, session: SessionHost, task: asyncio.Task[T], branch: Branch, place: str, phase: Phase | None
    ) -> None:
        self._session = session
        self._task = task
        self._branch = branch
        self.place = place
        self._waiters = 0
        self.phase = phase
        self.read = False
        self.joined = False
        """Whether the branch that started it, or one that has joined that branch, has awaited it."""
        task.add_done_callback(self._done)

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        self.read = True
        if not self._task.done():
            self._waiters += 1
            self._session.activity.leave()
            await asyncio.shield(self._task)
        result = self._task.result()
        branch = current_branch.get()
        if self.place.startswith(branch.prefix):  # the branch that started it, or one that has joined that branch
            self._branch.join(branch)
            self.joined = True
        return result

    async def is_refused(self) -> bool:
        """Wait until its first call was funded or refused. Return whether a limit of the session refused it."""
        activity, decided = self._session.activity, asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not decided.done():
                activity.enter()
                decided.set_result(None)

        if self._branch.budget.when_decided(wake):
            activity.leave()
            await decided
        return self._branch.budget.refused_first

    async def drain(self) -> None:
        """Await the result at the end of a run, without counting it as read."""
        was_read = self.read
        await self._wait()
        self.read = was_read

    def raise_defect(self) -> None:
        if has_failed(self._task):
            self._task.result()

    def cancel(self) -> asyncio.Task[T]:
        """Cancel the work. The returned task is done once it has released what it holds."""
        self._task.cancel()
        return self._task

    def _done(self, task: asyncio.Task[T]) -> None:
        self._branch.budget.end()
        self._session.activity.defective |= has_failed(task)
        self._session.activity.enter(self._waiters)
        self._waiters = 0
        if not task.cancelled():
            self._session.activity.leave()
