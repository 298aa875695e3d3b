"""`export`: a session as a file that needs neither this program nor its journal."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.sessions import Id, Json, View, check_view, find_session, new_app, user_store
from consilience.domain.errors import SettingsError

export = new_app()


class Format(StrEnum):
    """`reporting.export` writes them under these names."""

    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    SVG = "svg"
    EVENTS = "events"


@export.command("export")
def export_command(
    id: Id,
    format: Annotated[
        Format | None,
        typer.Option(
            help="What to write; where it is not given, the file's name says it, else markdown.", show_default=False
        ),
    ] = None,
    view: Annotated[
        View | None, typer.Option(help="What the SVG is to show.  [default: tree]", show_default=False)
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The file, written for you alone to read; - is standard output.", metavar="FILE")
    ] = Path("-"),
    as_json: Json = False,
) -> None:
    """Write a session as JSON, Markdown, one self-contained HTML page, an SVG of one view, or all events as JSON lines."""
    from consilience.reporting import export as exporting
    from consilience.reporting.files import write_file
    from consilience.reporting.record import record_of

    if as_json and format not in (None, Format.JSON):
        raise SettingsError(
            f"--json and --format {format.value} exclude each other", where="--json", do="Give one of them."
        )
    format = Format.JSON if as_json else format
    to_file = str(out) != "-"
    chosen = format.value if format else exporting.format_of(out) if to_file else Format.MARKDOWN.value
    if view is not None and chosen != Format.SVG:
        raise SettingsError(
            f"{chosen} does not show one view", where="--view", do="Leave it out, or ask for --format svg."
        )
    with user_store() as store:
        record = record_of(store, find_session(store, id))
        if chosen == Format.SVG:
            shown = view.value if view else View.TREE.value
            check_view(shown, record)
            body = exporting.as_svg(record, shown)
        else:
            body = exporting.FORMATS[chosen](record)
    if to_file:
        elsewhere = "Name another place with --out."
        if not out.parent.is_dir():
            raise SettingsError(
                f"the report cannot be written: there is no directory {out.parent}", where=str(out), do=elsewhere
            )
        try:
            write_file(out, body)
        except SettingsError as error:
            raise SettingsError(error.what, where=error.where, do=elsewhere) from None
        typer.echo(f"Written: {out}", err=True)
    else:
        sys.stdout.write(body)
