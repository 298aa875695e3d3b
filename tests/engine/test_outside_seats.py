"""Seats of outside agents: tickets, their clocks, parking and resuming, quorums, budgets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import consilience
from consilience.coordination import ClaimLost, Workspace, claim_next, fail, submit, sweep, withdraw
from consilience.coordination.waiting import TimeoutStrategy
from consilience.domain.errors import SessionWaiting, SettingsError, WorkspaceError
from consilience.domain.events import CallAwaited, CallCompleted, CallFailed, SessionParked, canonical_digest
from consilience.domain.outcome import FailureKind, Limits, StopReason
from consilience.engine import external
from consilience.engine.activity import Activity
from consilience.engine.external import WaitingTicket
from consilience.engine.ports import FreePort, PendingAnswer, Person
from consilience.engine.prompt import Prompt
from consilience.engine.quorum import PhaseReplies, Quorum
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.protocols.baselines import Vote
from consilience.protocols.emergence import Emergence
from consilience.reporting.markdown import markdown
from consilience.reporting.partial_report import partial_json, partial_markdown
from consilience.reporting.questions import pending_questions
from consilience.reporting.record import read_record
from consilience.testing import ScriptedModel
from kit import runner
from kit.outsiders import answering, expire, leave, work_off, work_off_when_there
from kit.throwaways import Body, Made, OutsideAgent

TASK = "Is it so?"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "work space")


def model() -> ScriptedModel:
    return ScriptedModel(lambda request: f"{request.agent} on {request.key}")


def seats(workspace: Workspace, agent: str = "red") -> dict[str, Any]:
    return {"A1": model(), "A2": f"workspace:{workspace.path}#{agent}", "A3": model()}


async def park(store: SqliteStore, workspace: Workspace, **fields: Any) -> SessionWaiting:
    """Run until only the outside agent is awaited."""
    options = Options(patience=0, **fields.pop("options", {}))
    with pytest.raises(SessionWaiting) as parked:
        await runner.start(
            TASK, OutsideAgent(), models=seats(workspace), store=store, session="s", options=options, **fields
        )
    return parked.value


async def go_on(store: SqliteStore, workspace: Workspace, **fields: Any) -> Any:
    """Resume by the recorded name of the seat, as another process does."""
    fields.setdefault("options", Options(patience=0))
    return await runner.resume("s", models=seats(workspace), store=store, **fields)


def failures(store: SqliteStore, session: str = "s") -> list[tuple[str, FailureKind, str]]:
    return [(e.key, e.failure, e.detail) for e in store.read(session) if isinstance(e, CallFailed)]


async def test_call_to_an_outside_seat_posts_a_ticket_with_prompt_and_documents(
    store: SqliteStore, workspace: Workspace
) -> None:
    parked = await park(store, workspace, sources=[consilience.Source(text="One.\nTwo.", name="a note")])
    (ticket,) = workspace.tickets()
    assert (parked.awaited, parked.tickets) == (("say/A2",), {"say/A2": ticket.id})
    assert (ticket.state, ticket.assigned_to, ticket.type, ticket.iteration) == (
        "pending",
        "red",
        "initial_analysis",
        1,
    )
    assert ticket.data == {"session": "s", "key": "say/A2", "agent": "A2", "schema": None}
    assert ticket.assigned_by == "consilience session s"
    for part in ("Be brief.", "# Task\nIs it so?", "One.", "\nsay"):
        assert part in ticket.instructions
    how = f"consilience workspace claim '{workspace.path}' {ticket.id} --agent red"
    assert how in ticket.instructions, "the path has a space"
    (question,) = pending_questions(store.read("s"), store.text, store.prompt)
    assert (question.key, question.ticket, question.until) == ("say/A2", ticket.id, None)
    shown = read_record(store, "s")
    assert f"Tickets of outside agents: `{ticket.id}` for `say/A2`." in partial_markdown(shown)
    assert partial_json(shown)["tickets"] == {"say/A2": ticket.id}


async def test_ticket_for_a_person_does_not_expire(store: SqliteStore, workspace: Workspace) -> None:
    anna = {**seats(workspace), "A2": f"workspace:{workspace.path}#human:anna"}
    options = Options(patience=0)
    with pytest.raises(SessionWaiting):
        await runner.start(TASK, OutsideAgent(), models=anna, store=store, session="s", options=options)
    (ticket,) = workspace.tickets()
    assert ticket.assigned_to == "human:anna"
    assert f"{ticket.id} --agent anna" in ticket.instructions
    assert claim_next(workspace, "ben") is None
    claimed = claim_next(workspace, "anna")
    assert claimed is not None
    assert claimed.expires_at is None
    sweep(workspace, now=time.time() + 1e6)
    submit(workspace, claimed, "In June.")
    report = await runner.resume("s", models=anna, store=store, options=options)
    assert any("In June." in store.text(e.text) for e in store.read("s") if isinstance(e, CallCompleted))
    assert [agent.person for agent in report.agents] == ["", "anna", ""]
    with pytest.raises(WorkspaceError, match="invalid name of an agent"):
        await runner.start(
            TASK, OutsideAgent(), models={**anna, "A2": f"workspace:{workspace.path}#other:anna"}, store=store
        )


async def test_outside_answer_submitted_while_parked_is_collected_on_resume(
    store: SqliteStore, workspace: Workspace
) -> None:
    await park(store, workspace)
    work_off(workspace, "red", answering("\ufeff It is. \n"))
    report = await go_on(store, workspace)
    assert (report.replied, report.missing, report.degraded) == (3, (), None)
    assert (report.ledger.actual.calls, report.ledger.actual.cost, report.ledger.actual.lost) == (4, 0.0, 0)
    (answer,) = [e for e in store.read("s") if e.type == "call_completed" and e.key == "say/A2"]
    assert store.text(answer.text) == "It is."
    assert len(workspace.tickets()) == 1
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    assert await go_on(store, workspace) == report


async def test_resume_of_a_parked_session_posts_no_second_ticket(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace)
    for _ in range(2):
        with pytest.raises(SessionWaiting):
            await go_on(store, workspace)
    events = store.read("s")
    assert sum(isinstance(event, SessionParked) for event in events) == 3
    assert sum(isinstance(event, CallAwaited) for event in events) == 1
    assert len(workspace.tickets()) == 1


async def test_outside_answer_submitted_while_waiting_is_collected_without_parking(
    store: SqliteStore, workspace: Workspace
) -> None:
    run = asyncio.create_task(
        runner.start(TASK, OutsideAgent(), models=seats(workspace), store=store, options=Options(patience=None))
    )
    await work_off_when_there(workspace, "red", answering())
    assert (await run).replied == 3


class Delayed(FreePort):
    """A seat whose answer comes from outside, some turns of the loop after nothing else in the session moves."""

    name = "delayed"

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self.stopped = asyncio.Event()

    async def send(self, request: ModelRequest) -> PendingAnswer:
        return PendingAnswer(self._arrive())

    async def _arrive(self) -> Completion:
        await self.stopped.wait()
        for _ in range(self._turns):
            await asyncio.sleep(0)
        return Completion(text="It is.", model=self.name)

    async def collect(self, key: str, digest: str) -> Completion:
        return Completion(text="It is.", model=self.name)


@pytest.mark.parametrize("turns", range(12))
async def test_outside_answer_submitted_during_parking_causes_no_deadlock(
    turns: int, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat, leave = Delayed(turns), Activity.leave
    models = {"A1": model(), "A2": seat, "A3": model()}

    def leave_and_tell(activity: Activity) -> None:
        leave(activity)
        if activity.running == 0:
            seat.stopped.set()

    monkeypatch.setattr(Activity, "leave", leave_and_tell)
    try:
        report = await runner.start(
            TASK, OutsideAgent(), models=models, store=store, session="s", options=Options(patience=0)
        )
    except SessionWaiting:
        report = await runner.resume("s", models=models, store=store)
    assert report.replied == 3


async def test_outside_seat_without_an_agent_name_records_the_agent_that_answered(
    store: SqliteStore, workspace: Workspace
) -> None:
    models = {**seats(workspace), "A2": f"workspace:{workspace.path}"}
    with pytest.raises(SessionWaiting):
        await runner.start(TASK, OutsideAgent(), models=models, store=store, session="s", options=Options(patience=0))
    work_off(workspace, "blue", answering())
    await runner.resume("s", models=models, store=store)
    (answer,) = [e for e in store.read("s") if e.type == "call_completed" and e.key == "say/A2"]
    assert answer.volatile["model"] == f"workspace:{workspace.path}#blue"


# --- clocks


async def test_ticket_with_an_expired_claim_is_offered_again_and_reported(
    store: SqliteStore, workspace: Workspace
) -> None:
    await park(store, workspace)
    (dead,) = work_off(workspace, "red", leave)
    expire(workspace)
    with pytest.raises(SessionWaiting):
        await go_on(store, workspace)
    work_off(workspace, "red", answering("From the second."))
    report = await go_on(store, workspace)
    assert report.replied == 3
    assert report.incidents == ("tickets offered again after a claim that brought no answer: A2 on say/A2",)
    with pytest.raises(ClaimLost):
        submit(workspace, dead, "Too late.")
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_ticket_whose_last_claim_expired_leaves_its_seat_missing(
    store: SqliteStore, workspace: Workspace
) -> None:
    await park(store, workspace)
    for _ in range(2):
        work_off(workspace, "red", leave)
        expire(workspace)
    report = await go_on(store, workspace)
    late = "no result from red within 300 s of its claim"
    assert failures(store) == [("say/A2", FailureKind.DEADLINE, f"{late}; {late}")]
    assert report.replied == 2
    assert [(m.agent, m.since) for m in report.missing] == [("A2", "say/A2")]
    text = markdown(report)
    assert "2 of 3 agents" in text
    assert "(A2): no usable reply since say\n" in text
    assert report.answer == "A1 on close"
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_waiting_session_sweeps_expired_claims(
    store: SqliteStore, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the wall clock ahead of every claim; the two claimers are killed while it waits."""
    ahead = [0.0]
    monkeypatch.setattr(external.time, "time", lambda: real() + ahead[0])
    run = asyncio.create_task(
        runner.start(
            TASK, OutsideAgent(), models=seats(workspace), store=store, session="s", options=Options(patience=None)
        )
    )
    for _ in range(2):
        await work_off_when_there(workspace, "red", leave)
        ahead[0] += 400
    report = await run
    assert [missing.agent for missing in report.missing] == ["A2"]
    assert [kind for _, kind, _ in failures(store)] == [FailureKind.DEADLINE]


