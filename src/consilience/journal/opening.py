"""Opening the file of a SQLite journal: for writing, or where that cannot be, for reading; and saying what is wrong with it."""

from __future__ import annotations

import base64
import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from consilience.domain.errors import NewerSchema, StoreUnusable
from consilience.domain.events import SCHEMA_VERSION
from consilience.domain.places import make_private
from consilience.journal import removal

TABLES = """
CREATE TABLE IF NOT EXISTS sessions(n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, created INTEGER NOT NULL,
  holder TEXT);
CREATE TABLE IF NOT EXISTS events(session INTEGER NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY(session, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS in_flight(session INTEGER NOT NULL, key TEXT NOT NULL, agent TEXT NOT NULL, place TEXT NOT NULL,
  PRIMARY KEY(session, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts(id BLOB PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS prompts(id BLOB PRIMARY KEY, base BLOB, added TEXT NOT NULL) WITHOUT ROWID;
"""

_PATIENCE = 30.0
"""Seconds to wait for another process's commit."""
_making = threading.Lock()
_NO_PLACE = (
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
    """For writing and for reading, the same for a journal in memory; makes what is missing.

    Raises `StoreUnusable` and `NewerSchema`.
    """
    writer = _connect(path)
    if path == ":memory:":
        return writer, writer
    try:
        return writer, _connect(path)
    except BaseException:
        writer.close()
        raise


def _connect(path: str) -> sqlite3.Connection:
    db: sqlite3.Connection | None = None
    try:
        if path != ":memory:":
            _make_file(Path(path))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=_PATIENCE)
        version = _check_version(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA secure_delete=ON")  # what is removed is overwritten
        removal.teach(db, raw_id)
        db.executescript(TABLES)
        _write_version(db, version)
    except BaseException as error:
        if db is not None:
            db.close()
        if isinstance(error, OSError | sqlite3.Error | UnicodeDecodeError):
            raise unusable(path, error) from error
        raise
    return db


def _make_file(place: Path) -> None:
    """An empty file for its owner only, where there is none. Raises `OSError`.

    A file that is there is never opened here: closing it would drop every lock that this process has on it, also those by which
    SQLite tells other processes that its log is in use, and they would throw the log away. For the same reason nobody in this
    process may connect before a file that is being made is closed.
    """
    if place.is_dir():
        raise IsADirectoryError("it is a directory")
    make_private(place.parent)
    with _making, suppress(FileExistsError):
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def connect_to_read(path: str, refused: StoreUnusable) -> sqlite3.Connection:
    """For reading what is there, where `refused` is why it cannot be written. Raises `refused` where that is no help."""
    if path == ":memory:" or not _lacks_place(refused) or not os.path.isfile(path):
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
            _check_version(db, path)
            db.execute("SELECT COUNT(*) FROM sessions").fetchone()
            removal.teach(db, raw_id)
        except BaseException as error:
            if db is not None:
                db.close()
            if not isinstance(error, sqlite3.Error):
                raise
        else:
            return db
    raise refused


def _write_version(db: sqlite3.Connection, version: int) -> None:
    """Also where it stands already: that tells whether the journal can be written. While somebody else writes it can be."""
    if version == SCHEMA_VERSION:
        db.execute("PRAGMA busy_timeout=100")
    try:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    except sqlite3.OperationalError as error:
        if version < SCHEMA_VERSION or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
    db.execute(f"PRAGMA busy_timeout={_PATIENCE * 1000:.0f}")


def _check_version(db: sqlite3.Connection, path: str) -> int:
    """The version of a journal that can be read. Raises `NewerSchema`."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"the journal was written by a later version (schema {version}; this one reads up to {SCHEMA_VERSION})",
            where=path,
            do="Upgrade consilience, or name another place with CONSILIENCE_HOME.",
        )
    return int(version)


def _lacks_place(refused: StoreUnusable) -> bool:
    """Whether it was for want of space or rights, and not for what the file holds."""
    cause = refused.__cause__
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _NO_PLACE
    return isinstance(cause, OSError)


def unusable(path: str, error: Exception) -> StoreUnusable:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    unread = not code and isinstance(
        error, ValueError | sqlite3.OperationalError
    )  # Python's own: it is no text, no event
    if damaged or unread:
        return StoreUnusable(  # without the error's words, which may quote the record
            "the journal cannot be used, since the file is damaged or no journal",
            where=path,
            do="Restore a copy of it, or move it away and begin a new one.",
        )
    if code == sqlite3.SQLITE_BUSY:
        return StoreUnusable(
            f"another process has been writing to the journal for {_PATIENCE:.0f} seconds",
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
