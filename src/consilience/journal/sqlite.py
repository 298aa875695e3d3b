"""The journal on SQLite: WAL, `synchronous=FULL`, one writer thread, group commit; one file for all sessions, mode 0600."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import to_json

from consilience.domain.errors import SessionBusy, SettingsError, StoreUnusable, UnknownName
from consilience.domain.events import (
    EVENT,
    SCHEMA_VERSION,
    AnswerReceived,
    AnyEvent,
    CallCompleted,
    CallEvent,
    CallLost,
    CallStarted,
    Event,
    SessionFinished,
    SessionParked,
    SessionStarted,
    decode_event,
    text_id,
)
from consilience.journal import sqlite_open
from consilience.journal.lease import FileLease, Lease, MemoryLease, describe_process, live_holder
from consilience.journal.removal import SqliteAdmin
from consilience.journal.sqlite_open import (
    RECOVERY,
    check_all,
    check_records,
    connect_reader,
    connect_to_read,
    connect_twice,
    damaged,
    newer_schema,
    raw_id,
    schema_of,
    store_error,
)
from consilience.journal.store import InFlightCall, OnCommit, PromptParts, ThreadReader, check_name
from consilience.journal.writer import Notice, Statement, Writer

MIN_COMPRESSED_CHARS = 2000
"""Min length of a text that is stored compressed, as bytes."""

MAX_PARAMETERS = 500


def pack(text: str) -> str | bytes:
    """Return a text as it is stored."""
    return text if len(text) < MIN_COMPRESSED_CHARS else zlib.compress(text.encode("utf-8", "surrogatepass"))


def _unpacked(body: object) -> str:
    """Return a stored text; "" for one that cannot be unpacked, whose digest then does not match."""
    try:
        return zlib.decompress(body).decode("utf-8", "surrogatepass") if isinstance(body, bytes) else str(body)
    except (zlib.error, UnicodeDecodeError):
        return ""


MEMORY = ":memory:"


class SqliteRecords:
    """The sessions of one journal file."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self._reader = connection
        self._records_checked = self._all_checked = path == MEMORY

    def sessions(self) -> list[str]:
        found = [str(row[0]) for row in self._rows("SELECT id FROM sessions ORDER BY n")]
        if not found:
            self._check_records()
        return found

    def read(self, session: str, *, after: int = 0) -> list[AnyEvent]:
        sql = "SELECT seq, body FROM events WHERE session=? AND seq>? ORDER BY seq"
        events = self._events(sql, self._number(session), after)
        gap = any(event.seq != seq for seq, event in enumerate(events, after + 1))
        if gap or (not after and not any(isinstance(event, SessionFinished) for event in events)):
            self._check_records()
        if gap:
            raise damaged(self.path, f"events of session {session} are missing")
        return events

    def beginning(self, session: str) -> SessionStarted | None:
        found = self._events("SELECT seq, body FROM events WHERE session=? AND seq=1", self._number(session))
        if not found:
            self._check_records()
        return found[0] if found and isinstance(found[0], SessionStarted) else None

    def _events(self, sql: str, *values: object) -> list[AnyEvent]:
        try:
            rows = self._reader.execute(sql, values)  # one by one: all rows together would take as much memory again
            return [self._event(int(str(seq)), str(body)) for seq, body in rows]
        except (sqlite3.Error, ValueError) as error:  # not a text, number or event
            raise store_error(self.path, error) from error

    def _event(self, seq: int, body: str) -> AnyEvent:
        if seq == 1 and (version := schema_of(body)) > SCHEMA_VERSION:
            raise newer_schema(version, self.path)
        return decode_event(body, seq)

    def flights(self, session: str) -> list[InFlightCall]:
        rows = self._rows("SELECT key, agent, place FROM in_flight WHERE session=?", self._number(session))
        return [InFlightCall(*map(str, row)) for row in rows]

    def parents(self) -> dict[str, str]:
        sql = (
            "SELECT s.id, json_extract(e.body, '$.parent') FROM sessions s JOIN events e ON e.session=s.n AND e.seq=1 "
            "WHERE json_extract(e.body, '$.parent') IS NOT NULL ORDER BY s.n"
        )
        return {str(session): str(parent) for session, parent in self._rows(sql)}

    def created(self, session: str) -> float:
        ((created,),) = self._rows("SELECT created FROM sessions WHERE n=?", self._number(session))
        return int(str(created)) / 1000

    def holder(self, session: str) -> str | None:
        self._number(session)  # raises for an unknown session
        return live_holder(lambda: self._holder(session)) if self.lease(session).is_taken() else None

    def _holder(self, session: str) -> str | None:
        """Return the process that last recorded itself as the holder."""
        rows = self._rows("SELECT holder FROM sessions WHERE id=?", session)
        return str(rows[0][0]) if rows and rows[0][0] else None

    def lease(self, session: str) -> Lease:
        """The lease of a session, not acquired."""
        return FileLease(self.path, session)

    def text(self, id: str) -> str:
        return self.texts([id])[id]

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        by_raw = {raw_id(id): id for id in ids}
        texts = {
            by_raw[raw]: _unpacked(body)
            for raw, body in self._by_id("SELECT id, body FROM texts", by_raw)
            if isinstance(raw, bytes) and raw in by_raw  # a damaged file may return other rows
        }
        for id in ids:
            if id not in texts or text_id(texts[id]) != id:
                raise self._missing("text", id, damaged=id in texts)
        return texts

    def prompt(self, id: str) -> tuple[str, ...]:
        return self.prompts([id])[id]

    def prompts(self, ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        rows: dict[bytes, tuple[bytes | None, list[str]]] = {}
        wanted = {raw_id(id) for id in ids}
        while wanted:
            bases = set()
            for raw, base, added in self._by_id("SELECT id, base, added FROM prompts", wanted):
                if isinstance(raw, bytes):
                    base = base if isinstance(base, bytes) else None
                    rows[raw] = base, self._parts(added)
                    bases.add(base)
            wanted = {base for base in bases if base is not None and base not in rows}
        return {id: self._whole(id, rows) for id in ids}

    def _parts(self, added: object) -> list[str]:
        try:
            return [str(part) for part in json.loads(str(added))]
        except ValueError as error:
            raise store_error(self.path, error) from error

    def _whole(self, id: str, rows: Mapping[bytes, tuple[bytes | None, list[str]]]) -> tuple[str, ...]:
        """Return the parts of a prompt: those of its stored prefix, which may have one itself, and those it adds."""
        pieces: list[list[str]] = []
        raw: bytes | None = raw_id(id)
        while raw is not None and len(pieces) <= len(rows):
            if raw not in rows:
                raise self._missing("prompt", id, damaged=False)
            raw, added = rows[raw]
            pieces.append(added)
        parts = tuple(part for added in reversed(pieces) for part in added)
        if raw is not None or PromptParts(parts).id != id:
            raise self._missing("prompt", id, damaged=True)
        return parts

    def _by_id(self, sql: str, ids: Collection[bytes]) -> Iterator[tuple[object, ...]]:
        wanted = sorted(ids)
        for start in range(0, len(wanted), MAX_PARAMETERS):
            some = wanted[start : start + MAX_PARAMETERS]
            yield from self._rows(f"{sql} WHERE id IN ({','.join('?' * len(some))})", *some)

    def _missing(self, kind: str, id: str, *, damaged: bool) -> StoreUnusable:
        return StoreUnusable(f"{kind} {id} is {'damaged' if damaged else 'missing'}", where=self.path, do=RECOVERY)

    def _number(self, session: str) -> int:
        row = next(iter(self._rows("SELECT n FROM sessions WHERE id=?", session)), None)
        if row is None:
            import difflib

            self._check_records()
            known = self.sessions()
            close = difflib.get_close_matches(session, known, 3) or known[-3:]
            raise UnknownName(
                f"there is no session {session!r}",
                where=self.path,
                do=f"Known sessions: {', '.join(close)}." if close else "No session was recorded yet.",
            )
        return int(str(row[0]))

    def _check_records(self) -> None:
        """Raise `StoreUnusable` if sessions or events are damaged."""
        if not self._records_checked:
            check_records(self._rows, self.path)
            self._records_checked = True

    def check_all(self) -> None:
        """Raise `StoreUnusable` if anything in the file is damaged."""
        if not self._all_checked:
            check_all(self._rows, self.path)
            self._all_checked = True

    def _rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            return self._reader.execute(sql, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise store_error(self.path, error) from error


LEASE_PROBE_SECONDS = 0.2
"""How long to wait for a process that takes a lease only to learn its holder."""

ADD_EVENT = "INSERT INTO events VALUES(?,?,?)"
ADD_IN_FLIGHT = "INSERT OR REPLACE INTO in_flight VALUES(?,?,?,?)"
END_IN_FLIGHT = "DELETE FROM in_flight WHERE session=? AND key=?"
NOTE_SECONDS = "INSERT OR REPLACE INTO held VALUES(?,?)"
ADD_TEXT = "INSERT OR IGNORE INTO texts VALUES(?,?)"
ADD_PROMPT = "INSERT OR IGNORE INTO prompts VALUES(?,?,?)"


INDEX_REPLIES = """
CREATE INDEX IF NOT EXISTS replies ON events(json_extract(body, '$.digest'))
WHERE json_extract(body, '$.type') = 'call_completed'"""
FIND_REPLY = """
SELECT body FROM events
WHERE json_extract(body, '$.digest') = ? AND json_extract(body, '$.type') = 'call_completed'
  AND json_extract(body, '$.inherited') IS NULL
ORDER BY session DESC, seq DESC LIMIT 1"""


class SqliteStore(SqliteRecords):
    """Opens or creates the journal at `path`; `":memory:"` keeps nothing after `close`.

    A journal that cannot be written, on a full or read-only disk, is opened for reading, and writing to it raises `StoreUnusable`.
    With `writing` that is raised here. Raises `StoreUnusable` also if the path is unusable or a table is missing, `NewerSchema` if
    a later version wrote it, `SettingsError` in a home of another user.

    Before a record is first reported as missing, the file is checked for damage.
    """

    def __init__(self, path: Path | str, *, writing: bool = False) -> None:
        # The absolute path without links: the process may change its directory, and the leases are next to the file itself.
        path = MEMORY if str(path) == MEMORY else os.path.realpath(path)
        self.refused: StoreUnusable | None = None
        """Why the journal cannot be written; None if it can."""
        try:
            self._db, connection = connect_twice(path)
        except StoreUnusable as refused:
            if writing:
                raise
            self._db = connection = connect_to_read(path, refused)
            self.refused = refused
        super().__init__(path, connection)
        self._replies_indexed = False
        self._file = None if path == MEMORY else sqlite_open.identity(path)
        self._writer = Writer(self._execute, Path(path).name)
        self._memory_leases: dict[str, MemoryLease] = {}
        self.reader = ThreadReader(self._connect_reader)
        self.admin = SqliteAdmin(self)

    def _connect_reader(self) -> SqliteRecords:
        if self.path == MEMORY or self.refused:  # a connection to a log without an index excludes all others
            return self
        return SqliteRecords(self.path, connect_reader(self.path))

    def create(self, session: str) -> SqliteJournal:
        check_name(session)
        self.must_write()
        lease = self.lease(session)
        if not lease.acquire(patience=LEASE_PROBE_SECONDS):
            raise self._already_exists(session)
        try:
            if self._rows("SELECT n FROM sessions WHERE id=?", session):
                raise self._already_exists(session)
            self._execute_now("INSERT INTO sessions(id, created) VALUES(?,?)", (session, time.time_ns() // 1_000_000))
            return self._lease_journal(session, lease)
        except BaseException:
            lease.release()
            raise

    def open(self, session: str) -> SqliteJournal:
        number = self._number(session)
        lease = self.lease(session)
        if self.refused:  # only reading is possible, so no lease is needed
            return SqliteJournal(self, session, number, lease)
        if not lease.acquire(patience=LEASE_PROBE_SECONDS):
            raise SessionBusy(
                f"session {session} is being run by {live_holder(lambda: self._holder(session))}",
                where=self.path,
                do="Wait for it to end, or stop that process; then try again.",
            )
        try:
            return self._lease_journal(session, lease)
        except BaseException:
            lease.release()
            raise

    def _lease_journal(self, session: str, lease: Lease) -> SqliteJournal:
        """Return the session's journal under its lease. Raises `UnknownName` if it was removed before the lease was acquired."""
        number = self._number(session)
        self._execute_now("UPDATE sessions SET holder=? WHERE n=?", (describe_process(), number))
        return SqliteJournal(self, session, number, lease)

    def _already_exists(self, session: str) -> SettingsError:
        return SettingsError(
            f"there is a session {session!r} already", where=self.path, do="Choose another id, or resume it."
        )

    def lease(self, session: str) -> Lease:
        return MemoryLease(session, self._memory_leases) if self.path == MEMORY else FileLease(self.path, session)

    def reply(self, digest: str) -> CallCompleted | None:
        if not self._replies_indexed:
            self._execute_now(INDEX_REPLIES, ())
            self._replies_indexed = True
        row = next(iter(self._rows(FIND_REPLY, digest)), None)
        try:
            found = EVENT.validate_json(str(row[0])) if row else None
        except ValidationError as error:
            raise store_error(self.path, error) from error
        return found if isinstance(found, CallCompleted) else None

    def answer(self, session: str, key: str, text: str, by: str = "") -> None:
        journal = self.open(session)
        try:
            awaited = {flight.key for flight in self.flights(session)}
            awaited |= {k for e in self.read(session) if isinstance(e, SessionParked) for k in e.awaited}
            if key not in awaited:
                known = f"Awaited: {', '.join(sorted(awaited))}." if awaited else "Nothing is awaited."
                raise UnknownName(f"no answer to {key!r} is awaited in session {session}", where=self.path, do=known)
            journal.append(AnswerReceived(key=key, text=text_id(text), by=by), texts=[text])
            self._writer.flush()
        finally:
            journal.release()

    def close(self) -> None:
        self.reader.close()
        try:
            self._writer.close()
        finally:
            self._disconnect()

    def _execute_now(self, sql: str, values: tuple[object, ...]) -> None:
        self._writer.put([(sql, values)])
        self._writer.flush()

    def must_write(self) -> None:
        """Raise `StoreUnusable` if the journal can only be read."""
        if self.refused:
            raise self.refused

    def _execute(self, batch: Sequence[Statement]) -> None:
        self.must_write()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in batch:
                    # Packed here and not by an SQL function: that would wait for the interpreter lock while it holds the
                    # connection, and a reader of a journal in memory would wait the other way round.
                    self._db.execute(sql, (values[0], pack(str(values[1]))) if sql is ADD_TEXT else values)
                self._db.execute("COMMIT")
                sqlite_open.check_there(self.path, self._file)
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise store_error(self.path, error) from error

    def _disconnect(self) -> None:
        self._reader.close()
        self._db.close()


class SqliteJournal:
    """One leased session of a `SqliteStore`."""

    def __init__(self, store: SqliteStore, session: str, number: int, lease: Lease) -> None:
        self.session = session
        self.store = store
        self.number = number
        self.lease = lease
        self.on_commit: OnCommit | None = None
        # Only what this session itself has stored: what another session stored may be removed with it.
        self._texts: set[str] = set()
        self._prefixes: set[bytes] = set()
        ((last,),) = store._rows("SELECT MAX(seq) FROM events WHERE session=?", number)
        self._seq = int(str(last or 0))

    def append(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        self.store._writer.put(self._statements(event, texts, prompt), self._notices([event]))

    async def commit(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        await self.store._writer.put_and_wait(self._statements(event, texts, prompt), self._notices([event]))

    async def commit_all(self, events: Sequence[Event], *, texts: Iterable[str] = ()) -> None:
        statements = self._statements_for_texts(texts)
        for event in events:
            statements += self._statements(event, (), None)
        await self.store._writer.put_and_wait(statements, self._notices(events))

    def note_seconds(self, seconds: float) -> None:
        self.store._writer.put([(NOTE_SECONDS, (self.number, seconds))])

    def seconds(self) -> float:
        rows = [] if self.store.refused else self.store._rows("SELECT seconds FROM held WHERE session=?", self.number)
        return float(str(rows[0][0])) if rows else 0.0

    async def close(self) -> None:
        try:
            await self.store._writer.put_and_wait([])
        finally:
            self.release()

    def release(self) -> None:
        self.lease.release()

    def abandon(self) -> None:
        self.store._writer.close(drop=True)
        self.store.reader.close()
        self.store._disconnect()
        self.lease.release()

    def _notices(self, events: Sequence[Event]) -> list[Notice]:
        if self.on_commit is None:
            return []
        loop = asyncio.get_running_loop()
        return [(loop, partial(self.on_commit, event)) for event in events]

    def _statements(self, event: Event, texts: Iterable[str], prompt: PromptParts | None) -> list[Statement]:
        if isinstance(event, CallStarted):
            return [(ADD_IN_FLIGHT, (self.number, event.key, event.agent, event.place))]
        found = self._statements_for_texts(texts)
        if prompt is not None:
            found += self._statements_for_prompt(prompt)
        self._seq += 1
        event.seq = self._seq
        body = event.__pydantic_serializer__.to_json(event, exclude_defaults=True).decode()
        # `type` is a default, and must be in the body nevertheless
        body = f'{{"type":"{event.type}"' + (f",{body[1:]}" if body != "{}" else "}")
        found.append((ADD_EVENT, (self.number, self._seq, body)))
        if isinstance(event, CallEvent | CallLost):
            found.append((END_IN_FLIGHT, (self.number, event.key)))
        return found

    def _statements_for_texts(self, texts: Iterable[str]) -> list[Statement]:
        found: list[Statement] = []
        for text in texts:
            id = text_id(text)
            if id not in self._texts:
                self._texts.add(id)
                found.append((ADD_TEXT, (raw_id(id), text)))
        return found

    def _statements_for_prompt(self, prompt: PromptParts) -> list[Statement]:
        """A prompt is stored as its longest stored prefix and the added parts; its shared opening gets a row of its own unless
        that prefix is longer. So every row belongs to a prompt that an event names."""
        ids = prompt.prefixes
        found: list[Statement] = []
        if ids[-1] in self._prefixes:
            return found
        for length in (prompt.shared, len(ids)):
            known = next((n for n in range(len(ids), 0, -1) if ids[n - 1] in self._prefixes), 0)
            if length <= known:
                continue
            base = ids[known - 1] if known else None
            added = to_json(prompt.parts[known:length]).decode()
            found.append((ADD_PROMPT, (ids[length - 1], base, added)))
            self._prefixes.add(ids[length - 1])
        return found
