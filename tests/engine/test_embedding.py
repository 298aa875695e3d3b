"""Vectors by text id: each text is encoded once, a batch of new texts is one event, any order of arrival gives one journal."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from consilience.domain.errors import RequestMismatch, ServerError
from consilience.domain.events import Event, TextsEmbedded, canonical_digest, text_id
from consilience.domain.report import Report
from consilience.engine.faults import Crash, Fault
from consilience.engine.prompt import Prompt
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.similarity import cosine, cosines, quantise
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.throwaways import Body, Made


class Hashing:
    """An encoder that counts; with an `order` it takes a random number of turns of the loop."""

    name = "hashing"

    def __init__(self, order: int | None = None, fails: int = 0) -> None:
        self.encoded: list[str] = []
        self.requests = 0
        self._order = random.Random(order) if order is not None else None
        self._fails = fails

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        self.requests += 1
        if self._order is not None:
            for _ in range(self._order.randrange(12)):
                await asyncio.sleep(0)
        if self.requests <= self._fails:
            raise ServerError("the encoder is down")
        self.encoded += texts
        return [[byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()] for text in texts]


async def play(body: Body, encoder: Hashing | None, store: SqliteStore, **arguments: object) -> Report:
    Made.body = staticmethod(body)  # type: ignore[assignment]
    model = ScriptedModel(lambda request: f"reply to {request.key}")
    return await runner.start("Why?", Made(), models=model, store=store, encoder=encoder, session="s", **arguments)  # type: ignore[arg-type]


def embeddings(store: SqliteStore) -> list[TextsEmbedded]:
    return [event for event in store.read("s") if isinstance(event, TextsEmbedded)]


async def test_embedding_encodes_each_text_once_with_one_event_per_batch() -> None:
    """Agents of a clock wake, compare what is new with what they wrote themselves, and write."""
    wakes = 0

    async def body(session: Session) -> None:
        nonlocal wakes
        written: list[tuple[str, str]] = []

        async def member(agent: str) -> None:
            nonlocal wakes
            read = 0
            for turn in range(10):
                await session.clock.sleep(session.rng(agent, turn).randrange(1000, 9000))
                wakes += 1
                new = [text for _, text in written[read:]]
                own = [text for writer, text in written if writer == agent]
                read = len(written)
                scores = await session.cosines(new, own)
                assert scores is not None
                assert [len(row) for row in scores] == [len(own)] * len(new)
                written.append((agent, f"text {turn} of {agent}"))

        for agent in session.agents:
            session.clock.spawn(agent.id, member(agent.id))
        await session.clock.run()
        assert await session.similarity("embedding", written[0][1], written[0][1]) == 1.0

    encoder, store = Hashing(), SqliteStore(":memory:")
    report = await play(body, encoder, store)
    assert sorted(encoder.encoded) == sorted(set(encoder.encoded))
    events = embeddings(store)
    assert [text for event in events for text in event.texts] == list(map(text_id, encoder.encoded))
    assert len(events) == encoder.requests < wakes
    await runner.replay(report.session, store=store)
    assert encoder.requests == len(events), "a replay encodes nothing"


async def side_by_side(session: Session) -> None:
    """Branches that need one another's texts, before and after they have joined."""

    async def branch(n: int) -> list[list[float]] | None:
        await session.ask("A1", Prompt("x"), key=f"ask/{n}")
        return await session.cosines(["common", f"own {n}", f"own {n // 2}"])

    assert await session.embed(["before"]) is not None
    scores = await session.gather([session.subtask(branch(n), calls=1) for n in range(6)])
    assert None not in scores
    assert await session.cosines(["before", "common", "own 5", "after"]) is not None


async def test_parallel_branches_encode_a_common_text_once_and_give_the_same_journal() -> None:
    digests, requests = set(), set()
    for order in range(40):
        encoder, store = Hashing(order), SqliteStore(":memory:")
        await play(side_by_side, encoder, store)
        assert sorted(encoder.encoded) == ["after", "before", "common", *(f"own {n}" for n in range(6))]
        digests.add(canonical_digest(store.read("s")))
        requests.add(tuple(encoder.encoded))
        assert embeddings(store)[-1].texts == (text_id("after"),), (
            "what the branches embedded is known once they have joined"
        )
        store.close()
    assert len(digests) == 1
    assert len(requests) > 1, "no order of encoding differed"


