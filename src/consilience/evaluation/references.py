"""Whether a reference answer can be judged by. One that is misread makes right answers wrong, and nobody notices."""

from __future__ import annotations

import re

from consilience.engine.answers import extract, is_choice
from consilience.evaluation.numbers import number_in, plain_number
from consilience.evaluation.scoring import normalised, same_words

MOST_ORDERS = 100
MOST_APART = 1e100

_GROUP = re.compile(r"(?<!\\)\((?!\?)((?:[^()\\]|\\.)+)\)")
"""A group that holds no other."""


def check_reference(answer: str, kind: str, pattern: str, tolerance: float | None) -> None:
    """Raises `ValueError` saying what to write instead."""
    if kind in ("number", "magnitude"):
        value = plain_number(answer)
        if value is None:
            raise ValueError(
                f"the answer of a {kind} task is a number, not {answer!r}: write one in digits, like -1234.5 or 3e7"
            )
        if kind == "magnitude" and value <= 0:
            raise ValueError("an order of magnitude needs an answer above 0")
        if tolerance is not None and tolerance >= (MOST_APART if kind == "number" else MOST_ORDERS):
            raise ValueError(f"a tolerance of {tolerance:g} makes every number right: give a smaller one")
    elif not normalised(answer):
        raise ValueError(f"the answer {answer!r} holds no word to compare: write one, or leave the field out")
    if pattern and not _can_give(pattern, answer, numeric=kind in ("number", "magnitude")):
        raise ValueError(f"the answer_pattern {pattern!r} never gives the answer {answer!r}: correct one of them")


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
