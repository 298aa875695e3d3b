"""Reads sessions, texts and prompts of a SQLite journal; verifies texts by their ids."""

from __future__ import annotations

import copy
import json
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Self, cast

from consilience.domain.errors import StoreUnusable, UnknownSession, check_unicode
from consilience.domain.event_decoding import decode_event
from consilience.domain.events import (
    SCHEMA_VERSION,
    AnyEvent,
    SessionFinished,
    SessionStarted,
    text_id,
)
from consilience.journal.lease import FileLease, Lease, live_holder
from consilience.journal.sqlite_open import (
    RECOVERY,
    check_all,
    check_records,
    damaged,
    newer_schema,
    raw_id,
    schema_of,
    store_error,
)
from consilience.journal.statements import ENTRIES, LINKS, OPINIONS, OWNED
from consilience.journal.store import (
    Arrival,
    InFlightCall,
    Letter,
    LetterKind,
    LinkKind,
    Opinion,
    PromptParts,
    ReaderVote,
    SessionEntry,
    SessionLink,
)

MIN_COMPRESSED_CHARS = 1000
"""Min length of a text that is stored compressed, as bytes. SQLite gives the end of a longer row pages of its own."""

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
READ_MAIL = "SELECT n, kind, key, text, sender FROM mail"
ALL_MAIL = (
    "SELECT id, mail.n, kind, key, text, sender FROM mail JOIN sessions ON sessions.n=mail.session ORDER BY mail.n"
)


def _letter(number: object, kind: object, *words: object) -> Letter:
    return Letter(int(str(number)), cast(LetterKind, str(kind)), *map(str, words))


