"""Which words of a diff changed: what a reader looks for in two versions of a long sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal

WordMark = Literal["", "del", "ins"]
MarkedLine = list[tuple[WordMark, str]]
"""A line of a diff, with its sign, in runs of words that changed or stayed."""
MAX_WORDS = 400
"""Lines with more words are marked whole: a comparison takes time quadratic in their words."""
MIN_SHARE = 0.35
"""Of the characters of two lines that are versions of each other; lines with less in common are marked whole."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


def worded(diff: str) -> Iterator[MarkedLine]:
    """Yield the lines of a unified diff. A removed line and the added line in the same place of the next run are two versions."""
    removed: list[str] = []
    added: list[str] = []
    for line in diff.split("\n"):
        if line.startswith("-") and not added:
            removed.append(line)
        elif line.startswith("+"):
            added.append(line)
        else:
            yield from _run(removed, added)
            removed, added = ([line], []) if line.startswith("-") else ([], [])
            if not removed:
                yield [("", line)]
    yield from _run(removed, added)


def _run(removed: list[str], added: list[str]) -> Iterator[MarkedLine]:
    pairs = [_versions(old, new) for old, new in zip_longest(removed, added)]
    yield from (old for old, _ in pairs if old)
    yield from (new for _, new in pairs if new)


def _versions(old: str | None, new: str | None) -> tuple[MarkedLine, MarkedLine]:
    before, after = _WORD.findall((old or "")[1:]), _WORD.findall((new or "")[1:])
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    kept: Sequence[tuple[str, int, int, int, int]] = []
    if before and after and max(len(before), len(after)) <= MAX_WORDS:
        kept = matcher.get_opcodes() if matcher.ratio() >= MIN_SHARE else []
    if not kept:
        return _whole(old, "del"), _whole(new, "ins")
    old_row: MarkedLine = [("", (old or "")[:1])]
    new_row: MarkedLine = [("", (new or "")[:1])]
    for tag, a, b, c, d in kept:
        changed = tag != "equal"
        if b > a:
            old_row.append(("del" if changed else "", "".join(before[a:b])))
        if d > c:
            new_row.append(("ins" if changed else "", "".join(after[c:d])))
    return old_row, new_row


def _whole(line: str | None, tag: WordMark) -> MarkedLine:
    return [("", line[:1]), (tag, line[1:])] if line else []
