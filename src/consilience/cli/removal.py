"""Removing recorded sessions: those named, or all that are old."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.failures import Declined, say
from consilience.cli.output import print_json
from consilience.domain.errors import JournalError, SessionBusy, SettingsError, UnknownName
from consilience.reporting.course import fold
from consilience.reporting.unfinished import state_of
from consilience.reporting.words import count, one_line

if TYPE_CHECKING:
    from consilience.journal.store import Store

UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


AT_ONCE = 100
"""Sessions of one removal, each of which holds a file open."""


@contextmanager
def unless_removed(store: Store, session: str) -> Iterator[None]:
    """Pass over a session that somebody else removes meanwhile."""
    try:
        yield
    except (JournalError, UnknownName):
        if session in store.sessions():
            raise


@dataclass(frozen=True)
class Row:
    """A session as it is shown before it goes. `state` is also `unreadable`, where its record is damaged or newer."""

    session: str
    created: str
    state: str
    task: str


def rm(
    ids: Annotated[
        list[str],
        typer.Argument(help="Sessions: ids, their beginnings, or `last`.", metavar="ID...", show_default=False),
    ],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove sessions for good.

    What was asked, said and paid goes, and every text that no other session uses; the space is given back. While one of them is
    being run none is removed. Files written with --out are not touched.
    """
    from consilience.cli.sessions import find_session, user_store

    with user_store() as store:
        rows = [_row(store, session) for session in dict.fromkeys(find_session(store, id) for id in ids)]
        _agree(rows, yes=yes)
        store.remove([row.session for row in rows])
        freed = store.compact()
    _done(rows, freed, as_json=as_json)


def gc(
    older_than: Annotated[
        str | None,
        typer.Option(help="Age since the session was begun: 45m, 12h, 30d, 4w.", metavar="AGE", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that are not finished: broken off, or waiting for an answer.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and stop.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove old finished sessions and give their space back.

    What can still be gone on with is kept unless --all is given, and what is being run always. Without --older-than nothing is
    removed and the journal is only compacted.
    """
    from consilience.cli.sessions import user_store

    seconds = None if older_than is None else age(older_than)
    with user_store() as store:
        rows = [] if seconds is None else _old(store, seconds, everything=everything)
        sessions = [row.session for row in rows]
        if dry_run:
            _foreseen(rows, store.weight(sessions), as_json=as_json)
            return
        if rows:
            _agree(rows, yes=yes)
            gone = [id for n in range(0, len(sessions), AT_ONCE) for id in _remove(store, sessions[n : n + AT_ONCE])]
            rows = [row for row in rows if row.session in gone]
        freed = store.compact()
    _done(rows, freed, as_json=as_json)


def _remove(store: Store, sessions: list[str]) -> list[str]:
    """Remove those that are still there and not being run; returns which."""
    try:
        store.remove(sessions)
    except (UnknownName, SessionBusy):
        if len(sessions) == 1:
            return []
        return [id for session in sessions for id in _remove(store, [session])]
    return sessions


def age(text: str) -> float:
    """Seconds of `45m`, `12h`, `30d` or `4w`. Raises `SettingsError`."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([mhdw])", text.strip(), re.ASCII)
    if not match:
        raise SettingsError(
            f"{text!r} is no age", where="--older-than", do="Write a number with m, h, d or w: 12h, 30d, 4w."
        )
    return float(match[1]) * UNITS[match[2]]


def _old(store: Store, seconds: float, *, everything: bool) -> list[Row]:
    """Oldest first. A clock that was set back makes a session young, never old."""
    wanted = ("finished", "waiting", "unfinished") if everything else ("finished",)
    now = time.time()
    rows = []
    for session in store.sessions():
        with unless_removed(store, session):
            if now - store.created(session) >= seconds:
                rows.append(_row(store, session))
    for row in rows:
        if row.state == "unreadable":
            say(f"{row.session} cannot be read and is kept; to remove it: consilience sessions rm {row.session}")
    return [row for row in rows if row.state in wanted]


def _row(store: Store, session: str) -> Row:
    created = datetime.fromtimestamp(store.created(session), UTC).isoformat(timespec="seconds")
    try:
        course = fold(store.read(session))
        task = store.text(course.started.task) if course.started else ""
        state = state_of(course, None if course.finished else store.holder(session))
    except JournalError:
        if session not in store.sessions():
            raise
        return Row(session, created, "unreadable", "")
    return Row(session, created, state, task)


def _agree(rows: Sequence[Row], *, yes: bool) -> None:
    """Return if they may be removed. Raises `SettingsError` where nobody can be asked, `Declined` where the answer is no."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(
            f"this would remove {count(len(rows), 'session')} for good, and nobody can be asked",
            do="Give --yes to agree.",
        )
    for row in rows:
        say(_line(row))
    try:
        agreed = typer.confirm(f"Remove {count(len(rows), 'session')} for good?", default=False, err=True)
    except typer.Abort:  # Ctrl-C or the end of input is an answer too
        agreed = False
    if not agreed:
        raise Declined("Nothing was removed.")


def _foreseen(rows: Sequence[Row], size: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"would_remove": [asdict(row) for row in rows], "bytes": size})
        return
    for row in rows:
        print(_line(row))
    print(f"{count(len(rows), 'session')} would be removed, {_size(size)}. Nothing was.")


def _done(rows: Sequence[Row], freed: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"removed": [row.session for row in rows], "bytes_freed": freed})
    else:
        names = f" ({', '.join(row.session for row in rows)})" if rows else ""
        print(f"{count(len(rows), 'session')} removed{names}; {_size(freed)} given back.")


def _line(row: Row) -> str:
    when = datetime.fromisoformat(row.created).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{row.session:<10} {when} {row.state:<10} {one_line(row.task, 60)}".rstrip()


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
