"""Pooled shares, changes and agreement of ballots."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.positions import Ballot, ConfidenceLevel, changes, one_sided, pool, unchanged

CONFIDENCES: list[ConfidenceLevel] = ["unsure", "fairly sure", "certain"]
BALLOTS = st.lists(
    st.builds(
        Ballot,
        agent=st.sampled_from("abc"),
        step=st.integers(0, 3),
        position=st.sampled_from(["yes", "no"]),
        confidence=st.sampled_from(CONFIDENCES),
    ),
    max_size=12,
)


@given(BALLOTS, st.integers())
def test_pool_sums_to_one_in_any_order(ballots: list[Ballot], seed: int) -> None:
    shares = pool(ballots)
    assert sum(shares.values()) == pytest.approx(1.0 if ballots else 0.0)
    shuffled = Random(seed).sample(ballots, len(ballots))
    assert pool(shuffled) == pytest.approx(shares)


def ballot(
    agent: str, step: int, position: str, confidence: ConfidenceLevel = "certain", cause: str | None = None
) -> Ballot:
    return Ballot(agent=agent, step=step, position=position, confidence=confidence, cause=cause)


def test_positions_of_equal_weight_are_pooled_by_name() -> None:
    """In whatever order their confidences are added up."""
    mine: list[ConfidenceLevel] = ["fairly sure", "fairly sure", "unsure"]
    cast = [ballot(f"a{n}", 0, "alpha", level) for n, level in enumerate(mine)]
    cast += [ballot(f"b{n}", 0, "beta", level) for n, level in enumerate(sorted(mine, reverse=True))]
    assert list(pool(cast)) == ["alpha", "beta"]
    assert list(pool(cast[::-1])) == ["alpha", "beta"]


def test_changes_compare_consecutive_ballots_of_one_agent() -> None:
    cast = [ballot("a", 0, "yes"), ballot("b", 0, "no"), ballot("a", 1, "no", cause="m"), ballot("a", 2, "yes")]
    moves = [(c.agent, c.before, c.after, c.step, c.conformity) for c in changes(cast)]
    assert moves == [("a", "yes", "no", 1, False), ("a", "no", "yes", 2, True)]


def test_unchanged_share_counts_side_confidence_and_missing_ballots() -> None:
    before = {"a": ballot("a", 0, "yes"), "b": ballot("b", 0, "no"), "c": ballot("c", 0, "no", "unsure")}
    assert unchanged(before, before) == 1.0
    assert unchanged(before, {**before, "a": ballot("a", 1, "no")}) == pytest.approx(2 / 3)
    assert unchanged(before, {**before, "c": ballot("c", 1, "no", "certain")}) == pytest.approx(2 / 3)
    assert unchanged(before, {"a": before["a"], "b": before["b"]}) == pytest.approx(2 / 3)
    assert unchanged({}, {}) == 0.0


def test_one_sided_is_false_without_ballots() -> None:
    assert not one_sided({})
    assert one_sided({"a": ballot("a", 0, "yes")})
    assert not one_sided({"a": ballot("a", 0, "yes"), "b": ballot("b", 0, "no")})
