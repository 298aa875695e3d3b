"""Ending a call in flight at its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from consilience.domain.errors import ProviderError
from consilience.engine.ledger import TimeLeft
from consilience.engine.ports import OpenTicket
from consilience.models.limiter import Sendings, sendings
from consilience.models.port import Completion

T = TypeVar("T")

CLEANUP_SECONDS = 0.5
"""Max seconds for which the end of a run waits for cancelled calls to release what they hold."""
MIN_SECONDS = 0.001
"""Nothing is sent with less time left."""
NOTE_INTERVAL_SECONDS = 1.0
"""Interval at which the time used under a limit is stored, so that it counts after a kill too."""

TIME_LIMIT_DETAIL = "ended by the time limit"
"""First words of the detail of a call that a time limit ended."""


class TimeLimitReached(ProviderError):
    """A time limit ended a call."""

    def __init__(self, left: TimeLeft, count: Sendings) -> None:
        self.whose = left.whose
        self.possibly_charged = count.in_flight
        """Whether a request was in flight."""
        state = "while a request was in flight" if count.in_flight else "while no request was in flight"
        super().__init__(f"{TIME_LIMIT_DETAIL}{f' of {left.whose}' if left.whose else ''} {state}")
        self.requests = count.requests


class CancelledTasks:
    """Calls that were ended and may still hold a connection, a program or a slot of a limiter."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task at its time limit. Its `CancelledError` has an argument; that of a run that is cancelled has none."""
        self._tasks.add(task)
        task.add_done_callback(self._remove)
        task.cancel(TIME_LIMIT_DETAIL)

    async def wait(self) -> None:
        """Return when all have ended, after at most `CLEANUP_SECONDS`: a tool that blocks a thread cannot be ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLEANUP_SECONDS)

    def _remove(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _ignore_result(task)


async def await_within(left: TimeLeft, work: Coroutine[Any, Any, T], cancelled: CancelledTasks) -> T:
    """Return the result of `work`. Raises `TimeLimitReached` at the limit, without waiting for `work` to end.

    A result that exists at the limit counts. Without a limit no task is made.
    """
    if left.seconds == float("inf"):
        return await work
    count = Sendings()
    if left.seconds < MIN_SECONDS:
        count.expect()
        work.close()
        raise TimeLimitReached(left, count)
    sendings.set(count)
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait((task,), timeout=left.seconds)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        _ignore_result(task)
        raise
    if task.done():
        return task.result()
    cancelled.add(task)
    raise TimeLimitReached(left, count)


def _ignore_result(task: asyncio.Task[Any]) -> None:
    """Mark an exception as retrieved, else asyncio logs it."""
    if not task.cancelled():
        task.exception()


async def take_back(ticket: OpenTicket, reason: str) -> Completion | None:
    """Withdraw a ticket at a time limit, for a moment at most; return the answer if it came first."""
    with suppress(ProviderError, TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            return await ticket.withdraw(reason)
    return None
