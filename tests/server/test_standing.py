"""How a handle stands while its task is read: two sessions, of which the second is begun when the first has ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from consilience.domain.errors import UnknownName
from consilience.domain.events import SessionFinished
from consilience.domain.outcome import StopReason
from consilience.server.callers import Caller
from consilience.server.joins import Joins, session_id
from consilience.server.mcp_face import Standing, standing

HANDLE = "r0123456789abcdef0123"
READING = session_id(HANDLE, 0)


class CancelledMeanwhile:
    """Sessions of which the reading is cancelled after it was looked for."""

    failures: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._looked = 0

    async def ending(self, caller: Caller, session: str) -> SessionFinished | None:
        if session != READING:
            raise UnknownName(f"There is no session {session!r}.")
        self._looked += 1
        if self._looked == 1:
            return None
        cancelled = SimpleNamespace(stop_reason=StopReason.CANCELLED, volatile={})
        return cast(SessionFinished, cancelled)

    async def resume(self, caller: Caller, session: str) -> None: ...


async def test_a_reading_that_is_cancelled_while_it_is_looked_for_is_lost() -> None:
    sessions = CancelledMeanwhile()

    async def begin() -> None:
        raise UnknownName(f"There is no session {HANDLE!r}.")

    beginning = asyncio.create_task(begin())
    joins = SimpleNamespace(beginning=lambda _: beginning, reading=Joins(sessions).reading)
    known: Any = SimpleNamespace(ending=sessions.ending, joins=joins)
    assert await standing(known, Caller(), HANDLE) == Standing(READING, is_lost=True)
    await asyncio.wait((beginning,))
    beginning.exception()
