"""Hierarchies of roles: which there are, and who writes and helps in them."""

from __future__ import annotations

from typing import Annotated

import typer

from consilience.cli.output import print_json

hierarchies = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@hierarchies.callback()
def _hierarchies() -> None:
    """Who writes which part of a text and who helps, for refinement --hierarchy."""


@hierarchies.command("list")
def _list(as_json: Json = False) -> None:
    """The hierarchies that come with the package."""
    from consilience.domain.hierarchies import load_hierarchy, shipped_hierarchies

    found = {name: load_hierarchy(name) for name in shipped_hierarchies()}
    if as_json:
        print_json([{"name": n, "description": h.description, "sections": list(h.sections)} for n, h in found.items()])
        return
    width = max(map(len, found))
    for name, hierarchy in found.items():
        layers = max(hierarchy.layer(role.name) for role in hierarchy.roles)
        print(f"{name:<{width}}  {len(hierarchy.roles):>2} roles on {layers} layers  {hierarchy.description}")


@hierarchies.command("show")
def _show(
    name: Annotated[
        str, typer.Argument(help="A shipped hierarchy or a TOML file.", metavar="NAME|FILE", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """The roles of a hierarchy, each below its parents; a role with several parents is named under each."""
    from consilience.domain.hierarchies import load_hierarchy
    from consilience.reporting.words import printable

    found = load_hierarchy(name)
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    print(printable(f"{found.name}: {found.description}"))
    told: set[str] = set()

    def tell(role: str, depth: int) -> None:
        again = role in told
        told.add(role)
        said = "(as above)" if again else found.by_name[role].description
        print(printable(f"{'  ' * depth}{role}  {said}"))
        for child in () if again else found.children(role):
            tell(child, depth + 1)

    tell(found.coordinator, 1)
