"""One writer thread with group commit: everything queued during a commit goes into the next one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consilience.domain.errors import StoreUnusable
from consilience.domain.events import Event

SqlStatement = tuple[str, tuple[object, ...] | dict[str, object]]
"""With its values, by place or by name."""
Notice = tuple[asyncio.AbstractEventLoop, Callable[[Event], None], Event]
"""A callback for an event, and the loop to call it on, once a commit is durable."""


LINGER_SECONDS = 0.002
"""How long a commit that no caller awaits may be delayed. A process killed within this time loses it."""


class Author:
    """Who queues statements that build on each other. Once a commit with some of them failed, later ones are refused."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        """Of the commit that failed."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """What was queued together."""

    author: Author
    statements: Sequence[SqlStatement]
    notices: Sequence[Notice]
    waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None


class Writer:
    """Runs batches of statements with `execute`, which makes one transaction durable or raises.

    Queue from any thread. A failed batch fails its authors: all their waiters, what they have queued and what they would queue
    later. What others queue is written as soon as there is room again.
    """

    def __init__(self, execute: Callable[[Sequence[SqlStatement]], None], name: str) -> None:
        self._execute = execute
        self._queue: list[_Entry] = []
        self._wake = threading.Condition()
        self._failures = 0
        self._failures_overcome = 0
        self._unreported: Exception | None = None
        self._closing = False
        self._dropped: StoreUnusable | None = None
        self._idle = True
        self._lingering = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"journal:{name}", daemon=True)
        self._thread.start()

    def put(self, author: Author, statements: Sequence[SqlStatement], notices: Sequence[Notice] = ()) -> None:
        """Queue for the next commit; `notices` follow it if it succeeds. Raises the error of an earlier commit of this author.

        On an event loop the commit is delayed by up to `LINGER_SECONDS`, to be shared with awaited ones.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._wake:
            self._refuse(author)
            self._queue.append(_Entry(author, statements, notices))
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

    def put_and_wait(
        self, author: Author, statements: Sequence[SqlStatement], notices: Sequence[Notice] = ()
    ) -> asyncio.Future[None]:
        """Queue, and return a future that is done when these statements are durable and their notices were delivered."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._wake:
            self._refuse(author)
            self._queue.append(_Entry(author, statements, notices, (loop, future)))
            self._wake.notify()
        return future

    def run(self, statements: Sequence[SqlStatement]) -> None:
        """Block until these statements, on which no others build, are durable. Raises the error of their commit."""
        author = Author()
        self.put(author, statements)
        self.flush(author)

    def flush(self, author: Author | None = None) -> None:
        """Block until everything that is queued is durable or failed. Raises the error of a commit of `author`."""
        with self._wake:
            self._wake.notify_all()
            self._wake.wait_for(lambda: (not self._queue and self._idle) or (author is not None and author.error))
            self._raise_error_of(author)

    def check(self, probe: Sequence[SqlStatement]) -> None:
        """Run the probe if a commit has failed since the last one that succeeded. Raises the error of its commit."""
        failures = self._failures
        if failures != self._failures_overcome:
            self.run(probe)
            self._failures_overcome = failures

    def close(self, *, drop: bool = False) -> None:
        """Commit or drop what is queued, and end the thread. Raises the error of a failed commit that was not reported yet."""
        with self._wake:
            self._closing = True
            if drop:  # a waiter must not take dropped statements for durable
                self._dropped = StoreUnusable("the journal is closed")
            self._wake.notify()
        self._thread.join()
        if not drop and self._unreported is not None:
            raise self._unreported

    def _refuse(self, author: Author) -> None:
        self._raise_error_of(author)
        if self._closing:
            raise StoreUnusable("the journal is closed")
        if os.getpid() != self._process:  # a fork has no writer thread
            raise StoreUnusable("the journal was opened by another process", do="Open it again after a fork.")

    def _raise_error_of(self, author: Author | None) -> None:
        if author is not None and author.error is not None:
            if self._unreported is author.error:
                self._unreported = None
            raise author.error

    def _run(self) -> None:
        while True:
            with self._wake:
                self._idle = True
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                batch, self._queue = self._queue, []
                self._idle = False
            error: Exception | None = self._dropped
            try:
                statements = [statement for entry in batch for statement in entry.statements]
                if statements and error is None:
                    self._execute(statements)
            except Exception as failure:  # every error of the database reaches all waiters
                error = failure
            with self._wake:
                error = error or self._dropped
                if error is not None:
                    batch += self._fail(batch, error)
            self._settle(batch, error)

    def _fail(self, batch: Sequence[_Entry], error: Exception) -> list[_Entry]:
        """Fail the authors of a batch; return what they have queued since, taken from the queue."""
        self._failures += 1
        for entry in batch:
            entry.author.error = entry.author.error or error
        queued = [entry for entry in self._queue if entry.author.error is not None]
        self._queue = [entry for entry in self._queue if entry.author.error is None]
        waited_for = {id(entry.author) for entry in (*batch, *queued) if entry.waiter is not None}
        if any(id(entry.author) not in waited_for for entry in batch):
            self._unreported = error
        return queued

    def _settle(self, batch: Sequence[_Entry], error: Exception | None) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, tuple[list[Notice], list[asyncio.Future[None]]]] = {}
        for entry in batch:
            for notice in entry.notices if error is None else ():
                by_loop.setdefault(notice[0], ([], []))[0].append(notice)
            if entry.waiter is not None:
                loop, future = entry.waiter
                by_loop.setdefault(loop, ([], []))[1].append(future)
        for loop, (calls, futures) in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, calls, futures, error)


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
