"""Hierarchies of roles: who writes which part of a text, and who helps whom. Shipped, or written as a TOML file.

    name = "letter"
    description = "A letter, and somebody who checks its tone."

    [[roles]]
    name = "editor"
    description = "You are responsible for the whole letter."
    children = ["body"]
    vector = [0.0, 1.0]

    [[roles]]
    name = "body"
    ...

One role is nobody's child: the coordinator. Roles without children are specialists, those between write. A role may have
several parents. Vectors say how near roles are to each other; all roles have one, or none has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from consilience.domain.errors import SettingsError, UserError
from consilience.domain.toml_catalog import Shelf
from consilience.domain.topology import Topology, hierarchy

SHELF = Shelf("hierarchies", "hierarchy")

MAX_ROLES = 100
CRITIC = "critic"
"""The seat that judges, which belongs to no hierarchy."""

LABELS = frozenset({"you", "intent", "draft", "before", "text", "critique", "whole"})
"""What other texts are called in the prompts of agents who see those of roles under their names."""

NO_DISTANCE = 1e-9
"""Distances below this are rounding."""

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_MISTAKES_NAMED = 5
_HOW = "A hierarchy has a name, a description, and one [[roles]] table with name, description, children and vector for each role."


class Role(BaseModel):
    """`description` addresses the agent. `documents`: it is shown the documents given with the task; `layer` is 1 for the
    coordinator, and where it is not given follows from the children."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: Annotated[str, Field(min_length=1, max_length=40)]
    description: Annotated[str, Field(min_length=1, max_length=2_000)]
    children: tuple[str, ...] = ()
    vector: tuple[Annotated[float, Field(allow_inf_nan=False, strict=True)], ...] = ()
    documents: Annotated[bool, Field(strict=True)] = False
    layer: Annotated[int, Field(ge=1, strict=True)] | None = None


