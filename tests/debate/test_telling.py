"""`tell`: a finished debate learns a fact; who moves, what is asked again, what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from consilience import Debate, DebateReport, Deliberation, Limits, Solo, Source, SqliteStore, run_sync
from consilience.domain.errors import SettingsError
from consilience.domain.events import AnyEvent, CallCompleted
from consilience.domain.outcome import StopReason
from consilience.domain.sections import Paragraph
from consilience.engine.faults import Crash, Fault
from consilience.engine.runner import Options
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit import runner
from kit.debating import SIDES, Debaters, moves_of, side_of

Answer = dict[str, object]
TASK = "Should we move the orders to queues?"
FACT = "The peak is 12.4k events a second."
SETTINGS = {"debaters": 3, "as_is": True, "max_messages": 30}


def changing_sides(*agents: str) -> Debaters:
    """Debaters of whom some change sides on a new fact."""

    def told(request: ModelRequest) -> Answer:
        side = side_of(request.agent)
        return {"p1": SIDES[SIDES.index(side) - 1] if request.agent in agents else side}

    return Debaters({"told": told})


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "journal.db")


async def begin(
    store: SqliteStore, script: Callable[[ModelRequest], str] | None = None, **fields: object
) -> DebateReport:
    model = ScriptedModel(script or Debaters())
    report = await runner.start(TASK, Debate(**SETTINGS), models=model, store=store, session="parent", **fields)  # type: ignore[arg-type]
    assert isinstance(report, DebateReport)
    return report


async def tell(
    store: SqliteStore,
    *agents: str,
    model: ScriptedModel | None = None,
    parent: str = "parent",
    name: str = "told",
    sources: tuple[Source, ...] = (),
    options: Options | None = None,
) -> DebateReport:
    deliberation: Deliberation[DebateReport] = Deliberation(
        model=model or ScriptedModel(changing_sides(*agents)), store=store, options=options
    )
    return await deliberation.tell(parent, FACT, sources=sources, name=name)


async def test_document_that_comes_with_a_fact_renames_no_agent(store: SqliteStore) -> None:
    parent = await begin(store)
    model = ScriptedModel(changing_sides())
    report = await tell(store, model=model, sources=(Source("Only site A is left, not site B.", "memo"),))
    assert report.letters == parent.letters
    assert {request.key.partition("/")[0] for request in model.requests} <= {"told", "closing"}


@pytest.mark.parametrize("agents", [(), ("D2",), ("D1", "D3"), ("D1", "D2", "D3")])
async def test_tell_reports_exactly_the_agents_whose_answer_changed(
    store: SqliteStore, agents: tuple[str, ...]
) -> None:
    parent = await begin(store)
    report = await tell(store, *agents)

    (fact,) = report.told
    assert fact.fact == FACT
    assert tuple(change.agent for change in fact.moved) == agents
    final = {ballot.agent: ballot.positions for ballot in report.ballots if ballot.step == 1}
    before = {ballot.agent: ballot.positions for ballot in parent.ballots if ballot.step == 1}
    assert {agent for agent in final if final[agent] != before[agent]} == set(agents)
    assert f"{len(agents)} of 3 moved" in report.markdown().split("## ", 2)[1]


async def test_brief_after_tell_refers_to_the_ballots_on_the_fact(store: SqliteStore) -> None:
    await begin(store)
    report = await tell(store)
    calls = {event.key for event in store.read(report.session) if isinstance(event, CallCompleted)}
    blocks = report.presentation().above_answer
    refs = {ref for block in blocks if isinstance(block, Paragraph) for ref in block.refs}
    kinds = {ref.split("/")[0] for ref in refs if not ref.endswith("/said")}
    assert kinds == {"told", "closing"}
    assert {ref for ref in refs if not ref.endswith("/said")} <= calls
    assert {ballot.key for ballot in report.told[0].before} <= calls


async def test_tell_does_not_count_a_change_of_confidence_or_reason_as_a_move(store: SqliteStore) -> None:
    await begin(store)
    script = Debaters(
        {"told": lambda request: {"confidence": "unsure", "reason": "new words", "claim": "another claim"}}
    )
    report = await tell(store, model=ScriptedModel(script))
    assert report.told[0].moved == ()


async def test_tell_counts_a_change_on_a_thread_question_as_a_move(store: SqliteStore) -> None:
    await begin(store)
    script = Debaters({"told": lambda request: {"q1": "UNCERTAIN"} if request.agent == "D1" else {}})
    report = await tell(store, model=ScriptedModel(script))
    assert [change.agent for change in report.told[0].moved] == ["D1"]


async def test_tell_repeats_only_final_ballots_and_the_closing_call(store: SqliteStore) -> None:
    parent = await begin(store)
    model = ScriptedModel(changing_sides("D1"))
    report = await tell(store, model=model, sources=(Source(text="Measured: 12,400/s.", name="load test"),))

    assert [request.key for request in model.requests] == ["told/1/D1", "told/1/D2", "told/1/D3", "closing"]
    assert all(FACT in request.text and "12,400/s" in request.text for request in model.requests)
    assert report.ledger.actual.inherited == parent.ledger.actual.calls - 1
    assert report.threads == parent.threads
    assert report.flip_records == parent.flip_records
    assert not [warning for warning in report.warnings if "inherited" in warning]


async def test_tell_leaves_the_parent_session_unchanged(store: SqliteStore) -> None:
    def recorded() -> list[AnyEvent]:
        return list(store.read("parent"))

    parent = await begin(store)
    before = recorded()
    await tell(store, "D1")
    assert recorded() == before
    assert await runner.resume("parent", store=store) == parent
    assert (await runner.replay("parent", store=store)).digest() == parent.digest()


async def test_tell_with_a_second_fact_keeps_the_first(store: SqliteStore) -> None:
    await begin(store)
    await tell(store, "D1")
    model = ScriptedModel(changing_sides("D1", "D2"))
    report = await tell(store, model=model, parent="told", name="again")

    assert [request.key for request in model.requests] == ["told/2/D1", "told/2/D2", "told/2/D3", "closing"]
    assert [[change.agent for change in fact.moved] for fact in report.told] == [["D1"], ["D2"]]
    assert (await runner.replay("again", store=store)).digest() == report.digest()


async def test_tell_does_not_count_an_agent_without_a_ballot_as_moved(store: SqliteStore) -> None:
    await begin(store)
    script = changing_sides("D1", "D2")
    model = ScriptedModel(lambda request: "nonsense" if request.key == "told/1/D1" else script(request))
    report = await tell(store, model=model)
    assert [change.agent for change in report.told[0].moved] == ["D2"]
    assert "1 of 3 agents cast no final ballot" in report.regime_description


async def test_tell_of_a_debate_ended_by_a_limit_does_not_continue_it(store: SqliteStore) -> None:
    other = SqliteStore(":memory:")
    calls = (await begin(other)).ledger.actual.calls
    other.close()
    parent = await begin(store, limits=Limits(calls=calls - 3))
    assert [call.key for call in parent.failed_calls if call.key.startswith("test/")]

    model = ScriptedModel(changing_sides("D1"))
    report = await tell(store, model=model)
    assert [request.key for request in model.requests] == ["told/1/D1", "told/1/D2", "told/1/D3", "closing"]
    assert report.stop_reason == parent.stop_reason
    assert report.flip_records == parent.flip_records


@pytest.mark.parametrize("point", ["before_call", "after_reply", "after_commit", "before_finish"])
@pytest.mark.parametrize("nth", [1, 3])
async def test_tell_killed_and_resumed_gives_the_same_report(store: SqliteStore, point: str, nth: int) -> None:
    await begin(store)
    whole = await tell(store, "D2", name="whole")
    with pytest.raises(Crash):
        await tell(store, "D2", options=Options(faults=Fault(point, nth=1 if point == "before_finish" else nth).hit))
    store = SqliteStore(store.path)
    resumed = await runner.resume("told", store=store, models=ScriptedModel(changing_sides("D2")))
    assert resumed.digest() == whole.digest()
    assert (await runner.replay("told", store=store)).digest() == whole.digest()


# refusals


async def test_tell_to_a_session_of_another_protocol_is_refused(store: SqliteStore) -> None:
    await runner.start(TASK, Solo(), models=ScriptedModel(lambda request: "No."), store=store, session="parent")
    with pytest.raises(SettingsError, match="protocol solo, which takes no new fact") as error:
        await tell(store)
    assert error.value.do
    assert store.sessions() == ["parent"]


async def test_tell_to_an_unfinished_debate_is_refused(store: SqliteStore) -> None:
    with pytest.raises(Crash):
        await begin(store, options=Options(faults=Fault("after_reply", nth=5).hit))
    with pytest.raises(SettingsError, match="not finished"):
        await tell(SqliteStore(store.path))


async def test_tell_to_a_debate_without_final_ballots_is_refused(store: SqliteStore) -> None:
    script = Debaters({"framing": lambda request: {"form": "not disputable", "propositions": []}})
    await runner.start(TASK, Debate(debaters=2), models=ScriptedModel(script), store=store, session="parent")
    with pytest.raises(SettingsError, match="no agent took a position"):
        await tell(store)


@pytest.mark.parametrize("fact", ["", "  ", "x" * 3000, 7])
async def test_tell_with_an_invalid_fact_is_refused_before_anything_is_recorded(
    store: SqliteStore, fact: object
) -> None:
    await begin(store)
    deliberation: Deliberation[DebateReport] = Deliberation(model=ScriptedModel(Debaters()), store=store)
    with pytest.raises(SettingsError):
        await deliberation.tell("parent", fact)  # type: ignore[arg-type]
    assert store.sessions() == ["parent"]


def test_tell_assigns_answers_to_questions_of_cruxes_without_commitments() -> None:
    """A thread that ended in discovery is crystallized without commitments, and its question is on the ballot."""
    questions = ["Should we move the orders to queues?", "Should we keep the old system for refunds?"]
    script = Debaters(
        {
            "framing": lambda _: {"propositions": questions},
            "reframe": lambda request: {"question": ""} if "/thread-1/" in request.key else {},
            "turn": lambda request: {"move": "CLAIM"} if "CLAIM" in moves_of(request) else {},
            "told": lambda _: {"q1": "YES", "q2": "NO"},
        }
    )
    protocol = Debate(debaters=6, discovery_messages=12, max_messages=60, max_duration=900, new_facts=(FACT,))
    report = run_sync(TASK, protocol, model=ScriptedModel(script))
    assert [bool(thread.commitments) for thread in report.threads if thread.crux] == [False, True]
    (fact,) = report.told
    assert {tuple(ballot.questions.values()) for ballot in fact.ballots} == {("YES", "NO")}


def test_facts_of_a_debate_that_ends_before_its_ballots_are_not_told() -> None:
    def mute(request: ModelRequest) -> str:
        return "nonsense" if request.key.startswith("opening/") else Debaters()(request)

    report = run_sync(TASK, Debate(**SETTINGS, new_facts=(FACT,)), model=ScriptedModel(mute))
    assert isinstance(report, DebateReport)
    assert (report.stop_reason, report.told, report.answer) == (StopReason.FAILED, (), None)
