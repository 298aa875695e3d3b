"""A review for GitLab: the Code Quality report, and the note of a merge request, posted by the documented job."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from consilience.domain.findings import FindingsReport, as_known
from consilience.protocols.review.presenting import above_answer
from consilience.reporting.formats.gitlab import code_quality, gitlab_note
from kit.fake_gitlab import NOTES, GitLab, NoteBody, serve
from review.reports import finding, review, rich_review
from review.test_baseline import known

PAGE_OF_CI = (Path(__file__).parents[2] / "docs/protocols/review-ci.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("report", [review(), review(finding()), rich_review()])
def test_code_quality_report_and_note_have_the_form_of_gitlab(report: FindingsReport) -> None:
    entries = TypeAdapter(list[Entry]).validate_python(code_quality(report))
    assert len(entries) == len(report.findings)
    assert len({entry.fingerprint for entry in entries}) == len(entries)
    note = NoteBody.model_validate(gitlab_note(report, above_answer(report)))
    assert all(f"{finding.severity} · " in note.body for finding in report.findings)


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


def test_text_of_a_model_runs_no_quick_action() -> None:
    report = review(finding(claim="x\n/approve\n/merge", recommendation="/close"), answer="/merge\n\n/approve")
    body = str(gitlab_note(report, above_answer(report))["body"])
    assert "/approve" in body
    assert not [line for line in body.splitlines() if line.startswith("/")]


# --- the job of the documentation


@pytest.fixture
def gitlab() -> Iterator[GitLab]:
    with serve() as served:
        yield served


def run_note_job(gitlab: GitLab, directory: Path, report: FindingsReport) -> subprocess.CompletedProcess[str]:
    """Run the job `note` of the page as a runner does, with the file that the job `review` hands it."""
    jobs = yaml.safe_load(re.split(r"```(?:yaml)?\n", PAGE_OF_CI.partition("## GitLab")[2])[1])
    (file,) = (path for path in jobs["review"]["artifacts"]["paths"])
    (directory / file).parent.mkdir(exist_ok=True)
    (directory / file).write_text(json.dumps(gitlab_note(report, above_answer(report))))
    env = {
        "PATH": os.environ["PATH"],
        "CI_API_V4_URL": gitlab.url,
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "7",
        "REVIEW_TOKEN": gitlab.token,
    }
    script = "\n".join(jobs["note"]["script"])
    return subprocess.run(
        ("sh", "-e", "-c", script), cwd=directory, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_documented_job_writes_one_note_and_writes_it_anew_with_every_push(gitlab: GitLab, tmp_path: Path) -> None:
    forged = str(gitlab_note(review(), above_answer(review()))["body"])
    for n in range(5):  # more than a page
        gitlab.add(forged if n == 1 else f"Remark {n}", author=5)
    for claim in ("An item is repeated.", "An item is still repeated."):
        done = run_note_job(gitlab, tmp_path, review(finding(claim=claim)))
        assert (done.returncode, gitlab.token in done.stdout + done.stderr) == (0, False), done.stderr
        gitlab.add("A remark between the pushes", author=5)
    own = [note["body"] for note in gitlab.notes if note["author"]["id"] == 900]
    assert len(own) == 1
    assert "An item is still repeated." in own[0]
    assert gitlab.writes == [f"POST {NOTES}", f"PUT {NOTES}/1005"]
    assert gitlab.notes[1]["body"] == forged


@pytest.mark.parametrize("cause", ["token", "role"])
def test_documented_job_fails_if_gitlab_refuses(gitlab: GitLab, tmp_path: Path, cause: str) -> None:
    gitlab.is_read_only = cause == "role"
    job_token = gitlab.token
    if cause == "token":
        gitlab.token = "another"
    done = run_note_job(replace(gitlab, token=job_token), tmp_path, review())
    assert done.returncode != 0
    assert gitlab.notes == []
