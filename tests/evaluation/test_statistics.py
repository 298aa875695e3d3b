"""The statistics, against reference values and against what must hold of them."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from consilience.domain.errors import SettingsError
from consilience.evaluation import statistics
from consilience.evaluation.statistics import detectable, interval, mcnemar

SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=40
)


def test_identical_rows_differ_by_exactly_nothing() -> None:
    row = [1.0, 0.0, 0.6, 1.0, 0.2]
    assert interval(row, row) == (0.0, 0.0)


@settings(max_examples=30)
@given(SCORES, st.integers(0, 5))
def test_swapped_rows_negate_the_interval(pairs: list[tuple[float, float]], seed: int) -> None:
    row, reference = [a for a, _ in pairs], [b for _, b in pairs]
    low, high = interval(row, reference, seed=seed, resamples=500)
    assert low <= high
    back_low, back_high = interval(reference, row, seed=seed, resamples=500)
    assert (back_low, back_high) == pytest.approx((-high, -low))
    assert interval(row, reference, seed=seed, resamples=500) == (low, high)


def test_the_interval_is_that_of_scipy() -> None:
    """Percentile bootstrap of the paired difference; resampling differs, so the ends agree to sampling error."""
    generator = numpy.random.default_rng(1)
    row, reference = generator.integers(0, 2, 120).astype(float), generator.integers(0, 2, 120).astype(float)
    reference = numpy.minimum(reference, row)
    theirs = stats.bootstrap(
        (row - reference,), numpy.mean, n_resamples=20_000, method="percentile", rng=numpy.random.default_rng(2)
    ).confidence_interval
    assert interval(list(row), list(reference)) == pytest.approx((theirs.low, theirs.high), abs=0.012)


def test_a_constant_difference_has_no_width_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interval([1.0] * 7, [0.25] * 7) == (0.75, 0.75)
    row, reference = [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]
    at_once = interval(row, reference)
    monkeypatch.setattr(statistics, "_CELLS", 4 * 77)
    assert interval(row, reference) == at_once


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = numpy.random.default_rng(7)
    hits = 0
    for seed in range(200):
        paired = generator.choice([1.0, 0.0, -1.0], 80, p=[0.3, 0.55, 0.15])  # 0.15 in truth
        low, high = interval(list(paired), [0.0] * 80, seed=seed, resamples=1_000)
        hits += low <= 0.15 <= high
    assert 0.90 <= hits / 200 <= 0.985


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 0), (6, 0), (10, 3), (7, 7), (2, 15)])
def test_mcnemar_is_the_exact_binomial_test(b: int, c: int) -> None:
    """Twice the smaller tail of a fair coin, summed by hand."""
    n = b + c
    tail = sum(math.comb(n, k) for k in range(min(b, c) + 1)) / 2**n
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail))
    assert mcnemar(b, c) == mcnemar(c, b)


def needed(delta: float, psi: float) -> float:
    """Connor's formula as printed, at 5 % and 80 %."""
    z1, z2 = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    return float((z1 * math.sqrt(psi) + z2 * math.sqrt(psi - delta**2)) ** 2 / delta**2)


@settings(max_examples=100)
@given(st.integers(20, 2_000), st.floats(0.02, 1.0))
def test_a_set_of_the_size_that_is_needed_shows_the_difference(n: int, psi: float) -> None:
    found = detectable(n, psi)
    assert found is not None
    assert 0 < found <= 1
    assert needed(found, max(psi, found)) == pytest.approx(n, rel=1e-6)


def test_what_can_be_shown_by_figures_of_the_literature() -> None:
    """ψ = 0.3 and δ = 0.1 need 234 pairs (z = 1.96 and 0.8416)."""
    assert needed(0.1, 0.3) == pytest.approx(233, abs=1)
    assert detectable(round(needed(0.1, 0.3)), 0.3) == pytest.approx(0.1, abs=0.001)


def test_more_tasks_show_smaller_differences_and_too_few_show_none() -> None:
    shown = [detectable(n, 0.3) for n in (10, 20, 50, 200, 1000)]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(shown))
    assert detectable(2, 0.5) is None
    assert detectable(3, 1.0) is None
    assert detectable(24, 0.0) == pytest.approx(detectable(24, 0.001))


def test_the_power_is_what_is_promised() -> None:
    """Simulated: with the difference that can be shown, the test rejects in about four cases of five."""
    n, psi = 200, 0.3
    delta = detectable(n, psi)
    assert delta is not None
    generator = numpy.random.default_rng(3)
    counts = generator.multinomial(n, [(psi + delta) / 2, (psi - delta) / 2, 1 - psi], 2_000)
    rejected = sum(mcnemar(int(b), int(c)) < 0.05 for b, c, _ in counts)
    assert 0.73 <= rejected / 2_000 <= 0.83  # the exact test is a little more careful than the formula


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"numpy and scipy.*consilience\[evaluation\]"):
        statistics.need_libraries()


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = "import sys, consilience.evaluation; print([m for m in ('numpy', 'scipy', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
