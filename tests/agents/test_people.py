"""People from Python: a seat named `human`, and one that is asked by a function."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import consilience
from consilience.domain.errors import SessionWaiting, SettingsError
from consilience.domain.events import CallAwaited, CallFailed, SessionParked
from consilience.domain.outcome import FailureKind, Limits, SpendingLimits
from consilience.engine import call, ports, recorder
from consilience.engine.ports import AnswerDeferred, Person
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Vote
from consilience.protocols.emergence import Emergence
from consilience.reporting.html import page
from consilience.reporting.questions import named_question, pending_questions, short_name
from consilience.reporting.record import read_record
from consilience.testing import ScriptedModel
from kit import runner
from kit.throwaways import OutsideAgent

TASK = "Is it so?"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.agent} on {request.key}")


def seats(person: object) -> dict[str, object]:
    return {"A1": model(), "A2": person, "A3": model()}


async def test_session_with_an_absent_person_is_parked_at_once(store: SqliteStore) -> None:
    async with asyncio.timeout(20):  # less than the usual patience
        with pytest.raises(SessionWaiting) as parked:
            await consilience.deliberate(TASK, OutsideAgent(), model=seats("human"), store=store, session="s")  # type: ignore[arg-type]
    assert parked.value.awaited == ("say/A2",)
    (question,) = pending_questions(store.read("s"), store.text, store.prompt)
    assert (question.key, question.agent, question.form) == ("say/A2", "A2", None)
    assert question.text == "Be brief.\n\n# Task\nIs it so?\n\nsay"
    store.post("s", "answer", "say/A2", "It is.")
    report = await consilience.resume("s", model=seats("human"), store=store)  # type: ignore[arg-type]
    assert report.stop_reason == "settled"
    assert report.ledger.actual.cost == 0.0, "a person costs nothing that is counted here"
    assert pending_questions(store.read("s"), store.text, store.prompt) == []
    assert (await consilience.replay("s", store=store)).digest() == report.digest()


async def test_recorded_question_contains_documents_and_quotations(store: SqliteStore) -> None:
    """A1 closes, and so is shown what the others said."""
    models = {"A1": "human", "A2": model(), "A3": model()}
    fields = {"model": models, "store": store}
    with pytest.raises(SessionWaiting):
        await consilience.deliberate(
            TASK,
            OutsideAgent(),
            sources=[consilience.Source(text="One.\nTwo.", name="a note")],
            session="s",
            **fields,  # type: ignore[arg-type]
        )
    store.post("s", "answer", "say/A1", "It is, \x1b[31msays the person.")
    with pytest.raises(SessionWaiting) as parked:
        await consilience.resume("s", **fields)  # type: ignore[arg-type]
    assert parked.value.awaited == ("close",)
    (question,) = pending_questions(store.read("s"), store.text, store.prompt)
    assert "document S1:\n  | a note\n  | 1| One.\n  | 2| Two." in question.text
    assert "A1:\n  | It is, says the person." in question.text, "without what steers a terminal"
    assert "A2:\n  | A2 on say/A2" in question.text


async def test_question_to_a_person_is_recorded_once(store: SqliteStore) -> None:
    options = Options(patience=0)
    for begun in range(3):
        run = (
            runner.start(TASK, OutsideAgent(), models=seats("human"), store=store, session="s", options=options)  # type: ignore[arg-type]
            if begun == 0
            else runner.resume("s", models=seats("human"), store=store, options=options)  # type: ignore[arg-type]
        )
        with pytest.raises(SessionWaiting):
            await run
    events = store.read("s")
    assert sum(isinstance(event, SessionParked) for event in events) == 3
    assert sum(isinstance(event, CallAwaited) for event in events) == 1


async def test_departed_person_does_not_park_while_another_is_asked(store: SqliteStore) -> None:
    """A1 has left; the session stays up as long as A2 thinks, whatever that takes."""
    left, asked, answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def leave(request: ModelRequest) -> str:
        left.set()
        raise AnswerDeferred

    async def think(request: ModelRequest) -> str:
        asked.set()
        await answer.wait()
        return "After a while."

    people = {"A1": Person("human:Ada", leave), "A2": Person("human:Ben", think), "A3": model()}
    run = asyncio.create_task(
        runner.start(TASK, OutsideAgent(), models=people, store=store, session="s", options=Options(patience=None))
    )
    await asyncio.gather(left.wait(), asked.wait())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not run.done()
    answer.set()
    with pytest.raises(SessionWaiting) as parked:
        await run
    assert parked.value.awaited == ("say/A1",)


async def test_max_time_ignores_the_time_of_a_person(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As none does where the answer comes after the session was parked."""
    clock = [0.0]
    monkeypatch.setattr(call, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def think(request: ModelRequest) -> str:
        clock[0] += 100.0
        return "I thought for long."

    limits = Limits(seconds=1000, agents={"*": SpendingLimits(seconds=10)}, phases={"*": SpendingLimits(seconds=10)})
    people = {id: Person(f"human:{id}", think) for id in ("L1N1", "L2N1")}
    report = await runner.start(
        TASK,
        consilience.Emergence(children=2, max_rounds=2),
        models={**people, "L2N2": model()},
        store=store,
        session="s",
        limits=limits,
    )
    assert clock[0] > 500
    assert not [event for event in store.read("s") if isinstance(event, CallFailed)]
    assert report.stop_reason != "exhausted_time"
    assert (await consilience.replay("s", store=store)).digest() == report.digest()


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The wall clock, in seconds since the epoch, as a test sets it."""
    now = [1_000_000.0]
    monkeypatch.setattr(ports, "time", SimpleNamespace(time=lambda: now[0]))
    return now


def failures(store: SqliteStore) -> list[tuple[str, FailureKind, str]]:
    return [(event.key, event.failure, event.detail) for event in store.read("s") if isinstance(event, CallFailed)]


LATE = ("say/A2", FailureKind.DEADLINE, "no answer within 3600 s, the deadline for people")


async def park(store: SqliteStore, **options: object) -> None:
    with pytest.raises(SessionWaiting):
        await runner.start(
            TASK,
            OutsideAgent(),
            models=seats("human"),  # type: ignore[arg-type]
            store=store,
            session="s",
            options=Options(**options),  # type: ignore[arg-type]
        )


async def test_parked_question_ends_at_its_deadline_counted_from_the_question(
    store: SqliteStore, wall: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is recorded with the session: a resume needs no option, and a replay reads no clock."""
    await park(store, human_deadline=3600)
    wall[0] += 3599
    with pytest.raises(SessionWaiting):
        await runner.resume("s", models=seats("human"), store=store)  # type: ignore[arg-type]
    assert failures(store) == []
    wall[0] += 1
    report = await runner.resume("s", models=seats("human"), store=store)  # type: ignore[arg-type]
    assert failures(store) == [LATE]
    assert report.replied == 2
    assert [missing.agent for missing in report.missing] == ["A2"]
    assert report.answer == "A1 on close"
    monkeypatch.delattr(ports.time, "time")
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_answer_posted_while_parked_counts_after_the_deadline(store: SqliteStore, wall: list[float]) -> None:
    await park(store, human_deadline=3600)
    wall[0] += 1_000_000
    store.post("s", "answer", "say/A2", "It is.")
    report = await runner.resume("s", models=seats("human"), store=store)  # type: ignore[arg-type]
    assert failures(store) == []
    assert report.replied == 3


async def test_person_without_an_answer_at_the_deadline_fails_the_call(store: SqliteStore) -> None:
    """In real time: one who has left, and one who thinks and is asked last, so that the session stays up for both."""

    async def think(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    async def leave(request: ModelRequest) -> str:
        raise AnswerDeferred

    models = {"A1": model(), "A2": Person("human:Ada", leave), "A3": Person("human:Ben", think)}
    async with asyncio.timeout(20):
        report = await runner.start(
            TASK,
            OutsideAgent(),
            models=models,
            store=store,
            session="s",
            options=Options(patience=None, human_deadline=0.05),
        )
    assert {(key, kind) for key, kind, _ in failures(store)} == {
        ("say/A2", FailureKind.DEADLINE),
        ("say/A3", FailureKind.DEADLINE),
    }
    assert report.answer == "A1 on close"
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_human_deadline_does_not_apply_to_models_and_can_be_changed_on_resume_or_fork(
    store: SqliteStore, wall: list[float]
) -> None:
    await park(store)
    wall[0] += 3600
    with pytest.raises(SessionWaiting):
        await runner.resume("s", models=seats("human"), store=store)  # type: ignore[arg-type]
    report = await runner.resume("s", models=seats("human"), store=store, options=Options(human_deadline=3600))  # type: ignore[arg-type]
    assert failures(store) == [LATE]
    assert report.stop_reason == "exhausted_budget", "of this protocol, for any failure"
    with pytest.raises(SettingsError, match="human_deadline must be greater than 0, not 0"):
        Options(human_deadline=0)


async def test_question_asked_before_max_time_can_be_answered_after_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others used up the time while the person thought. What is asked from then on is refused; the question stands."""
    clock = [0.0]
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def slow(request: ModelRequest) -> str:
        clock[0] += 60.0
        return f"{request.agent} on {request.key}"

    limits = Limits(seconds=100, agents={"A2": SpendingLimits(seconds=10)}, phases={"*": SpendingLimits(seconds=100)})
    models = {"A1": ScriptedModel(slow), "A2": "human", "A3": ScriptedModel(slow)}
    fields = {"models": models, "store": store}
    with pytest.raises(SessionWaiting):
        await runner.start(TASK, OutsideAgent(), session="s", limits=limits, **fields)  # type: ignore[arg-type]
    with pytest.raises(SessionWaiting) as parked:
        await runner.resume("s", **fields)  # type: ignore[arg-type]
    assert parked.value.awaited == ("say/A2",)
    assert failures(store) == []
    store.post("s", "answer", "say/A2", "It is.")
    report = await runner.resume("s", **fields)  # type: ignore[arg-type]
    assert report.replied == 3
    assert [(key, kind) for key, kind, _ in failures(store)] == [("close", FailureKind.TIME)]
    assert (await runner.replay("s", store=store)).digest() == report.digest()


PEOPLE = {"L1N1": model(), "L2N1": "human:Anna", "L2N2": "human:Ben", "L2N3": "human"}


async def test_people_read_a_short_text_and_no_instructions_for_models(store: SqliteStore) -> None:
    asked: dict[str, str] = {}

    async def answer(request: ModelRequest) -> str:
        asked[request.key] = request.for_person
        return '{"text": "In June."}'

    seats = {**PEOPLE, "L2N1": Person("human:Anna", answer), "L1N1": model()}
    with pytest.raises(SessionWaiting):
        await consilience.deliberate(TASK, Emergence(max_rounds=1), model=seats, store=store, session="s")  # type: ignore[arg-type]
    recorded = {
        question.key: question.text for question in pending_questions(store.read("s"), store.text, store.prompt)
    }
    for text in (asked["round-1/leaf_respond/L2N1"], recorded["round-1/leaf_respond/L2N2"]):
        assert f"# Task\n{TASK}" in text
        assert "Answer the whole task from your own experience." in text
        assert len(text.split()) < 80
        assert "material" not in text


async def test_person_is_named_as_a_person_in_report_page_and_questions(store: SqliteStore) -> None:
    with pytest.raises(SessionWaiting):
        await consilience.deliberate(TASK, Vote(votes=4), model=VOTERS, store=store, session="s")  # type: ignore[arg-type]
    for agent in ("V2", "V3", "V4"):
        store.post("s", "answer", f"answer/{agent}", "Yes.")
    report = await consilience.resume("s", model=VOTERS, store=store)  # type: ignore[arg-type]
    text = report.markdown().replace("\\", "")
    assert "- 3 of the 4 agents are people: Anna (V2), Ben (V3), a person (V4)." in text
    assert "model of its own" not in text
    assert "share" not in text
    assert not report.independence.shared, "two people are not one model"
    assert "Anna, Ben, a person, scripted" in report.html()
    assert "Anna (V2)" in page(read_record(store, "s"))


VOTERS = {"V1": ScriptedModel(lambda request: "Yes."), "V2": "human:Anna", "V3": "human:Ben", "V4": "human"}


@pytest.mark.parametrize(
    ("name", "key"),
    [("anna", "answer/V2"), ("V3", "answer/V3"), ("answer/V4", "answer/V4"), ("V1", "V1"), ("", "")],
)
async def test_agent_or_person_is_the_name_of_its_only_question(store: SqliteStore, name: str, key: str) -> None:
    with pytest.raises(SessionWaiting):
        await consilience.deliberate(TASK, Vote(votes=4), model=VOTERS, store=store, session="s")  # type: ignore[arg-type]
    questions = pending_questions(store.read("s"), store.text, store.prompt)
    assert named_question(name, questions) == key
    assert [short_name(question, questions) for question in questions] == ["Anna", "Ben", "V4"]
    twice = [*questions, replace(questions[0], key="round-2/V2")]
    assert named_question("anna", twice) == "anna", "it names two questions"
    assert short_name(twice[0], twice) == "answer/V2"
