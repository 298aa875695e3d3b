"""What becomes of what agents forecast: deadlines across sessions, outcomes that the user records, and scores against them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fcntl import LOCK_EX, flock
from pathlib import Path

from consilience.domain.agents import Agent
from consilience.domain.deadlines import deadline_of
from consilience.domain.errors import SettingsError
from consilience.domain.messages import is_empty_remark
from consilience.domain.report import Forecast

RESOLUTIONS = ".resolutions"
"""Suffix of the file of outcomes, in place of the journal's."""


@dataclass(frozen=True)
class FollowedSession:
    """A finished session with forecasts."""

    session: str
    root: str
    """The session from which it was forked, in the end; itself if it is no fork."""
    agents: Sequence[Agent]
    forecasts: Sequence[Forecast]
    held_on: date
    """The day on which it began, from which its agents reckon."""


@dataclass(frozen=True)
class Deadline:
    """A falsifier with a deadline, of a question that is not resolved."""

    session: str
    forecast: str
    question: str
    agent: str
    finding: str
    deadline: str
    """In the agent's words."""
    day: date | None
    """The last day of it; None if the words name none."""


@dataclass(frozen=True)
class Resolution:
    """The recorded outcome of a question."""

    session: str
    forecast: str
    outcome: bool
    on: str
    """The day on which it was recorded, ISO 8601."""


@dataclass(frozen=True)
class BrierScore:
    """The mean Brier score of some forecasts: 0 is perfect, 0.25 that of a coin, 1 certain and wrong."""

    name: str
    period: str
    """The month in which outcomes were recorded, `2027-03`; `all`."""
    forecasts: int
    score: float


def open_deadlines(sessions: Iterable[FollowedSession], resolutions: Iterable[Resolution]) -> list[Deadline]:
    """Return falsifiers of unresolved questions, by deadline, unreadable ones last. A fork adds only what its parent lacks."""
    resolved = {(resolution.session, resolution.forecast) for resolution in resolutions}
    deadlines: dict[tuple[str, ...], Deadline] = {}
    for followed in sessions:
        names = names_of(followed.agents)
        for forecast in followed.forecasts:
            for agent, finding, words in forecast.falsifiers:
                place = (followed.root, forecast.question, agent, finding, words)
                if is_empty_remark(words) or place in deadlines or (followed.session, forecast.id) in resolved:
                    continue
                day = deadline_of(words, followed.held_on)
                deadlines[place] = Deadline(
                    followed.session, forecast.id, forecast.question, names[agent], finding, words, day
                )
    return sorted(deadlines.values(), key=lambda deadline: deadline.day or date.max)


def brier(side: bool, confidence: float, outcome: bool) -> float:
    """Return (p − o)², p the probability of yes and o 1 for yes, else 0.

    It is the score of G. W. Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78 (1950)
    1–3, in its usual form for yes/no questions, which is half of Brier's own sum.

    A side held with confidence c is the probability (1 + c) ÷ 2 for it: 0.5 without any confidence. That mapping is ours.
    """
    probability = (1 + confidence) / 2
    return ((probability if side else 1 - probability) - outcome) ** 2


def brier_scores(
    sessions: Iterable[FollowedSession], resolutions: Iterable[Resolution]
) -> tuple[list[BrierScore], list[BrierScore]]:
    """Return the scores of agents and of models, each in all and by month, over the firm final sides on resolved questions."""
    outcomes = {(resolution.session, resolution.forecast): resolution for resolution in resolutions}
    agents: dict[tuple[str, str], list[float]] = {}
    models: dict[tuple[str, str], list[float]] = {}
    for followed in sessions:
        names = names_of(followed.agents)
        model = {agent.id: agent.model for agent in followed.agents}
        for forecast in followed.forecasts:
            resolution = outcomes.get((followed.session, forecast.id))
            if resolution is None:
                continue
            for agent, (side, confidence) in forecast.sides.items():
                score = brier(side, confidence, resolution.outcome)
                for period in ("all", resolution.on[:7]):
                    agents.setdefault((names[agent], period), []).append(score)
                    models.setdefault((model[agent], period), []).append(score)
    return _means(agents), _means(models)


def _means(scores: Mapping[tuple[str, str], Sequence[float]]) -> list[BrierScore]:
    rows = [BrierScore(name, period, len(row), sum(row) / len(row)) for (name, period), row in scores.items()]
    return sorted(rows, key=lambda row: (row.name, row.period != "all", row.period))


def names_of(agents: Iterable[Agent]) -> dict[str, str]:
    """The name of each agent across sessions: its persona's, else its id."""
    return {agent.id: agent.persona or agent.id for agent in agents}


# --- the file of outcomes


def resolutions_path(journal: Path) -> Path:
    return journal.with_suffix(RESOLUTIONS)


def read_resolutions(path: Path) -> list[Resolution]:
    """Return the outcomes recorded in a file, the last one of each question. A line that a crash left unfinished is none.

    Raises `SettingsError` for a damaged file, with the number of the line.
    """
    try:
        *lines, last = path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    rows = []
    for number, line in enumerate([*lines, last] if _resolution(last) else lines, 1):
        if line.strip():
            row = _resolution(line)
            if row is None:
                raise _unreadable(path, f"line {number} is no outcome")
            rows.append(row)
    return list({(row.session, row.forecast): row for row in rows}.values())


def record_resolution(path: Path, resolution: Resolution) -> None:
    """Append an outcome; a later one of the same question replaces it. The journal is not touched.

    The line is on the disk when this returns. What a crash left unfinished at the end is removed first. Raises `SettingsError`, and
    then nothing was recorded.
    """
    line = json.dumps(vars(resolution), ensure_ascii=False).encode() + b"\n"
    read_resolutions(path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            flock(file, LOCK_EX)
            before = file.read()
            end = before.rfind(b"\n") + 1
            kept = before if _resolution(before[end:]) else before[:end]
            file.seek(len(kept))
            file.write(line if not kept or kept.endswith(b"\n") else b"\n" + line)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SettingsError(
            f"the outcome cannot be recorded: {error.strerror or error}",
            where=str(path),
            do="Free space or rights there, then try again.",
        ) from None


def _resolution(line: bytes) -> Resolution | None:
    """Read a line of the file; None if it is no outcome."""
    try:
        row = json.loads(line)
        day = date.fromisoformat(row["on"])
    except (ValueError, TypeError, KeyError):
        return None
    texts, outcome = (row.get("session"), row.get("forecast")), row.get("outcome")
    if not all(isinstance(text, str) for text in texts) or not isinstance(outcome, bool):
        return None
    return Resolution(row["session"], row["forecast"], outcome, day.isoformat())


def _unreadable(path: Path, reason: str) -> SettingsError:
    return SettingsError(
        f"the recorded outcomes cannot be read: {reason}", where=str(path), do="Fix or remove that line, or the file."
    )
