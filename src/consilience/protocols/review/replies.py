"""What agents of a review return: the type of a review, by the room for findings, and the closing call's."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, Field, create_model

from consilience.domain.messages import Claims, FreeText
from consilience.protocols.review.findings import FindingLabel, FindingReply, ReviewReply, WrittenReviewReply


@lru_cache
def review_reply(room: int, *, written: bool) -> type[ReviewReply]:
    """Return the type of a review of at most `room` findings."""
    findings = Annotated[list[FindingReply], Field(json_schema_extra={"maxItems": room})]
    base = WrittenReviewReply if written else ReviewReply
    return create_model(base.__name__, __base__=base, findings=(findings, Field(default_factory=list)))


Duplicates = list[list[FindingLabel]]


class ClosingReply(BaseModel):
    """The review as its reader gets it, above the list of findings."""

    duplicates: Annotated[Duplicates, Field(json_schema_extra={"maxItems": 60})] = Field(default_factory=list)
    """Groups of findings that are one defect, the one to keep first."""
    claims: Claims = Field(default_factory=list)
    text: FreeText


class BriefClosingReply(ClosingReply):
    """That of a small model, which fills every list to its end."""

    duplicates: Annotated[Duplicates, Field(json_schema_extra={"maxItems": 8})] = Field(default_factory=list)
