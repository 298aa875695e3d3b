"""How every run is carried out on the command line: with its progress shown, people asked, and its report delivered."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import typer
from pydantic import BaseModel

from consilience.cli.delivering import TEXT_FORMATS, apply_conditions, exit_code, write_deliveries
from consilience.cli.display import Display, RunProgress, ticking
from consilience.cli.errors import (
    EXIT_OK,
    EXIT_WAITING,
    can_confirm,
    exit_code_of,
    notify,
    print_json,
    run_until_done,
)
from consilience.cli.options import DeliveryRequest
from consilience.cli.sessions import open_in_browser, read_back, write_page
from consilience.cli.setup import ensure_weights, loaded
from consilience.domain.errors import SessionWaiting, SettingsError
from consilience.domain.events import AnyEvent
from consilience.domain.report import Report
from consilience.domain.sections import Presentation
from consilience.domain.session_ids import new_session_id
from consilience.engine.ports import AgentPort, AnswerDeferred, Person
from consilience.engine.runner import Options
from consilience.journal.store import Store
from consilience.models.endpoints import Endpoints
from consilience.models.limiter import on_retry
from consilience.models.parsing import Malformed, parse_reply, prose_field
from consilience.models.port import ModelRequest
from consilience.models.registry import PersonName, parse
from consilience.planning import RunPlan
from consilience.reporting.export import report_data, report_files
from consilience.reporting.files import PAGE, write_files
from consilience.reporting.formatting import describe_place
from consilience.reporting.markdown import markdown, print_markdown
from consilience.reporting.partial_report import partial_json, replies_without_answer
from consilience.reporting.questions import Form, SchemaNode, choices, match_choice, quotations_as_text

R = TypeVar("R", bound=Report)
T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""How long a run without a terminal waits for an answer from outside before it parks."""
LATER = "later"
"""What a person types to leave a question."""


def run_on(
    screen: Display,
    work: Callable[[], Awaitable[T]],
    *,
    models: Sequence[str],
    leave: Callable[[], bool] = lambda: False,
) -> T:
    """Return the result of `work` with its progress on the screen and the local ones of `models` in memory."""

    async def main() -> T:
        on_retry.set(screen.warn)
        async with ticking(screen), loaded(models, screen.loading):
            return await work()

    return run_until_done(main(), tell=screen.tell, leave=leave)


def publish(
    value: Callable[[], object],
    text: Callable[[list[Path]], str],
    *,
    as_json: bool,
    write: Callable[[], list[Path]] = list,
    rendered: bool = True,
) -> tuple[list[Path], int]:
    """Write files, then print the result as JSON or Markdown; return the files and the exit code.

    A file that cannot be written is reported after the result, which is printed in any case. Markdown is not `rendered` on a
    terminal if it was asked for.
    """
    paths_written: list[Path] = []
    failure: SettingsError | None = None
    try:
        paths_written = write()
    except SettingsError as error:
        failure = error
    if as_json:
        print_json(value())
    elif rendered:
        print_markdown(text(paths_written))
    else:
        sys.stdout.write(text(paths_written))
    sys.stdout.flush()
    return paths_written, EXIT_OK if failure is None else exit_code_of(failure)


