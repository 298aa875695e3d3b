"""A journal of an older schema is migrated in one transaction, and read as it is where it cannot be written."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from consilience.domain.errors import SettingsError, StoreUnusable
from consilience.domain.events import SCHEMA_VERSION
from consilience.journal import migrations
from consilience.journal.open_store import open_store
from consilience.journal.sqlite import SqliteStore
from kit import forks

FIXTURE_JOURNAL = Path(__file__).parent.parent / "fixtures" / "journals" / "schema-1-emergence-1.db"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A journal of schema 1 from before the table `held`."""
    path = tmp_path / "journal.db"
    shutil.copy(FIXTURE_JOURNAL, path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE IF EXISTS held")
    db.close()
    return path


def layout(path: Path) -> tuple[int, list[tuple[str, str]]]:
    db = sqlite3.connect(path)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    columns = db.execute(
        "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.name NOT GLOB 'sqlite_*' ORDER BY 1, 2"
    ).fetchall()
    db.close()
    return version, columns


async def test_old_journal_is_migrated_to_the_current_tables(old: Path, tmp_path: Path) -> None:
    assert layout(old)[0] == 1
    store = SqliteStore(old)
    events = store.read("plain")
    journal = store.open("plain")
    assert journal.seconds() == 0.0
    journal.note_seconds(2.5)
    await journal.close()
    store.close()
    SqliteStore(tmp_path / "new.db").close()
    assert layout(old) == layout(tmp_path / "new.db")
    assert layout(old)[0] == SCHEMA_VERSION
    again = SqliteStore(old)
    assert again.read("plain") == events
    again.close()


def test_failed_migration_leaves_the_journal_unchanged(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = layout(old)

    def half(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE half_made(n)")
        db.execute("DELETE FROM events")
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as changed:
        changed.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS[:-1], half])
        with pytest.raises(StoreUnusable):
            SqliteStore(old, writing=True)
    assert layout(old) == before
    store = SqliteStore(old)
    assert len(store.read("plain")) == 31
    store.close()


def test_a_migration_killed_before_its_commit_leaves_the_old_journal(old: Path) -> None:
    before = layout(old)
    program = """
import os, signal, sys
from consilience.journal import migrations
from consilience.journal.sqlite import SqliteStore

def killed(db):
    db.execute("DELETE FROM events")
    db.execute("CREATE TABLE half_made(n)")
    os.kill(os.getpid(), signal.SIGKILL)

migrations.MIGRATIONS[-1] = killed
SqliteStore(sys.argv[1])
"""
    done = forks.run([sys.executable, "-c", program, str(old)], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert layout(old) == before
    store = SqliteStore(old)
    assert len(store.read("plain")) == 31
    store.close()


def test_migrations_are_numbered_without_gaps() -> None:
    with pytest.raises(ValueError, match="the next migration is"):
        migrations.migration(len(migrations.MIGRATIONS) + 2)(lambda db: None)
    assert len(migrations.MIGRATIONS) == SCHEMA_VERSION


@pytest.mark.skipif(not hasattr(os, "fork"), reason="rights of a directory")
def test_old_journal_in_a_read_only_directory_is_read_without_migration(old: Path) -> None:
    directory = Path(tempfile.mkdtemp())
    path = directory / "journal.db"
    shutil.move(old, path)
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
        assert len(asyncio.run(store.reader.read("plain"))) == 31
        assert store.open("plain").seconds() == 0.0
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
