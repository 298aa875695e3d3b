"""Moved lines of a diff: what it removes in one place and adds in another, as it was.

Lines with another indentation are another block, unless a whole definition moved: into a class or out of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from consilience.targets.outline import written_names

MIN_MOVED_LINES = 5
"""Lines that are not empty, of a block at least. To move fewer is a change of what they say, such as of an order."""
_MAX_CANDIDATES = 50


class MovableLine(NamedTuple):
    """A removed line, with its number in the old file, or an added one, with its number in the new file."""

    file: int
    number: int
    text: str


class Move(NamedTuple):
    """A block of lines that stands elsewhere after the change."""

    old: tuple[MovableLine, ...]
    new: tuple[MovableLine, ...]


def find_moves(removed: Sequence[MovableLine], added: Sequence[MovableLine]) -> Iterator[Move]:
    """Yield the moved blocks, in the order of the added lines, each the longest that begins there."""
    forms = [[" ".join(line.text.split()) for line in lines] for lines in (removed, added)]
    places: dict[str, list[int]] = defaultdict(list)
    for n, form in enumerate(forms[0]):
        if form and len(places[form]) < _MAX_CANDIDATES:
            places[form].append(n)
    at = 0
    while at < len(added):
        lengths = {n: _length(removed, added, forms, n, at) for n in places.get(forms[1][at], ())}
        best = max(lengths, key=lambda n: lengths[n], default=0)
        length = lengths.get(best, 0)
        if sum(map(bool, forms[1][at : at + length])) >= MIN_MOVED_LINES:
            yield Move(tuple(removed[best : best + length]), tuple(added[at : at + length]))
            at += length
        else:
            at += 1


def _length(
    removed: Sequence[MovableLine], added: Sequence[MovableLine], forms: Sequence[Sequence[str]], old: int, new: int
) -> int:
    """Return how many lines, from these on, are the same and follow each other on both sides."""
    n = 0
    indents = _indent(removed[old].text), _indent(added[new].text)
    if indents[0] != indents[1] and not (written_names(added[new].text) or added[new].text.lstrip().startswith("@")):
        return 0
    while (
        old + n < len(removed)
        and new + n < len(added)
        and forms[0][old + n] == forms[1][new + n]
        and (not forms[0][old + n] or _is_within(removed[old + n].text, added[new + n].text, indents))
        and _follows(removed, old, n)
        and _follows(added, new, n)
    ):
        n += 1
    return n


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _is_within(old: str, new: str, indents: tuple[str, str]) -> bool:
    """Return whether two lines are indented alike, as seen from the first lines of their blocks."""
    pairs = zip((_indent(old), _indent(new)), indents, strict=True)
    depths = [own.removeprefix(first) if own.startswith(first) else None for own, first in pairs]
    return depths[0] is not None and depths[0] == depths[1]


def _follows(lines: Sequence[MovableLine], first: int, n: int) -> bool:
    return (lines[first + n].file, lines[first + n].number) == (lines[first].file, lines[first].number + n)
