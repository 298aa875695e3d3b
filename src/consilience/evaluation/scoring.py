"""What was answered, and whether it is right."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, NamedTuple

from consilience.domain.report import Report
from consilience.engine.answers import extract

if TYPE_CHECKING:
    from consilience.evaluation.taskfile import Task

HALF_AN_ORDER = 0.5

_NUMBER = re.compile(
    r"""(?<![\w.]) [-+−]?
    (?:
        (?: \d{1,3}(?:[,\u00a0\u202f]\d{3})+(?!\d)       # thousands
          | (?<!\d[ ])\d{1,3}(?:[ ]\d{3})+(?![ ]?\d)      # the same with plain blanks, unless other numbers stand beside them
          | \d+
        ) (?:\.\d+)?
      | \.\d+
    )
    (?:[eE][-+]?\d+)?""",
    re.VERBOSE,
)
_EDGES = " \t\n.,;:!?\"'“”‘’*_`()[]"


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

    Without an `answer_pattern` words are compared with the whole answer, and a number is the last one in it.
    """
    given = position_of(report, task.answer_pattern) if task.answer_pattern else report.answer
    if given is None or not normalised(given):
        return Score(False, None if task.answer is None else False)
    if task.answer is None:
        return Score(True, None)
    if task.kind in ("exact", "choice"):
        return Score(True, normalised(given) == normalised(task.answer))
    value, right = number_in(given), number_in(task.answer)
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


def normalised(text: str) -> str:
    """Lower case, compatibility characters and blanks made alike, without punctuation at the ends or a leading article."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_EDGES)
    return re.sub(r"^(?:the|an?)\s+", "", plain).strip(_EDGES)


def number_in(text: str) -> float | None:
    """The last number of a text, its thousands grouped by commas or blanks or not at all; None where there is none.

    Behind a plain blank three digits are thousands where one to three stand before it, and no other number beside them.
    """
    found = _NUMBER.findall(text)
    if not found:
        return None
    return float(re.sub("[, \u00a0\u202f]", "", found[-1]).replace("−", "-"))
