"""Whether the words of an answer are those of a reference, and whether a reference can be used to judge answers.

A misread reference marks right answers as wrong without a warning.
"""

from __future__ import annotations

import re
import unicodedata

import regex

from consilience.engine.searches import matches_of
from consilience.evaluation.numbers import last_number, parse_number
from consilience.protocols._common.answers import expression_of, extract, is_choice, without_markup

_EDGES = " \t\n.,;:!?\"'“”‘’*_`()[]"
_FRONT = re.compile(rf"^(?:\.(?!\d)|[{re.escape(_EDGES.replace('.', ''))}])+")
_OPTION = re.compile(r"^(?:(?:(?:my|the|final|correct|right|best)\s+)*(?:option|choice|answer)\b(?:\s+is\b)?[ :=]*)+")
_LABELLED = re.compile(r"(?:([a-z]|\d{1,2})[.):\]]+ |([a-z]) [-–—] )(.+)")


def same_words(answer: str, reference: str, *, choice: bool = True) -> bool:
    """Return whether an answer has the words of a reference.

    Of a `choice` the label or the text suffices (`Option B`, `B. Paris`); if both have a label and a text, the label decides.
    """
    words, expected = normalize(answer), normalize(reference)
    if words == expected or not choice:
        return words == expected
    names, expected_names = _option_names(words), _option_names(expected)
    return (
        names[0] == expected_names[0]
        if len(names) == len(expected_names) == 2
        else not set(names).isdisjoint(expected_names)
    )


def _option_names(words: str) -> tuple[str, ...]:
    """Return the label and the text of an option, or the only one of them."""
    option = _strip_edges(_OPTION.sub("", words)) or words
    labelled = _LABELLED.fullmatch(option)
    return (labelled[1] or labelled[2], labelled[3]) if labelled else (option,)


def normalize(text: str) -> str:
    """Return text in lower case, in compatibility form (NFKC), with single spaces, and without TeX boxes, emphasis, a leading
    article, or punctuation at the ends. A point before a digit stays."""
    plain = without_markup(unicodedata.normalize("NFKC", text)).casefold()
    return _strip_edges(re.sub(r"^(?:the|an?)\s+", "", _strip_edges(" ".join(plain.split()))))


def _strip_edges(text: str) -> str:
    return _FRONT.sub("", text).rstrip(_EDGES)


MAX_ORDERS_TOLERANCE = 100
MAX_TOLERANCE = 1e100
MAX_SHOWN_CHARS = 60
"""Characters of an answer that an error repeats."""

_GROUP = re.compile(r"(?<!\\)\((?!\?)((?:[^()\\]|\\.)+)\)")
"""A group without inner groups."""


def check_reference(answer: str, kind: str, pattern: str, tolerance: float | None) -> None:
    """Raise `ValueError`, which says what to write instead, if a reference cannot be used."""
    if kind in ("number", "magnitude"):
        value = parse_number(answer)
        if value is None:
            raise ValueError(
                f"the answer of a {kind} task is a number, not {_short(answer)}: write one in digits, like -1234.5 or 3e7"
            )
        if kind == "magnitude" and value <= 0:
            raise ValueError("an order of magnitude needs an answer above 0")
        if tolerance is not None and tolerance >= (MAX_TOLERANCE if kind == "number" else MAX_ORDERS_TOLERANCE):
            raise ValueError(f"a tolerance of {tolerance:g} makes every number right: give a smaller one")
    elif not normalize(answer):
        raise ValueError(f"the answer {_short(answer)} holds no word to compare: write one, or leave the field out")
    if pattern and not _can_extract(pattern, answer, numeric=kind in ("number", "magnitude")):
        raise ValueError(f"the answer_pattern {pattern!r} never gives the answer {_short(answer)}: correct one of them")


def _short(answer: str) -> str:
    return repr(answer if len(answer) <= MAX_SHOWN_CHARS else f"{answer[:MAX_SHOWN_CHARS]}…")


def _can_extract(pattern: str, answer: str, *, numeric: bool) -> bool:
    """Return False only if the pattern surely never yields the answer: alone, as `Answer: …`, or in its captured group.

    Unknown, hence True, for patterns with lookarounds or nested groups.
    """

    def is_answer(text: str | None) -> bool:
        return text is not None and (last_number(text) is not None if numeric else same_words(text, answer))

    if any(is_answer(extract(pattern, text)) for text in (answer, f"Answer: {answer}")):
        return True
    pattern = expression_of(pattern)
    groups = re.compile(pattern).groups
    captured = _GROUP.search(pattern)
    if groups == 1 and captured:
        piece = captured[1]
    elif groups == 0 and "(?" not in pattern and (is_choice(pattern) or not numeric):
        piece = pattern
    else:
        return True
    try:
        return any(is_answer(match[0]) for match in matches_of(regex.compile(piece, regex.IGNORECASE), answer))
    except TimeoutError:
        return True
