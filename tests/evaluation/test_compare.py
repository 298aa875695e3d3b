"""Comparisons: equal budget, private sources, repeats, resuming."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

from consilience.domain.errors import SessionBusy, SettingsError
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import Report
from consilience.domain.tokens import estimate_tokens
from consilience.engine import protocol as registry
from consilience.engine.execution import Options
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import find_protocol
from consilience.engine.session import Session
from consilience.evaluation import (
    Budget,
    CompareObserver,
    CompareRow,
    Comparison,
    Run,
    Task,
    TaskSource,
    compare,
    estimate_rows,
    execute,
    markdown,
    plan,
)
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import Refused, Scripted, ScriptedModel
from kit.juries import Alone, Circle, Poll, adding_up

ROWS = ("circle", "solo", "vote")
PATTERN = r"answer:\W*(\d+)"


def shared_out(id: str, *numbers: int) -> Task:
    """How many apples there are in all; each seat knows one part."""
    names = ("Ann", "Ben", "Cleo", "Dan")
    return Task(
        id=id,
        task="How many apples are there in all?",
        answer=str(sum(numbers)),
        kind="number",
        answer_pattern=PATTERN,
        sources=tuple(
            TaskSource(text=f"{name} has {n} apples.", seat=seat)
            for seat, (name, n) in enumerate(zip(names, numbers, strict=False), 1)
        ),
    )


SPLIT = [shared_out("one", 1, 2, 3), shared_out("two", 4, 5, 6), shared_out("three", 7, 8, 9)]
OPEN = Task(id="open", task="Ann has 3 apples. How many apples are there?", answer="3", answer_pattern=PATTERN)


def by_row(comparison: Comparison, row: str) -> list[Run]:
    row_result = comparison.of(row)
    assert row_result
    return row_result


async def test_compare_on_split_facts_scores_only_protocols_that_share_them(store: SqliteStore) -> None:
    comparison = await compare(SPLIT, ROWS, models=ScriptedModel(adding_up), store=store)
    rows = {row.row: row for row in comparison.rows}
    assert rows["circle"].accuracy == 1.0
    assert rows["solo"].accuracy == rows["vote"].accuracy == 0.0
    assert rows["solo, all sources"].accuracy == 1.0
    assert [run.position for run in by_row(comparison, "solo")] == ["1", "4", "7"]
    assert not any(d.row == "solo, all sources" for d in comparison.differences)


async def test_compare_emergence_on_split_facts_is_right_and_counts_position_changes(
    store: SqliteStore,
) -> None:
    """A real protocol: typed replies, sealed ballots, private sources."""

    def reply(request: ModelRequest) -> Scripted | BaseModel:
        answer = adding_up(request)
        if request.returns is not None and "confidence" in request.returns.model_fields:
            return request.returns(position=str(answer.value), confidence="certain", reason="It adds up.")
        return answer

    settings = {"emergence": {"max_rounds": 1}}
    rows = [find_protocol(name)(**settings.get(name, {})) for name in ("emergence", "solo", "vote")]
    comparison = await compare(SPLIT, rows, models=ScriptedModel(reply), store=store)
    results = {row.row: row for row in comparison.rows}
    assert results["emergence"].accuracy == 1.0
    assert results["vote"].accuracy == 0.0
    for run in by_row(comparison, "emergence"):
        assert (run.voices, run.changes, run.conformity) == (3, 3, 3)  # from their own part to the sum, for no argument
        assert run.draft_similarity == pytest.approx(
            3 / 7
        )  # "has", "apples.", "answer:" of seven different words; ballots are no texts
    assert results["emergence"].conformity == 9


async def test_private_sources_are_assigned_to_seats_in_turn_except_for_solo(store: SqliteStore) -> None:
    task = shared_out("four", 1, 10, 100, 1000)
    model = ScriptedModel(adding_up)
    await compare(task, ["circle", "solo", Poll(size=3)], models=model, store=store)
    shown = {(r.key, a): a in r.text for r in model.requests for a in ("Ann", "Ben", "Cleo", "Dan")}
    for key, names in {
        "say/A1": "Ann Dan",
        "say/A2": "Ben",
        "say/A3": "Cleo",
        "vote/V1": "Ann Dan",
        "vote/V2": "Ben",
        "vote/V3": "Cleo",
    }.items():
        assert [name for name in ("Ann", "Ben", "Cleo", "Dan") if shown[key, name]] == names.split()
    alone = [[n for n in ("Ann", "Ben", "Cleo", "Dan") if n in r.text] for r in model.requests if r.key == "answer"]
    assert alone == [["Ann"], ["Ann", "Ben", "Cleo", "Dan"]]


async def test_budget_of_calls_sizes_vote_to_it_and_bounds_every_row(store: SqliteStore) -> None:
    comparison = await compare(OPEN, ROWS, models=ScriptedModel(adding_up), store=store, budget=Budget(calls=7))
    assert {run.row: run.calls for run in comparison.runs} == {"circle": 4, "solo": 1, "vote": 7}
    assert by_row(comparison, "vote")[0].size == 7


@pytest.mark.parametrize("tokens", [1, 1_000, 2_000, 5_000, 9_000, 20_000])
async def test_budget_of_tokens_is_never_exceeded_and_vote_uses_all_that_fits(store: SqliteStore, tokens: int) -> None:
    """Every reply is as long as the greatest size allows for, so that a vote of one more would not have fitted."""
    model = ScriptedModel(lambda request: Scripted("Answer: 3", tokens_in=500, tokens_out=request.max_tokens))
    comparison = await compare(
        OPEN, ROWS, models=model, store=store, budget=Budget(tokens=tokens), options=Options(detail="brief")
    )
    assert all(run.tokens <= tokens for run in comparison.runs)
    size = CompareRow("vote", Poll()).on(OPEN).at("brief").call_tokens(OPEN)
    vote = by_row(comparison, "vote")[0]
    assert vote.size == max(tokens // size, 1)
    assert vote.calls == (tokens // size or int(tokens == 1_000)), "a single call is made shorter until it fits"
    if tokens < size // 2:
        assert {run.stop_reason for run in comparison.runs} == {StopReason.EXHAUSTED_BUDGET}
        assert not any(run.answered or run.correct for run in comparison.runs)


async def test_matched_vote_costs_what_the_most_expensive_row_spent(store: SqliteStore) -> None:
    comparison = await compare(OPEN, ROWS, models=ScriptedModel(adding_up), store=store)
    spent = {run.row: run.tokens for run in comparison.runs}
    assert spent == {"circle": 1000, "solo": 250, "vote": 1000}  # four calls of 250 each, so four votes
    bound = CompareRow("circle", Circle()).on(OPEN).max_tokens(OPEN)
    assert {run.limit for run in comparison.runs} == {bound}


def held_by(*seats: int) -> Task:
    """Long documents, one for each seat, and one that is open to all."""
    long = "The river rose again and nobody wrote it down. " * 60
    private = tuple(TaskSource(text=f"{n}: {long}", seat=seat) for n, seat in enumerate(seats))
    return Task(id="held", task="What is it?", sources=(TaskSource(text="Ann has 3 apples."), *private))


def counted(request: ModelRequest) -> Scripted:
    return Scripted("Answer: 3", tokens_in=estimate_tokens(request.text), tokens_out=request.max_tokens)


@pytest.mark.parametrize("seats", [(), (1, 2, 3), (2,), (1, 1), (1, 4), (2, 900)])
async def test_matched_vote_costs_the_same_with_private_documents(store: SqliteStore, seats: tuple[int, ...]) -> None:
    """Each of them is read by one voter, however many there are."""
    task, model = held_by(*seats), ScriptedModel(counted)
    planned = plan([task], ROWS, models=model)
    comparison = await execute(planned, store=store)
    spent = {run.row: run.tokens for run in comparison.runs}
    plain = min(estimate_tokens(r.text) + r.max_tokens for r in model.requests)
    assert abs(spent["circle"] - spent["vote"]) <= 0.52 * plain
    estimates = estimate_rows(planned)
    assert len(model.requests) <= sum(row.calls.max for row in estimates)
    assert sum(estimate_tokens(r.text) + r.max_tokens for r in model.requests) <= sum(row.tokens for row in estimates)
    assert max(map(estimate_tokens, (r.text for r in model.requests))) <= max(row.read for row in estimates)


@pytest.mark.parametrize("tokens", [5_000, 20_000, 60_000])
@pytest.mark.parametrize("seats", [(), (1, 2, 3), (1, 4), (2, 900)])
async def test_budget_of_tokens_is_spent_on_votes_with_private_documents_paid_once(
    store: SqliteStore, seats: tuple[int, ...], tokens: int
) -> None:
    task = held_by(*seats)
    comparison = await compare(task, ["vote"], models=ScriptedModel(counted), store=store, budget=Budget(tokens=tokens))
    vote = by_row(comparison, "vote")[0]
    plain = CompareRow("vote", Poll()).call_tokens(held_by())
    private = CompareRow("vote", Poll(size=1)).call_tokens(task) - plain
    assert (vote.stop_reason, vote.calls) == (StopReason.SETTLED, vote.size)
    assert vote.tokens <= tokens
    assert (vote.size + 1) * plain + 2 * private > tokens  # one of them may have to be held back for the last


async def test_vote_as_the_most_expensive_row_keeps_its_size(store: SqliteStore) -> None:
    comparison = await compare(OPEN, ["solo", "vote"], models=ScriptedModel(adding_up), store=store)
    assert {run.row: run.calls for run in comparison.runs} == {"solo": 1, "vote": 3}
    assert by_row(comparison, "vote")[0].size is None


async def test_size_set_by_the_user_is_kept(store: SqliteStore) -> None:
    comparison = await compare(
        OPEN, ["circle", Poll(size=2)], models=ScriptedModel(adding_up), store=store, budget=Budget(calls=9)
    )
    assert {run.row: run.calls for run in comparison.runs} == {"circle": 4, "vote": 2}


@pytest.mark.parametrize(
    ("inputs", "labels"),
    [
        ((Poll(size=2), "vote"), {"vote (size=2)", "vote"}),
        ((Poll(size=2), Poll(size=3)), {"vote", "vote (size=3)"}),
        ((Poll(size=2), CompareRow("vote", Circle())), {"vote (size=2)", "vote"}),
        ((Poll(size=2), "vote", Poll(size=3)), {"vote (size=2)", "vote", "vote (size=3)"}),
    ],
)
def test_rows_of_one_protocol_have_distinct_labels_in_any_order(
    inputs: tuple[str | Poll | CompareRow, ...], labels: set[str]
) -> None:
    assert {row.label for row in plan([OPEN], inputs, models="local").rows} == labels
    if Poll(size=3) not in inputs or "vote" in inputs:  # of several with settings the first keeps the name
        assert {row.label for row in plan([OPEN], inputs[::-1], models="local").rows} == labels


async def test_comparison_repeated_makes_no_call(store: SqliteStore) -> None:
    first = await compare(SPLIT, ROWS, models=ScriptedModel(adding_up), store=store, repeat=2)
    model = ScriptedModel(adding_up)
    again = await compare(SPLIT, ROWS, models=model, store=store, repeat=2)
    assert model.requests == []
    assert all(run.recorded for run in again.runs)
    forget = {"recorded": False}
    assert [run.model_copy(update=forget) for run in again.runs] == list(first.runs)
    assert again.rows == first.rows
    assert again.differences == first.differences


async def test_comparison_with_added_tasks_runs_only_those(store: SqliteStore) -> None:
    await compare(SPLIT[:2], ["solo"], models=ScriptedModel(adding_up), store=store)
    model = ScriptedModel(adding_up)
    await compare(SPLIT, ["solo"], models=model, store=store)
    assert len(model.requests) == 2  # the third task, once more with all sources


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "another"},
        {"budget": Budget(calls=4)},
        {"seed": 9},
        {"protocols": [CompareRow("circle", Circle(size=2))]},
        {"models": ScriptedModel(adding_up, name="other")},
    ],
    ids=["name", "budget", "seed", "settings", "model"],
)
async def test_comparison_with_changed_settings_runs_again(store: SqliteStore, changed: dict[str, object]) -> None:
    fields: dict[str, object] = {"protocols": ["circle"], "models": ScriptedModel(adding_up)}
    await compare(OPEN, **fields, store=store)  # type: ignore[arg-type]
    again = await compare(OPEN, **{**fields, **changed}, store=store)  # type: ignore[arg-type]
    assert not again.runs[0].recorded


class Cut(BaseException):
    """The process is gone."""


async def test_comparison_interrupted_anywhere_repeats_no_completed_call(store: SqliteStore) -> None:
    """Each completed call is asked once over both times, wherever it was cut."""
    whole = ScriptedModel(adding_up)
    expected = await compare(SPLIT, ROWS, models=whole, store=SqliteStore(":memory:"))
    asked = sorted((r.key, r.text) for r in whole.requests)
    for cut in range(len(whole.requests)):
        other = SqliteStore(":memory:")
        with pytest.raises(Cut):
            await compare(SPLIT, ROWS, models=cut_after(cut), store=other)
        second = ScriptedModel(adding_up)
        done = await compare(SPLIT, ROWS, models=second, store=other)
        assert len(second.requests) == len(asked) - cut
        assert [run.position for run in done.runs] == [run.position for run in expected.runs]
        assert done.differences == expected.differences
        other.close()


def cut_after(calls: int) -> ScriptedModel:
    def reply(request: ModelRequest) -> Scripted:
        if len(model.requests) > calls:
            raise Cut
        return adding_up(request)

    model = ScriptedModel(reply)
    return model


async def test_session_without_start_event_is_run_again(store: SqliteStore) -> None:
    first = await compare(OPEN, ["solo"], models=ScriptedModel(adding_up), store=store)
    session = first.runs[0].session
    store.admin.remove([session])
    await store.create(session).close()
    assert store.beginning(session) is None
    again = await compare(OPEN, ["solo"], models=ScriptedModel(adding_up), store=store)
    assert again.runs[0].correct
    assert not again.runs[0].recorded


async def test_jobs_run_tasks_concurrently_with_the_same_result(store: SqliteStore) -> None:
    flying = most = 0
    gate = asyncio.Event()

    class Model(ScriptedModel):
        async def complete(self, request: ModelRequest):  # type: ignore[no-untyped-def]
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            if flying == 3:
                gate.set()
            await gate.wait()
            try:
                return await super().complete(request)
            finally:
                flying -= 1

    side = await compare(SPLIT, ["solo"], models=Model(adding_up), store=store, jobs=3)
    assert most == 3
    turn = await compare(SPLIT, ["solo"], models=ScriptedModel(adding_up), store=SqliteStore(":memory:"))
    assert [(r.task, r.position) for r in side.runs] == [(r.task, r.position) for r in turn.runs]


async def test_one_job_completes_a_task_before_the_next(store: SqliteStore) -> None:
    begun: list[tuple[str, str]] = []
    observer = CompareObserver(begins=lambda row, task, seed: begun.append((task.id, row)))
    await compare(SPLIT[:2], ROWS, models=ScriptedModel(adding_up), store=store, observer=observer)
    names = ("circle", "solo", "solo, all sources", "vote")
    assert begun == [(task, row) for task in ("one", "two") for row in names]


@pytest.mark.parametrize("jobs", [1, 3])
async def test_run_held_by_another_process_is_reported_and_the_rest_kept(
    store: SqliteStore, tmp_path: Path, jobs: int
) -> None:
    done = await compare(SPLIT, ["circle"], models=ScriptedModel(adding_up), store=store)
    held = SqliteStore(tmp_path / "compared.db")
    journal = held.open(done.runs[1].session)
    with pytest.raises(SessionBusy):
        await compare(SPLIT, ["circle"], models=ScriptedModel([]), store=store, jobs=jobs)
    await journal.close()
    held.close()
    again = await compare(SPLIT, ["circle"], models=ScriptedModel([]), store=store, jobs=jobs)
    assert all(run.recorded for run in again.runs)


async def test_repeats_measure_the_stability_of_an_answer(store: SqliteStore) -> None:
    answers = iter(["Answer: 3", "Answer: 4", "Answer: 3", "I cannot say", "Answer: 3"])
    model = ScriptedModel(lambda request: next(answers))
    comparison = await compare(OPEN, ["solo"], models=model, store=store, repeat=5)
    row = comparison.rows[0]
    assert (row.holds, row.right, row.scored, row.unanswered) == (3 / 5, 3, 5, 1)
    assert row.accuracy == 3 / 5
    assert [run.seed for run in comparison.runs] == [0, 1, 2, 3, 4]


async def test_draft_similarity_compares_the_first_texts(store: SqliteStore) -> None:
    texts = {"A1": "a b c", "A2": "a b d", "A3": "x y z"}
    model = ScriptedModel(lambda request: "the end" if request.key == "close" else texts[request.agent])
    comparison = await compare("What is it?", ["circle"], models=model, store=store)
    run = comparison.runs[0]
    assert run.draft_similarity == pytest.approx((2 / 4 + 0 + 0) / 3)
    assert run.voices == 3
    assert run.correct is None


@pytest.mark.parametrize("reply", ['{"answer": 3}', "```json\n{}\n```", "[3]", "3", '{"text": 3}'])
async def test_draft_similarity_reads_json_answers_as_text(store: SqliteStore, reply: str) -> None:
    comparison = await compare("Give JSON.", ["circle"], models=ScriptedModel(lambda request: reply), store=store)
    assert (comparison.runs[0].voices, comparison.runs[0].draft_similarity) == (3, 1.0)


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "Here it is:\n```\n{}\n```\nThat is all.", "{}\n"])
async def test_draft_similarity_compares_texts_of_typed_replies(store: SqliteStore, around: str) -> None:
    """Only the text of a typed reply is compared, without its other fields and without ballots."""

    def reply(request: ModelRequest) -> Scripted:
        if request.returns is not None and "confidence" in request.returns.model_fields:
            return Scripted(json.dumps({"position": "3", "confidence": "sure", "reason": request.key}))
        body = json.dumps({"points": [f"as {request.key} says"], "text": "The answer is 3."}, indent=2)
        return Scripted(around.replace("{}", body))

    emergence = find_protocol("emergence")(max_rounds=1)
    comparison = await compare(OPEN, [emergence], models=ScriptedModel(reply), store=store)
    assert (comparison.runs[0].voices, comparison.runs[0].draft_similarity) == (3, 1.0)


class PolledReport(Report):
    asides: ClassVar[frozenset[str]] = frozenset({"ballot"})


class Polled(Circle):
    """A circle that is asked for its votes before anybody speaks."""

    name: ClassVar[str] = "polled"
    report: ClassVar[type[Report]] = PolledReport

    def estimate(self) -> Estimate:
        return Estimate(min=2 * self.size + 1, max=2 * self.size + 1)

    async def run(self, session: Session) -> Report:
        ids = [agent.id for agent in session.agents]
        await session.gather([session.ask(id, Prompt("vote"), key=f"poll/{id}", kind="ballot") for id in ids])
        return await super().run(session)


async def test_draft_similarity_ignores_ballots(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, Polled.name, Polled)
    texts = {"A1": "a b c", "A2": "a b d", "A3": "x y z"}
    model = ScriptedModel(lambda request: "yes" if request.key.startswith("poll") else texts[request.agent])
    run = (await compare("Is it so?", [Polled()], models=model, store=store)).runs[0]
    assert (run.voices, run.draft_similarity) == (3, pytest.approx(1 / 6))


async def test_task_without_a_reference_is_compared_without_scores(store: SqliteStore) -> None:
    comparison = await compare("Is it so?", ["circle", "solo"], models=ScriptedModel(adding_up), store=store)
    assert [run.correct for run in comparison.runs] == [None, None]
    assert all(row.accuracy is None for row in comparison.rows)
    assert comparison.differences == ()


async def test_differences_are_reported_against_solo_and_vote(store: SqliteStore) -> None:
    comparison = await compare(SPLIT, ROWS, models=ScriptedModel(adding_up), store=store)
    differences = {(d.row, d.reference): d for d in comparison.differences}
    assert list(differences) == [("circle", "solo"), ("vote", "solo"), ("circle", "vote")]
    ahead = differences["circle", "solo"]
    assert (ahead.difference, ahead.low, ahead.high, ahead.better, ahead.worse) == (1, 1, 1, 3, 0)
    assert ahead.p == 0.25
    assert ahead.verdict == "cannot tell"  # three tasks are too few, however they fall


async def test_run_without_an_answer_counts_as_wrong(store: SqliteStore) -> None:
    model = ScriptedModel(lambda request: Refused("no") if request.key == "answer" else adding_up(request))
    comparison = await compare(OPEN, ROWS, models=model, store=store)
    solo = by_row(comparison, "solo")[0]
    assert (solo.answered, solo.correct, solo.answer) == (False, False, None)
    assert by_row(comparison, "circle")[0].correct


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"protocols": ["circle", "circle"]}, "two rows are both"),
        ({"protocols": []}, "no row to compare"),
        ({"repeat": 0}, "repeats: 0"),
        ({"budget": Budget(tokens=5, calls=5)}, "in tokens or in calls"),
        ({"jobs": 0}, "jobs: 0"),
        ({"tasks": [OPEN, OPEN]}, "two tasks have the id 'open'"),
        ({"tasks": []}, "no task to compare on"),
    ],
)
async def test_invalid_comparison_is_refused_before_any_call(
    store: SqliteStore, inputs: dict[str, object], expected: str
) -> None:
    model = ScriptedModel([])
    with pytest.raises(SettingsError, match=expected):
        await compare(**{"tasks": OPEN, "protocols": ["circle"], "models": model, "store": store, **inputs})  # type: ignore[arg-type]
    assert model.requests == []
    assert store.sessions() == []


def test_estimate_bounds_the_calls_of_a_comparison() -> None:
    planned = plan(SPLIT, ROWS, models="local", repeat=2)
    assert planned.runs == 3 * 4 * 2
    for task in planned.tasks:
        allotment = planned.allotments[task.id]
        estimates = {row.label: allotment.estimate(row.on(task), task) for row, _ in planned.rows_on(task)}
        assert (estimates["circle"].max, estimates["solo"].max) == (4, 1)
        assert estimates["vote"].min == 1
        assert estimates["vote"].max * CompareRow("", Poll()).on(task).at("brief").call_tokens(task) <= allotment.bound


def test_fixed_size_protocol_resized_for_calls_returns_itself() -> None:
    emergence = find_protocol("emergence")()
    assert emergence.resized_for_calls(1) is emergence
    assert emergence.first_speakers == ("L2N1", "L2N2", "L2N3")
    assert [emergence.seat(n) for n in (1, 3, 4)] == ["L2N1", "L2N3", "L2N1"]
    assert not CompareRow("", emergence).sizable
    assert not CompareRow("", Alone()).sizable
    assert CompareRow("", Poll()).sizable


async def test_row_cut_by_the_budget_is_named_in_estimate_and_result(store: SqliteStore) -> None:
    """The circle needs four calls; its votes and their sum are not all heard with three."""
    planned = plan(SPLIT, ROWS, models=ScriptedModel(adding_up), budget=Budget(calls=3))
    assert {row.row: (row.needs, row.allowed) for row in estimate_rows(planned)} == {
        "circle": (4, 3), "solo": (0, 0), "vote": (0, 0), "solo, all sources": (0, 0),
    }  # fmt: skip
    comparison = await compare(SPLIT, ROWS, models=ScriptedModel(adding_up), store=store, budget=Budget(calls=3))
    rows = {row.row: row for row in comparison.rows}
    assert rows["circle"].stops == {StopReason.EXHAUSTED_BUDGET: 3}
    assert (rows["circle"].cut_short, rows["solo"].cut_short, rows["vote"].cut_short) == (3, 0, 0)
    text = markdown(comparison)
    assert "Cut short by a limit or a cancel, so not compared over a whole run: circle 3 of 3." in text
    assert "| exhausted_budget 3 |" in text
    enough = await compare(SPLIT, ROWS, models=ScriptedModel(adding_up), store=store, budget=Budget(calls=4))
    assert "Cut short" not in markdown(enough)


async def test_programs_without_token_counts_are_matched_by_estimated_tokens(
    store: SqliteStore, tmp_path: Path
) -> None:
    """Told none, they once counted as none, and a vote was sized to cost what nothing costs."""
    program = tmp_path / "three.sh"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho 'answer: 3'\n")
    program.chmod(0o755)
    comparison = await compare(OPEN, ROWS, models=f"exec:{program}", store=store)
    runs = {run.row: run for run in comparison.runs}
    assert runs["circle"].tokens > 0
    assert 0.6 * runs["circle"].tokens <= runs["vote"].tokens <= runs["circle"].tokens
    assert runs["vote"].calls > 1
