"""`consilience COMMAND`: the table of commands and the console script."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Annotated, TextIO

import typer

from consilience.cli.commands import LazyGroup


class Commands(LazyGroup):
    """One command per installed protocol, then the fixed ones."""

    sections = {
        "Evaluation": {
            "compare": (
                "consilience.cli.compare:compare",
                "Compare protocols on the same tasks at equal budget; reports losses as well as wins.",
            ),
        },
        "Sessions": {
            "show": ("consilience.cli.sessions:show", "Show a session's report or its progress."),
            "resume": (
                "consilience.cli.run_commands:resume",
                "Resume a session; recorded calls are not paid for again.",
            ),
            "replay": ("consilience.cli.sessions:replay", "Run a session again from its record, without model calls."),
            "fork": ("consilience.cli.run_commands:fork", "Continue from an event of a session with changes."),
            "diff": ("consilience.cli.sessions:diff", "Show what differs between two sessions."),
            "export": ("consilience.cli.sessions:export", "Write a session as JSON, Markdown, HTML, SVG or events."),
            "sessions": (
                "consilience.cli.session_admin:sessions",
                "List, remove or answer sessions; also all commands above.",
            ),
        },
        "Set-up": {
            "models": ("consilience.cli.setup:models", "List, fetch or remove local models."),
            "panels": ("consilience.cli.setup:panels", "List or show panels of personas."),
            "hierarchies": ("consilience.cli.setup:hierarchies", "List or show hierarchies of roles."),
            "schema": ("consilience.cli.setup:schema", "Print the JSON Schemas of reports and exported events."),
            "doctor": ("consilience.cli.doctor:doctor", "Check the installation and show which model would be used."),
        },
    }
    protocols = "Protocols"


app = typer.Typer(
    name="consilience",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog='Try: consilience emergence "Should we …?" --dry-run',
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"consilience {version('consilience')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Put a question to several language-model agents and get an answer with its dissent, its cost and a record that can be
    replayed. Help on a command: consilience COMMAND --help."""


def _null_stream() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _broken_pipe() -> TextIO:
    """Return a pipe without a reader, which behaves like a closed output."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def main() -> None:
    """The console script."""
    gc.set_threshold(50_000, 20, 20)  # reading a long journal makes many lasting objects and few cycles
    sys.stdout = sys.stdout or _broken_pipe()  # None if it was closed (>&-)
    sys.stderr = sys.stderr or _null_stream()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal lacks must not prevent the report
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a write error must be reported here; at interpreter exit it could not be
    except OSError as error:
        from consilience.cli.errors import exit_code_of

        sys.exit(exit_code_of(error))
