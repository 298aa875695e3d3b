"""Reading a typed reply: lenient in form, strict in content."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from consilience.domain.messages import is_free_text

T = TypeVar("T")

_FENCE = re.compile(r"\A\s*```[\w-]*[ \t]*\n?(.*?)(?:\n?```.*)?\Z", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)
_EMPTY = ("null", "[]", '""')
"""JSON that says nothing, where prose would do."""


class Malformed(ValueError):
    """A reply that cannot be used; the text says why in words for the model that wrote it."""


def parse_reply(text: str, returns: type[T]) -> T:
    """The reply as `returns`, which is `str` or a pydantic model.

    Fences, prose around the object and an end cut off are forgiven; enums, bounds, empty strings and an echoed schema
    are not. Prose without an object fills the type's only required field if that is a `FreeText`. Raises `Malformed`.
    """
    if returns is str:
        if _blank(text):
            raise Malformed("the reply is empty")
        return cast(T, text.strip())
    if not issubclass(returns, BaseModel):
        raise TypeError(f"a reply is text or a pydantic model, not {returns!r}")
    body = _unfenced(text)
    if _blank(body) or body in _EMPTY:
        raise Malformed("the reply is empty")
    data = _object_in(body)
    if data is None:
        return cast(T, _fill(body, returns))
    if "\\u" in body:  # may be half of a character pair
        data = json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
    if _is_schema(data, returns):
        raise Malformed("the reply repeats the JSON schema; give an object that follows it")
    try:
        value = returns.model_validate(data)
    except ValidationError as error:
        raise Malformed(_in_words(error)) from None
    for name in _required_strings(returns):
        if _blank(str(getattr(value, name))):
            raise Malformed(f"{name}: must not be empty")
    return cast(T, value)


def _blank(text: str) -> bool:
    """True for a text with nothing to be seen in it: blanks, and characters that only steer."""
    return not any(character.isprintable() and not character.isspace() for character in text)


def _unfenced(text: str) -> str:
    match = _FENCE.match(text)
    return (match.group(1) if match else text).strip()


def _object_in(body: str) -> dict[str, object] | None:
    """The first JSON object in the text, an end cut off closed; None where there is only prose."""
    start = body.find("{")
    while start >= 0:
        try:
            found, _ = _DECODER.raw_decode(body, start)
        except json.JSONDecodeError:
            found = _closed(body[start:])
        except (ValueError, RecursionError):  # a number without end, brackets without end
            raise Malformed("the reply is not a JSON object") from None
        if isinstance(found, dict) and found:
            return found
        if start == 0:
            raise Malformed("the reply is not a JSON object")
        start = body.find("{", start + 1)
    return None


def _closed(fragment: str) -> object:
    try:
        return from_json(fragment, allow_partial="trailing-strings")
    except ValueError:
        return None


def prose_field(returns: type[BaseModel]) -> str:
    """The only required field, if that is a `FreeText`, which prose without JSON fills; else nothing."""
    required = [(name, field) for name, field in returns.model_fields.items() if field.is_required()]
    return required[0][0] if len(required) == 1 and is_free_text(required[0][1].metadata) else ""


def _fill(body: str, returns: type[BaseModel]) -> BaseModel:
    if field := prose_field(returns):
        return returns.model_validate({field: body})
    raise Malformed("the reply is not a JSON object")


def _is_schema(data: dict[str, object], returns: type[BaseModel]) -> bool:
    keys = data.keys() - returns.model_fields.keys()
    return "$schema" in keys or "$defs" in keys or ("properties" in keys and isinstance(data["properties"], dict))


@lru_cache(maxsize=256)
def _required_strings(returns: type[BaseModel]) -> tuple[str, ...]:
    return tuple(
        name for name, field in returns.model_fields.items() if field.is_required() and field.annotation is str
    )


def _in_words(error: ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False, include_input=False)[:3]:
        where = ".".join(str(part) for part in item["loc"]) or "the object"
        problems.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(problems)
