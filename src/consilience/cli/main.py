"""`consilience COMMAND`: the table of commands, and what every command does with what goes wrong."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Annotated, TextIO

import typer

from consilience.cli.commands import LazyGroup


class Commands(LazyGroup):
    """A command per installed protocol under its own name, then those that are always there."""

    sections = {
        "Evaluation": {
            "compare": (
                "consilience.cli.compare:compare",
                "Protocols side by side on the same tasks at equal budget; losses are said too.",
            ),
        },
        "Sessions": {
            "show": ("consilience.cli.sessions:show", "What a session came to, or how far it got."),
            "resume": ("consilience.cli.sessions:resume", "Go on where a session was left; nothing is paid for twice."),
            "replay": ("consilience.cli.sessions:replay", "Run a session again from its record, without a call."),
            "fork": ("consilience.cli.options:fork", "Go on from a point of a session with something changed."),
            "diff": ("consilience.cli.sessions:diff", "What differs between two sessions."),
            "export": ("consilience.cli.sessions:export", "Write a session as JSON, Markdown, HTML, SVG or events."),
            "sessions": (
                "consilience.cli.session_admin:sessions",
                "List, remove, answer; and all of the above.",
            ),
        },
        "Set-up": {
            "models": ("consilience.cli.setup:models", "List, fetch or remove local models."),
            "panels": ("consilience.cli.setup:panels", "List or show panels of personas."),
            "hierarchies": ("consilience.cli.setup:hierarchies", "List or show hierarchies of roles."),
            "schema": ("consilience.cli.setup:schema", "The JSON Schemas of reports and exported events."),
            "doctor": ("consilience.cli.doctor:doctor", "What is here, what is missing, which model would be taken."),
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


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"consilience {version('consilience')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    """Put a question before several language-model agents and get an answer with its dissent, its cost and a record that
    replays. Every command explains itself: consilience COMMAND --help."""


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _unread() -> TextIO:
    """A pipe whose reader has left, which is what a closed output comes to."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def main() -> None:
    """The console script."""
    gc.set_threshold(50_000, 20, 20)  # going on from a long journal makes many lasting objects and hardly a cycle
    sys.stdout = sys.stdout or _unread()  # there is none where it was closed (>&-)
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character the terminal lacks must not cost the report
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # what it cannot take is known here rather than when nobody can say it
    except OSError as error:
        from consilience.cli.errors import exit_code_of

        sys.exit(exit_code_of(error))
