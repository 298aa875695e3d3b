"""Parses typed replies: lenient in form, strict in content."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from consilience.domain.messages import is_free_text

T = TypeVar("T")

MAX_PASSES = 8
"""Max passes over a text: behind one trace another may begin."""

MAX_BROKEN = 100
"""Max broken objects of one text that are skipped; what follows them is not read."""

_TAG = "(?:think|thinking|reasoning)"
_OPENED = re.compile(rf"\s*(?:<(?P<name>{_TAG}|thought|analysis)>|◁think▷)", re.IGNORECASE)
_PREAMBLE = re.compile(r"\s*[^\n]{0,80}\n\s*")
"""A line that a program may print before its model begins."""
_OPENED_LATER = re.compile(rf"^[ \t]*<{_TAG}>(?P<alone>[ \t]*$)?", re.IGNORECASE | re.MULTILINE)
_CLOSED = re.compile(rf"</{_TAG}>", re.IGNORECASE)
_CLOSED_RARE = re.compile(r"</(?:thought|analysis)>", re.IGNORECASE)
_CLOSED_TRIANGLE = re.compile("◁/think▷")
_COMMON = re.compile(_TAG, re.IGNORECASE)
_CLOSED_ALONE = re.compile(
    rf"""
    ^[ \t]* </{_TAG}>                                      # at the beginning of a line
    | (?<=[^\s'"`(*_“‘«]) </{_TAG}> (?!['").,;:!?”’»…]|`\b)   # right behind a word
    | (?<=\s) </{_TAG}> (?-i:(?=[ \t]+[A-ZÀ-ÞΑ-ΩА-Я\u4e00-\u9fff\d{{\[*\#]))   # before the beginning of a sentence
    | </{_TAG}> (?=[ \t]*$)                                # at the end of a line; elsewhere it is spoken of
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_QUOTED = re.compile(
    rf"""
    ^[ \t]*(```|~~~)[^\n`]*\n (?:(?![ \t]*\1).*\n)* [ \t]*\1[ \t]*$   # a block of code
    | `[^`\n]+`
    | (?<=[^\n]) <{_TAG}>[^\n<]*</{_TAG}>                             # both tags in the middle of one line
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)

_FENCED = re.compile(r"\A```[\w-]*[ \t]*\n?((?:(?!```).)*)(?:```)?\Z", re.DOTALL)
_LEAD = re.compile(r"\s*(?:```[\w-]*\s*)?")
_FENCE_END = re.compile(r"\n?```[\w-]*\s*\Z")
_DECODER = json.JSONDecoder(strict=False)
_BRACE = re.compile(r"[{}]")
_BRACE_OR_STRING = re.compile(r'[{}]|"(?:[^"\\]|\\.)*"', re.DOTALL)
_OBJECT = re.compile(r"\{\s*[\"'}]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_LAST_NUMBER = re.compile(r"-?\d[\d.eE+-]*\Z")
_EMPTY = ("null", "[]", '""')
"""JSON without content."""


class Malformed(ValueError):
    """An unusable reply, with the reason in words for the model that wrote it."""


def without_trace(text: str) -> str:
    """Return `text` without reasoning traces, stripped if it had one; a text that is only a trace is empty.

    A trace is `<think>…</think>`, `<thinking>` or `<reasoning>`, at the beginning of the text or of a line; at the beginning of the
    text also `<thought>`, `<analysis>` and `◁think▷`. The opening tag may be missing (then everything before the closing tag is
    trace). The closing tag may be missing after at most one short line (then everything that follows is trace). Tags inside code or
    a JSON object are text.
    """
    if "<" not in text and "◁" not in text:
        return text
    for _ in range(MAX_PASSES):
        visible = _without_traces(text)
        if visible is None:
            break
        text = visible
    return text


def _without_traces(text: str) -> str | None:
    """One pass: return the text without its visible traces; None if there is none."""
    begin = 0
    while opening_tag := _OPENED.match(text, begin):
        closing_tag = _end_of(opening_tag["name"]).search(text, opening_tag.end())
        begin = closing_tag.end() if closing_tag else len(text)
    ends = [match.end() for match in _CLOSED_ALONE.finditer(text, begin)]
    starts = list(_OPENED_LATER.finditer(text, begin))
    if ends or starts:
        is_quoted = _quoted(text, begin)
        ends = [end for end in ends if not is_quoted[end - 1]]
        starts = [opening_tag for opening_tag in starts if not is_quoted[opening_tag.start()]]
    pieces, place = [], begin
    for opening_tag in starts:
        start = opening_tag.start()
        if start < place or (opening_tag["alone"] is None and not any(end > start for end in ends)):
            continue
        closing_tag = _CLOSED.search(text, start)
        if closing_tag is None and not _PREAMBLE.fullmatch(text, begin, start):
            continue
        stop = closing_tag.end() if closing_tag else len(text)
        ends = [end for end in ends if not start < end <= stop]
        pieces.append((place, start))
        place = stop
    pieces.append((place, len(text)))
    if begin == 0 and len(pieces) == 1 and not ends:
        return None
    headless = max(ends, default=0)
    return "".join(text[max(a, headless) : b] for a, b in pieces if b > headless).strip()


def _end_of(name: str | None) -> re.Pattern[str]:
    """Return the pattern that closes a trace at the beginning."""
    if name is None:
        return _CLOSED_TRIANGLE
    return _CLOSED if _COMMON.fullmatch(name) else _CLOSED_RARE


def _quoted(text: str, begin: int) -> bytearray:
    """Return a flag per character: whether it is in code, in a JSON object, or in a mention of tags."""
    flags = bytearray(len(text))
    for a, b in (*(code.span() for code in _QUOTED.finditer(text, begin)), *_objects(text, begin).spans):
        flags[a:b] = b"\1" * (b - a)
    return flags


def parse_reply(text: str, returns: type[T]) -> T:
    """Return the reply as `returns`, which is `str` or a pydantic model. Raises `Malformed`.

    Reasoning traces, fences, prose around the object and a cut end are tolerated; wrong enums, bounds, empty strings and an echoed
    schema are not. Of several objects the last valid one counts. A cut object is closed if no complete one is valid, without a
    number or decision that the cut may have shortened. Prose without an object fills the type's only required field if that is a
    `FreeText`.
    """
    body = without_trace(text).strip()
    if returns is str:
        if _blank(body):
            raise Malformed("the reply is empty")
        return cast(T, body)
    if not issubclass(returns, BaseModel):
        raise TypeError(f"a reply is text or a pydantic model, not {returns!r}")
    prose = _unfenced(body)
    if _blank(prose) or prose in _EMPTY:
        raise Malformed("the reply is empty")
    objects = _objects(body)
    candidates = objects.whole[::-1]
    if objects.cut is not None and (completed := _closed(objects.cut, returns)):
        candidates.append(completed)
    if not candidates:
        if prose.startswith("{"):
            raise Malformed("the reply is not a JSON object")
        return cast(T, _fill(prose, returns))
    escaped = not body.isascii() or "\\u" in body
    wrong: Malformed | None = None
    for data in candidates:
        try:
            return cast(T, _validated(data, returns, escaped=escaped))
        except Malformed as error:
            wrong = wrong or error
    assert wrong is not None
    raise wrong


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
    """Replace lone surrogates, which escapes can produce and UTF-8 cannot encode. Raises `ValueError`, `RecursionError`."""
    return json.loads(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))


def _blank(text: str) -> bool:
    """Return whether a text has only white space and control characters."""
    return not text[:1].isalnum() and not any(character.isprintable() and not character.isspace() for character in text)


def _unfenced(text: str) -> str:
    match = _FENCED.match(text)
    return (match.group(1) if match else text).strip()


@dataclass
class _Objects:
    """The JSON objects of a text."""

    whole: list[dict[str, object]] = field(default_factory=list)
    """Complete objects that are not empty."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Places of all complete objects, and of the cut one if only a fence precedes it."""
    cut: str | None = None
    """An object whose end is missing."""


def _objects(text: str, first: int = 0) -> _Objects:
    """Return the outermost objects from `first` on. Objects inside a broken one do not count."""
    objects, place, broken = _Objects(), first, 0
    text = _FENCE_END.sub("", text)
    while (start := _OBJECT.search(text, place)) is not None and broken < MAX_BROKEN:
        begin = start.start()
        try:
            value, place = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:  # a number or brackets without end are errors of other kinds
            if isinstance(error, json.JSONDecodeError) and _runs_out(error) and _partial(text[begin:]) is not None:
                objects.cut = text[begin:]
                if _LEAD.fullmatch(text, first, begin):
                    objects.spans.append((begin, len(text)))
                break
            place = _balanced(text, begin)
            broken += 1
        else:
            objects.spans.append((begin, place))
            if value:
                objects.whole.append(value)
    return objects


def _runs_out(error: json.JSONDecodeError) -> bool:
    """Return whether only the end may be missing: the error is in the last few characters, or in an unclosed string."""
    return error.msg.startswith("Unterminated") or len(error.doc) - error.pos < len("-1234.5e+678")


def _balanced(text: str, begin: int) -> int:
    """Return the position after the brace that closes the one at `begin`; the end of the text if there is none.

    A broken object may have a superfluous quotation mark, so braces in strings count in one of two readings. The later end is
    used, so that no part of the object counts as another object.
    """
    return max(_closing(_BRACE, text, begin), _closing(_BRACE_OR_STRING, text, begin))


def _closing(tokens: re.Pattern[str], text: str, begin: int) -> int:
    depth = 0
    for token in tokens.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return len(text)


def _partial(fragment: str, *, strings: bool = True) -> dict[str, object] | None:
    """Close an object whose end is missing; without its last string if `strings` is False and the string is cut."""
    escaped = _STRING.sub(lambda string: _CONTROL.sub(lambda c: f"\\u{ord(c[0]):04x}", string[0]), fragment)
    try:
        value = from_json(escaped, allow_partial="trailing-strings" if strings else True)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value else None


def _closed(fragment: str, returns: type[BaseModel]) -> dict[str, object] | None:
    """Close a cut object: without a last number, whose digits may be missing, and without a decision (a field that is not plain
    text) whose string is cut."""
    fields = _partial(fragment)
    if fields is None or fields != _partial(fragment, strings=False):
        name = next(reversed(fields or {}), "")
        if fields is not None and isinstance(fields[name], str) and not _is_unbounded_text(returns, name):
            del fields[name]
        return fields
    number = _LAST_NUMBER.search(fragment)
    return _partial(fragment[: number.start()]) if number else fields


def _is_unbounded_text(returns: type[BaseModel], name: str) -> bool:
    """Return whether a field is text without bounds: half of it is a shorter text, not another decision."""
    for key, described in returns.model_fields.items():
        if name in (key, described.alias):
            return described.annotation is str and (not described.metadata or is_free_text(described.metadata))
    return True


def is_prose(text: str, value: object) -> bool:
    """Return whether `parse_reply` read `text` as prose without an object, which filled one field of `value`."""
    field = prose_field(type(value)) if isinstance(value, BaseModel) else ""
    return bool(field) and getattr(value, field) == _unfenced(without_trace(text).strip())


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
