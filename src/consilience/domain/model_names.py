"""The grammar of models' names, read here alone: `A|B|C` is a chain of links, and a link is of one kind by its beginning.

Nothing is looked up: a link of kind `provider` may name a provider, a kind that an installed package adds, or nothing.
`consilience.models.registry.parse` returns what can be checked and opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

NameKind: TypeAlias = Literal["local", "endpoint", "program", "person", "workspace", "provider"]

WORKSPACE_PREFIX = "workspace:"
PROGRAM_PREFIX = "exec:"
PERSON = "human"

BY_HAND: Mapping[NameKind, str] = {"program": "exec:COMMAND", "workspace": "workspace:DIR"}
"""Kinds that only the user may name, since they act with the user's rights; no file of another person. With the form to write."""


def links(name: str) -> list[str]:
    """Return the links of a name in the order in which they are tried: `openai:a|local` has two, a program's command one."""
    if name.lstrip().startswith(PROGRAM_PREFIX):
        return [name.strip()]
    return [part.strip() for part in name.split("|")]


def kind_of(link: str) -> NameKind:
    """Return the kind of a link, which may be invalid."""
    link = link.strip()
    if is_endpoint(link):
        return "endpoint"
    if link.startswith(PROGRAM_PREFIX):
        return "program"
    if link.startswith(WORKSPACE_PREFIX):
        return "workspace"
    prefix = link.partition(":")[0]
    return "person" if prefix == PERSON else "local" if prefix == "local" else "provider"


def is_endpoint(name: str) -> bool:
    """Return whether a model or an account is named by an address."""
    return name.lstrip().lower().startswith(("http://", "https://"))


def person_named(link: str) -> str | None:
    """Return the person whom `human:NAME` or `workspace:DIR#human:NAME` names, "" without a name; None if no person is asked."""
    kind = kind_of(link)
    person = link.strip().rpartition("#")[2] if kind == "workspace" else link.strip() if kind == "person" else ""
    return person.partition(":")[2] if kind_of(person) == "person" else None


def is_embedded(name: str) -> bool:
    """Return whether a chain has a model of the embedded catalogue, by its canonical name. A GGUF file is the user's own."""
    return any(kind_of(link) == "local" and ":" in link and not link.endswith(".gguf") for link in links(name))


def named_by_hand(name: str) -> NameKind | None:
    """Return the kind of a chain's link that only the user may name; None without one."""
    kinds = set(map(kind_of, links(name)))
    return next((kind for kind in BY_HAND if kind in kinds), None)
