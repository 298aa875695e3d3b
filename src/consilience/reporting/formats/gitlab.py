"""The findings of a review as GitLab takes them: its Code Quality report, and a note of a merge request.

The note is written as for GitHub: text of models can neither mention anybody nor run a quick action, since it never begins a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consilience.domain.events import text_id
from consilience.domain.findings import Cause, Finding, FindingsReport, KnownFinding, topic_of
from consilience.domain.messages import JsonObject
from consilience.domain.outcome import Severity
from consilience.domain.sections import Block
from consilience.reporting.formats.github import github_comments, visible

SEVERITIES_OF_GITLAB: Mapping[Severity, str] = {"critical": "critical", "major": "major", "minor": "minor"}
DISPUTED = "info"


def code_quality(report: FindingsReport) -> list[JsonObject]:
    """Return the findings, and those of earlier reviews that still stand, as a Code Quality report of a job

    A disputed one is `info`. GitLab takes an entry that is no longer there for a defect that was fixed, and shows one of several
    with the same fingerprint. It is of file, category and lines, so it stays when they move.
    """
    entries: list[JsonObject] = []
    taken: dict[str, int] = {}
    findings: list[Finding | KnownFinding] = [*report.findings, *report.standing]
    for finding in findings:
        base = f"{finding.file}\n{finding.category}\n{_words(finding)}"
        taken[base] = taken.get(base, 0) + 1
        claim, severity = finding.claim, SEVERITIES_OF_GITLAB[finding.severity]
        entries.append(
            {
                "description": visible(f"{topic_of(finding)}: {claim}" if claim else topic_of(finding)),
                "check_name": f"consilience/{finding.category}",
                "fingerprint": text_id(f"{base}\n{taken[base]}"),
                "severity": DISPUTED if _is_disputed(finding) else severity,
                "location": {
                    "path": finding.file,
                    "lines": {"begin": _line(finding), "end": _line(finding, last=True)},
                },
            }
        )
    return entries


def _words(finding: Finding | KnownFinding) -> str:
    return finding.identities[0].digest if finding.identities else finding.quotation


def _is_disputed(finding: Finding | KnownFinding) -> bool:
    return finding.disputed if isinstance(finding, KnownFinding) else finding.status == "disputed"


def _line(finding: Finding | KnownFinding, *, last: bool = False) -> int:
    """Return a line of the new file: for removed lines that of their cause, else the first."""
    cause = finding.cause if isinstance(finding, Finding) and finding.side == "old" else None
    place: Finding | KnownFinding | Cause = cause or finding
    if place.side == "old":
        return 1
    return max(place.last_line if last else place.first_line, 1)


def gitlab_note(report: FindingsReport, summary: Sequence[Block]) -> JsonObject:
    """Return the body of a request that writes the whole review as one note of a merge request. The mark on its last line tells it
    again, so that the next run writes it anew."""
    request = github_comments(report.model_copy(update={"hunks": ()}), summary)
    return {"body": request["body"]}
