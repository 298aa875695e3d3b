"""Code that recorded settings name for import: that of another person's journal needs the user's own word."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from consilience.domain.errors import SettingsError
from consilience.domain.events import SessionStarted
from consilience.domain.messages import CODE
from consilience.domain.paths import is_own_journal
from consilience.engine.protocol import Protocol, recorded_protocol
from consilience.journal.store import Store


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
