"""Debates of planted worlds: what divides the agents is found, and agreement is reported only where it is."""

from __future__ import annotations

import asyncio

import pytest

import consilience
from consilience import Debate, DebateReport
from consilience.journal.sqlite import SqliteStore
from simulation import SimulatedModel, World, plant
from simulation.worlds import PROPOSITION
from study_debaters import simulate

pytestmark = pytest.mark.usefixtures("home")


def debated(world: World) -> tuple[DebateReport, SimulatedModel]:
    model, store = SimulatedModel(world, simulate), SqliteStore(":memory:")
    protocol = Debate(debaters=len(world.minds), as_is=True, max_duration=900)
    report = asyncio.run(consilience.deliberate(PROPOSITION, protocol, model=model, store=store, seed=world.seed))
    store.close()
    assert isinstance(report, DebateReport)
    return report, model


@pytest.mark.parametrize("sycophancy", [0.0, 0.9])
@pytest.mark.parametrize("seed", [101, 102])
def test_debate_on_a_divided_world_is_never_reported_as_consensus(seed: int, sycophancy: float) -> None:
    world = plant(seed, agents=5, sycophancy=sycophancy)
    report, _ = debated(world)
    assert report.regime in ("partial", "polarized")
    sides = {ballot.agent: ballot.positions[0] for ballot in report.ballots if ballot.step == 1}
    assert sides == {agent: mind.beliefs[PROPOSITION] for agent, mind in world.minds.items()}
    named = {thread.crux.question for thread in report.threads if thread.crux and thread.crux.validated}
    assert named
    assert named <= world.cruxes


@pytest.mark.parametrize("sycophancy", [0.0, 0.9])
def test_debate_on_a_world_without_dispute_is_reported_as_consensus(sycophancy: float) -> None:
    report, _ = debated(plant(103, agents=5, consensus=True, sycophancy=sycophancy))
    assert report.regime == "consensus"
    assert not [thread for thread in report.threads if thread.crux and thread.crux.validated]


def test_observed_flips_of_misreporting_agents_are_those_planted() -> None:
    world = plant(101, agents=5, misreport=0.6)
    report, _ = debated(world)
    records = [(thread, record) for thread, flip_record in report.flip_records.items() for record in flip_record]
    questions = {thread.id: thread.crux.question for thread in report.threads if thread.crux}
    assert records
    for thread, record in records:
        assert record.observed == (questions[thread] in world.minds[record.agent].grounds)
        assert record.placebo is False
    assert any(record.declared != record.observed for _, record in records)


def test_thread_with_supporters_on_one_side_asks_other_agents_and_locks() -> None:
    reports = [debated(plant(seed, agents=6))[0] for seed in (105, 109, 113)]
    threads = [thread for report in reports for thread in report.threads if thread.lock_attempts]
    asked = [thread for thread in threads if thread.lock_attempts[0].kinds == ("sides",)]
    assert any(thread.lock_attempts[-1].success for thread in asked)