class Hierarchy(BaseModel):
    """Roles in order, checked as a whole: one coordinator, no cycle, no unknown child, vectors of one length and none zero."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: Annotated[str, Field(min_length=1, max_length=80)]
    description: Annotated[str, Field(min_length=1, max_length=2_000)]
    roles: Annotated[tuple[Role, ...], Field(min_length=2, max_length=MAX_ROLES)]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for check in (_names, _children, _coordinators, _layers, _vectors):
            if wrong := check(self.roles):
                raise ValueError(wrong)
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
        """Those who have both parents and children."""
        return tuple(name for name in self.shape.agents if name != self.coordinator and self.children(name))

    @cached_property
    def edges_to_leaves(self) -> tuple[tuple[str, str], ...]:
        """Parent and specialist, each specialist once for every parent."""
        return tuple((parent, c) for parent in self.shape.agents for c in self.children(parent) if not self.children(c))

    @cached_property
    def sections(self) -> tuple[str, ...]:
        """The coordinator's children who write, in their order; its specialists, where nobody else is there."""
        children = self.children(self.coordinator)
        return tuple(c for c in children if self.children(c)) or children

    def children(self, name: str) -> tuple[str, ...]:
        return self.by_name[name].children

    def parents(self, name: str) -> tuple[str, ...]:
        return self.shape.parents.get(name, ())

    def above(self, name: str) -> frozenset[str]:
        """The role itself and all its ancestors."""
        return self._above[name]

    @cached_property
    def _above(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for name in self.shape.agents:
            found[name] = frozenset((name, *(one for parent in self.parents(name) for one in found[parent])))
        return found

    def writes_for(self, name: str) -> tuple[str, ...]:
        """The parts of the text that a role works for: itself where it is one, else those above it."""
        return (name,) if name in self.sections else tuple(part for part in self.sections if part in self.above(name))

    def layer(self, name: str) -> int:
        given = self.by_name[name].layer
        return self.shape.levels[name] if given is None else given

    @property
    def has_vectors(self) -> bool:
        return bool(self.roles[0].vector)


def shipped_hierarchies() -> list[str]:
    """Names of the hierarchies that come with the package, sorted."""
    return SHELF.names()


def load_hierarchy(name_or_path: str | Path) -> Hierarchy:
    """The shipped hierarchy of that name, or the one in that TOML file.

    Raises `UnknownName` where there is neither, `SettingsError` where the file cannot be read or is no hierarchy.
    """
    table, where = SHELF.load(name_or_path)
    try:
        return Hierarchy.model_validate(table)
    except ValidationError as error:
        raise SettingsError(_in_words(error, table), where=where, do=_HOW) from None


def _named(value: object) -> object:
    """A name, a path or a table as the hierarchy it stands for; all else as it is."""
    try:
        if isinstance(value, Mapping):
            return Hierarchy.model_validate(value)
        return load_hierarchy(value) if isinstance(value, str | Path) else value
    except ValidationError as error:
        raise ValueError(_in_words(error, value)) from None
    except UserError as error:
        raise ValueError(str(error)) from None


HierarchySetting = Annotated[Hierarchy, BeforeValidator(_named)]
"""A hierarchy as a setting: itself, its table, the name of a shipped one, or a path."""


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    """`(1 − cos)/2` in [0, 1]: 0 the same direction, 0.5 nothing in common, 1 opposed (protocols §5). Symmetric.

    Neither vector may be zero.
    """
    length_a, length_b = math.hypot(*a), math.hypot(*b)
    cosine = math.fsum((x / length_a) * (y / length_b) for x, y in zip(a, b, strict=True))
    return from_cosine(cosine)


def from_cosine(cosine: float) -> float:
    found = (1.0 - min(max(cosine, -1.0), 1.0)) / 2.0
    return 0.0 if found < NO_DISTANCE else found


def _names(roles: Sequence[Role]) -> str:
    taken: set[str] = set()
    for role in roles:
        if not _NAME.fullmatch(role.name):
            return f"{role.name!r} cannot be a role's name; use small letters, digits, - and _, a letter first"
        if role.name == CRITIC:
            return f"{CRITIC!r} is the seat that judges the parts; give this role another name"
        if role.name in LABELS:
            return f"{role.name!r} is what something else is called in prompts; give this role another name"
        if role.name in taken:
            return f"two roles are named {role.name!r}"
        taken.add(role.name)
    return ""


def _children(roles: Sequence[Role]) -> str:
    known = {role.name for role in roles}
    for role in roles:
        for child in role.children:
            if child not in known:
                return f"{role.name!r} has a child {child!r}, which is no role; roles: {', '.join(sorted(known))}"
        if len(set(role.children)) < len(role.children):
            return f"{role.name!r} names a child twice"
    if cycle := _cycle({role.name: role.children for role in roles}):
        return f"the hierarchy has a cycle: {' → '.join(cycle)}"
    return ""


def _cycle(children: Mapping[str, Sequence[str]]) -> list[str]:
    """The roles along one, the first again at its end; empty where there is none."""
    done: set[str] = set()
    for start in children:
        trail: list[str] = []
        waiting = [(start, 0)]
        while waiting:
            name, depth = waiting.pop()
            del trail[depth:]
            if name in trail:
                return [*trail[trail.index(name) :], name]
            trail.append(name)
            if name not in done:
                done.add(name)
                waiting += [(child, depth + 1) for child in children[name]]
    return []


def _coordinators(roles: Sequence[Role]) -> str:
    below = {child for role in roles for child in role.children}
    top = [role for role in roles if role.name not in below]
    if len(top) == 1:
        return ""
    orphans = [role.name for role in top if not role.children] or [role.name for role in top[1:]]
    named = ", ".join(orphans)
    verb = "is an orphan" if len(orphans) == 1 else "are orphans"
    return f"{named} {verb}: no role has it as a child, and only one, the coordinator, may stand alone"


def _layers(roles: Sequence[Role]) -> str:
    given = {role.name: role.layer for role in roles if role.layer is not None}
    if given and len(given) < len(roles):
        return f"{next(r.name for r in roles if r.layer is None)!r} has no layer; give every role one, or none"
    below = {child for role in roles for child in role.children}
    for role in roles:
        if given and role.name not in below and given[role.name] != 1:
            return f"{role.name!r} is the coordinator and must be on layer 1, not {given[role.name]}"
        for child in role.children if given else ():
            if given[child] <= given[role.name]:
                return f"{child!r} is on layer {given[child]}, not below its parent {role.name!r} on layer {given[role.name]}"
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


def _in_words(error: ValidationError, table: Any) -> str:
    """What is wrong with a table, the first mistakes of it."""
    details = error.errors(include_url=False)
    if any(
        len(one["loc"]) > 1 for one in details
    ):  # roles with a mistake are not counted, so that there seem to be too few
        details = [one for one in details if one["loc"] != ("roles",)]
    mistakes = [_mistake(one, table) for one in details]
    if len(mistakes) > _MISTAKES_NAMED:
        mistakes[_MISTAKES_NAMED:] = [f"and {len(mistakes) - _MISTAKES_NAMED} more"]
    return f"The hierarchy cannot be used: {'; '.join(mistakes)}"


def _mistake(detail: Any, table: Mapping[str, Any]) -> str:
    """One mistake as a clause: which key of which role, and what about it."""
    place, kind, given = list(detail["loc"]), detail["type"], detail["input"]
    if place == ["roles"]:
        return _about_roles(kind, given)
    owner = "the hierarchy"
    if len(place) >= 2 and place[0] == "roles":
        role = table["roles"][place[1]]
        name = role.get("name") if isinstance(role, Mapping) else None
        owner = f"role {place[1] + 1}" + (f" ({name})" if isinstance(name, str) and name else "")
        place = place[2:]
    if not place:
        if kind == "model_type":
            return f"{owner} is {given!r:.60} and no table; each role begins with [[roles]]"
        return str(detail["msg"]).removeprefix("Value error, ")
    key = ".".join(str(part + 1) if isinstance(part, int) else part for part in place)
    match kind:
        case "missing":
            return f"{owner} has no {key!r}"
        case "extra_forbidden":
            return f"{owner} has an unknown key {key!r}"
        case "string_too_short":
            return f"{key!r} of {owner} is empty"
    return f"{key!r} of {owner} {_demand(place, detail)}"


def _about_roles(kind: str, given: Any) -> str:
    match kind:
        case "missing":
            return "the hierarchy has no 'roles'"
        case "too_short" | "too_long":
            return f"a hierarchy has 2 to {MAX_ROLES} roles, and this one has {len(given)}"
    if isinstance(given, Mapping):
        return "'roles' is one table; each role begins with [[roles]], in two pairs of brackets"
    return f"'roles' is {given!r:.60}; each role is a table that begins with [[roles]]"


def _demand(place: Sequence[str | int], detail: Any) -> str:
    """What a value has to be, and what it is."""
    given = f"not {detail['input']!r:.60}"
    match detail["type"]:
        case "tuple_type":
            example = "[0.5, 1.0]" if place[0] == "vector" else '["a", "b"]'
            return f"must be a list, as in {example}, {given}"
        case "string_type":
            return f"must be text, {given}"
        case "string_too_long":
            return f"has {len(detail['input'])} characters; {detail['ctx']['max_length']} are allowed"
        case "float_type" | "float_parsing" | "finite_number":
            return f"must be a finite number, {given}"
        case "bool_type":
            return f"must be true or false, {given}"
        case "int_type" | "greater_than_equal":
            return f"must be a whole number from 1 up, {given}"
    return f"cannot be used: {detail['msg']}"
