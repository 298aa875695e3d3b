"""SQLite passes the conformance suite, on a file and in memory, and says plainly what is wrong with a place."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import PIPE

import pytest

from consilience.domain.errors import NewerSchema, SessionBusy, StoreUnusable, UserError
from consilience.domain.events import CallCompleted
from consilience.journal.sqlite import SqliteStore
from journal.conformance import Open, StoreConformance, completed
from kit import forks


class TestOnAFile(StoreConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Open:
        return lambda: SqliteStore(tmp_path / "journal.db")


class TestInMemory(StoreConformance):
    survives = False

    @pytest.fixture
    def opened(self) -> Open:
        return lambda: SqliteStore(":memory:")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "journal.db")
    yield store
    store.close()


def test_journal_is_private(store: SqliteStore, tmp_path: Path) -> None:
    store.sessions()
    for path in tmp_path.glob("journal.db*"):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        assert mode & 0o077 == 0, f"{path.name} is {mode:o}"


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


LIST_SESSIONS = """
import sys
from consilience.journal.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
print(store.sessions())
store.close()
"""


@pytest.mark.parametrize("opened_again", [False, True], ids=["once", "twice in this process"])
async def test_reader_process_that_closes_loses_no_commit(
    store: SqliteStore, tmp_path: Path, opened_again: bool
) -> None:
    """Whoever closes a journal last clears its log away: a process that looks in must see that somebody else is still there."""
    path = tmp_path / "journal.db"

    def look() -> str:
        return forks.run(
            [sys.executable, "-c", LIST_SESSIONS, str(path)], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    if opened_again:
        SqliteStore(path).close()
    journal = store.create("s")
    assert look() == "['s']"
    assert size(tmp_path / "journal.db-wal") > 0
    await journal.commit(completed("k", "A reply.", "1"), texts=["A reply."])
    other = SqliteStore(path)
    assert [event.key for event in other.read("s") if isinstance(event, CallCompleted)] == ["k"]
    other.close()
    store.create("t")
    assert look() == "['s', 't']", "another process reads what was written since"


HOLD_LEASE = """
import os, sys, time
from consilience.journal.sqlite import SqliteStore

class SlowStore(SqliteStore):
    def _lease_journal(self, session, lease):
        print("leased", os.getpid(), flush=True)
        time.sleep(float(sys.argv[2]))
        return super()._lease_journal(session, lease)

journal = SlowStore(sys.argv[1]).open("s")
sys.stdin.read() if sys.argv[2] != "0" else os._exit(0)
"""
"""Leases the session, records itself as the holder after so many seconds, and keeps the lease; with 0 seconds it ends at once."""


@pytest.mark.processes
def test_lease_refusal_names_the_current_holder(store: SqliteStore, tmp_path: Path) -> None:
    store.create("s").release()
    command = [sys.executable, "-c", HOLD_LEASE, str(tmp_path / "journal.db")]
    ended = forks.run([*command, "0"], capture_output=True, text=True, check=True, timeout=300).stdout.split()
    with forks.Fork([*command, "0.6"], stdin=PIPE, stdout=PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdin
        assert holder.stdout.readline() == f"leased {holder.pid}\n" != f"leased {ended[1]}\n"
        assert str(store.holder("s")).startswith(f"process {holder.pid} on ")
        with pytest.raises(SessionBusy, match=f"is being run by process {holder.pid} on "):
            store.open("s")
        holder.stdin.close()


@pytest.mark.processes
def test_lease_without_a_recorded_holder_does_not_name_an_ended_process(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.journal.lease.HOLDER_SECONDS", 0.05)
    store.create("s").release()
    command = [sys.executable, "-c", HOLD_LEASE, str(tmp_path / "journal.db"), "0"]
    forks.run(command, capture_output=True, check=True, timeout=300)
    lease = SqliteStore(tmp_path / "journal.db").lease("s")
    assert lease.acquire()
    assert store.holder("s") == "another process"
    lease.release()


def test_lease_is_shared_by_all_paths_to_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "journal.db").symlink_to(tmp_path / "real" / "journal.db")
    monkeypatch.chdir(tmp_path / "real")
    relative, linked = SqliteStore("journal.db"), SqliteStore(tmp_path / "link" / "journal.db")
    monkeypatch.chdir(tmp_path)
    held = relative.create("s")
    assert linked.holder("s") is not None
    for attempt in (linked.open, lambda session: linked.admin.remove([session])):
        with pytest.raises(SessionBusy):
            attempt("s")
    held.release()
    linked.admin.remove(["s"])
    assert relative.sessions() == []
    assert relative.admin.compact() >= 0
    assert sorted(path.name for path in (tmp_path / "link").iterdir()) == ["journal.db"]
    relative.close()
    linked.close()


def test_session_number_of_a_removed_session_is_not_reused(store: SqliteStore) -> None:
    first = store.create("a")
    first.release()
    store.admin.remove(["a"])
    second = store.create("b")
    assert second.number > first.number
    second.release()


def test_journal_opens_for_reading_during_a_write(store: SqliteStore, tmp_path: Path) -> None:
    """A writer that was stopped in the middle of a commit must not keep `show` waiting."""
    store.create("s").release()
    writer = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    started = SqliteStore(tmp_path / "journal.db")
    assert started.sessions() == ["s"]
    writer.execute("ROLLBACK")
    writer.close()
    started.close()


def test_long_write_of_another_process_is_reported(store: SqliteStore, tmp_path: Path) -> None:
    store._db.execute("PRAGMA busy_timeout=1")
    writer = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnusable, match="another process has been writing"):
        store.create("s")
    writer.execute("ROLLBACK")
    writer.close()


def test_append_after_a_process_fork_or_close_is_refused(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would never be written, so a waiter would wait forever."""
    journal = store.create("s")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreUnusable, match="opened by another process"):
        journal.append(completed("k", "t"))
    monkeypatch.undo()
    store.close()
    with pytest.raises(StoreUnusable, match="closed"):
        journal.append(completed("k", "t"))
    journal.release()


