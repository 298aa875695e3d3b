"""Reads the forecasts of all sessions of a caller in steps, between which others read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from consilience.journal.store import Records
from consilience.reporting.follow_up import FollowedSession
from consilience.server.blindness import SeenReader
from consilience.sessions.follow_up import walk_sessions

STEP = 20
"""Sessions that are read at once: about 10 ms, for which other readers wait."""


async def followed_by(reader: SeenReader) -> list[FollowedSession]:
    """Return the finished sessions with forecasts, oldest first."""
    walk: Iterator[FollowedSession | None] | None = None

    def step(records: Records) -> list[FollowedSession | None]:
        nonlocal walk
        walk = walk or walk_sessions(records)
        return list(islice(walk, STEP))

    found: list[FollowedSession] = []
    while sessions := await reader.run(step):
        found += filter(None, sessions)
    return found