class SqliteRecords:
    """The sessions of one journal file."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self._reader = connection
        self._reading = (
            threading.RLock()
        )  # a read that shares its transaction with a thread's older one misses the last commit
        self._checked = {"records", "all"} if path == MEMORY else set[str]()
        """What of the file was checked for damage. The views of owners share it."""
        self._owner = ""
        """Whose sessions are created."""
        self._owners: str | None = None
        """Whose sessions are there, as a JSON list; None for all."""

    def of(self, owner: str, *others: str) -> Self:
        for name in (owner, *others):
            check_unicode(name, "the name of the owner")
        view = copy.copy(self)
        view._owner, view._owners = owner, json.dumps([owner, *others])
        return view

    def owner(self, session: str) -> str:
        ((owner,),) = self._rows("SELECT owner FROM sessions WHERE n=?", self._number(session))
        return str(owner)

    def sessions(self) -> list[str]:
        rows = self._rows(f"SELECT id FROM sessions WHERE {OWNED} ORDER BY n", self._owners)
        session_ids = [str(row[0]) for row in rows]
        if not session_ids:
            self._check_records()
        return session_ids

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
        first_events = self._events("SELECT seq, body FROM events WHERE session=? AND seq=1", self._number(session))
        if not first_events:
            self._check_records()
        return first_events[0] if first_events and isinstance(first_events[0], SessionStarted) else None

    def ending(self, session: str) -> AnyEvent | None:
        sql = "SELECT seq, body FROM events WHERE session=? ORDER BY seq DESC LIMIT 1"
        return next(iter(self._events(sql, self._number(session))), None)

    def _events(self, sql: str, *values: object) -> list[AnyEvent]:
        try:
            with self._reading:
                rows = self._reader.execute(sql, values)  # one by one: all together would take as much memory again
                return [self._event(int(str(seq)), str(body)) for seq, body in rows]
        except (sqlite3.Error, ValueError) as error:  # not a text, number or event
            raise store_error(self.path, error) from error

    def _event(self, seq: int, body: str) -> AnyEvent:
        if seq == 1 and (version := schema_of(body)) > SCHEMA_VERSION:
            raise newer_schema(version, self.path)
        return decode_event(body, seq)

    def last(self, session: str) -> int:
        ((last,),) = self._rows("SELECT MAX(seq) FROM events WHERE session=?", self._number(session))
        return int(str(last or 0))

    def flights(self, session: str) -> list[InFlightCall]:
        rows = self._rows("SELECT key, agent, place FROM in_flight WHERE session=?", self._number(session))
        return [InFlightCall(*map(str, row)) for row in rows]

    def arrivals(self, session: str) -> list[Arrival]:
        sql = "SELECT key, attempt, digest, completion FROM arrivals WHERE session=?"
        rows = self._rows(sql, self._number(session))
        return [Arrival(str(key), int(str(attempt)), str(digest), str(body)) for key, attempt, digest, body in rows]

    def mail(self, session: str) -> list[Letter]:
        rows = self._rows(f"{READ_MAIL} WHERE session=? ORDER BY n", self._number(session))
        return [_letter(*row) for row in rows]

    def links(self, session: str) -> list[SessionLink]:
        return self._links(self._number(session), None)

    def opinions(self, session: str) -> list[Opinion]:
        return [
            Opinion(int(str(link)), cast(ReaderVote, str(vote)), str(objection), float(str(given)))
            for link, vote, objection, given in self._rows(OPINIONS, self._number(session))
        ]

    def link(self, digest: str) -> SessionLink | None:
        return next(iter(self._links(None, digest)), None)

    def _links(self, number: int | None, digest: str | None) -> list[SessionLink]:
        return [
            SessionLink(
                int(str(n)), str(id), cast(LinkKind, str(kind)), str(agent), str(found), float(str(until)), str(by)
            )
            for n, id, kind, agent, found, until, by in self._rows(LINKS, number, digest)
        ]

    def all_mail(self) -> dict[str, list[Letter]]:
        """Return the letters of all sessions that have any, as `mail` does."""
        letters: dict[str, list[Letter]] = {}
        for session, *row in self._rows(ALL_MAIL):
            letters.setdefault(str(session), []).append(_letter(*row))
        return letters

    def entries(self) -> list[SessionEntry]:
        return [
            SessionEntry(str(id), int(str(created)) / 1000, bool(finished), *(str(word or "") for word in words))
            for id, created, finished, *words in self._rows(ENTRIES, self._owners)
        ]

    def parents(self) -> dict[str, str]:
        sql = (
            "SELECT s.id, json_extract(e.body, '$.parent') FROM sessions s JOIN events e ON e.session=s.n AND e.seq=1 "
            f"WHERE json_extract(e.body, '$.parent') IS NOT NULL AND {OWNED} ORDER BY s.n"
        )
        return {str(session): str(parent) for session, parent in self._rows(sql, self._owners)}

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
        raw_ids = {raw_id(id) for id in ids}
        while raw_ids:
            bases = set()
            for raw, base, own_parts in self._by_id("SELECT id, base, added FROM prompts", raw_ids):
                if isinstance(raw, bytes):
                    base = base if isinstance(base, bytes) else None
                    rows[raw] = base, self._parts(own_parts)
                    bases.add(base)
            raw_ids = {base for base in bases if base is not None and base not in rows}
        return {id: self._whole(id, rows) for id in ids}

    def _parts(self, own_parts: object) -> list[str]:
        try:
            return [str(part) for part in json.loads(str(own_parts))]
        except ValueError as error:
            raise store_error(self.path, error) from error

    def _whole(self, id: str, rows: Mapping[bytes, tuple[bytes | None, list[str]]]) -> tuple[str, ...]:
        """Return the parts of a prompt: those of its stored prefix, which may have one itself, and those it adds."""
        pieces: list[list[str]] = []
        raw: bytes | None = raw_id(id)
        while raw is not None and len(pieces) <= len(rows):
            if raw not in rows:
                raise self._missing("prompt", id, damaged=False)
            raw, own_parts = rows[raw]
            pieces.append(own_parts)
        parts = tuple(part for own_parts in reversed(pieces) for part in own_parts)
        if raw is not None or PromptParts(parts).id != id:
            raise self._missing("prompt", id, damaged=True)
        return parts

    def _by_id(self, sql: str, ids: Collection[bytes]) -> Iterator[tuple[object, ...]]:
        sorted_ids = sorted(ids)
        for start in range(0, len(sorted_ids), MAX_PARAMETERS):
            batch = sorted_ids[start : start + MAX_PARAMETERS]
            yield from self._rows(f"{sql} WHERE id IN ({','.join('?' * len(batch))})", *batch)

    def _missing(self, kind: str, id: str, *, damaged: bool) -> StoreUnusable:
        return StoreUnusable(f"{kind} {id} is {'damaged' if damaged else 'missing'}", where=self.path, do=RECOVERY)

    def _number(self, session: str) -> int:
        row = next(iter(self._rows(f"SELECT n FROM sessions WHERE id=? AND {OWNED}", session, self._owners)), None)
        if row is None:
            import difflib

            self._check_records()
            session_ids = self.sessions()
            close = difflib.get_close_matches(session, session_ids, 3) or session_ids[-3:]
            raise UnknownSession(
                f"there is no session {session!r}",
                where=self.path,
                do=f"Known sessions: {', '.join(close)}." if close else "No session was recorded yet.",
            )
        return int(str(row[0]))

    def _check_records(self) -> None:
        """Raise `StoreUnusable` if sessions or events are damaged."""
        if "records" not in self._checked:
            check_records(self._rows, self.path)
            self._checked.add("records")

    def check_all(self) -> None:
        """Raise `StoreUnusable` if anything in the file is damaged."""
        if "all" not in self._checked:
            check_all(self._rows, self.path)
            self._checked.add("all")

    def _rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            with self._reading:
                return self._reader.execute(sql, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise store_error(self.path, error) from error
