"""Similarity of texts, and the vectors that it compares. Each kind has its own scale; scores of different kinds are never averaged.

Each text of a session is encoded once, and each batch of new texts is one event. A text is new to a branch unless the branch, its
ancestors before the fork or branches that have joined it embedded it. So the events depend on the program alone. Parallel branches
that need the same text each record its vector, and encode it once.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING, Protocol

from consilience.domain.errors import ProtocolViolation, ProviderError, RequestMismatch
from consilience.domain.events import TextsEmbedded, text_id
from consilience.engine.ledger import TimeLeft
from consilience.engine.timing import await_within

if TYPE_CHECKING:
    from consilience.engine.state import State


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


def set_jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Size of the intersection over that of the union; 1.0 for two empty sets."""
    both = len(left & right)
    union = len(left) + len(right) - both
    return both / union if union else 1.0


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


class EmbeddingFailed(Exception):
    """The encoder failed; the failure is recorded."""


class Embeddings:
    """The recorded vectors of a session, and new ones from its encoder."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._vectors: dict[str, bytes] = {}
        self._recorded: dict[str, TextsEmbedded] = {}
        self._failures: dict[tuple[str, ...], TextsEmbedded] = {}
        self._encoding: dict[str, asyncio.Future[None]] = {}
        self._inherited: set[str] = set()
        for event in state.recorder.events:
            if not isinstance(event, TextsEmbedded):
                continue
            if not event.error:
                self._recorded.update(dict.fromkeys(event.texts, event))
                self._inherited.update(event.texts if event.inherited else ())
            elif event.inherited:
                self._failures[event.texts] = event

    async def embed(self, place: str, texts: Mapping[str, str], embedded: set[str]) -> dict[str, bytes]:
        """Return the vectors of `texts` (by id); those in `embedded` are not new. Raises `EmbeddingFailed`."""
        new = tuple(id for id in texts if id not in embedded and id not in self._inherited)
        event = self._recorded_at(place, new, texts)
        if event is not None and not event.error:
            self._vectors.update(self._decode(event))
        elif event is None and new:
            event = await self._record(place, new, texts)
        if event is not None and event.error:
            raise EmbeddingFailed(event.error)
        embedded.update(texts)
        return {id: self._vector(id) for id in texts}

    def _recorded_at(self, place: str, new: tuple[str, ...], texts: Mapping[str, str]) -> TextsEmbedded | None:
        """Return the event of this place. Earlier versions recorded all texts of a comparison, not only new ones."""
        event = self._state.recorder.recorded_at(place, TextsEmbedded, required=bool(new) and new not in self._failures)
        if event is None:
            return self._failures.get(new)
        if not set(new) <= set(event.texts) <= set(texts):
            raise RequestMismatch(f"the journal has vectors of other texts at {place}")
        return event

    async def _record(self, place: str, new: tuple[str, ...], texts: Mapping[str, str]) -> TextsEmbedded:
        """Encode texts that no branch has encoded yet, and record the vectors of all texts that are new to this branch."""
        encoder = self._state.encoder
        if encoder is None:
            raise ProtocolViolation("embedding similarity without an encoder; the protocol must declare needs_encoder")
        recorded = next(iter(self._recorded.values()), None)
        if recorded is not None and recorded.encoder != encoder.name:
            raise RequestMismatch(
                f"the session has vectors of the encoder {recorded.encoder}, which do not compare with those of {encoder.name}"
            )
        try:
            await self._encode(encoder, new, texts)
        except ProviderError as failure:
            event = TextsEmbedded(place=place, encoder=encoder.name, texts=new, error=failure.detail)
            await self._state.recorder.commit(event)
            return event
        body = "\n".join(self._vector(id).hex() for id in new)
        event = TextsEmbedded(place=place, encoder=encoder.name, texts=new, vectors=text_id(body))
        await self._state.recorder.commit(event, [*(texts[id] for id in new), body])
        return event

    async def _encode(self, encoder: Encoder, new: Sequence[str], texts: Mapping[str, str]) -> None:
        """Fill `_vectors`. A text that another branch is encoding is awaited, and encoded here if that fails."""
        while missing := [id for id in new if id not in self._vectors and id not in self._recorded]:
            mine = [id for id in missing if id not in self._encoding]
            if not mine:
                await asyncio.wait({self._encoding[id] for id in missing}, return_when=asyncio.FIRST_COMPLETED)
                continue
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._encoding.update(dict.fromkeys(mine, ended))
            try:
                left = TimeLeft(self._state.ledger.seconds_left(closing=False))
                encoding = encoder.encode([texts[id] for id in mine])
                vectors = await await_within(left, encoding, self._state.cancelled)
                self._vectors.update(zip(mine, map(quantise, vectors), strict=True))
            finally:
                for id in mine:
                    del self._encoding[id]
                ended.set_result(None)

    def _vector(self, id: str) -> bytes:
        if id not in self._vectors:
            self._vectors.update(self._decode(self._recorded[id]))
        return self._vectors[id]

    def _decode(self, event: TextsEmbedded) -> dict[str, bytes]:
        lines = self._state.recorder.journal.store.text(event.vectors).split("\n")
        return dict(zip(event.texts, map(bytes.fromhex, lines), strict=True))
