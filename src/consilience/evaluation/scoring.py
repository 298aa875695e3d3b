"""What was answered, whether it is right, and whether a reference answer can be judged by.

A reference that is misread makes right answers wrong, and nobody notices.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

from consilience.domain.report import Report
from consilience.evaluation.numbers import number_around, number_in, plain_number
from consilience.protocols._common.answers import extract, find, is_choice, without_markup

if TYPE_CHECKING:
    from consilience.evaluation.task_file import Task


HALF_AN_ORDER = 0.5

_EDGES = " \t\n.,;:!?\"'“”‘’*_`()[]"
_FRONT = re.compile(rf"^(?:\.(?!\d)|[{re.escape(_EDGES.replace('.', ''))}])+")
_OPTION = re.compile(r"^(?:(?:(?:my|the|final|correct|right|best)\s+)*(?:option|choice|answer)\b(?:\s+is\b)?[ :=]*)+")
_LABELLED = re.compile(r"(?:([a-z]|\d{1,2})[.):\]]+ |([a-z]) [-–—] )(.+)")

_ASKED = re.compile(r"answer:[^\n]*\Z", re.IGNORECASE)
_REST = re.compile(r"[^\d\n]*(?:(?!\s\(|[.;]\s)[^\n])*")
_RESULT = re.compile(r"[^\n]*[=≈](?=[^\n]*\d)")
"""A line `Answer: …`, what of it follows up to a remark in parentheses or the end of the sentence, and an equation in it."""


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
        same = same_words(given, task.answer, choice=task.kind == "choice")
        return Score(True, same and _is_whole(task, report, given))
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
    return Score(True, orders <= most + 1e-9, orders=orders if orders < math.inf else None)


def _number_given(task: Task, report: Report, given: str) -> float | None:
    """Read where the pattern found it, if the position is of that answer; else from the position."""
    found = find(task.answer_pattern, report.answer or "") if task.answer_pattern else None
    if found is None or extract(task.answer_pattern, report.answer or "") != given:
        return number_in(given)
    text, start, end, stop = found
    asked = _ASKED.search(text, 0, start)
    if asked is None or end != stop:  # what follows in the match is the pattern's own
        return number_around(text, start, end)
    rest = _REST.match(text, start)
    last = rest.end() if rest else end
    result = _RESULT.match(text, start, last)
    return number_around(text, result.end() if result else start, last, sole=True)


def _is_whole(task: Task, report: Report, given: str) -> bool:
    """Whether words that are right are not merely a part of another number, of a date or a time that the pattern cut off."""
    right = plain_number(task.answer or "")
    return right is None or not task.answer_pattern or _number_given(task, report, given) == right


def same_words(given: str, right: str, *, choice: bool = True) -> bool:
    """Whether two answers have the same words. Of a `choice` the label or the text is enough (`Option B`, `B. Paris`); where both
    have a label and a text, the label decides."""
    words, wanted = normalised(given), normalised(right)
    if words == wanted or not choice:
        return words == wanted
    names, others = _names(words), _names(wanted)
    return names[0] == others[0] if len(names) == len(others) == 2 else not set(names).isdisjoint(others)


def _names(words: str) -> tuple[str, ...]:
    """What an option is named by: its label and its text, or the one of them that is there."""
    named = _bare(_OPTION.sub("", words)) or words
    labelled = _LABELLED.fullmatch(named)
    return (labelled[1] or labelled[2], labelled[3]) if labelled else (named,)


def normalised(text: str) -> str:
    """Lower case, compatibility characters and blanks made alike, without TeX's boxes, emphasis, punctuation at the ends or a
    leading article. A point before a digit is none of it."""
    plain = without_markup(unicodedata.normalize("NFKC", text)).casefold()
    return _bare(re.sub(r"^(?:the|an?)\s+", "", _bare(" ".join(plain.split()))))


def _bare(text: str) -> str:
    return _FRONT.sub("", text).rstrip(_EDGES)


MOST_ORDERS = 100
MOST_APART = 1e100
MOST_SHOWN = 60
"""Characters of an answer that an error repeats."""

_GROUP = re.compile(r"(?<!\\)\((?!\?)((?:[^()\\]|\\.)+)\)")
"""A group that holds no other."""


def check_reference(answer: str, kind: str, pattern: str, tolerance: float | None) -> None:
    """Raises `ValueError` saying what to write instead."""
    if kind in ("number", "magnitude"):
        value = plain_number(answer)
        if value is None:
            raise ValueError(
                f"the answer of a {kind} task is a number, not {_short(answer)}: write one in digits, like -1234.5 or 3e7"
            )
        if kind == "magnitude" and value <= 0:
            raise ValueError("an order of magnitude needs an answer above 0")
        if tolerance is not None and tolerance >= (MOST_APART if kind == "number" else MOST_ORDERS):
            raise ValueError(f"a tolerance of {tolerance:g} makes every number right: give a smaller one")
    elif not normalised(answer):
        raise ValueError(f"the answer {_short(answer)} holds no word to compare: write one, or leave the field out")
    if pattern and not _can_give(pattern, answer, numeric=kind in ("number", "magnitude")):
        raise ValueError(f"the answer_pattern {pattern!r} never gives the answer {_short(answer)}: correct one of them")


def _short(answer: str) -> str:
    return repr(answer if len(answer) <= MOST_SHOWN else f"{answer[:MOST_SHOWN]}…")


def _can_give(pattern: str, answer: str, *, numeric: bool) -> bool:
    """False only where that is sure: neither the answer alone nor in the form `Answer: …` is found, nor within what the pattern
    captures. Of a pattern that looks around or has groups in groups that is not known."""

    def right(given: str | None) -> bool:
        return given is not None and (number_in(given) is not None if numeric else same_words(given, answer))

    if any(right(extract(pattern, text)) for text in (answer, f"Answer: {answer}")):
        return True
    groups = re.compile(pattern).groups
    captured = _GROUP.search(pattern)
    if groups == 1 and captured:
        piece = captured[1]
    elif groups == 0 and "(?" not in pattern and (is_choice(pattern) or not numeric):
        piece = pattern
    else:
        return True
    return any(right(found[0]) for found in re.finditer(piece, answer, re.IGNORECASE))
