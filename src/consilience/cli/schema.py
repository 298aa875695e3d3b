"""`schema`: the JSON Schemas that `docs/schema` publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.sessions import Json, new_app
from consilience.domain.errors import UnknownName

schema = new_app()

ERROR = "error"
"""What --json prints where there is no report."""


@schema.command("schema")
def schema_command(
    name: Annotated[
        str,
        typer.Argument(help="report (the header of all), events, error, or a protocol for its report.", metavar="NAME"),
    ] = "report",
    out: Annotated[
        Path | None, typer.Option(help="Write all of them into this directory instead.", metavar="DIR")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print one JSON Schema; --json changes nothing."""
    from consilience.reporting.files import claim_directory, write_files

    if out is not None:
        claim_directory(out)
        for path in write_files(out, {f"{one}.schema.json": written(one) for one in names()}):
            typer.echo(f"Written: {path}", err=True)
        return
    if name not in names():
        raise UnknownName(f"there is no schema {name!r}", do=f"Known: {', '.join(names())}.")
    print(written(name), end="")


def names() -> list[str]:
    """Every schema there is: those that all share, then one per installed protocol."""
    from consilience.engine.protocol import protocol_names
    from consilience.reporting.schema import EVENTS, REPORT

    return [REPORT, EVENTS, ERROR, *protocol_names()]


def written(name: str) -> str:
    from consilience.engine.protocol import find_protocol
    from consilience.reporting.schema import EVENTS, REPORT, events_schema, report_schema

    if name == EVENTS:
        made = events_schema()
    elif name == ERROR:
        made = error_schema()
    elif name == REPORT:
        made = report_schema()
    else:
        made = report_schema(find_protocol(name).report)
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def error_schema() -> dict[str, object]:
    from pydantic import TypeAdapter

    from consilience.cli.failures import Problem
    from consilience.reporting.schema import DIALECT

    made = TypeAdapter(Problem).json_schema(mode="serialization")
    described = " ".join((Problem.__doc__ or "").split())
    properties = {
        name: {key: value for key, value in one.items() if key not in ("title", "default")}
        for name, one in made["properties"].items()
    }
    return {"$schema": DIALECT, "title": "Problem", "description": described, "type": "object"} | {
        "properties": properties,
        "required": list(properties),
    }
