"""The data of a report of `review`, as its sections and exports read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from consilience.coordination.convergence import Evaluation
from consilience.domain.outcome import StopReason
from consilience.domain.report import Report
from consilience.protocols.review.findings import (
    SEVERITIES,
    BallotCast,
    DiffHunk,
    DroppedFinding,
    FileRead,
    Finding,
    PartRead,
)


class ReviewData(Report):
    """The header, and what a review adds to it."""

    formats: ClassVar[Mapping[str, str]] = {
        "sarif": "review.sarif",
        "github": "comments.json",
        "baseline": "baseline.json",
    }

    undigested: ClassVar[Mapping[str, Any]] = {"dropped": {"__all__": {"disputed"}}}

    protocol: str = "review"
    findings: tuple[Finding, ...] = ()
    """The listed findings, ranked."""
    dropped: tuple[DroppedFinding, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    """Of each iteration of red and blue: which gates were met, by whom, and what followed."""
    ballots: tuple[BallotCast, ...] = ()
    """The last ballot of each agent on each part."""
    parts: tuple[PartRead, ...] = ()
    files: tuple[FileRead, ...] = ()
    left_out: tuple[str, ...] = ()
    """What the target holds and no agent was shown, each with the reason."""
    hunks: tuple[DiffHunk, ...] = ()
    """Of the diff under review; empty where the target is no diff."""

    @property
    def is_without_target(self) -> bool:
        """Whether there was nothing to review, so that no session was begun."""
        return not (self.session or self.parts or self.agents)

    @property
    def unread(self) -> tuple[PartRead, ...]:
        """The parts that no agent reviewed."""
        return tuple(part for part in self.parts if not part.readers)

    @property
    def complete(self) -> bool:
        """Whether each agent reviewed the parts assigned to it, and the run neither failed nor was cancelled. Otherwise no findings
        mean nothing."""
        is_read = all(part.readers and not part.unread_by for part in self.parts)
        return is_read and self.stop_reason not in (StopReason.FAILED, StopReason.CANCELLED)

    def failing(self, severity: str) -> str:
        """Name the findings of at least this severity that no agent refuted, listed or over the limit, or the parts that no agent
        reviewed."""
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1] if severity in SEVERITIES else SEVERITIES
        found = [finding.id for finding in self.findings if finding.severity in worst and finding.status != "disputed"]
        over = [one for one in self.dropped if one.reason == "over the limit" and not one.disputed]
        if unlisted := sum(one.severity in worst for one in over):
            found.append(f"{unlisted} over the limit of findings")
        if found:
            return f"at least {severity}: {', '.join(found)}."
        if self.unread:
            return f"{len(self.unread)} of {len(self.parts)} parts had no review."
        return "" if self.complete else "The review is not complete."
