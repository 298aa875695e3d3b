"""Settings of `decompose`, and what follows from them: the tree, the seats, the number of calls."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.agents import Agent
from consilience.domain.outcome import Estimate
from consilience.domain.panels import Panel
from consilience.domain.topology import Topology, tree
from consilience.engine.answers import check_pattern
from consilience.engine.protocol import Protocol

MOST_AGENTS = 500


class Settings(Protocol):
    """What can be set; see the descriptions."""

    name: ClassVar[str] = "decompose"
    summary: ClassVar[str] = "a parent splits the task, its children do their parts alone, and it puts them together"

    children: Annotated[int, Field(ge=1, le=64, description="children of every internal node, and most parts")] = 3
    depth: Annotated[int, Field(ge=2, le=8, description="levels of the tree, the root included")] = 2
    strange_loops: Annotated[int, Field(ge=0, le=10, description="self-reviews of the root's answer")] = 0
    domain_instructions: Annotated[
        str, Field(max_length=20_000, description="instructions for the last of the strange loops")
    ] = ""
    answer_pattern: Annotated[str, Field(max_length=500, description="regular expression of an extractable answer")] = (
        ""
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        agents = sum(int(self.children**level) for level in range(self.depth))
        if agents > MOST_AGENTS:
            raise ValueError(
                f"a tree of {self.children} children and depth {self.depth} has {agents:,} agents; at most {MOST_AGENTS} may be"
            )
        if self.domain_instructions and not self.strange_loops:
            raise ValueError("domain_instructions are for the last strange loop, and strange_loops is 0")
        check_pattern(self.answer_pattern)
        return self

    @property
    def widest(self) -> int:
        """Children's texts, one's own part and text."""
        return self.children + 2

    def topology(self) -> Topology:
        """Nobody reads a sibling."""
        return tree(self.children, self.depth).model_copy(update={"circles": ()})

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        """Leaves have a point of view only where a panel gives them one."""
        shape = self.topology()
        leaves = {leaf: n for n, leaf in enumerate(shape.leaves)}
        seats = []
        for id in shape.agents:
            if id not in leaves:
                seats.append(Agent(id=id, role="lead" if shape.parents.get(id) else "root"))
                continue
            seat = Agent(id=id, role="worker")
            if panel is not None:
                persona = panel.personas[leaves[id] % len(panel.personas)]
                seat = seat.model_copy(update={"perspective": persona.description, "persona": persona.name})
            seats.append(seat)
        return tuple(seats)

    def need(self, level: int, parts: int) -> int:
        """Calls of a node on that level and of all beneath it, where every parent finds so many parts (protocols §2)."""
        return 1 if level == self.depth else 2 + parts * self.need(level + 1, parts)

    def estimate(self) -> Estimate:
        return Estimate(min=self.need(1, 1) + self.strange_loops, max=self.need(1, self.children) + self.strange_loops)
