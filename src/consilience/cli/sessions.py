"""Commands on recorded sessions: show, replay, diff, export."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from consilience.cli.errors import notify, print_json, print_result, run_until_done
from consilience.cli.event_lines import listing
from consilience.cli.options import Id, JsonOption, argument, new_app
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.paths import check_home, journal_path
from consilience.domain.report import Report
from consilience.journal.store import Store
from consilience.reporting.session_state import fold_events

if TYPE_CHECKING:
    from consilience.engine.sent_prompts import SentPrompt
    from consilience.reporting.record import SessionRecord

MAX_QUOTED_CHARS = 400
MAX_LISTED_MATCHES = 5
"""Sessions of an ambiguous title that an error lists."""
BROWSER_TIMEOUT_SECONDS = 5.0

show, replay, diff, export = new_app(), new_app(), new_app(), new_app()


@contextmanager
def user_store() -> Iterator[Store]:
    """The user's journal. Raises `UnknownName` if there is none yet."""
    from consilience.journal.open_store import open_store

    check_home()
    path = journal_path()
    if not path.exists():
        raise UnknownName(
            "no session is recorded yet", where=str(path), do='Start one: consilience emergence "Should we …?"'
        )
    with closing(open_store(path)) as store:
        yield store


def confirm_code(store: Store, session: str) -> None:
    """Ask before code is imported that another person's journal names."""
    from consilience.cli.settings import confirm_recorded_code

    if started := store.beginning(session):
        confirm_recorded_code(started, store)


def find_session(store: Store, name: str) -> str:
    """Return the session with this id, unique prefix of an id, or `last`, or the only one with these words in its question or
    name. Raises `UnknownName`."""
    session_ids = store.sessions()
    found = _match_id(session_ids, name) or _match_title(store, name)
    if found is None:
        raise _unknown(session_ids, name)
    return found


def find_sessions(store: Store, names: Iterable[str]) -> list[str]:
    """Return the sessions with these ids, or unique prefixes of them, each once. Raises `UnknownName`."""
    session_ids = store.sessions()
    known = set(session_ids)
    found = {name: name if name in known else _match_id(session_ids, name) for name in names}
    for name, id in found.items():
        if id is None:
            raise _unknown(session_ids, name)
    return list(dict.fromkeys(id for id in found.values() if id is not None))


def _match_id(session_ids: Sequence[str], name: str) -> str | None:
    if name in session_ids:
        return name
    if name == "last" and session_ids:
        return session_ids[-1]
    matches = [id for id in session_ids if name and id.startswith(name)]
    if len(matches) > 1:
        raise UnknownName(
            f"{name!r} is the beginning of several sessions", do=f"Give one of them: {', '.join(matches[:8])}."
        )
    return matches[0] if matches else None


def _match_title(store: Store, words: str) -> str | None:
    """Return the session with these words; of several the only one that has them as its name, that no comparison began, or that is
    more than the reading of a task before a run. Raises `UnknownName`."""
    from consilience.protocols.choose import Choose
    from consilience.sessions.search import search, titled

    found = search(store, words.split()) if words.strip() else []
    found = [entry for entry in found if entry.name.casefold() == words.casefold()] or found
    found = [entry for entry in found if not entry.comparison] or found
    found = [entry for entry in found if entry.protocol != Choose.name] or found
    if len(found) > 1:
        newest = "; ".join(titled(store, entry) for entry in found[: -MAX_LISTED_MATCHES - 1 : -1])
        raise UnknownName(
            f"{words!r} is in the question or name of {len(found)} sessions",
            do=f"Give the id of one: {newest}. To list all of them: consilience sessions list {shlex.quote(words)}",
        )
    if not found:
        return None
    notify(f"Session {titled(store, found[0])}")
    return found[0].session


def _unknown(session_ids: Sequence[str], name: str) -> UnknownName:
    recent = ", ".join(session_ids[:-6:-1])
    return UnknownName(
        f"there is no session {name!r}",
        do=f"The latest are: {recent} (last is the first of them); all of them: consilience sessions list."
        if recent
        else "None is recorded yet.",
    )


