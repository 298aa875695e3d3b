"""What replies of several protocols have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from consilience.domain.messages import FreeText, Label

MOST_CLAIMS, MOST_POINTS = 2, 3
"""Of one reply. A grammar keeps to them; of a model that has none, what goes beyond is left out where it would be used."""


class ClaimReply(BaseModel):
    """A claim of an answer, and the labels of the texts it rests on."""

    text: str
    ids: Annotated[list[Label], Field(json_schema_extra={"maxItems": 3})] = Field(default_factory=list)


Claims = Annotated[list[ClaimReply], Field(json_schema_extra={"maxItems": MOST_CLAIMS})]


class LeafReply(BaseModel):
    """`points` are the facts or arguments the text rests on."""

    points: Annotated[list[str], Field(json_schema_extra={"maxItems": MOST_POINTS})] = Field(default_factory=list)
    text: FreeText


class Synthesis(BaseModel):
    text: FreeText


class RootSynthesis(BaseModel):
    """A synthesis that may be the answer: its main claims name the texts they rest on."""

    claims: Claims = Field(default_factory=list)
    text: FreeText


_NOTHING = frozenset(
    {"", "none", "no", "no issues", "no issue", "nothing", "nothing is missing", "n/a", "na", "null", "empty"}
)


def says_nothing(text: str) -> bool:
    """Whether this is what small models write where there is nothing to say, in whatever case and with whatever around it."""
    return " ".join(text.split()).strip(" .!-").casefold() in _NOTHING
