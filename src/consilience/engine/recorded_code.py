"""Code to import and programs to start that a session names: those of another person's journal need the user's own word."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.events import SessionStarted
from consilience.domain.messages import CODE
from consilience.domain.paths import is_own_journal
from consilience.engine.protocol import Protocol, recorded_protocol
from consilience.engine.seats import Models, SeatModel
from consilience.journal.store import Store
from consilience.models.registry import ProgramName, parse


def code_named(cls: type[Protocol], settings: Mapping[str, object]) -> list[str]:
    """Return what settings name as `module:attribute` to import. Entry points are installed, so they count as the user's."""
    values = [
        value for key, value in settings.items() if key in cls.model_fields and CODE in cls.model_fields[key].metadata
    ]
    texts = [text for value in values for text in (value if isinstance(value, list | tuple) else [value])]
    return [str(text) for text in texts if ":" in str(text)]


def foreign_code(started: SessionStarted, store: Store) -> list[str]:
    """Return the code to import that a session names, if its journal lies outside of the user's own directory.

    Modules that this process has imported do not count.
    """
    names = code_named(recorded_protocol(started.protocol), started.settings)
    names = [name for name in names if name.partition(":")[0] not in sys.modules]
    return [] if not names or is_own_journal(store.path) else names


def check_code(started: SessionStarted, store: Store) -> None:
    """Raise `SettingsError` for `foreign_code`."""
    if names := foreign_code(started, store):
        raise SettingsError(
            f"the session would import code that another journal than your own has recorded: {', '.join(names)}",
            where=store.path,
            do="If you trust it, import its module in your program before, or run the command at a terminal.",
        )


def check_programs(
    agents: Sequence[Agent], models: Models | None, store: Store, replace: Mapping[str, SeatModel] | None = None
) -> None:
    """Raise `SettingsError` for programs that recorded agents would start, if the journal lies outside of the user's own directory
    and the caller names no other models for them, in `models` or `replace`. Whoever names a program may start it."""
    named = {*(models if isinstance(models, Mapping) else ()), *(replace or ())}
    seated = [agent for agent in agents if agent.id not in named and (models is None or agent.own_model)]
    programs = dict.fromkeys(
        link.text for agent in seated for link in parse(agent.model).links if isinstance(link, ProgramName)
    )
    if programs and not is_own_journal(store.path):
        raise SettingsError(
            f"the session would start programs that another journal than your own has recorded: {', '.join(programs)}",
            where=store.path,
            do="If you trust them, name them yourself, model={AGENT: PROGRAM}, or run the command at a terminal.",
        )
