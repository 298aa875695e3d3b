"""Extractable answers: how a pattern is put to a model, and what it finds in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple
from unicodedata import normalize


def check_pattern(pattern: str) -> None:
    """Raises `ValueError` for one that is no regular expression."""
    try:
        _compiled(pattern)
    except (re.error, OverflowError) as error:  # OverflowError: a count of more than 4 bytes
        raise ValueError(f"answer_pattern is no regular expression: {_alone(pattern) or error}") from None


def _alone(pattern: str) -> re.error | OverflowError | None:
    """What is wrong with a pattern as it was given, at the place where it stands there."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
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
    behind = r"(?!\w)" if is_choice(pattern) else r"(?:(?!\w)|(?<=\d)(?!\d))"  # of 42km the number is a whole word
    return re.compile(rf"{f'(?{flags})' if flags else ''}(?<!\w)(?:{pattern}{end}){behind}", re.IGNORECASE)


MAX_BOXES = 4
"""How deep commands may stand in each other, as in `\\boxed{\\text{B}}`."""

_BRACED = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_BOX = re.compile(rf"\\(?:boxed|fbox|text(?:bf|it|rm|tt|sf)?|math(?:bf|it|rm|tt|sf)|operatorname)\s*{_BRACED}")
_MATH = re.compile(r"\\[()\[\]]|\$\$?([^$\d\s][^$]*?|\d[^$\s]*?)\$\$?")
_EMPHASIS = re.compile(r"(?<!\w)[*_`]+(?=\S)|(?<=\S)[*_`]+(?!\w)")

_BRACKETED = re.compile(r"(?<!\w)[(\[\"'“‘]\s*(\w{1,2})\s*[)\]\"'”’](?!\w)")
_OPTION = re.compile(r"\b(?:option|choice)[ :#]+(?=\w)", re.IGNORECASE)
_ANSWER_IS = re.compile(r"\banswer\s+is\b[\s:]*|<answer>\s*|^#+ *(?:\w+ )?answer *\n\s*", re.IGNORECASE | re.MULTILINE)
_ANSWER_ENDS = re.compile(r"</answer>", re.IGNORECASE)
_SIGN_APART = re.compile(r"((?:[:=]|^) ?[−–-]) (?=[\d.])")
_VULGAR = re.compile(r"(\d?) ?([½⅓⅔¼¾])")
_FRONT, _BACK = " \t\n,;:!?\"'“”‘’([", " \t\n.,;:!?\"'“”‘’)]"


def without_markup(text: str) -> str:
    """Return `text` without TeX's boxes, text commands and mathematics delimiters and without Markdown's emphasis."""
    for _ in range(MAX_BOXES):
        text = _BOX.sub(r"\1", text)
    return _EMPHASIS.sub("", _MATH.sub(lambda found: found[1] or "", text))


def _bare(text: str) -> str:
    """Without markup, brackets around a label, `Option` before it and punctuation around the whole; `answer is`, `<answer>` and a
    heading as `Answer:`; a minus sign joined to its number and ½ in digits."""
    plain = _OPTION.sub("", _BRACKETED.sub(r"\1", _ANSWER_ENDS.sub("", without_markup(text))))
    plain = _SIGN_APART.sub(r"\1", _ANSWER_IS.sub("Answer: ", plain))
    return _VULGAR.sub(_in_digits, plain).lstrip(_FRONT).rstrip(_BACK)


def _in_digits(found: re.Match[str]) -> str:
    return f"{found[1]} {normalize('NFKC', found[2]).replace('⁄', '/')}".lstrip()


class Found(NamedTuple):
    """From `start` to `end` of `text` stands what a pattern gives; `stop` is where its match ends."""

    text: str
    start: int
    end: int
    stop: int


_ANSWER_LINE = re.compile(
    r"(?:^|[.!?:][^\w\n]*\s)[^\w\n]*(?:(?:the|my|final|correct)\s+){0,3}answer[^\w\n]*:[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
"""What stands in the form `Answer: …`, to the end of its line: at the beginning of a line or after a sentence."""


def find(pattern: str, text: str) -> Found | None:
    """Where the answer stands that a text ends with, and in which text: this one or, if nothing is found there, this one
    without markup.

    A writer who reasons first names other answers on the way, so the last match counts. In the last line of the form
    `Answer: …` that holds a match it is the first, because what follows there explains it.
    """
    return _find(pattern, text, _closing) or _find(pattern, _bare(text), _closing)


def _find(pattern: str, text: str, choose: Callable[[Sequence[Found], str], Found]) -> Found | None:
    matches = [
        Found(text, *match.span(1 if match.re.groups and match.group(1) is not None else 0), match.end())
        for match in _compiled(pattern).finditer(text)
    ]
    answers = [found for found in matches if text[found.start : found.end].strip()]
    return choose(answers, text) if answers else None


def _opening(answers: Sequence[Found], text: str) -> Found:
    return answers[0]


def _closing(answers: Sequence[Found], text: str) -> Found:
    for line in reversed(list(_ANSWER_LINE.finditer(text))):
        if first := next((a for a in answers if line.start() <= a.start < line.end()), None):
            return first
    return answers[-1]


def extract(pattern: str, text: str) -> str | None:
    """Return the answer that a text ends with, lower-cased with single spaces."""
    return _short(find(pattern, text))


def extract_declared(pattern: str, field: str) -> str | None:
    """Return the first match in a field that asks for nothing but the answer: what follows there explains it."""
    return _short(_find(pattern, field, _opening) or _find(pattern, _bare(field), _opening))


def _short(found: Found | None) -> str | None:
    return None if found is None else " ".join(found.text[found.start : found.end].lower().split())
