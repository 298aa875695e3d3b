"""Verdicts of comparisons with repeated tasks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from consilience.domain.outcome import StopReason
from consilience.evaluation import Difference, Run
from consilience.evaluation.statistics import row_difference

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
    difference = row_difference(runs("ours", ours), runs("theirs", theirs))
    assert difference is not None
    return difference


def test_verdict_counts_all_repeats_not_majorities() -> None:
    """Ten tasks just won by majority; on fourteen both have the majority, with three of five and with five of five."""
    d = between([3] * 24, [2] * 10 + [5] * 14)
    assert (d.better, d.worse) == (10, 14)
    assert d.test == "sign-flip"
    assert d.difference < 0
    assert d.verdict == "lost"
    assert between([2] * 10 + [5] * 14, [3] * 24).verdict == "won"


def test_verdict_of_small_steady_gains_is_won() -> None:
    d = between([5] * 12, [4] * 12)
    assert d.verdict == "won"
    assert d.p == pytest.approx(2 / 2**12)


def test_verdict_with_too_few_tasks_is_cannot_tell() -> None:
    assert between([5] * 8, [1] * 8).verdict == "won"
    assert between([1] * 8, [5] * 8).verdict == "lost"
    assert between([5] * 5, [1] * 5).verdict == "cannot tell"
    assert between([5] * 5, [1] * 5).detectable is None


def test_verdict_with_one_repeat_uses_mcnemar() -> None:
    once = [[run for run in runs(row, [n] * 8) if run.seed == 0] for row, n in (("ours", 5), ("theirs", 0))]
    d = row_difference(*once)
    assert d is not None
    assert (d.test, d.better, d.worse, d.verdict) == ("mcnemar", 8, 0, "won")
