"""How alike two texts are. Each kind has its own scale; scores of different kinds are never averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol


class Encoder(Protocol):
    """Turns texts into vectors. Equal texts give equal vectors."""

    @property
    def name(self) -> str: ...

    async def encode(self, texts: Sequence[str]) -> list[list[float]]: ...


def jaccard(a: str, b: str) -> float:
    """Shared share of the sets of lower-cased whitespace tokens, in [0, 1]; both empty 1.0, one empty 0.0 (seed 000 §3.6)."""
    return shared(tokens(a), tokens(b))


def tokens(text: str) -> frozenset[str]:
    """Lower-cased, by whitespace."""
    return frozenset(text.lower().split())


def shared(left: frozenset[str], right: frozenset[str]) -> float:
    """Size of the intersection over that of the union; 1.0 for two empty sets."""
    both = len(left & right)
    union = len(left) + len(right) - both
    return both / union if union else 1.0


def pairwise(texts: Sequence[str]) -> list[list[float]]:
    """For every text its `jaccard` with each other one, in order. Every text is split once, every pair compared once."""
    sets = [tokens(text) for text in texts]
    rows: list[list[float]] = [[] for _ in sets]
    for i, left in enumerate(sets):
        for j in range(i + 1, len(sets)):
            score = shared(left, sets[j])
            rows[i].append(score)  # the earlier ones stand in it already
            rows[j].append(score)
    return rows


def mean_of(rows: Sequence[Sequence[float]]) -> float | None:
    """The mean of what `pairwise` gave; None below two texts."""
    scores = [score for row in rows for score in row]
    return math.fsum(scores) / len(scores) if scores else None


def mean_pairwise(texts: Sequence[str]) -> float | None:
    """Mean `jaccard` over all pairs; None below two texts."""
    return mean_of(pairwise(texts))


def quantised(vector: Sequence[float]) -> bytes:
    """A vector as int8, scaled so that its largest component is 127. Similarity is computed on these integers."""
    largest = max((abs(x) for x in vector), default=0.0) or 1.0
    return bytes(round(x / largest * 127) & 0xFF for x in vector)


def cosine(a: bytes, b: bytes) -> float:
    """Cosine of two quantised vectors, in [-1, 1]; 0.0 if either is all zeros."""
    left = [x - 256 if x > 127 else x for x in a]
    right = [x - 256 if x > 127 else x for x in b]
    dot = sum(x * y for x, y in zip(left, right, strict=True))
    norms = sum(x * x for x in left) * sum(y * y for y in right)
    return dot / math.sqrt(norms) if norms else 0.0
