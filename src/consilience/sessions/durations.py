"""How long calls took, from which follows how long a run will take."""

from __future__ import annotations

from collections.abc import Collection

from consilience.domain.events import CallCompleted
from consilience.journal.store import Records
from consilience.protocols.choose import Choose
from consilience.reporting.session_state import call_seconds

MAX_SESSIONS = 20
MAX_CALLS = 100
"""From so many of the latest sessions, and so many calls in them, follows how long a call takes."""


def recorded_seconds(records: Records, models: Collection[str]) -> list[float]:
    """Return how long the latest recorded calls of these models took. Reads at most `MAX_SESSIONS` sessions."""
    found, looked = list[float](), 0
    for session in reversed(records.sessions()):
        if (seconds := session_seconds(records, session, models)) is None:
            continue
        found += seconds
        looked += 1
        if looked >= MAX_SESSIONS or len(found) >= MAX_CALLS:
            break
    return found[:MAX_CALLS]


def session_seconds(records: Records, session: str, models: Collection[str]) -> list[float] | None:
    """Return how long the calls of these models took in a session; None if it has none of them, or is the reading of a task, which
    is short."""
    started = records.beginning(session)
    if started is None or started.protocol == Choose.name:
        return None
    named = {agent.id for agent in started.agents if agent.model in models}
    if not named:
        return None
    calls = (event for event in records.read(session) if isinstance(event, CallCompleted) and event.agent in named)
    return [took for call in calls if (took := call_seconds(call)) is not None and not call.cached]
