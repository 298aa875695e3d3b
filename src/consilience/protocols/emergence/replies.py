"""What agents are asked to return: enums and lists first, one free text last, which alone is required."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from consilience.domain.messages import FreeText, Label, ObjectionLabel
from consilience.domain.replies import Claims

MOST_OBJECTIONS = 1
"""Of one reply. A grammar keeps to it; of a model that has none, what goes beyond is left out where it would be used, so
that nobody floods the prompts of others, or the dissent."""


class ObjectionReply(BaseModel):
    """What is wrong in the text of `to`."""

    to: Label
    text: str


Objections = Annotated[list[ObjectionReply], Field(json_schema_extra={"maxItems": MOST_OBJECTIONS})]
Answers = Annotated[list[ObjectionLabel], Field(json_schema_extra={"maxItems": 8})]


class Answering(BaseModel):
    """What a reply says of objections it was shown: `answers` names those its text answers."""

    answers: Answers = Field(default_factory=list)


class Exchange(Answering):
    """A reply to other texts, which may object to one of them."""

    objections: Objections = Field(default_factory=list)


class PeerReply(Exchange):
    """A revision after reading peers, or an observation of children."""

    text: FreeText


class RootReply(Exchange):
    """An observation that may be the answer: its main claims name the texts they rest on."""

    claims: Claims = Field(default_factory=list)
    text: FreeText


class ReviewReply(Answering):
    """The answer, reviewed by its author."""

    claims: Claims = Field(default_factory=list)
    text: FreeText
