"""How a task is worked on: what follows from what is given, and what from a reading of the task."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import get_args

import pytest

from consilience.choosing import MAX_SEATS, REASONS, Given, Rule, choose
from consilience.deliberation import Deliberation
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Estimate
from consilience.domain.tokens import estimate_tokens
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.choose import TaskReading
from consilience.protocols.choose.protocol import TaskKind, TaskShape
from consilience.protocols.emergence import Emergence

ONE, THREE = ("openai-chat:a",), ("openai-chat:a", "openai-chat:b", "human:anna")
WINDOW = 20_000


def documents(*tokens: int) -> tuple[Source, ...]:
    return tuple(Source(text="x " * (n * 7 // 4), name=f"{n}.md") for n in tokens)


def given(models: Sequence[str] = ONE, sources: Sequence[Source] = (), **known: object) -> Given:
    return Given(models=models, documents=sources, **{"window": WINDOW, **known})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "reading", "rule", "protocol"),
    [
        (given(), {"kind": "answer"}, "one", "solo"),
        (given(), {"kind": "decision"}, "one", "solo"),
        (given(), {"kind": "decision", "divides": True}, "divides", "debate"),
        (given(), {"kind": "answer", "divides": True}, "one", "solo"),
        (given(), {"kind": "answer", "record": True}, "record", "debate"),
        (given(), {"kind": "text", "record": True}, "record", "emergence"),
        (given(personas=5), {"kind": "answer"}, "personas", "emergence"),
        (given(personas=5), {"kind": "decision", "divides": True}, "divides", "debate"),
        (given(), {"kind": "text", "shape": "separate"}, "fields", "refinement"),
        (given(), {"kind": "text", "shape": "ordered"}, "one", "solo"),
        (given(THREE), {"kind": "answer"}, "short answer", "vote"),
        (given(THREE), {"kind": "decision"}, "short answer", "vote"),
        (given(THREE), {"kind": "text"}, "models", "emergence"),
        (given(THREE), {"kind": "decision", "divides": True}, "divides", "debate"),
        (given(sources=documents(100), is_target=True), {"kind": "review"}, "review", "review"),
        (given(sources=documents(100)), {"kind": "review"}, "one", "solo"),
        (given(sources=documents(6_000, 6_000)), {"kind": "answer"}, "large", "emergence"),
        (given(sources=documents(5_500, 5_500)), {"kind": "text", "shape": "ordered"}, "whole", "solo"),
        (given(sources=documents(9_000)), {"kind": "text"}, "one", "solo"),
        (given(sources=documents(12_000)), {"kind": "text"}, "whole", "solo"),
        (given(sources=documents(6_000, 6_000), is_target=True), {"kind": "review"}, "large", "emergence"),
    ],
)
def test_reading_and_material_choose_the_protocol(
    known: Given, reading: dict[str, object], rule: str, protocol: str
) -> None:
    assert choose(known) is None, "nobody has read the task yet"
    choice = choose(known, TaskReading.model_validate(reading))
    assert choice is not None
    assert (choice.rule, choice.protocol.name) == (rule, protocol)


def test_change_is_reviewed_and_an_embedded_model_asked_once_without_a_reading() -> None:
    change, embedded = choose(given(sources=documents(10), is_change=True)), choose(given(embedded=True))
    assert change is not None
    assert embedded is not None
    assert (change.protocol.name, embedded.protocol.name, embedded.protocol.estimate().max) == ("review", "solo", 1)


@pytest.mark.parametrize(
    ("known", "reading", "calls"),
    [
        (given(THREE), {"kind": "text"}, 7),
        (given(THREE), {"kind": "text", "record": True}, 15),
        (given(personas=3), {"kind": "text"}, 7),
        (given(personas=5), {"kind": "answer"}, 11),
        (given(THREE, personas=2), {"kind": "answer"}, 7),
        (given(personas=4), {"kind": "text", "record": True}, 19),
        (given(sources=documents(6_000, 6_000)), {"kind": "answer"}, 5),
    ],
)
def test_one_round_is_run_where_nothing_is_to_be_on_record(
    known: Given, reading: dict[str, object], calls: int
) -> None:
    choice = choose(known, TaskReading.model_validate(reading))
    assert choice is not None
    assert choice.protocol.estimate() == Estimate(min=calls, max=calls)


async def test_one_round_brings_together_what_two_readers_of_large_material_hold() -> None:
    """Readers that report the lines on the fee of all that they are shown."""
    fees = ("The fee is 40 euros.", "The fee is 55 euros.")
    sources = [
        Source(text=f"{fee}\n{document.text}", name=f"{n}.md")
        for n, (fee, document) in enumerate(zip(fees, documents(6_000, 6_000), strict=True))
    ]
    choice = choose(given(sources=sources), TaskReading(kind="answer"))
    assert choice is not None

    def report(request: ModelRequest) -> str:
        found = [fee for fee in fees if fee in request.text]
        return json.dumps({"text": " ".join(found) or "Nothing.", "points": [], "claims": []})

    model = ScriptedModel(report)
    deliberation = Deliberation(choice.protocol, model=model, sources=choice.documents, store=SqliteStore(":memory:"))
    result = await deliberation.run("What is the fee?")
    assert result.answer == " ".join(fees)
    shown = [[fee in request.text for fee in fees] for request in model.requests]
    assert sorted(map(sum, shown[:2])) == [1, 2], "one reader is shown the line of the other's share, which is related"
    assert len(shown) == 7, "two inventories first"


def test_seats_are_as_many_as_models() -> None:
    for reading, setting in (
        ({"kind": "answer"}, "votes"),
        ({"kind": "text"}, "children"),
        ({"kind": "decision", "divides": True}, "debaters"),
    ):
        choice = choose(given(THREE), TaskReading.model_validate(reading))
        assert choice is not None
        assert getattr(choice.protocol, setting) == 3


@pytest.mark.parametrize("sizes", [(9_000, 9_000, 9_000), (5_000,) * 7, (9_900, 200), (1_000,) * 60])
def test_each_document_is_dealt_to_one_agent_and_no_share_exceeds_the_room(sizes: tuple[int, ...]) -> None:
    known = given(sources=documents(*sizes))
    choice = choose(known, TaskReading(kind="answer"))
    assert choice is not None
    assert isinstance(choice.protocol, Emergence)
    assert [document.text for document in choice.documents] == [document.text for document in known.documents]
    shares: dict[str, int] = {}
    for document in choice.documents:
        (share,) = (share for share in document.shares if share.lines)
        assert share.lines == ((1, 1),)
        shares[share.agent] = shares.get(share.agent, 0) + estimate_tokens(document.text)
    assert set(shares) <= set(choice.protocol.topology().leaves)
    assert max(shares.values()) <= known.room
    fewer = -(-known.tokens // known.room)
    assert len(shares) <= max(2, 2 * fewer)


@pytest.mark.parametrize("sizes", [(19_000,), (9_500,) * (MAX_SEATS + 1)])
def test_documents_that_no_seats_can_hold_are_refused_before_anybody_reads_the_task(sizes: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match=r"do not fit the context window \(20,000 tokens\); the largest, "):
        choose(given(sources=documents(*sizes)))


def test_code_that_exceeds_half_of_the_window_is_reviewed_in_parts() -> None:
    code = [source.model_copy(update={"name": f"{source.name}.py"}) for source in documents(6_000, 6_000)]
    choice = choose(given(sources=code, is_target=True), TaskReading(kind="review"))
    assert choice is not None
    assert choice.rule == "review"


def test_work_in_order_that_exceeds_the_window_is_refused() -> None:
    with pytest.raises(SettingsError):
        choose(given(sources=documents(9_000, 9_000)), TaskReading(kind="text", shape="ordered"))


def test_whatever_is_given_the_choice_has_a_reason_and_comes_twice_the_same() -> None:
    chosen = set()
    readings = [
        TaskReading(kind=kind, divides=divides, record=record, shape=shape)
        for kind, divides, record, shape in itertools.product(
            get_args(TaskKind), (False, True), (False, True), get_args(TaskShape)
        )
    ]
    for models, sizes, target, change, embedded, personas in itertools.product(
        (ONE, THREE), ((), (100,), (5_500, 5_500)), (False, True), (False, True), (False, True), (0, 3)
    ):
        known, same = (
            given(models, documents(*sizes), is_target=target, is_change=change, embedded=embedded, personas=personas)
            for _ in range(2)
        )
        for reading in readings:
            choice = choose(known, reading)
            assert choice is not None
            assert choice == choose(same, reading)
            chosen.add(choice.rule)
    assert chosen == set(REASONS) == set(get_args(Rule))
