"""Baselines: what a review wrote is read back, and what is no baseline is refused with what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from consilience.domain.errors import SettingsError
from consilience.domain.findings import Cause, Finding, as_known
from consilience.protocols.review import ReviewReport
from consilience.protocols.review.baseline import Baseline, baseline_of, identity, parse_baseline, with_status
from review.reports import dropped, finding, review

FILE = ["def page(items, n):", "    size = 10", "    last = n * size + 1", "    return items[last - size:last]", ""]


def lines_of(*texts: str) -> dict[int, str]:
    return dict(enumerate(texts, 1))


def known(first: int, last: int, *, category: str = "bounds", texts: Sequence[str] = FILE, **fields: Any) -> Finding:
    """A finding on lines of `src/pager.py`."""
    lines = lines_of(*texts)
    own = identity("src/pager.py", category, "new", first, last, lines, lines)
    assert own is not None
    given = {"first_line": first, "last_line": last, "category": category, "identities": (own,), **fields}
    return finding(**given)


def test_baseline_written_and_parsed_has_its_findings() -> None:
    listed = [known(3, 3)]
    over = dropped(reason="over the limit", identities=known(2, 2).identities)
    text = baseline_of([*listed, over, dropped(reason="false quotation", identities=())])
    baseline = parse_baseline(text)
    assert [entry.identities[0].line for entry in baseline.known] == [2, 3]
    assert baseline_of(baseline.known) == text
    assert parse_baseline(baseline_of([])) == parse_baseline("") == parse_baseline(" \n") == Baseline()


CALLER = {5: "    page(items, 1)"}
CAUSE = Cause(
    file="src/size.py",
    first_line=5,
    last_line=5,
    quotation="page",
    identity=identity("src/size.py", "", "new", 5, 5, CALLER, CALLER),
)
MOVED = ["import os", "", "", "def page(items, n):", "  size = 10", "  LAST = n  * size + 1", "", "return"]
SAME = {"quotation": "n * size", "claim": "Other words."}


@pytest.mark.parametrize(
    ("texts", "place", "fields", "expected"),
    [
        (FILE, (3, 3), {}, True),
        (MOVED, (6, 6), SAME, True),
        (MOVED, (5, 7), SAME, True),
        (MOVED, (5, 5), SAME, False),
        (MOVED, (6, 6), {"category": "logic"}, True),
        (MOVED, (5, 7), {"category": "logic"}, False),
        (MOVED, (6, 6), {"category": "logic", "cause": CAUSE}, False),
        (MOVED, (6, 6), {"file": "src/other.py"}, False),
        (MOVED, (6, 6), {"side": "old"}, False),
        (["    last = n * size + 2"], (1, 1), {}, False),
        (["    last = n * size + 1 + 0"], (1, 1), {}, False),
        (["    if n: last = n * size + 1"], (1, 1), {}, False),
    ],
    ids=[
        *(
            "the same",
            "moved, indented and worded anew",
            "quoted with more lines",
            "the line before",
            "another category",
            "more lines and another category",
            "another category and a cause",
        ),
        *("another file", "removed lines", "changed", "longer", "with a guard"),
    ],
)
def test_known_finding_is_known_by_its_whole_lines(
    texts: list[str], place: tuple[int, int], fields: dict[str, Any], expected: bool
) -> None:
    baseline = parse_baseline(baseline_of([known(3, 3)]))
    given = {"first_line": place[0], "last_line": place[1], "category": "bounds", **fields}
    assert (baseline.match(finding(**given), lines_of(*texts)) is not None) is expected


def test_finding_of_several_lines_is_unknown_once_one_of_them_has_changed() -> None:
    baseline = parse_baseline(baseline_of([known(2, 3)]))
    texts = [*FILE[:2], "    last = n * size", *FILE[3:]]
    assert baseline.match(known(2, 2, texts=texts), lines_of(*texts)) is None
    assert baseline.match(known(2, 2), lines_of(*FILE)) is not None


def test_of_equal_lines_the_one_with_the_same_lines_around_it_is_known() -> None:
    """A second line of the same words, put above the first one, is another finding, although it is where the first one was."""
    before = ["a", "b", "    pass", "c"]
    now = ["x", "y", "    pass", "z", "a", "b", "    pass", "c"]
    baseline = parse_baseline(baseline_of([known(3, 3, texts=before)]))
    assert baseline.match(known(7, 7, texts=now), lines_of(*now)) is not None
    assert baseline.match(known(3, 3, texts=now), lines_of(*now)) is None


@pytest.mark.parametrize(
    ("texts", "status"),
    [(FILE, "stands"), (["", *FILE], "stands"), ([*FILE[:2], "    last = n * size"], "gone"), (None, "gone")],
)
def test_known_finding_is_gone_with_its_lines(texts: list[str] | None, status: str) -> None:
    entry = as_known(known(3, 3))
    read = with_status(entry, lambda file: None if texts is None else "\n".join(texts))
    assert read.status == status


def test_known_finding_is_gone_with_the_line_that_causes_it() -> None:
    caller = known(1, 1)
    cause = identity("src/size.py", "", "new", 1, 1, {1: "SIZE = 11"}, {1: "SIZE = 11"})
    entry = as_known(caller).model_copy(update={"cause": cause})
    texts = {"src/pager.py": "\n".join(FILE), "src/size.py": "SIZE = 11\n"}
    assert with_status(entry, texts.get).status == "stands"
    assert with_status(entry, {**texts, "src/size.py": "SIZE = 10\n"}.get).status == "gone"


def test_dismissed_finding_is_gone_with_its_cause_so_that_another_cause_of_the_same_lines_is_news() -> None:
    cause = identity("src/size.py", "", "new", 1, 1, {1: "SIZE = 11"}, {1: "SIZE = 11"})
    entry = as_known(known(1, 1)).model_copy(update={"cause": cause, "status": "dismissed", "by": "alice"})
    texts = {"src/pager.py": "\n".join(FILE), "src/size.py": "SIZE = 11\n"}
    assert Baseline((with_status(entry, texts.get),)).match(known(1, 1), lines_of(*FILE)) is not None
    changed = with_status(entry, {**texts, "src/size.py": "SIZE = 12\n"}.get)
    assert Baseline((changed,)).match(known(1, 1), lines_of(*FILE)) is None


def test_finding_is_known_in_a_renamed_file_by_either_name() -> None:
    """A finding of an earlier push by what Git says since then; one of the baseline by the old path in the diff."""
    entry = as_known(known(3, 3))
    there = finding(file="src/pages.py", first_line=6, last_line=6)
    read = with_status(entry, {"src/pages.py": "\n".join(MOVED)}.get, {"src/pager.py": "src/pages.py"})
    assert (read.status, read.file, read.first_line) == ("stands", "src/pages.py", 6)
    assert Baseline((read,)).match(there, lines_of(*MOVED)) is not None
    assert Baseline((entry,)).match(there, lines_of(*MOVED), "src/pager.py") is not None
    assert Baseline((entry,)).match(there, lines_of(*MOVED), "src/other.py") is None


def test_finding_on_removed_lines_is_gone_when_they_are_back() -> None:
    """Not if the file has the same line elsewhere, as it had when it was found."""
    new = lines_of("    check(x)", "def f(x):")
    removed = identity("src/pager.py", "logic", "old", 3, 3, {3: "    check(x)"}, new)
    assert removed is not None
    entry = as_known(finding(side="old", identities=(removed,)))
    assert with_status(entry, lambda file: "\n".join(new.values())).status == "stands"
    assert with_status(entry, lambda file: "    check(x)\ndef f(x):\n    check(x)\n").status == "gone"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        "{}",
        '{"version": 1, "findings": []}',
        '{"version": 2}',
        '{"version": 2, "findings": 3}',
        '{"version": 2, "findings": [3]}',
        '{"version": 2, "findings": [{"quotation": "x"}]}',
        '{"version": 2, "findings": [{"identities": []}]}',
        "[" * 100_000,
    ],
)
def test_invalid_baseline_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="baseline") as caught:
        parse_baseline(text)
    assert caught.value.do


def test_baseline_text_is_sorted_and_without_duplicates() -> None:
    first, two = known(2, 2, quotation="b b b"), known(3, 3, quotation="a a a")
    assert baseline_of([first, two]) == baseline_of([two, first, first])
    assert [entry["quotation"] for entry in json.loads(baseline_of([first, two]))["findings"]] == ["a a a", "b b b"]


def test_what_people_dismissed_is_written_with_the_baseline_and_without_what_nobody_spoke_of() -> None:
    before = baseline_of([known(1, 1, claim="old")])
    dismissed = as_known(known(2, 2)).model_copy(
        update={"status": "dismissed", "by": "alice", "reason": "It is checked.", "thread": "T1"}
    )
    stands = as_known(known(4, 4))
    given = review(known(3, 3), settings={"baseline": before}, known_findings=(dismissed, stands))
    report = ReviewReport.model_validate(given.model_dump())
    learnt = parse_baseline(report.dismissed()).known
    assert [(entry.first_line, entry.status, entry.by, entry.reason) for entry in learnt] == [
        (2, "accepted", "alice", "It is checked."),
        (1, "accepted", "", ""),
    ]
    everything = parse_baseline(report.baseline()).known
    assert sorted(entry.first_line for entry in everything) == [2, 3, 4]
