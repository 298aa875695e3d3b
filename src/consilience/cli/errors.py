"""What is written where: JSON on standard output, paragraphs on standard error, and errors with their exit codes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Protocol

import typer

from consilience.domain.errors import ConsilienceError, SessionBusy, SessionWaiting, UserError
from consilience.reporting.formatting import escape_json


class Stream(Protocol):
    def isatty(self) -> bool: ...


def can_draw_over(stream: Stream) -> bool:
    """Whether what stands there can be drawn over: on a terminal, unless it is a dumb one, where Rich shows nothing at all."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def print_json(value: object) -> None:
    """Print a value as JSON for people and programs: indented, in its own letters, with nothing that steers a terminal."""
    print(escape_json(json.dumps(value, indent=2, ensure_ascii=False)))


DONE = 0
FAILED = 1
MISTAKE = 2
"""The user's, or their no to a question."""
NO_ANSWER = 3
WAITING = 5
CONDITION = 4
"""The report is there, and is not what was required."""
INTERRUPTED = 130
"""And a session, if there is one, can be gone on with."""
SIGNALLED = 128
"""Added to the number of the signal that ended a command, as shells do."""


UNREAD = SIGNALLED + 13
"""Whoever read the output left (SIGPIPE), or there is none: what was to be printed was not."""


class Stopped(KeyboardInterrupt):
    """Somebody other than Ctrl-C ended the command: `timeout`, a container, a service manager, a terminal that went away."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What standard output may say. Journal, weights and files say theirs with their names."""
_KEPT = "What was recorded is kept: consilience sessions list."


@dataclass(frozen=True)
class Problem:
    """What went wrong, on standard output where --json was given: one object in place of a report.

    `where` and `do` are empty where there is nothing to say; `session` is one that was begun and can be gone on with.
    """

    exit_code: int
    what: str
    where: str = ""
    do: str = ""
    session: str | None = None


class Declined(Exception):
    """A no to a question; what was left undone for it."""


def ask(question: str, *, otherwise: str) -> None:
    """Return after a yes. Raises `Declined`, with what was left undone, after a no, Ctrl-C or the end of input."""
    try:
        agreed = typer.confirm(question, default=False, err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise Declined(otherwise)


def let_go_of_output() -> None:
    """What standard output still holds goes nowhere, so that the interpreter does not fail on it at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def say(text: str) -> None:
    """A paragraph on standard error, where everything goes that is no result; broken between words on a terminal."""
    from consilience.reporting.formatting import printable

    text = printable(text)  # it may hold a provider's words, or a model's
    if sys.stderr.isatty():
        import shutil
        import textwrap

        columns = shutil.get_terminal_size().columns
        text = textwrap.fill(text, max(columns, 20), break_long_words=False, break_on_hyphens=False)
    typer.echo(text, err=True)


def is_own_affair(error: BaseException) -> bool:
    """Whether the command-line library deals with it: an exit, a wrong option."""
    if isinstance(error, typer.Exit | typer.Abort | EOFError):
        return True
    return hasattr(error, "exit_code") and hasattr(error, "format_message")


def exit_code_of(error: BaseException, *, session: str | None = None, as_json: bool = False) -> int:
    """Say what happened, `as_json` on standard output too, and return the exit code.

    `session` is one that was begun and can be gone on with.
    """
    code = _said(error, session)
    if as_json and not is_about_output(error):
        tell_as_json(error, code, session)
    return code


def tell_as_json(error: BaseException, code: int, session: str | None = None) -> None:
    """Print the `Problem`."""

    what, where, do = str(error), "", ""
    match error:
        case Stopped():
            what = f"stopped by {error}"
        case KeyboardInterrupt():
            what = "interrupted"
        case UserError():
            what, where, do = error.what, error.where, error.do
        case ConsilienceError() | Declined():
            pass
        case _ if hasattr(error, "format_message"):
            what = error.format_message()
        case _:
            what = f"a defect in consilience: {type(error).__name__}: {error}"
    if isinstance(error, SessionBusy):
        session = None
    if session:
        do = f"{do} Go on with: consilience resume {session}".strip()
    print_json(asdict(Problem(code, _one_line(what), _one_line(where), _one_line(do), session)))


def is_about_output(error: BaseException) -> bool:
    """Whether standard output takes no more, so that nothing can be said there."""
    if not isinstance(error, OSError):
        return False
    return isinstance(error, BrokenPipeError) or (error.filename is None and error.errno in _NO_ROOM)


def _said(error: BaseException, session: str | None) -> int:
    go_on = f" What is recorded is kept; go on with: consilience resume {session}" if session else ""
    match error:
        case Stopped():
            say(f"Stopped by {error}.{go_on}")
            return SIGNALLED + error.number
        case KeyboardInterrupt():
            say(f"Interrupted.{go_on}")
            return INTERRUPTED
        case Declined():
            say(str(error))
            return MISTAKE
        case SessionBusy():
            _error(str(error))
            return MISTAKE
        case UserError():
            _error(f"{error}{go_on}")
            return MISTAKE
        case SessionWaiting():
            say(
                f"Waiting: session {error.session} needs an answer to {', '.join(error.awaited)}. Nothing is lost. "
                f"What is asked: consilience sessions answer {error.session}. "
                f"To answer: consilience sessions answer {error.session} {error.awaited[0]} TEXT (@FILE; - reads standard "
                f"input). Then: consilience resume {error.session}"
            )
            return WAITING
        case ConsilienceError():
            _error(f"{error}{go_on}")
            return FAILED
        case BrokenPipeError():
            let_go_of_output()
            return UNREAD
        case OSError() if is_about_output(error):
            let_go_of_output()
            _error(
                f"the output cannot be written: {error.strerror}. Make room there, or write elsewhere. {_KEPT}{go_on}"
            )
            return MISTAKE
    debug = os.environ.get("CONSILIENCE_DEBUG") == "1"
    if debug:
        import traceback

        typer.echo(_clean("".join(traceback.format_exception(error))), err=True)
    hint = "" if debug else " Set CONSILIENCE_DEBUG=1 to see where."
    _error(f"this is a defect in consilience, not a mistake of yours: {type(error).__name__}: {error}.{hint}{go_on}")
    return FAILED


def _error(text: str) -> None:
    say(f"Error: {_one_line(text)}")


def _one_line(text: str) -> str:
    return " ".join(_clean(text).split())


def _clean(text: str) -> str:
    """Without keys: what is refused is quoted, and may have been one."""
    from consilience.models.redaction import scrub

    return scrub(text, [])
