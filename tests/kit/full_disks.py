"""A journal whose file may not grow, as on a full disk."""

from __future__ import annotations

from consilience.journal.sqlite import SqliteStore


def fill(store: SqliteStore) -> None:
    """Let the journal's file grow no more: SQLite says that the disk is full."""
    ((pages,),) = store._db.execute("PRAGMA page_count")
    store._db.execute(f"PRAGMA max_page_count={pages}")


def free(store: SqliteStore) -> None:
    """Let it grow again."""
    store._db.execute("PRAGMA max_page_count=1000000")
