"""A recorded session as a row of a list."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from consilience.journal.store import Records, SessionEntry
from consilience.reporting.session_state import fold_events, status_of


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """A session in a list. Its `state` is `unreadable` if its record is damaged or of a newer version."""

    session: str
    protocol: str | None = None
    state: str
    stop_reason: str | None = None
    has_answer: bool | None = None
    quorum_met: bool | None = None
    """Whether enough agents replied for the answer. None, like `has_answer`, without a report."""
    calls: int = 0
    cost: float | None = None
    created: str
    name: str = ""
    comparison: str = ""
    """Id of the comparison that began it."""
    task: str | None = None


def created_at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def session_row(records: Records, entry: SessionEntry) -> SessionRow:
    """Return the row of a session. Its whole record is read. Raises `UnknownName`, `JournalError`."""
    course = fold_events(records.read(entry.session))
    started, finished = course.started, course.finished
    report = json.loads(records.text(finished.report)) if finished else {}
    return SessionRow(
        session=entry.session,
        protocol=started.protocol if started else None,
        state=status_of(course, None if finished else records.holder(entry.session)),
        stop_reason=finished.stop_reason.value if finished else None,
        has_answer=report["answer"] is not None if report else None,
        quorum_met=report.get("quorum_met"),
        calls=course.made,
        cost=course.cost,
        created=created_at(entry.created),
        name=entry.name,
        comparison=entry.comparison,
        task=records.text(started.task) if started else None,
    )
