"""`review` with reviewers of other processes: killed and requeued, never back, and not needed any more at the quorum."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consilience.coordination import ClaimLost, Ticket, Workspace, submit
from consilience.domain.errors import SessionWaiting, SettingsError
from consilience.domain.outcome import StopReason
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.protocols.review import Review, ReviewReport
from kit import runner
from kit.outsiders import expire, leave, work_off
from kit.reviewing import SOURCES, UNCLOSED, finding, script


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "workspace")


def reporting(**fields: Any) -> Any:
    """An agent that reads every document of its ticket and finds one thing."""

    def work(workspace: Workspace, claimed: Ticket) -> None:
        read = [{"document": id, "remark": "read"} for id in re.findall(r"from document (S\d+)", claimed.instructions)]
        body = {"read": read, "findings": [fields], "vote": "changes", "confidence": 0.8, "reason": "so"}
        submit(workspace, claimed, json.dumps(body))

    return work


class Reviewing:
    """A review with some seats outside, resumed whenever they have worked."""

    def __init__(self, store: SqliteStore, workspace: Workspace, protocol: Review, outside: tuple[str, ...]) -> None:
        self.store, self.protocol = store, protocol
        inside = ScriptedModel(script({}))
        self.seats: dict[str, Any] = {
            agent.id: f"workspace:{workspace.path}#{agent.id}" if agent.id in outside else inside
            for agent in protocol.agents(None)
        }

    async def start(self) -> SessionWaiting:
        with pytest.raises(SessionWaiting) as parked:
            await runner.start(
                "Review it.",
                self.protocol,
                models=self.seats,
                store=self.store,
                session="s",
                sources=SOURCES,
                options=Options(patience=0),
            )
        return parked.value

    async def go_on(self) -> ReviewReport:
        report = await runner.resume("s", models=self.seats, store=self.store, options=Options(patience=0))
        assert isinstance(report, ReviewReport)
        return report


async def test_killed_reviewer_is_replaced_within_the_review(store: SqliteStore, workspace: Workspace) -> None:
    run = Reviewing(store, workspace, Review(), outside=("red",))
    parked = await run.start()
    assert parked.awaited == ("review-1/part-1/red",)
    work_off(workspace, "red", leave)
    expire(workspace)
    work_off(workspace, "red", reporting(**finding()))
    report = await run.go_on()
    assert report.stop_reason is StopReason.SETTLED
    assert [entry.by for entry in report.findings] == [("red",)]
    assert any("offered again" in incident for incident in report.incidents)


async def test_reviewer_that_never_comes_back_is_named(store: SqliteStore, workspace: Workspace) -> None:
    run = Reviewing(store, workspace, Review(), outside=("red",))
    await run.start()
    for _ in range(2):
        work_off(workspace, "red", leave)
        expire(workspace)
    report = await run.go_on()
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert [reason.partition(" (")[0] for reason in report.unmet] == ["no review by red"]
    assert report.answer == "No findings in 1 file. No review by red: this covers the others only."
    assert [part.readers for part in report.parts] == [("blue",)]


async def test_at_the_quorum_of_readers_late_tickets_are_withdrawn(store: SqliteStore, workspace: Workspace) -> None:
    protocol = Review(review_type="documentation", reviewers=4, quorum_of_reviewers=3)
    run = Reviewing(store, workspace, protocol, outside=("R3", "R4"))
    await run.start()
    (late,) = work_off(workspace, "R4", leave)
    work_off(workspace, "R3", reporting(**UNCLOSED))
    report = await run.go_on()
    assert report.stop_reason is StopReason.SETTLED
    assert [entry.by for entry in report.findings] == [("R3",)]
    assert any(text.startswith("no review by R4 (quorum: the quorum of 3 agents") for text in report.warnings)
    assert report.unmet == ()
    with pytest.raises(ClaimLost, match="withdrawn: the quorum"):
        submit(workspace, late, "{}")


def ttls(workspace: Workspace) -> dict[str, float]:
    """Return how long a claim of each ticket lasts, by the key of its call."""
    return {str(ticket.data["key"]): ticket.ttl_seconds for ticket in workspace.tickets()}


async def test_expired_claim_of_120_seconds_is_offered_again(store: SqliteStore, workspace: Workspace) -> None:
    await Reviewing(store, workspace, Review(), outside=("red",)).start()
    (ticket,) = workspace.tickets()
    assert (ticket.ttl_seconds, ticket.max_requeues) == (120, 1)


async def test_readers_share_a_timeout_of_300_seconds(store: SqliteStore, workspace: Workspace) -> None:
    protocol = Review(review_type="documentation", reviewers=2)
    await Reviewing(store, workspace, protocol, outside=("R1", "R2")).start()
    assert set(ttls(workspace).values()) == {300}
    assert protocol.waiting == (300, "total")


async def test_failed_iteration_is_requeued_with_longer_claims(store: SqliteStore, workspace: Workspace) -> None:
    run = Reviewing(store, workspace, Review(partial="fail", max_requeues=2), outside=("red",))
    await run.start()
    for _ in range(2):
        work_off(workspace, "red", leave)
        expire(workspace)
        with pytest.raises(SessionWaiting):
            await run.go_on()
    assert ttls(workspace) == {
        "review-1/part-1/red": 120,
        "review-1/again-1/part-1/red": 180,
        "review-1/again-2/part-1/red": 270,
    }
    work_off(workspace, "red", reporting(**finding()))
    assert (await run.go_on()).stop_reason is StopReason.SETTLED


async def test_late_side_with_partial_use_is_not_asked_again(store: SqliteStore, workspace: Workspace) -> None:
    run = Reviewing(store, workspace, Review(partial="use", max_iterations=3), outside=("red",))
    await run.start()
    work_off(workspace, "red", leave)
    expire(workspace)
    report = await run.go_on()
    assert report.evaluations[-1].outcome == "partial"
    assert list(ttls(workspace)) == ["review-1/part-1/red"]


@pytest.mark.parametrize(("strategy", "seconds"), [("per_agent", 60), ("adaptive", 90)])
async def test_adaptive_timeout_grows_after_an_agent_was_late(
    strategy: Any, seconds: float, store: SqliteStore, workspace: Workspace
) -> None:
    run = Reviewing(store, workspace, Review(timeout=60, timeout_strategy=strategy, max_iterations=2), outside=("red",))
    await run.start()
    for _ in range(2):
        work_off(workspace, "red", leave)
        expire(workspace)
    with pytest.raises(SessionWaiting):
        await run.go_on()
    assert ttls(workspace) == {"review-1/part-1/red": 60, "review-2/part-1/red": seconds}


def test_total_timeout_for_an_adversarial_review_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs a quorum"):
        Review(timeout_strategy="total")
    Review(timeout_strategy="total", review_type="architecture")


async def test_readers_asked_again_count_with_those_that_replied(store: SqliteStore, workspace: Workspace) -> None:
    """Two of four have replied and three are enough, so of two that are asked again one is."""
    protocol = Review(review_type="documentation", reviewers=4, quorum_of_reviewers=3, partial="fail")
    run = Reviewing(store, workspace, protocol, outside=("R3", "R4"))
    await run.start()
    for agent in ("R3", "R4"):
        work_off(workspace, agent, leave)
    expire(workspace)
    with pytest.raises(SessionWaiting):
        await run.go_on()
    work_off(workspace, "R3", reporting(**UNCLOSED))
    report = await run.go_on()
    assert report.stop_reason is StopReason.SETTLED
    assert any(text.startswith("no review by R4 (quorum: the quorum of 1 agents") for text in report.warnings)
