"""Hierarchies: the shipped ones are usable, a user's file is read, every mistake is told, and distances are distances."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.hierarchies import Hierarchy, distance, load_hierarchy, shipped_hierarchies
from consilience.protocols.refinement import Refinement

GOOD = """
name = "letter"
description = "A letter."

[[roles]]
name = "editor"
description = "You are responsible."
children = ["opening", "body"]
vector = [0.0, 1.0]

[[roles]]
name = "opening"
description = "You open."
children = ["checker"]
vector = [1.0, 1.0]

[[roles]]
name = "body"
description = "You say it."
children = ["checker"]
vector = [0.5, 1.0]

[[roles]]
name = "checker"
description = "You check."
vector = [1.0, 0.0]
"""


def write_hierarchy(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


# --- the shipped ones


def test_shipped_hierarchies_match_the_documentation() -> None:
    assert shipped_hierarchies() == ["blog", "document", "product-brief", "research-summary", "technical-report"]


@pytest.mark.parametrize("name", shipped_hierarchies())
def test_shipped_hierarchy_is_complete(name: str) -> None:
    hierarchy = load_hierarchy(name)
    assert hierarchy.name == name
    assert hierarchy.has_vectors
    assert len(hierarchy.sections) == 3
    assert any(role.documents for role in hierarchy.roles), "nobody would read documents"
    assert all(role.description.startswith("You ") for role in hierarchy.roles)
    assert set(hierarchy.shape.agents) == {role.name for role in hierarchy.roles}


def test_blog_hierarchy_matches_the_seed() -> None:
    """Seed 004, M6: seven roles, three layers, their children and vectors."""
    blog = load_hierarchy("blog")
    assert blog.coordinator == "coordinator"
    assert [blog.layer(name) for name in ("coordinator", "intro", "body", "conclusion", "researcher")] == [
        1,
        2,
        2,
        2,
        3,
    ]
    assert {name: blog.children(name) for name in blog.inner} == {
        "intro": ("researcher", "stylist"),
        "body": ("researcher", "fact_checker"),
        "conclusion": ("stylist",),
    }
    assert blog.parents("researcher") == ("intro", "body")
    assert blog.by_name["researcher"].vector == (0.3, 0.9, 1.0)
    assert blog.by_name["stylist"].vector == (0.9, 0.4, 0.2)


def test_shipped_hierarchies_include_one_of_four_layers() -> None:
    hierarchy = load_hierarchy("research-summary")
    assert hierarchy.layer("reader") == 4
    assert hierarchy.above("reader") == {"reader", "evidence", "findings", "lead"}


# --- a user's own


def test_hierarchy_file_is_read(tmp_path: Path) -> None:
    hierarchy = load_hierarchy(write_hierarchy(tmp_path, GOOD))
    assert hierarchy.sections == ("opening", "body")
    assert hierarchy.edges_to_leaves == (("opening", "checker"), ("body", "checker"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'children = ["opening", "body"]',
            'children = ["opening", "bdy"]',
            "'editor' has a child 'bdy', which is not a role",
        ),
        ('name = "checker"', 'name = "body"', "two roles are named 'body'"),
        ('name = "checker"', 'name = "Checker!"', "'Checker!' is not a role's name"),
        ('name = "checker"', 'name = "draft"', "'draft' is the label of another text in prompts"),
        ('name = "checker"', 'name = "critic"', "'critic' is the seat that judges"),
        ('children = ["opening", "body"]', 'children = ["opening"]', "body has no parent"),
        ('children = ["opening", "body"]', 'children = ["body", "body"]', "'editor' names a child twice"),
        (
            'description = "You check."',
            'description = "You check."\nchildren = ["body"]',
            "cycle: body → checker → body",
        ),
        (
            'description = "You check."',
            'description = "You check."\nchildren = ["checker"]',
            "cycle: checker → checker",
        ),
        ("vector = [1.0, 0.0]", "vector = [0.0, 0.0]", "the vector of 'checker' is zero"),
        ("vector = [1.0, 0.0]", "", "'checker' has no vector; give every role one, or none"),
        ("vector = [1.0, 0.0]", "vector = [1.0]", "vectors differ in length"),
        ("vector = [1.0, 0.0]", "vector = [1.0, nan]", "finite"),
        ("vector = [1.0, 0.0]", 'vector = ["x", 0.0]', "'vector' number 1 of role 4 (checker)"),
        ('description = "You check."', "", "role 4 (checker) has no 'description'"),
        ('description = "You check."', 'does = "check"', "role 4 (checker) has an unknown key 'does'"),
        ('name = "letter"', "", "the hierarchy has no 'name'"),
        ("[0.0, 1.0]", "[0.0, 1.0]\nlayer = 1", "'opening' has no layer; give every role one, or none"),
        ('name = "letter"', "name = letter", "not valid TOML"),
    ],
)
def test_load_hierarchy_invalid_file_names_the_error(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = write_hierarchy(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(SettingsError) as caught:
        load_hierarchy(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in caught.value.where
    assert caught.value.do


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((1, 2, 2, 3), ""),
        ((1, 2, 3, 4), ""),
        ((2, 3, 3, 4), "'editor' is the coordinator and must be on layer 1"),
        ((1, 3, 3, 3), "'checker' is on layer 3, not below its parent 'opening' on layer 3"),
    ],
)
def test_layers_in_a_file_are_checked(layers: tuple[int, ...], expected: str) -> None:
    roles = [
        {"name": "editor", "description": "x", "children": ["opening", "body"]},
        {"name": "opening", "description": "x", "children": ["checker"]},
        {"name": "body", "description": "x", "children": ["checker"]},
        {"name": "checker", "description": "x"},
    ]
    table = {"name": "n", "description": "d", "roles": [{**r, "layer": n} for r, n in zip(roles, layers, strict=True)]}
    if not expected:
        assert Hierarchy.model_validate(table).layer("checker") == layers[3]
        return
    with pytest.raises(ValueError, match=expected):
        Hierarchy.model_validate(table)


def test_hierarchy_with_two_coordinators_is_refused(tmp_path: Path) -> None:
    extra = '\n[[roles]]\nname = "boss"\ndescription = "x"\nchildren = ["checker"]\nvector = [1.0, 1.0]\n'
    with pytest.raises(SettingsError, match="boss has no parent"):
        load_hierarchy(write_hierarchy(tmp_path, GOOD + extra))


HEAD = 'name = "t"\ndescription = "d"\n'


def role(name: str, *keys: str) -> str:
    return "\n".join(["[[roles]]", f'name = "{name}"', 'description = "x"', *keys, ""])


PARENT = 'children = ["b"]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            HEAD + role("a", 'children = "b"') + role("b"),
            """'children' of role 1 (a) must be a list in square brackets, not 'b'""",
        ),
        (HEAD + role("a", "children = [1]") + role("b"), "'children' number 1 of role 1 (a) must be text, not 1"),
        (
            HEAD + role("a", PARENT, 'vector = "x"') + role("b"),
            "'vector' of role 1 (a) must be a list in square brackets, not 'x'",
        ),
        (
            HEAD + role("a", PARENT, "vector = [true]") + role("b", "vector = [1]"),
            "'vector' number 1 of role 1 (a) must be a number, not True",
        ),
        (
            HEAD + role("a", PARENT, "vector = [nan]") + role("b", "vector = [1]"),
            "'vector' number 1 of role 1 (a) must be a finite number, not nan",
        ),
        (
            HEAD + role("a", PARENT, 'documents = "yes"') + role("b"),
            "'documents' of role 1 (a) must be true or false, not 'yes'",
        ),
        (
            HEAD + role("a", PARENT, "layer = true") + role("b"),
            "'layer' of role 1 (a) must be a whole number, not True",
        ),
        (HEAD + role("a", PARENT, "weight = 3") + role("b"), "role 1 (a) has an unknown key 'weight'"),
        (HEAD + role("a", PARENT) + role("b", f'name2 = "{"x" * 9}"'), "role 2 (b) has an unknown key 'name2'"),
        (HEAD + role("a" * 50, PARENT) + role("b"), "has 50 characters, at most 40"),
        (HEAD + role("", PARENT) + role("b"), "'name' of role 1 is empty"),
        (
            HEAD + 'roles = ["a", "b"]',
            "role 1 must be a table with name and description, not 'a'; role 2 must be a table with name",
        ),
        (
            HEAD + '[roles]\nname = "a"\n',
            "'roles' of the hierarchy must be written as [[roles]] tables, not {'name': 'a'}",
        ),
        (HEAD + "roles = 3", "'roles' of the hierarchy must be written as [[roles]] tables, not 3"),
        (HEAD + role("a"), "'roles' of the hierarchy must have at least 2 entries, not 1"),
        (
            HEAD + "".join(role(f"r{n}") for n in range(121)),
            "'roles' of the hierarchy must have at most 100 entries, not 121",
        ),
    ],
)
def test_load_hierarchy_invalid_value_names_key_role_and_value(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_hierarchy(write_hierarchy(tmp_path, text))
    mistakes = str(raised.value).partition(". Where:")[0]
    assert expected in mistakes
    assert not any(word in mistakes for word in ("Tuple", "tuple", "Input", "dictionary", "validation"))
    if "of role 1" in expected:
        assert mistakes.count(";") <= expected.count(";"), "nothing else is wrong"
    with pytest.raises(SettingsError, match=re.escape(expected)):
        Refinement(hierarchy=tomllib.loads(text))


def test_load_hierarchy_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(UnknownName, match=r"no hierarchy named 'blg'.*Did you mean 'blog'\?"):
        load_hierarchy("blg")


def test_ancestors_in_many_full_layers_are_found_once_each() -> None:
    """Ancestors are found once each: paths through ten full layers are 10^9."""
    layers = [[f"r{level}-{n}" for n in range(10)] for level in range(9)]
    roles = [{"name": "top", "description": "x", "children": layers[0]}]
    for above, below in zip(layers, [*layers[1:], []], strict=True):
        roles += [{"name": name, "description": "x", "children": below} for name in above]
    hierarchy = Hierarchy.model_validate({"name": "n", "description": "d", "roles": roles})
    assert len(hierarchy.above("r8-9")) == 1 + 80 + 1


# --- distance

components = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
vectors = st.lists(components, min_size=3, max_size=3).filter(any)


@given(vectors, vectors)
def test_distance_is_symmetric_bounded_and_zero_to_itself(a: list[float], b: list[float]) -> None:
    assert distance(a, b) == distance(b, a)
    assert 0.0 <= distance(a, b) <= 1.0
    assert distance(a, a) == 0.0


@given(vectors, st.floats(0.01, 100))
def test_distance_depends_on_direction_only(a: list[float], times: float) -> None:
    assert distance(a, [x * times for x in a]) == 0.0
    assert distance(a, [-x * times for x in a]) == pytest.approx(1.0)


def test_distance_matches_values_computed_by_hand() -> None:
    assert distance([1, 0], [0, 1]) == pytest.approx(0.5)
    assert distance([1, 0], [1, 1]) == pytest.approx((1 - math.sqrt(0.5)) / 2)
    assert distance([1e200, 0], [0, 1e200]) == pytest.approx(0.5)
