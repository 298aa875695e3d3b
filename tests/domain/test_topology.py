"""Graphs of agents: names, families, levels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.errors import SettingsError
from consilience.domain.topology import Topology, complete, hierarchy, star, tree


@given(st.integers(1, 4), st.integers(2, 5))
def test_tree_numbers_children_like_the_seed(children: int, depth: int) -> None:
    shape = tree(children, depth)
    assert shape.roots == ("L1N1",)
    assert len(shape.leaves) == children ** (depth - 1)
    for agent in shape.agents:
        level, n = map(int, agent[1:].split("N"))
        below = [f"L{level + 1}N{i}" for i in range((n - 1) * children + 1, n * children + 1)] if level < depth else []
        assert list(shape.children[agent]) == below
        assert shape.levels[agent] == level
        for child in below:
            assert set(shape.siblings(child)) == set(below) - {child}


def test_complete_topology_makes_all_agents_peers() -> None:
    shape = complete(3)
    assert shape.siblings("A2") == ("A1", "A3")
    assert shape.roots == shape.leaves == ("A1", "A2", "A3")


def test_star_gives_members_no_siblings() -> None:
    shape = star("lead", ["a", "b"])
    assert shape.children["lead"] == ("a", "b")
    assert shape.siblings("a") == ()


def test_hierarchy_allows_shared_agents_and_refuses_cycles() -> None:
    shape = hierarchy({"chief": ["x", "y"], "x": ["checker"], "y": ["checker"]})
    assert shape.parents["checker"] == ("x", "y")
    assert shape.agents.index("checker") > shape.agents.index("y")
    assert shape.levels["checker"] == 3
    with pytest.raises(SettingsError, match="cycle"):
        hierarchy({"a": ["b"], "b": ["a"]})


def test_topology_size_grows_linearly_with_agents() -> None:
    def size(topology: Topology) -> int:
        return len(topology.model_dump_json())

    assert size(complete(400)) < 2.2 * size(complete(200))
    assert size(tree(20, 2)) < 2.2 * size(tree(10, 2))
    assert complete(400).siblings("A7") == tuple(f"A{n}" for n in range(1, 401) if n != 7)