@dataclass(frozen=True)
class RunExecution:
    """How sessions run for one command: its options, the journal, local models to load and the terminal for people."""

    request: DeliveryRequest
    store: Store
    known: Endpoints
    """What is declared of endpoints, and which of them may have a key."""
    load: Sequence[str]
    """Models; the local ones are in memory while a session runs."""
    prompter: TerminalPrompter | None
    stored: bool = True
    """Whether the journal outlives the command."""

    @classmethod
    def open(
        cls, request: DeliveryRequest, store: Store, plan: RunPlan | None, known: Endpoints, *, stored: bool = True
    ) -> RunExecution:
        """Fetch missing weights. A finished session has no plan. Raises `UnavailableModel`, `UnknownName`."""
        load = plan.models if plan and plan.makes_calls else []
        ensure_weights(load, quiet=request.quiet)
        has_people = plan is not None and any(isinstance(parse(name).waiting, PersonName) for name in plan.models)
        prompter = TerminalPrompter(sys.stdin.fileno()) if has_people and can_confirm() else None
        return cls(request, store, known, load, prompter, stored)

    def seat(self, models: Mapping[str, str]) -> Mapping[str, str | AgentPort]:
        """Return the models by agent; people are asked on the terminal, if there is one."""
        return self.prompter.seat(models) if self.prompter else models

    def start(self, protocol: str, work: Callable[[Options, str], Awaitable[R]]) -> R:
        """Return the report of a new session, whose id `work` gets. Raises `typer.Exit` if there is none."""
        session = new_id(self.store)
        return self.watch(lambda options: work(options, session), session=session, title=f"{protocol} {session}")

    def watch(
        self,
        work: Callable[[Options], Awaitable[R]],
        *,
        session: str,
        title: str,
        recorded_events: Sequence[AnyEvent] = (),
    ) -> R:
        """Return the report of `work`, with its progress shown.

        An error is reported with the command that resumes the session, as JSON too if asked; then `typer.Exit` is raised.
        """
        progress = RunProgress(recorded_events, title=title, text=self.store.text)
        screen = Display(progress, quiet=self.request.quiet)
        if self.prompter is not None:
            self.prompter.screen = screen
            self.prompter.place = progress.state.place
        patience = None if self.prompter else PATIENCE_SECONDS
        options = replace(self.request.options(self.known), observer=screen.observe, patience=patience)
        leave = self.prompter.leave if self.prompter else lambda: False
        try:
            return run_on(screen, lambda: work(options), models=self.load, leave=leave)
        except (Exception, KeyboardInterrupt) as error:
            screen.close()
            waiting = isinstance(error, SessionWaiting)
            if isinstance(error, SessionWaiting):
                error.people = progress.state.people
            if isinstance(error, SessionWaiting) and not self.stored:
                notify(f"Waiting for {', '.join(error.awaited)}, and nothing is kept (--no-store): the run ends here.")
                code = EXIT_WAITING
            else:
                resumable = session if progress.state.started and self.stored else None
                as_json = self.request.json and not waiting
                code = exit_code_of(
                    error, session=resumable, options=self.request.repeated(self.known), as_json=as_json
                )
            if waiting and self.request.json:
                self._print_progress(session)
            raise typer.Exit(code) from error

    def _print_progress(self, session: str) -> None:
        """Print a parked session as JSON, as `show` does."""
        progress = partial_json(replace(read_back(self.store, session), holder=None))
        if not self.stored:
            del progress["resume"]
        print_json(progress)

    def deliver(self, report: Report, recorded: Presentation | None = None) -> int:
        """Write the files asked for, print the report, open its page if asked, and return the exit code.

        `recorded` is the presentation of a session that was finished before the command.
        """
        request = self.request
        for defect in report.defects:
            notify(f"Warning: {defect}")

        def write() -> list[Path]:
            session = report.session if self.stored else ""
            own = write_deliveries(report, request, session)
            if request.out is None:
                return [*own, *([write_page(read_back(self.store, report.session))] if request.open else [])]
            files = report_files(report, record=read_back(self.store, report.session), stored=self.stored)
            return [*own, *write_files(request.out, files, session=session)]

        replies = replies_without_answer(read_back(self.store, report.session)) if report.answer is None else ""
        format = request.output_format
        paths_written, code = publish(
            lambda: report_data(report, format),
            lambda files: markdown(report, recorded, heading=False, files=files, stored=self.stored, addition=replies),
            as_json=format not in TEXT_FORMATS,
            write=write,
            rendered=format == "text",
        )
        if code == EXIT_OK:
            if request.open:
                notify(open_in_browser(next(path for path in paths_written if path.name == PAGE)))
            code = exit_code(report)
        return apply_conditions(report, request, code)


def new_id(store: Store) -> str:
    """Return an unused session id."""
    used_ids = set(store.sessions())
    for _ in range(100):
        id = new_session_id(6)
        if id not in used_ids:
            return id
    raise SettingsError("no free session id was found", do="Remove old sessions.")


# --- people on the terminal


