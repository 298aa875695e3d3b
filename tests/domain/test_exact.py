"""Exact comparison of shares and scores without rounding errors of floats."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.positions import exact


@given(st.integers(-10_000, 10_000), st.integers(1, 10_000))
def test_exact_returns_the_original_fraction_of_a_float(numerator: int, denominator: int) -> None:
    assert exact(numerator / denominator) == Fraction(numerator, denominator)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_exact_sums_do_not_depend_on_scaling(marks: list[int]) -> None:
    assert sum(exact(mark / 100 / 10) for mark in marks) == Fraction(sum(marks), 1000)
