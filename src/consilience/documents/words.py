"""The words of a text in any script. Scripts without spaces have pairs of letters in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, Kana, Han."""
_MARKS = "".join((
    "\u0300-\u036f\u0591-\u05bd\u064b-\u065f",
    "\u0900-\u0903\u093a-\u094f\u0951-\u0957\u0962\u0963\u0981-\u0983\u09bc-\u09d7\u0a01-\u0a03\u0a3c-\u0a51\u0abc-\u0acd",
    "\u0b01-\u0b03\u0b3c-\u0b57\u0b82\u0bbe-\u0bd7\u0c00-\u0c04\u0c3c-\u0c56\u0cbc-\u0cd6\u0d00-\u0d03\u0d3b-\u0d57",
))  # fmt: skip
"""What is written above, below or beside a letter and belongs to its word: accents, vowels of Hebrew, Arabic and Indian scripts."""
_LETTER = rf"(?:[^\W_{_UNSPACED}][{_MARKS}]*)"
_BETWEEN = re.compile(rf"(?<=[{_UNSPACED}])(?=\d)|(?<=\d)(?=[{_UNSPACED}])")


def words_in(text: str, joints: str = ".,'’/-") -> Iterator[str]:
    """Yield the words of a text in order, as they are written. A joint between letters is a part of the word, as in `4.2` and
    `well-kept`."""
    for match in _words(joints).finditer(text):
        if (run := match["run"]) and len(run) > 1:
            yield from map("".join, pairwise(run))
        else:
            yield match[0]


@cache
def _words(joints: str) -> re.Pattern[str]:
    more = rf"(?:[{re.escape(joints)}]{_LETTER}+)*" if joints else ""
    return re.compile(rf"(?P<run>[{_UNSPACED}]+)|{_LETTER}+{more}")


def with_figures_apart(text: str) -> str:
    """Return a text with spaces between figures and letters of scripts without spaces: `3月` is a figure and a letter."""
    return _BETWEEN.sub(" ", text)
