"""Score the answer of a report against the reference of its task."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import NamedTuple

from consilience.domain.positions import position_key
from consilience.domain.report import Report
from consilience.evaluation.matching import normalize, same_words
from consilience.evaluation.numbers import last_number, number_around, parse_number
from consilience.evaluation.task_file import Task
from consilience.protocols._common.answers import extract, find

DEFAULT_ORDERS_TOLERANCE = 0.5

_ASKED = re.compile(r"answer:[^\n]*\Z", re.IGNORECASE)
_REST = re.compile(r"[^\d\n]*(?:(?!\s\(|[.;]\s)[^\n])*")
_RESULT = re.compile(r"[^\n]*[=≈](?=[^\n]*\d)")
"""The beginning of a line `Answer: …`; its rest up to a remark in parentheses or the end of the sentence; an equation in it."""


class Score(NamedTuple):
    """The score of one answer."""

    answered: bool
    correct: bool | None
    """None if the task has no reference."""
    error: float | None = None
    """Absolute difference, for tasks of kind `number` with a number in the answer."""
    orders: float | None = None
    """Distance in orders of magnitude, for tasks of kind `magnitude` with a number in the answer."""


def position_of(report: Report, pattern: str) -> str | None:
    """Return the answer in short: the report's position, else the match of the pattern in its answer."""
    position = getattr(report, "position", None)
    if isinstance(position, str):
        return position
    return extract(pattern, report.answer) if pattern and report.answer is not None else None


def score(task: Task, report: Report) -> Score:
    """Score a report by the task's reference. A missing answer counts as wrong and as unanswered.

    Without an `answer_pattern` the words of the whole answer are compared, or the last number in it. A number that the pattern
    matches is read with its sign, thousands and scale, even if the pattern leaves them out.
    """
    answer = position_of(report, task.answer_pattern) if task.answer_pattern else report.answer
    if answer is None or not normalize(answer):
        return Score(False, None if task.answer is None else False)
    if task.answer is None:
        return Score(True, None)
    if task.kind in ("exact", "choice"):
        same = same_words(answer, task.answer, choice=task.kind == "choice")
        return Score(True, same and _is_whole(task, report, answer))
    value, expected = _read_number(task, report, answer), parse_number(task.answer)
    if value is None or expected is None:
        return Score(False, False)
    if task.kind == "number":
        error = abs(value - expected)
        return Score(True, error <= (task.tolerance or 0.0) + 1e-9 * abs(expected), error)
    if value <= 0:
        return Score(True, False)
    orders = abs(math.log10(value / expected)) if value < math.inf else math.inf
    tolerance = DEFAULT_ORDERS_TOLERANCE if task.tolerance is None else task.tolerance
    return Score(True, orders <= tolerance + 1e-9, orders=orders if orders < math.inf else None)


def _read_number(task: Task, report: Report, answer: str) -> float | None:
    """Read the number at the match of the pattern, if the position comes from that answer; else in the position."""
    match = None
    if task.answer_pattern:
        with suppress(TimeoutError):
            match = find(task.answer_pattern, report.answer or "")
    if match is None or position_key(match.words) != position_key(answer):
        return last_number(answer)
    text, start, end, stop, _ = match
    question_match = _ASKED.search(text, 0, start)
    if question_match is None or end != stop:  # the pattern itself matches what follows
        return number_around(text, start, end)
    rest_match = _REST.match(text, start)
    last = rest_match.end() if rest_match else end
    result = _RESULT.match(text, start, last)
    return number_around(text, result.end() if result else start, last, sole=True)


def _is_whole(task: Task, report: Report, answer: str) -> bool:
    """Whether a match is more than a part of a longer number, a date or a time that the pattern cut."""
    expected = parse_number(task.answer or "")
    return expected is None or not task.answer_pattern or _read_number(task, report, answer) == expected
