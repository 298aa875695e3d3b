"""The data of a report of `review`, as its sections and exports read it."""

from __future__ import annotations

from consilience.domain.report import Report
from consilience.protocols.review.findings import BallotCast, DiffHunk, DroppedFinding, FileRead, Finding, PartRead


class ReviewData(Report):
    """The header, and what a review adds to it."""

    protocol: str = "review"
    findings: tuple[Finding, ...] = ()
    """The listed findings, ranked."""
    dropped: tuple[DroppedFinding, ...] = ()
    ballots: tuple[BallotCast, ...] = ()
    """The last ballot of each agent on each part."""
    parts: tuple[PartRead, ...] = ()
    files: tuple[FileRead, ...] = ()
    left_out: tuple[str, ...] = ()
    """What the target holds and no agent was shown, each with the reason."""
    hunks: tuple[DiffHunk, ...] = ()
    """Of the diff under review; empty where the target is no diff."""
