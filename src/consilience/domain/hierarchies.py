"""Hierarchies of roles: who writes which part of a text, and who helps whom. Shipped, or a TOML file of the user.

    name = "letter"
    description = "A letter, and a checker of its tone."

    [[roles]]
    name = "editor"
    description = "You are responsible for the whole letter."
    children = ["body"]
    vector = [0.0, 1.0]

    [[roles]]
    name = "body"
    ...

Exactly one role, the coordinator, has no parent. Roles without children are specialists; the roles between write. A role may have
several parents. Vectors state how similar roles are; all roles have one, or none has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from consilience.domain.errors import UserError
from consilience.domain.messages import ShippedName
from consilience.domain.toml_catalog import TomlCatalog
from consilience.domain.topology import Topology, hierarchy
from consilience.domain.validation import UserWritten

MAX_ROLES = 100
CRITIC = "critic"
"""The seat that judges; it is in no hierarchy."""

RESERVED_NAMES = frozenset({"you", "intent", "draft", "before", "text", "critique", "whole"})
"""Labels of other texts in prompts that show texts of roles under the roles' names."""

MIN_DISTANCE = 1e-9
"""Smaller distances are rounding errors."""

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


class Role(UserWritten):
    """One role of a hierarchy."""

    name: Annotated[str, Field(min_length=1, max_length=40)]
    description: Annotated[str, Field(min_length=1, max_length=2_000)]
    """Addresses the agent."""
    children: tuple[str, ...] = ()
    vector: tuple[Annotated[float, Field(allow_inf_nan=False, strict=True)], ...] = ()
    """Position of the role among the others, for `distance`."""
    documents: Annotated[bool, Field(strict=True)] = False
    """Whether it is shown the documents given with the task."""
    layer: Annotated[int, Field(ge=1, strict=True)] | None = None
    """1 for the coordinator; None: derived from the children."""


class Hierarchy(UserWritten):
    """Roles in order: one coordinator, no cycle, no unknown child, vectors of one length and none of them zero."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    description: Annotated[str, Field(min_length=1, max_length=2_000)]
    roles: Annotated[tuple[Role, ...], Field(min_length=2, max_length=MAX_ROLES)]

    @model_validator(mode="after")
    def _check_roles(self) -> Self:
        for check in (_names, _children, _coordinators, _layers, _vectors):
            if problem := check(self.roles):
                raise ValueError(problem)
        return self

    @cached_property
    def by_name(self) -> Mapping[str, Role]:
        return {role.name: role for role in self.roles}

    @cached_property
    def shape(self) -> Topology:
        """The roles, parents first."""
        return hierarchy({role.name: role.children for role in self.roles})

    @property
    def coordinator(self) -> str:
        return self.shape.roots[0]

    @cached_property
    def inner(self) -> tuple[str, ...]:
        """Roles with both parents and children."""
        return tuple(name for name in self.shape.agents if name != self.coordinator and self.children(name))

    @cached_property
    def edges_to_leaves(self) -> tuple[tuple[str, str], ...]:
        """Pairs (parent, specialist); a specialist appears once for every parent."""
        return tuple((parent, c) for parent in self.shape.agents for c in self.children(parent) if not self.children(c))

    @cached_property
    def sections(self) -> tuple[str, ...]:
        """The coordinator's writing children, in order; its specialists if it has no writing children."""
        children = self.children(self.coordinator)
        return tuple(c for c in children if self.children(c)) or children

    def children(self, name: str) -> tuple[str, ...]:
        return self.by_name[name].children

    def parents(self, name: str) -> tuple[str, ...]:
        return self.shape.parents.get(name, ())

    def above(self, name: str) -> frozenset[str]:
        """Return the role and all its ancestors."""
        return self._above[name]

    @cached_property
    def _above(self) -> Mapping[str, frozenset[str]]:
        ancestors: dict[str, frozenset[str]] = {}
        for name in self.shape.agents:
            ancestors[name] = frozenset({name}.union(*(ancestors[parent] for parent in self.parents(name))))
        return ancestors

    def writes_for(self, name: str) -> tuple[str, ...]:
        """Return the parts of the text that a role works for: itself if it is a part, and the parts above it."""
        return tuple(part for part in self.sections if part in self.above(name))

    def layer(self, name: str) -> int:
        layer = self.by_name[name].layer
        return self.shape.levels[name] if layer is None else layer

    @property
    def has_vectors(self) -> bool:
        return bool(self.roles[0].vector)

    @property
    def distances(self) -> dict[str, dict[str, float]]:
        """The distances between all roles by their vectors; empty without vectors."""
        roles = self.roles if self.has_vectors else ()
        return {a.name: {b.name: distance(a.vector, b.vector) for b in roles} for a in roles}


