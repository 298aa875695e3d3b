"""What agents are asked to return: lists first, one free text last."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, Field, create_model


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
