"""Deadlines as agents write them."""

from __future__ import annotations

from datetime import date

import pytest

from consilience.domain.deadlines import deadline_of


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2027-12-31", "2027-12-31"),
        ("by 2027-3-9, latest", "2027-03-09"),
        ("2027-02", "2027-02-28"),
        ("February 2028", "2028-02-29"),
        ("end of Sept. 2027", "2027-09-30"),
        ("31 December 2027", "2027-12-31"),
        ("the 1st of May, 2027", "2027-05-01"),
        ("March 4th, 2027", "2027-03-04"),
        ("Q3 2027", "2027-09-30"),
        ("2027-Q1", "2027-03-31"),
        ("2027 Q4", "2027-12-31"),
        ("the third quarter of 2027", "2027-09-30"),
        ("H1 2028", "2028-06-30"),
        ("second half of 2028", "2028-12-31"),
        ("end of 2029", "2029-12-31"),
        ("2029", "2029-12-31"),
        ("mid-2028", "2028-06-30"),
        ("early 2028", "2028-03-31"),
        ("between April 2026 and Q1 2027", "2027-03-31"),
        ("before the works begin on 1 October 2027", "2027-10-01"),
    ],
)
def test_deadline_of_a_period_is_its_last_day(text: str, day: str) -> None:
    assert deadline_of(text) == date.fromisoformat(day)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("in six weeks", "2026-12-14"),
        ("within 3 months of today", "2027-02-02"),
        ("within a year", "2027-11-02"),
        ("in the next 10 days", "2026-11-12"),
        ("next quarter", "2027-03-31"),
        ("by the end of this month", "2026-11-30"),
        ("end of the year", "2026-12-31"),
        ("by year-end", "2026-12-31"),
        ("next year", "2027-12-31"),
        ("next week", "2026-11-15"),
        ("by 13 November", "2026-11-13"),
        ("before March 4th", "2027-03-04"),
        ("in six weeks, at the latest on 1 March 2027", "2027-03-01"),
    ],
)
def test_deadline_without_a_year_counts_from_the_day_of_writing(text: str, day: str) -> None:
    assert deadline_of(text, date(2026, 11, 2)) == date.fromisoformat(day)


@pytest.mark.parametrize(
    "text",
    ["within six weeks of the start", "six weeks after the start", "in the ten weeks after it", "soon", "next spring",
     "by 31 February", "in 9999 years", "in two years from the opening"],
)  # fmt: skip
def test_deadline_of_a_relative_duration_is_none(text: str) -> None:
    assert deadline_of(text, date(2026, 11, 2)) is None


@pytest.mark.parametrize(
    "text", ["", "soon", "in six months", "next spring", "before 12,400 events", "2027-02-31", "Q5", "maybe"]
)
def test_deadline_of_text_without_a_date_is_none(text: str) -> None:
    assert deadline_of(text) is None
