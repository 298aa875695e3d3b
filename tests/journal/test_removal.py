"""Removal from a SQLite journal deletes every byte of a session except texts that another session uses."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import get_args

import pytest
from pydantic import BaseModel

from consilience.domain.errors import StoreUnusable
from consilience.domain.events import AnyEvent, CallCompleted, CallStarted, SessionFinished, canonical_digest, text_id
from consilience.engine.runner import Options
from consilience.journal import sqlite_open
from consilience.journal.sqlite import SqliteStore
from consilience.journal.sqlite_open import ids_in, raw_id
from consilience.journal.store import PromptParts
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.baselines.solo import Solo
from journal.conformance import completed
from kit import forks, runner
from kit.cases import CALLING, Case
from kit.forks import PYTHONPATH
from kit.runs import seated, to_the_end

PLANTED = "The heron stood by the weir at half past four."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "journal.db")
    yield store
    store.close()


def files_with(sentence: str, directory: Path) -> list[str]:
    """Names of files that hold the sentence as bytes."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return [path.name for path in files if sentence.encode() in path.read_bytes()]


async def plant(store: SqliteStore, session: str, *, size: int = 1) -> None:
    """The sentence in a text, a prompt, an event, a note of a call in flight and the session's name."""
    journal = store.create(f"{session} {PLANTED}")
    parts = PromptParts((f"q:{PLANTED}:m", f"t:{text_id(PLANTED)}"), 1)
    for n in range(size):
        text = f"{n}: {PLANTED} " * 40
        event = completed(f"{n} {PLANTED}", text, str(n), prompt=parts.id)
        await journal.commit(event, texts=[text, PLANTED], prompt=parts)
    await journal.commit(CallStarted(place="9", key=PLANTED, agent=PLANTED))
    await journal.close()


@pytest.mark.parametrize("size", [1, 200], ids=["in one page", "in many"])
async def test_removal_leaves_no_byte_of_the_session_in_any_file(store: SqliteStore, tmp_path: Path, size: int) -> None:
    journal = store.create("kept")
    await journal.commit(completed("k", "another matter"), texts=["another matter"])
    await plant(store, "s", size=size)
    assert "journal.db-wal" in files_with(PLANTED, tmp_path)
    store.admin.remove([f"s {PLANTED}"])
    assert files_with(PLANTED, tmp_path) == []
    assert list((tmp_path / "journal.db.leases").iterdir()) == [tmp_path / "journal.db.leases" / "kept.lock"]
    await journal.commit(completed("l", "another matter", "1"))
    await journal.close()
    assert [event.key for event in store.read("kept")] == ["k", "l"]  # type: ignore[union-attr]


async def test_removal_wipes_checkpointed_pages_seen_by_another_process(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    await plant(store, "s", size=50)
    store.close()
    assert files_with(PLANTED, tmp_path) == ["journal.db"]
    other, store = SqliteStore(tmp_path / "journal.db"), SqliteStore(tmp_path / "journal.db")
    assert len(other.read(f"s {PLANTED}")) == 50
    store.admin.remove([f"s {PLANTED}"])
    assert files_with(PLANTED, tmp_path) == []
    assert other.sessions() == []
    before = (tmp_path / "journal.db").stat().st_size
    freed = store.admin.compact()
    assert freed > 0
    assert (tmp_path / "journal.db").stat().st_size == before - freed
    store.close()
    other.close()


async def test_removal_reports_a_reader_that_blocks_the_checkpoint(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_open, "MAX_CHECKPOINTS", 3)
    await plant(store, "s")
    reader = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT COUNT(*) FROM events").fetchone() == (1,)
    with pytest.raises(StoreUnusable, match="write-ahead log") as said:
        store.admin.remove([f"s {PLANTED}"])
    assert store._reader.execute("PRAGMA busy_timeout").fetchone() == (30_000,), "short for the log alone"
    assert "sessions gc" in str(said.value)
    assert store.sessions() == []
    reader.execute("COMMIT")
    reader.close()
    store.admin.compact()
    assert files_with(PLANTED, tmp_path) == []


KILLED = """
import os, signal, sys
from consilience.journal import sqlite as removal
from consilience.journal.sqlite import SqliteStore
setattr(removal, sys.argv[2], lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
SqliteStore(sys.argv[1]).admin.remove([sys.argv[3]])
"""
FULL = """
import resource, sys
from pathlib import Path
from subprocess import CompletedProcess
from consilience.domain.errors import StoreUnusable
from consilience.journal.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.sessions()
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
try:
    store.admin.remove([sys.argv[3]])
except StoreUnusable as error:
    print(error)
"""


def process(program: str, journal: Path, *arguments: str) -> CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(journal), *arguments]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return forks.run(command, env=env, capture_output=True, text=True, timeout=300)


