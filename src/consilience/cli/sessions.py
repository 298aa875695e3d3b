"""Commands on recorded sessions."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli import removal
from consilience.cli.failures import say
from consilience.cli.output import print_json
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import AnyEvent
from consilience.journal.store import Store
from consilience.reporting.course import Course, fold

if TYPE_CHECKING:
    from consilience.reporting.record import Record


class View(StrEnum):
    """The views there are. A test holds them to those of `reporting.views`, which takes too long to import for a help text."""

    TREE = "tree"
    EVOLUTION = "evolution"
    CONVERGENCE = "convergence"
    READS = "reads"
    ITERATIONS = "iterations"
    PASSES = "passes"
    FLOW = "flow"
    DISTANCES = "distances"


Id = Annotated[
    str, typer.Argument(help="The session's id, its beginning, or `last`.", metavar="ID", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the report.")]
EnvFile = Annotated[
    Path | None, typer.Option(help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE")
]


def new_app(*, group: bool = False) -> typer.Typer:
    return typer.Typer(
        no_args_is_help=group, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )


show, resume, replay, sessions = new_app(), new_app(), new_app(), new_app(group=True)


@contextmanager
def user_store() -> Iterator[Store]:
    """The user's journal. Raises `UnknownName` where there is none yet, rather than making one to look into."""
    from consilience.domain.places import journal_path
    from consilience.journal.sqlite import SqliteStore

    path = journal_path()
    if not path.exists():
        raise UnknownName(
            "no session was recorded yet", where=str(path), do='Begin one: consilience emergence "Should we …?"'
        )
    store = SqliteStore(path)
    try:
        yield store
    finally:
        store.close()


