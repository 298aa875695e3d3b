"""Makes blocking reads of a store a `Reader`: on a thread of their own, with one poll per session that is followed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from consilience.domain.events import AnyEvent, SessionFinished
from consilience.journal.store import Records

T = TypeVar("T")

MIN_POLL_SECONDS = 0.02
MAX_POLL_SECONDS = 0.25
"""A tail looks for new events at these intervals; each look without one doubles the interval."""


class _Watch:
    """A session that is tailed on one event loop."""

    def __init__(self) -> None:
        self.readers = 0
        self.last = 0
        """The last event that was there when it was last looked for."""
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when there is a later one, and then replaced."""
        self.polling: asyncio.Future[None] | None = None


class ThreadReader:
    """A `Reader` over the blocking `Records` that `connect` opens, on the reading thread, when first needed."""

    def __init__(self, connect: Callable[[], Records]) -> None:
        self._connect = connect
        self._records: Records | None = None
        self._base: ThreadReader | None = None
        """The reader whose records and thread this one shares."""
        self._owners: tuple[str, ...] = ()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal-reader")
        self._watches: dict[tuple[asyncio.AbstractEventLoop, str], _Watch] = {}

    async def run(self, work: Callable[[Records], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    def of(self, owner: str, *others: str) -> Self:
        view = copy.copy(self)
        view._base, view._owners = self, (owner, *others)
        return view

    def _work(self, work: Callable[[Records], T]) -> T:
        if self._base is not None:
            return self._base._work(lambda records: work(records.of(*self._owners)))
        if self._records is None:
            self._records = self._connect()
        return work(self._records)

    async def _read(self, session: str, after: int) -> list[AnyEvent]:
        return await self.run(lambda records: records.read(session, after=after))

    async def tail(self, session: str, *, after: int = 0) -> AsyncGenerator[AnyEvent]:
        watch = self._watches.setdefault((asyncio.get_running_loop(), session), _Watch())
        watch.readers += 1
        try:
            while True:
                news = watch.news  # before the read: what is committed after it is new
                events = await self._read(session, after)
                for event in events:
                    yield event
                    if isinstance(event, SessionFinished):
                        return
                    after = event.seq
                if watch.polling is None or watch.polling.done():
                    watch.polling = asyncio.ensure_future(self._poll(session, watch))
                await asyncio.wait((news, watch.polling), return_when=asyncio.FIRST_COMPLETED)
                if watch.polling.done():
                    watch.polling.result()  # raises if the session is removed
        finally:
            watch.readers -= 1
            if not watch.readers:
                self._watches.pop((asyncio.get_running_loop(), session), None)
                if watch.polling is not None:
                    watch.polling.cancel()

    async def _poll(self, session: str, watch: _Watch) -> None:
        """Look for the session's new events for all who tail it on this loop. A slow reader is not waited for."""
        seconds = MIN_POLL_SECONDS
        while True:
            await asyncio.sleep(seconds)
            last = await self.run(lambda records: records.last(session))
            seconds = MIN_POLL_SECONDS if last > watch.last else min(2 * seconds, MAX_POLL_SECONDS)
            if last > watch.last:
                watch.last = last
                watch.news.set_result(None)
                watch.news = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self._thread.shutdown()
