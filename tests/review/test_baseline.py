"""Baselines: what a review wrote is read back, and what is no baseline is refused with what to do."""

from __future__ import annotations

import json

import pytest

from consilience.domain.errors import SettingsError
from consilience.protocols.review.baseline import Baseline, baseline_of, fingerprint, overlap, parse_baseline
from review.reports import dropped, finding


def test_baseline_written_and_parsed_matches_its_findings() -> None:
    listed = [finding(quotation="last = n * size + 1", fingerprint=fingerprint("src/pager.py", "last = n * size + 1"))]
    text = baseline_of([*listed, dropped(reason="over the limit"), dropped(reason="false quotation", fingerprint="")])
    baseline = parse_baseline(text)
    assert len(baseline.known) == 2
    assert baseline_of([*listed, dropped(reason="over the limit")]) == text
    assert baseline.match("src/pager.py", "LAST  = n * size + 1", "other") is not None
    assert baseline.match("src/other.py", "last = n * size + 1", "other") is None
    assert baseline.match("src/pager.py", "size", "other") is None
    assert parse_baseline(baseline_of([])) == parse_baseline("") == parse_baseline(" \n") == Baseline()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        "{}",
        '{"version": 2, "findings": []}',
        '{"version": 1}',
        '{"version": 1, "findings": 3}',
        '{"version": 1, "findings": [3]}',
        '{"version": 1, "findings": [{"quotation": "x"}]}',
        "[" * 100_000,
    ],
)
def test_invalid_baseline_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="baseline") as caught:
        parse_baseline(text)
    assert caught.value.do


def test_baseline_text_is_sorted_and_without_duplicates() -> None:
    first, two = finding(quotation="b b b", fingerprint="1"), finding(quotation="a a a", fingerprint="2")
    assert baseline_of([first, two]) == baseline_of([two, first, first])
    assert [entry["quotation"] for entry in json.loads(baseline_of([first, two]))["findings"]] == ["a a a", "b b b"]


@pytest.mark.parametrize(
    ("message", "other", "expected"),
    [
        ("return x", "RETURN  x", True),
        ("x", "return x", False),
        ("last = n * size + 1", "n * size + 1\nreturn", True),
        ("n * size + 1 return", "last = n * size + 1", True),
        ("for i in range(n):", "items for i in range(n): yield", True),
        ("for i in range(n):", "for j in range(n):", False),
        ("", "return x", False),
        ("abcabcabcabcabcabcab", "abcabcabcabcX", False),
    ],
)
def test_overlap_of_two_quotations_is_symmetric(message: str, other: str, expected: bool) -> None:
    assert overlap(message, other) is expected
    assert overlap(other, message) is expected