def find_session(store: Store, given: str) -> str:
    """The id that is meant: whole, abbreviated without ambiguity, or `last`. Raises `UnknownName`."""
    known = store.sessions()
    if given in known:
        return given
    if given == "last" and known:
        return known[-1]
    matches = [id for id in known if given and id.startswith(given)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UnknownName(f"{given!r} may be any of several sessions", do=f"Say which: {', '.join(matches[:8])}.")
    recent = ", ".join(known[-5:])
    raise UnknownName(
        f"there is no session {given!r}",
        do=f"The latest are: {recent}; all of them: consilience sessions list." if recent else "None was recorded yet.",
    )


@show.command("show")
def _show(
    id: Id,
    view: Annotated[View | None, typer.Option(help="One view of it instead of the report.", show_default=False)] = None,
    events: Annotated[bool, typer.Option("--events", help="List its events, one a line, with their numbers.")] = False,
    as_json: Json = False,
) -> None:
    """What a session came to, or how far it got, and its family of forks; or one view of it."""
    if view is not None and events:
        raise SettingsError("--view and --events exclude each other", do="Give one of them.")
    from consilience.reporting.record import record_of

    with user_store() as store:
        session = find_session(store, id)
        if events:
            _print_events(store.read(session), as_json)
            return
        record = record_of(store, session)
        if view is not None:
            _print_view(view.value, record, as_json)
        elif as_json:
            from consilience.reporting.export import as_json as exported
            from consilience.reporting.words import escaped

            print(escaped(exported(record)), end="")
        else:
            _print_report(record)


def _print_view(view: str, record: Record, as_json: bool) -> None:
    from consilience.reporting.views import VIEWS

    check_view(view, record)
    data = VIEWS[view].fold(record)
    if as_json:
        print_json(VIEWS[view].plain(data))
    else:
        print(VIEWS[view].text(data, shutil.get_terminal_size((100, 24)).columns), end="")


def check_view(view: str, record: Record) -> None:
    """Raises `SettingsError` where a session has nothing that the view shows."""
    from consilience.reporting.views import lacking, views_of

    if missing := lacking(view, record):
        raise SettingsError(missing, where=f"--view {view}", do=f"It has these views: {', '.join(views_of(record))}.")


def _print_report(record: Record) -> None:
    from consilience.reporting.markdown import markdown
    from consilience.reporting.terminal import show as print_markdown
    from consilience.reporting.unfinished import unfinished

    if record.report is not None:
        print_markdown(markdown(record.report, more=record.family))
        return
    found = unfinished(record.session, record.course, record.text, flights=list(record.flights), holder=record.holder)
    print_markdown(f"{found}\n{record.family}\n" if record.family else found)


def _print_events(recorded: Sequence[AnyEvent], as_json: bool) -> None:
    from consilience.cli.playback import listing

    if as_json:
        rows = [{"seq": event.seq, **event.model_dump(mode="json")} for event in recorded]
        print_json(rows)
    else:
        print("\n".join(listing(recorded)))


@resume.command("resume")
def _resume(
    id: Id,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Spend money without asking.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the report files into this directory.", metavar="DIR")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    env_file: EnvFile = None,
) -> None:
    """Go on where a session was left; nothing that is recorded is paid for again."""
    from consilience.cli.again import go_on

    raise typer.Exit(go_on(id, yes=yes, out=out, as_json=as_json, quiet=quiet, env_file=env_file))


@replay.command("replay")
def _replay(
    id: Id,
    speed: Annotated[
        float | None,
        typer.Option(help="Show it as it went, N times as fast; 1 is as it was.", metavar="N", show_default=False),
    ] = None,
    step: Annotated[bool, typer.Option("--step", help="Show it event by event, waiting for a key.")] = False,
    as_json: Json = False,
) -> None:
    """Run a session again from its record with the network shut, and compare event by event."""
    if (speed is not None) + step + as_json > 1:
        raise SettingsError("--speed, --step and --json exclude each other", do="Give one of them.")
    from consilience.cli import playback
    from consilience.cli.loop import run_until_done
    from consilience.engine import runner

    with user_store() as store:
        session = find_session(store, id)
        events = store.read(session)
        course = fold(events)
        if course.finished is None:
            raise SettingsError(
                f"session {session} is not finished, so there is nothing whole to replay",
                do=f"Go on with it first: consilience resume {session}.",
            )
        began = time.monotonic()
        report = run_until_done(runner.replay(session, store=store))
        seconds = time.monotonic() - began
        matched = sum(event.canonical for event in events)
        digest = report.digest()
        if speed is not None:
            playback.play(events, title=f"{report.protocol} {session}, {speed:g} times as fast", speed=speed)
        if step:
            playback.step(events, store)
    if as_json:
        found = {
            "session": session,
            "events_matched": matched,
            "calls": 0,
            "seconds": round(seconds, 3),
            "report_digest": digest,
        }
        print_json(found)
    else:
        print(
            f"Replayed {session}: {matched:,} events matched, 0 calls, {seconds:.2f} s "
            f"(the run itself took {course.seconds:.1f} s). Same report: {digest[:16]}…"
        )


@sessions.callback()
def _sessions() -> None:
    """Sessions recorded on this machine."""


@sessions.command("list")
def _list(
    most: Annotated[int, typer.Option("--limit", min=1, help="How many of the newest.", metavar="N")] = 20,
    as_json: Json = False,
) -> None:
    """The newest sessions, newest first."""
    from consilience.domain.places import journal_path
    from consilience.reporting.unfinished import state_of
    from consilience.reporting.words import one_line

    rows: list[dict[str, object]] = []
    if not journal_path().exists():
        print("[]" if as_json else "No session was recorded yet.")
        return
    with user_store() as store:
        known = store.sessions()
        for session in reversed(known[-most:]):
            with removal.unless_removed(store, session):
                course = fold(store.read(session))
                state = state_of(course, None if course.finished else store.holder(session))
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


sessions.command("rm")(removal.rm)
sessions.command("gc")(removal.gc)


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
    from consilience.cli.answer import answer

    with user_store() as store:
        answer(store, find_session(store, id), key, text, by=by, as_json=as_json)


def _row(session: str, course: Course, state: str, store: Store) -> dict[str, object]:
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
