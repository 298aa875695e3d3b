"""Requests that may be repeated: a repetition joins the session that the first one began, and is paid for once."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from asyncio import Task
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from consilience.domain.errors import SettingsError, UnknownName

if TYPE_CHECKING:
    from consilience.domain.events import SessionFinished
    from consilience.server.callers import Caller

JOIN_SECONDS = 15 * 60
"""How long after its end a session is joined by a repeated request. Clients give up after 10 minutes and repeat, unasked."""
Begin = Callable[[str, asyncio.Event], Awaitable[object]]
"""Records a session under the id that it is given. It sets the event if a model reads the task first, once that session is
recorded."""


class JoinedSessions(Protocol):
    """What is asked of the sessions that are joined."""

    @property
    def failures(self) -> Container[str]: ...

    async def ending(self, caller: Caller, session: str) -> SessionFinished | None: ...

    async def resume(self, caller: Caller, session: str) -> None: ...


@dataclass(frozen=True)
class Joined:
    """The session of a request."""

    session: str
    beginning: Task[None]
    """Done when the session is recorded; it goes on if nobody waits for it. Raises what was wrong with the request."""
    noted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the session, or the one in which its task is read, is recorded, or cannot be."""

    async def recorded(self) -> None:
        """Wait until there is something to show. Raises what was wrong with the request."""
        await self.noted.wait()
        if self.beginning.done():
            self.beginning.result()


class Joins:
    """Begins the sessions of requests, or joins them.

    The id of a session follows from the digest of its request. A request looks for the session of that id and begins it if there
    is none, so a restart forgets nothing.
    """

    def __init__(self, sessions: JoinedSessions) -> None:
        self._sessions = sessions
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._beginning: dict[str, Joined] = {}

    async def joined(self, caller: Caller, digest: str, begin: Begin) -> Joined:
        """Return the session of a digest that runs or ended at most `JOIN_SECONDS` ago, else one that `begin` records under the id
        that it is given. One that failed or was cancelled is not joined."""
        async with self._locks.setdefault(digest, asyncio.Lock()):
            session, exists = await self._latest(caller, digest, _is_over)
            if (joined := self._beginning.get(session)) is None:
                noted = asyncio.Event()
                entering = asyncio.create_task(self._enter(caller, session, noted, None if exists else begin))
                joined = self._beginning[session] = Joined(session, entering, noted)
                entering.add_done_callback(partial(self._entered, joined))
            return joined

    def beginning(self, session: str) -> Task[None] | None:
        """Return what is about to record a session; None if nothing is."""
        joined = self._beginning.get(session)
        return joined.beginning if joined is not None else None

    async def reading(self, caller: Caller, session: str) -> tuple[str, bool]:
        """Return the id of the session in which the task of a session is read, and whether it is there."""
        return await self._latest(caller, session, gave_nothing)

    def _entered(self, joined: Joined, beginning: Task[None]) -> None:
        del self._beginning[joined.session]
        joined.noted.set()
        if not beginning.cancelled():
            beginning.exception()  # nobody may be waiting for it any more

    async def _latest(
        self, caller: Caller, digest: str, passed_over: Callable[[SessionFinished], bool]
    ) -> tuple[str, bool]:
        """Return the first session of a digest that is not passed over, or the id of the next one; and whether it is there."""
        for number in itertools.count():
            session = session_id(digest, number)
            try:
                end = await self._sessions.ending(caller, session)
            except UnknownName:
                return session, False
            if end is None or not passed_over(end):
                return session, True
        raise AssertionError

    async def _enter(self, caller: Caller, session: str, noted: asyncio.Event, begin: Begin | None) -> None:
        if begin is None:
            if session in self._sessions.failures:
                await self._sessions.resume(caller, session)
            return
        try:
            await begin(session, noted)
        except SettingsError as error:
            try:  # another process may have begun it in this moment
                await self._sessions.ending(caller, session)
            except UnknownName:
                raise error from None


def digest_of(content: object) -> str:
    """Return the SHA-256 (hex) of data of JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def session_id(digest: str, number: int) -> str:
    """Return the id of the `number`-th session of a digest. Deterministic, and of the form that commands take."""
    return f"r{hashlib.sha256(f'{digest}/{number}'.encode()).hexdigest()[:20]}"


def ended_at(end: SessionFinished) -> float:
    """Return when a session ended, in seconds since the epoch."""
    return float(end.volatile.get("ended_at") or 0)


def gave_nothing(end: SessionFinished) -> bool:
    """Return whether a session failed or was cancelled, so that a repeated request begins another one."""
    return end.stop_reason in ("cancelled", "failed")


def _is_over(end: SessionFinished) -> bool:
    return gave_nothing(end) or time.time() - ended_at(end) > JOIN_SECONDS