def test_journal_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(NewerSchema, match="schema 99") as refusal:
        SqliteStore(path)
    assert "Upgrade" in str(refusal.value)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("a directory", "it is a directory"),
        ("beneath a file", "a file is in its way"),
        ("no database", "damaged or not a journal"),
    ],
)
def test_unusable_journal_path_is_a_user_error(tmp_path: Path, what: str, says: str) -> None:
    path = tmp_path / "journal.db"
    if what == "a directory":
        path.mkdir()
    else:
        path.write_bytes(b"hello " * 1000)
    if what == "beneath a file":
        path = path / "journal.db"
    with pytest.raises(StoreUnusable, match=says) as refusal:
        SqliteStore(path)
    assert isinstance(refusal.value, UserError)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


async def test_failed_commit_fails_its_waiters_and_all_later_commits_of_its_session(store: SqliteStore) -> None:
    journal = store.create("s")
    await journal.commit(completed("a", "t"), texts=["t"])
    store._db.execute("PRAGMA query_only=1")  # as a disk that went read-only
    with pytest.raises(StoreUnusable, match="readonly"):
        await journal.commit(completed("b", "t", "1"), texts=["t"])
    with pytest.raises(StoreUnusable):
        journal.append(completed("c", "t", "2"))
    store._db.execute("PRAGMA query_only=0")
    assert [event.key for event in store.read("s")] == ["a"]  # type: ignore[union-attr]


async def test_concurrent_waiters_share_a_commit(store: SqliteStore) -> None:
    """Group commit: 200 waiters take far fewer transactions than 200 (counted, not timed)."""
    import asyncio

    transactions = 0
    execute = store._writer._execute

    def counting(batch):  # type: ignore[no-untyped-def]
        nonlocal transactions
        transactions += 1
        execute(batch)

    store._writer._execute = counting
    journal = store.create("s")
    transactions = 0
    await asyncio.gather(*(journal.commit(completed(f"k{n}", "t", str(n)), texts=["t"]) for n in range(200)))
    assert transactions <= 20
    await journal.close()


async def test_prompts_of_a_growing_transcript_take_linear_space(store: SqliteStore, tmp_path: Path) -> None:
    """Stored rows hold each part once and a reference, whatever private part stands behind the shared one."""
    from consilience.journal.store import PromptParts

    journal = store.create("s")
    sizes = {}
    for length in range(1, 401):
        shared = ("i", "k", *(f"q:A:message-{n}" for n in range(length)))
        parts = PromptParts((*shared, f"t:private-{length}"), len(shared))
        await journal.commit(completed(f"k{length}", "t", str(length), prompt=parts.id), texts=["t"], prompt=parts)
        if length in (200, 400):
            with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
                (sizes[length],) = db.execute("SELECT SUM(LENGTH(added) + 32) FROM prompts").fetchone()
    assert sizes[400] <= 2.2 * sizes[200]
    await journal.close()


async def test_damaged_record_raises_store_unusable(store: SqliteStore, tmp_path: Path) -> None:
    journal = store.create("s")
    await journal.commit(completed("a", "t"), texts=["t"])
    await journal.close()
    with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as db:
        db.execute('UPDATE events SET body=\'{"type":"no such event"}\'')
    with pytest.raises(StoreUnusable, match="journal cannot be used"):
        store.read("s")
