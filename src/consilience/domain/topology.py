"""Directed acyclic graphs of agents. In a tree every agent but the root has one parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from consilience.domain.errors import SettingsError
from consilience.domain.validation import Frozen

Edges = Mapping[str, tuple[str, ...]]


class Topology(Frozen):
    """A graph of agents. Its size as data is linear in agents and parents."""

    kind: str
    agents: tuple[str, ...]
    """Ids, parents before children."""
    parents: dict[str, tuple[str, ...]] = {}
    """By agent id."""
    circles: tuple[tuple[str, ...], ...] = ()
    """Groups of agents that are all peers of each other; an agent is in at most one."""

    @cached_property
    def _circle_of(self) -> Mapping[str, tuple[str, ...]]:
        return {agent: circle for circle in self.circles for agent in circle}

    @cached_property
    def children(self) -> Edges:
        children: dict[str, list[str]] = {agent: [] for agent in self.agents}
        for agent in self.agents:
            for parent in self.parents.get(agent, ()):
                children[parent].append(agent)
        return {agent: tuple(ids) for agent, ids in children.items()}

    @cached_property
    def roots(self) -> tuple[str, ...]:
        return tuple(agent for agent in self.agents if not self.parents.get(agent))

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        return tuple(agent for agent in self.agents if not self.children[agent])

    @cached_property
    def levels(self) -> Mapping[str, int]:
        """Max distance from a root by id; a root is on level 1."""
        level: dict[str, int] = {}
        for agent in self.agents:
            level[agent] = 1 + max((level[parent] for parent in self.parents.get(agent, ())), default=0)
        return level

    def siblings(self, agent: str) -> tuple[str, ...]:
        """Return the other agents of its circle."""
        return tuple([other for other in self._circle_of.get(agent, ()) if other != agent])


def tree(children: int, depth: int) -> Topology:
    """Return a tree with `children` below every internal node and `depth` levels; ids `L{level}N{n}`, n from 1 per level.

    The children of `LxNn` are `L(x+1)` numbers `(n-1)*children+1 … n*children`; siblings are peers.
    """
    agents: list[str] = ["L1N1"]
    parents: dict[str, tuple[str, ...]] = {}
    circles: list[tuple[str, ...]] = []
    for level in range(2, depth + 1):
        for n in range(1, children ** (level - 2) + 1):
            family = [f"L{level}N{(n - 1) * children + i}" for i in range(1, children + 1)]
            for name in family:
                parents[name] = (f"L{level - 1}N{n}",)
            agents.extend(family)
            if children > 1:
                circles.append(tuple(family))
    return Topology(kind="tree", agents=tuple(agents), parents=parents, circles=tuple(circles))


def complete(n: int) -> Topology:
    """Return `n` agents `A1 … An` that are all peers."""
    agents = tuple(f"A{i}" for i in range(1, n + 1))
    return Topology(kind="complete", agents=agents, circles=(agents,) if n > 1 else ())


def independent(agents: Sequence[str]) -> Topology:
    """Return agents that never read each other."""
    return Topology(kind="independent", agents=tuple(agents))


def star(lead: str, members: Sequence[str]) -> Topology:
    """Return a lead above members that do not read each other."""
    return Topology(kind="star", agents=(lead, *members), parents=dict.fromkeys(members, (lead,)))


def hierarchy(spec: Mapping[str, Sequence[str]]) -> Topology:
    """Return the graph of `{agent: its children}`; every child is an agent. Raises `SettingsError` for a cycle."""
    names = list(dict.fromkeys([*spec, *(child for children in spec.values() for child in children)]))
    parents: dict[str, list[str]] = {name: [] for name in names}
    for parent, children in spec.items():
        for child in children:
            parents[child].append(parent)
    place = {name: n for n, name in enumerate(names)}
    sorter = TopologicalSorter(parents)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " → ".join(reversed(error.args[1]))
        do = "Remove the edge that leads back to an ancestor."
        raise SettingsError("the hierarchy has a cycle", where=cycle, do=do) from None
    ordered: list[str] = []
    while level := sorted(sorter.get_ready(), key=place.__getitem__):
        ordered += level
        sorter.done(*level)
    return Topology(
        kind="hierarchy",
        agents=tuple(ordered),
        parents={name: tuple(its_parents) for name, its_parents in parents.items() if its_parents},
    )
