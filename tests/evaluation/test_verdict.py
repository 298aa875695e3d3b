"""Who won, where tasks are repeated."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.domain.outcome import StopReason
from consilience.evaluation import Difference, Run
from consilience.evaluation.summary import difference_of

REPEATS = 5


def runs(row: str, right: Sequence[int]) -> list[Run]:
    """So many of the repeats of each task were right."""
    return [
        Run(
            row=row,
            task=str(task),
            seed=seed,
            session=f"{row}-{task}-{seed}",
            answer="x",
            position="x",
            answered=True,
            correct=seed < n,
            stop_reason=StopReason.SETTLED,
            limit=1,
            calls=1,
            tokens_in=1,
            tokens_out=1,
            cost=0,
            seconds=0,
        )
        for task, n in enumerate(right)
        for seed in range(REPEATS)
    ]


def between(ours: Sequence[int], theirs: Sequence[int]) -> Difference:
    found = difference_of(runs("ours", ours), runs("theirs", theirs))
    assert found is not None
    return found


def test_a_mean_and_a_majority_that_point_opposite_ways_are_no_verdict() -> None:
    """Ten tasks just won, and fourteen where both are right by majority, in three of five and in five of five."""
    d = between([3] * 24, [2] * 10 + [5] * 14)
    assert (d.only_row, d.only_reference) == (10, 0)
    assert d.p < 0.05
    assert d.difference < 0
    assert d.high < 0
    assert d.verdict == "cannot tell"
    assert between([2] * 10 + [5] * 14, [3] * 24).verdict == "cannot tell"


def test_a_mean_and_a_majority_that_agree_are_one() -> None:
    assert between([5] * 8, [1] * 8).verdict == "won"
    assert between([1] * 8, [5] * 8).verdict == "lost"
    assert between([5] * 5, [1] * 5).verdict == "cannot tell"  # too few