async def test_removal_killed_midway_is_atomic_and_the_next_wipes_the_rest(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    await plant(store, "s", size=50)
    journal = store.create("kept")
    await journal.commit(completed("k", "another matter"), texts=["another matter"])
    await journal.close()
    store.close()
    done = process(KILLED, tmp_path / "journal.db", "empty_log", f"s {PLANTED}")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert files_with(PLANTED, tmp_path) != []
    store = SqliteStore(tmp_path / "journal.db")
    assert store.sessions() == ["kept"]
    store.admin.compact()
    assert files_with(PLANTED, tmp_path) == []
    assert store.text(text_id("another matter")) == "another matter"
    store.close()


async def test_removal_on_a_full_disk_removes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    await plant(store, "s", size=50)
    before = store.read(f"s {PLANTED}")
    store.close()
    done = process(FULL, tmp_path / "journal.db", "", f"s {PLANTED}")
    assert done.returncode == 0, done.stderr
    assert "the journal cannot be used" in done.stdout
    assert "Free space" in done.stdout
    store = SqliteStore(tmp_path / "journal.db")
    assert store.read(f"s {PLANTED}") == before
    assert store.text(text_id(PLANTED)) == PLANTED
    store.admin.remove([f"s {PLANTED}"])
    assert files_with(PLANTED, tmp_path) == []
    store.close()


# --- what is referred to


EVENT_TYPES: list[type[BaseModel]] = list(get_args(get_args(AnyEvent)[0]))


@pytest.mark.parametrize("event", EVENT_TYPES, ids=lambda event: event.__name__)
def test_ids_in_finds_an_id_in_any_field_of_any_event(event: type[BaseModel]) -> None:
    """Fields are walked as they are declared, so a new type or field is covered by being there."""
    names = set(event.model_fields) - {"type", "seq"}
    assert names
    for name in names:
        id = text_id(name)
        for value in (id, (id,), ({"id": "S1", "text": id},), {"ask": id}, {"a": {"b": [id]}}, f"t:{id}"):
            body = event.model_construct(**{name: value}).model_dump_json(warnings=False)
            assert ids_in(body) == [id], name


def test_ids_in_ignores_text_without_the_form_of_an_id() -> None:
    id = text_id("x")
    assert ids_in(f'{{"digest":"{id}a","key":"{id[:-1]}","other":"-{id}"}}') == []
    assert ids_in('{"satisfaction_threshold":0.7,"flags":["contradiction_detected"]}') == [], "words of that length"


async def begin(case: Case, store: SqliteStore, session: str, task: str) -> str:
    """Run a case to its end; returns the digest of its canonical journal."""
    seats = seated(case, ScriptedModel(case.script))
    begun = runner.start(
        task,
        case.protocol,
        sources=case.sources,
        models=seats,
        store=store,
        session=session,
        seed=len(task),
        options=Options(patience=0),
    )
    await to_the_end(store, seats, begun)
    return canonical_digest(store.read(session))


def report_of(store: SqliteStore) -> str:
    (finished,) = [event for event in store.read("kept") if isinstance(event, SessionFinished)]
    return finished.report


def rows(store: SqliteStore, table: str) -> set[bytes]:
    with closing(sqlite3.connect(store.path)) as db:
        return {row[0] for row in db.execute(f"SELECT id FROM {table}")}


@pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)
async def test_removal_of_a_similar_session_keeps_the_other_replayable(
    case: Case, store: SqliteStore, tmp_path: Path
) -> None:
    """What stays is exactly what the session would have stored alone."""
    digest = await begin(case, store, "kept", "Is it so?")
    await begin(case, store, "gone", "Was it ever so?")
    alone = SqliteStore(tmp_path / "alone.db")
    await begin(case, alone, "kept", "Is it so?")
    both = rows(store, "texts")
    store.admin.remove(["gone"])
    assert rows(store, "texts") < both
    for only, other in ((store, alone), (alone, store)):
        assert rows(only, "texts") - rows(other, "texts") <= {raw_id(report_of(only))}, (
            "reports differ by the time they took"
        )
    for event in store.read("kept"):
        if prompt := getattr(event, "prompt", ""):
            assert store.prompt(prompt) == alone.prompt(prompt)
    assert canonical_digest(store.read("kept")) == digest
    await runner.replay("kept", store=store)
    alone.close()


async def test_removal_keeps_shared_texts_of_a_session_before_its_first_reply(
    store: SqliteStore, tmp_path: Path
) -> None:
    """Both have the same instructions, and nothing of the one that waits names them yet."""
    await runner.start("Was it so?", Solo(), models=ScriptedModel(["Yes."]), store=store, session="gone")
    elsewhere = SqliteStore(tmp_path / "journal.db")

    def answer(request: ModelRequest) -> str:
        elsewhere.admin.remove(["gone"])
        return "It is so."

    await runner.start("Is it so?", Solo(), models=ScriptedModel(answer), store=store, session="kept")
    elsewhere.close()
    (said,) = [event for event in store.read("kept") if isinstance(event, CallCompleted)]
    instructions, *_ = store.prompt(said.prompt)
    assert store.text(instructions.removeprefix("i:")) == Solo.load_templates().render("instructions")
