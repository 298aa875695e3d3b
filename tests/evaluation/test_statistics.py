"""The statistics, against reference values and against what must hold of them."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import cache
from itertools import pairwise, product

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from consilience.domain.errors import SettingsError
from consilience.evaluation import statistics
from consilience.evaluation.statistics import detectable, detectable_by_means, interval, mcnemar, sign_flip

SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=40
)


def test_interval_of_identical_rows_is_zero() -> None:
    row = [1.0, 0.0, 0.6, 1.0, 0.2]
    assert interval(row, row) == (0.0, 0.0)


@settings(max_examples=30)
@given(SCORES, st.integers(0, 5))
def test_interval_of_swapped_rows_is_negated(pairs: list[tuple[float, float]], seed: int) -> None:
    row, reference = [a for a, _ in pairs], [b for _, b in pairs]
    low, high = interval(row, reference, seed=seed, resamples=500)
    assert low <= high
    back_low, back_high = interval(reference, row, seed=seed, resamples=500)
    assert (back_low, back_high) == pytest.approx((-high, -low))
    assert interval(row, reference, seed=seed, resamples=500) == (low, high)


def test_bootstrap_interval_equals_scipy() -> None:
    """Percentile bootstrap of the paired difference; resampling differs, so the ends agree to sampling error."""
    generator = numpy.random.default_rng(1)
    row, reference = generator.integers(0, 2, 120).astype(float), generator.integers(0, 2, 120).astype(float)
    reference = numpy.minimum(reference, row)
    theirs = stats.bootstrap(
        (row - reference,), numpy.mean, n_resamples=20_000, method="percentile", rng=numpy.random.default_rng(2)
    ).confidence_interval
    assert interval(list(row), list(reference)) == pytest.approx((theirs.low, theirs.high), abs=0.012)


def test_interval_of_a_constant_difference_has_no_width_for_any_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interval([1.0] * 7, [0.25] * 7) == (0.75, 0.75)
    row, reference = [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]
    at_once = interval(row, reference)
    monkeypatch.setattr(statistics, "_CELLS", 4 * 77)
    assert interval(row, reference) == at_once


def test_bootstrap_interval_has_its_coverage() -> None:
    generator = numpy.random.default_rng(7)
    hits = 0
    for seed in range(200):
        paired = generator.choice([1.0, 0.0, -1.0], 80, p=[0.3, 0.55, 0.15])  # 0.15 in truth
        low, high = interval(list(paired), [0.0] * 80, seed=seed, resamples=1_000)
        hits += low <= 0.15 <= high
    assert 0.90 <= hits / 200 <= 0.985


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 0), (6, 0), (10, 3), (7, 7), (2, 15)])
def test_mcnemar_equals_the_exact_binomial_test(b: int, c: int) -> None:
    """Twice the smaller tail of a fair coin, summed by hand."""
    n = b + c
    tail = sum(math.comb(n, k) for k in range(min(b, c) + 1)) / 2**n
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(b, c) == mcnemar(c, b)


def enumerated(differences: list[float]) -> float:
    """Of all ways to give the differences signs, the share whose mean is as far from 0."""
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(total >= abs(sum(differences)) - 1e-12 for total in sums) / len(sums)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([-1.0, -0.6, -0.2, 0.0, 0.2, 0.4, 1.0]), max_size=9))
def test_sign_flip_test_is_exact_for_few_tasks(differences: list[float]) -> None:
    assert sign_flip(differences) == pytest.approx(enumerated(differences))
    assert sign_flip([-d for d in differences]) == pytest.approx(sign_flip(differences))


@pytest.mark.parametrize(("b", "c"), [(0, 0), (5, 0), (6, 0), (7, 2), (3, 9)])
def test_sign_flip_test_with_one_repeat_equals_mcnemar(b: int, c: int) -> None:
    assert sign_flip([1.0] * b + [-1.0] * c + [0.0] * 20) == pytest.approx(mcnemar(b, c))


def test_sign_flip_test_samples_for_many_tasks() -> None:
    generator = numpy.random.default_rng(3)
    differences = [float(d) for d in generator.choice([-0.4, -0.2, 0.2, 0.4, 0.6], 40)]
    drawn = sign_flip(differences, seed=7)
    assert drawn == sign_flip(differences, seed=7)
    assert drawn == pytest.approx(sign_flip(differences, seed=8), abs=0.02)
    # the normal approximation of the same null distribution
    z = abs(sum(differences)) / math.sqrt(sum(d * d for d in differences))
    assert drawn == pytest.approx(2 * stats.norm.sf(z), abs=0.02)


def test_sign_flip_test_keeps_its_significance_level() -> None:
    """Two rows alike, 24 tasks with five repeats each."""
    generator = numpy.random.default_rng(11)
    rejected = 0
    for _ in range(400):
        chance = generator.uniform(0, 1, 14)
        ours, theirs = generator.binomial(5, chance) / 5, generator.binomial(5, chance) / 5
        rejected += sign_flip(list(ours - theirs)) < 0.05
    assert rejected / 400 < 0.075


def test_detectable_difference_of_means_has_80_percent_power() -> None:
    generator = numpy.random.default_rng(5)
    spread = generator.choice([-0.4, -0.2, 0.2, 0.4], 10)
    delta = detectable_by_means([float(d) for d in spread])
    assert delta is not None
    shown = [
        sign_flip(list(delta + generator.permutation(spread - spread.mean()) * generator.choice([-1, 1], 10))) < 0.05
        for _ in range(200)
    ]
    assert 0.65 < sum(shown) / 200 < 0.95
    assert detectable_by_means([0.2] * 5 + [0.0] * 30) is None
    assert detectable_by_means([1.0, -1.0] * 3) is None


@cache
def rejects(only_row: int, only_reference: int) -> bool:
    return only_row > only_reference and mcnemar(only_row, only_reference) < 0.05


def shows(n: int, psi: float, delta: float) -> float:
    """How probably a set of n tasks shows δ: every way in which the tasks may fall to one, the other or neither, summed by hand."""
    first, other, neither = (psi + delta) / 2, (psi - delta) / 2, 1 - psi
    return math.fsum(
        math.comb(n, b) * math.comb(n - b, c) * first**b * other**c * neither ** (n - b - c)
        for b in range(n + 1)
        for c in range(n + 1 - b)
        if rejects(b, c)
    )


@pytest.mark.parametrize(
    ("n", "psi"), [(6, 0.2), (8, 0.9), (8, 1.0), (24, 0.0), (24, 0.4), (30, 0.5), (50, 0.2), (50, 1.0), (60, 0.15)]
)
def test_detectable_difference_is_the_smallest_with_80_percent_power(n: int, psi: float) -> None:
    delta = detectable(n, psi)
    assert delta is not None
    assert shows(n, max(psi, delta), delta) == pytest.approx(0.8, abs=1e-6)
    less = delta - 0.01
    assert shows(n, max(psi, less), less) < 0.8


@settings(max_examples=50, deadline=None)
@given(st.integers(6, 3_000), st.floats(0.0, 1.0))
@example(6, 1.1125369292536007e-308)
def test_detectable_difference_exists_from_six_tasks_on(n: int, psi: float) -> None:
    """Six that all fall one way are the fewest that the test tells from chance."""
    difference = detectable(n, psi)
    assert difference is not None
    assert 0 < difference < 1
    if difference > psi:  # then all that differ point one way, and six of them are needed
        assert stats.binom.sf(5, n, difference) == pytest.approx(0.8, abs=1e-6)


def test_detectable_differences_match_the_guide() -> None:
    """From rows that differ on one task in twenty to rows that differ on every second."""
    ends = {n: [round(100 * (detectable(n, psi) or 0)) for psi in (0.05, 0.5)] for n in (24, 48, 100, 400)}
    assert ends == {24: [31, 40], 48: [16, 29], 100: [8, 20], 400: [3, 10]}


def test_detectable_difference_shrinks_with_more_tasks_and_is_none_for_too_few() -> None:
    shown = [detectable(n, 0.3) for n in (10, 20, 50, 200, 1000)]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(shown))
    assert detectable(2, 0.5) is None
    assert detectable(5, 1.0) is None
    assert detectable(24, 0.0) == pytest.approx(detectable(24, 0.001))


@pytest.mark.parametrize(("n", "psi"), [(200, 0.3), (100, 0.3), (2_000, 0.05)])
def test_detectable_difference_is_detected_in_80_percent_of_simulations(n: int, psi: float) -> None:
    """Simulated: with the difference that can be shown, the test rejects in four cases of five."""
    delta = detectable(n, psi)
    assert delta is not None
    generator = numpy.random.default_rng(3)
    counts = generator.multinomial(n, [(psi + delta) / 2, (psi - delta) / 2, 1 - psi], 10_000)
    rejected = sum(rejects(int(b), int(c)) for b, c, _ in counts)
    assert 0.788 <= rejected / 10_000 <= 0.812  # three standard errors


def test_missing_libraries_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"numpy and scipy.*consilience\[evaluation\]"):
        statistics.require_libraries()


def test_import_of_evaluation_loads_no_heavy_library() -> None:
    code = "import sys, consilience.evaluation; print([m for m in ('numpy', 'scipy', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"
