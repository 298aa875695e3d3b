"""Similarity of texts. Each kind has its own scale; scores of different kinds are never averaged."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import Protocol


class Encoder(Protocol):
    """Turns texts into vectors; equal texts into equal vectors."""

    @property
    def name(self) -> str: ...

    async def encode(self, texts: Sequence[str]) -> list[list[float]]: ...


def jaccard(a: str, b: str) -> float:
    """Jaccard index of the sets of lower-cased whitespace tokens, in [0, 1]; both empty 1.0, one empty 0.0 (seed 000 §3.6)."""
    return set_jaccard(token_set(a), token_set(b))


def token_set(text: str) -> frozenset[str]:
    """Return the lower-cased tokens between whitespace."""
    return frozenset(text.lower().split())


def set_jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """Size of the intersection over that of the union; 1.0 for two empty sets."""
    common = len(a & b)
    union = len(a) + len(b) - common
    return common / union if union else 1.0


def pairwise(texts: Sequence[str]) -> list[list[float]]:
    """Return for every text its `jaccard` with each other text, in order. Each text is split once, each pair compared once."""
    sets = [token_set(text) for text in texts]
    rows: list[list[float]] = [[] for _ in sets]
    for i, left in enumerate(sets):
        for j in range(i + 1, len(sets)):
            score = set_jaccard(left, sets[j])
            rows[i].append(score)
            rows[j].append(score)
    return rows


def mean_score(rows: Sequence[Sequence[float]]) -> float | None:
    """Mean of the scores that `pairwise` returns; None for fewer than two texts."""
    scores = [score for row in rows for score in row]
    return math.fsum(scores) / len(scores) if scores else None


def mean_pairwise(texts: Sequence[str]) -> float | None:
    """Mean `jaccard` over all pairs; None for fewer than two texts."""
    return mean_score(pairwise(texts))


def quantise(vector: Sequence[float]) -> bytes:
    """A vector as int8, scaled so that its largest component is 127. Similarity is computed on these integers."""
    largest = max((abs(x) for x in vector), default=0.0) or 1.0
    return bytes(round(x / largest * 127) & 0xFF for x in vector)


def cosine(a: bytes, b: bytes) -> float:
    """Cosine of two quantised vectors, in [-1, 1]; 0.0 if either is all zeros."""
    left, right = _integers(a), _integers(b)
    return _cosine(sum(map(mul, left, right)), _square(a), _square(b))


def cosines(rows: Sequence[bytes], columns: Sequence[bytes]) -> list[list[float]]:
    """The `cosine` of each of `rows` with each of `columns`.

    All products of a row come from one sum of big integers, in which each column has 32 bits. That takes about a tenth of the
    time of single products.
    """
    if not rows or not columns:
        return [[] for _ in rows]
    if len({len(vector) for vector in (*rows, *columns)}) > 1:
        raise ValueError("vectors of different lengths do not compare")
    count = len(columns)
    dimensions = _by_dimension(tuple(columns))
    squares = list(map(_square, columns))
    base = int.from_bytes(b"\0\0\0\x80" * count, "little")
    table = []
    for row in rows:
        integers = _integers(row)
        total = base + sum(map(mul, integers, dimensions))
        offset = 2**31 + 128 * sum(integers)
        products = struct.unpack(f"<{count}I", total.to_bytes(4 * count, "little"))
        square = _square(row)
        table.append(
            [_cosine(product - offset, square, other) for product, other in zip(products, squares, strict=True)]
        )
    return table


@lru_cache(maxsize=32)
def _by_dimension(columns: tuple[bytes, ...]) -> list[int]:
    """For each dimension, one integer that holds the component of every column, plus 128, in 32 bits each."""
    shifted = b"".join(column.translate(_PLUS_128) for column in columns)
    size, lanes = len(columns[0]), bytearray(4 * len(columns))
    packed = []
    for dimension in range(size):
        lanes[::4] = shifted[dimension::size]
        packed.append(int.from_bytes(lanes, "little"))
    return packed


@lru_cache(maxsize=4096)
def _square(vector: bytes) -> int:
    integers = _integers(vector)
    return sum(map(mul, integers, integers))


def _integers(vector: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(vector)}b", vector)


def _cosine(product: int, left: int, right: int) -> float:
    squares = left * right
    return product / math.sqrt(squares) if squares else 0.0


_PLUS_128 = bytes((component + 128) % 256 for component in range(256))
