"""Faults of outside agents end to end: every protocol with a seat whose tickets go wrong, and sessions killed while tickets are
out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import consilience
from consilience.coordination import Ticket, Workspace, fail, submit, withdraw
from consilience.domain.agents import voices
from consilience.domain.errors import SessionWaiting
from consilience.domain.events import CallAwaited, CallCompleted, CallFailed, ReplyRejected
from consilience.domain.outcome import FailureKind, StopReason
from consilience.domain.report import Report
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.parsing import prose_field
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.reporting.markdown import markdown
from consilience.testing.shaking import Arrivals
from kit.cases import CALLING, Case, well_formed
from kit.outsiders import Outsider, PromptOutsider, expire, leave, work_off
from kit.runs import TASK

CASES = [case for case in CALLING if case.outside is None]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def changed(workspace: Workspace, claimed: Ticket) -> None:
    completed = submit(workspace, claimed, "It is.")
    assert completed.result is not None
    artifact = workspace.path / completed.result.artifact_path
    artifact.chmod(0o644)
    artifact.write_text("It was.")


@dataclass(frozen=True)
class OutsideFault:
    name: str
    work: Callable[[Workspace, Ticket], object]
    typed: FailureKind
    """What an ask for a typed reply comes to."""
    prose: FailureKind | None
    """The same of one for text; None: it is an answer."""


FAULTS = (
    OutsideFault("killed", leave, FailureKind.DEADLINE, FailureKind.DEADLINE),
    OutsideFault("gives back", lambda w, t: fail(w, t, "no time"), FailureKind.REFUSED, FailureKind.REFUSED),
    OutsideFault("withdrawn", lambda w, t: withdraw(w, t.id, "shut"), FailureKind.REJECTED, FailureKind.REJECTED),
    OutsideFault("changed", changed, FailureKind.REJECTED, FailureKind.REJECTED),
    OutsideFault("empty", lambda w, t: submit(w, t, " \n"), FailureKind.MALFORMED, FailureKind.MALFORMED),
    OutsideFault("malformed", lambda w, t: submit(w, t, '{"text": 3'), FailureKind.MALFORMED, None),
    OutsideFault("binary", lambda w, t: submit(w, t, b"\xff\x00\xfe{"), FailureKind.MALFORMED, None),
)


@dataclass
class Played:
    report: Report
    store: SqliteStore
    workspace: Workspace
    seat: Outsider
    answered: set[str]
    """Ids of the tickets that were answered well."""


async def play(case: Case, fault: OutsideFault, well: int, directory: Path) -> Played:
    """Run with the last agent as an outside one, which answers `well` tickets and then fails each time that the run is parked."""
    workspace = Workspace.create(directory / "w")
    ids = [agent.id for agent in case.protocol.agents(None)]
    seat, model = Outsider(workspace.path), ScriptedModel(well_formed(case.script))
    models: dict[str, Any] = {**dict.fromkeys(ids, model), ids[-1]: seat}
    store, answered = SqliteStore(directory / "j.db"), set[str]()

    def work(workspace: Workspace, claimed: Ticket) -> None:
        if len(answered) < well:
            answered.add(claimed.id)
            submit(workspace, claimed, well_formed(case.script)(seat.requests[claimed.id]))
        else:
            fault.work(workspace, claimed)

    run = consilience.deliberate(
        TASK, case.protocol, sources=case.sources, model=models, store=store, session="s", options=Options(patience=0)
    )
    while True:
        try:
            return Played(await run, store, workspace, seat, answered)
        except SessionWaiting:
            if not work_off(workspace, "red", work):
                raise
            expire(workspace)
            run = consilience.resume("s", model=models, store=store, options=Options(patience=0))


GRID = list(itertools.product(CASES, FAULTS, (0, 1)))


@pytest.mark.matrix(keep=16)
@pytest.mark.parametrize(
    ("case", "fault", "well"), GRID, ids=[f"{case.name}-{fault.name}-{well}" for case, fault, well in GRID]
)
async def test_a_run_with_a_faulty_outside_agent_ends_with_a_typed_report(
    case: Case, fault: OutsideFault, well: int, tmp_path: Path
) -> None:
    played = await play(case, fault, well, tmp_path)
    report, store, workspace, requests = played.report, played.store, played.workspace, played.seat.requests
    outside, events = case.protocol.agents(None)[-1].id, store.read("s")
    ended = {
        (e.key, e.attempt): e
        for e in events
        if isinstance(e, CallCompleted | CallFailed | ReplyRejected) and e.agent == outside
    }
    assert ended.keys() == {(request.key, request.attempt) for request in requests.values()}, "no request is lost"
    assert {ticket.id for ticket in workspace.tickets()} == requests.keys(), "and none is asked twice"
    assert all(ticket.is_final for ticket in workspace.tickets())
    awaited = [(e.key, e.attempt) for e in events if isinstance(e, CallAwaited)]
    assert len(awaited) == len(set(awaited)) == len(requests)
    failed = {call.key: call.kind for call in report.failed_calls}
    good = [key for key in failed if key not in {request.key for request in requests.values()}]
    assert not good, "nobody else failed"
    for request in (request for id, request in requests.items() if id not in played.answered):
        is_text = request.returns is None or (fault.name == "binary" and prose_field(request.returns))
        kind = fault.prose if is_text else fault.typed
        assert failed.get(request.key) == kind, "and nothing is invented"
    names = {seat.agent for seat in report.missing}
    voiced = {agent.id for agent in voices(report.agents)}
    assert names <= {outside}
    if failed and outside in voiced and not any(isinstance(e, CallCompleted) for e in ended.values()):
        assert names == {outside}
        assert "Missing agents" in markdown(report)
    if failed:
        assert report.degraded
        assert report.stop_reason is not StopReason.CONVERGED or outside not in voiced or well
    assert (await consilience.replay("s", store=store)).digest() == report.digest()
    assert await consilience.resume("s", store=store, model="no model is needed") == report
    assert not store.flights("s")
    store.close()


# --- orders, budgets and kills


def shaken(case: Case, workspace: Workspace, *, prompt: bool) -> Arrivals:
    """The case with an outside agent, who answers at once, or else through the journal whenever the session is parked."""

    requests: dict[str, ModelRequest] = {}

    def seats(model: ScriptedModel, order: int | None) -> dict[str, Any]:
        seat = PromptOutsider(workspace.path, case.script, requests) if prompt else Outsider(workspace.path)
        return {case.protocol.agents(None)[-1].id: seat}

    return Arrivals(case.protocol, case.script, sources=case.sources, seats=seats)


@pytest.mark.matrix(keep=4)
@every_case
async def test_run_with_an_outside_agent_is_the_same_in_any_order_and_ends_on_any_budget(
    case: Case, tmp_path: Path, sample
) -> None:  # type: ignore[no-untyped-def]
    arrivals = shaken(case, Workspace.create(tmp_path / "w"), prompt=True)
    await arrivals.check_orders(range(4))
    await arrivals.check_budgets(sample(range(arrivals.need + 1), 3, whole=30), range(1))


@pytest.mark.matrix(keep=4)
@every_case
async def test_run_killed_with_open_tickets_posts_none_twice(case: Case, tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    points = sample(await shaken(case, Workspace.create(tmp_path / "points"), prompt=True).fault_points(), 6, whole=60)
    workspace = Workspace.create(tmp_path / "w")
    arrivals = shaken(case, workspace, prompt=True)
    await arrivals.run()
    asked = len(workspace.tickets())
    struck = await arrivals.check_kills(points, tmp_path)
    assert struck
    assert len(workspace.tickets()) == asked * (2 + len(points)), "of the first run, the reference and each killed run"
    await arrivals.check_replay(tmp_path)


@pytest.mark.matrix(keep=3)
@every_case
async def test_run_with_outside_answers_in_the_journal_survives_kills(case: Case, tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    """Of an agent who never claims; what its kind of answer comes to is the protocol's matter."""
    workspace = Workspace.create(tmp_path / "w")
    arrivals = shaken(case, workspace, prompt=False)
    await arrivals.check_kills(sample(await arrivals.fault_points(), 3, whole=30), tmp_path)
    assert all(ticket.withdrawn for ticket in workspace.tickets() if ticket.is_final)
