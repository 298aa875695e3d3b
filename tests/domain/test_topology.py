"""Graphs of agents: names, families, levels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.errors import SettingsError
from consilience.domain.topology import complete, hierarchy, star, tree


@given(st.integers(1, 4), st.integers(2, 5))
def test_the_children_of_a_node_are_numbered_as_the_seed_numbers_them(children: int, depth: int) -> None:
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


def test_everyone_is_everyones_peer() -> None:
    shape = complete(3)
    assert shape.siblings("A2") == ("A1", "A3")
    assert shape.roots == shape.leaves == ("A1", "A2", "A3")


def test_members_of_a_star_see_only_their_lead() -> None:
    shape = star("lead", ["a", "b"])
    assert shape.children["lead"] == ("a", "b")
    assert shape.siblings("a") == ()


def test_a_hierarchy_may_share_agents_and_has_no_cycle() -> None:
    shape = hierarchy({"chief": ["x", "y"], "x": ["checker"], "y": ["checker"]})
    assert shape.parents["checker"] == ("x", "y")
    assert shape.agents.index("checker") > shape.agents.index("y")
    assert shape.levels["checker"] == 3
    with pytest.raises(SettingsError, match="cycle"):
        hierarchy({"a": ["b"], "b": ["a"]})
