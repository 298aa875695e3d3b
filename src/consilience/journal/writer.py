"""One writer thread with group commit: everything queued during a commit goes into the next one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence

from consilience.domain.errors import StoreUnusable
from consilience.domain.events import Event

SqlStatement = tuple[str, tuple[object, ...] | dict[str, object]]
"""With its values, by place or by name."""
Notice = tuple[asyncio.AbstractEventLoop, Callable[[Event], None], Event]
"""A callback for an event, and the loop to call it on, once a commit is durable."""


LINGER_SECONDS = 0.002
"""How long a commit that no caller awaits may be delayed. A process killed within this time loses it."""


class Writer:
    """Runs batches of statements with `execute`, which makes one transaction durable or raises.

    Queue from any thread. A failed batch fails all its waiters and everything queued later.
    """

    def __init__(self, execute: Callable[[Sequence[SqlStatement]], None], name: str) -> None:
        self._execute = execute
        self._queue: list[SqlStatement] = []
        self._notices: list[Notice] = []
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._wake = threading.Condition()
        self._error: Exception | None = None
        self._reported = False
        self._closing = False
        self._idle = True
        self._lingering = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"journal:{name}", daemon=True)
        self._thread.start()

    def put(self, statements: Sequence[SqlStatement], notices: Sequence[Notice] = ()) -> None:
        """Queue for the next commit; `notices` follow it if it succeeds. Raises the error of an earlier commit.

        On an event loop the commit is delayed by up to `LINGER_SECONDS`, to be shared with awaited ones.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._wake:
            self._refuse_if_shut()
            self._queue.extend(statements)
            self._notices.extend(notices)
            if loop is None:
                self._wake.notify()
            elif not self._lingering:
                self._lingering = True
                loop.call_later(LINGER_SECONDS, self._end_linger)

    def _end_linger(self) -> None:
        with self._wake:
            self._lingering = False
            if self._queue:
                self._wake.notify()

    def put_and_wait(self, statements: Sequence[SqlStatement], notices: Sequence[Notice] = ()) -> asyncio.Future[None]:
        """Queue, and return a future that is done when these statements are durable and their notices were delivered."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._wake:
            self._refuse_if_shut()
            self._queue.extend(statements)
            self._notices.extend(notices)
            self._waiters.append((loop, future))
            self._wake.notify()
        return future

    def flush(self) -> None:
        """Block until everything queued is durable."""
        with self._wake:
            self._wake.notify_all()
            self._wake.wait_for(lambda: (not self._queue and self._idle) or self._error is not None)
            self._refuse_if_broken()

    def check(self) -> None:
        """Raise the error of a commit that failed: nothing can be written any more."""
        with self._wake:
            self._refuse_if_broken()

    def close(self, *, drop: bool = False) -> None:
        """Commit or drop what is queued, and end the thread. Raises the error of a failed commit that was not reported yet."""
        with self._wake:
            self._closing = True
            if drop:  # a waiter must not take dropped statements for durable
                self._queue.clear()
                self._notices.clear()
                self._error = self._error or StoreUnusable("the journal is closed")
            self._wake.notify()
        self._thread.join()
        if not drop and not self._reported:
            self._refuse_if_broken()

    def _refuse_if_broken(self) -> None:
        if self._error is not None:
            self._reported = True
            raise self._error

    def _refuse_if_shut(self) -> None:
        self._refuse_if_broken()
        if self._closing:
            raise StoreUnusable("the journal is closed")
        if os.getpid() != self._process:  # a fork has no writer thread
            raise StoreUnusable("the journal was opened by another process", do="Open it again after a fork.")

    def _run(self) -> None:
        while True:
            with self._wake:
                self._idle = True
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._queue or self._waiters or self._closing)
                if self._closing and not self._queue and not self._waiters:
                    return
                batch, self._queue = self._queue, []
                notices, self._notices = self._notices, []
                waiters, self._waiters = self._waiters, []
                self._idle = False
            try:
                if batch:
                    self._execute(batch)
            except Exception as error:  # every error of the database reaches all waiters
                with self._wake:
                    self._error = error
                    self._reported = bool(waiters)
                    self._queue.clear()
                    notices = []
            self._settle(notices, waiters)

    def _settle(
        self, notices: Sequence[Notice], waiters: Sequence[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]
    ) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, tuple[list[Notice], list[asyncio.Future[None]]]] = {}
        for notice in notices:
            by_loop.setdefault(notice[0], ([], []))[0].append(notice)
        for loop, future in waiters:
            by_loop.setdefault(loop, ([], []))[1].append(future)
        for loop, (calls, futures) in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, calls, futures, self._error)


def _resolve(notices: Sequence[Notice], futures: Sequence[asyncio.Future[None]], error: Exception | None) -> None:
    for _, notify, event in notices:
        notify(event)
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
