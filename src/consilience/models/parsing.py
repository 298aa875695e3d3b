"""Parses typed replies: lenient in form, strict in content."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError

from consilience.domain.messages import is_free_text
from consilience.models.json_objects import close_object, find_objects
from consilience.models.visible import visible_text, without_controls

T = TypeVar("T")

_FENCED = re.compile(r"\A```[\w-]*[ \t]*\n?((?:(?!```).)*)(?:```)?\Z", re.DOTALL)
_LAST_NUMBER = re.compile(r"-?\d[\d.eE+-]*\Z")
_EMPTY = ("null", "[]", '""')
"""JSON without content."""
_ESCAPE = re.compile(r"\\[ubfr]")
"""Stands in JSON for a character that may be a control character."""
_ARGUMENTS = ("arguments", "parameters")


class Malformed(ValueError):
    """An unusable reply, with the reason in words for the model that wrote it."""


def parse_reply(text: str, returns: type[T]) -> T:
    """Return the reply as `returns`, which is `str` or a pydantic model. Raises `Malformed`.

    Reasoning traces, fences, prose around the object, a cut end and a broken form that leaves one reading (`mending`) are
    tolerated; wrong enums, bounds, empty strings and an echoed schema are not. Of several objects the last valid one counts, of
    correct form before others. An object may stand in a JSON string, or be the arguments of a call that the model wrote as text. A
    cut object is closed if no complete one is valid, without a number or decision that the cut may have shortened. Prose without an
    object fills the type's only required field if that is a `FreeText`.
    """
    body = visible_text(text).strip()
    if returns is str:
        if _blank(body):
            raise Malformed("the reply is empty")
        return cast(T, body)
    if not issubclass(returns, BaseModel):
        raise TypeError(f"a reply is text or a pydantic model, not {returns!r}")
    prose = _unfenced(body)
    if _blank(prose) or prose in _EMPTY:
        raise Malformed("the reply is empty")
    body = _unquoted(body)
    objects = find_objects(body)
    candidates = objects.whole[::-1]
    if objects.cut is not None and (completed := _closed(objects.cut, returns)):
        candidates.append(completed)
    is_prose = not candidates and not prose.startswith(("{", '"{'))
    candidates += objects.mended[::-1]
    escaped = not body.isascii() or _ESCAPE.search(body) is not None
    wrong: Malformed | None = None
    for data in candidates:
        try:
            return cast(T, _validated(_arguments(data, returns), returns, escaped=escaped))
        except Malformed as error:
            wrong = wrong or error
    if is_prose:
        return cast(T, _fill(prose, returns))
    raise wrong or Malformed("the reply is not a JSON object")


def _unquoted(text: str) -> str:
    """Return the object that a JSON string holds; any other text unchanged."""
    quoted = _unfenced(text)
    if not quoted.startswith('"'):
        return text
    try:
        inner = json.loads(quoted, strict=False)
    except ValueError:
        return text
    return inner if inner.lstrip().startswith(("{", "```")) else text


def _arguments(data: dict[str, object], returns: type[BaseModel]) -> dict[str, object]:
    """Return the arguments of a call of a tool that was written as text; any other object unchanged."""
    name = next((name for name in _ARGUMENTS if name in data), None)
    if name is None or not isinstance(data.get("name"), str) or not data.keys() <= {name, "name", "id", "type"}:
        return data
    arguments = data[name]
    if isinstance(arguments, str):
        arguments = next(iter(find_objects(arguments).whole), None)
    return arguments if isinstance(arguments, dict) and not data.keys() <= returns.model_fields.keys() else data


def _validated(data: dict[str, object], returns: type[BaseModel], *, escaped: bool) -> BaseModel:
    if _is_schema(data, returns):
        raise Malformed("the reply repeats the JSON schema; give an object that follows it")
    try:
        value = returns.model_validate(_encodable(data) if escaped else data)
    except ValidationError as error:
        raise Malformed(_in_words(error)) from None
    except (ValueError, RecursionError):  # too many digits or brackets
        raise Malformed("the reply is not a JSON object") from None
    for name in _required_strings(returns):
        if _blank(str(getattr(value, name))):
            raise Malformed(f"{name}: must not be empty")
    return value


def _encodable(data: dict[str, object]) -> object:
    """Replace lone surrogates, which escapes can produce and UTF-8 cannot encode, and remove control characters. Raises
    `ValueError`, `RecursionError`."""
    written = json.dumps(data, ensure_ascii=False)
    return _without_controls(json.loads(written.encode("utf-8", "replace")))


def _without_controls(value: object) -> object:
    if isinstance(value, str):
        return without_controls(value)
    if isinstance(value, dict):
        return {name: _without_controls(entry) for name, entry in value.items()}
    return [_without_controls(entry) for entry in value] if isinstance(value, list) else value


def _blank(text: str) -> bool:
    """Return whether a text has only white space and control characters."""
    return not text[:1].isalnum() and not any(character.isprintable() and not character.isspace() for character in text)


def _unfenced(text: str) -> str:
    match = _FENCED.match(text)
    return (match.group(1) if match else text).strip()


def _closed(fragment: str, returns: type[BaseModel]) -> dict[str, object] | None:
    """Close a cut object: without a last number, whose digits may be missing, and without a decision (a field that is not plain
    text) whose string is cut."""
    fields = close_object(fragment)
    if fields is None or fields != close_object(fragment, strings=False):
        name = next(reversed(fields or {}), "")
        if fields is not None and isinstance(fields[name], str) and not _is_unbounded_text(returns, name):
            del fields[name]
        return fields
    number = _LAST_NUMBER.search(fragment)
    return close_object(fragment[: number.start()]) if number else fields


def _is_unbounded_text(returns: type[BaseModel], name: str) -> bool:
    """Return whether a field is text without bounds: half of it is a shorter text, not another decision."""
    for key, described in returns.model_fields.items():
        if name in (key, described.alias):
            return described.annotation is str and (not described.metadata or is_free_text(described.metadata))
    return True


def reply_in_reasoning(reasoning: str, returns: type) -> str:
    """Return the reply that a server sent as reasoning, with no text: an object as a whole, valid for `returns`. Else ""."""
    body = _unfenced(reasoning.strip())
    if not (issubclass(returns, BaseModel) and body.startswith("{") and body.endswith("}")):
        return ""
    try:
        parse_reply(body, returns)
    except Malformed:
        return ""
    return body


def is_prose(text: str, value: object) -> bool:
    """Return whether `parse_reply` read `text` as prose without an object, which filled one field of `value`."""
    field = prose_field(type(value)) if isinstance(value, BaseModel) else ""
    return bool(field) and getattr(value, field) == _unfenced(visible_text(text).strip())


@lru_cache(maxsize=256)
def prose_field(returns: type[BaseModel]) -> str:
    """Return the only required field if it is a `FreeText`, which prose without JSON fills; else ""."""
    required = [(name, field) for name, field in returns.model_fields.items() if field.is_required()]
    return required[0][0] if len(required) == 1 and is_free_text(required[0][1].metadata) else ""


def _fill(body: str, returns: type[BaseModel]) -> BaseModel:
    if field := prose_field(returns):
        return returns.model_validate({field: body})
    raise Malformed("the reply is not a JSON object")


def _is_schema(data: dict[str, object], returns: type[BaseModel]) -> bool:
    names = {"$schema", "$defs", "properties"} & data.keys()
    if not names:  # nearly always, and `model_fields` is slow
        return False
    names -= returns.model_fields.keys()
    return "$schema" in names or "$defs" in names or ("properties" in names and isinstance(data["properties"], dict))


@lru_cache(maxsize=256)
def _required_strings(returns: type[BaseModel]) -> tuple[str, ...]:
    return tuple(
        name for name, field in returns.model_fields.items() if field.is_required() and field.annotation is str
    )


def _in_words(error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False, include_input=False)[:3]:
        place = ".".join(str(part) for part in item["loc"]) or "the object"
        problems.append(f"{place}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(problems)
