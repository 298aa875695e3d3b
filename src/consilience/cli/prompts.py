"""The command `prompts`: the prompt templates of a protocol, to read or to copy and edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.errors import print_result
from consilience.cli.options import JsonOption, argument, new_app
from consilience.domain.detail import Detail
from consilience.domain.errors import SettingsError, UnknownName

prompts = new_app()


@prompts.command("prompts")
def prompts_command(
    protocol: Annotated[str, argument("Name of a protocol.", "PROTOCOL")],
    template: Annotated[list[str] | None, argument("Templates to print or copy. Default: all.", "TEMPLATE")] = None,
    out: Annotated[Path | None, typer.Option(help="Copy the templates into this directory.", metavar="DIR")] = None,
    detail: Annotated[Detail, typer.Option(help="Which set of prompts.", metavar="full|brief")] = "full",
    as_json: JsonOption = False,
) -> None:
    """List the prompt templates of a protocol with their variables; print or copy them."""
    from consilience.engine.protocol import find_protocol
    from consilience.engine.templates import INSTRUCTIONS

    templates = find_protocol(protocol).load_templates(detail=detail)
    unknown = [name for name in template or () if name not in templates.sources]
    if unknown:
        raise UnknownName(
            f"{protocol} has no prompt template {unknown[0]!r}", do=f"Use one of: {', '.join(templates.sources)}."
        )
    chosen = {name: text for name, text in templates.sources.items() if not template or name in template}
    if out is not None:
        _copy(chosen, out)
    if out is not None and not as_json:
        typer.echo(
            f"Use them: consilience {protocol} … --prompts {out}. Remove those that you do not change.", err=True
        )
    elif template or as_json:
        text = "\n".join(f"=== {name}.j2\n\n{text}" if len(chosen) > 1 else text for name, text in chosen.items())
        print_result(chosen, text.rstrip("\n"), as_json=as_json)
    else:
        width = max(map(len, chosen))
        lines = [f"{name:<{width}}  {', '.join(sorted(templates.variables(name)))}".rstrip() for name in chosen]
        one = f"consilience prompts {protocol} {next((name for name in chosen if name != INSTRUCTIONS), INSTRUCTIONS)}"
        one += "" if detail == "full" else f" --detail {detail}"
        lines += [f"Print one: {one}", f"Edit a copy: {one} --out my-prompts, then --prompts my-prompts"]
        typer.echo("\n".join(lines))


def _copy(templates: dict[str, str], directory: Path) -> None:
    from consilience.reporting.files import claim_directory, write_files

    files = {f"{name}.j2": text for name, text in templates.items()}
    existing = [name for name in files if (directory / name).exists()]
    if existing:
        raise SettingsError(
            f"{existing[0]} exists already",
            where=str(directory),
            do="Name another directory with --out, or the templates to copy.",
        )
    claim_directory(directory)
    for path in write_files(directory, files):
        typer.echo(f"Written: {path}", err=True)
