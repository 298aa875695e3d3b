"""Questions as files that can be mailed: a form in Markdown and one as an HTML page, which are filled in and read back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from consilience.domain.errors import SourceError
from consilience.reporting.questions import Form, Question, SchemaNode, choices, match_choice

ANSWER = "Your answer"
"""The heading of an answer that is plain text."""
ControlKind = Literal["choice", "number", "line", "lines", "items"]
MAX_ROOM = 12
"""Max items of a list that has a place for each in a form; a longer list is written into one field."""
CHECKED_LATER = (
    "This is checked when you send it; if something is wrong, you get it back as you wrote it, with what to change."
)
"""Of such a field, which no browser can check while it is filled in."""
MAX_PLACE_DIGITS = 4
"""Digits of the number of such a place in the name of a field."""
FEW_ITEMS = 3
"""Places of a list that are open in a form; the others are folded."""
_MARK = re.compile(r"<!-- consilience form (\{.*?\}) -->")
_HOW = "Write below each heading and send this file back. The line below a heading says what is asked for."
_MADE_BY_US = (_HOW, '<script type="application/json" id="facts">')
"""What a form has, also one whose mark an editor has changed."""
_HEADING = re.compile(r"\\?(?:#+|\*\*|__)[\s*_]*(.+?)[\s*_:#]*")
"""A heading, also as editors rewrite it."""
_ITEM = re.compile(r"^\s*[-*] ?", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class FormControl:
    """A field of a form. A browser checks the bounds while the field is filled in."""

    name: str
    kind: ControlKind
    explanation: str = ""
    """What the field may hold, in a sentence."""
    options: Sequence[str] = ()
    """Of a choice."""
    required: bool = False
    """Whether it must not be left empty."""
    minimum: float | None = None
    maximum: float | None = None
    is_whole: bool = False
    """Of a number: an integer."""
    max_chars: int | None = None
    is_checked_later: bool = False
    """No browser can check it while it is filled in; the page of a server has it checked there."""
    room: int = 0
    """Of a list: how many items it may have. Item 2 of `points` is the field `points.2`, or the fields `points.2.NAME`."""
    parts: Sequence[FormControl] = ()
    """Of a list of objects: the fields of an item."""

    @property
    def few(self) -> int:
        """How many places of a list are open."""
        return FEW_ITEMS

    def holds_more(self, given: Mapping[str, str]) -> bool:
        """Whether one of the folded places of a list is filled."""
        return any(
            words.strip() for n in range(FEW_ITEMS + 1, self.room + 1) for words in _at(given, f"{self.name}.{n}")
        )


@dataclass(frozen=True)
class FilledForm:
    """An answer that was read from a form."""

    session: str
    key: str
    text: str
    """As it is posted: JSON for a typed answer."""


def file_name(question: Question) -> str:
    """Return the name of a question's form, without its ending."""
    words = re.sub(r"\W+", "-", f"{question.person or question.agent}-{question.key}")
    return words.strip("-")[:100]


def markdown_form(session: str, question: Question) -> str:
    lines = [f"# A question to {question.addressee}", "", question.text, "", "---", "", _mark(session, question), ""]
    lines += [_HOW, ""]
    for name, explanation in _fields(question):
        lines += [f"## {name}", f"> {explanation}", "", ""]
    return "\n".join(lines)


def html_form(session: str, question: Question) -> str:
    """Return a page that loads nothing: its fields, and a button that saves the answer as a file to send back."""
    from markupsafe import Markup

    from consilience.reporting.page_parts import render

    facts = {"session": session, "key": question.key, "plain": question.form is None}
    data = json.dumps(facts, ensure_ascii=False).replace("<", "\\u003c")
    return render(
        "form.html.j2", question=question, controls=controls(question), name=file_name(question), data=Markup(data)
    )


def controls(question: Question) -> list[FormControl]:
    """Return the fields of a question. No option of a choice is chosen beforehand."""
    form = _form_of(question)
    return [_control(form, name, node) for name, node in form.fields().items()]


