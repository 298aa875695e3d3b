"""Removal from a SQLite journal."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from consilience.domain.errors import StoreUnusable

if TYPE_CHECKING:
    from consilience.journal.sqlite import SqliteStore

# Texts and prompts belong to all sessions that refer to them. References are not read from known fields of events, because a new
# field could be forgotten: everything in a record that has the form of an id counts as a reference.

MAX_CHECKPOINTS = 100
"""Max attempts to empty the log, for about four seconds."""

_KEPT = """
WITH RECURSIVE
  named(id) AS (
    SELECT DISTINCT raw_id(found.value) FROM events, json_each(ids_in(events.body)) AS found
    WHERE session NOT IN (SELECT value FROM json_each(?1))),
  chain(id, base, added) AS (
    SELECT prompts.id, base, added FROM named JOIN prompts USING (id)
    UNION SELECT prompts.id, prompts.base, prompts.added FROM chain JOIN prompts ON prompts.id = chain.base),
  kept(id) AS (
    SELECT id FROM named UNION SELECT id FROM chain
    UNION SELECT raw_id(found.value) FROM chain, json_each(ids_in(added)) AS found)
"""
"""Ids that sessions refer to, except the sessions whose numbers are in the JSON list `?1`."""

_REMOVE = (
    "DELETE FROM sessions WHERE n IN (SELECT value FROM json_each(?1))",
    "DELETE FROM events WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM in_flight WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM arrivals WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM mail WHERE session IN (SELECT value FROM json_each(?1))",
    "DELETE FROM held WHERE session IN (SELECT value FROM json_each(?1))",
    f"CREATE TEMP TABLE still AS {_KEPT} SELECT id FROM kept",
    "DELETE FROM texts WHERE id NOT IN (SELECT id FROM still)",
    "DELETE FROM prompts WHERE id NOT IN (SELECT id FROM still)",
    "DROP TABLE still",
)
_WEIGHT = f"""{_KEPT} SELECT
  (SELECT COALESCE(SUM(LENGTH(CAST(body AS BLOB))), 0) FROM events WHERE session IN (SELECT value FROM json_each(?1)))
  + (SELECT COALESCE(SUM(LENGTH(CAST(body AS BLOB))), 0) FROM texts WHERE id NOT IN (SELECT id FROM kept))
  + (SELECT COALESCE(SUM(LENGTH(CAST(added AS BLOB))), 0) FROM prompts WHERE id NOT IN (SELECT id FROM kept))"""


class SqliteAdmin:
    """Removal from a SQLite journal. Removed bytes are overwritten, and gone from the write-ahead log when `remove` returns."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def remove(self, sessions: Collection[str]) -> None:
        store = self._store
        with _explain_full_disk("nothing was removed"), ExitStack() as leases:
            store.must_write()
            store.check_all()  # else texts that only a damaged record refers to would be removed
            journals = []
            for session in dict.fromkeys(sessions):
                journals.append(store.open(session))
                leases.callback(journals[-1].release)
            numbers = json.dumps([journal.number for journal in journals])
            store._writer.put([(statement, (numbers,) if "?1" in statement else ()) for statement in _REMOVE])
            store._writer.flush()
            leases.pop_all()
            for journal in journals:
                journal.lease.discard()
        _empty_log(store)

    def weight(self, sessions: Collection[str]) -> int:
        store = self._store
        store.check_all()
        numbers = [store._number(session) for session in dict.fromkeys(sessions)]
        ((size,),) = store._rows(_WEIGHT, json.dumps(numbers))
        return int(str(size))

    def compact(self) -> int:
        store = self._store
        if store.path == ":memory:":
            return 0
        file = Path(store.path)
        size_before = file.stat().st_size
        with _explain_full_disk("the space of what was removed is not given back"):
            store.must_write()
            store.check_all()
            store._rows("VACUUM")
        _empty_log(store)
        return max(0, size_before - file.stat().st_size)


@contextmanager
def _explain_full_disk(outcome: str) -> Iterator[None]:
    """Explain a full disk: a removal is logged first and compaction rewrites the file, so both need space."""
    try:
        yield
    except StoreUnusable as refused:
        code = getattr(refused.__cause__, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            raise
        raise StoreUnusable(
            f"{outcome}: {refused.what}",
            where=refused.where,
            do="It takes as much room as the journal. Free space there; or move its directory to a disk with room, name that "
            "with CONSILIENCE_HOME, remove there, and move it back.",
        ) from refused


def _empty_log(store: SqliteStore) -> None:
    """Copy the write-ahead log into the file and truncate it: it contains old pages."""
    ((patience,),) = store._rows("PRAGMA busy_timeout")
    store._rows("PRAGMA busy_timeout=20")  # for readers; SQLite does not wait for another checkpoint
    try:
        for _ in range(MAX_CHECKPOINTS):
            ((busy, *_),) = store._rows("PRAGMA wal_checkpoint(TRUNCATE)")
            if not busy:
                return
            time.sleep(0.02)
    finally:
        store._rows(f"PRAGMA busy_timeout={patience}")
    raise StoreUnusable(
        "what was removed is still in the write-ahead log, which another process is reading",
        where=f"{store.path}-wal",
        do="Close whatever reads the journal, then run: consilience sessions gc",
    )
