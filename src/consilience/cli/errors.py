"""How a command ends: output streams, questions, exit codes, error reports and signals."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Container, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any, TextIO, TypeVar

import typer

from consilience.domain.errors import (
    ConsilienceError,
    PromptFailed,
    SessionBusy,
    SessionWaiting,
    SettingsError,
    UserError,
    option_of,
)
from consilience.domain.validation import InvalidValues
from consilience.reporting.formatting import describe_awaited, escape_json

T = TypeVar("T")


def option_spelling(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def with_options(error: InvalidValues, settings: Mapping[str, str], given: Container[str]) -> SettingsError:
    """Return the error with the options of the given settings that it names as its place."""
    options = [option_spelling(name) for name, field in settings.items() if field in given and field in error.names]
    advice = f"Change {'it' if len(options) == 1 else 'them'} and try again."
    return SettingsError(error.what, where=", ".join(options), do=advice) if options else error


def can_draw_over(stream: TextIO) -> bool:
    """Return whether lines can be redrawn: on a terminal, except a dumb one, where Rich prints nothing."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def print_json(value: object) -> None:
    """Print a value as indented JSON on standard output, not ASCII-escaped, without terminal control characters."""
    print(escape_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_result(value: object, text: str, *, as_json: bool) -> None:
    """Print a result as JSON, or as text without terminal control characters."""
    from consilience.reporting.formatting import printable

    if as_json:
        print_json(value)
    else:
        print(printable(text))


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
"""Invalid input, an unwritable path or a declined question."""
EXIT_NO_ANSWER = 3
EXIT_REQUIREMENT_NOT_MET = 4
"""The report is complete and the run did not stop for a reason in --require."""
EXIT_WAITING = 5
EXIT_SIGNAL = 128
"""Added to the number of the signal that ended the command, as shells do."""
EXIT_INTERRUPTED = EXIT_SIGNAL + 2
EXIT_BROKEN_PIPE = EXIT_SIGNAL + 13
"""The reader of standard output has left (SIGPIPE), or standard output is closed."""

STOPPING = "Stopping; Ctrl-C again ends it at once."
STOPPING_ON_SIGNAL = "Stopping; a second signal ends it at once."
_SHOW_CURSOR = "\x1b[?25h"
_END_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class StoppedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP ended the command: from `timeout`, a container, a service manager or a closed terminal."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of a full or broken standard output. Errors of named files carry their file name."""


@dataclass(frozen=True)
class Problem:
    """An error, printed on standard output in place of a report if --json was given.

    `where` and `do` are empty if unknown; `session` is a started session that can be resumed.
    """

    exit_code: int
    what: str
    where: str = ""
    do: str = ""
    session: str | None = None


class Declined(Exception):
    """The user declined a question; the message states what was not done."""


def confirm(question: str, *, otherwise: str) -> None:
    """Ask on the terminal. Raises `Declined(otherwise)` after a no, Ctrl-C or the end of input."""
    try:
        has_agreed = typer.confirm(question, default=False, err=True)
    except typer.Abort:
        has_agreed = False
    if not has_agreed:
        raise Declined(otherwise)


def can_confirm() -> bool:
    """Return whether a terminal is there to ask on."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def discard_output() -> None:
    """Send buffered standard output to the null device, so that the interpreter does not fail on it at exit."""
    with contextlib.suppress(OSError, ValueError):
        _redirect_to_null(sys.stdout.fileno())


def _redirect_to_null(fd: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    os.close(null)


def notify(text: str) -> None:
    """Print a paragraph on standard error, which takes everything but results; wrapped between words on a terminal."""
    from consilience.reporting.formatting import printable

    text = printable(text)  # it may quote a provider or a model
    if sys.stderr.isatty():
        import shutil
        import textwrap

        columns = shutil.get_terminal_size().columns
        text = textwrap.fill(text, max(columns, 20), break_long_words=False, break_on_hyphens=False)
    typer.echo(text, err=True)


def is_handled_by_typer(error: BaseException) -> bool:
    """Return whether the command-line library reports this exception itself: an exit or an invalid option."""
    if isinstance(error, typer.Exit | typer.Abort | EOFError):
        return True
    return hasattr(error, "exit_code") and hasattr(error, "format_message")


def add_usage_advice(error: Any) -> None:
    """Add to an error of the command-line library what to type instead, if its own words do not say it."""
    if is_handled_by_typer(error) and getattr(error, "ctx", None) and (advice := _usage_advice(error)):
        error.message = f"{error.message}. {advice}" if error.message else advice
        error.possibilities = None  # of an unknown option


def _usage_advice(error: Any) -> str:
    path = error.ctx.command_path
    takes_task = any(parameter.name == "task" for parameter in error.ctx.command.params)
    missing = error.param.get_error_hint().strip("'") if getattr(error, "param", None) and not error.message else ""
    if missing == "TASK":
        return f'Give the question or task: {path} "Should we …?"'
    if missing == "ID":
        return "Give the id of a session, or last for the newest: consilience sessions lists them."
    if "unexpected extra argument" in error.format_message() and takes_task:
        return f'Put the question in quotation marks: {path} "Should we …?"'
    if " " not in path and hasattr(error, "option_name") and not {*(error.possibilities or ())} - {"--help"}:
        return f'Options follow the question: {path} "Should we …?" {error.option_name} …'
    return ""


def exit_code_of(
    error: BaseException, *, session: str | None = None, options: Sequence[str] = (), as_json: bool = False
) -> int:
    """Report an error, with `as_json` on standard output too, and return its exit code.

    `session` is a started session that can be resumed, with these `options`.
    """
    if isinstance(error, SessionBusy | PromptFailed):
        session = None
    if isinstance(error, BrokenPipeError):
        discard_output()
        return EXIT_BROKEN_PIPE
    code, paragraph, _ = _described(error)
    if is_about_output(error):
        discard_output()
    elif code == EXIT_FAILED and not isinstance(error, ConsilienceError) and _is_debugging():
        import traceback

        typer.echo(_without_keys("".join(traceback.format_exception(error))), err=True)
    resume = shlex.join(["consilience", "resume", session, *options]) if session else ""
    hint = f" Recorded calls are kept; resume with: {resume}" if session else ""
    if isinstance(error, SessionWaiting):  # its message ends with how to resume it
        hint = f" {shlex.join(options)}" if session and options else ""
    if isinstance(error, Declined):  # it has not begun
        hint = ""
    notify(f"{_one_line(paragraph)}{hint}")
    if as_json and not is_about_output(error):
        print_error_json(error, code, session, resume)
    return code


def print_error_json(error: BaseException, code: int, session: str | None = None, resume: str = "") -> None:
    """Print the error as a `Problem`; `resume` is the command that resumes the session."""
    problem, place, do = _described(error)[2], "", ""
    if isinstance(error, UserError):
        place, do = error.place(option_of), error.advice()
    if resume:
        do = f"{do} Resume with: {resume}".strip()
    print_json(asdict(Problem(code, _one_line(problem), _one_line(place), _one_line(do), session)))


def is_about_output(error: BaseException) -> bool:
    """Return whether the error is that standard output cannot be written, so that nothing more can be printed there."""
    if not isinstance(error, OSError):
        return False
    return isinstance(error, BrokenPipeError) or (error.filename is None and error.errno in _OUTPUT_ERRORS)


def _describe_waiting(error: SessionWaiting) -> str:
    tickets = ", ".join(f"{key} by ticket {ticket}" for key, ticket in error.tickets.items())
    key = next((key for key in error.awaited if key not in error.tickets), error.awaited[0])
    return (
        f"Waiting: session {error.session} needs an answer to {describe_awaited(error.awaited, error.people)}. "
        f"It can be resumed at any time. {f'Outside agents answer {tickets}. ' if tickets else ''}"
        f"To see the questions: consilience sessions answer {error.session}. "
        f"To answer: consilience sessions answer {error.session} {key} TEXT (@FILE; - reads standard "
        f"input). Then: consilience resume {error.session}"
    )


def _described(error: BaseException) -> tuple[int, str, str]:
    """Return the exit code of an error, the paragraph that reports it, and what went wrong in a few words."""
    match error:
        case StoppedBySignal():
            return EXIT_SIGNAL + error.number, f"Stopped by {error}.", f"stopped by {error}"
        case KeyboardInterrupt():
            return EXIT_INTERRUPTED, "Interrupted.", "interrupted"
        case Declined():
            return EXIT_USAGE, str(error), str(error)
        case UserError():
            return EXIT_USAGE, f"Error: {error.paragraph(option_of)}", error.what
        case SessionWaiting():
            return EXIT_WAITING, _describe_waiting(error), str(error)
        case ConsilienceError():
            return EXIT_FAILED, f"Error: {error}", str(error)
        case OSError() if is_about_output(error):
            paragraph = (
                f"Error: the output cannot be written: {error.strerror}. Free some space, or write elsewhere. "
                "Recorded sessions are kept: consilience sessions list."
            )
            return EXIT_USAGE, paragraph, str(error)
        case _ if hasattr(error, "format_message"):
            return EXIT_USAGE, str(error), error.format_message()
    hint = "" if _is_debugging() else " Set CONSILIENCE_DEBUG=1 to see the traceback."
    kind = f"{type(error).__name__}: {error}"
    paragraph = f"Error: this is a defect in consilience, not a mistake of yours: {kind}.{hint}"
    return EXIT_FAILED, paragraph, f"a defect in consilience: {kind}"


def _is_debugging() -> bool:
    return os.environ.get("CONSILIENCE_DEBUG") == "1"


def _one_line(text: str) -> str:
    return " ".join(_without_keys(text).split())


def _without_keys(text: str) -> str:
    """Return the text without API keys: messages quote rejected input, which may be a key."""
    from consilience.models.redaction import scrub

    return scrub(text, [])


def run_until_done(
    work: Coroutine[Any, Any, T], *, tell: Callable[[str], None] = notify, leave: Callable[[], bool] = lambda: False
) -> T:
    """Return the coroutine's result.

    The first SIGINT, SIGTERM or SIGHUP cancels the coroutine, `tell` reports it, and after its cleanup `KeyboardInterrupt`
    (`StoppedBySignal` for the latter two) is raised. The second ends the process at once; the journal stays readable. A SIGINT for
    which `leave` returns True is not counted.
    """
    import asyncio

    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    gc.freeze()  # what was imported stays, and is not looked through again
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.set_default_executor(_DaemonExecutor())
        main = loop.create_task(work)
        stopped_by = 0
        terminals = [fd for fd in (1, 2) if os.isatty(fd)]

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal stopped_by
            if number == signal.SIGINT and not stopped_by and leave():
                return
            for fd in terminals:
                if not os.isatty(fd):  # the terminal is gone; writing to it would fail
                    _redirect_to_null(fd)
            if stopped_by:
                _end_at_once(number)
            stopped_by = number
            main.cancel()
            # also wakes the loop if it sleeps in a system call
            loop.call_soon_threadsafe(tell, STOPPING if number == signal.SIGINT else STOPPING_ON_SIGNAL)

        try:
            with _handle_signals(stop):
                return loop.run_until_complete(main)
        except asyncio.CancelledError:
            if stopped_by:
                raise (KeyboardInterrupt if stopped_by == signal.SIGINT else StoppedBySignal(stopped_by)) from None
            raise


@contextlib.contextmanager
def _handle_signals(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Pass signals that end a process to `stop`, except ignored ones (as under `nohup`), which stay ignored."""
    numbers = [getattr(signal, name) for name in _END_SIGNALS if hasattr(signal, name)]
    former_handlers = {
        number: signal.signal(number, stop)
        for number in numbers
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in former_handlers.items():
            signal.signal(number, handler)


class _DaemonExecutor(ThreadPoolExecutor):
    """Runs each function in a daemon thread, so that a hanging name lookup delays neither the report nor the exit."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


def _end_at_once(number: int) -> None:
    if children := sys.modules.get("consilience.models.child_process"):
        children.kill_all()
    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)
        sys.stderr.flush()
    os._exit(EXIT_SIGNAL + number)
