"""`sessions`: list, remove, answer; and all commands on single sessions, of which the common ones stand at the top as well."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.commands import Id, Json, ListingGroup, new_app
from consilience.cli.errors import ask, print_json, say
from consilience.cli.options import fork
from consilience.cli.sessions import diff, export, find_session, replay, resume, show, user_store
from consilience.domain.errors import JournalError, SessionBusy, SettingsError, UnknownName
from consilience.domain.paths import check_home, journal_path
from consilience.reporting.formatting import count, one_line
from consilience.reporting.partial_report import status_of
from consilience.reporting.session_state import SessionState, fold_events

if TYPE_CHECKING:
    from consilience.journal.store import Store


UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")]


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


sessions = new_app(ListingGroup)


@sessions.callback()
def _sessions() -> None:
    """Sessions recorded on this machine. The default command is list."""


@sessions.command("list")
def _list(
    most: Annotated[int, typer.Option("--limit", min=1, help="How many of the newest.", metavar="N")] = 20,
    as_json: Json = False,
) -> None:
    """The newest sessions, newest first."""

    check_home()
    rows: list[dict[str, object]] = []
    if not journal_path().exists():
        print("[]" if as_json else "No session was recorded yet.")
        return
    with user_store() as store:
        known = store.sessions()
        for session in reversed(known[-most:]):
            with unless_removed(store, session):
                course = fold_events(store.read(session))
                state = status_of(course, None if course.finished else store.holder(session))
                rows.append(_row(session, course, state, store))
    if as_json or not rows:
        if as_json:
            print_json(rows)
        else:
            print("No session is recorded any more.")
        return
    room = max(20, shutil.get_terminal_size().columns - 71)
    for row in rows:
        stop = row["stop_reason"] or row["state"]
        task = one_line(str(row["task"] or ""), room)
        when = datetime.fromisoformat(str(row["created"])).astimezone().strftime("%Y-%m-%d %H:%M")
        print(f"{row['session']:<10} {when} {row['protocol'] or '–':<12} {stop:<17} {row['calls']:>5} calls  {task}")
    if len(known) > most:
        say(f"{len(known) - most} older ones: --limit {len(known)} shows all.")


def _row(session: str, course: SessionState, state: str, store: Store) -> dict[str, object]:
    started = course.started
    return {
        "session": session,
        "protocol": started.protocol if started else None,
        "state": state,
        "stop_reason": course.finished.stop_reason.value if course.finished else None,
        "calls": course.made,
        "cost": course.cost,
        "created": datetime.fromtimestamp(store.created(session), UTC).isoformat(timespec="seconds"),
        "task": store.text(started.task) if started else None,
    }


@dataclass(frozen=True)
class RemovalRow:
    """A session as it is shown before it goes. `state` is also `unreadable`, where its record is damaged or newer."""

    session: str
    created: str
    state: str
    task: str


@sessions.command("rm")
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
    with user_store() as store:
        rows = [_removal_row(store, session) for session in dict.fromkeys(find_session(store, id) for id in ids)]
        _agree(rows, yes=yes)
        store.admin.remove([row.session for row in rows])
        freed = store.admin.compact()
    _done(rows, freed, as_json=as_json)


@sessions.command("gc")
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
    seconds = None if older_than is None else age(older_than)
    with user_store() as store:
        rows = [] if seconds is None else _old(store, seconds, everything=everything)
        sessions = [row.session for row in rows]
        if dry_run:
            _foreseen(rows, store.admin.weight(sessions), as_json=as_json)
            return
        if rows:
            _agree(rows, yes=yes)
            gone = [id for n in range(0, len(sessions), AT_ONCE) for id in _remove(store, sessions[n : n + AT_ONCE])]
            rows = [row for row in rows if row.session in gone]
        freed = store.admin.compact()
    _done(rows, freed, as_json=as_json)


def _remove(store: Store, sessions: list[str]) -> list[str]:
    """Remove those that are still there and not being run; returns which."""
    try:
        store.admin.remove(sessions)
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


def _old(store: Store, seconds: float, *, everything: bool) -> list[RemovalRow]:
    """Oldest first. A clock that was set back makes a session young, never old."""
    wanted = ("finished", "waiting", "unfinished") if everything else ("finished",)
    now = time.time()
    rows = []
    for session in store.sessions():
        with unless_removed(store, session):
            if now - store.created(session) >= seconds:
                rows.append(_removal_row(store, session))
    for row in rows:
        if row.state == "unreadable":
            say(f"{row.session} cannot be read and is kept; to remove it: consilience sessions rm {row.session}")
    return [row for row in rows if row.state in wanted]


def _removal_row(store: Store, session: str) -> RemovalRow:
    created = datetime.fromtimestamp(store.created(session), UTC).isoformat(timespec="seconds")
    try:
        course = fold_events(store.read(session))
        task = store.text(course.started.task) if course.started else ""
        state = status_of(course, None if course.finished else store.holder(session))
    except JournalError:
        if session not in store.sessions():
            raise
        return RemovalRow(session, created, "unreadable", "")
    return RemovalRow(session, created, state, task)


def _agree(rows: Sequence[RemovalRow], *, yes: bool) -> None:
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
    ask(f"Remove {count(len(rows), 'session')} for good?", otherwise="Nothing was removed.")


def _foreseen(rows: Sequence[RemovalRow], size: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"would_remove": [asdict(row) for row in rows], "bytes": size})
        return
    for row in rows:
        print(_line(row))
    print(f"{count(len(rows), 'session')} would be removed, {_size(size)}. Nothing was.")


def _done(rows: Sequence[RemovalRow], freed: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"removed": [row.session for row in rows], "bytes_freed": freed})
    else:
        names = f" ({', '.join(row.session for row in rows)})" if rows else ""
        print(f"{count(len(rows), 'session')} removed{names}; {_size(freed)} given back.")


def _line(row: RemovalRow) -> str:
    when = datetime.fromisoformat(row.created).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{row.session:<10} {when} {row.state:<10} {one_line(row.task, 60)}".rstrip()


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


@sessions.command("answer")
def _answer(
    id: Id,
    key: Annotated[
        str, typer.Argument(help="What is answered; left out, all that is awaited is shown.", metavar="KEY")
    ] = "",
    text: Annotated[
        str | None,
        typer.Argument(
            help="Words, or JSON for a typed answer; @FILE reads a file, - standard input.",
            metavar="TEXT",
            show_default=False,
        ),
    ] = None,
    by: Annotated[str, typer.Option(help="Who answers; recorded.", metavar="NAME")] = "",
    as_json: Json = False,
) -> None:
    """Answer what a session awaits from a person or an outside process, or show what it awaits."""
    from consilience.cli.prompter import answer

    with user_store() as store:
        answer(store, find_session(store, id), key, text, by=by, as_json=as_json)


for app in (show, resume, replay, fork, diff, export):
    sessions.registered_commands.extend(app.registered_commands)
