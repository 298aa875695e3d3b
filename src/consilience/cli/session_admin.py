"""The command `sessions`: list, remove, answer, cancel, comment."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.errors import can_confirm, confirm, notify, print_json, print_result
from consilience.cli.main import FIXED
from consilience.cli.options import Id, JsonOption, ListingGroup, argument, new_app
from consilience.cli.session_list import list_sessions, unless_removed
from consilience.cli.sessions import find_session, find_sessions, user_store
from consilience.domain.errors import JournalError, SessionBusy, SettingsError, SourceError, UnknownName
from consilience.domain.events import SessionFinished
from consilience.domain.report import Report
from consilience.journal.store import WITH_ANSWER
from consilience.reporting.formatting import count, one_line, printable
from consilience.reporting.session_state import fold_events, status_of
from consilience.sessions.rows import SessionRow, created_at
from consilience.sessions.search import MAX_TITLE_CHARS, age, local_time

if TYPE_CHECKING:
    from typer._click import Command, Context

    from consilience.journal.store import Store
    from consilience.reporting.forms import FilledForm
    from consilience.reporting.questions import Question

CANCEL_PATIENCE_SECONDS = 5.0
"""How long `sessions cancel` waits for the process that runs the session to end it."""
MAX_REMOVED_AT_ONCE = 100
"""Sessions per removal; each one holds a file open."""

SHARED = ("show", "resume", "replay", "fork", "tell", "diff", "export")
"""Commands of `sessions` that stand at the top level too."""


class SessionsGroup(ListingGroup):
    """The commands of `sessions`; the shared ones are imported when they are called."""

    def list_commands(self, ctx: Context) -> list[str]:
        return [*SHARED, *super().list_commands(ctx)]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name in SHARED:
            return FIXED[cmd_name]
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Search for words that neither name a command nor resemble one: `sessions book club`."""
        word = args[0] if args and not args[0].startswith("-") else ""
        if word and self.get_command(ctx, word) is None:
            if near := difflib.get_close_matches(word, self.list_commands(ctx), 1, 0.8):
                ctx.fail(f"No such command {word!r}. Did you mean {near[0]!r}? To search: sessions list {word}")
            args = ["list", *args]
        return super().parse_args(ctx, args)


sessions = new_app(SessionsGroup)


@sessions.callback()
def _sessions() -> None:
    """Sessions recorded on this machine. The default command is list."""


sessions.command("list")(list_sessions)


@sessions.command("name")
def _name(
    id: Id,
    name: Annotated[str, argument('The name; "" takes it away.', "NAME")],
    as_json: JsonOption = False,
) -> None:
    """Name a session, so that show finds it."""
    with user_store() as store:
        session = find_session(store, id)
        store.rename(session, name)
        print_result({"session": session, "name": name}, f"Session {session} is named {name!r}.", as_json=as_json)


