"""What agents return, and what each of them did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, Field, create_model

from consilience.domain.messages import Message
from consilience.engine.work import Failure
from consilience.protocols._common.conclusion import TextReply


class PartReply(BaseModel):
    """A part of the task, for one child."""

    title: str
    instructions: str = ""

    @property
    def text(self) -> str:
        """The part as the child is shown it; empty without content."""
        return ": ".join(filter(None, (self.title.strip(), self.instructions.strip())))


class Split(BaseModel):
    """The parts of a task, in the order of the children who get them."""

    parts: list[PartReply]

    @property
    def with_content(self) -> list[PartReply]:
        return [part for part in self.parts if part.text]


@lru_cache(maxsize=64)
def split_for(children: int) -> type[Split]:
    """Return the type of a split with at most as many parts as there are children."""
    parts = Annotated[list[PartReply], Field(json_schema_extra={"minItems": 1, "maxItems": children})]
    return create_model("Split", __base__=Split, parts=(parts, ...))


@dataclass(frozen=True, slots=True)
class AssignedPart:
    """A part as published for the child that gets it."""

    part: PartReply
    message: Message


@dataclass(frozen=True, slots=True)
class AgentWork:
    """What one agent did."""

    agent: str
    part: PartReply | None = None
    """What it was assigned; None for the task as a whole."""
    text: TextReply | None = None
    below: tuple[AgentWork, ...] = ()
    """The work of its children."""
    surplus: int = 0
    """Parts beyond the number of its children."""
    failures: tuple[Failure, ...] = ()

    def responded(self, reply: TextReply | Failure) -> AgentWork:
        if isinstance(reply, Failure):
            return replace(self, failures=(*self.failures, reply))
        return replace(self, text=reply)

    def walk(self) -> Iterator[AgentWork]:
        """Yield this and all work below it."""
        yield self
        for work in self.below:
            yield from work.walk()
