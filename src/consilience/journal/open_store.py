"""Opens a store by the name of its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consilience.domain.paths import check_store_place, journal_path
from consilience.journal.sqlite import SqliteStore
from consilience.journal.store import Store


def open_store(place: Path | str | None = None, *, writing: bool = False) -> Store:
    """Open or create the store at `place`: a path, or `:memory:`, which keeps nothing.

    None is the user's journal: `CONSILIENCE_JOURNAL` if set, else a file in the data directory. With `writing`, a journal that can
    only be read is refused. Raises `StoreUnusable`, `NewerSchema`, and `SettingsError` for a kind of store that is not installed.
    """
    if isinstance(place, str):
        check_store_place(place)
    return SqliteStore(journal_path() if place is None else place, writing=writing)


@contextmanager
def opened(store: Store | None, *, writing: bool = False) -> Iterator[Store]:
    """The given store, left open; or the user's, opened as `open_store` opens it and closed again."""
    if store is not None:
        yield store
        return
    opened_here = open_store(writing=writing)
    try:
        yield opened_here
    finally:
        opened_here.close()
