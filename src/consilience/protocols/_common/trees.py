"""Protocols on a tree of agents: settings they share, seats and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.agents import Agent
from consilience.domain.topology import Topology, tree
from consilience.domain.validation import Unfit
from consilience.engine.protocol import Protocol

MAX_AGENTS = 500
ROOT = "L1N1"

StrangeLoops = Annotated[int, Field(ge=0, le=10, description="self-reviews of the root's answer")]
LoopInstructions = Annotated[
    str, Field(max_length=20_000, description="instructions for the last self-review (strange loop)")
]
Perspectives = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=2_000)], ...],
    Field(min_length=1, max_length=MAX_AGENTS, description="perspectives assigned to the leaf agents in order"),
]
AnonymousPeers = Annotated[bool, Field(description="peers appear under neutral labels")]


class TreeProtocol(Protocol):
    """A protocol in which every agent above the leaves has `children` children."""

    holders_setting: ClassVar[str] = "children"
    roles: ClassVar[tuple[str, str, str]]
    """Of the root, of the parents below it, and of the leaves."""

    children: Annotated[int, Field(ge=1, le=64, description="children of every internal node")] = 3
    depth: Annotated[int, Field(ge=2, le=8, description="levels of the tree, the root included")] = 2

    @model_validator(mode="after")
    def _not_too_large(self) -> Self:
        agents = self.count_agents(1, self.depth)
        if agents > MAX_AGENTS:
            size = f"{self.children} children and depth {self.depth}"
            raise Unfit(f"a tree of {size} has {agents:,} agents; the limit is {MAX_AGENTS}", "children", "depth")
        return self

    def count_agents(self, first: int, last: int) -> int:
        """Return the number of agents on these levels; the root's is 1."""
        return sum(int(self.children ** (level - 1)) for level in range(first, last + 1))

    def topology(self) -> Topology:
        return tree(self.children, self.depth)

    def agents_without_panel(self) -> list[Agent]:
        """Leaves get a perspective of the protocol's own, if it has any."""
        topology = self.topology()
        root, inner, leaf = self.roles
        seats = {id: Agent(id=id, role=inner if topology.parents.get(id) else root) for id in topology.agents}
        perspectives = self.points_of_view
        for n, id in enumerate(topology.leaves):
            seats[id] = Agent(id=id, role=leaf, perspective=perspectives[n % len(perspectives)] if perspectives else "")
        return list(seats.values())

    @property
    def points_of_view(self) -> Sequence[str]:
        """Perspectives assigned to the leaves in order if no panel is given."""
        return ()


def require_strange_loop(strange_loops: int, domain_instructions: str) -> None:
    """Raise `Unfit` if there are instructions for the last strange loop and no loop."""
    if domain_instructions and not strange_loops:
        what = "domain_instructions are for the last strange loop, and strange_loops is 0"
        raise Unfit(what, "domain_instructions", "strange_loops")


def peer_labels(topology: Topology, anonymous: bool) -> dict[str, str]:
    """Return how prompts address each agent: by a neutral label, or by its name."""
    return path_labels(topology) if anonymous else {agent: agent for agent in topology.agents}


def siblings_and_parents(topology: Topology, agent: str) -> tuple[str, ...]:
    return (*topology.siblings(agent), *topology.parents[agent])


def path_labels(topology: Topology) -> dict[str, str]:
    """Return a neutral label for every agent below a root: the path from it, letters and digits in turn (`A`, `A2`, `A2b`)."""
    labels: dict[str, str] = {}
    for parent in topology.agents:
        level = topology.levels[parent]
        for n, child in enumerate(topology.children[parent]):
            step = str(n + 1) if level % 2 == 0 else _letters(n) if level == 1 else _letters(n).lower()
            labels[child] = labels.get(parent, "") + step
    return labels


def _letters(n: int) -> str:
    """A, B, … Z, AA, AB, … for 0, 1, …"""
    return (_letters(n // 26 - 1) if n >= 26 else "") + chr(ord("A") + n % 26)
