"""Finds recorded sessions by words of their question or answer, by name, time and protocol."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Sequence
from datetime import datetime

from consilience.domain.errors import JournalError, SettingsError, UnknownName
from consilience.domain.events import SessionFinished
from consilience.journal.store import Records, SessionEntry
from consilience.reporting.formatting import one_line

AGE_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_TITLE_CHARS = 60


def search(
    records: Records,
    words: Sequence[str] = (),
    *,
    since: float = 0,
    protocols: Collection[str] = (),
    name: str | None = None,
    answers: bool = False,
) -> list[SessionEntry]:
    """Return the sessions that meet all conditions, oldest first.

    Each of the `words` is part of the question, the name, the id or the comparison's id, in any case of letters, or with
    `answers` of the answer of a finished session. `since` is in seconds since the epoch; `name` is the whole name.
    To search answers costs reading one event and the report of each finished session whose question does not have all words,
    about a millisecond. An answer that cannot be read is not found.
    """
    found = [
        entry
        for entry in records.entries()
        if entry.created >= since
        and (not protocols or entry.protocol in protocols)
        and (name is None or entry.name.casefold() == name.casefold())
    ]
    if not words:
        return found
    tasks = {"": ""} | records.texts({entry.task for entry in found} - {""})
    asked = [word.casefold() for word in words]

    def is_meant(entry: SessionEntry) -> bool:
        text = "\n".join((tasks[entry.task], entry.name, entry.session, entry.comparison)).casefold()
        missing = [word for word in asked if word not in text]
        if not missing or not answers or not entry.finished:
            return not missing
        answer = _answer(records, entry.session).casefold()
        return all(word in answer for word in missing)

    return [entry for entry in found if is_meant(entry)]


def _answer(records: Records, session: str) -> str:
    """Return the answer of a finished session; empty if it has none, is damaged or was removed meanwhile."""
    try:
        finished = records.ending(session)
        report = json.loads(records.text(finished.report)) if isinstance(finished, SessionFinished) else {}
    except (JournalError, UnknownName, ValueError):
        return ""
    return report.get("answer") or ""


def titled(records: Records, entry: SessionEntry) -> str:
    """Return id, date and title of a session on one line."""
    text = title(entry.name, records.text(entry.task) if entry.task else "", MAX_TITLE_CHARS)
    return f"{entry.session} ({local_time(entry.created)} {entry.protocol} {text})"


def title(name: str, task: str, max_chars: int) -> str:
    """Return the name of a session, if it has one, and its question on one line."""
    return one_line(f"{name}: {task}" if name else task, max_chars)


def local_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def age(text: str) -> float:
    """Return the seconds of `45m`, `12h`, `30d` or `4w`. Raises `SettingsError`."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([mhdw])", text.strip(), re.ASCII)
    if not match:
        raise SettingsError(
            f"invalid age: {text!r}", where="--older-than", do="Write a number with m, h, d or w: 12h, 30d, 4w."
        )
    return float(match[1]) * AGE_UNITS[match[2]]


def moment(text: str) -> float:
    """Return the seconds since the epoch of a local date, a date with a time, or an age before now. Raises `SettingsError`."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return time.time() - age(text)
    except SettingsError:
        raise SettingsError(
            f"neither a date nor an age: {text!r}",
            where="--since",
            do='Write 2027-03-31, "2027-03-31 14:00", 12h or 7d.',
        ) from None
