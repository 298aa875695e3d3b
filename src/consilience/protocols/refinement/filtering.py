"""What is handed down from parent to child is shortened by the distance between their roles (seed 004, M9; protocols §5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from consilience.engine.analysis import sentences

WEAKENING = 0.7
"""How much of its strength a context loses at distance 1."""

UNKNOWN_DISTANCE = 0.5
"""What stands for the distance of roles that have no vectors: that of nothing in common."""

NEVER_CUT = 3
"""A text of so few sentences stays whole."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """A text, and how many of its sentences it keeps."""

    text: str
    kept: int
    of: int


def strength(distance: float) -> float:
    """`1 − 0.7·d`: 1 for the same role, 0.3 for an opposed one."""
    return 1.0 - distance * WEAKENING


def filter_context(text: str, distance: float) -> Filtered:
    """The first ⌊n·strength⌋ of n sentences, at least one; all of them at distance 0 and where there are no more than three.

    What is kept is kept as written, line breaks and all.
    """
    found = sentences(text)
    if distance == 0 or len(found) <= NEVER_CUT:
        return Filtered(text, len(found), len(found))
    kept = max(1, math.floor(len(found) * strength(distance) + 1e-9))
    end = 0
    for sentence in found[:kept]:
        end = text.index(sentence, end) + len(sentence)
    return Filtered(text[:end], kept, len(found))
