"""The journal on SQLite: WAL, `synchronous=FULL`, one writer thread, group commit; one file for all sessions, mode 0600."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import to_json

from consilience.domain.errors import SessionBusy, SettingsError, StoreUnusable, UnknownName
from consilience.domain.events import (
    EVENT,
    AnswerReceived,
    AnyEvent,
    CallCompleted,
    CallEvent,
    CallLost,
    CallStarted,
    Event,
    SessionParked,
    SessionStarted,
    text_id,
)
from consilience.domain.places import journal_path
from consilience.journal import removal
from consilience.journal.lease import Lease
from consilience.journal.opening import connect_to_read, connect_twice, raw_id, unusable
from consilience.journal.store import Flight, PromptParts, Store, check_name
from consilience.journal.writer import Statement, Writer

PROBED = 0.2
"""Seconds for which a lease may be held by somebody who only wants to know who holds it."""

ADD_EVENT = "INSERT INTO events VALUES(?,?,?)"
ADD_FLIGHT = "INSERT OR REPLACE INTO in_flight VALUES(?,?,?,?)"
END_FLIGHT = "DELETE FROM in_flight WHERE session=? AND key=?"
ADD_TEXT = "INSERT OR IGNORE INTO texts VALUES(?,?)"
ADD_PROMPT = "INSERT OR IGNORE INTO prompts VALUES(?,?,?)"


WHOLE_PROMPT = """
WITH RECURSIVE list(base, added, depth) AS (
  SELECT base, added, 0 FROM prompts WHERE id=?
  UNION ALL SELECT p.base, p.added, depth + 1 FROM prompts p JOIN list ON p.id = list.base
) SELECT base, added FROM list ORDER BY depth"""

INDEX_REPLIES = """
CREATE INDEX IF NOT EXISTS replies ON events(json_extract(body, '$.digest'))
WHERE json_extract(body, '$.type') = 'call_completed'"""
FIND_REPLY = """
SELECT body FROM events
WHERE json_extract(body, '$.digest') = ? AND json_extract(body, '$.type') = 'call_completed'
  AND json_extract(body, '$.inherited') IS NULL
ORDER BY session DESC, seq DESC LIMIT 1"""

LONG = 2000
"""Characters from which a text is stored compressed, as bytes."""

MOST_PARAMETERS = 500


def _packed(text: str) -> str | bytes:
    """As stored; runs in the writer's thread."""
    return text if len(text) < LONG else zlib.compress(text.encode("utf-8", "surrogatepass"))


def _unpacked(body: object) -> str:
    """As it was; what cannot be unpacked comes out empty, and so not with the digest it is known by."""
    try:
        return zlib.decompress(body).decode("utf-8", "surrogatepass") if isinstance(body, bytes) else str(body)
    except (zlib.error, UnicodeDecodeError):
        return ""


