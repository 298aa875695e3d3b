"""People who take part: asked on the terminal one question at a time, or answering when the process that asked is long gone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pydantic import BaseModel

from consilience.cli.display import Display
from consilience.cli.errors import print_json, say
from consilience.cli.inputs import read_text
from consilience.domain.errors import SettingsError, UnknownName
from consilience.engine.ports import AgentPort, AnswerDeferred, Person
from consilience.journal.store import Store
from consilience.models.parsing import Malformed, parse_reply, prose_field
from consilience.models.port import ModelRequest
from consilience.models.registry import is_person
from consilience.reporting.formatting import describe_place, printable
from consilience.reporting.questions import (
    Form,
    Node,
    Question,
    choices,
    match_choice,
    pending_questions,
    quotations_as_text,
)

LATER = "later"


def prompter_for(models: Iterable[str]) -> TerminalPrompter | None:
    """Where people among these models can be asked; None where nobody takes part or nobody sits at a terminal."""
    if any(is_person(name) for name in models) and sys.stdin.isatty() and sys.stderr.isatty():
        return TerminalPrompter(sys.stdin.fileno())
    return None


class TerminalPrompter:
    """Asks on standard error and reads lines of the terminal `fd`. Whoever leaves one question leaves all that are to come."""

    def __init__(self, fd: int) -> None:
        self.screen: Display | None = None
        self._fd = fd
        self._turn = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._typed = bytearray()
        self._line: asyncio.Future[str | None] | None = None
        self._left = False

    def seat(self, models: Mapping[str, str]) -> dict[str, str | AgentPort]:
        """The models by agent, people among them asked here."""
        return {id: Person(name, self.put) if is_person(name) else name for id, name in models.items()}

    def leave(self) -> bool:
        """Leave the question that is being asked, if one is; safe in a signal handler."""
        if self._loop is None or self._left:
            return False
        self._left = True
        self._loop.call_soon_threadsafe(self._interrupt)
        return True

    async def put(self, request: ModelRequest) -> str:
        """Ask, and give the answer as a model would. Raises `AnswerDeferred`."""
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
            return await self._words(f"Your answer, ended by a line with a single dot; {LATER} leaves it for later:")
        form = Form(request.schema, prose_field(request.returns))
        _print(f"{LATER} leaves it for later.")
        while True:
            text = json.dumps(await self._object(form, form.schema, ""), ensure_ascii=False)
            try:
                parse_reply(text, request.returns)
            except Malformed as wrong:
                _print(f"That cannot be used: {wrong}. Once more, please.")
            else:
                return text

    async def _object(self, form: Form, node: Node, at: str) -> dict[str, object]:
        found = {}
        optional = form.may_be_left_out(node)
        for name, inner in form.fields(node).items():
            long = name == form.prose and not at
            value = await self._value(form, inner, f"{at}{name}", long=long, optional=name in optional)
            if value is not None:
                found[name] = value
        return found

    async def _value(self, form: Form, node: Node, name: str, *, long: bool, optional: bool) -> object:
        """One field, asked for until it fits; None where it may be left out and is."""
        if long:
            return await self._words(f"{name}, ended by a line with a single dot:")
        if node.get("type") == "object":
            return await self._object(form, node, f"{name}.")
        if node.get("type") == "array":
            return await self._list(form, node, name)
        while True:
            typed = await self._type(f"{name} ({form.described(node)}{', or nothing' if optional else ''}):")
            if optional and not typed:
                return None
            value = _converted(typed, node)
            if not (wrong := form.wrong(value, node, name)):
                return value
            _print(f"{wrong[:1].upper()}{wrong[1:]}.")

    async def _list(self, form: Form, node: Node, name: str) -> list[object]:
        inner, most = form.items(node), node.get("maxItems")
        found: list[object] = []
        while not isinstance(most, int) or len(found) < most:
            if inner.get("type") == "object":
                if (await self._type(f"{name}: add one? (y, or nothing)")).casefold() not in ("y", "yes"):
                    break
                found.append(await self._object(form, inner, f"{name}."))
                continue
            typed = await self._type(f"{name} ({form.described(inner)}; nothing ends the list):")
            if not typed:
                break
            value = _converted(typed, inner)
            if wrong := form.wrong(value, inner, name):
                _print(f"{wrong[:1].upper()}{wrong[1:]}.")
            else:
                found.append(value)
        return found

    async def _words(self, prompt: str) -> str:
        """Lines up to a single dot or Ctrl-D; nothing at all is for later."""
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

    async def _type(self, prompt: str) -> str:
        _print(prompt)
        line = await self._next()
        if line is None or line.strip().casefold() == LATER:
            raise AnswerDeferred
        return line.strip()

    async def _next(self) -> str | None:
        """The next line; None at the end of input. Raises `AnswerDeferred` when interrupted."""
        if self._left:
            raise AnswerDeferred
        self._line = asyncio.get_running_loop().create_future()
        try:
            self._hand_over()
            return await self._line
        finally:
            self._line = None

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the terminal is gone
            data = b""
        self._typed += data or b"\x04"
        self._hand_over()

    def _hand_over(self) -> None:
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


def _converted(typed: str, node: Node) -> object:
    """What was typed as a value of that kind, as far as it can be one."""
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


def answer(store: Store, session: str, key: str, text: str | None, *, by: str, as_json: bool) -> None:
    """Record an answer, or without a text show what is asked. Raises `UserError`s for what cannot be an answer."""
    asked = {question.key: question for question in pending_questions(store.read(session), store.text, store.prompt)}
    if text is None:
        if key and key not in asked:
            raise _unknown_question(session, key, asked)
        _show_questions(session, [asked[key]] if key else list(asked.values()), as_json)
        return
    if key not in asked:
        raise _unknown_question(session, key, asked)
    given = read_text(text)
    if not given.strip():
        raise SettingsError(f"the answer to {key} is empty", do="Give words.")
    form = asked[key].form
    try:
        reply = form.read(given) if form else given.strip()
    except ValueError as wrong:
        raise SettingsError(
            f"that is no answer to {key}: {wrong}", do=f"What is asked: consilience sessions answer {session} {key}."
        ) from None
    store.answer(session, key, reply, by=by)
    waiting = [other for other, question in asked.items() if other != key and not question.answered]
    more = f"Still awaited: {', '.join(waiting)}. " if waiting else ""
    go_on = f"consilience resume {session}"
    if as_json:
        print_json(
            {"session": session, "key": key, "replaced": asked[key].answered, "awaited": waiting, "resume": go_on}
        )
        return
    instead = ", instead of the one that was there" if asked[key].answered else ""
    say(f"Recorded the answer to {key}{instead}. {more}Go on: {go_on}")


def _unknown_question(session: str, key: str, asked: dict[str, Question]) -> UnknownName:
    known = f"Awaited: {', '.join(asked)}." if asked else "Nothing is awaited."
    return UnknownName(f"no answer to {key!r} is awaited in session {session}", do=known)


def _show_questions(session: str, asked: list[Question], as_json: bool) -> None:
    if as_json:
        print_json([_question_json(question) for question in asked])
        return
    if not asked:
        print(f"Session {session} awaits no answer.")
    for question in asked:
        there = " (answered; it is heard when the session goes on)" if question.answered else ""
        print(f"=== {printable(question.key)}: {printable(question.agent)} is asked{there} ===\n\n{question.text}\n")
        if question.form:
            print(f"The answer is a JSON object. {question.form.words()}")
            if question.form.prose:
                print(f"Words alone are taken as {question.form.prose}.")
        if question.until is not None:
            due = datetime.fromtimestamp(question.until, UTC)
            print(f"Answer before {due:%Y-%m-%d %H:%M:%S} UTC; a session that goes on later does so without an answer.")
        print(f"Answer: consilience sessions answer {session} {question.key} TEXT\n")


def _question_json(question: Question) -> dict[str, object]:
    return {
        "key": question.key,
        "agent": question.agent,
        "attempt": question.attempt,
        "text": question.text,
        "schema": question.form.schema if question.form else None,
        "answered": question.answered,
        "until": question.until,
    }
