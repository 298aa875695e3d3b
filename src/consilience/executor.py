"""The port of executors, which run sessions that were prepared, and the executor of this process."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from consilience.deliberation import Deliberation
from consilience.domain.errors import (
    CommitFailed,
    ConsilienceError,
    OverAllowance,
    SessionBusy,
    SessionWaiting,
    StoreUnusable,
    UnknownName,
    UserError,
)
from consilience.domain.events import SessionFinished, SessionStarted
from consilience.domain.report import Report
from consilience.engine.runner import Models, Options
from consilience.journal.store import WITH_ANSWER, Store
from consilience.models.connections import Connections
from consilience.reporting.session_state import fold_events, status_of

MAX_RUNNING = 32
"""Sessions that an executor runs at the same time by default. They wait for providers nearly all of the time."""

HELD_SECONDS = 1.0
"""How long a session whose owner may not run another one waits before it is tried again, if none of this executor ends. So
long too a session waits that could not be recorded, again and again until there is room."""
MAX_SETBACKS = 3
"""How often a session is tried again that could not be recorded although there was room: each time calls may be paid for again."""

logger = logging.getLogger("consilience")
OnEnd = Callable[[str, Report | BaseException], None]
"""Called with a session and its report, or with what ended its run, on the thread of the executor."""


class Executor(Protocol):
    """Runs sessions that `Deliberation.prepare` has recorded."""

    def submit(self, session: str) -> None:
        """Run a session when its turn comes: a prepared one, an interrupted one, or a parked one that was answered."""
        ...

    def cancel(self, session: str, *, answer: bool = False, by: str = "") -> None:
        """End a session with a report, wherever it runs; see `engine.cancelling`. Raises `SettingsError` if it is finished."""
        ...

    def backlog(self) -> Backlog:
        """Return how much there is to do. Any thread may ask."""
        ...

    def close(self) -> None:
        """Run nothing any more. What was running is interrupted and can be resumed."""
        ...


@dataclass(frozen=True)
class Backlog:
    """How much an executor has to do."""

    running: int
    """Sessions that run."""
    waiting: int
    """Sessions that wait for their turn, those included whose owner may not run another one now."""
    seconds: float
    """How long the first of these has been waiting; 0 if none is."""
    taken_up: int
    """Sessions of an earlier process with which this executor began."""


class LocalExecutor:
    """Runs sessions on an event loop in a thread of its own, the first `running` of them at the same time, the others in order.
    One that is cancelled is ended at once.

    It begins with those sessions of the store that were prepared or interrupted, that no process runs, and that `takes_up` accepts:
    sessions of commands that a user left belong to that user. A session whose owner may
    not run another one waits until one of the others ends.

    Its sessions share the clients of their models (`options.connections`, which are closed with it).
    """

    def __init__(
        self,
        store: Store,
        *,
        running: int = MAX_RUNNING,
        model: Models | None = None,
        options: Options | None = None,
        on_end: OnEnd | None = None,
        takes_up: Callable[[SessionStarted], bool] = lambda started: True,
    ) -> None:
        self._store = store
        self._max_running = running
        options = options or Options()
        self._connections = options.connections or Connections()
        options = replace(options, connections=self._connections)
        self._deliberation = Deliberation[Report](model=model, store=store, options=options)
        self._on_end = on_end
        self._queue: deque[str] = deque()
        self._since: dict[str, float] = {}
        """When each waiting session was submitted, on the monotonic clock, oldest first."""
        self._held: dict[str, None] = {}
        """Sessions whose owners run as many as they may, or that could not be recorded, in order. They are tried again when a
        session ends, and each second, if the journal can be written."""
        self._setbacks: Counter[str] = Counter()
        """How often each session could not be recorded."""
        self._again: set[str] = set()
        """Sessions that were submitted while they ran."""
        self._closed = False
        self._retrying: asyncio.TimerHandle | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._idle = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="consilience-executor", daemon=True)
        self._thread.start()
        left = [s for s in interrupted(store) if (started := store.beginning(s)) is not None and takes_up(started)]
        self._taken_up = len(left)
        for session in left:
            self.submit(session)

    def submit(self, session: str) -> None:
        self._store.created(session)  # raises for an unknown session
        self._check_open()
        self._loop.call_soon_threadsafe(self._enqueue, session)

    def cancel(self, session: str, *, answer: bool = False, by: str = "") -> None:
        self._check_open()
        self._store.post(session, "cancel", text=WITH_ANSWER if answer else "", by=by)
        # if nobody runs it, running it writes its report; without an answer that makes no call and need not wait
        self._loop.call_soon_threadsafe(self._enqueue if answer else self._run_now, session)

    def backlog(self) -> Backlog:
        """Return how much there is to do. Any thread may ask."""
        waiting = list(self._since.values())
        seconds = time.monotonic() - waiting[0] if waiting else 0.0
        return Backlog(len(self._running), len(waiting), seconds, self._taken_up)

    def join(self, timeout: float | None = None) -> bool:
        """Wait until nothing is queued or runs, at most `timeout` seconds. Return whether that is so."""
        settled = threading.Event()
        self._loop.call_soon_threadsafe(settled.set)  # what was submitted before is queued by then
        settled.wait(timeout)
        with self._idle:
            return self._idle.wait_for(lambda: not (self._queue or self._running or self._held), timeout)

    def close(self) -> None:
        if threading.current_thread() is self._thread:
            raise UserError("an executor cannot be closed by its own `on_end`", do="Close it from another thread.")
        if not self._closed:
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("the executor is closed", do="Open another one.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _stop(self) -> None:
        self._queue.clear()
        self._held.clear()
        self._since.clear()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._connections.close()

    def _enqueue(self, session: str) -> None:
        if session in self._running:
            self._again.add(session)
        elif session not in self._queue and session not in self._held:
            self._wait(session)
            self._fill()

    def _wait(self, session: str) -> None:
        self._queue.append(session)
        self._since.setdefault(session, time.monotonic())

    def _run_now(self, session: str) -> None:
        if session in self._running:
            self._again.add(session)
            return
        if session in self._queue:
            self._queue.remove(session)
        self._held.pop(session, None)
        self._start(session)

    def _start(self, session: str) -> None:
        since = self._since.pop(session, None)
        self._running[session] = self._loop.create_task(self._run(session, since))

    def _retry_held(self) -> None:
        """Try the sessions again whose owners may run another one now, perhaps since another process ended one, or for which there
        is room now."""
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None
        if not self._held:
            return
        try:
            self._store.check_writable()
        except StoreUnusable:
            self._retry_later()
            return
        self._queue.extendleft(reversed(self._held))
        self._held.clear()
        self._fill()

    def _retry_later(self) -> None:
        if self._retrying is None:
            self._retrying = self._loop.call_later(HELD_SECONDS, self._retry_held)

    def _fill(self) -> None:
        while self._queue and len(self._running) < self._max_running:
            self._start(self._queue.popleft())

    async def _run(self, session: str, since: float | None) -> None:
        """Run a session that has been waiting `since` then."""
        outcome: Report | BaseException | None = None
        try:
            if (owner := self._owner(session)) is not None:
                owned = self._store.of(owner)  # replies are reused among its owner's sessions only
                outcome = await replace(self._deliberation, store=owned).resume(session)
        except OverAllowance as over:
            outcome = over
        except CommitFailed as error:
            logger.warning("session %s was interrupted: %s", session, error)
            self._setbacks[session] += 1
            outcome = error
        except asyncio.CancelledError:
            return
        except (SessionWaiting, SessionBusy) as parked:
            outcome = parked
        except Exception as error:  # of this session alone; the others go on
            log = logger.warning if isinstance(error, ConsilienceError) else logger.exception
            log("session %s was not run to its end: %s", session, error)
            outcome = error
        finally:
            del self._running[session]
        if session in self._again:
            self._again.remove(session)
            self._wait(session)
        is_setback = isinstance(outcome, CommitFailed) and self._setbacks[session] <= MAX_SETBACKS
        if isinstance(outcome, OverAllowance) or is_setback:
            if session not in self._queue:
                self._held[session] = None
                self._since.setdefault(session, time.monotonic() if since is None else since)
            self._retry_later()
        else:
            self._setbacks.pop(session, None)
            self._retry_held()
            if outcome is not None:
                self._report(session, outcome)
        self._fill()
        with self._idle:
            self._idle.notify_all()

    def _owner(self, session: str) -> str | None:
        """Return whose a session is; None for one that was removed while it waited."""
        try:
            return self._store.owner(session)
        except UnknownName:
            return None

    def _report(self, session: str, outcome: Report | BaseException) -> None:
        if self._on_end is not None:
            try:
                self._on_end(session, outcome)
            except BaseException:  # a SystemExit too would end the thread, and with it all sessions
                logger.exception("what is called at the end of session %s failed", session)


def interrupted(store: Store) -> list[str]:
    """Return the sessions that can go on and that no process runs, oldest first: prepared, interrupted, or parked and answered."""
    open_sessions = [s for s in store.sessions() if not isinstance(store.ending(s), SessionFinished)]
    return [s for s in open_sessions if status_of(fold_events(store.read(s)), store.holder(s)) == "unfinished"]
