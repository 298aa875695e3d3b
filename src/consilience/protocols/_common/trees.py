"""What protocols on a tree of agents have in common: its size, its shape, and who sits where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.agents import Agent
from consilience.domain.panels import Panel
from consilience.domain.topology import Topology, tree
from consilience.engine.protocol import Protocol

MOST_AGENTS = 500

ROOT = "L1N1"

UNPLACED = (
    "the answer holds nothing that the answer_pattern looks for; dissent is told from what the pooled ballots put first"
)


class TreeProtocol(Protocol):
    """Everyone above the leaves has `children` children. `roles` are those of the root, of the parents beneath it, of leaves."""

    roles: ClassVar[tuple[str, str, str]]

    children: Annotated[int, Field(ge=1, le=64, description="children of every internal node")] = 3
    depth: Annotated[int, Field(ge=2, le=8, description="levels of the tree, the root included")] = 2

    @model_validator(mode="after")
    def _not_too_large(self) -> Self:
        agents = self.on_levels(1, self.depth)
        if agents > MOST_AGENTS:
            raise ValueError(
                f"a tree of {self.children} children and depth {self.depth} has {agents:,} agents; at most {MOST_AGENTS} may be"
            )
        return self

    def on_levels(self, first: int, last: int) -> int:
        """How many agents sit on those levels, the root's being 1."""
        return sum(int(self.children ** (level - 1)) for level in range(first, last + 1))

    def topology(self) -> Topology:
        return tree(self.children, self.depth)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        """Leaves have a point of view where a panel gives them one, else those of the protocol itself, if it has any."""
        shape = self.topology()
        root, inner, leaf = self.roles
        seats = {id: Agent(id=id, role=inner if shape.parents.get(id) else root) for id in shape.agents}
        own = self.points_of_view
        for n, id in enumerate(shape.leaves):
            seats[id] = Agent(id=id, role=leaf, perspective=own[n % len(own)] if own else "")
            if panel is not None:
                persona = panel.personas[n % len(panel.personas)]
                seats[id] = persona.seat(seats[id])
        return tuple(seats.values())

    @property
    def points_of_view(self) -> Sequence[str]:
        """Dealt to the leaves in order where no panel is given."""
        return ()


def path_labels(topology: Topology) -> dict[str, str]:
    """A neutral label for every agent below a root: the path from the root, letters and digits in turn (`A`, `A2`, `A2b`)."""
    labels: dict[str, str] = {}
    for parent in topology.agents:
        level = topology.levels[parent]
        for n, child in enumerate(topology.children[parent]):
            step = str(n + 1) if level % 2 == 0 else letter(n) if level == 1 else letter(n).lower()
            labels[child] = labels.get(parent, "") + step
    return labels


def letter(n: int) -> str:
    """A, B, … Z, AA, AB, … for 0, 1, …"""
    return (letter(n // 26 - 1) if n >= 26 else "") + chr(ord("A") + n % 26)
