"""The events of sessions as they are committed, as server-sent events. All readers of a session share one poll and one text."""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from starlette.responses import StreamingResponse
from starlette.types import Send

from consilience.domain.errors import JournalError, UnknownSession
from consilience.domain.events import AnyEvent, Noted, SessionFinished
from consilience.journal.store import InFlightCall, Reader, Records
from consilience.journal.thread_reader import MAX_POLL_SECONDS, MIN_POLL_SECONDS
from consilience.reporting.export import texts_said

HEARTBEAT_SECONDS = 15.0
"""A reader that was sent nothing for so long is sent a comment."""
MAX_ROWS = 32
"""Rows that are sent together to a reader that is behind."""


@dataclass
class _Page:
    """What a poll of a session returned."""

    rows: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The number of the event of each row."""
    last: int = 0
    """The number of the last event that is committed, whether or not it may be seen."""
    ended: bool = False
    flying: dict[str, bytes] = field(default_factory=dict)
    """The start of each call in flight, by its key."""


def _page(records: Records, session: str, after: int) -> _Page:
    last = records.last(session)
    events = records.read(session, after=after) if last > after else []
    texts = records.texts({id for event in events for id in texts_said(event)})
    return _Page(
        [_row(event, texts) for event in events],
        [event.seq for event in events],
        max([last, *(event.seq for event in events)]),
        any(isinstance(event, SessionFinished) for event in events),
        {flight.key: _hint(flight) for flight in records.flights(session)},
    )


def _row(event: AnyEvent, texts: dict[str, str]) -> bytes:
    """Return an event as it is exported, with the texts that it says."""
    kind = event.name if isinstance(event, Noted) else event.type
    bodies = {id: texts[id] for id in texts_said(event)}
    data = {"seq": event.seq, **event.model_dump(mode="json"), "bodies": bodies}
    return f"id: {event.seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def _hint(flight: InFlightCall) -> bytes:
    data = {"type": "call_started", "key": flight.key, "agent": flight.agent, "place": flight.place}
    return f"event: call_started\ndata: {json.dumps(data)}\n\n".encode()


class _Feed:
    """A session that is watched. Its rows are kept while it has readers, once for all of them."""

    def __init__(self, reader: Reader, session: str) -> None:
        self._reader, self._session = reader, session
        self.rows: list[bytes] = []
        """The row of each event that may be seen."""
        self._numbers: list[int] = []
        """Their numbers, which never fall: not every event may be seen, and a quoted one has that of the row before it."""
        self._last = 0
        self.flying: dict[str, bytes] = {}
        self.began: dict[str, float] = {}
        """When calls in flight were first seen, in seconds since the epoch, without those that the first poll found."""
        self.ended = False
        """Nothing more will come: the session is finished or removed, or the server ends."""
        self.readers = 0
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._polling = asyncio.create_task(self._poll())

    async def follow(self, after: int) -> AsyncGenerator[bytes]:
        position, hinted = 0, set[str]()
        while True:
            news = self._news  # before the rows: what is added after them is new
            position = max(position, self._first_after(after))
            while position < len(self.rows):
                rows = self.rows[position : position + MAX_ROWS]
                position += len(rows)
                yield b"".join(rows)
            if self.ended:
                return
            for key in self.flying.keys() - hinted:
                yield self.flying.get(key, b"")
            hinted = set(self.flying)
            if not (await asyncio.wait((news,), timeout=HEARTBEAT_SECONDS))[0]:
                yield b":\n\n"

    def _first_after(self, number: int) -> int:
        """Return the position of the first row that may follow that event."""
        position = bisect_left(self._numbers, number)
        return position + (self._numbers[position : position + 1] == [number])

    async def _poll(self) -> None:
        seconds = MIN_POLL_SECONDS
        while not self.ended:
            try:
                page = await self._reader.run(partial(_page, session=self._session, after=self._last))
            except (UnknownSession, JournalError):  # removed, or the disk fails: the reader asks again and is told
                self.stop()
                return
            is_new = bool(page.rows) or page.flying.keys() != self.flying.keys()
            self._note_starts(page.flying)
            self.rows += page.rows
            self._numbers += page.numbers
            self._last = page.last
            self.flying, self.ended = page.flying, page.ended
            if is_new:
                self._announce()
            seconds = MIN_POLL_SECONDS if is_new else min(2 * seconds, MAX_POLL_SECONDS)
            await asyncio.sleep(seconds)

    def _note_starts(self, flying: Collection[str]) -> None:
        if self._last:
            started = dict.fromkeys(set(flying) - self.flying.keys(), time.time())
            self.began = {key: began for key, began in {**started, **self.began}.items() if key in flying}

    def _announce(self) -> None:
        self._news.set_result(None)
        self._news = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        self._polling.cancel()
        self.ended = True
        self._announce()


class Feeds:
    """The sessions of a server that are watched."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._feeds: dict[tuple[tuple[str, ...], str], _Feed] = {}
        self._closed = False

    async def follow(self, owners: tuple[str, ...], session: str, *, after: int = 0) -> AsyncGenerator[bytes]:
        """Yield the events of a session of these owners after a number, and calls in flight, until it ends or the server does."""
        if self._closed:
            return
        key = owners, session
        if (feed := self._feeds.get(key)) is None:
            feed = self._feeds[key] = _Feed(self._reader.of(*owners), session)
        feed.readers += 1
        try:
            async for rows in feed.follow(after):
                yield rows
        finally:
            feed.readers -= 1
            if not feed.readers and self._feeds.get(key) is feed:
                del self._feeds[key]
                feed.stop()

    def began(self, owners: tuple[str, ...], session: str) -> Mapping[str, float]:
        """Return when calls in flight of a session that is watched were sent, by key, in seconds since the epoch, as far as it is
        known to a fraction of a second."""
        feed = self._feeds.get((owners, session))
        return feed.began if feed else {}

    @property
    def readers(self) -> int:
        return sum(feed.readers for feed in self._feeds.values())

    def close(self) -> None:
        """End all streams; their readers may come back to the next process."""
        self._closed = True
        for feed in self._feeds.values():
            feed.stop()


class EventStream(StreamingResponse):
    """A stream of events to one reader. One that takes nothing is dropped with its connection (`connections`)."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncGenerator[bytes], status_code: int = 200) -> None:
        super().__init__(content, status_code, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._rows = content

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self._rows.aclose()
