"""A review for GitLab: the Code Quality report, and notes of a merge request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from consilience.domain.findings import FindingsReport, as_known
from consilience.protocols.review.presenting import above_answer
from consilience.reporting.formats.gitlab import code_quality, gitlab_notes
from review.reports import finding, review, rich_review
from review.test_baseline import known

Line = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Lines(Strict):
    begin: Line
    end: Line


class Place(Strict):
    path: Annotated[str, Field(pattern=r"^[^/.]")]
    lines: Lines


class Entry(Strict):
    """As GitLab documents it (https://docs.gitlab.com/ci/testing/code_quality/)."""

    description: Annotated[str, Field(min_length=1)]
    check_name: str
    fingerprint: Annotated[str, Field(min_length=1)]
    severity: Literal["info", "minor", "major", "critical", "blocker"]
    location: Place


class Position(Strict):
    """As of https://docs.gitlab.com/api/discussions/, without the commits, which the job knows."""

    position_type: Literal["text"]
    new_path: str
    old_path: str
    new_line: Line | None = None
    old_line: Line | None = None


class Note(Strict):
    body: Annotated[str, Field(min_length=1, max_length=1_000_000)]
    position: Position | None = None


@pytest.mark.parametrize("report", [review(), review(finding()), rich_review()])
def test_code_quality_report_and_notes_have_the_form_of_gitlab(report: FindingsReport) -> None:
    entries = TypeAdapter(list[Entry]).validate_python(code_quality(report))
    assert len(entries) == len(report.findings)
    assert len({entry.fingerprint for entry in entries}) == len(entries)
    first, *others = TypeAdapter(list[Note]).validate_python(gitlab_notes(report, above_answer(report)))
    assert first.position is None
    assert all(
        note.position and (note.position.new_line is None) != (note.position.old_line is None) for note in others
    )


def test_fingerprint_stays_when_lines_move() -> None:
    def prints(**fields: Any) -> list[object]:
        return [entry["fingerprint"] for entry in code_quality(review(finding(**fields)))]

    assert prints(first_line=11, last_line=11) == prints(first_line=40, last_line=40, claim="Other words.")
    assert prints() != prints(category="logic")


def test_finding_of_an_earlier_review_that_stands_keeps_its_entry() -> None:
    """Else GitLab says that it was fixed."""
    first = known(3, 3)
    entry = as_known(first)
    gone = entry.model_copy(update={"status": "gone"})
    (before,) = code_quality(review(first))
    (after,) = code_quality(review(known_findings=(entry, gone)))
    assert after == before
    (disputed,) = code_quality(review(known_findings=(as_known(known(3, 3, status="disputed")),)))
    assert disputed["severity"] == "info"


def test_suggestion_is_one_of_gitlab_and_no_mark_is_left() -> None:
    _, note = gitlab_notes(review(finding()), above_answer(review(finding())))
    assert "```suggestion:-0+0\n    last = n * size\n```" in str(note["body"])
    assert "<!--" not in str(note["body"])


def test_text_of_a_model_runs_no_quick_action() -> None:
    report = review(finding(claim="x\n/approve\n/merge", recommendation="/close"), answer="/merge\n\n/approve")
    for note in gitlab_notes(report, above_answer(report)):
        assert not [line for line in str(note["body"]).splitlines() if line.startswith("/")]
