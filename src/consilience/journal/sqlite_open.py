"""Opens the file of a SQLite journal, for writing or else for reading, and describes what is wrong with it.

Tables are checked when it is opened, records before they are reported as missing.
"""

from __future__ import annotations

import binascii
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

from consilience.domain.errors import CommitFailed, NewerSchema, StoreUnusable
from consilience.domain.events import SCHEMA_VERSION
from consilience.domain.paths import check_home, close_home, close_journal, data_dir, make_private, note_journal

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
    """Return the key of a text's or prompt's row. An invalid id, from a damaged event, gives a key that no row has."""
    try:
        return binascii.a2b_base64(id.replace("-", "+").replace("_", "/") + "==")
    except ValueError:
        return id.encode("utf-8", "replace")


_ID = re.compile(r"(?<![\w-])[\w-]{21}[AQgw](?![\w-])", re.ASCII)
"""16 bytes in base64. Only two bits of the last character count, so few words of that length match."""


def ids_in(record: str) -> list[str]:
    """Return everything in a stored record that has the form of an id of a text or prompt."""
    return _ID.findall(record)


def _register_sql_functions(db: sqlite3.Connection) -> None:
    """Register the functions that the removal's statements use."""
    db.create_function("ids_in", 1, lambda record: json.dumps(ids_in(record)), deterministic=True)
    db.create_function("raw_id", 1, raw_id, deterministic=True)


def connect_twice(path: str) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Return connections for writing and reading (one for a journal in memory). Creates a missing journal for its owner only.

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
            check_tables(db, path, _migrate(db, version))
        else:
            check_new(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA secure_delete=ON")  # what is removed is overwritten
        _register_sql_functions(db)
        if version:
            _check_writable(db)
        else:
            _create_tables(db)
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, OSError | sqlite3.Error | UnicodeDecodeError):
            raise store_error(path, error) from error
        raise
    return db


def identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file at a path; None if it is missing or empty. Never opens it: see `_make_file`."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status.st_size else None


def check_there(path: str, opened_identity: tuple[int, int] | None) -> None:
    """Raise `StoreUnusable` if the path no longer leads to the opened file: commits would be lost."""
    if opened_identity is not None and identity(path) != opened_identity:
        raise StoreUnusable(
            "the journal was removed, replaced or emptied while it was in use; what is written now would be lost",
            where=path,
            do="Put the file back, or start again, and do not change the journal while a session runs.",
        )


