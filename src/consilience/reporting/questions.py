"""Questions to a person or an outside process, as they read them, from a running session or from the journal.

The form of a typed reply is the JSON Schema that a model gets: objects, lists, choices, texts, numbers, true or false.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import (
    AnswerReceived,
    CallAwaited,
    CallCompleted,
    CallFailed,
    Event,
    MessagePublished,
    ReplyRejected,
    SessionStarted,
)
from consilience.domain.messages import numbered_lines
from consilience.domain.prompt_parts import PromptText, QuotedMessage, RelatedLines, ShownDocument, read_part
from consilience.domain.report import Report, find_report
from consilience.reporting.formatting import printable, reply_text

SchemaNode = Mapping[str, object]


class Form:
    """A JSON Schema of an object, and answers checked against it."""

    def __init__(self, schema: SchemaNode, prose: str = "") -> None:
        """`prose`: the field that plain text fills; "" for none."""
        self.schema = schema
        self.prose = prose
        definitions = schema.get("$defs")
        self._definitions: SchemaNode = definitions if isinstance(definitions, Mapping) else {}

    def fields(self, node: SchemaNode | None = None) -> dict[str, SchemaNode]:
        properties = _properties(self.resolved(self.schema if node is None else node))
        return {str(name): self.resolved(inner) for name, inner in properties.items()}

    def resolved(self, node: object) -> SchemaNode:
        """Return the schema behind references and `or null`."""
        if not isinstance(node, Mapping):
            return {}
        if "$ref" in node:
            return self.resolved(self._definitions.get(str(node["$ref"]).rpartition("/")[2]))
        inner = [n for n in _listed(node.get("anyOf")) if n != {"type": "null"}]
        return self.resolved(inner[0]) if len(inner) == 1 else node

    def is_nullable(self, node: object) -> bool:
        return isinstance(node, Mapping) and {"type": "null"} in _listed(node.get("anyOf"))

    def optional_fields(self, node: SchemaNode) -> set[str]:
        """Return the names of the fields of an object that may be null."""
        return {str(name) for name, inner in _properties(node).items() if self.is_nullable(inner)}

    def items(self, node: SchemaNode) -> SchemaNode:
        return self.resolved(node.get("items"))

    def describe(self, node: SchemaNode | None = None) -> str:
        """Return `points: list of [words], at most 3; text: words`."""
        return "; ".join(f"{name}: {self.describe_field(inner)}" for name, inner in self.fields(node).items())

    def describe_field(self, node: SchemaNode) -> str:
        if options := choices(node):
            return f"one of {', '.join(options)}"
        match node.get("type"):
            case "object":
                return f"{{{self.describe(node)}}}"
            case "array":
                limit = f", at most {node['maxItems']}" if "maxItems" in node else ""
                return f"list of [{self.describe_field(self.items(node))}]{limit}"
            case "boolean":
                return "true or false"
            case "integer" | "number":
                bounds = [f"{word} {node[name]}" for name, word in _BOUNDS.items() if name in node]
                return " ".join(["a number", *bounds])
        return "words"

    def find_error(self, value: object, node: SchemaNode | None = None, path: str = "") -> str:
        """Return an error message for a value; "" if it is valid."""
        node = self.resolved(self.schema if node is None else node)
        label = path or "the answer"
        if options := choices(node):
            return "" if value in options else f"{label} must be {self.describe_field(node)}"
        match node.get("type"):
            case "object":
                return self._find_object_error(value, node, path)
            case "array":
                if not isinstance(value, list):
                    return f"{label} must be a list"
                room = node.get("maxItems")
                if isinstance(room, int) and len(value) > room:
                    return f"{label} has {len(value)} items, but at most {room} are allowed; leave out the weakest"
                errors = (self.find_error(item, self.items(node), f"{label} {n}") for n, item in enumerate(value, 1))
                return next(filter(None, errors), "")
            case "boolean":
                return "" if isinstance(value, bool) else f"{label} must be true or false"
            case "integer" | "number":
                return "" if _fits(value, node) else f"{label} must be {self.describe_field(node)}"
        if not isinstance(value, str):
            return f"{label} must be a text"
        return "" if value.strip() else f"{label} must not be empty"

    def _find_object_error(self, value: object, node: SchemaNode, path: str) -> str:
        if not isinstance(value, dict):
            return f"{path or 'the answer'} must be an object with {self.describe(node)}"
        properties = _properties(node)
        if unknown := [name for name in value if name not in properties]:
            return f"{path} has no {unknown[0]}" if path else f"there is no field {unknown[0]}"
        for name, inner in properties.items():
            if name not in value or (value[name] is None and self.is_nullable(inner)):
                continue
            if error := self.find_error(value[name], self.resolved(inner), f"{path}.{name}" if path else name):
                return error
        return ""

    def reply_from(self, text: str) -> str:
        """Return typed text as a reply: JSON, or plain text if that suffices. Raises `ValueError` with the error message."""
        if not text.strip():
            raise ValueError("the answer is empty")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            if error := self.find_error(value):
                raise ValueError(error)
            return text
        if self.prose:
            return text
        fields = self.fields()
        if len(fields) == 1:
            ((name, node),) = fields.items()
            if (chosen := match_choice(text, choices(node))) is not None:
                return json.dumps({name: chosen}, ensure_ascii=False)
        raise ValueError(f"the answer must be a JSON object with {self.describe()}")


_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}


def choices(node: SchemaNode) -> list[str]:
    """Return the options of a field; empty if it is no choice."""
    return [str(option) for option in _listed(node.get("enum")) or ([node["const"]] if "const" in node else [])]


def match_choice(text: str, options: list[str]) -> str | None:
    """Return the option named by its text or by its number, from 1; None if there is none."""
    name = text.strip().strip("[].").casefold()
    named = [option for option in options if option.casefold() == name]
    if named:
        return named[0]
    return options[int(name) - 1] if name.isdecimal() and 0 < int(name) <= len(options) else None


def _fits(value: object, node: SchemaNode) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if not math.isfinite(value) or (node.get("type") == "integer" and value != int(value)):
        return False
    low, exclusive_low = node.get("minimum", value), node.get("exclusiveMinimum")
    high, exclusive_high = node.get("maximum", value), node.get("exclusiveMaximum")
    return (
        (not isinstance(low, int | float) or value >= low)
        and (not isinstance(high, int | float) or value <= high)
        and (not isinstance(exclusive_low, int | float) or value > exclusive_low)
        and (not isinstance(exclusive_high, int | float) or value < exclusive_high)
    )


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _properties(node: SchemaNode) -> SchemaNode:
    properties = node.get("properties")
    return properties if isinstance(properties, Mapping) else {}


# --- questions

_QUOTED = re.compile(r"<quote ([0-9a-f]+) from ([^\n>]*)>\n(.*?)\n</quote \1>", re.DOTALL)


@dataclass(frozen=True)
class Question:
    """A call that waits for an answer from outside."""

    key: str
    agent: str
    attempt: int
    text: str
    form: Form | None
    answered: bool
    """An answer is recorded and will be read when the session resumes."""
    until: float | None = None
    """The deadline for people in seconds since the epoch; None without one."""
    ticket: str = ""
    """Id of the ticket by which an outside agent is asked; "" for a person."""
    person: str = ""
    """The name of the person who is asked, if it is known."""

    @property
    def addressee(self) -> str:
        return f"{self.person} ({self.agent})" if self.person else self.agent


def pending_questions(
    events: Iterable[Event], text: Callable[[str], str], prompt: Callable[[str], tuple[str, ...]]
) -> list[Question]:
    """Return the calls that wait for an answer from outside, in the order in which they were asked."""
    open_calls: dict[str, CallAwaited] = {}
    answered_keys: set[str] = set()
    text_ids: dict[str, str] = {}
    started: SessionStarted | None = None
    for event in events:
        match event:
            case SessionStarted():
                started = event
            case CallAwaited():
                open_calls[event.key] = event
            case AnswerReceived():
                answered_keys.add(event.key)
            case CallCompleted() | CallFailed() | ReplyRejected():
                open_calls.pop(event.key, None)
                answered_keys.discard(event.key)
                if isinstance(event, CallCompleted):
                    text_ids[event.key] = event.text
            case MessagePublished():
                text_ids[event.id] = event.text
    questions = []
    people = {agent.id: agent.person for agent in started.agents} if started is not None else {}
    for event in open_calls.values():
        quoted = iter(event.quoted)
        parts = [_part(part, started, text_ids, quoted, text) for part in prompt(event.prompt)]
        words = "\n\n".join(filter(None, _for_person(parts, event, started)))
        form = Form(json.loads(text(event.form)), event.prose) if event.form else None
        seconds = started.human_deadline if started is not None else None
        until = event.asked_at + seconds if seconds is not None and not event.ticket else None
        is_answered = event.key in answered_keys
        person = people.get(event.agent, "")
        questions.append(
            Question(event.key, event.agent, event.attempt, words, form, is_answered, until, event.ticket, person)
        )
    return questions


def named_question(name: str, questions: Sequence[Question]) -> str:
    """Return the key of the only question with that key, to that agent or to the person of that name; else the name."""
    asked = [q.key for q in questions if q.key == name] or [
        q.key for q in questions if name.casefold() in (q.agent.casefold(), q.person.casefold()) and name
    ]
    return asked[0] if len(asked) == 1 else name


def open_question(session: str, name: str, questions: Sequence[Question]) -> Question:
    """Return the open question of a session that a name means, as in `named_question`. Raises `UnknownName`."""
    key = named_question(name, questions)
    if found := next((question for question in questions if question.key == key), None):
        return found
    choices = (
        f"Open questions: {', '.join(question.key for question in questions)}." if questions else "There are none."
    )
    raise UnknownName(f"session {session} has no open question {key!r}", do=choices)


def reply_to(question: Question, text: str) -> str:
    """Return a typed answer as it is posted. Raises `SettingsError` for one that the question does not allow."""
    try:
        return question.form.reply_from(text) if question.form else text.strip()
    except ValueError as wrong:
        raise SettingsError(f"invalid answer to {question.key}: {wrong}", where="text", do="Correct it.") from None


def short_name(question: Question, questions: Sequence[Question]) -> str:
    """Return the shortest name that means this question only: the person, the agent, or the key."""
    names = (name for name in (question.person, question.agent) if name and " " not in name)
    return next((name for name in names if named_question(name, questions) == question.key), question.key)


def question_json(question: Question) -> dict[str, object]:
    return {
        "key": question.key,
        "agent": question.agent,
        "person": question.person,
        "attempt": question.attempt,
        "text": question.text,
        "schema": question.form.schema if question.form else None,
        "answered": question.answered,
        "until": question.until,
        "ticket": question.ticket,
    }


def quotations_as_text(sent: str) -> str:
    """Return a prompt with its quotations indented for a person."""
    return printable(_QUOTED.sub(lambda match: quotation(match[2], match[3]), sent))


def quotation(label: str, text: str) -> str:
    return f"{label}:\n{textwrap.indent(text, '  | ', lambda line: True)}"


def _for_person(parts: Sequence[str], event: CallAwaited, started: SessionStarted | None) -> Sequence[str]:
    """Return the parts of a prompt without what is for models: its instructions, and the request if there is one for people."""
    report = find_report(started.protocol) if started else Report
    if event.ticket or not report.for_people:
        return parts
    request = len(parts) - (2 if event.attempt > 1 else 1)
    words = report.asked_of_people(event.key) or parts[request]
    return [report.for_people.get("", ""), *parts[1:request], words, *parts[request + 1 :]]


def _part(
    part: str,
    started: SessionStarted | None,
    text_ids: Mapping[str, str],
    quoted: Iterator[str],
    text: Callable[[str], str],
) -> str:
    """Return a part of a prompt for a person. `quoted` has the texts of its quotations, unless an earlier version recorded it."""
    match read_part(part):
        case QuotedMessage(label, message):
            words = next(quoted, None)
            return printable(quotation(label, reply_text(text(text_ids[message])) if words is None else text(words)))
        case ShownDocument() as document:
            return printable(quotation(f"document {document.reference}", _document_lines(document, started, text)))
        case RelatedLines(parts):
            shown = "\n".join(f"{part.reference}\n{_document_lines(part, started, text)}" for part in parts)
            return printable(quotation("related lines", shown))
        case PromptText(kind, id):
            return quotations_as_text(f"# Task\n{text(id)}" if kind == "k" else text(id))


def _document_lines(document: ShownDocument, started: SessionStarted | None, text: Callable[[str], str]) -> str:
    source = next((source for source in started.sources if source.id == document.id), None) if started else None
    return numbered_lines(text(source.text).splitlines(), source.name, document.lines) if source else ""
