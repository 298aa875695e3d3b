"""Opening the file of a SQLite journal, for writing or else for reading, and what is wrong with it.

Tables are checked when it is opened, records before their absence is believed.
"""

from __future__ import annotations

import base64
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from consilience.domain.errors import NewerSchema, StoreUnusable
from consilience.domain.events import SCHEMA_VERSION
from consilience.domain.paths import check_home, close_home, close_journal, data_dir, make_private, note_journal
from consilience.journal import removal
from consilience.journal.migrations import migrate

_BUSY_SECONDS = 30.0
"""Seconds to wait for another process's commit."""
_making = threading.Lock()
_SPACE_OR_RIGHTS_CODES = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)


def raw_id(id: str) -> bytes:
    """The key of a text's or prompt's row; of what is no id, as a damaged event may name it, one that no row has."""
    try:
        return base64.urlsafe_b64decode(id + "==")
    except ValueError:
        return id.encode("utf-8", "replace")


def connect_twice(path: str) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """For writing and for reading, the same for a journal in memory. Makes the journal if there is none, for its owner only.

    Raises `StoreUnusable` and `NewerSchema`, and `SettingsError` for a home of another user.
    """
    writer = _connect(path)
    if path == ":memory:":
        return writer, writer
    note_journal(path)
    try:
        reader = _connect(path)
    except BaseException:
        writer.close()
        raise
    close_journal(path)
    return writer, reader


def _connect(path: str) -> sqlite3.Connection:
    db: sqlite3.Connection | None = None
    try:
        if path != ":memory:":
            _make_file(Path(path))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
        version = _check_version(db, path)
        if version:
            check_tables(db, path)
        else:
            check_new(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA secure_delete=ON")  # what is removed is overwritten
        removal.register_sql_functions(db, raw_id)
        if version == SCHEMA_VERSION:
            _check_writable(db)
        else:
            migrate(db)
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, OSError | sqlite3.Error | UnicodeDecodeError):
            raise store_error(path, error) from error
        raise
    return db


def identity(path: str) -> tuple[int, int] | None:
    """Device and number of the file at a path, None where there is none or an empty one. Never opens it: see `_make_file`."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_size else None


def check_there(path: str, opened: tuple[int, int] | None) -> None:
    """Raise `StoreUnusable` where the path no longer leads to the file that was opened: what is committed there is lost."""
    if opened is not None and identity(path) != opened:
        raise StoreUnusable(
            "the journal was removed, replaced or emptied while it was in use; what is written now would be lost",
            where=path,
            do="Put the file back, or begin anew, and leave the journal alone while something runs.",
        )


def _make_file(place: Path) -> None:
    """An empty file for its owner only, where there is none. Raises `OSError`.

    A file that is there is never opened here: closing it would drop every lock that this process has on it, also those by which
    SQLite tells other processes that its log is in use, and they would throw the log away. For the same reason nobody in this
    process may connect before a file that is being made is closed.
    """
    if place.is_dir():
        raise IsADirectoryError("it is a directory")
    at_home = os.path.realpath(place.parent) == os.path.realpath(data_dir())
    if at_home:
        check_home()
    make_private(place.parent)
    if at_home:
        close_home()
    with _making, suppress(FileExistsError):
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def connect_reader(path: str) -> sqlite3.Connection:
    """One more connection that only reads, to a journal that is open for writing."""
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
        db.execute("PRAGMA query_only=ON")
        removal.register_sql_functions(db, raw_id)
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    return db


def connect_to_read(path: str, refused: StoreUnusable) -> sqlite3.Connection:
    """For reading what is there, where `refused` is why it cannot be written. Raises `refused` where that is no help."""
    if path == ":memory:" or not _is_space_or_rights_error(refused) or not os.path.isfile(path):
        raise refused
    log = Path(f"{path}-wal")
    file = f"file:{quote(os.path.abspath(path))}"
    # What the log holds is read by an index beside it, which a reader has to make or, having the file to itself, keeps in memory.
    # Without a log nobody is writing, and the file stands for itself.
    logged = log.exists() and log.stat().st_size > 0
    ways = (
        [(f"{file}?mode=ro", ""), (f"{file}?mode=rw", "EXCLUSIVE")] if logged else [(f"{file}?mode=ro&immutable=1", "")]
    )
    for uri, locking in ways:
        db: sqlite3.Connection | None = None
        try:
            db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1)
            if locking:
                db.execute(f"PRAGMA locking_mode={locking}")
            db.execute("PRAGMA temp_store=MEMORY")
            db.execute("PRAGMA query_only=ON")
            if not _check_version(db, path):
                raise refused
            check_tables(db, path)
            removal.register_sql_functions(db, raw_id)
        except BaseException as error:
            if db is not None:
                db.close()
            if not isinstance(error, sqlite3.Error):
                raise
        else:
            return db
    raise refused


def _check_writable(db: sqlite3.Connection) -> None:
    """Raise `sqlite3.Error` unless the journal can be written. Another process that writes it now proves that it can be."""
    db.execute("PRAGMA busy_timeout=100")
    try:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
    db.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000:.0f}")


def _check_version(db: sqlite3.Connection, path: str) -> int:
    """The version of a journal that can be read. Raises `NewerSchema`."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise newer_schema(version, path)
    return int(version)


