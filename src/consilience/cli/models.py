"""Local models: which there are, fetching and removing them."""

from __future__ import annotations

from typing import Annotated

import typer

from consilience.cli.output import print_json

models = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Name = Annotated[
    str, typer.Argument(help="A name of the catalogue: consilience models list.", metavar="NAME", show_default=False)
]


@models.callback()
def _models() -> None:
    """Models that run on this machine without a key. Others are named PROVIDER:MODEL and need none of this."""


@models.command("list")
def _list(as_json: Json = False) -> None:
    """The catalogue: name, size, licence, and whether the weights are here."""
    from consilience.models.weights import CATALOGUE, DEFAULT, LIGHT, TESTS, installed
    from consilience.reporting.words import size

    here = installed()
    notes = {DEFAULT: "default", LIGHT: "light", TESTS: "for tests"}
    rows = [
        {
            "name": entry.name,
            "model": f"local:{entry.name}",
            "bytes": entry.size,
            "licence": entry.licence,
            "installed": entry.name in here,
            "path": str(here[entry.name]) if entry.name in here else None,
            "note": notes.get(entry.name, ""),
        }
        for entry in CATALOGUE.values()
    ]
    if as_json:
        print_json(rows)
        return
    for row, entry in zip(rows, CATALOGUE.values(), strict=True):
        state = "here" if row["installed"] else "not here"
        print(f"{entry.name:<20} {size(entry.size):>7}  {entry.licence:<11} {state:<9} {row['note']}".rstrip())
    print("Use one with --model local:NAME; --model local takes the default.")
    print("Any GGUF file: --model local:/path/to/file.gguf")


@models.command("pull")
def _pull(name: Name, as_json: Json = False) -> None:
    """Fetch the weights of a model and check them. Goes on where an earlier attempt was cut."""
    from consilience.cli.fetch import fetch

    name = name.removeprefix("local:")
    path = fetch(name, quiet=False)
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        print(path)


@models.command("rm")
def _rm(name: Name, as_json: Json = False) -> None:
    """Remove the weights of a model."""
    from consilience.models.weights import remove

    name = name.removeprefix("local:")
    removed = remove(name)
    if as_json:
        print_json({"name": name, "removed": removed})
    else:
        print(f"Removed {name}." if removed else f"{name} was not here.")