CATALOG = TomlCatalog(
    "hierarchies",
    Hierarchy,
    "A hierarchy has a name, a description, and one [[roles]] table with name, description, children and vector for each role.",
)


def shipped_hierarchies() -> list[str]:
    """Return the names of the shipped hierarchies, sorted."""
    return CATALOG.names()


def load_hierarchy(name_or_path: str | Path) -> Hierarchy:
    """Return a shipped hierarchy or the one in a TOML file. Raises `UnknownName`, `SettingsError`; see `TomlCatalog.load`."""
    return CATALOG.load(name_or_path)


def _to_hierarchy(value: object) -> object:
    """Return the hierarchy of a name, a path or a table; any other value unchanged."""
    try:
        if isinstance(value, Mapping):
            return Hierarchy.model_validate(value)
        return load_hierarchy(value) if isinstance(value, str | Path) else value
    except ValidationError as error:
        raise ValueError(CATALOG.describe(error, value)) from None
    except UserError as error:
        raise ValueError(str(error)) from None


HierarchySetting = Annotated[Hierarchy, BeforeValidator(_to_hierarchy), ShippedName(CATALOG.names)]
"""A hierarchy as a setting: the object, its table, the name of a shipped one, or a path."""


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """Return `(1 − cos)/2` in [0, 1]: 0 for the same direction, 0.5 for orthogonal, 1 for opposite ones (protocols §5)."""
    length_a, length_b = math.hypot(*a), math.hypot(*b)
    cosine = math.fsum((x / length_a) * (y / length_b) for x, y in zip(a, b, strict=True))
    return from_cosine(cosine)


def from_cosine(cosine: float) -> float:
    distance = (1.0 - min(max(cosine, -1.0), 1.0)) / 2.0
    return 0.0 if distance < MIN_DISTANCE else distance


def _names(roles: Sequence[Role]) -> str:
    taken: set[str] = set()
    for role in roles:
        if not _NAME.fullmatch(role.name):
            return f"{role.name!r} is not a role's name; use lower-case letters, digits, - and _, a letter first"
        if role.name == CRITIC:
            return f"{CRITIC!r} is the seat that judges the parts; give this role another name"
        if role.name in RESERVED_NAMES:
            return f"{role.name!r} is the label of another text in prompts; give this role another name"
        if role.name in taken:
            return f"two roles are named {role.name!r}"
        taken.add(role.name)
    return ""


def _children(roles: Sequence[Role]) -> str:
    names = {role.name for role in roles}
    for role in roles:
        for child in role.children:
            if child not in names:
                return f"{role.name!r} has a child {child!r}, which is not a role; roles: {', '.join(sorted(names))}"
        if len(set(role.children)) < len(role.children):
            return f"{role.name!r} names a child twice"
    try:
        TopologicalSorter({role.name: role.children for role in roles}).prepare()
    except CycleError as error:
        return f"the hierarchy has a cycle: {' → '.join(reversed(error.args[1]))}"
    return ""


def _coordinators(roles: Sequence[Role]) -> str:
    all_children = {child for role in roles for child in role.children}
    top = [role for role in roles if role.name not in all_children]
    if len(top) == 1:
        return ""
    orphans = [role.name for role in top if not role.children] or [role.name for role in top[1:]]
    named = ", ".join(orphans)
    verb = "has no parent" if len(orphans) == 1 else "have no parent"
    return f"{named} {verb}; only one role, the coordinator, may have none"


def _layers(roles: Sequence[Role]) -> str:
    layers = {role.name: role.layer for role in roles if role.layer is not None}
    if layers and len(layers) < len(roles):
        return f"{next(r.name for r in roles if r.layer is None)!r} has no layer; give every role one, or none"
    all_children = {child for role in roles for child in role.children}
    for role in roles:
        if layers and role.name not in all_children and layers[role.name] != 1:
            return f"{role.name!r} is the coordinator and must be on layer 1, not {layers[role.name]}"
        for child in role.children if layers else ():
            if layers[child] <= layers[role.name]:
                return f"{child!r} is on layer {layers[child]}, not below its parent {role.name!r} on layer {layers[role.name]}"
    return ""


def _vectors(roles: Sequence[Role]) -> str:
    lengths = {len(role.vector) for role in roles}
    if len(lengths) > 1:
        without = [role.name for role in roles if not role.vector]
        if without:
            return f"{without[0]!r} has no vector; give every role one, or none"
        return "vectors differ in length: " + ", ".join(f"{role.name} {len(role.vector)}" for role in roles)
    for role in roles:
        if role.vector and not any(role.vector):
            return f"the vector of {role.name!r} is zero, which has no direction"
    return ""
