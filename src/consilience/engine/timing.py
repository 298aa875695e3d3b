"""Ending a call in flight at its time limit, or by a cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from consilience.domain.errors import ProviderError
from consilience.domain.outcome import FailureKind, LimitOwner
from consilience.engine.cancelling import Cancellation
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

ENDED_BY: Mapping[FailureKind, str] = {
    FailureKind.TIME: "ended by the time limit",
    FailureKind.CANCELLED: "ended by the cancel",
    FailureKind.DEADLINE: "ended by the deadline of a request",
}
"""What ended a call that did not end by itself."""


class CallEnded(ProviderError):
    """A call was ended from outside."""

    def __init__(self, count: Sendings, whose: LimitOwner | None = None) -> None:
        self.whose = whose
        """The agent or phase whose limit ended it."""
        self.possibly_charged = count.in_flight
        """Whether a request was in flight."""
        ended = f"{ENDED_BY[self.kind]}{f' of {whose}' if whose else ''}"
        super().__init__(f"{ended} while {'a' if count.in_flight else 'no'} request was in flight")
        self.requests = count.requests


class TimeLimitReached(CallEnded):
    """A time limit ended a call."""

    kind = FailureKind.TIME


class CallCancelled(CallEnded):
    """The session was cancelled."""

    kind = FailureKind.CANCELLED


class CallsInFlight:
    """The calls that a run awaits, and those that were ended and may still hold a connection, a program or a slot of a limiter."""

    def __init__(self, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._awaited: dict[asyncio.Task[Any], bool] = {}
        """The tasks that await a call, and whether it is a closing one."""
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()

    def cancel(self) -> None:
        """End all calls that a cancel forbids. Their `CancelledError` has a `FailureKind`, that of a stopped run has none."""
        for task, closing in self._awaited.items():
            if self._cancellation.forbids(closing=closing) and task not in self._cancelled:
                self._cancelled.add(task)
                task.cancel(FailureKind.CANCELLED)

    @property
    def is_ending(self) -> bool:
        """Whether a cancelled call has not come to its end yet."""
        return bool(self._cancelled)

    async def wait(self) -> None:
        """Return when all have ended, after at most `CLEANUP_SECONDS`: a tool that blocks a thread cannot be ended."""
        if self._ended:
            await asyncio.wait(self._ended, timeout=CLEANUP_SECONDS)

    async def await_within(self, left: TimeLeft, work: Coroutine[Any, Any, T], *, closing: bool = False) -> T:
        """Return the result of `work`. Raises `TimeLimitReached` at the limit, without waiting for `work` to end.

        Raises `CallCancelled` when the session is cancelled. A result that exists at the limit counts. Without a limit no task is
        made.
        """
        count = Sendings(asyncio.get_running_loop().time() + left.seconds - MIN_SECONDS)
        cancelled = self._cancellation.forbids(closing=closing)
        if cancelled or left.seconds < MIN_SECONDS:
            count.expect()
            work.close()
            raise CallCancelled(count) if cancelled else TimeLimitReached(count, left.whose)
        sendings.set(count)
        current = asyncio.current_task()
        assert current is not None
        self._awaited[current] = closing
        try:
            return await (work if left.seconds == float("inf") else self._until(left, work, count))
        except asyncio.CancelledError:
            if current not in self._cancelled or current.uncancel():  # the run itself is being stopped
                raise
            raise CallCancelled(count) from None
        finally:
            del self._awaited[current]
            self._cancelled.discard(current)

    async def _until(self, left: TimeLeft, work: Coroutine[Any, Any, T], count: Sendings) -> T:
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait((task,), timeout=left.seconds)
        except asyncio.CancelledError as stopped:
            task.cancel(*stopped.args)
            await asyncio.wait((task,), timeout=CLEANUP_SECONDS if stopped.args else None)
            self._keep(task)
            raise
        if task.done():
            return task.result()
        task.cancel(FailureKind.TIME)
        self._keep(task)
        raise TimeLimitReached(count, left.whose)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._ended.add(task)
        task.add_done_callback(self._remove)

    def _remove(self, task: asyncio.Task[Any]) -> None:
        self._ended.discard(task)
        _ignore_result(task)


def _ignore_result(task: asyncio.Task[Any]) -> None:
    """Mark an exception as retrieved, else asyncio logs it."""
    if not task.cancelled():
        task.exception()


async def take_back(ticket: OpenTicket, ended: CallEnded) -> Completion | None:
    """Withdraw the ticket of an ended call, for a moment at most; return the answer if it came first."""
    with suppress(ProviderError, TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            return await ticket.withdraw(ended.detail, ended.kind)
    return None
