"""Extractable answers: how a pattern is put to a model, and what it finds in a text."""

from __future__ import annotations

import re
from functools import lru_cache


def check_pattern(pattern: str) -> None:
    """Raises `ValueError` for one that is no regular expression."""
    try:
        _compiled(pattern)
    except re.error as error:
        raise ValueError(f"answer_pattern is no regular expression: {_alone(pattern) or error}") from None


def _alone(pattern: str) -> re.error | None:
    """What is wrong with a pattern as it was given, at the place where it stands there."""
    try:
        re.compile(pattern)
    except re.error as error:
        return error
    return None


def is_choice(pattern: str) -> bool:
    """Whether a pattern is nothing but words to choose from."""
    return bool(re.fullmatch(r"[\w .-]+(\|[\w .-]+)*", pattern))


def form(pattern: str) -> str:
    """An answer pattern in words for a model: its alternatives where it is nothing but words, else the expression."""
    return " or ".join(pattern.split("|")) if is_choice(pattern) else pattern


_FLAGS = re.compile(r"\(\?([aiLmsux]+)\)")
"""Flags for the whole of an expression, which may stand at its beginning only."""


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    flags = ""
    while found := _FLAGS.match(pattern):
        flags, pattern = flags + found[1], pattern[found.end() :]
    end = "\n" if "x" in flags else ""  # a comment ends there
    return re.compile(rf"{f'(?{flags})' if flags else ''}(?<!\w)(?:{pattern}{end})(?!\w)", re.IGNORECASE)


def find(pattern: str, text: str) -> tuple[int, int] | None:
    """Where the first match of the pattern as whole words stands, its first group if it has one."""
    match = _compiled(pattern).search(text)
    if match is None:
        return None
    return match.span(1 if match.re.groups and match.group(1) is not None else 0)


def extract(pattern: str, text: str) -> str | None:
    """What stands there, lower-cased with single spaces."""
    place = find(pattern, text)
    return None if place is None else " ".join(text[slice(*place)].lower().split()) or None
