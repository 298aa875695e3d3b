"""What agents are asked to return: lists first, one free text last."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, Field, create_model

from consilience.domain.messages import FreeText
from consilience.domain.replies import Claims

MOST_POINTS = 3
"""Of one reply. A grammar keeps to them; of a model that has none, what goes beyond is left out where it would be used."""


class PartReply(BaseModel):
    """A part of the task, for one child."""

    title: str
    instructions: str = ""

    @property
    def text(self) -> str:
        """As the child is shown it; empty where it says nothing."""
        return ": ".join(filter(None, (self.title.strip(), self.instructions.strip())))


class Split(BaseModel):
    """The parts of a task, in the order of the children who get them."""

    parts: list[PartReply]


@lru_cache(maxsize=64)
def split_for(children: int) -> type[Split]:
    """With no more parts than there are children."""
    parts = Annotated[list[PartReply], Field(json_schema_extra={"minItems": 1, "maxItems": children})]
    return create_model("Split", __base__=Split, parts=(parts, ...))


class LeafReply(BaseModel):
    """`points` are the facts or arguments the text rests on."""

    points: Annotated[list[str], Field(json_schema_extra={"maxItems": MOST_POINTS})] = Field(default_factory=list)
    text: FreeText


class Synthesis(BaseModel):
    text: FreeText


class RootSynthesis(BaseModel):
    """The answer: its main claims name the texts they rest on."""

    claims: Claims = Field(default_factory=list)
    text: FreeText
