"""The report of `review`: its findings as a reader sees them, and its exports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from consilience.domain.outcome import StopReason
from consilience.domain.sections import Presentation
from consilience.protocols._common.presenting import extend_presentation, key_figures
from consilience.protocols.review import formats
from consilience.protocols.review.baseline import baseline_of
from consilience.protocols.review.findings import SEVERITIES
from consilience.protocols.review.presenting import sections, views
from consilience.protocols.review.report_data import ReviewData
from consilience.protocols.review.verdict import above_answer

ENDINGS: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "the reviews met enough gates",
    StopReason.SETTLED: "the reviews are in",
    StopReason.EXHAUSTED_STEPS: "reached the iteration limit before the reviews met enough gates",
    StopReason.INCONCLUSIVE: "the review does not count as converged",
}


class ReviewReport(ReviewData):
    """The report of a review."""

    step: ClassVar[str] = "iteration"
    exports: ClassVar[Mapping[str, str]] = {
        "review.sarif": "sarif",
        "comments.json": "github_comments",
        "baseline.json": "baseline",
    }
    formats: ClassVar[Mapping[str, str]] = {
        "sarif": "review.sarif",
        "github": "comments.json",
        "baseline": "baseline.json",
    }

    def presentation(self) -> Presentation:
        names = {"false_quotations": "False quotations rejected", "quality": "Share of gates met at the end"}
        return extend_presentation(
            self,
            max_steps="max_iterations",
            ending=ENDINGS.get(self.stop_reason, ""),
            above_answer=above_answer(self),
            sections=sections(self),
            figures=tuple(key_figures(self.metrics, step=self.step, names=names)),
            views=views(self),
            stance="vote",
        )

    def sarif(self) -> dict[str, object]:
        """Return the findings as a SARIF 2.1.0 log."""
        return formats.sarif(self)

    def github_comments(self) -> dict[str, object]:
        """Return the findings as the body of a request that creates a review on GitHub."""
        return formats.github_comments(self)

    def baseline(self) -> str:
        """Return a baseline with the findings listed, those over the limit, and those that an earlier baseline knew."""
        known = [finding for finding in self.dropped if finding.reason in ("baseline", "over the limit")]
        return baseline_of([*self.findings, *known])

    def failing(self, severity: str) -> str:
        """Return a sentence about the listed findings of at least `severity` that no agent refuted or, without any, about an
        incomplete review; "" if there is neither."""
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1] if severity in SEVERITIES else SEVERITIES
        ids = [f.id for f in self.findings if f.severity in worst and f.status != "disputed"]
        if ids:
            least = severity if severity == SEVERITIES[0] else f"{severity} or worse"
            return f"{len(ids)} of the findings listed {'is' if len(ids) == 1 else 'are'} {least}: {', '.join(ids)}"
        if self.unread:
            return f"{len(self.unread)} of {len(self.parts)} parts had no review"
        return "" if self.complete else "the review is not complete"