real = time.time


async def test_session_with_a_claimed_ticket_is_not_parked_before_the_claim_ends(
    store: SqliteStore, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is resumed while the ticket is claimed, looks at it several times, and is parked once it is given back."""
    await park(store, workspace)
    claimed = claim_next(workspace, "red")
    assert claimed is not None
    looks = 0
    real = WaitingTicket.is_live

    async def is_live(ticket: WaitingTicket) -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            fail(workspace, claimed, "no time")
        return await real(ticket)

    monkeypatch.setattr(WaitingTicket, "is_live", is_live)
    async with asyncio.timeout(20):
        with pytest.raises(SessionWaiting):
            await go_on(store, workspace)
    assert looks == 3


async def test_ticket_given_back_twice_is_a_refused_call(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace)
    work_off(workspace, "red", lambda workspace, claimed: fail(workspace, claimed, "I know nothing of it"))
    report = await go_on(store, workspace)
    detail = "I know nothing of it; I know nothing of it"
    assert failures(store) == [("say/A2", FailureKind.REFUSED, detail)]
    assert report.missing[0].reason == f"refused: {detail}"


async def test_ticket_withdrawn_by_a_user_is_a_rejected_call(store: SqliteStore, workspace: Workspace) -> None:
    parked = await park(store, workspace)
    withdraw(workspace, parked.tickets["say/A2"], "the office is closed")
    await go_on(store, workspace)
    assert failures(store) == [("say/A2", FailureKind.REJECTED, "the ticket was withdrawn: the office is closed")]


# --- answers that cannot be used


async def test_malformed_outside_answer_gets_a_new_ticket_up_to_the_repair_limit(
    store: SqliteStore, workspace: Workspace
) -> None:
    leaf = "round-1/leaf_respond/L2N1"
    models = {"L1N1": model_of_emergence(), "L2N2": model_of_emergence(), "L2N1": f"workspace:{workspace.path}#red"}
    with pytest.raises(SessionWaiting):
        await runner.start(
            TASK,
            Emergence(children=2, max_rounds=1),
            models=models,
            store=store,
            session="s",
            options=Options(patience=0, repairs=1),
        )
    (first,) = workspace.tickets()
    schema = first.data["schema"]
    assert isinstance(schema, dict)
    assert {"points", "text"} <= schema["properties"].keys()  # type: ignore[operator]
    assert json.dumps(schema, ensure_ascii=False) in first.instructions
    work_off(workspace, "red", answering('{"points": "none", "text": 3}'))
    with pytest.raises(SessionWaiting):
        await runner.resume("s", models=models, store=store, options=Options(patience=0))
    first, second = workspace.tickets()
    assert (second.iteration, second.state) == (2, "pending")
    assert "none" in second.instructions.removeprefix(first.instructions[:100])
    assert len(second.instructions) > len(first.instructions), "what was wrong is added"
    work_off(workspace, "red", answering("{"))
    report = await to_the_end_with(workspace, store, models, answering(json.dumps({"points": [], "text": "Yes."})))
    assert [call.key for call in report.failed_calls if call.agent == "L2N1"][:1] == [leaf]
    assert report.failed_calls[0].kind is FailureKind.MALFORMED
    assert len([t for t in workspace.tickets() if t.data["key"] == leaf]) == 2


def model_of_emergence() -> ScriptedModel:
    from kit.cases import emergent, well_formed

    return ScriptedModel(well_formed(emergent))


async def to_the_end_with(workspace: Workspace, store: SqliteStore, models: Any, work: Any) -> Any:
    while True:
        try:
            return await runner.resume("s", models=models, store=store, options=Options(patience=0))
        except SessionWaiting:
            assert work_off(workspace, "red", work)


async def test_outside_result_changed_or_too_large_is_rejected(
    tmp_path: Path, store: SqliteStore, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await park(store, workspace)
    work_off(workspace, "red", answering())
    (ticket,) = workspace.tickets()
    assert ticket.result is not None
    artifact = workspace.path / ticket.result.artifact_path
    artifact.chmod(0o644)
    artifact.write_text("It was.")
    await go_on(store, workspace)
    ((_, kind, detail),) = failures(store)
    assert kind is FailureKind.REJECTED
    assert "changed after it was handed in" in detail

    other = SqliteStore(tmp_path / "other.db")
    monkeypatch.setattr(external, "MAX_REPLY_BYTES", 4)
    await park(other, workspace)
    work_off(workspace, "red", answering("It is so."))
    await go_on(other, workspace)
    assert failures(other) == [("say/A2", FailureKind.REJECTED, "the result has 9 bytes; at most 4 are read")]
    other.close()


async def test_outside_result_with_invalid_utf8_is_accepted(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace)
    work_off(workspace, "red", lambda workspace, claimed: submit(workspace, claimed, b"\xff\xfe\x00yes\xed\xa0\x80"))
    report = await go_on(store, workspace)
    assert report.replied == 3
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_workspace_that_becomes_unreadable_is_an_unreachable_call(
    store: SqliteStore, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "MAX_UNREADABLE_SECONDS", 0.0)
    run = asyncio.create_task(
        runner.start(
            TASK, OutsideAgent(), models=seats(workspace), store=store, session="s", options=Options(patience=None)
        )
    )
    await work_off_when_there(workspace, "red", leave)
    workspace.path.rename(workspace.path.with_name("gone"))
    report = await run
    assert [(key, kind) for key, kind, _ in failures(store)] == [("say/A2", FailureKind.UNREACHABLE)]
    assert report.replied == 2


# --- limits


async def test_outside_seat_without_budget_posts_no_ticket(store: SqliteStore, workspace: Workspace) -> None:
    report = await runner.start(
        TASK, OutsideAgent(), models=seats(workspace), store=store, session="s", limits=Limits(calls=0)
    )
    assert workspace.tickets() == []
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET


async def test_outside_seat_with_a_budget_of_the_max_calls_is_not_cut(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace, limits=Limits(calls=4))
    work_off(workspace, "red", answering())
    assert (await go_on(store, workspace)).replied == 3


async def test_time_limit_fails_the_outside_call_and_withdraws_its_ticket(
    store: SqliteStore, workspace: Workspace
) -> None:
    report = await runner.start(
        TASK,
        OutsideAgent(),
        models=seats(workspace),
        store=store,
        session="s",
        limits=Limits(seconds=2),
        options=Options(patience=None),
    )
    ((key, kind, detail),) = failures(store)
    assert (key, kind) == ("say/A2", FailureKind.TIME)
    (ticket,) = workspace.tickets()
    assert (ticket.state, ticket.withdrawn, ticket.withdrawn_as) == ("permanently_failed", detail, FailureKind.TIME)
    assert report.answer == "A1 on close"
    assert report.stop_reason is StopReason.EXHAUSTED_TIME
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_time_limit_while_a_ticket_is_posted_withdraws_it(
    store: SqliteStore, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that posts cannot be ended, and nothing else knows of the ticket."""
    over, withdrawn = threading.Event(), threading.Event()
    post, withdraw_ticket = external.post, external.withdraw

    def slow_post(*arguments: Any) -> Any:
        assert over.wait(30)
        return post(*arguments)

    def watched_withdraw(*arguments: Any) -> Any:
        ended = withdraw_ticket(*arguments)
        withdrawn.set()
        return ended

    monkeypatch.setattr(external, "post", slow_post)
    monkeypatch.setattr(external, "withdraw", watched_withdraw)
    report = await runner.start(
        TASK,
        OutsideAgent(),
        models=seats(workspace),
        store=store,
        session="s",
        limits=Limits(seconds=2),
        options=Options(patience=None),
    )
    assert failures(store)[0][:2] == ("say/A2", FailureKind.TIME)
    assert (workspace.tickets(), report.stop_reason) == ([], StopReason.EXHAUSTED_TIME)
    over.set()  # the session has ended: only the thread is left
    assert await asyncio.to_thread(withdrawn.wait, 30)
    (ticket,) = workspace.tickets()
    assert (ticket.state, ticket.withdrawn) == ("permanently_failed", "ended by the time limit")


async def test_cancellation_while_a_ticket_is_posted_keeps_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session can be resumed, and then it finds the ticket."""
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    over, posted = threading.Event(), threading.Event()
    post = external.post

    def slow_post(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        assert over.wait(30)
        ticket = post(*arguments)
        posted.set()
        return ticket

    monkeypatch.setattr(external, "post", slow_post)
    request = ModelRequest(agent="A2", key="say/A2", system="", user="Say.", digest="d", session="s")
    sending = asyncio.create_task(external.WorkspacePort(workspace, "red").send(request))
    await begun.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    over.set()
    assert await asyncio.to_thread(posted.wait, 30)
    assert workspace.ticket("say-A2-d").state == "pending"


async def test_outside_answer_submitted_just_before_the_time_limit_counts(
    store: SqliteStore, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting process did not look between the answer and the limit."""

    async def arrive(ticket: WaitingTicket) -> Any:
        work_off(workspace, "red", answering())
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(WaitingTicket, "arrive", arrive)
    limits = Limits(seconds=2)
    options = Options(patience=None)
    report = await runner.start(
        TASK, OutsideAgent(), models=seats(workspace), store=store, session="s", limits=limits, options=options
    )
    (ticket,) = workspace.tickets()
    assert (ticket.state, failures(store)) == ("completed", [])
    assert report.replied == 3


async def test_outside_answer_already_submitted_counts_after_the_time_limit(
    store: SqliteStore, workspace: Workspace
) -> None:
    await park(store, workspace, limits=Limits(seconds=1000))
    work_off(workspace, "red", answering())
    journal = store.open("s")
    journal.note_seconds(2000)
    await journal.close()
    report = await go_on(store, workspace)
    assert report.replied == 3
    assert [(key, kind) for key, kind, _ in failures(store)] == [("close", FailureKind.TIME)]


async def test_human_deadline_does_not_apply_to_an_outside_agent(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace, options={"human_deadline": 0.001})
    with pytest.raises(SessionWaiting):
        await go_on(store, workspace)
    assert failures(store) == []


# --- sessions


async def test_answer_recorded_in_the_journal_withdraws_the_ticket(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace)
    store.post("s", "answer", "say/A2", "By hand.")
    report = await go_on(store, workspace)
    assert report.replied == 3
    (ticket,) = workspace.tickets()
    assert (ticket.state, ticket.withdrawn) == ("permanently_failed", "answered in the session's journal")


async def test_sessions_in_one_workspace_collect_only_their_own_answers(tmp_path: Path, workspace: Workspace) -> None:
    """Also two of one name in different journals, begun with the same task."""
    stores = [SqliteStore(tmp_path / f"{n}.db") for n in range(2)]
    for store in stores:
        await park(store, workspace)
        await asyncio.sleep(0.002)  # sessions of one name are told apart by when they were created
    first, second = workspace.tickets()
    answers = {first.id: "First.", second.id: "Second."}
    work_off(workspace, "red", lambda workspace, claimed: submit(workspace, claimed, answers[claimed.id]))
    for store, text in zip(stores, ("First.", "Second."), strict=True):
        await go_on(store, workspace)
        assert text in {store.text(e.text) for e in store.read("s") if e.type == "call_completed"}
        store.close()


async def test_a_fork_inherits_the_answer_and_posts_new_tickets_for_the_rest(
    store: SqliteStore, workspace: Workspace
) -> None:
    await park(store, workspace)
    with pytest.raises(SessionWaiting):
        await runner.fork(
            "s", store=store, at="end", session="open", models=seats(workspace), options=Options(patience=0)
        )
    assert len(workspace.tickets()) == 2, "the ticket of the parent is the parent's"
    work_off(workspace, "red", answering())
    report = await go_on(store, workspace)
    again = await runner.fork("s", store=store, at="end", session="done", models=seats(workspace))
    assert again.answer == report.answer
    assert len(workspace.tickets()) == 2


async def test_fork_replaces_an_outside_seat_by_a_model(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace)
    changed = await runner.fork("s", store=store, at="end", models={**seats(workspace), "A2": model()})
    assert changed.replied == 3
    assert (await runner.replay(changed.session, store=store)).digest() == changed.digest()


async def test_vote_of_models_people_and_outside_agents_reports_the_missing_agent(
    store: SqliteStore, workspace: Workspace
) -> None:
    async def ask(request: ModelRequest) -> str:
        return "Yes, says a person. Answer: yes"

    protocol = Vote(votes=5, answer_pattern="yes|no")
    models = {
        "V1": ScriptedModel(lambda request: "Answer: no"),
        "V2": Person("human:Ada", ask),
        "V3": f"workspace:{workspace.path}#red",
        "V4": f"workspace:{workspace.path}#blue",
        "V5": "exec:sh -c 'cat > /dev/null; echo Answer: yes'",
    }
    with pytest.raises(SessionWaiting) as parked:
        await runner.start(TASK, protocol, models=models, store=store, session="s", options=Options(patience=0))
    assert parked.value.awaited == ("answer/V3", "answer/V4")
    assert {ticket.assigned_to for ticket in workspace.tickets()} == {"red", "blue"}
    work_off(workspace, "red", answering("Answer: yes"))
    for _ in range(2):
        work_off(workspace, "blue", leave)
        expire(workspace)
    report = await runner.resume("s", models=models, store=store, options=Options(patience=0))
    assert (report.replied, report.position) == (4, "yes")  # type: ignore[attr-defined]
    assert [missing.agent for missing in report.missing] == ["V4"]
    assert {vote.agent for vote in report.votes} == {"V1", "V2", "V3", "V5"}  # type: ignore[attr-defined]
    assert (await runner.replay("s", store=store)).digest() == report.digest()


# --- names


@pytest.mark.parametrize(
    ("name", "error", "expected"),
    [
        ("workspace:", SettingsError, "names no workspace"),
        ("workspace:#red", SettingsError, "names no workspace"),
        ("workspace:{path}/nowhere", WorkspaceError, "consilience workspace new"),
        ("workspace:{path}/tickets", WorkspaceError, "not a workspace"),
        ("workspace:{path}#", WorkspaceError, "invalid name of an agent"),
        ("workspace:{path}#../red", WorkspaceError, "invalid name of an agent"),
        ("workspace:{path}#red|local", SettingsError, "cannot be part of a chain"),
        ("local|workspace:{path}", SettingsError, "cannot be part of a chain"),
    ],
)
async def test_invalid_workspace_name_is_refused_before_the_session_begins(
    name: str, error: type[Exception], expected: str, store: SqliteStore, workspace: Workspace
) -> None:
    models = {**seats(workspace), "A2": name.format(path=workspace.path)}
    with pytest.raises(error, match=expected):
        await runner.start(TASK, OutsideAgent(), models=models, store=store)
    assert store.sessions() == []


@pytest.mark.parametrize("extension", [{"quorum_percentage": 50}, {"priority_agents": ["red"]}])
async def test_workspace_with_extensions_without_effect_on_a_seat_is_refused(
    extension: dict[str, Any], store: SqliteStore, tmp_path: Path
) -> None:
    workspace = Workspace.create(tmp_path / "s", protocol={"extensions": {**extension, "timeout_multiplier": 2}})
    with pytest.raises(SettingsError, match=rf"{next(iter(extension))} has no effect.*protocol\.json") as refused:
        await runner.start(TASK, OutsideAgent(), models=seats(workspace), store=store)
    assert "Remove" in refused.value.do
    assert store.sessions() == []


async def test_relative_workspace_path_is_recorded_as_absolute(
    store: SqliteStore, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the session can be resumed from another directory."""
    monkeypatch.chdir(workspace.path.parent)
    models = {**seats(workspace), "A2": f"workspace:{workspace.path.name}#red"}
    with pytest.raises(SessionWaiting):
        await runner.start(TASK, OutsideAgent(), models=models, store=store, session="s", options=Options(patience=0))
    monkeypatch.chdir("/")
    work_off(workspace, "red", answering())
    assert (await go_on(store, workspace)).replied == 3


# --- quorum


def reading(size: int, quorum: Quorum) -> Body:
    """A body that asks `size` agents side by side in a phase with that quorum; its answer names those who replied."""

    async def body(session: Session) -> object:
        async with session.phase("read", 1, quorum=quorum):
            results = await session.gather(
                [session.ask(f"A{n + 1}", Prompt("read"), key=f"read/A{n + 1}") for n in range(size)]
            )
        names = " ".join(r.agent for r in results if isinstance(r, Reply))
        missing = " ".join(f"{r.agent}:{r.kind}" for r in results if isinstance(r, Failure))
        return Reply("end", "A1", f"{names} | {missing}", f"{names} | {missing}")

    return body


async def read(store: SqliteStore, workspace: Workspace, size: int, outside: int, quorum: Quorum, **fields: Any) -> Any:
    """Run `reading` with the last `outside` agents as outside agents named a1, a2, …"""
    Made.body = staticmethod(reading(size, quorum))  # type: ignore[assignment]
    ids = [f"A{n + 1}" for n in range(size)]
    names = [f"workspace:{workspace.path}#{id.lower()}" for id in ids[size - outside :]]
    models = dict(zip(ids, [*[model()] * (size - outside), *names], strict=True))
    fields.setdefault("options", Options(patience=0))
    if "s" in store.sessions():
        return await runner.resume("s", models=models, store=store, **fields)
    return await runner.start(TASK, Made(size=size), models=models, store=store, session="s", **fields)


async def test_quorum_reached_withdraws_outstanding_tickets(store: SqliteStore, workspace: Workspace) -> None:
    with pytest.raises(SessionWaiting):
        await read(store, workspace, 4, 3, Quorum(3))
    held = claim_next(workspace, "a4")
    assert held is not None
    work_off(workspace, "a2", answering())
    work_off(workspace, "a3", answering())
    report = await read(store, workspace, 4, 3, Quorum(3))
    assert report.answer == "A1 A2 A3 | A4:quorum"
    assert failures(store) == [("read/A4", FailureKind.QUORUM, "the quorum of 3 agents was reached")]
    assert [missing.agent for missing in report.missing] == ["A4"]
    with pytest.raises(ClaimLost, match="withdrawn: the quorum of 3 agents was reached"):
        submit(workspace, held, "Too late.")
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_quorum_reached_still_waits_for_agents_in_this_process(store: SqliteStore, workspace: Workspace) -> None:
    report = await read(store, workspace, 4, 1, Quorum(1))
    assert report.answer == "A1 A2 A3 | A4:quorum"


async def test_fork_does_not_inherit_withdrawn_calls(store: SqliteStore, workspace: Workspace) -> None:
    await read(store, workspace, 4, 1, Quorum(1))
    Made.body = staticmethod(reading(4, Quorum(4)))  # type: ignore[assignment]
    models = {**dict.fromkeys(("A1", "A2", "A3"), model()), "A4": f"workspace:{workspace.path}#a4"}
    with pytest.raises(SessionWaiting) as parked:
        await runner.fork("s", store=store, at="end", models=models, options=Options(patience=0))
    assert parked.value.awaited == ("read/A4",)


async def test_quorum_reached_still_counts_answers_already_submitted(store: SqliteStore, workspace: Workspace) -> None:
    with pytest.raises(SessionWaiting):
        await read(store, workspace, 3, 2, Quorum(3))
    work_off(workspace, "a2", answering())
    work_off(workspace, "a3", answering())
    report = await read(store, workspace, 3, 2, Quorum(3))
    assert report.answer == "A1 A2 A3 | "


async def test_quorum_of_ten_with_twelve_readers_withdraws_two_tickets(
    store: SqliteStore, workspace: Workspace
) -> None:
    with pytest.raises(SessionWaiting):
        await read(store, workspace, 12, 12, Quorum(10))
    for n in range(3, 12):
        work_off(workspace, f"a{n}", answering())
    with pytest.raises(SessionWaiting):
        await read(store, workspace, 12, 12, Quorum(10))
    work_off(workspace, "a12", answering())
    report = await read(store, workspace, 12, 12, Quorum(10))
    assert {missing.agent for missing in report.missing} == {"A1", "A2"}
    assert {kind for _, kind, _ in failures(store)} == {FailureKind.QUORUM}


@pytest.mark.parametrize("strategy", ["per_agent", "total", "adaptive"])
async def test_quorum_after_the_timeout_needs_only_80_percent(
    strategy: Any, store: SqliteStore, workspace: Workspace
) -> None:
    for timeout in (3600, 0.001):
        with pytest.raises(SessionWaiting):
            await read(store, workspace, 6, 6, Quorum(5, timeout=timeout, strategy=strategy))
        if timeout == 3600:
            for n in range(1, 4):
                work_off(workspace, f"a{n}", answering())  # 60 %
    work_off(workspace, "a4", answering())
    with pytest.raises(SessionWaiting):
        await read(store, workspace, 6, 6, Quorum(5, timeout=3600, strategy=strategy))
    report = await read(store, workspace, 6, 6, Quorum(5, timeout=0.001, strategy=strategy))
    assert report.answer == "A1 A2 A3 A4 | A5:late A6:late"
    assert {detail for *_, detail in failures(store)} == {
        "the time was up, and 80 % of the quorum of 5 agents was reached"
    }
    assert {ticket.withdrawn_as for ticket in workspace.tickets() if ticket.withdrawn} == {FailureKind.LATE}


def replies(strategy: TimeoutStrategy, timeouts: int = 0) -> PhaseReplies:
    """Four of five agents have replied, in a phase whose first ticket was posted at 1000; `timeouts` are those of E so far."""
    replies = PhaseReplies(Quorum(5, 100, strategy), Counter({"E": timeouts}))
    replies.post(1020)
    replies.post(1000)
    for agent in "ABCD":
        replies.add(Reply(agent, agent, "x", "x"))
    return replies


@pytest.mark.parametrize(
    ("strategy", "timeouts", "until"),
    [("per_agent", 0, 1150), ("per_agent", 2, 1150), ("adaptive", 0, 1150), ("adaptive", 2, 1275), ("total", 2, 1100)],
)
def test_timeout_strategy_sets_when_a_late_ticket_is_withdrawn(
    strategy: TimeoutStrategy, timeouts: int, until: float
) -> None:
    """The ticket of E was claimed at 1050."""
    assert replies(strategy, timeouts).withdrawal("E", 1050, until - 1) is None
    reached = replies(strategy, timeouts).withdrawal("E", 1050, until)
    assert reached is not None
    assert reached.kind is FailureKind.LATE


def test_late_agent_gets_more_time_in_the_next_phase() -> None:
    timeouts = Counter[str]()
    phase = PhaseReplies(Quorum(2), timeouts)
    for kind, detail in (
        (FailureKind.DEADLINE, "no result"),
        (FailureKind.LATE, "words do not matter"),
        (FailureKind.QUORUM, "timeout"),
        (FailureKind.MALFORMED, "timeout"),
    ):
        phase.add(Failure("x", "E", kind, detail))
    assert timeouts == {"E": 2}


def test_an_invalid_quorum_is_refused() -> None:
    for agents, timeout in ((0, 1.0), (1, 0.0)):
        with pytest.raises(SettingsError, match=r"must be (at least 1|greater than 0), not 0.*Where: Quorum\(…\)"):
            Quorum(agents, timeout)


async def test_outside_answers_in_any_order_give_the_same_journal(tmp_path: Path) -> None:
    """The same answers and failures by key, in other orders and with other processes between them."""
    digests = set()
    for n, order in enumerate(("a2 a3 a4", "a4 a3 a2", "a3 a4 a2")):
        workspace = Workspace.create(tmp_path / "w")
        store = SqliteStore(tmp_path / f"{n}.db")
        for agent in order.split():
            with pytest.raises(SessionWaiting):
                await read(store, workspace, 4, 3, Quorum(4))
            if agent == "a4":
                for _ in range(2):
                    work_off(workspace, agent, leave)
                    expire(workspace)
            else:
                work_off(workspace, agent, answering(f"{agent} read it."))
        report = await read(store, workspace, 4, 3, Quorum(4))
        digests.add((report.digest(), canonical_digest(store.read("s"))))
        assert report.answer == "A1 A2 A3 | A4:deadline"
        store.close()
        workspace.path.rename(tmp_path / f"w{n}")
    assert len(digests) == 1


async def test_cancel_of_a_parked_session_takes_its_ticket_back(store: SqliteStore, workspace: Workspace) -> None:
    await park(store, workspace)
    store.post("s", "cancel")
    report = await runner.resume("s", store=store)
    (ticket,) = workspace.tickets()
    assert (ticket.state, ticket.withdrawn[:19]) == ("permanently_failed", "ended by the cancel")
    assert report.stop_reason is StopReason.CANCELLED
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_cancel_of_a_parked_session_keeps_what_was_answered_before(
    store: SqliteStore, workspace: Workspace
) -> None:
    await park(store, workspace)
    work_off(workspace, "red", answering())
    store.post("s", "cancel")
    await runner.resume("s", store=store)
    assert "say/A2" in [e.key for e in store.read("s") if isinstance(e, CallCompleted)]


async def test_cancel_of_a_parked_session_whose_workspace_is_gone_ends_it(
    store: SqliteStore, workspace: Workspace
) -> None:
    await park(store, workspace)
    workspace.path.rename(workspace.path.with_name("elsewhere"))
    store.post("s", "cancel")
    assert (await runner.resume("s", store=store)).stop_reason is StopReason.CANCELLED
