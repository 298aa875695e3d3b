"""A deliberation that is watched while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from consilience.domain.errors import UserError
from consilience.domain.events import Event
from consilience.domain.report import Report

R = TypeVar("R", bound=Report)


class Live(Generic[R]):
    """A running session: `async with consilience.live(…) as session`, then `events()` and `report()`.

    Leaving the block before the end stops the run; what is recorded is kept and `consilience.resume(session.id)` goes on.
    """

    def __init__(self, id: str, begin: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self.id = id
        self._begin = begin
        self._task: asyncio.Task[R] | None = None
        self._seen: list[Event] = []
        self._news: asyncio.Future[None] | None = None

    def observe(self, event: Event) -> None:
        """Take an event as it is recorded; what the engine calls."""
        self._seen.append(event)
        self._tell()

    async def events(self) -> AsyncIterator[Event]:
        """Every event from the first, as it is recorded, until the run ends; any number of readers may follow.

        `call_started` is among them, though not in the journal. A defect or a user's mistake that ends the run ends this too;
        `report` raises it.
        """
        task = self._begun()
        at = 0
        while True:
            while at < len(self._seen):
                at += 1
                yield self._seen[at - 1]
            if task.done():
                return
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._news)

    async def report(self) -> R:
        """The report, when the run has ended. Raises what ended it instead; `UserError` where it was stopped before."""
        task = self._begun()
        await asyncio.wait((task,))
        if task.cancelled():
            raise UserError(
                f"session {self.id} was stopped before its end, so it has no report",
                do=f"Await it inside the block, or go on: consilience.resume({self.id!r}).",
            )
        return task.result()

    def _begun(self) -> asyncio.Task[R]:
        if self._task is None:
            raise UserError(
                "the session has not begun", do="Enter it first: async with consilience.live(…) as session."
            )
        return self._task

    async def __aenter__(self) -> Live[R]:
        self._task = asyncio.get_running_loop().create_task(self._begin())
        self._task.add_done_callback(lambda task: self._tell())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)
