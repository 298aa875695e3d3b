"""Settings of `broadcast`, and what follows from them: the tree, the seats, the number of calls."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.agents import Agent
from consilience.domain.outcome import Estimate
from consilience.domain.panels import Panel
from consilience.domain.topology import Topology, tree
from consilience.engine.answers import check_pattern
from consilience.engine.protocol import Protocol
from consilience.protocols.broadcast.replies import SEVERITY, Tag

MOST_AGENTS = 500

MOST_QUOTED_FLAGS = 12
"""In one prompt, critical ones first: a large tree does not drown its root."""


class Settings(Protocol):
    """What can be set; see the descriptions."""

    name: ClassVar[str] = "broadcast"
    summary: ClassVar[str] = (
        "goals go down and nobody is assigned a part; siblings coordinate, everyone rates itself, flags go up and send back"
    )

    children: Annotated[int, Field(ge=1, le=64, description="children of every internal node")] = 3
    depth: Annotated[int, Field(ge=2, le=8, description="levels of the tree, the root included")] = 2
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
    def ballots(self) -> bool:
        """Positions exist, so leaves cast ballots, inside replies that are typed anyway."""
        return bool(self.answer_pattern)

    @property
    def widest(self) -> int:
        """Children's texts, flags, the goal, the evaluation, one's own text."""
        return self.children + MOST_QUOTED_FLAGS + 3

    def topology(self) -> Topology:
        return tree(self.children, self.depth)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        """Leaves have a point of view only where a panel gives them one: they choose themselves what they contribute."""
        shape = self.topology()
        leaves = {leaf: n for n, leaf in enumerate(shape.leaves)}
        seats = []
        for id in shape.agents:
            if id not in leaves:
                seats.append(Agent(id=id, role="coordinator" if shape.parents.get(id) else "integrator"))
                continue
            seat = Agent(id=id, role="contributor")
            if panel is not None:
                persona = panel.personas[leaves[id] % len(panel.personas)]
                seat = seat.model_copy(update={"perspective": persona.description, "persona": persona.name})
            seats.append(seat)
        return tuple(seats)

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
