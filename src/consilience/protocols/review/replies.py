"""What agents of a review return, in addition to `findings`: shorter replies of small models, and the closing call's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from consilience.domain.messages import Claims, FreeText
from consilience.protocols.review.findings import FindingLabel, FindingReply, ReviewReply, WrittenReviewReply

BriefFindings = Annotated[list[FindingReply], Field(json_schema_extra={"maxItems": 3})]


class BriefReviewReply(ReviewReply):
    """A reply of a small model, which fills every list to its end."""

    findings: BriefFindings = Field(default_factory=list)


class BriefWrittenReviewReply(WrittenReviewReply):
    """The same, with a written review."""

    findings: BriefFindings = Field(default_factory=list)


class ClosingReply(BaseModel):
    """The review as its reader gets it, above the list of findings."""

    duplicates: Annotated[list[list[FindingLabel]], Field(json_schema_extra={"maxItems": 8})] = Field(
        default_factory=list
    )
    """Groups of findings that are one defect, the one to keep first."""
    claims: Claims = Field(default_factory=list)
    text: FreeText
