"""Commands on one recorded session, or two: show, resume, replay, export, diff."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.commands import EnvFile, Id, Json, new_app
from consilience.cli.display import TICK, Display, display, ended_line, other_line
from consilience.cli.errors import print_json, say
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import AnyEvent, CallCompleted, CallFailed, CallStarted, Ended, Event
from consilience.domain.report import Report
from consilience.journal.store import Store
from consilience.reporting.formatting import count, duration, one_line, reply_text, seat_labels
from consilience.reporting.session_state import SessionState, call_seconds, fold_events

if TYPE_CHECKING:
    from consilience.reporting.record import SessionRecord


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the report.")]


show, resume, replay, diff = new_app(), new_app(), new_app(), new_app()


@contextmanager
def user_store() -> Iterator[Store]:
    """The user's journal. Raises `UnknownName` where there is none yet, rather than making one to look into."""
    from consilience.domain.paths import check_home, journal_path
    from consilience.journal.open_store import open_store

    check_home()
    path = journal_path()
    if not path.exists():
        raise UnknownName(
            "no session was recorded yet", where=str(path), do='Begin one: consilience emergence "Should we …?"'
        )
    store = open_store(path)
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
    view: Annotated[
        str | None,
        typer.Option(
            help="One view instead of the report: tree, evolution, convergence, reads, or one of its protocol.",
            metavar="VIEW",
            show_default=False,
        ),
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="List its events, one a line, with their numbers.")] = False,
    as_json: Json = False,
) -> None:
    """What a session came to, or how far it got, and its family of forks; or one view of it."""
    if view is not None and events:
        raise SettingsError("--view and --events exclude each other", do="Give one of them.")
    with user_store() as store:
        session = find_session(store, id)
        if events:
            _print_events(store.read(session), as_json)
            return
        record = read_back(store, session)
        if view is not None:
            _print_view(view, record, as_json)
        elif as_json:
            from consilience.reporting.export import as_json as exported
            from consilience.reporting.formatting import escape_json

            print(escape_json(exported(record)), end="")
        else:
            _print_report(record)


def read_back(store: Store, session: str) -> SessionRecord:
    """A session to show; one recorded without sections gets them from its protocol's code, if that is installed."""
    from consilience.domain.report import present_with
    from consilience.engine.protocol import report_of
    from consilience.reporting.record import read_record

    present_with(report_of)
    return read_record(store, session)


def _print_view(name: str, record: SessionRecord, as_json: bool) -> None:
    from consilience.reporting.views import view_of

    view = view_of(name, record)
    data = view.fold(record)
    if as_json:
        print_json(view.plain(data))
    else:
        print(view.text(data, shutil.get_terminal_size((100, 24)).columns), end="")


def _print_report(record: SessionRecord) -> None:
    from consilience.reporting.markdown import markdown, print_markdown
    from consilience.reporting.partial_report import partial_markdown

    if record.report is not None:
        print_markdown(markdown(record.report, record.presentation, more=record.family))
        return
    found = partial_markdown(
        record.session, record.state, record.text, flights=list(record.flights), holder=record.holder
    )
    print_markdown(f"{found}\n{record.family}\n" if record.family else found)


def _print_events(recorded: Sequence[AnyEvent], as_json: bool) -> None:

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
    deadline: Annotated[
        float | None, typer.Option(help="Max seconds of one request to a model.", metavar="SECONDS", show_default=False)
    ] = None,
    pace: Annotated[
        float, typer.Option(help="Real seconds per virtual second for what is new; 0 does not wait.", metavar="SECONDS")
    ] = 0.0,
    env_file: EnvFile = None,
) -> None:
    """Go on where a session was left; nothing that is recorded is paid for again."""
    from consilience.cli.run import resume_session

    raise typer.Exit(
        resume_session(
            id, yes=yes, out=out, as_json=as_json, quiet=quiet, env_file=env_file, deadline=deadline, pace=pace
        )
    )


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

    from consilience.cli.signals import run_until_done
    from consilience.deliberation import Deliberation

    with user_store() as store:
        session = find_session(store, id)
        events = store.read(session)
        course = fold_events(events)
        if course.finished is None:
            raise SettingsError(
                f"session {session} is not finished, so there is nothing whole to replay",
                do=f"Go on with it first: consilience resume {session}.",
            )
        began = time.monotonic()
        report = run_until_done(Deliberation[Report](store=store).replay(session))
        seconds = time.monotonic() - began
        matched = sum(event.canonical for event in events)
        digest = report.digest()
        if speed is not None:
            play(events, title=f"{report.protocol} {session}, {speed:g} times as fast", speed=speed)
        if step:
            step_through(events, store)
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


@diff.command("diff")
def diff_command(
    a: Id,
    b: Annotated[str, typer.Argument(help="The other session.", metavar="ID", show_default=False)],
    as_json: Json = False,
) -> None:
    """What differs between two sessions: how they were set up, where they part, what they came to."""
    from consilience.reporting.markdown import print_markdown
    from consilience.reporting.session_diff import changes, changes_markdown, side

    with user_store() as store:
        first, second = (find_session(store, given) for given in (a, b))
        one, other = (side(session, store.read(session), store.text) for session in (first, second))
        found = changes(one, other, store.text)
        if as_json:
            print_json(found.as_json())
        else:
            print_markdown(changes_markdown(found))


_LONGEST = 400

Timed = tuple[float, Event]


