"""What agents are asked to return: typed decisions and lists first, one free text last, which alone is required."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from consilience.domain.detail import capped
from consilience.domain.messages import ClaimReply, FreeText, Label, LeafReply, ObjectionLabel
from consilience.protocols._common.claims import Conclusion

MAX_ITEMS = 12
"""Entries of a list in a reply's schema, so that a grammar ends. The session's caps, applied by code, are lower."""

MAX_CHANGES = 5

Stance = Literal["kept", "changed"]


class ObjectionReply(BaseModel):
    """What is wrong in the text of `to`."""

    to: Label
    words: str = ""
    """The words it is against, copied from that text."""
    text: str


class AnswerReply(BaseModel):
    """How a reply meets an objection it was shown: its author gave way to it, or refuted it."""

    objection: ObjectionLabel
    fate: Literal["yielded", "refuted"]
    how: str = ""


Objections = Annotated[list[ObjectionReply], Field(json_schema_extra=capped("objections"))]
Answers = Annotated[list[AnswerReply], Field(json_schema_extra={"maxItems": MAX_ITEMS})]


class Answering(BaseModel):
    """A reply that meets objections it was shown."""

    answers: Answers = Field(default_factory=list)


class Declaring(Answering):
    """A reply that replaces an earlier text of its author and declares whether the answer is still the same."""

    stance: Stance = "changed"


class RevisitReply(LeafReply, Declaring):
    """A leaf's text of a later round."""


class ObservationReply(Answering):
    """A coordinator's first observation."""

    objections: Objections = Field(default_factory=list)
    text: FreeText


class PeerReply(ObservationReply, Declaring):
    """A revision after reading peers, or a later observation of children."""


class RootReply(Conclusion, Answering):
    """The root's first observation, which may be the answer."""


class _Changing(Declaring):
    changes: Annotated[list[ClaimReply], Field(json_schema_extra={"maxItems": MAX_CHANGES})] = Field(
        default_factory=list
    )


class RootRevision(Conclusion, _Changing):
    """A later text of the root, which may be the answer. `changes` are what is new in it, with the texts that caused that."""
