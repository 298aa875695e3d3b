"""People on the terminal: a seat's question is asked there, one at a time, and its answer typed field by field."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from consilience.cli.display import Display
from consilience.cli.errors import can_confirm
from consilience.engine.ports import AgentPort, AnswerDeferred, Person
from consilience.models.parsing import Malformed, parse_reply, prose_field
from consilience.models.port import ModelRequest
from consilience.models.registry import is_person
from consilience.reporting.formatting import describe_place
from consilience.reporting.questions import Form, SchemaNode, choices, match_choice, quotations_as_text

LATER = "later"


def prompter_for(models: Iterable[str]) -> TerminalPrompter | None:
    """Return a prompter if a person is among the models and there is a terminal, else None."""
    if any(is_person(name) for name in models) and can_confirm():
        return TerminalPrompter(sys.stdin.fileno())
    return None


class TerminalPrompter:
    """Asks on standard error and reads lines of the terminal `fd`. A question left for later leaves all further questions."""

    def __init__(self, fd: int) -> None:
        self.screen: Display | None = None
        self._fd = fd
        self._turn = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._typed = bytearray()
        self._line: asyncio.Future[str | None] | None = None
        self._left = False

    def seat(self, models: Mapping[str, str]) -> dict[str, str | AgentPort]:
        """Return the models by agent; people are asked here."""
        return {id: Person(name, self.put) if is_person(name) else name for id, name in models.items()}

    def leave(self) -> bool:
        """Leave the open question, if there is one, and return whether there was. Safe in a signal handler."""
        if self._loop is None or self._left:
            return False
        self._left = True
        self._loop.call_soon_threadsafe(self._interrupt)
        return True

    async def put(self, request: ModelRequest) -> str:
        """Ask, and return the answer in the form of a model's reply. Raises `AnswerDeferred`."""
        async with self._turn:
            if self._left:
                raise AnswerDeferred
            self._loop = asyncio.get_running_loop()
            if self.screen is not None:
                self.screen.aside(True)
            self._loop.add_reader(self._fd, self._read)
            try:
                return await self._ask(request)
            except AnswerDeferred:
                self._left = True
                _print("\nLeft for later.")
                raise
            finally:
                self._loop.remove_reader(self._fd)
                self._loop = None
                if self.screen is not None:
                    self.screen.aside(False)

    async def _ask(self, request: ModelRequest) -> str:
        _print(
            f"\n=== {request.agent} is asked: {describe_place(request.key)} ===\n\n{quotations_as_text(request.text)}\n"
        )
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
            except Malformed as wrong:
                _print(f"Invalid answer: {wrong}. Please try again.")
            else:
                return text

    async def _object(self, form: Form, node: SchemaNode, at: str) -> dict[str, object]:
        values = {}
        optional = form.may_be_left_out(node)
        for name, inner in form.fields(node).items():
            long = name == form.prose and not at
            value = await self._value(form, inner, f"{at}{name}", long=long, optional=name in optional)
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
        while True:
            typed = await self._type_line(f"{name} ({form.described(node)}{', or nothing' if optional else ''}):")
            if optional and not typed:
                return None
            value = _converted(typed, node)
            if not (wrong := form.wrong(value, node, name)):
                return value
            _print(f"{wrong[:1].upper()}{wrong[1:]}.")

    async def _list(self, form: Form, node: SchemaNode, name: str) -> list[object]:
        inner, limit = form.items(node), node.get("maxItems")
        values: list[object] = []
        while not isinstance(limit, int) or len(values) < limit:
            if inner.get("type") == "object":
                if (await self._type_line(f"{name}: add one? (y, or nothing)")).casefold() not in ("y", "yes"):
                    break
                values.append(await self._object(form, inner, f"{name}."))
                continue
            typed = await self._type_line(f"{name} ({form.described(inner)}; nothing ends the list):")
            if not typed:
                break
            value = _converted(typed, inner)
            if wrong := form.wrong(value, inner, name):
                _print(f"{wrong[:1].upper()}{wrong[1:]}.")
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
        line, end, rest = self._typed.partition(b"\n")
        if not end and not line.endswith(b"\x04"):
            return
        self._typed = rest
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
