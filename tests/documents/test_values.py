"""Values are compared as what they are: dates, amounts, durations, numbers, else words."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.documents.values import ValueRelation, compare_values

EQUAL = [
    ("EUR 1,200¹", "EUR 1,200"),
    ("4 March 2027", "2027-03-04"),
    ("March 4, 2027", "the 4th of March 2027"),
    ("March 2027", "4 March 2027"),
    ("30 June", "June"),
    ("04/03/2027", "3 April 2027"),
    ("04/03/2027", "4 March 2027"),
    ("4.3.27", "4 March 2027"),
    ("no later than 5 May", "5 May"),
    ("14:30", "by 14:30"),
    ("12,100 euros", "€12,100"),
    ("12,100 euros a month", "12.100 EUR"),
    ("100 000 euros", "EUR 100,000"),
    ("1.5 million euros", "EUR 1,500,000"),
    ("$5k", "5,000 dollars"),
    ("1,234.5", "1.234,5"),
    ("12 %", "twelve percent"),
    ("30 days", "thirty days"),
    ("30-day notice", "30 days"),
    ("two weeks", "14 days"),
    ("one year", "12 months"),
    ("twenty-five people", "25"),
    ("12,100", "12,100 euros"),
    ("48 of 52", "48"),
    ("Ms Aldous", "Aldous"),
    ("the tenant", "Tenant"),
    ("2027年3月4日", "2027 年 3 月 4 日"),
    ("每月1200欧元", "1200欧元"),
]
DIFFERENT = [
    ("4 March 2027", "15 June 2027"),
    ("4 March 2027", "4 March 2028"),
    ("04/03/2027", "5 April 2027"),
    ("12,100 euros", "12,400 euros"),
    ("$5", "€5"),
    ("30 days", "forty-five days"),
    ("at least 30 days", "at most 30 days"),
    ("version 2", "version 3"),
    ("-5", "5"),
    ("14:30", "15:30"),
    ("Ms Aldous", "Mr Brandt"),
    ("allowed", "not allowed"),
    ("48 of 52", "50 of 52"),
    ("2027年3月4日", "2027年5月4日"),
    ("每月1200欧元", "每月1400欧元"),
    ("王经理负责", "李主任负责"),
]
INCOMPARABLE = [
    ("2 months", "60 days"),
    ("30 March", "30 days"),
    ("unknown", "12"),
    ("", "12"),
    ("the tenant", "4 March 2027"),
    ("5 %", "5 euros"),
]
CASES = [
    *((one, other, "equal") for one, other in EQUAL),
    *((one, other, "different") for one, other in DIFFERENT),
    *((one, other, "incomparable") for one, other in INCOMPARABLE),
]


@pytest.mark.parametrize(("one", "other", "relation"), CASES)
def test_values_are_compared_as_what_they_are(one: str, other: str, relation: ValueRelation) -> None:
    assert compare_values(one, other) == relation
    assert compare_values(other, one) == relation
    assert compare_values(f"  {one.upper()} ", other) == relation


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_texts_can_be_compared_in_either_order(one: str, other: str) -> None:
    assert compare_values(one, other) == compare_values(other, one)
    assert compare_values(one, one) != "different"


DAYS = st.dates(min_value=date(1000, 1, 1))


@given(DAYS, DAYS)
def test_dates_in_two_forms_are_equal_if_they_are_one_day(one: date, other: date) -> None:
    forms = "{0:%Y-%m-%d}", "{0.day} {0:%B} {0.year}"
    relation = compare_values(forms[0].format(one), forms[1].format(other))
    assert relation == ("equal" if one == other else "different")