def play(events: Sequence[AnyEvent], *, title: str, speed: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a run's events as they came, `speed` times as fast as then. Raises `SettingsError` for a speed that is none."""
    if not 0 < speed < float("inf"):
        raise SettingsError(f"a speed cannot be {speed}", where="--speed", do="Give a number above 0; 1 is as it was.")
    screen = display((), title=title, quiet=False)
    try:
        now = 0.0
        for at, event in timed(events):
            _wait(screen, max(0.0, at - now) / speed, sleep)
            now = max(now, at)
            screen.observe(event)
        screen.tick()
    finally:
        screen.close()


def timed(events: Iterable[AnyEvent]) -> list[Timed]:
    """Events by the second at which they were recorded, each call's start again where its duration says it was."""
    found: list[tuple[float, int, Event]] = []
    at = 0.0
    for n, event in enumerate(events):
        recorded = event.volatile.get("t")
        at = float(recorded) if isinstance(recorded, int | float) else at
        found.append((at, 2 * n + 1, event))
        if isinstance(event, Ended) and not event.inherited and not _unsent(event):
            started = CallStarted(
                **{name: getattr(event, name) for name in ("place", "key", "agent", "phase", "attempt")}
            )
            found.append((max(0.0, at - (call_seconds(event) or 0.0)), 2 * n, started))
    return [(at, event) for at, _, event in sorted(found, key=lambda row: row[:2])]


def step_through(events: Sequence[AnyEvent], store: Store, *, ask: Callable[[str], str] = input) -> None:
    """One event at a time: what happened, what was said, what it had been shown; Enter goes on, q stops."""
    if not sys.stdin.isatty() and ask is input:
        raise SettingsError(
            "stepping waits for a key, and there is no terminal",
            where="--step",
            do="Leave it out, or read them all: consilience show ID --events.",
        )
    course = fold_events(events)
    for n, event in enumerate(events, 1):
        print(f"{event.seq:>5}  {line_of(event, course)}")
        for line in _more(event, store):
            print(f"       {line}")
        if n < len(events) and _stops(ask(f"[{n} of {len(events)}] Enter: next, q: stop ")):
            return
    say(f"That was all of it: {count(len(events), 'event')}.")


def line_of(event: Event, course: SessionState) -> str:
    """An event of a session in one line."""
    if isinstance(event, Ended):
        line = ended_line(event, seat_labels(course.agents), course.repairs)
        return f"{line} (inherited)" if event.inherited else line
    return other_line(event, course) or event.type.replace("_", " ")


def _more(event: Event, store: Store) -> list[str]:
    if not isinstance(event, CallCompleted):
        return []
    quoted = [part.split(":", 2)[1:] for part in store.prompt(event.prompt) if part.startswith("q:")]
    read = ", ".join(f"{id} as {label}" for label, id in quoted) or "nobody's words"
    return [f"“{one_line(reply_text(store.text(event.text)), _LONGEST)}”", f"key {event.key}; had read: {read}"]


def listing(events: Sequence[AnyEvent]) -> list[str]:
    """All events, a line each: number, second, what it was, and the key by which a fork names it."""
    course = fold_events(events)
    lines = []
    for event in events:
        at = event.volatile.get("t")
        when = duration(float(at)) if isinstance(at, int | float) else ""
        key = getattr(event, "key", "")
        lines.append(f"{event.seq:>5}  {when:>9}  {line_of(event, course)}" + (f"  [{key}]" if key else ""))
    return lines


def _wait(screen: Display, seconds: float, sleep: Callable[[float], None]) -> None:
    while seconds > 0:
        sleep(min(TICK, seconds))
        screen.tick()
        seconds -= TICK


def _unsent(event: Ended) -> bool:
    return isinstance(event, CallFailed) and event.unsent


def _stops(answer: str) -> bool:
    return answer.strip().lower() in ("q", "quit")


export = new_app()


class Format(StrEnum):
    """`reporting.export` writes them under these names."""

    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    SVG = "svg"
    EVENTS = "events"


@export.command("export")
def export_command(
    id: Id,
    format: Annotated[
        Format | None,
        typer.Option(
            help="What to write; where it is not given, the file's name says it, else markdown.", show_default=False
        ),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(help="The view that the SVG shows.  [default: tree]", metavar="VIEW", show_default=False),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The file, written for you alone to read; - is standard output.", metavar="FILE")
    ] = Path("-"),
    as_json: Json = False,
) -> None:
    """Write a session as JSON, Markdown, one self-contained HTML page, an SVG of one view, or all events as JSON lines."""
    from consilience.reporting import export as exporting
    from consilience.reporting.files import write_file

    if as_json and format not in (None, Format.JSON):
        raise SettingsError(
            f"--json and --format {format.value} exclude each other", where="--json", do="Give one of them."
        )
    format = Format.JSON if as_json else format
    to_file = str(out) != "-"
    chosen = format.value if format else exporting.format_of(out) if to_file else Format.MARKDOWN.value
    if view is not None and chosen != Format.SVG:
        raise SettingsError(
            f"{chosen} does not show one view", where="--view", do="Leave it out, or ask for --format svg."
        )
    with user_store() as store:
        record = read_back(store, find_session(store, id))
        svg = chosen == Format.SVG
        body = exporting.as_svg(record, view or "tree") if svg else exporting.FORMATS[chosen](record)
    if to_file:
        elsewhere = "Name another place with --out."
        if not out.parent.is_dir():
            raise SettingsError(
                f"the report cannot be written: there is no directory {out.parent}", where=str(out), do=elsewhere
            )
        try:
            write_file(out, body)
        except SettingsError as error:
            raise SettingsError(error.what, where=error.where, do=elsewhere) from None
        typer.echo(f"Written: {out}", err=True)
    else:
        sys.stdout.write(body)