def _make_file(place: Path) -> None:
    """Create an empty file for its owner only, if there is none. Raises `OSError`.

    An existing file is never opened here: closing it would drop every lock of this process on it, including those that tell other
    processes that SQLite's log is in use, and they would delete the log. For the same reason no thread of this process may
    connect before a new file is closed.
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
    """Return a further connection for reading, to a journal that is open for writing."""
    try:
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS)
        db.execute("PRAGMA query_only=ON")
        _register_sql_functions(db)
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    return db


def connect_to_read(path: str, refused: StoreUnusable) -> sqlite3.Connection:
    """Return a connection for reading a journal that cannot be written because of `refused`. Raises `refused` if it is
    unreadable."""
    if path == ":memory:" or not _is_space_or_rights_error(refused) or not os.path.isfile(path):
        raise refused
    log = Path(f"{path}-wal")
    file = f"file:{quote(os.path.abspath(path))}"
    # The log is read with an index file, which a reader must create or, with exclusive access, keep in memory.
    # Without a log no process is writing, and the file is complete.
    logged = log.exists() and log.stat().st_size > 0
    attempts = (
        [(f"{file}?mode=ro", ""), (f"{file}?mode=rw", "EXCLUSIVE")] if logged else [(f"{file}?mode=ro&immutable=1", "")]
    )
    for uri, locking in attempts:
        db: sqlite3.Connection | None = None
        try:
            db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=1)
            if locking:
                db.execute(f"PRAGMA locking_mode={locking}")
            db.execute("PRAGMA temp_store=MEMORY")
            db.execute("PRAGMA query_only=ON")
            version = _check_version(db, path)
            if not version or version + 1 in MIGRATIONS:
                raise refused
            check_tables(db, path, version)
            _register_sql_functions(db)
        except BaseException as error:
            if db is not None:
                db.close()
            if not isinstance(error, sqlite3.Error):
                raise
        else:
            return db
    raise refused


def _check_writable(db: sqlite3.Connection) -> None:
    """Raise `sqlite3.Error` unless the journal can be written. If another process is writing it now, it can be."""
    db.execute("PRAGMA busy_timeout=100")
    try:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
    db.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000:.0f}")


def _create_tables(db: sqlite3.Connection) -> None:
    """Create all tables, or none. Raises `sqlite3.Error`."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for name, declaration in TABLES.items():  # another process may have created them meanwhile
            db.execute(f"CREATE TABLE IF NOT EXISTS {name}{declaration}")
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _migrate(db: sqlite3.Connection, version: int) -> int:
    """Bring a journal of an older schema to this one, wholly or not at all. Return its version, which stays as it is for one that
    is too old or of another program. Raises `sqlite3.Error`."""
    if version + 1 not in MIGRATIONS or not _tables(db).keys() >= set(RECORDS):
        return version
    db.execute("BEGIN IMMEDIATE")
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()  # another process may have done it meanwhile
        while version + 1 in MIGRATIONS:
            version += 1
            for statement in MIGRATIONS[version]:
                db.execute(statement)
        db.execute(f"PRAGMA user_version={version}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return int(version)


def _check_version(db: sqlite3.Connection, path: str) -> int:
    """Return the schema version of the journal; 0 for a new one. Raises `NewerSchema`."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise newer_schema(version, path)
    return int(version)


def newer_schema(version: int, path: str) -> NewerSchema:
    return NewerSchema(
        f"the journal was written by a later version (schema {version}; this one reads {SCHEMA_VERSION})",
        where=path,
        do="Upgrade consilience, or set another directory with CONSILIENCE_HOME.",
    )


def schema_of(body: str) -> int:
    """Return the schema version in an event, also in an otherwise unreadable one; 0 if it has none."""
    version = re.search(r'"schema_version": ?(\d{1,9})\b', body) if '"session_started"' in body[:200] else None
    return int(version[1]) if version else 0


def _is_space_or_rights_error(refused: StoreUnusable) -> bool:
    """Return whether the cause was missing space or rights, not the contents of the file."""
    cause = refused.__cause__
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _SPACE_OR_RIGHTS_CODES
    return isinstance(cause, OSError)


def store_error(path: str, error: Exception) -> StoreUnusable:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    is_unreadable = not code and isinstance(
        error, ValueError | sqlite3.OperationalError
    )  # Python's own: it is no text, no event
    misplaced = code == sqlite3.SQLITE_ERROR and "malformed JSON" in str(error)  # what stands where an event should
    if damaged or is_unreadable or misplaced:
        return StoreUnusable(  # without the error's words, which may quote the record
            "the journal cannot be used, since the file is damaged or not a journal",
            where=path,
            do=RECOVERY,
        )
    if code == sqlite3.SQLITE_BUSY:
        return StoreUnusable(
            f"another process has been writing to the journal for {_BUSY_SECONDS:.0f} seconds",
            where=path,
            do="Wait for it, or continue it if it is stopped (fg), then try again; what was committed is kept.",
        )
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        reason = "it is a directory" if isinstance(error, IsADirectoryError) else "a file is in its way"
        return StoreUnusable(
            f"the journal cannot be stored there: {reason}",
            where=path,
            do="Name another file, or another directory with CONSILIENCE_HOME.",
        )
    return StoreUnusable(
        f"the journal cannot be used: {getattr(error, 'strerror', None) or error}",
        where=path,
        do="Free space or rights there, or name another directory with CONSILIENCE_HOME that has a copy of this one's files, "
        "then try again; what was committed is kept.",
    )


def commit_error(path: str, error: Exception) -> StoreUnusable:
    """Return the error of a commit: a later one may succeed, unless the file is damaged."""
    unusable = store_error(path, error)
    if unusable.do == RECOVERY:
        return unusable
    return CommitFailed(unusable.what, where=unusable.where, do=unusable.do)


TABLES: Mapping[str, str] = {
    "sessions": "(n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, created INTEGER NOT NULL, holder TEXT, "
    "owner TEXT NOT NULL DEFAULT '', name TEXT NOT NULL DEFAULT '')",
    "events": "(session INTEGER NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY(session, seq)) WITHOUT ROWID",
    "in_flight": "(session INTEGER NOT NULL, key TEXT NOT NULL, agent TEXT NOT NULL, place TEXT NOT NULL, "
    "PRIMARY KEY(session, key)) WITHOUT ROWID",
    "texts": "(id BLOB PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    "prompts": "(id BLOB PRIMARY KEY, base BLOB, added TEXT NOT NULL) WITHOUT ROWID",
    "held": "(session INTEGER PRIMARY KEY, seconds REAL NOT NULL)",
    "arrivals": "(session INTEGER NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL, digest TEXT NOT NULL, "
    "completion TEXT NOT NULL, PRIMARY KEY(session, key)) WITHOUT ROWID",
    "mail": "(n INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, "
    "text TEXT NOT NULL, sender TEXT NOT NULL)",
    "claims": "(session INTEGER NOT NULL, call TEXT NOT NULL, owner TEXT NOT NULL, day TEXT NOT NULL, amount INTEGER NOT NULL, "
    "PRIMARY KEY(session, call)) WITHOUT ROWID",
    "links": "(n INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL, kind TEXT NOT NULL, agent TEXT NOT NULL, "
    "digest TEXT UNIQUE NOT NULL, until REAL NOT NULL, sender TEXT NOT NULL)",
    "opinions": "(link INTEGER PRIMARY KEY, session INTEGER NOT NULL, vote TEXT NOT NULL, "
    "objection TEXT NOT NULL, given REAL NOT NULL)",
    "spent": "(owner TEXT NOT NULL, day TEXT NOT NULL, amount INTEGER NOT NULL, PRIMARY KEY(owner, day)) WITHOUT ROWID",
}
"""The declaration of every table. `held`: how long processes held a session; `arrivals`: replies until the end of their attempt is
recorded; `mail`: letters until the process that runs the session takes them; `claims` and `spent`: see `SqliteAccounts`. A change
is a new `SCHEMA_VERSION`, with its `MIGRATIONS`."""

MIGRATIONS: Mapping[int, Sequence[str]] = {
    4: (
        *(f"CREATE TABLE IF NOT EXISTS {name}{TABLES[name]}" for name in ("mail", "claims", "spent")),
        "ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    ),
    5: ("ALTER TABLE sessions ADD COLUMN name TEXT NOT NULL DEFAULT ''",),
    6: (f"CREATE TABLE IF NOT EXISTS links{TABLES['links']}",),
    7: (f"CREATE TABLE IF NOT EXISTS opinions{TABLES['opinions']}",),
}
"""The statements that lead to a schema from the one before. A journal older than the first of these is refused."""

RECORDS = ("sessions", "events", "in_flight")
"""Tables without another check; texts and prompts are verified by their digests."""

RECOVERY = (
    "Restore a copy of it, or move it away and begin a new one. To recover what can be read, copy its directory first, then "
    "use SQLite's own program: sqlite3 DAMAGED .recover | sqlite3 journal.db"
)
"""Advice for a damaged journal."""

_SCHEMA = """
SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"""

Rows = Callable[[str], Sequence[tuple[object, ...]]]
"""Runs a statement that only reads."""


def damaged(path: str, damage: str) -> StoreUnusable:
    return StoreUnusable(f"the journal is damaged: {damage}", where=path, do=RECOVERY)


def check_new(db: sqlite3.Connection, path: str) -> None:
    """Raise `StoreUnusable` for a database without a version that is not a journal, or is one that has lost its version."""
    tables = _tables(db)
    if foreign_table := next((name for name in tables if name not in TABLES), None):
        raise _foreign(path, foreign_table)
    recorded = any(db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in tables)
    if recorded and not db.execute("PRAGMA user_version").fetchone()[0]:  # unless another process has just made it
        raise damaged(path, "it has records and no version")


def check_tables(db: sqlite3.Connection, path: str, version: int) -> None:
    """Raise `StoreUnusable` unless the journal is of this schema, with all tables and their columns. Takes 0.1 ms."""
    tables = _tables(db)
    if tables and tables.keys().isdisjoint(TABLES):
        raise _foreign(path, next(iter(tables)))
    if version < SCHEMA_VERSION:
        raise StoreUnusable(
            f"the journal was written by a development version (schema {version}; this one reads {SCHEMA_VERSION})",
            where=path,
            do="Move it away, and a new one is begun. The version that wrote it still reads it.",
        )
    for name, columns in _expected_columns().items():
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


@cache
def _expected_columns() -> Mapping[str, set[str]]:
    """Return the columns of every table, as SQLite reads their declarations."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        _create_tables(db)
        return _tables(db)


def _tables(db: sqlite3.Connection) -> dict[str, set[str]]:
    tables: dict[str, set[str]] = {}
    for table, column in db.execute(_SCHEMA):
        tables.setdefault(table, set()).add(column)
    return tables


def check_records(rows: Rows, path: str) -> None:
    """Raise `StoreUnusable` unless sessions and events are intact. Takes time in proportion to all events of the journal.

    `quick_check` would be faster, but it does not compare keys and so misses exchanged pages.
    """
    for table in RECORDS:
        _check(rows, f"PRAGMA integrity_check({table})", path)


def check_all(rows: Rows, path: str) -> None:
    """Raise `StoreUnusable` unless the whole file is intact."""
    _check(rows, "PRAGMA integrity_check(10)", path)


def _check(rows: Rows, statement: str, path: str) -> None:
    problems = [str(row[0]) for row in rows(statement)]
    if problems != ["ok"]:
        first = problems[0] if problems else ""
        raise damaged(path, re.sub(r"\*\*\* in database main \*\*\*|\s+", " ", first).strip()[:200])


MAX_CHECKPOINTS = 100
"""Max attempts to empty the log, for about four seconds."""


@contextmanager
def explain_full_disk(outcome: str) -> Iterator[None]:
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


def empty_log(rows: Rows, path: str) -> None:
    """Copy the write-ahead log into the file and truncate it: it contains old pages."""
    ((patience,),) = rows("PRAGMA busy_timeout")
    rows("PRAGMA busy_timeout=20")  # for readers; SQLite does not wait for another checkpoint
    try:
        for _ in range(MAX_CHECKPOINTS):
            ((busy, *_),) = rows("PRAGMA wal_checkpoint(TRUNCATE)")
            if not busy:
                return
            time.sleep(0.02)
    finally:
        rows(f"PRAGMA busy_timeout={patience}")
    raise StoreUnusable(
        "what was removed is still in the write-ahead log, which another process is reading",
        where=f"{path}-wal",
        do="Close whatever reads the journal, then run: consilience sessions gc",
    )