def mistakes(question: Question, given: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with the fields of an answer, by name; empty if it can be posted."""
    form = _form_of(question)
    optional, found = form.optional_fields(form.schema), dict[str, str]()
    for name, node in form.fields().items():
        entered = any(words.strip() for words in _at(given, name))
        if (entered or name not in optional) and (
            error := form.find_error(_entered(form, name, node, given), node, name)
        ):
            found[name] = f"{error[:1].upper()}{error[1:]}."
    return found


def _at(given: Mapping[str, str], name: str) -> list[str]:
    """Return what was written into a field, or into the places of a list."""
    return [words for field, words in given.items() if field == name or field.startswith(f"{name}.")]


def _entered(form: Form, name: str, node: SchemaNode, given: Mapping[str, str]) -> object:
    """Return the value that was written into a field, or into the places of a list, of which empty ones are left out."""
    places = {
        int(n)
        for field in given
        if field.startswith(f"{name}.") and (n := field.split(".")[1]).isdecimal() and len(n) <= MAX_PLACE_DIGITS
    }
    if node.get("type") != "array" or not places:
        return _value(form, node, given.get(name, "").strip())
    inner = form.items(node)
    named = [f"{name}.{n}" for n in sorted(places)]
    filled = [place for place in named if any(words.strip() for words in _at(given, place))]
    if inner.get("type") != "object":
        return [_value(form, inner, given.get(place, "").strip()) for place in filled]
    optional = form.optional_fields(inner)
    return [
        {
            part: _value(form, of, words)
            for part, of in form.fields(inner).items()
            if (words := given.get(f"{place}.{part}", "").strip()) or part not in optional
        }
        for place in filled
    ]


def _form_of(question: Question) -> Form:
    return question.form or Form({"properties": {ANSWER: {"type": "string"}}}, ANSWER)


def _control(form: Form, name: str, node: SchemaNode) -> FormControl:
    required = name not in form.optional_fields(form.schema) and node.get("type") != "array"
    control = FormControl(name=name, kind="lines", explanation=_explanation(form, name, node), required=required)
    kind = node.get("type")
    if options := choices(node) or (["true", "false"] if kind == "boolean" else []):
        return replace(control, kind="choice", options=("", *options))
    if kind == "array" and isinstance(room := node.get("maxItems"), int) and room <= MAX_ROOM:
        inner = form.items(node)
        parts = [_control(form, part, of) for part, of in form.fields(inner).items()]
        if not any(part.kind == "items" for part in parts):
            free = [replace(part, required=False) for part in parts]  # a place may stay empty
            words = f"At most {room}; leave the rest empty."
            return replace(control, kind="items", room=room, parts=free, explanation=words)
    if kind == "array":
        return replace(control, explanation=f"{control.explanation} {CHECKED_LATER}", is_checked_later=True)
    return replace(control, **bounds_of(node)) if kind in ("integer", "number") else control


def bounds_of(node: SchemaNode) -> dict[str, Any]:
    """Return the fields of the control of a number."""
    bounds = {name: node[name] for name in ("minimum", "maximum") if isinstance(node.get(name), int | float)}
    return {"kind": "number", "is_whole": node.get("type") == "integer", **bounds}


def read_form(text: str, question: Question | None = None) -> FilledForm | None:
    """Return what was filled in, or None for a text that is no form. Raises `SourceError` for one that cannot be read."""
    saved = _saved(text)
    mark = saved or _marked(text)
    if mark is None:
        if any(sign in " ".join(text.split()) for sign in _MADE_BY_US):
            raise SourceError(
                "the line that says which question the form answers was changed or is missing",
                do="Ask for the file as it was sent, with the answer in it, or give the words of the answer alone.",
            )
        return None
    session, key = str(mark.get("session", "")), str(mark.get("key", ""))
    if question is None:
        return FilledForm(session, key, "")
    if question.key != key:
        raise SourceError(f"the form answers {key}, not {question.key}", do="Give the form of this question.")
    given = saved["answer"] if saved else _written(text, question)
    if not isinstance(given, Mapping) or not all(isinstance(words, str) for words in given.values()):
        raise SourceError("the saved answer has fields that are no words", do="Save it from the page once more.")
    return FilledForm(session, key, answer_from(question, given))


def answer_from(question: Question, given: Mapping[str, str]) -> str:
    """Return the answer that fields hold, by name: JSON for a typed one, which is not checked. Raises `SourceError`."""
    if unknown := [name for name in given if name.partition(".")[0] not in dict(_fields(question))]:
        raise SourceError(f"the form has no field {unknown[0]!r}", do="Save it from the page once more.")
    if question.form is None:
        return given.get(ANSWER, "").strip()
    values = {}
    for name, node in question.form.fields().items():
        entered = any(words.strip() for words in _at(given, name))
        if entered or name not in question.form.optional_fields(question.form.schema):
            values[name] = _entered(question.form, name, node, given)
    return json.dumps(values, ensure_ascii=False)


def _saved(text: str) -> Mapping[str, object] | None:
    """Return what a page has saved, None for another text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and {"session", "key", "answer"} <= value.keys() else None


def _marked(text: str) -> Mapping[str, object] | None:
    if re.search(r"^> ?.*<!-- consilience form ", text, re.MULTILINE):
        raise SourceError(
            "the form was quoted in a reply, so the answer cannot be separated from the question",
            do="Ask for the file itself, as an attachment.",
        )
    marks = _MARK.findall(text)
    try:
        value = json.loads(marks[-1]) if marks else None  # one before is in the words of the question
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _mark(session: str, question: Question) -> str:
    return f"<!-- consilience form {json.dumps({'session': session, 'key': question.key}, ensure_ascii=False)} -->"


def _written(text: str, question: Question) -> dict[str, str]:
    """Return what stands below each heading of a form in Markdown, by its name."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    marks = list(_MARK.finditer(text))
    if len(marks) > 1 + len(_MARK.findall(question.text)):
        raise SourceError("there is more than one form in the file", do="Give each in a file of its own.")
    names, parts = {name.casefold(): name for name, _ in _fields(question)}, {"": list[str]()}
    field = ""
    for line in text[marks[-1].end() :].split("\n"):
        heading = _HEADING.fullmatch(line)
        name = names.get(" ".join(heading[1].split()).casefold()) if heading else None
        if name is None:  # also a heading within somebody's words
            parts[field].append(line)
        else:
            field, parts[name] = name, []
    if question.form is None and not field:
        parts[ANSWER] = [line for line in parts[""] if line != _HOW]
    elif not field:
        raise SourceError("the headings of the form are missing", do="Ask for the file with the headings as they were.")
    return {name: _without(line, parts[name]) for name, line in _fields(question) if name in parts}


def _without(explanation: str, lines: Sequence[str]) -> str:
    """Return what was written without the line that says what is asked for, if it is the first one."""
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    says = [" ".join(line.split()).lstrip("\\> ") for line in lines[first : first + 1]]
    return "\n".join(lines[first + (says == [explanation]) :])


def _fields(question: Question) -> Iterator[tuple[str, str]]:
    if question.form is None:
        yield ANSWER, "Words."
        return
    for name, node in question.form.fields().items():
        yield name, _explanation(question.form, name, node)


def _explanation(form: Form, name: str, node: SchemaNode) -> str:
    words = form.describe_field(node)
    if node.get("type") == "array":
        inner = form.items(node)
        how = "; write its fields as `name: words`, one to a line" if inner.get("type") == "object" else ""
        words += f". Begin each with a dash{how}. Leave it empty for none"
    elif name in form.optional_fields(form.schema):
        words += ", or leave it empty"
    return f"{words[:1].upper()}{words[1:]}."


def _value(form: Form, node: SchemaNode, raw: str) -> object:
    """Return a field's value from what was written; what does not fit stays as it is, for the check of the whole."""
    kind = node.get("type")
    if options := choices(node):
        return match_choice(raw, options) or raw
    if kind == "array":
        inner = form.items(node)
        items = [item.strip() for item in _ITEM.split(f"\n{raw}") if item.strip()]
        return [_value(form, inner, item) for item in items]
    if kind == "object":
        return _object(form, node, raw)
    if kind in ("integer", "number", "boolean"):
        try:
            return json.loads(raw.casefold())
        except ValueError:
            return raw
    return raw


def _object(form: Form, node: SchemaNode, raw: str) -> dict[str, object]:
    """Return an object from lines `name: words`; a line without a name continues the one before."""
    fields, found, last = form.fields(node), dict[str, str](), ""
    for line in raw.split("\n"):
        name, colon, words = line.strip().partition(":")
        if colon and name.strip() in fields:
            last = name.strip()
            found[last] = words.strip()
        elif last:
            found[last] += f"\n{line.strip()}"
    optional = form.optional_fields(node)
    return {name: _value(form, fields[name], text) for name, text in found.items() if text or name not in optional}
