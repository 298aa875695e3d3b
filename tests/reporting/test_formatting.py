"""Figures in words."""

from __future__ import annotations

import pytest

from consilience.domain.agents import Agent
from consilience.domain.outcome import Limits
from consilience.reporting.formatting import (
    count,
    describe_agent,
    describe_place,
    duration,
    format_range,
    money,
    one_line,
    percent,
    size,
)
from consilience.reporting.limits import describe_limits


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0 s"),
        (6.24, "6.2 s"),
        (6, "6 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (123, "2 min 3 s"),
        (3840, "1 h 4 min"),
    ],
)
def test_duration_is_formatted(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("dollars", "expected"),
    [
        (None, "not known"),
        (0, "$0"),
        (0.00001, "$0.00001"),
        (0.0004, "$0.0004"),
        (0.05, "$0.05"),
        (0.1, "$0.10"),
        (12, "$12.00"),
    ],
)
def test_money_is_formatted(dollars: float | None, expected: str) -> None:
    assert money(dollars) == expected


@pytest.mark.parametrize(("dollars", "expected"), [(5, "$5.00"), (0.125, "$0.125"), (1e-5, "$0.00001")])
def test_a_limit_on_money_is_formatted_exactly(dollars: float, expected: str) -> None:
    assert describe_limits(Limits(cost=dollars)) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("round-1/leaf_respond/L2N1", "round 1 · leaf respond"),
        ("finalize/2", "finalize 2"),
        ("closing", "closing"),
        ("round-2/lateral/L2N1/step-3", "round 2 · lateral · L2N1"),
        ("crystallize/thread-1/1", "crystallize · thread 1"),
    ],
)
def test_place_is_formatted(key: str, expected: str) -> None:
    assert describe_place(key) == expected


def test_places_of_one_agent_have_names_of_their_own() -> None:
    keys = ("turn/D1/1", "turn/D1/2", "turn/D1/3/said")
    assert [describe_place(key, "D1", {"turn": "message"}) for key in keys] == ["message 1", "message 2", "message 3"]


def test_counts_ranges_sizes_and_percents_are_formatted() -> None:
    assert (count(1, "call"), count(1200, "call"), count(2, "retry")) == (
        "1 call",
        "1,200 calls",
        "2 retries",
    )
    assert (format_range(3, 3), format_range(15, 1039)) == ("3", "15–1,039")
    assert (size(98_362_432), size(1_117_320_768)) == ("98 MB", "1.1 GB")
    assert percent(0.333) == "33 %"
    assert one_line("a  b\nc", 4) == "a b…"


def test_agent_description_names_persona_or_role() -> None:
    assert describe_agent(Agent(id="a", role="integrator")) == "integrator"
    assert describe_agent(Agent(id="a", role="r", perspective="critical")) == "critical"
    assert describe_agent(Agent(id="a", role="r", perspective="x " * 50)).endswith("…")
    assert describe_agent(Agent(id="a", role="r", perspective="x", persona="CFO")) == "CFO"
