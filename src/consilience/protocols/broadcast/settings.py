"""Settings of `broadcast`, and what follows from them: the tree, the seats, the number of calls."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.outcome import Estimate
from consilience.engine.answers import check_pattern
from consilience.engine.trees import TreeProtocol
from consilience.protocols.broadcast.replies import SEVERITY, Tag

MOST_QUOTED_FLAGS = 12
"""In one prompt, critical ones first: a large tree does not drown its root."""


class Settings(TreeProtocol):
    """What can be set; see the descriptions. Leaves choose themselves what they contribute, so they have no points of view."""

    roles: ClassVar[tuple[str, str, str]] = ("integrator", "coordinator", "contributor")

    name: ClassVar[str] = "broadcast"
    summary: ClassVar[str] = (
        "goals go down and nobody is assigned a part; siblings coordinate, everyone rates itself, flags go up and send back"
    )

    coordination_rounds: Annotated[
        int, Field(ge=0, le=10, description="times that siblings read each other; 0 for never")
    ] = 1
    max_iterations: Annotated[
        int, Field(ge=1, le=20, description="most broadcasts of a parent each time it is asked")
    ] = 2
    satisfaction_threshold: Annotated[
        float, Field(ge=0, le=1, description="mean rating of the children at which a parent is satisfied")
    ] = 0.7
    critical_flags: Annotated[
        tuple[Tag, ...],
        Field(description=f"flags that send a parent back to broadcast again; of {', '.join(SEVERITY)}"),
    ] = ("goal_mismatch", "needs_reframing")
    skip_when_satisfied: Annotated[
        bool, Field(description="siblings who all rate themselves above 0.9 and flag nothing do not coordinate")
    ] = True
    strange_loops: Annotated[int, Field(ge=0, le=10, description="self-reviews of the root's answer")] = 0
    domain_instructions: Annotated[
        str, Field(max_length=20_000, description="instructions for the last of the strange loops")
    ] = ""
    answer_pattern: Annotated[
        str, Field(max_length=500, description="regular expression of an extractable answer; leaves then cast ballots")
    ] = ""
    anonymous_peers: Annotated[bool, Field(description="peers appear under neutral labels")] = True

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.domain_instructions and not self.strange_loops:
            raise ValueError("domain_instructions are for the last strange loop, and strange_loops is 0")
        check_pattern(self.answer_pattern)
        return self

    @property
    def ballots(self) -> bool:
        """Positions exist, so leaves cast ballots, inside replies that are typed anyway."""
        return bool(self.answer_pattern)

    @property
    def widest(self) -> int:
        """Children's texts, flags, the goal, the evaluation, one's own text."""
        return self.children + MOST_QUOTED_FLAGS + 3

    def calls(self, iterations: int, rounds: int, level: int = 1) -> int:
        """Calls of one execution of a node, all nodes beneath it included, with so many iterations of every parent and
        coordination rounds in each (protocols §2)."""
        if level == self.depth:
            return 2
        sub = self.calls(iterations, rounds, level + 1)
        talk = rounds * self.children if self.children > 1 else 0
        once = iterations * (1 + self.children * sub + talk + 1) + 2
        return once + self.strange_loops if level == 1 else once

    def need(self, level: int) -> int:
        """The most calls of one execution of a node on that level."""
        return self.calls(self.max_iterations, self.coordination_rounds, level)

    def estimate(self) -> Estimate:
        fewest = 0 if self.skip_when_satisfied else self.coordination_rounds
        return Estimate(min=self.calls(1, fewest), max=self.need(1))
