"""The rival of a review: one call that reads everything, with the same prompt, the same typed findings and the same vetting.

Its reply may have as many tokens as the review wrote in all, and at least those of one reply of the review.
"""

from __future__ import annotations

from typing import ClassVar

from consilience.domain.outcome import Estimate, StopReason
from consilience.engine.session import Session
from consilience.protocols.review import Review, ReviewReport
from consilience.protocols.review.conclusion import conclude
from consilience.protocols.review.rounds import ReviewRun


class SingleReading(Review):
    """One reviewer, and neither gates nor judges nor a closing call."""

    name: ClassVar[str] = "single-reading"
    closing: ClassVar[bool] = False

    def estimate(self) -> Estimate:
        return Estimate(min=self.readings, max=self.readings)

    async def run(self, session: Session) -> ReviewReport:
        run = ReviewRun(session, self)
        await run.review(1, run.assignments)
        run.vet()
        stop = StopReason.SETTLED if run.replies else session.limit_hit or StopReason.FAILED
        return await conclude(run, stop)


def rival_of(review: Review, report: ReviewReport) -> SingleReading:
    """Return the rival of a review that has run: one reader, everything in one part if the window allows it."""
    least = report.settings["reply_tokens"]
    assert isinstance(least, int)
    return SingleReading(
        review_type=review.review_type,
        strategy="parallel_decomposition",
        reviewers=1,
        max_findings=review.max_findings,
        part_tokens=500_000,
        reply_tokens=min(max(report.ledger.actual.tokens_out, least), 100_000),
    )