class SqliteStore:
    """Opens or creates the journal at `path`; `":memory:"` keeps nothing after `close`.

    One that is there and cannot be written, on a full disk or an archived one, is opened for reading: what writes to it
    raises `StoreUnusable` then. With `writing` that is raised here. `StoreUnusable` also when the place cannot be used at all,
    `NewerSchema` when a later version wrote it.
    """

    def __init__(self, path: Path | str, *, writing: bool = False) -> None:
        # Wherever the process goes and whatever link led here: the leases lie beside the file itself.
        self.path = ":memory:" if str(path) == ":memory:" else os.path.realpath(path)
        self.refused: StoreUnusable | None = None
        """Why nothing can be written, if so."""
        try:
            self._db, self._reader = connect_twice(self.path)
        except StoreUnusable as refused:
            if writing:
                raise
            self._db = self._reader = connect_to_read(self.path, refused)
            self.refused = refused
        self._replies_indexed = False
        self._writer = Writer(self._execute, Path(self.path).name)
        self._memory_leases: dict[str, Lease] = {}

    def create(self, session: str) -> SqliteJournal:
        check_name(session)
        self.must_write()
        lease = Lease(self.path, session, self._memory_leases)
        if not lease.acquire(patience=PROBED):
            raise self._taken(session)
        try:
            if self._rows("SELECT n FROM sessions WHERE id=?", session):
                raise self._taken(session)
            self._now("INSERT INTO sessions(id, created) VALUES(?,?)", (session, time.time_ns() // 1_000_000))
            return self._held(session, lease)
        except BaseException:
            lease.release()
            raise

    def open(self, session: str) -> SqliteJournal:
        number = self._number(session)
        lease = Lease(self.path, session, self._memory_leases)
        if self.refused:  # it can be read as a journal, too, and nobody has to be kept from writing it
            return SqliteJournal(self, session, number, lease)
        if not lease.acquire(patience=PROBED):
            ((holder,),) = self._rows("SELECT holder FROM sessions WHERE id=?", session) or [(None,)]
            raise SessionBusy(
                f"session {session} is being run by {holder or 'another process'}",
                where=self.path,
                do="Wait for it to end, or stop that process; then try again.",
            )
        try:
            return self._held(session, lease)
        except BaseException:
            lease.release()
            raise

    def _held(self, session: str, lease: Lease) -> SqliteJournal:
        """The session under its lease. Raises `UnknownName` where it was removed before that was ours."""
        number = self._number(session)
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._now("UPDATE sessions SET holder=? WHERE n=?", (holder, number))
        return SqliteJournal(self, session, number, lease)

    def _taken(self, session: str) -> SettingsError:
        return SettingsError(
            f"there is a session {session!r} already", where=self.path, do="Choose another id, or resume it."
        )

    def sessions(self) -> list[str]:
        return [str(row[0]) for row in self._rows("SELECT id FROM sessions ORDER BY n")]

    def read(self, session: str) -> list[AnyEvent]:
        return self._events("SELECT seq, body FROM events WHERE session=? ORDER BY seq", self._number(session))

    def beginning(self, session: str) -> SessionStarted | None:
        found = self._events("SELECT seq, body FROM events WHERE session=? AND seq=1", self._number(session))
        return found[0] if found and isinstance(found[0], SessionStarted) else None

    def _events(self, sql: str, *values: object) -> list[AnyEvent]:
        events = []
        for seq, body in self._rows(sql, *values):
            try:
                event = EVENT.validate_json(str(body))
            except ValidationError as error:
                raise unusable(self.path, error) from error
            event.seq = int(str(seq))
            events.append(event)
        return events

    def flights(self, session: str) -> list[Flight]:
        rows = self._rows("SELECT key, agent, place FROM in_flight WHERE session=?", self._number(session))
        return [Flight(*map(str, row)) for row in rows]

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
        (row,) = self._rows("SELECT holder FROM sessions WHERE n=?", self._number(session))
        lease = Lease(self.path, session, self._memory_leases)
        if not lease.taken():
            return None
        return str(row[0]) if row[0] else "another process"

    def text(self, id: str) -> str:
        return self.texts([id])[id]

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        by_raw = {raw_id(id): id for id in ids}
        wanted = sorted(by_raw)
        found: dict[str, str] = {}
        for start in range(0, len(wanted), MOST_PARAMETERS):
            some = wanted[start : start + MOST_PARAMETERS]
            sql = f"SELECT id, body FROM texts WHERE id IN ({','.join('?' * len(some))})"
            found.update(
                (by_raw[raw], _unpacked(body))
                for raw, body in self._rows(sql, *some)
                if isinstance(raw, bytes) and raw in by_raw  # a damaged file may give others
            )
        if wrong := next((id for id in ids if id not in found or text_id(found[id]) != id), None):
            raise StoreUnusable(
                f"text {wrong} is {'damaged' if wrong in found else 'missing'}",
                where=self.path,
                do="The journal is damaged; restore a copy of it.",
            )
        return found

    def prompt(self, id: str) -> tuple[str, ...]:
        rows = self._rows(WHOLE_PROMPT, raw_id(id))
        if not rows or rows[-1][0] is not None:
            raise StoreUnusable(
                f"prompt {id} is missing", where=self.path, do="The journal is damaged; restore a copy of it."
            )
        try:
            return tuple(part for _, added in reversed(rows) for part in json.loads(str(added)))
        except ValueError as error:
            raise unusable(self.path, error) from error

    def reply(self, digest: str) -> CallCompleted | None:
        if not self._replies_indexed:
            self._now(INDEX_REPLIES, ())
            self._replies_indexed = True
        row = next(iter(self._rows(FIND_REPLY, digest)), None)
        found = EVENT.validate_json(str(row[0])) if row else None
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

    def remove(self, sessions: Collection[str]) -> None:
        removal.remove(self, sessions)

    def weight(self, sessions: Collection[str]) -> int:
        return removal.weight(self, sessions)

    def compact(self) -> int:
        return removal.compact(self)

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._disconnect()

    def _number(self, session: str) -> int:
        row = next(iter(self._rows("SELECT n FROM sessions WHERE id=?", session)), None)
        if row is None:
            import difflib

            known = self.sessions()
            close = difflib.get_close_matches(session, known, 3) or known[-3:]
            raise UnknownName(
                f"there is no session {session!r}",
                where=self.path,
                do=f"Known sessions: {', '.join(close)}." if close else "No session was recorded yet.",
            )
        return int(str(row[0]))

    def _rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            return self._reader.execute(sql, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise unusable(self.path, error) from error

    def _now(self, sql: str, values: tuple[object, ...]) -> None:
        self._writer.put([(sql, values)])
        self._writer.flush()

    def must_write(self) -> None:
        """Raises `StoreUnusable` where it can only be read."""
        if self.refused:
            raise self.refused

    def _execute(self, batch: Sequence[Statement]) -> None:
        self.must_write()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in batch:
                    # packed here, in the writer's thread; not by a function of SQL, which would wait for the interpreter while it
                    # holds the connection, and whoever reads a journal in memory meanwhile the other way round
                    self._db.execute(sql, (values[0], _packed(str(values[1]))) if sql is ADD_TEXT else values)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise unusable(self.path, error) from error

    def _disconnect(self) -> None:
        self._reader.close()
        self._db.close()


class SqliteJournal:
    """One leased session of a `SqliteStore`."""

    def __init__(self, store: SqliteStore, session: str, number: int, lease: Lease) -> None:
        self.session = session
        self._store = store
        self.number = number
        self.lease = lease
        # What this session has stored, and so refers to. What another one stored may be removed with it.
        self._texts: set[str] = set()
        self._prefixes: set[bytes] = set()
        ((last,),) = store._rows("SELECT MAX(seq) FROM events WHERE session=?", number)
        self._seq = int(str(last or 0))

    def append(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        self._store._writer.put(self._statements(event, texts, prompt))

    async def commit(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        await self._store._writer.put_and_wait(self._statements(event, texts, prompt))

    async def commit_all(self, events: Sequence[Event], *, texts: Iterable[str] = ()) -> None:
        statements = self._statements_for_texts(texts)
        for event in events:
            statements += self._statements(event, (), None)
        await self._store._writer.put_and_wait(statements)

    def read(self) -> list[AnyEvent]:
        self._store._writer.flush()
        return self._store.read(self.session)

    def flights(self) -> list[Flight]:
        return self._store.flights(self.session)

    def text(self, id: str) -> str:
        return self._store.text(id)

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        return self._store.texts(ids)

    def prompt(self, id: str) -> tuple[str, ...]:
        return self._store.prompt(id)

    def reply(self, digest: str) -> CallCompleted | None:
        return self._store.reply(digest)

    async def close(self) -> None:
        try:
            await self._store._writer.put_and_wait([])
        finally:
            self.release()

    def release(self) -> None:
        self.lease.release()

    def abandon(self) -> None:
        self._store._writer.close(drop=True)
        self._store._disconnect()
        self.lease.release()

    def _statements(self, event: Event, texts: Iterable[str], prompt: PromptParts | None) -> list[Statement]:
        if isinstance(event, CallStarted):
            return [(ADD_FLIGHT, (self.number, event.key, event.agent, event.place))]
        found = self._statements_for_texts(texts)
        if prompt is not None:
            found += self._statements_for_prompt(prompt)
        self._seq += 1
        event.seq = self._seq
        body = event.__pydantic_serializer__.to_json(event, exclude_defaults=True).decode()
        # `type` is a default; it must stand in the body all the same
        body = f'{{"type":"{event.type}"' + (f",{body[1:]}" if body != "{}" else "}")
        found.append((ADD_EVENT, (self.number, self._seq, body)))
        if isinstance(event, CallEvent | CallLost):
            found.append((END_FLIGHT, (self.number, event.key)))
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
        """The whole list is stored as the longest prefix stored before, and what it adds; the shared opening too, unless that
        prefix reaches beyond it. So every row leads to a prompt that an event names."""
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


@contextmanager
def opened(store: Store | None, *, writing: bool = False) -> Iterator[Store]:
    """The given store, left open; or the user's, opened as `SqliteStore` opens it and closed again."""
    if store is not None:
        yield store
        return
    own = SqliteStore(journal_path(), writing=writing)
    try:
        yield own
    finally:
        own.close()
