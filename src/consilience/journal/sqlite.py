"""The journal on SQLite: WAL, `synchronous=FULL`, one writer thread, group commit; one file for all sessions, mode 0600."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Self

from pydantic import ValidationError
from pydantic_core import to_json

from consilience.domain.errors import (
    AlreadyFinished,
    Command,
    SessionBusy,
    SettingsError,
    StoreUnusable,
    UnknownName,
    check_unicode,
)
from consilience.domain.events import (
    EVENT,
    CallCompleted,
    CallEvent,
    CallLost,
    CallStarted,
    CancelRequested,
    Event,
    SessionFinished,
    text_id,
)
from consilience.journal import sqlite_open
from consilience.journal.lease import FileLease, Lease, MemoryLease, describe_process, live_holder
from consilience.journal.mailbox import Mailroom, awaited_keys
from consilience.journal.numbers import new_number
from consilience.journal.records import MEMORY, SqliteRecords, pack
from consilience.journal.sqlite_open import (
    commit_error,
    connect_reader,
    connect_to_read,
    connect_twice,
    empty_log,
    explain_full_disk,
    raw_id,
    store_error,
)
from consilience.journal.statements import (
    ADD_ARRIVAL,
    ADD_EVENT,
    ADD_IN_FLIGHT,
    ADD_LINK,
    ADD_OPINION,
    ADD_PROMPT,
    ADD_TEXT,
    CREATE,
    DISCARD_MAIL,
    END_ARRIVAL,
    END_IN_FLIGHT,
    END_LINK,
    FIND_REPLY,
    HOLD,
    INDEX_REPLIES,
    NOTE_SECONDS,
    OCCUPY,
    POST,
    RANKS,
    REMOVE,
    RENAME,
    TAKE,
    VACATE,
    WEIGHT,
)
from consilience.journal.store import (
    Arrival,
    Letter,
    LetterKind,
    LinkKind,
    OnCommit,
    OnMail,
    Opinion,
    PromptParts,
    ReaderVote,
    SessionLink,
    check_name,
    checked_title,
)
from consilience.journal.thread_reader import ThreadReader
from consilience.journal.writer import Author, Notice, SqlStatement, Writer

LEASE_PROBE_SECONDS = 0.2
"""How long to wait for a process that takes a lease only to learn its holder."""
PROBE_BYTES = 1_000_000
"""For how much there must be room before a journal of which a commit has failed counts as writable again."""

_ENDS_FLIGHT = (CallEvent, CallLost)


def _rank(statement: SqlStatement) -> int:
    """Other statements, such as a removal, come last and one by one."""
    return RANKS.get(statement[0], len(RANKS))


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
        self.mailroom = Mailroom(self.all_mail)
        self.reader = ThreadReader(self._connect_reader)
        self.admin = SqliteAdmin(self)

    def of(self, owner: str, *others: str) -> Self:
        view = super().of(owner, *others)
        view.reader, view.admin = self.reader.of(owner, *others), SqliteAdmin(view)
        return view

    def _connect_reader(self) -> SqliteRecords:
        if self.path == MEMORY or self.refused:  # a connection to a log without an index excludes all others
            return self
        return SqliteRecords(self.path, connect_reader(self.path))

    def create(self, session: str, *, deferred: bool = False, name: str = "") -> SqliteJournal:
        check_name(session)
        self.check_writable()
        lease = self.lease(session)
        if not lease.acquire(patience=LEASE_PROBE_SECONDS):
            raise self._already_exists(session)
        try:
            if self._rows("SELECT n FROM sessions WHERE id=?", session):  # of any owner
                raise self._already_exists(session)
            journal = SqliteJournal(self, session, new_number(), lease)
            now = time.time_ns() // 1_000_000
            created = (journal.number, session, now, describe_process(), self._owner, checked_title(name))
            journal.begun.append((CREATE, created))
            if not deferred:
                self._writer.put(journal.author, journal.creation())
                self._writer.flush(journal.author)
            return journal
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
        journal = SqliteJournal(self, session, self._number(session), lease)
        self._execute_now(HOLD, (describe_process(), journal.number))
        return journal

    def _already_exists(self, session: str) -> SettingsError:
        return SettingsError(
            f"there is a session {session!r} already", where=self.path, do="Choose another id, or resume it."
        )

    def lease(self, session: str) -> Lease:
        return MemoryLease(session, self._memory_leases) if self.path == MEMORY else FileLease(self.path, session)

    def rename(self, session: str, name: str) -> None:
        self._execute_now(RENAME, (checked_title(name), self._number(session)))

    def reply(self, digest: str) -> CallCompleted | None:
        if not self._replies_indexed:
            self._execute_now(INDEX_REPLIES, ())
            self._replies_indexed = True
        row = next(iter(self._rows(FIND_REPLY, digest, self._owners)), None)
        try:
            recorded = EVENT.validate_json(str(row[0])) if row else None
        except ValidationError as error:
            raise store_error(self.path, error) from error
        return recorded if isinstance(recorded, CallCompleted) else None

    def post(self, session: str, kind: LetterKind, key: str = "", text: str = "", by: str = "") -> None:
        check_unicode(text, f"the {kind}")
        check_unicode(by, "the name of the sender")
        if isinstance(self.ending(session), SessionFinished):
            raise AlreadyFinished(
                f"session {session} is finished", where=self.path, do="See it", command=Command("show", session)
            )
        if kind in ("answer", "pass") and key not in (awaited := awaited_keys(self.read(session))):
            choices = f"Awaited: {', '.join(sorted(awaited))}." if awaited else "Nothing is awaited."
            raise UnknownName(f"no answer to {key!r} is awaited in session {session}", where=self.path, do=choices)
        self._execute_now(POST, (self._number(session), kind, key, text, by))
        self.mailroom.look()
        self._take_unless_held(session)

    def add_link(self, session: str, kind: LinkKind, *, agent: str = "", digest: str, until: float, by: str) -> None:
        self._execute_now(ADD_LINK, (self._number(session), kind, agent, digest, until, by))

    def add_opinion(self, link: SessionLink, vote: ReaderVote, objection: str, at: float) -> bool:
        check_unicode(objection, "the objection")
        given = Opinion(link.number, vote, objection, at)
        self._execute_now(ADD_OPINION, (link.number, self._number(link.session), vote, objection, at))
        return given in self.opinions(link.session)

    def end_link(self, session: str, number: int, at: float) -> None:
        if number not in {link.number for link in self.links(session)}:
            raise UnknownName(f"session {session} has no link {number}", do="List its links.")
        self._execute_now(END_LINK, (at, number))

    def _take_unless_held(self, session: str) -> None:
        """Record the letters of a session that no process runs; drop those of one that has finished meanwhile."""
        lease = self.lease(session)
        is_free = lease.acquire(patience=0)
        try:
            if isinstance(self.ending(session), SessionFinished):
                self._execute_now(DISCARD_MAIL, (self._number(session),))
            elif is_free:
                journal = self._lease_journal(session, lease)
                for letter in self.mail(session):
                    journal.append_letter(letter)
                self._writer.flush(journal.author)
        finally:
            if is_free:
                lease.release()

    def close(self) -> None:
        self.mailroom.close()
        self.reader.close()
        try:
            self._writer.close()
        finally:
            self._disconnect()

    def _execute_now(self, sql: str, values: tuple[object, ...]) -> None:
        self._writer.run([(sql, values)])

    def check_writable(self) -> None:
        if self.refused:
            raise self.refused
        self._writer.check([(OCCUPY, (PROBE_BYTES,)), (VACATE, ())])

    def _execute(self, batch: Sequence[SqlStatement]) -> None:
        if self.refused:
            raise self.refused
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for sql, group in groupby(sorted(batch, key=_rank), key=itemgetter(0)):
                    rows = [values for _, values in group]
                    if sql is ADD_TEXT:
                        # Packed here and not by an SQL function: that would wait for the interpreter lock while it holds the
                        # connection, and a reader of a journal in memory would wait the other way round.
                        rows = [(id, pack(str(text))) for id, text in rows]
                    if sql in RANKS:
                        self._db.executemany(sql, rows)
                    else:  # threads that create sessions at the same time share a commit
                        for row in rows:
                            self._db.execute(sql, row)
                self._db.execute("COMMIT")
                sqlite_open.check_there(self.path, self._file)
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise commit_error(self.path, error) from error

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
        self.author = Author()
        self.on_commit: OnCommit | None = None
        self.begun: list[SqlStatement] = []
        """What creates the session, until its first commit."""
        # Only what this session itself has stored: what another session stored may be removed with it.
        self._texts: set[str] = set()
        self._prefixes: set[bytes] = set()
        self._ends: set[str] = set()
        """The last parts of these prefixes."""
        ((last,),) = store._rows("SELECT MAX(seq) FROM events WHERE session=?", number)
        self._seq = int(str(last or 0))

    def append(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        self.store._writer.put(self.author, self._statements(event, texts, prompt), self._notices([event]))

    async def commit(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        await self.store._writer.put_and_wait(
            self.author, self._statements(event, texts, prompt), self._notices([event])
        )

    async def commit_all(self, events: Sequence[Event], *, texts: Iterable[str] = ()) -> None:
        statements = [*self.creation(), *self._statements_for_texts(texts)]
        for event in events:
            statements += self._statements(event, (), None)
        await self.store._writer.put_and_wait(self.author, statements, self._notices(events))

    async def keep(self, arrival: Arrival) -> None:
        row = (self.number, arrival.key, arrival.attempt, arrival.digest, arrival.completion)
        await self.store._writer.put_and_wait(self.author, [(ADD_ARRIVAL, row)])

    def note_seconds(self, seconds: float) -> None:
        self.store._writer.put(self.author, [(NOTE_SECONDS, (self.number, seconds))])

    def seconds(self) -> float:
        rows = self.store._rows("SELECT seconds FROM held WHERE session=?", self.number)
        return float(str(rows[0][0])) if rows else 0.0

    def receive(self, on_mail: OnMail | None) -> None:
        self.store.mailroom.receive(self.session, on_mail)

    async def take(self, letter: Letter, event: Event) -> None:
        await self.store._writer.put_and_wait(self.author, self._taking(letter, event), self._notices([event]))

    def append_letter(self, letter: Letter) -> None:
        """Queue the event of a letter, which leaves the mailbox in the same transaction."""
        self.store._writer.put(self.author, self._taking(letter, letter.event()))

    def _taking(self, letter: Letter, event: Event) -> list[SqlStatement]:
        texts = [] if isinstance(event, CancelRequested) else [letter.text]
        return [*self._statements(event, texts, None), (TAKE, (letter.number,))]

    async def close(self) -> None:
        self.receive(None)
        try:
            await self.store._writer.put_and_wait(self.author, self.creation())
        finally:
            self.release()

    def release(self) -> None:
        self.lease.release()

    def abandon(self) -> None:
        self.store.mailroom.close()
        self.store._writer.close(drop=True)
        self.store.reader.close()
        self.store._disconnect()
        self.lease.release()

    def creation(self) -> list[SqlStatement]:
        """Return what creates the session, once."""
        begun, self.begun = self.begun, []
        return begun

    def _notices(self, events: Sequence[Event]) -> list[Notice]:
        if self.on_commit is None:
            return []
        loop = asyncio.get_running_loop()
        return [(loop, self.on_commit, event) for event in events]

    def _statements(self, event: Event, texts: Iterable[str], prompt: PromptParts | None) -> list[SqlStatement]:
        if isinstance(event, CallStarted):
            return [*self.creation(), (ADD_IN_FLIGHT, (self.number, event.key, event.agent, event.place))]
        statements_found = [*self.creation(), *self._statements_for_texts(texts)]
        if prompt is not None:
            statements_found += self._statements_for_prompt(prompt)
        self._seq += 1
        event.seq = self._seq
        body = event.__pydantic_serializer__.to_json(event, exclude_defaults=True).decode()
        # `type` is a default, and must be in the body nevertheless
        body = f'{{"type":"{event.type}"' + (f",{body[1:]}" if body != "{}" else "}")
        statements_found.append((ADD_EVENT, (self.number, self._seq, body)))
        if isinstance(event, SessionFinished):
            statements_found.append((DISCARD_MAIL, (self.number,)))
        if isinstance(event, _ENDS_FLIGHT):
            statements_found.append((END_IN_FLIGHT, (self.number, event.key)))
            statements_found.append((END_ARRIVAL, (self.number, event.key)))
        return statements_found

    def _statements_for_texts(self, texts: Iterable[str]) -> list[SqlStatement]:
        inserts: list[SqlStatement] = []
        for text in texts:
            id = text_id(text)
            if id not in self._texts:
                self._texts.add(id)
                inserts.append((ADD_TEXT, (raw_id(id), text)))
        return inserts

    def _statements_for_prompt(self, prompt: PromptParts) -> list[SqlStatement]:
        """A prompt is stored as its longest stored prefix and the added parts; its shared opening gets a row of its own unless
        that prefix is longer. So every row belongs to a prompt that an event names."""
        inserts: list[SqlStatement] = []
        whole = raw_id(prompt.id)
        if whole in self._prefixes:
            return inserts
        parts = prompt.parts
        ends = [n for n, part in enumerate(parts, 1) if part in self._ends]
        ids = prompt.prefixes((*ends, prompt.shared)) | {len(parts): whole}
        known_length = max((n for n, id in ids.items() if id in self._prefixes), default=0)
        for length in (prompt.shared, len(parts)):
            if length <= known_length:
                continue
            new_parts = to_json(parts[known_length:length]).decode()
            inserts.append((ADD_PROMPT, (ids[length], ids.get(known_length), new_parts)))
            self._prefixes.add(ids[length])
            self._ends.add(parts[length - 1])
            known_length = length
        return inserts


class SqliteAdmin:
    """Removal from a SQLite journal. Removed bytes are overwritten, and gone from the write-ahead log when `remove` returns."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def remove(self, sessions: Collection[str]) -> None:
        store = self._store
        with explain_full_disk("nothing was removed"), ExitStack() as leases:
            store.check_writable()
            store.check_all()  # else texts that only a damaged record refers to would be removed
            journals = []
            for session in dict.fromkeys(sessions):
                journals.append(store.open(session))
                leases.callback(journals[-1].release)
            numbers = json.dumps([journal.number for journal in journals])
            store._writer.run([(statement, (numbers,) if "?1" in statement else ()) for statement in REMOVE])
            leases.pop_all()
            for journal in journals:
                journal.lease.discard()
        empty_log(store._rows, store.path)

    def weight(self, sessions: Collection[str]) -> int:
        store = self._store
        store.check_all()
        numbers = [store._number(session) for session in dict.fromkeys(sessions)]
        ((size,),) = store._rows(WEIGHT, json.dumps(numbers))
        return int(str(size))

    def compact(self) -> int:
        store = self._store
        if store.path == ":memory:":
            return 0
        file = Path(store.path)
        size_before = file.stat().st_size
        with explain_full_disk("the space of what was removed is not given back"):
            store.check_writable()
            store.check_all()
            store._rows("VACUUM")
        empty_log(store._rows, store.path)
        return max(0, size_before - file.stat().st_size)
