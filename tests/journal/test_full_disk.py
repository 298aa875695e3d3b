"""Commits that fail for want of room, and what is written once there is room again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from consilience.domain.errors import CommitFailed, StoreUnusable
from consilience.journal.sqlite import SqliteStore
from journal.conformance import completed
from kit.full_disks import fill, free

LONG = os.urandom(40_000).hex()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with_path = SqliteStore(tmp_path / "j.db")
    yield with_path
    with suppress(StoreUnusable):
        with_path.close()


async def test_session_whose_commit_failed_writes_no_more_until_it_is_opened_again(store: SqliteStore) -> None:
    journal = store.create("s")
    await journal.commit(completed("a", "t"), texts=["t"])
    fill(store)
    with pytest.raises(CommitFailed, match="full"):
        await journal.commit(completed("b", LONG, "1"), texts=[LONG])
    free(store)
    with pytest.raises(CommitFailed):
        journal.append(completed("c", "t", "2"))
    with pytest.raises(CommitFailed):
        await journal.close()
    again = store.open("s")
    await again.commit(completed("b", LONG, "1"), texts=[LONG])
    await again.close()
    events = store.read("s")
    assert [(event.seq, event.key) for event in events] == [(1, "a"), (2, "b")]  # type: ignore[union-attr]
    assert store.text(events[1].text) == LONG  # type: ignore[union-attr]


async def test_session_that_had_no_part_in_a_failed_commit_goes_on(store: SqliteStore) -> None:
    failing, other = store.create("failing"), store.create("other")
    fill(store)
    with pytest.raises(CommitFailed):
        await failing.commit(completed("a", LONG), texts=[LONG])
    await other.commit(completed("a", "t"), texts=["t"])
    assert len(store.read("other")) == 1
    free(store)
    await other.close()


async def test_commit_that_nobody_awaited_is_reported_by_the_next_one(store: SqliteStore) -> None:
    journal = store.create("s")
    fill(store)
    journal.append(completed("a", LONG), texts=[LONG])
    store._writer.flush()
    free(store)
    with pytest.raises(CommitFailed):
        await journal.commit(completed("b", "t"), texts=["t"])
    assert store.read("s") == []


def test_closing_reports_a_failed_commit_that_was_not_reported(store: SqliteStore) -> None:
    journal = store.create("s")
    fill(store)
    journal.append(completed("a", LONG), texts=[LONG])
    with pytest.raises(CommitFailed):
        store.close()


async def test_journal_counts_as_writable_again_when_there_is_room(store: SqliteStore) -> None:
    journal = store.create("s")
    fill(store)
    with pytest.raises(CommitFailed):
        await journal.commit(completed("a", LONG), texts=[LONG])
    for _ in range(2):
        with pytest.raises(CommitFailed):
            store.check_writable()
    free(store)
    store.check_writable()
    assert store._db.execute("SELECT COUNT(*) FROM held").fetchone() == (0,)
    store.rename("s", "named")
