"""The rival of a review: one call that reads everything, with the same prompt, the same typed findings and the same vetting.

Its reply may have as many tokens as the review wrote in all, and as many findings as all calls of the review could report
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, create_model

from consilience.domain.detail import Detail
from consilience.domain.outcome import Estimate, StopReason
from consilience.engine.session import Session
from consilience.engine.templates import Templates
from consilience.protocols.review import Review, ReviewReport
from consilience.protocols.review.conclusion import conclude, stop_reason
from consilience.protocols.review.findings import FindingReply, ReviewReply
from consilience.protocols.review.requests import Requests
from consilience.protocols.review.rounds import ReviewRun

BOUNDS: Mapping[Detail, tuple[str, int]] = {"full": ("at most 12,", 12), "brief": ("At most 3,", 3)}
"""How the prompt of a review bounds the findings of a call."""


@lru_cache
def reply_of(max_items: int) -> type[ReviewReply]:
    """Return the type of a review with at most that many findings."""
    findings = Annotated[list[FindingReply], Field(json_schema_extra={"maxItems": max_items})]
    return create_model("WholeReviewReply", __base__=ReviewReply, findings=(findings, Field(default_factory=list)))


class WholeRequests(Requests):
    """Asks for a review with the bound of the rival."""

    @property
    def _review_type(self) -> type[ReviewReply]:
        assert isinstance(self.settings, SingleReading)
        return reply_of(self.settings.max_reported)


class SingleReading(Review):
    """One reviewer, and neither gates nor judges nor a closing call."""

    name: ClassVar[str] = "single-reading"
    closing: ClassVar[bool] = False

    max_reported: Annotated[int, Field(ge=1, description="max findings in a reply")] = 12

    @classmethod
    def load_templates(cls, override: Path | None = None, detail: Detail = "full") -> Templates:
        """The prompts of a review without its bound on the findings of a call."""
        sources = super().load_templates(override, detail).sources
        bound, _ = BOUNDS[detail]
        assert bound in sources["review"], "the prompt of a review states another bound"
        return Templates({**sources, "review": sources["review"].replace(bound, "all that there are,")})

    def estimate(self) -> Estimate:
        return Estimate(min=self.readings, max=self.readings)

    async def run(self, session: Session) -> ReviewReport:
        run = ReviewRun(session, self)
        run.requests = WholeRequests(session, self, run.changes)
        await run.review(1, run.places)
        await run.judge()
        return await conclude(run, stop_reason(run, StopReason.SETTLED if run.replies else StopReason.FAILED))


def rival_of(review: Review, report: ReviewReport, detail: Detail) -> SingleReading:
    """Return the rival of a review that has run: one reader, everything in one part if the window allows it."""
    return SingleReading(
        review_type=review.review_type,
        strategy="parallel_decomposition",
        reviewers=1,
        max_findings=review.max_findings,
        part_tokens=500_000,
        reply_tokens=min(max(report.ledger.actual.tokens_out, 1_024), 100_000),
        max_reported=BOUNDS[detail][1] * max(report.ledger.actual.calls, 1),
    )
