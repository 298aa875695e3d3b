"""The options of commands that make a new session from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from consilience.cli.options import CHANGES, Id, SessionRequest, argument, option


@dataclass(frozen=True, kw_only=True)
class InheritingRequest(SessionRequest):
    """Options of every command that makes a new session from another."""

    id: Id
    replace_agent: list[str] | None = option("Another model for one agent. Repeatable.", CHANGES, "ID=MODEL")
    source: list[str] | None = option(
        "A document to add; one with the name of a recorded document replaces it. ID,ID=FILE shows it "
        "to these agents. Repeatable.",
        CHANGES,
        "FILE|DIR|-",
    )


@dataclass(frozen=True, kw_only=True)
class TellRequest(InheritingRequest):
    """Options of `tell`."""

    id: Id  # the first argument
    fact: Annotated[str, argument("The new fact, in a sentence.", "FACT")]


@dataclass(frozen=True, kw_only=True)
class ForkRequest(InheritingRequest):
    """Options of `fork`."""

    id: Id
    at: Annotated[
        str,
        typer.Option(
            help="The last event to keep: its number, a call's key, PHASE/INDEX, 0 or end (show ID --events lists them).",
            metavar="EVENT",
            show_default=False,
            rich_help_panel=CHANGES,
        ),
    ]
    set: list[str] | None = option("A setting of the protocol. Repeatable.", CHANGES, "KEY=VALUE")
    perspective: list[str] | None = option("Another perspective for one agent. Repeatable.", CHANGES, "ID=TEXT")
    task: str | None = option("Another task; @FILE reads it from a file, - from standard input.", CHANGES, "TASK")