def newer_schema(version: int, path: str) -> NewerSchema:
    return NewerSchema(
        f"the journal was written by a later version (schema {version}; this one reads up to {SCHEMA_VERSION})",
        where=path,
        do="Upgrade consilience, or name another place with CONSILIENCE_HOME.",
    )


def schema_of(body: str) -> int:
    """The schema version that an event names, also one that cannot be read otherwise; 0 where it names none."""
    found = re.search(r'"schema_version": ?(\d{1,9})\b', body) if '"session_started"' in body[:200] else None
    return int(found[1]) if found else 0


def _is_space_or_rights_error(refused: StoreUnusable) -> bool:
    """Whether it was for want of space or rights, and not for what the file holds."""
    cause = refused.__cause__
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SPACE_OR_RIGHTS_CODES
    return isinstance(cause, OSError)


def store_error(path: str, error: Exception) -> StoreUnusable:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    unread = not code and isinstance(
        error, ValueError | sqlite3.OperationalError
    )  # Python's own: it is no text, no event
    misplaced = code == sqlite3.SQLITE_ERROR and "malformed JSON" in str(error)  # what stands where an event should
    if damaged or unread or misplaced:
        return StoreUnusable(  # without the error's words, which may quote the record
            "the journal cannot be used, since the file is damaged or no journal",
            where=path,
            do=RECOVERY,
        )
    if code == sqlite3.SQLITE_BUSY:
        return StoreUnusable(
            f"another process has been writing to the journal for {_BUSY_SECONDS:.0f} seconds",
            where=path,
            do="Wait for it, or go on with it if it is stopped (fg), then try again; what was committed is kept.",
        )
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        why = "it is a directory" if isinstance(error, IsADirectoryError) else "a file is in its way"
        return StoreUnusable(
            f"the journal cannot be there: {why}",
            where=path,
            do="Name another file, or another directory with CONSILIENCE_HOME.",
        )
    return StoreUnusable(
        f"the journal cannot be used: {error}",
        where=path,
        do="Free space or rights there, or name another place with CONSILIENCE_HOME, then try again; what was committed is kept.",
    )


COLUMNS: Mapping[str, frozenset[str]] = {
    "sessions": frozenset({"n", "id", "created", "holder"}),
    "events": frozenset({"session", "seq", "body"}),
    "in_flight": frozenset({"session", "key", "agent", "place"}),
    "texts": frozenset({"id", "body"}),
    "prompts": frozenset({"id", "base", "added"}),
}
"""Of every table that a journal has."""

RECORDS = ("sessions", "events", "in_flight")
"""Tables whose rows nothing else vouches for; texts and prompts are known by their digests, and missed by their ids."""

RECOVERY = (
    "Restore a copy of it, or move it away and begin a new one. To recover what can be read, copy its directory first, then "
    "use SQLite's own program: sqlite3 DAMAGED .recover | sqlite3 journal.db"
)
"""What to do about a damaged journal."""

_SCHEMA = """
SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"""

Rows = Callable[[str], Sequence[tuple[object, ...]]]
"""Runs a statement that only reads."""


def damaged(path: str, how: str) -> StoreUnusable:
    return StoreUnusable(f"the journal is damaged: {how}", where=path, do=RECOVERY)


def check_new(db: sqlite3.Connection, path: str) -> None:
    """Raise `StoreUnusable` for a database without a version that is no journal, or is one and had a version."""
    tables = _tables(db)
    if stranger := next((name for name in tables if name not in (*COLUMNS, "held")), None):
        raise _foreign(path, stranger)
    recorded = any(db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in tables)
    if recorded and not db.execute("PRAGMA user_version").fetchone()[0]:  # unless another process has just made it
        raise damaged(path, "it has records and no version")


def check_tables(db: sqlite3.Connection, path: str) -> None:
    """Raise `StoreUnusable` unless all tables are there with their columns. Takes 0.1 ms."""
    tables = _tables(db)
    if tables and tables.keys().isdisjoint(COLUMNS):
        raise _foreign(path, next(iter(tables)))
    for name, columns in COLUMNS.items():
        if name not in tables:
            raise damaged(path, f"the table {name} is missing")
        if missing := columns - tables[name]:
            raise damaged(path, f"the table {name} has no column {min(missing)}")


def _foreign(path: str, table: str) -> StoreUnusable:
    return StoreUnusable(
        f"the file is a database of another program: it has a table {table!r:.80}",
        where=path,
        do="Name another file, or another directory with CONSILIENCE_HOME.",
    )


def _tables(db: sqlite3.Connection) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for table, column in db.execute(_SCHEMA):
        found.setdefault(table, set()).add(column)
    return found


def check_records(rows: Rows, path: str) -> None:
    """Raise `StoreUnusable` unless sessions and events are whole. Takes time in proportion to all events of the journal.

    `quick_check` would be faster and does not see that two pages were exchanged: it does not compare keys.
    """
    for table in RECORDS:
        _check(rows, f"PRAGMA integrity_check({table})", path)


def check_all(rows: Rows, path: str) -> None:
    """The same for the whole file."""
    _check(rows, "PRAGMA integrity_check(10)", path)


def _check(rows: Rows, statement: str, path: str) -> None:
    found = [str(row[0]) for row in rows(statement)]
    if found != ["ok"]:
        raise damaged(path, re.sub(r"\*\*\* in database main \*\*\*|\s+", " ", found[0]).strip()[:200] if found else "")
