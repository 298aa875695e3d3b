"""Numbered changes to the tables of a SQLite journal. Opening a journal for writing applies the missing ones in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from consilience.domain.events import SCHEMA_VERSION

Migration = Callable[[sqlite3.Connection], None]

MIGRATIONS: list[Migration] = []
"""Migration n, at index n - 1, turns a journal of schema n - 1 into one of schema n. Never edit one that was released."""


def migration(number: int) -> Callable[[Migration], Migration]:
    """Register a migration. It runs inside the transaction of `migrate` and must not commit."""

    def add(change: Migration) -> Migration:
        if number != len(MIGRATIONS) + 1:
            raise ValueError(f"{change.__name__} has number {number}, and the next migration is {len(MIGRATIONS) + 1}")
        MIGRATIONS.append(change)
        return change

    return add


@migration(1)
def create_tables(db: sqlite3.Connection) -> None:
    for table in (
        "sessions(n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, created INTEGER NOT NULL, holder TEXT)",
        "events(session INTEGER NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY(session, seq)) WITHOUT ROWID",
        "in_flight(session INTEGER NOT NULL, key TEXT NOT NULL, agent TEXT NOT NULL, place TEXT NOT NULL, "
        "PRIMARY KEY(session, key)) WITHOUT ROWID",
        "texts(id BLOB PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
        "prompts(id BLOB PRIMARY KEY, base BLOB, added TEXT NOT NULL) WITHOUT ROWID",
    ):
        db.execute(f"CREATE TABLE IF NOT EXISTS {table}")


@migration(2)
def create_time_held(db: sqlite3.Connection) -> None:
    """How long processes held a session. The last journals of schema 1 have the table already."""
    db.execute("CREATE TABLE IF NOT EXISTS held(session INTEGER PRIMARY KEY, seconds REAL NOT NULL)")


@migration(3)
def create_arrivals(db: sqlite3.Connection) -> None:
    """Replies that have arrived, until the end of their attempt is recorded."""
    db.execute(
        "CREATE TABLE IF NOT EXISTS arrivals(session INTEGER NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL, "
        "digest TEXT NOT NULL, completion TEXT NOT NULL, PRIMARY KEY(session, key)) WITHOUT ROWID"
    )


def migrate(db: sqlite3.Connection) -> None:
    """Bring the journal to `SCHEMA_VERSION`, or leave it as it was. Raises `sqlite3.Error`."""
    if len(MIGRATIONS) != SCHEMA_VERSION:
        raise ValueError(f"schema {SCHEMA_VERSION} has {len(MIGRATIONS)} migrations")
    db.execute("BEGIN IMMEDIATE")
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()  # another process may have migrated it meanwhile
        for change in MIGRATIONS[version:]:
            change(db)
        if version < SCHEMA_VERSION:
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
