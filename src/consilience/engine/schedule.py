"""Virtual time: a discrete-event scheduler of coroutines, in integer milliseconds.

An agent wakes at *t*, starts its call at once (`session.start`), sleeps for its thinking time and then awaits the reply. So
calls of agents that compose at the same virtual time overlap in real time. The order of events depends on the program alone.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from types import coroutine
from typing import Any

from consilience.domain.errors import ProtocolViolation
from consilience.engine.state import State
from consilience.engine.work import Branch, Pending, current_branch


@dataclass(frozen=True, slots=True)
class _Sleep:
    """Yielded by a coroutine to the clock: the virtual time at which to wake it."""

    until: int

    def __await__(self) -> Generator[_Sleep, None, None]:
        yield self


@dataclass(eq=False, slots=True)
class _Routine:
    """A coroutine of the clock. Its context is its own, so that a phase stays open across a sleep and labels no other agent."""

    index: int
    body: Coroutine[Any, Any, object]
    context: Context
    pending: list[Pending[Any]] = field(default_factory=list)
    """Calls that it has started and not awaited yet."""

    def is_in_flight(self) -> bool:
        """Return whether it still has a call to await."""
        self.pending = [pending for pending in self.pending if not pending.read]
        return bool(self.pending)

    def close(self) -> None:
        self.context.run(self.body.close)

    @coroutine
    def until_sleep(self) -> Generator[Any, Any, int | None]:
        """Run the coroutine inside the current task until it sleeps. Return when to wake it, or None at its end."""
        step, value = self.body.send, None
        while True:
            try:
                awaited = self.context.run(step, value)
            except StopIteration:
                return None
            if isinstance(awaited, _Sleep):
                return awaited.until
            try:
                step, value = self.body.send, (yield awaited)
            except BaseException as error:
                step, value = self.body.throw, error


class Clock:
    """The virtual time of a session and the coroutines that live in it.

    It runs one coroutine at a time, in order of (time, index of the agent among the session's agents, order of scheduling).
    All coroutines belong to the branch that runs the clock: they share its budget and take its places in virtual order.

    Once a limit of the session has refused a call, only coroutines with a call in flight are woken, until they have awaited it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._index = {agent.id: n for n, agent in enumerate(state.started.agents)}
        self._queue: list[tuple[int, int, int, _Routine]] = []
        self._scheduled = 0
        self._now = 0
        self._wall = 0.0
        self._task: asyncio.Task[Any] | None = None
        self._routine: _Routine | None = None
        self._stopped = False

    @property
    def now(self) -> int:
        """Virtual milliseconds since the session began."""
        self._check_caller("read the time")
        return self._now

    def spawn(self, agent: str, body: Coroutine[Any, Any, object]) -> None:
        """Add a coroutine of `agent`; it first runs at the current virtual time, once the clock runs.

        Raises `ProtocolViolation` for an id that is not a seat of the session.
        """
        index = self._index.get(agent)
        if index is None:
            body.close()
            raise ProtocolViolation(f"{agent!r} is not a seat of this session; the clock runs coroutines of seats only")
        self._check_caller("spawn a coroutine")
        self._schedule(self._now, _Routine(index, body, copy_context()))

    async def sleep(self, ms: int) -> None:
        """Wake the calling coroutine `ms` virtual milliseconds later. Takes no real time unless the run has a pace."""
        self._check_caller("sleep")
        if self._routine is None:
            raise ProtocolViolation("only a coroutine given to clock.spawn can sleep")
        if not isinstance(ms, int) or ms < 0:
            raise ProtocolViolation(f"clock.sleep({ms!r}): give whole milliseconds, 0 or more")
        await _Sleep(self._now + ms)

    def stop(self) -> None:
        """Wake no coroutine again, once the caller sleeps or ends. The report awaits what is in flight and records it as unread."""
        self._check_caller("stop the clock")
        self._stopped = True

    async def run(self) -> None:
        """Run all coroutines in the current branch until they have ended, `stop` was called, or a limit ended waking.

        The clock can run again, with coroutines spawned since; its time goes on.
        """
        if self._task is not None:
            raise ProtocolViolation("the clock is already running")
        branch = current_branch.get()
        branch.budget.refused = False
        self._task, self._stopped = asyncio.current_task(), False
        self._wall = asyncio.get_running_loop().time()
        try:
            while self._queue and not self._stopped:
                await self._wake(branch)
        finally:
            self._task = self._routine = None
            self.close()

    def close(self) -> int:
        """End the coroutines that wait to be woken, and return how many there were."""
        left = len(self._queue)
        for *_, routine in self._queue:
            routine.close()
        self._queue.clear()
        return left

    def add_started(self, pending: Pending[Any]) -> None:
        """Note a call that the running coroutine has started (for `Session.start`)."""
        if self._routine is not None and asyncio.current_task() is self._task:
            self._routine.pending.append(pending)

    async def _wake(self, branch: Branch) -> None:
        """Take the next coroutine from the queue and run it until it sleeps or ends."""
        time, *_, routine = self._queue[0]
        over = branch.budget.refused and not routine.is_in_flight()
        if not over:
            await self._advance(time)
        heapq.heappop(self._queue)
        if over:
            routine.close()
            return
        self._routine = routine
        routine.context.run(current_branch.set, branch)
        until = await routine.until_sleep()
        if until is not None:
            self._schedule(until, routine)
        if branch.budget.limited:  # a call may wait for what calls in flight leave unspent
            for pending in routine.pending:
                branch.budget.refused |= await pending.is_refused()

    def _schedule(self, time: int, routine: _Routine) -> None:
        heapq.heappush(self._queue, (time, routine.index, self._scheduled, routine))
        self._scheduled += 1

    async def _advance(self, time: int) -> None:
        """Move to a virtual time. With a pace also wait in real time, but not for recorded events nor beyond a time limit.

        A late reply delays all later times.
        """
        loop, elapsed = asyncio.get_running_loop(), time - self._now
        self._now = time
        if not self._state.pace or not self._state.recorder.live or self._state.cancellation.is_requested:
            self._wall = loop.time()
            return
        self._wall += elapsed / 1000 * self._state.pace
        seconds = min(self._wall - loop.time(), self._state.ledger.seconds_left(closing=False))
        if seconds > 0:
            await self._state.cancellation.pause(seconds)
        self._wall = max(self._wall, loop.time())

    def _check_caller(self, action: str) -> None:
        """Refuse other branches while the clock runs: their result would depend on which reply arrives first."""
        if self._task is not None and asyncio.current_task() is not self._task:
            raise ProtocolViolation(f"only a coroutine of the clock may {action} while the clock runs")