class TerminalPrompter:
    """Asks on standard error and reads lines of the terminal `fd`. A question left for later leaves all further questions."""

    def __init__(self, fd: int) -> None:
        self.screen: Display | None = None
        self.place: Callable[[str], str] = describe_place
        """Returns where a call stands, in words."""
        self._fd = fd
        self._turn = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._typed = bytearray()
        self._line: asyncio.Future[str | None] | None = None
        self._left = False

    def seat(self, models: Mapping[str, str]) -> dict[str, str | AgentPort]:
        """Return the models by agent; people are asked here."""
        people = {name: person for name in models.values() if isinstance(person := parse(name).waiting, PersonName)}
        ask = {name: partial(self.put, name=person.rest) for name, person in people.items()}
        return {id: Person(name, ask[name]) if name in ask else name for id, name in models.items()}

    def leave(self) -> bool:
        """Leave the open question, if there is one, and return whether there was. Safe in a signal handler."""
        if self._loop is None or self._left:
            return False
        self._left = True
        self._loop.call_soon_threadsafe(self._interrupt)
        return True

    async def put(self, request: ModelRequest, name: str = "") -> str:
        """Ask, and return the answer in the form of a model's reply. Raises `AnswerDeferred`."""
        async with self._turn:
            if self._left:
                raise AnswerDeferred
            self._loop = asyncio.get_running_loop()
            if self.screen is not None:
                self.screen.aside(True)
            self._loop.add_reader(self._fd, self._read)
            try:
                return await self._ask(request, name)
            except AnswerDeferred:
                self._left = True
                _print("\nLeft for later.")
                raise
            finally:
                self._loop.remove_reader(self._fd)
                self._loop = None
                if self.screen is not None:
                    self.screen.aside(False)

    async def _ask(self, request: ModelRequest, name: str) -> str:
        addressee = f"{name} ({request.agent})" if name else request.agent
        text = quotations_as_text(request.for_person or request.text)
        _print(f"\n=== {addressee} is asked: {self.place(request.key)} ===\n\n{text}\n")
        if request.schema is None or request.returns is None or not issubclass(request.returns, BaseModel):
            return await self._type_lines(
                f"Your answer; end it with a line that contains a single dot; {LATER} leaves it for later:"
            )
        form = Form(request.schema, prose_field(request.returns))
        _print(f"{LATER} leaves it for later.")
        while True:
            text = json.dumps(await self._object(form, form.schema, ""), ensure_ascii=False)
            try:
                parse_reply(text, request.returns)
            except Malformed as error:
                _print(f"Invalid answer: {error}. Please try again.")
            else:
                return text

    async def _object(self, form: Form, node: SchemaNode, prefix: str) -> dict[str, object]:
        values = {}
        optional = form.optional_fields(node)
        for name, inner in form.fields(node).items():
            long = name == form.prose and not prefix
            value = await self._value(form, inner, f"{prefix}{name}", long=long, optional=name in optional)
            if value is not None:
                values[name] = value
        return values

    async def _value(self, form: Form, node: SchemaNode, name: str, *, long: bool, optional: bool) -> object:
        """Return a field, asked for until it is valid; None if it is optional and left out."""
        if long:
            return await self._type_lines(f"{name}; end it with a line with a single dot:")
        if node.get("type") == "object":
            return await self._object(form, node, f"{name}.")
        if node.get("type") == "array":
            return await self._list(form, node, name)
        skip = ", or an empty line" if optional else ""
        while True:
            typed = await self._type_line(f"{name} ({form.describe_field(node)}{skip}):")
            if optional and not typed:
                return None
            value = _converted(typed, node)
            if not (error := form.find_error(value, node, name)):
                return value
            _print(f"{error[:1].upper()}{error[1:]}.")

    async def _list(self, form: Form, node: SchemaNode, name: str) -> list[object]:
        inner, limit = form.items(node), node.get("maxItems")
        values: list[object] = []
        while not isinstance(limit, int) or len(values) < limit:
            if inner.get("type") == "object":
                if (await self._type_line(f"{name}: add one? (y, or an empty line)")).casefold() not in ("y", "yes"):
                    break
                values.append(await self._object(form, inner, f"{name}."))
                continue
            typed = await self._type_line(f"{name} ({form.describe_field(inner)}; an empty line ends the list):")
            if not typed:
                break
            value = _converted(typed, inner)
            if error := form.find_error(value, inner, name):
                _print(f"{error[:1].upper()}{error[1:]}.")
            else:
                values.append(value)
        return values

    async def _type_lines(self, prompt: str) -> str:
        """Return the lines up to a single dot or Ctrl-D. Raises `AnswerDeferred` for an empty text."""
        _print(prompt)
        lines: list[str] = []
        while (line := await self._next()) is not None and line.strip() != ".":
            if not lines and line.strip().casefold() == LATER:
                raise AnswerDeferred
            lines.append(line)
        text = "\n".join(lines).strip()
        if not text:
            raise AnswerDeferred
        return text

    async def _type_line(self, prompt: str) -> str:
        _print(prompt)
        line = await self._next()
        if line is None or line.strip().casefold() == LATER:
            raise AnswerDeferred
        return line.strip()

    async def _next(self) -> str | None:
        """Return the next line; None at the end of input. Raises `AnswerDeferred` when interrupted."""
        if self._left:
            raise AnswerDeferred
        self._line = asyncio.get_running_loop().create_future()
        try:
            self._deliver_line()
            return await self._line
        finally:
            self._line = None

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the terminal is gone
            data = b""
        self._typed += data or b"\x04"
        self._deliver_line()

    def _deliver_line(self) -> None:
        if self._line is None or self._line.done() or not self._typed:
            return
        line, end, rest_typed = self._typed.partition(b"\n")
        if not end and not line.endswith(b"\x04"):
            return
        self._typed = rest_typed
        at_end = not end and line == b"\x04"
        self._line.set_result(None if at_end else line.rstrip(b"\x04").decode("utf-8", "replace").rstrip("\r"))

    def _interrupt(self) -> None:
        if self._line is not None and not self._line.done():
            self._line.set_exception(AnswerDeferred())


def _converted(typed: str, node: SchemaNode) -> object:
    """Return the typed text as a value of the field's type, if possible."""
    if options := choices(node):
        return match_choice(typed, options) or typed
    match node.get("type"):
        case "boolean":
            return {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(typed.casefold())
        case "integer" | "number":
            try:
                value = float(typed)
            except ValueError:
                return None
            return int(value) if value.is_integer() else value
    return typed


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