@sessions.command("rm")
def rm(
    ids: Annotated[list[str], argument("Session ids, unique prefixes of them, or `last`.", "ID")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove sessions for good.

    Their events are removed, and texts that no other session uses; the space is given back. Nothing is removed while one of
    them is running. Files written with --out are kept.
    """
    with user_store() as store:
        rows = [_removal_row(store, session) for session in find_sessions(store, ids)]
        _confirm_removal(rows, yes=yes)
        store.admin.remove([row.session for row in rows])
        freed = store.admin.compact()
    _print_removed(rows, freed, as_json=as_json)


@sessions.command("gc")
def gc(
    older_than: Annotated[
        str | None, typer.Option(help="Min age since the start of the session: 45m, 12h, 30d, 4w.", metavar="AGE")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include unfinished sessions: interrupted, or waiting for an answer.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed without removing it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old finished sessions and free their space.

    Sessions that can be resumed are kept unless --all is given. Running sessions are always kept. Without --older-than the
    journal is compacted and nothing is removed.
    """
    seconds = None if older_than is None else age(older_than)
    with user_store() as store:
        rows = [] if seconds is None else _old(store, seconds, everything=everything)
        sessions = [row.session for row in rows]
        if dry_run:
            _print_preview(rows, store.admin.weight(sessions), as_json=as_json)
            return
        if rows:
            _confirm_removal(rows, yes=yes)
            batches = range(0, len(sessions), MAX_REMOVED_AT_ONCE)
            removed_ids = [id for n in batches for id in _remove(store, sessions[n : n + MAX_REMOVED_AT_ONCE])]
            rows = [row for row in rows if row.session in removed_ids]
        freed = store.admin.compact()
    _print_removed(rows, freed, as_json=as_json)


def _remove(store: Store, sessions: list[str]) -> list[str]:
    """Remove sessions that still exist and are not running; return their ids."""
    try:
        store.admin.remove(sessions)
    except (UnknownName, SessionBusy):
        if len(sessions) == 1:
            return []
        return [id for session in sessions for id in _remove(store, [session])]
    return sessions


def _old(store: Store, seconds: float, *, everything: bool) -> list[SessionRow]:
    """Return sessions of at least this age, oldest first. A clock that was set back makes a session younger, never older."""
    states = ("finished", "waiting", "unfinished") if everything else ("finished",)
    rows = []
    for session in store.sessions():
        with unless_removed(store, session):
            if time.time() - store.created(session) >= seconds:
                rows.append(_removal_row(store, session, whole=everything))
    for row in rows:
        if row.state == "unreadable":
            notify(f"{row.session} cannot be read and is kept; to remove it: consilience sessions rm {row.session}")
    return [row for row in rows if row.state in states]


def _removal_row(store: Store, session: str, *, whole: bool = True) -> SessionRow:
    """Return the fields that `_line` prints. Of a finished session two events and the task are read, of others all events, unless
    it suffices that they are not finished (`whole`)."""
    created, state, task = created_at(store.created(session)), "finished", None
    try:
        started = store.beginning(session)
        if not isinstance(store.ending(session), SessionFinished):
            state = status_of(fold_events(store.read(session)), store.holder(session)) if whole else "unfinished"
        task = store.text(started.task) if started else None
    except JournalError:
        if session not in store.sessions():
            raise
        state = "unreadable"
    return SessionRow(session=session, created=created, state=state, task=task)


def _confirm_removal(rows: Sequence[SessionRow], *, yes: bool) -> None:
    """Return if the user agrees to remove them. Raises `SettingsError` without a terminal, `Declined` after a no."""
    if yes:
        return
    if not can_confirm():
        raise SettingsError(
            f"this would remove {count(len(rows), 'session')} for good and there is no terminal to confirm it",
            do="Give --yes to agree.",
        )
    for row in rows:
        notify(_line(row))
    confirm(f"Remove {count(len(rows), 'session')} for good?", otherwise="Nothing was removed.")


def _print_preview(rows: Sequence[SessionRow], size: int, *, as_json: bool) -> None:
    lines = [*map(_line, rows), f"{count(len(rows), 'session')} would be removed, {_size(size)}. Nothing was."]
    rows_as_json = [{"session": r.session, "created": r.created, "state": r.state, "task": r.task or ""} for r in rows]
    print_result({"would_remove": rows_as_json, "bytes": size}, "\n".join(lines), as_json=as_json)


def _print_removed(rows: Sequence[SessionRow], freed: int, *, as_json: bool) -> None:
    removed_ids = [row.session for row in rows]
    names = f" ({', '.join(removed_ids)})" if removed_ids else ""
    text = f"{count(len(rows), 'session')} removed{names}; {_size(freed)} given back."
    print_result({"removed": removed_ids, "bytes_freed": freed}, text, as_json=as_json)


def _line(row: SessionRow) -> str:
    moment = local_time(datetime.fromisoformat(row.created).timestamp())
    return f"{row.session:<10} {moment} {row.state:<10} {one_line(row.task or '', MAX_TITLE_CHARS)}".rstrip()


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


@sessions.command("cancel")
def _cancel(
    id: Id,
    answer: Annotated[bool, typer.Option("--answer", help="Let the closing call be made, for an answer.")] = False,
    by: Annotated[str, typer.Option(help="Name of the person who cancels, recorded.", metavar="NAME")] = "",
    as_json: JsonOption = False,
) -> None:
    """End a session with a report, also while another process runs it. Calls in flight are ended and listed."""
    with user_store() as store:
        cancel_session(store, find_sessions(store, [id])[0], answer=answer, by=by, as_json=as_json)


def cancel_session(store: Store, session: str, *, answer: bool, by: str, as_json: bool) -> None:
    """Cancel a session. One that no process runs is ended here, unless its closing call is to be made."""
    from consilience.deliberation import Deliberation

    store.post(session, "cancel", text=WITH_ANSWER if answer else "", by=by)
    holder = store.holder(session)
    if holder is None and not answer:
        Deliberation[Report](store=store).resume_sync(session)
    until = time.monotonic() + CANCEL_PATIENCE_SECONDS
    while holder and not isinstance(store.ending(session), SessionFinished) and time.monotonic() < until:
        time.sleep(0.1)
    ended = isinstance(store.ending(session), SessionFinished)
    if ended:
        text = f"Session {session} has ended. Its report: consilience show {session}"
    elif holder:
        text = f"Session {session} is told to end; {holder} has not ended it yet. To see how it stands: consilience show {session}"
    else:
        text = f"Session {session} makes its closing call when it is resumed: consilience resume {session}"
    print_result({"session": session, "ended": ended}, text, as_json=as_json)


@sessions.command("comment")
def _comment(
    id: Id,
    text: Annotated[str, argument("The comment; @FILE reads a file, - standard input.", "TEXT")],
    by: Annotated[str, typer.Option(help="Name of the person who comments, recorded.", metavar="NAME")] = "",
) -> None:
    """Put a comment on the record of a session that is not finished. `show` has it; no agent reads it."""
    with user_store() as store:
        comment_on_session(store, find_session(store, id), text, by=by)


def comment_on_session(store: Store, session: str, text: str, *, by: str) -> None:
    """Post a comment. Raises `SettingsError` if it is empty or the session is finished."""
    from consilience.cli.inputs import read_text

    words = read_text(text, "the comment").strip()
    if not words:
        raise SettingsError("the comment is empty", do="Give a text.")
    store.post(session, "comment", text=words, by=by)
    notify(f"The comment is on the record. To read it: consilience show {session}")


@sessions.command("answer")
def _answer(
    id: Id,
    key: Annotated[str, argument("The question to answer; without it all open questions are shown.", "KEY")] = "",
    text: Annotated[
        str | None, argument("Text, or JSON for a typed answer; @FILE reads a file, - standard input.", "TEXT")
    ] = None,
    by: Annotated[str, typer.Option(help="Name of the person who answers, recorded.", metavar="NAME")] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the open questions as forms to be mailed, Markdown and HTML, into DIR.", metavar="DIR"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer an open question of a session, or show its open questions. A session asks persons and outside processes.

    A form that was filled in is read with @FILE, also in place of KEY.
    """
    with user_store() as store:
        session = find_session(store, id)
        if out is not None:
            write_forms(store, session, key, out, as_json=as_json)
        else:
            answer_question(store, session, key, text, by=by, as_json=as_json)


def write_forms(store: Store, session: str, key: str, directory: Path, *, as_json: bool) -> None:
    """Write each open question, or one, as two files. Raises `UnknownName`, `SourceError`."""
    from consilience.reporting.forms import file_name, html_form, markdown_form

    questions = [question for question in _open_questions(store, session, key).values() if not question.answered]
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for question in questions:
            for ending, form in (("md", markdown_form), ("html", html_form)):
                path = directory / f"{file_name(question)}.{ending}"
                path.write_text(form(session, question), encoding="utf-8")
                paths.append(str(path))
    except OSError as error:
        raise SourceError(
            f"the forms cannot be written: {error.strerror or error}",
            where=str(directory),
            do="Name another directory.",
        ) from None
    text = "\n".join((*paths, f"To read one that was filled in: consilience sessions answer {session} @FILE"))
    print_result(paths, text if paths else f"Session {session} has no open question.", as_json=as_json)


def _open_questions(store: Store, session: str, key: str) -> dict[str, Question]:
    """Return the open questions by key, or the one that `key` names. Raises `UnknownName`."""
    import consilience.engine.protocol  # noqa: F401  finds what the protocol asks of people
    from consilience.reporting.questions import open_question, pending_questions

    asked = pending_questions(store.read(session), store.text, store.prompt)
    return {question.key: question for question in ([open_question(session, key, asked)] if key else asked)}


def answer_question(store: Store, session: str, key: str, text: str | None, *, by: str, as_json: bool) -> None:
    """Record an answer; without a text show the open questions. Raises `UserError` for an invalid answer."""
    from consilience.cli.inputs import read_text
    from consilience.reporting.forms import read_form

    if key.startswith("@") and text is None:
        key, text = "", key
    answer = "" if text is None else read_text(text)
    if text is not None and not key:
        filled = read_form(answer)
        if filled is None:
            raise SettingsError(
                "it is not a form of a question",
                where=text,
                do=f"Name the question: sessions answer {session} KEY {text}",
            )
        _check_session(filled, session, text)
        key = filled.key
    asked = _open_questions(store, session, key)
    if text is None:
        _show_questions(session, list(asked.values()), as_json)
        return
    (key,) = asked
    filled = read_form(answer, asked[key])
    if filled is not None:
        _check_session(filled, session, text)
        answer = filled.text
    if not answer.strip():
        raise SettingsError(f"the answer to {key} is empty", do="Give a text.")
    form = asked[key].form
    try:
        reply = form.reply_from(answer) if form else answer.strip()
    except ValueError as wrong:
        raise SettingsError(
            f"invalid answer to {key}: {wrong}", do=f"The question: consilience sessions answer {session} {key}."
        ) from None
    store.post(session, "answer", key, reply, by=by)
    others = _open_questions(store, session, "")
    waiting = [open_key for open_key, question in others.items() if open_key != key and not question.answered]
    rest_note = f"Still open: {', '.join(waiting)}. " if waiting else ""
    running = store.holder(session) is not None
    resume = f"consilience resume {session}"
    if as_json:
        print_json(
            {"session": session, "key": key, "replaced": asked[key].answered, "awaited": waiting, "resume": resume}
        )
        return
    replacing = ", replacing the earlier one" if asked[key].answered else ""
    again = "(give --require and the like again)"
    after = "" if running else f" Resume: {resume} {again}"
    notify(f"{'Posted' if running else 'Recorded'} the answer to {key}{replacing}. {rest_note}".rstrip() + after)


def _check_session(filled: FilledForm, session: str, where: str) -> None:
    if filled.session != session:
        raise SettingsError(
            f"the form is of session {filled.session}, not of {session}",
            where=where,
            do="Give the form of this session.",
        )


def _show_questions(session: str, questions: list[Question], as_json: bool) -> None:
    from consilience.reporting.questions import question_json, short_name

    if as_json or not questions:
        rows = [question_json(question) for question in questions]
        print_result(rows, f"Session {session} has no open question.", as_json=as_json)
        return
    for question in questions:
        note = " (answered; delivered when the session is resumed)" if question.answered else ""
        print(f"=== {printable(question.key)}: {printable(question.addressee)} is asked{note} ===\n\n{question.text}\n")
        if question.form:
            print(f"The answer is a JSON object. {question.form.describe()}")
            if question.form.prose:
                print("Or simply write your answer as text.")
        if question.ticket:
            print(f"An outside agent is asked by ticket {question.ticket}; an answer given here withdraws the ticket.")
        if question.until is not None:
            until = datetime.fromtimestamp(question.until, UTC)
            print(f"Answer before {until:%Y-%m-%d %H:%M:%S} UTC; a session resumed later continues without an answer.")
        print(f"Answer: consilience sessions answer {session} {short_name(question, questions)} TEXT\n")
