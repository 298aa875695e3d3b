"""Settings of `decompose`, and what follows from them: the tree, the seats, the number of calls."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.outcome import Estimate
from consilience.domain.topology import Topology
from consilience.protocols._common.answers import check_pattern
from consilience.protocols._common.trees import TreeProtocol


class Settings(TreeProtocol):
    """What can be set; see the descriptions."""

    roles: ClassVar[tuple[str, str, str]] = ("root", "lead", "worker")

    name: ClassVar[str] = "decompose"
    summary: ClassVar[str] = "a parent splits the task, its children do their parts alone, and it puts them together"

    children: Annotated[
        int, Field(ge=1, le=64, description="children of every internal node, which is also the max number of parts")
    ] = 3
    strange_loops: Annotated[int, Field(ge=0, le=10, description="self-reviews of the root's answer")] = 0
    domain_instructions: Annotated[
        str, Field(max_length=20_000, description="instructions for the last of the strange loops")
    ] = ""
    answer_pattern: Annotated[str, Field(max_length=500, description="regular expression of an extractable answer")] = (
        ""
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.domain_instructions and not self.strange_loops:
            raise ValueError("domain_instructions are for the last strange loop, and strange_loops is 0")
        check_pattern(self.answer_pattern)
        return self

    @property
    def max_quoted_replies(self) -> int:
        """Children's texts, one's own part and text."""
        return self.children + 2

    def topology(self) -> Topology:
        """Nobody reads a sibling."""
        return super().topology().model_copy(update={"circles": ()})

    def need(self, level: int, parts: int) -> int:
        """Calls of a node on that level and of all beneath it, where every parent finds so many parts (protocols §2)."""
        return 1 if level == self.depth else 2 + parts * self.need(level + 1, parts)

    def estimate(self) -> Estimate:
        return Estimate(min=self.need(1, 1) + self.strange_loops, max=self.need(1, self.children) + self.strange_loops)
