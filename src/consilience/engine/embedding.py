"""Vectors of a session's texts, by text id: each text is encoded once, and each batch of new texts is one event.

A text is new to a branch unless the branch, its ancestors before the fork or branches that have joined it embedded it. So the
events depend on the program alone. Parallel branches that need the same text each record its vector, and encode it once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from consilience.domain.errors import ProtocolViolation, ProviderError, RequestMismatch
from consilience.domain.events import TextsEmbedded, text_id
from consilience.engine.ledger import TimeLeft
from consilience.engine.similarity import Encoder, quantise
from consilience.engine.state import State


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
        event = self._recorded_at(place, new)
        if event is not None and not event.error:
            self._vectors.update(self._decode(event))
        elif event is None and new:
            event = await self._record(place, new, texts)
        if event is not None and event.error:
            raise EmbeddingFailed(event.error)
        embedded.update(texts)
        return {id: self._vector(id) for id in texts}

    def _recorded_at(self, place: str, new: tuple[str, ...]) -> TextsEmbedded | None:
        """Return the event of this place."""
        event = self._state.recorder.recorded_at(place, TextsEmbedded, required=bool(new) and new not in self._failures)
        if event is None:
            return self._failures.get(new)
        if event.texts != new:
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
            end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._encoding.update(dict.fromkeys(mine, end))
            try:
                time_left = TimeLeft(self._state.ledger.seconds_left(closing=False))
                encoding = encoder.encode([texts[id] for id in mine])
                vectors = await self._state.in_flight.await_within(time_left, encoding)
                self._vectors.update(zip(mine, map(quantise, vectors), strict=True))
            finally:
                for id in mine:
                    del self._encoding[id]
                end.set_result(None)

    def _vector(self, id: str) -> bytes:
        if id not in self._vectors:
            self._vectors.update(self._decode(self._recorded[id]))
        return self._vectors[id]

    def _decode(self, event: TextsEmbedded) -> dict[str, bytes]:
        lines = self._state.recorder.journal.store.text(event.vectors).split("\n")
        return dict(zip(event.texts, map(bytes.fromhex, lines), strict=True))
