"""A journal is created whole, of this schema, and read as it is where it cannot be written."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from contextlib import closing
from pathlib import Path

import pytest

from consilience.domain.errors import SettingsError, StoreUnusable
from consilience.journal.open_store import open_store
from consilience.journal.sqlite import SqliteStore
from kit import forks

FIXTURE_JOURNAL = Path(__file__).parent.parent / "fixtures" / "journals" / "emergence.db"


@pytest.mark.parametrize("version", [1, 2])
def test_journal_of_a_development_version_is_refused_unchanged_with_advice(version: int, tmp_path: Path) -> None:
    path = Path(shutil.copy(FIXTURE_JOURNAL, tmp_path / "journal.db"))
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"DROP TABLE arrivals; PRAGMA user_version={version}")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(
            StoreUnusable, match=rf"development version \(schema {version}; this one reads 7\)"
        ) as refused:
            SqliteStore(path)
        assert str(path) in refused.value.where
        assert "Move it away" in refused.value.do
    assert path.read_bytes() == before


def older(path: Path) -> Path:
    """A journal as schema 3 wrote it."""
    SqliteStore(shutil.copy(FIXTURE_JOURNAL, path)).close()  # of this schema
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "DROP TABLE mail; DROP TABLE links; DROP TABLE opinions; "
            "DROP TABLE claims; DROP TABLE spent; ALTER TABLE sessions DROP COLUMN owner; "
            "ALTER TABLE sessions DROP COLUMN name; PRAGMA user_version=3"
        )
    return path


def test_journal_of_schema_3_is_brought_to_this_one(tmp_path: Path) -> None:
    now = SqliteStore(shutil.copy(FIXTURE_JOURNAL, tmp_path / "now.db"))
    before = SqliteStore(older(tmp_path / "journal.db"))
    assert before.sessions() == now.sessions()
    for session in now.sessions():
        assert (before.read(session), before.owner(session), before.mail(session)) == (now.read(session), "", [])
    before.close()
    now.close()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (7,)


def test_journal_of_schema_3_is_migrated_once_by_processes_that_open_it_together(tmp_path: Path) -> None:
    path = older(tmp_path / "journal.db")
    program = "import sys; from consilience.journal.sqlite import SqliteStore; print(len(SqliteStore(sys.argv[1]).sessions()))"
    opening = [
        forks.Fork([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    ended = [process.communicate(timeout=300) for process in opening]
    assert {process.returncode for process in opening} == {0}, ended
    assert len({out for out, _ in ended}) == 1


def test_journal_whose_creation_is_killed_is_created_by_the_next_process(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from consilience.journal import sqlite_open
from consilience.journal.sqlite import SqliteStore

class Killing(dict):
    def items(self):
        yield from super().items()
        os.kill(os.getpid(), signal.SIGKILL)

sqlite_open.TABLES = Killing(sqlite_open.TABLES)
SqliteStore(sys.argv[1])
"""
    path = tmp_path / "journal.db"
    done = forks.run([sys.executable, "-c", program, str(path)], capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == []
    store = SqliteStore(path)
    store.create("s").release()
    assert store.sessions() == ["s"]
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="rights of a directory")
def test_journal_in_a_read_only_directory_is_read_and_left_alone() -> None:
    directory = Path(tempfile.mkdtemp())
    path = Path(shutil.copy(FIXTURE_JOURNAL, directory / "journal.db"))
    SqliteStore(path).close()  # of this schema
    path.chmod(0o444)
    directory.chmod(0o555)
    before = path.read_bytes()
    SqliteStore(":memory:").close()  # everything that it imports may be unreadable for another user
    child = os.fork()
    if child == 0:
        os._exit(_read_as_another_user(path))
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert path.read_bytes() == before
        assert [entry.name for entry in directory.iterdir()] == ["journal.db"]
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


def _read_as_another_user(path: Path) -> int:
    """Exit code 0 if the journal is read and not written."""
    try:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        store = SqliteStore(path)
        assert store.refused is not None
        assert asyncio.run(store.reader.run(lambda records: records.read("plain")))[-1].type == "session_finished"
        assert store.open("plain").seconds() >= 0.0
        with pytest.raises(StoreUnusable):
            store.create("new")
        store.close()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def test_store_address_of_an_unknown_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="no store for postgresql://"):
        open_store("postgresql://localhost/consilience")
    monkeypatch.setenv("CONSILIENCE_JOURNAL", "postgresql://localhost/consilience")
    with pytest.raises(SettingsError, match="CONSILIENCE_JOURNAL"):
        open_store()


def test_default_journal_is_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSILIENCE_JOURNAL", str(tmp_path / "elsewhere" / "mine.db"))
    open_store().close()
    assert (tmp_path / "elsewhere" / "mine.db").exists()


def test_journal_of_an_older_schema_that_cannot_be_written_is_not_called_too_old(tmp_path: Path) -> None:
    path = older(tmp_path / "journal.db")
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)); "
        "from consilience.journal.sqlite import SqliteStore; SqliteStore(sys.argv[1])"
    )
    opened = forks.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=300)
    assert (opened.returncode, "Free space or rights" in opened.stderr) == (1, True), opened.stderr
    assert "Move it away" not in opened.stderr
    SqliteStore(path).close()
