"""What was answered, and whether it is right."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

from consilience.domain.report import Report
from consilience.engine.answers import extract, find
from consilience.evaluation.numbers import number_around, number_in, plain_number

if TYPE_CHECKING:
    from consilience.evaluation.taskfile import Task

HALF_AN_ORDER = 0.5

_EDGES = " \t\n.,;:!?\"'“”‘’*_`()[]"
_FRONT = re.compile(rf"^(?:\.(?!\d)|[{re.escape(_EDGES.replace('.', ''))}])+")
_BOXED = re.compile(r"\$*\\boxed\{(?:\\text\{)?([^{}]*)\}+\$*")
_OPTION = re.compile(r"^(?:option|choice|answer)\b[ :]+")
_LABELLED = re.compile(r"([a-z]|\d{1,2})[.):]+ (.+)")


class Score(NamedTuple):
    """`correct` None where the task has no reference. `error` is the absolute difference of a `number`, `orders` the distance
    of a `magnitude` in orders of magnitude; None where there is no number to compare."""

    answered: bool
    correct: bool | None
    error: float | None = None
    orders: float | None = None


def position_of(report: Report, pattern: str) -> str | None:
    """The answer in short: the report's own position, else what the pattern finds in its answer."""
    position = getattr(report, "position", None)
    if isinstance(position, str):
        return position
    return extract(pattern, report.answer) if pattern and report.answer is not None else None


def score(task: Task, report: Report) -> Score:
    """Judge a report by the task's reference. What was not answered is wrong, and said to be unanswered.

    Without an `answer_pattern` words are compared with the whole answer, and a number is the last one in it. A number that a
    pattern finds is read whole: with its sign, its thousands and what it is a multiple of, whether the pattern holds them or not.
    """
    given = position_of(report, task.answer_pattern) if task.answer_pattern else report.answer
    if given is None or not normalised(given):
        return Score(False, None if task.answer is None else False)
    if task.answer is None:
        return Score(True, None)
    if task.kind in ("exact", "choice"):
        return Score(True, same_words(given, task.answer, choice=task.kind == "choice"))
    value, right = _number_given(task, report, given), plain_number(task.answer)
    if value is None or right is None:
        return Score(False, False)
    if task.kind == "number":
        error = abs(value - right)
        return Score(True, error <= (task.tolerance or 0.0) + 1e-9 * abs(right), error)
    if value <= 0:
        return Score(True, False)
    orders = abs(math.log10(value / right)) if value < math.inf else math.inf
    most = HALF_AN_ORDER if task.tolerance is None else task.tolerance
    return Score(True, orders <= most, orders=orders if orders < math.inf else None)


def _number_given(task: Task, report: Report, given: str) -> float | None:
    """Read where the pattern found it, if the position is of that answer; else from the position."""
    text = report.answer or ""
    if task.answer_pattern and extract(task.answer_pattern, text) == given:
        place = find(task.answer_pattern, text)
        if place is not None and (value := number_around(text, *place)) is not None:
            return value
    return number_in(given)


def same_words(given: str, right: str, *, choice: bool = True) -> bool:
    """Whether two answers have the same words. Of a `choice` the label or the text is enough: `Option B`, `B. Paris`."""
    words, wanted = normalised(given), normalised(right)
    return words == wanted or (choice and not _choices(words).isdisjoint(_choices(wanted)))


def _choices(words: str) -> set[str]:
    """What an option may be named by alone."""
    named = _OPTION.sub("", words)
    labelled = _LABELLED.fullmatch(named)
    return {named, *(labelled.groups() if labelled else ())}


def normalised(text: str) -> str:
    """Lower case, compatibility characters and blanks made alike, without a box around, punctuation at the ends or a leading
    article. A point before a digit is none of it."""
    plain = _bare(" ".join(unicodedata.normalize("NFKC", text).casefold().split()))
    if boxed := _BOXED.fullmatch(plain):
        plain = _bare(boxed[1])
    return _bare(re.sub(r"^(?:the|an?)\s+", "", plain))


def _bare(text: str) -> str:
    return _FRONT.sub("", text).rstrip(_EDGES)
