"""Panels of personas: which there are, and who sits in them."""

from __future__ import annotations

from typing import Annotated

import typer

from consilience.cli.output import print_json

panels = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@panels.callback()
def _panels() -> None:
    """Named sets of points of view, for --panel."""


@panels.command("list")
def _list(as_json: Json = False) -> None:
    """The panels that come with the package."""
    from consilience.domain.panels import load_panel, shipped_panels

    found = [(name, load_panel(name)) for name in shipped_panels()]
    if as_json:
        rows = [
            {"name": name, "description": panel.description, "personas": list(panel.names)} for name, panel in found
        ]
        print_json(rows)
        return
    width = max(len(name) for name, _ in found)
    for name, panel in found:
        print(f"{name:<{width}}  {len(panel.personas):>2} personas  {panel.description}")


@panels.command("show")
def _show(
    name: Annotated[
        str, typer.Argument(help="A shipped panel or a TOML file.", metavar="NAME|FILE", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """The personas of a panel, in order of importance."""
    from consilience.domain.panels import load_panel
    from consilience.reporting.words import printable

    panel = load_panel(name)
    if as_json:
        print_json(panel.model_dump(mode="json"))
        return
    print(printable(f"{panel.name}: {panel.description}"))
    for persona in panel.personas:
        print(printable(f"\n  {persona.name}\n    {persona.description}"))
