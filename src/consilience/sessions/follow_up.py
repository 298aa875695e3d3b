"""Forecasts of recorded sessions: what is due, what came out, how good they were. Outcomes are in a file next to the journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from consilience.domain.errors import UnknownName, UnknownSession
from consilience.domain.events import SessionFinished
from consilience.domain.report import FORECASTS
from consilience.journal.store import Records
from consilience.reporting.follow_up import (
    BrierScore,
    Deadline,
    FollowedSession,
    Resolution,
    brier_scores,
    open_deadlines,
    read_resolutions,
    record_resolution,
    resolutions_path,
)

NEAR_DAYS = 90
"""A deadline within so many days is near."""
MIN_RANKED = 30
"""Resolved forecasts that each of two agents or models must have before their scores rank them."""


@dataclass(frozen=True)
class ResolvedQuestion:
    """A question whose outcome was recorded."""

    resolution: Resolution
    question: str
    """Its text."""
    scores: Sequence[BrierScore]
    """Of the agents, for this question."""


def due_groups(
    followed: Iterable[FollowedSession], journal: str, *, today: date, within: int = NEAR_DAYS
) -> dict[str, list[Deadline]]:
    """Return the open deadlines of these sessions that are past, near (within so many days), and unreadable, by these words.
    Later ones are left out. Raises `SettingsError` for a damaged file of outcomes."""
    deadlines = open_deadlines(followed, _resolutions(journal))
    limit = today + timedelta(days=min(within, (date.max - today).days))
    return {
        "past": [d for d in deadlines if d.day is not None and d.day < today],
        "near": [d for d in deadlines if d.day is not None and today <= d.day <= limit],
        "unreadable": [d for d in deadlines if d.day is None],
    }


def resolve_question(records: Records, journal: str, session: str, question: str, outcome: bool) -> ResolvedQuestion:
    """Record the outcome of a question of a session; a later one replaces an earlier one. Raises `UnknownName`, `SettingsError`."""
    parents, root = records.parents(), session
    while root in parents:
        root = parents[root]
    followed = follow_session(records, session, root)
    forecasts = {forecast.id: forecast for forecast in followed.forecasts} if followed else {}
    if question not in forecasts:
        choices = f"Give one of them: {', '.join(forecasts)}."
        raise UnknownName(
            f"session {session} has no question {question!r} that can be resolved",
            do=choices if forecasts else "Only finished sessions with positions have such questions.",
        )
    resolution = Resolution(session, question, outcome, datetime.now(UTC).date().isoformat())
    record_resolution(resolutions_path(Path(journal)), resolution)
    agents, _ = brier_scores([followed] if followed else [], [resolution])
    return ResolvedQuestion(resolution, forecasts[question].question, [row for row in agents if row.period == "all"])


def forecast_outcomes(
    records: Records, journal: str, session: str
) -> tuple[FollowedSession | None, dict[str, Resolution]]:
    """Return a session with its forecasts, None if it has none, and their recorded outcomes by the forecast's name."""
    recorded = (resolution for resolution in _resolutions(journal) if resolution.session == session)
    return follow_session(records, session, session), {resolution.forecast: resolution for resolution in recorded}


def all_scores(followed: Iterable[FollowedSession], journal: str) -> tuple[list[BrierScore], list[BrierScore]]:
    """Return the scores of agents and of models over all resolved questions of these sessions, as `brier_scores` does."""
    return brier_scores(followed, _resolutions(journal))


def _resolutions(journal: str) -> list[Resolution]:
    return read_resolutions(resolutions_path(Path(journal)))


def score_rows(scores: Sequence[BrierScore]) -> list[dict[str, object]]:
    """Return scores as JSON."""
    return [asdict(score) for score in scores]


def deadline_row(deadline: Deadline) -> dict[str, object]:
    """Return a deadline as JSON."""
    return {**asdict(deadline), "day": deadline.day.isoformat() if deadline.day else None}


def followed_sessions(records: Records) -> Iterator[FollowedSession]:
    """The finished sessions with forecasts, oldest first."""
    yield from filter(None, walk_sessions(records))


def walk_sessions(records: Records) -> Iterator[FollowedSession | None]:
    """Yield for each session, oldest first, the session with its forecasts, or None if it has none or was removed meanwhile."""
    roots: dict[str, str] = {}
    for session in records.sessions():
        try:
            started = records.beginning(session)
            parent = started.parent if started else None
            roots[session] = roots.get(parent, parent) if parent else session  # a parent is older
            yield follow_session(records, session, roots[session])
        except UnknownSession:
            yield None


def follow_session(records: Records, session: str, root: str) -> FollowedSession | None:
    """Return a session with its forecasts; None if it has none. Its report is not read."""
    started, finished = records.beginning(session), records.ending(session)
    if started is None or not isinstance(finished, SessionFinished):
        return None
    forecasts = FORECASTS.validate_json(records.text(finished.forecasts)) if finished.forecasts else ()
    if not forecasts:
        return None
    held_on = datetime.fromtimestamp(records.created(session), UTC).date()
    return FollowedSession(session, root, started.agents, forecasts, held_on)
