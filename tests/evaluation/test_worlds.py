"""Planted worlds: what divides them follows from beliefs and grounds, and figures of recovery are the known ones."""

from __future__ import annotations

import pytest

from simulation import adjusted_rand, bootstrap, f1, plant
from simulation.worlds import PROPOSITION

WORLDS = [plant(seed) for seed in range(40)]


def test_plant_gives_the_same_world_for_the_same_seed() -> None:
    assert plant(7) == plant(7)
    assert plant(7) != plant(8)


@pytest.mark.parametrize("world", WORLDS[:8])
def test_world_has_planted_cruxes_distractors_and_agreed_statements(world) -> None:  # type: ignore[no-untyped-def]
    kinds = {
        kind: {statement.question for statement in world.statements if statement.kind == kind}
        for kind in ("crux", "distractor")
    }
    assert world.cruxes <= kinds["crux"]
    assert all(len(world.sides(question)) == 2 for question in kinds["distractor"])
    grounds = frozenset[str]().union(*(mind.grounds for mind in world.minds.values()))
    assert not grounds & (kinds["distractor"] | world.agreed)


def test_worlds_are_divided_on_the_proposition_and_have_cruxes() -> None:
    assert all(len(world.sides(PROPOSITION)) == 2 and world.cruxes for world in WORLDS)
    assert {len(set(world.camps)) for world in WORLDS} == {2, 3}


def test_world_with_consensus_has_no_cruxes() -> None:
    for seed in range(20):
        world = plant(seed, consensus=True)
        assert world.cruxes == frozenset()
        assert all(len(world.sides(question)) == 1 for question in next(iter(world.minds.values())).beliefs)


def test_answer_changes_only_with_a_changed_ground() -> None:
    mind = next(iter(plant(3).minds.values()))
    held = mind.beliefs[PROPOSITION]
    for question, side in mind.beliefs.items():
        if question != PROPOSITION:
            other = "NO" if side == "YES" else "YES"
            assert mind.answer(PROPOSITION, {question: side}) == held
            assert (mind.answer(PROPOSITION, {question: other}) != held) == (question in mind.grounds)
            assert mind.answer(question, {question: other}) == other


@pytest.mark.parametrize(
    ("expected", "other", "index"),
    [
        ([0, 0, 1, 1], [5, 5, 7, 7], 1.0),
        ([0, 0, 1, 1], [0, 1, 0, 1], -0.5),
        (
            [0, 0, 0, 1, 1, 1],
            [0, 0, 1, 1, 2, 2],
            0.24242424,
        ),  # Hubert & Arabie's formula by hand: (2 − 1.2) ÷ (4.5 − 1.2)
        ([0, 0, 1, 1], [0, 1, 2, 3], 0.0),
        ([0, 1, 2], [3, 4, 5], 1.0),
    ],
)
def test_adjusted_rand_index_equals_known_values(expected: list[int], other: list[int], index: float) -> None:
    assert adjusted_rand(expected, other) == pytest.approx(index)


def test_f1_counts_hits_in_both_sets() -> None:
    assert f1({"a", "b"}, {"b", "c", "d"}) == (0.5, pytest.approx(1 / 3), pytest.approx(0.4))
    assert f1(set(), {"a"}) == (None, 0.0, 0.0)
    assert f1(set(), set()) == (None, None, None)


def test_bootstrap_interval_contains_the_mean_and_bounds_a_zero_share() -> None:
    interval = bootstrap([0.0, 1.0] * 50)
    assert interval is not None
    assert interval.mean == 0.5
    assert 0.35 < interval.low < 0.45
    assert 0.55 < interval.high < 0.65
    never = bootstrap([0.0] * 60)
    assert never is not None
    assert (never.low, never.high) == (0.0, 0.05)
    assert bootstrap([]) is None


def test_world_with_a_dissenter_has_one_agent_in_a_camp_of_its_own() -> None:
    for seed in range(20):
        world = plant(seed, dissenter=True)
        assert sorted(world.camps) == [0] * (len(world.camps) - 1) + [1]
        assert len(world.sides(PROPOSITION)) == 2
