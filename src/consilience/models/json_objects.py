"""Finds the JSON objects of a text, also broken and cut ones."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from pydantic_core import from_json

from consilience.models.mending import mended

MAX_BROKEN = 100
"""Max broken objects of one text that are skipped; what follows them is not read."""

_LEAD = re.compile(r"\s*(?:```[\w-]*\s*)?")
_FENCE_END = re.compile(r"\n?```[\w-]*\s*\Z")
_DECODER = json.JSONDecoder(strict=False)
_BRACE = re.compile(r"[{}]")
_BRACE_OR_STRING = re.compile(r'[{}]|"(?:[^"\\]|\\.)*"', re.DOTALL)
_STRICT = re.compile(r"\{\s*[\"'}]")
_OBJECT = re.compile(r"\{\s*(?:[\"'}“]|//|/\*|#|[A-Za-z_]\w*\s*[:：])")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass
class JsonObjects:
    """The JSON objects of a text."""

    whole: list[dict[str, object]] = field(default_factory=list)
    """Complete objects that are not empty."""
    mended: list[dict[str, object]] = field(default_factory=list)
    """Complete objects of a broken form that leaves one reading."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Places of all complete objects, and of the cut one if only a fence precedes it."""
    cut: str | None = None
    """An object whose end is missing."""


def find_objects(text: str, first: int = 0) -> JsonObjects:
    """Return the outermost objects from `first` on. Objects inside a broken one do not count."""
    objects, place, broken = JsonObjects(), first, 0
    text = _FENCE_END.sub("", text)
    while (start := _OBJECT.search(text, place)) is not None and broken < MAX_BROKEN:
        begin = start.start()
        try:
            value, place = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:  # a number or brackets without end are errors of other kinds
            read = mended(text, begin)
            if read is not None:
                place = read[1]
                objects.mended.append(read[0])
                objects.spans.append((begin, place))
                continue
            if isinstance(error, json.JSONDecodeError) and _runs_out(error) and close_object(text[begin:]) is not None:
                objects.cut = text[begin:]
                if _LEAD.fullmatch(text, first, begin):
                    objects.spans.append((begin, len(text)))
                break
            place = _balanced(text, begin) if _STRICT.match(text, begin) else begin + 1
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


def close_object(fragment: str, *, strings: bool = True) -> dict[str, object] | None:
    """Close an object whose end is missing; without its last string if `strings` is False and the string is cut."""
    escaped = _STRING.sub(lambda string: _CONTROL.sub(lambda c: f"\\u{ord(c[0]):04x}", string[0]), fragment)
    try:
        value = from_json(escaped, allow_partial="trailing-strings" if strings else True)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value else None