@show.command("show")
def _show(
    id: Id,
    view: Annotated[
        str | None,
        typer.Option(
            help="One view instead of the report: tree, evolution, convergence, reads, figures, or a view of the protocol.",
            metavar="VIEW",
        ),
    ] = None,
    events: Annotated[bool, typer.Option("--events", help="List the events with their numbers and keys.")] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="The prompt of a call as it was sent, and the reply; --events lists the keys.", metavar="KEY"
        ),
    ] = None,
    to_open: Annotated[bool, typer.Option("--open", help="Open the report in a browser instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a session's report or its progress, with the tree of its forks; or one view of it."""
    if (view is not None) + events + (prompt is not None) + to_open > 1:
        raise SettingsError("--view, --events, --prompt and --open exclude each other", do="Give one of them.")
    with user_store() as store:
        session = find_session(store, id)
        if events:
            recorded = store.read(session)
            rows = [{"seq": event.seq, **event.model_dump(mode="json")} for event in recorded] if as_json else []
            print_result(rows, "\n".join(listing(recorded)), as_json=as_json)
            return
        if prompt is not None:
            from consilience.deliberation import Deliberation

            confirm_code(store, session)
            sent = run_until_done(Deliberation[Report](store=store).sent_prompts(session, prompt))
            text = "\n\n".join(map(_prompt_text, sent))
            print_result([asdict(attempt) for attempt in sent], text, as_json=as_json)
            return
        record = read_back(store, session)
        if to_open:
            page = write_page(record)
            notify(open_in_browser(page))
            if as_json:
                print_json({"session": session, "page": str(page)})
        elif view is not None:
            _print_view(view, record, as_json)
        elif as_json:
            from consilience.reporting.export import as_json as exported
            from consilience.reporting.formatting import escape_json

            print(escape_json(exported(record)), end="")
        else:
            from consilience.reporting.export import as_markdown
            from consilience.reporting.markdown import print_markdown

            print_markdown(as_markdown(record))


def read_back(store: Store, session: str) -> SessionRecord:
    """Return a session to show. An old one without sections gets them from its protocol's code, if that is installed."""
    from consilience.reporting.record import read_record

    record = read_record(store, session)
    if record.unpresented:
        notify(f"Session {session}: {record.unpresented}")
    return record


def _prompt_text(prompt: SentPrompt) -> str:
    head = f"{prompt.key} to {prompt.agent} ({prompt.model}), attempt {prompt.attempt}"
    origin = f", in session {prompt.session}" + ("" if prompt.sent else ", not sent")
    parts = {"Instructions": prompt.system, "Prompt": prompt.user}
    if prompt.schema is not None:
        parts["JSON schema of the reply"] = json.dumps(prompt.schema, indent=2, ensure_ascii=False)
    if prompt.reply is not None:
        parts["Reply"] = prompt.reply
    return "\n\n".join([f"=== {head}{origin}", *(f"=== {name}\n\n{text}" for name, text in parts.items())])


def _print_view(name: str, record: SessionRecord, as_json: bool) -> None:
    from consilience.reporting.terminal import view_text
    from consilience.reporting.views import view_of

    view = view_of(name, record)
    if as_json:
        print_json(view.model_dump(mode="json"))
    else:
        print(view_text(view, shutil.get_terminal_size((100, 24)).columns), end="")


def write_page(record: SessionRecord) -> Path:
    """Write the page of a session into a new private directory; return its path."""
    from consilience.reporting.export import as_html
    from consilience.reporting.files import PAGE, write_files

    (page,) = write_files(Path(tempfile.mkdtemp(prefix="consilience-")), {PAGE: as_html(record)})
    return page


def open_in_browser(page: Path) -> str:
    """Open a page without waiting for the browser; return the outcome in words."""
    import webbrowser

    has_display = sys.platform in ("darwin", "win32") or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    )
    if not has_display:
        return f"There is no display to open the page on: {page}"
    results: list[bool] = []
    opener = threading.Thread(target=lambda: results.append(webbrowser.open(page.resolve().as_uri())), daemon=True)
    opener.start()
    opener.join(BROWSER_TIMEOUT_SECONDS)  # a browser in the foreground keeps the thread
    return f"Opened {page}" if results != [False] else f"No browser could open the page: {page}"


@replay.command("replay")
def _replay(
    id: Id,
    as_json: JsonOption = False,
) -> None:
    """Run a session again from its record, without network, and compare event by event."""
    from consilience.deliberation import Deliberation

    with user_store() as store:
        session = find_session(store, id)
        events = store.read(session)
        state = fold_events(events)
        if state.finished is None:
            raise SettingsError(
                f"session {session} is not finished and cannot be replayed",
                do=f"Resume it first: consilience resume {session}.",
            )
        confirm_code(store, session)
        began = time.monotonic()
        report = run_until_done(Deliberation[Report](store=store).replay(session))
        seconds = time.monotonic() - began
    result = {
        "session": session,
        "events_matched": sum(event.canonical for event in events),
        "calls": 0,
        "seconds": round(seconds, 3),
        "report_digest": report.digest(),
    }
    text = (
        f"Replayed {session}: {result['events_matched']:,} events matched, 0 calls, {seconds:.2f} s "
        f"(the run itself took {state.seconds:.1f} s). Same report: {report.digest()[:16]}…"
    )
    print_result(result, text, as_json=as_json)


@diff.command("diff")
def diff_command(
    a: Id,
    b: Annotated[str, argument("The other session.", "ID")],
    as_json: JsonOption = False,
) -> None:
    """Show what differs between two sessions: their set-up, where their replies diverge, their results."""
    from consilience.reporting.markdown import document_markdown, print_markdown
    from consilience.reporting.session_diff import SessionDiff, diff_document

    with user_store() as store:
        ids = [find_session(store, id) for id in (a, b)]
        found = SessionDiff(*(read_back(store, session) for session in ids))
        if as_json:
            print_json(found.as_json())
        else:
            print_markdown(document_markdown(diff_document(found)))


@export.command("export")
def export_command(
    id: Id,
    format: Annotated[
        Literal["json", "markdown", "html", "svg", "events"] | None,
        typer.Option(help="Output format. Default: by the file's name, else markdown."),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(
            help="One view instead of the session: its picture (svg, default: tree) or its text (markdown).",
            metavar="VIEW",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Output file, readable by you alone; - is standard output.", metavar="FILE")
    ] = Path("-"),
    as_json: JsonOption = False,
) -> None:
    """Write a session as JSON, Markdown, one self-contained HTML page, or events as JSON lines; or one view as SVG or Markdown."""
    from consilience.reporting import export as exporting
    from consilience.reporting.files import write_file

    if as_json and format not in (None, "json"):
        raise SettingsError(f"--json and --format {format} exclude each other", where="--json", do="Give one of them.")
    to_file = str(out) != "-"
    chosen = "json" if as_json else format or (exporting.format_of(out) if to_file else "markdown")
    if view is not None and chosen not in exporting.VIEW_FORMATS:
        raise SettingsError(
            f"the format {chosen} has no single view",
            field="view",
            do="Leave it out, or give --format svg or markdown.",
        )
    with user_store() as store:
        record = read_back(store, find_session(store, id))
        body = exporting.VIEW_FORMATS[chosen](view, record) if view is not None else exporting.FORMATS[chosen](record)
    if to_file:
        if not out.parent.is_dir():
            raise SettingsError(
                f"the file cannot be written: there is no directory {out.parent}",
                where=str(out),
                do="Name another file with --out.",
            )
        write_file(out, body)
        typer.echo(f"Written: {out}", err=True)
    else:
        sys.stdout.write(body)