async def test_resume_after_a_kill_encodes_no_recorded_text_again(tmp_path: Path) -> None:
    for kill in range(1, 7):
        seen = itertools.count(1)

        def die(event: Event, kill: int = kill, seen: itertools.count[int] = seen) -> None:
            if isinstance(event, TextsEmbedded) and next(seen) == kill:
                raise Crash("killed")

        path = tmp_path / f"{kill}.db"
        encoder = Hashing(kill)
        with pytest.raises(Crash):
            await play(side_by_side, encoder, SqliteStore(path), options=Options(observer=die))
        store = SqliteStore(path)
        recorded = {id for event in embeddings(store) for id in event.texts}
        encoder = Hashing(kill + 100)
        model = ScriptedModel(lambda request: f"reply to {request.key}")
        await runner.resume("s", store=store, models=model, encoder=encoder)
        assert not recorded & set(map(text_id, encoder.encoded))
        reference = SqliteStore(":memory:")
        await play(side_by_side, Hashing(), reference)
        assert canonical_digest(store.read("s")) == canonical_digest(reference.read("s"))
        store.close()


async def test_failed_encoding_is_recorded_and_the_next_comparison_retries() -> None:
    scores: list[object] = []

    async def body(session: Session) -> None:
        for _ in range(2):
            scores.append(await session.similarity("embedding", "one", "two"))

    encoder, store = Hashing(fails=1), SqliteStore(":memory:")
    report = await play(body, encoder, store)
    assert scores[0] is None
    assert isinstance(scores[1], float)
    assert [event.error for event in embeddings(store)] == ["the encoder is down", ""]
    assert "texts could not be compared by embedding: the encoder is down" in report.warnings
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    assert scores[:2] == scores[2:]


async def test_branch_waiting_for_a_failed_encoding_encodes_the_text_itself() -> None:
    async def body(session: Session) -> None:
        works = [session.subtask(session.embed([text, "common"]), calls=0) for text in ("a", "b", "c")]
        results = await session.gather(works)
        assert [result is None for result in results] == [True, False, False]

    encoder, store = Hashing(fails=1), SqliteStore(":memory:")
    await play(body, encoder, store)
    assert sorted(encoder.encoded) == ["b", "c", "common"]


async def test_resume_with_another_encoder_is_refused(tmp_path: Path) -> None:
    async def body(session: Session) -> None:
        await session.embed(["one"])
        await session.ask("A1", Prompt("x"), key="k")
        await session.embed(["one", "two"])

    path = tmp_path / "journal.db"
    with pytest.raises(Crash):
        await play(body, Hashing(), SqliteStore(path), options=Options(faults=Fault("before_call").hit))
    other = Hashing()
    other.name = "other"
    with pytest.raises(RequestMismatch, match="vectors of the encoder hashing"):
        await runner.resume("s", store=SqliteStore(path), models=ScriptedModel(lambda r: "t"), encoder=other)


def test_cosine_matrix_equals_the_single_cosines() -> None:
    rng = random.Random(1)
    extremes = [bytes([127] * 384), bytes([129] * 384), bytes(384), bytes([127, 129] * 192)]
    vectors = [*extremes, *(quantise([rng.gauss(0, 1) for _ in range(384)]) for _ in range(40))]
    expected = [[cosine(a, b) for b in vectors] for a in vectors]
    assert cosines(vectors, vectors) == expected
    assert cosines(vectors[:1], vectors[3:4]) == [[expected[0][3]]]
    assert cosines([], vectors) == []
    assert cosines(vectors[:2], []) == [[], []]
    assert expected[0][:4] == [1.0, -1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="different lengths"):
        cosines([bytes(3)], [bytes(4)])
