"""The report of `review`: its findings as a reader sees them, and its exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

from consilience.domain.delivery import Delivery
from consilience.domain.findings import SEVERITIES, EarlierReviews
from consilience.domain.outcome import Severity, StopReason
from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import Presentation, extend_presentation
from consilience.protocols._common.presenting import key_figures
from consilience.protocols.review.baseline import baseline_of, parse_baseline
from consilience.protocols.review.findings import ReviewData
from consilience.protocols.review.presenting import above_answer, sections, views
from consilience.protocols.review.progress import extend_progress
from consilience.reporting.formats.github import MAX_COMMENTS, github_comments
from consilience.reporting.formats.gitlab import code_quality, gitlab_note
from consilience.reporting.formats.sarif import sarif

ENDINGS: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "the reviews are complete",
    StopReason.SETTLED: "the reviews are in",
    StopReason.EXHAUSTED_STEPS: "reached the iteration limit before the reviews met enough gates",
    StopReason.INCONCLUSIVE: "the review does not count as converged",
}


class ReviewReport(ReviewData):
    """The report of a review."""

    step: ClassVar[str] = "iteration"
    step_setting: ClassVar[str] = "max_iterations"
    labels: ClassVar[Mapping[str, str]] = {
        "review": "review",
        "part": "part",
        "judge": "verdict",
        "closing": "summary",
    }
    glossary: ClassVar[Mapping[str, str]] = {
        "gate": "a fixed check of what a review must contain, such as findings with a proof",
        "finding": "a defect with the words of the text that prove it",
    }
    exports: ClassVar[Mapping[str, str]] = {
        "review.sarif": "sarif",
        "comments.json": "github_comments",
        "gl-code-quality-report.json": "code_quality",
        "gitlab-note.json": "gitlab_note",
        "baseline.json": "baseline",
        "dismissed.json": "dismissed",
    }
    deliveries: ClassVar[tuple[Delivery, ...]] = (
        Delivery(
            option="--fail-on",
            help="Exit with 6 if a review has a finding this severe or worse, if its verdict is reject (with reject, only for "
            "that), or if a part was not read.",
            values=(*SEVERITIES, "reject"),
            method="failing",
            exit_code=6,
        ),
        Delivery(
            option="--write-baseline",
            help="Of a review: write the findings into this file, for --baseline in later runs.",
            method="baseline",
        ),
        Delivery(
            option="--write-dismissed",
            help="Of a review: write what --baseline had, and the findings that people dismissed, into this file.",
            method="dismissed",
        ),
    )
    for_people: ClassVar[Mapping[str, str]] = {
        "": "You review work that others will rely on. A finding is a defect that whoever maintains the work would fix, with "
        "the words that prove it. Taste, style and praise are no findings.",
    }

    def presentation(self) -> Presentation:
        names = {"false_quotations": "False quotations rejected", "quality": "Share of gates met at the end"}
        return extend_presentation(
            super().presentation(),
            ending=self._ending,
            above_answer=above_answer(self),
            sections=sections(self),
            figures=tuple(key_figures(self.metrics, step=self.step, names=names)),
            views=views(self),
            stance="vote",
        )

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        return extend_progress(super().progress(progress), progress)

    @property
    def _ending(self) -> str:
        if self.stop_reason is StopReason.EXHAUSTED_STEPS and not self.evaluations:
            return "not every review is there"
        return ENDINGS.get(self.stop_reason, "")

    def sarif(self) -> dict[str, object]:
        """Return the findings as a SARIF 2.1.0 log."""
        return sarif(self)

    def github_comments(self, name: str = "", read_before: EarlierReviews | None = None) -> dict[str, object]:
        """Return the findings as the body of a request that creates a review on GitHub; the arguments are those of the function."""
        inline = cast(Severity, self.settings.get("inline", "minor"))
        most = cast(int, self.settings.get("max_inline", MAX_COMMENTS))
        return github_comments(
            self,
            above_answer(self),
            inline=inline,
            max_inline=most,
            name=name,
            read_before=read_before,
        )

    def code_quality(self) -> list[dict[str, object]]:
        """Return the findings as a Code Quality report of GitLab."""
        return code_quality(self)

    def gitlab_note(self) -> dict[str, object]:
        """Return the review as the body of a request that writes a note of a merge request on GitLab."""
        return gitlab_note(self, above_answer(self))

    def baseline(self) -> str:
        """Return a baseline with the findings listed, those over the limit, those that an earlier baseline knew, and those of
        earlier reviews that are not gone."""
        dropped = [finding for finding in self.dropped if finding.reason in ("baseline", "over the limit")]
        known = [finding for finding in self.known_findings if finding.status != "gone"]
        return baseline_of([*self.findings, *dropped, *known])

    def dismissed(self) -> str:
        """Return the baseline of the review with the findings in addition that people dismissed with a reason, and no others."""
        before = parse_baseline(str(self.settings.get("baseline") or "")).known
        return baseline_of([*before, *(known for known in self.known_findings if known.status == "dismissed")])
