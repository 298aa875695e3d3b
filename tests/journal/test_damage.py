"""Damaged journals: no session is wrongly reported as unfinished and no text wrongly removed."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from consilience.cli.main import app
from consilience.domain.errors import StoreUnusable
from consilience.domain.events import AnyEvent
from consilience.journal.sqlite import SqliteStore
from consilience.journal.sqlite_open import TABLES

FIXTURE_JOURNAL = Path(__file__).parent.parent / "fixtures" / "journals" / "emergence.db"
PAGE = 4096
PAIRS = list(itertools.combinations(range(1, FIXTURE_JOURNAL.stat().st_size // PAGE), 2))


@pytest.fixture
def journal(home: Path) -> Path:
    return Path(shutil.copy(FIXTURE_JOURNAL, home / "journal.db"))


def exchange(journal: Path, left: int, other: int) -> None:
    """Two pages, as by a disk that wrote each where the other belongs; the first is 0."""
    data = bytearray(FIXTURE_JOURNAL.read_bytes())
    first, second = (slice(n * PAGE, (n + 1) * PAGE) for n in (left, other))
    data[first], data[second] = data[second], data[first]
    journal.write_bytes(data)


def sessions_of(path: Path) -> dict[str, list[AnyEvent]]:
    with closing(SqliteStore(path)) as store:
        return {session: store.read(session) for session in store.sessions()}


def command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments, prog_name="consilience")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout + done.stderr


@pytest.fixture(scope="module")
def undamaged_sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[AnyEvent]]:
    return sessions_of(Path(shutil.copy(FIXTURE_JOURNAL, tmp_path_factory.mktemp("right") / "journal.db")))


@pytest.mark.matrix(keep=60, whole=600)
@pytest.mark.parametrize("pages", PAIRS)
def test_journal_with_two_pages_exchanged_is_read_correctly_or_refused(
    pages: tuple[int, int], journal: Path, undamaged_sessions: dict[str, list[AnyEvent]]
) -> None:
    exchange(journal, *pages)
    try:
        store = SqliteStore(journal)
    except StoreUnusable:
        return
    with closing(store):
        read: dict[str, list[AnyEvent]] = {}
        refused: list[str] = []
        for session in undamaged_sessions:
            try:
                read[session] = store.read(session)
            except StoreUnusable as error:
                refused.append(str(error))
        assert read == {session: undamaged_sessions[session] for session in read}
        assert all(".recover" in text for text in refused)


def find_hiding_pages(journal: Path) -> tuple[int, int]:
    """Pages whose exchange hides the events of the finished session `plain` without an error of SQLite's."""
    for pages in PAIRS:
        exchange(journal, *pages)
        with closing(sqlite3.connect(journal)) as db:
            try:
                rows = db.execute(
                    "SELECT COUNT(*) FROM events WHERE session=(SELECT n FROM sessions WHERE id='plain')"
                ).fetchall()
                others = db.execute("SELECT COUNT(*) FROM sessions").fetchall()
            except sqlite3.DatabaseError:
                continue
        if rows == [(0,)] and others == [(9,)]:
            return pages
    raise AssertionError("there is no such pair")


@pytest.fixture
def journal_with_hidden_events(journal: Path) -> Path:
    exchange(journal, *find_hiding_pages(journal))
    return journal


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "plain"),
        ("show", "plain", "--json"),
        ("export", "plain"),
        ("resume", "plain", "--yes"),
        ("replay", "plain"),
        ("fork", "plain", "--at", "end", "--yes"),
        ("sessions", "list"),
        ("sessions", "answer", "plain"),
    ],
    ids=" ".join,
)
def test_finished_session_in_a_damaged_journal_is_not_shown_as_killed(
    journal_with_hidden_events: Path, arguments: tuple[str, ...]
) -> None:
    code, output = command(*arguments)
    assert code == 2
    assert "damaged" in output
    assert ".recover" in output
    assert "killed before" not in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("sessions", "rm", "plain", "--yes"),
        ("sessions", "gc"),
        ("sessions", "gc", "--older-than", "0m", "--all", "--yes"),
        ("sessions", "gc", "--older-than", "0m", "--dry-run"),
    ],
    ids=" ".join,
)
def test_removal_from_a_damaged_journal_is_refused(
    journal_with_hidden_events: Path, arguments: tuple[str, ...]
) -> None:
    """What only misplaced records refer to would go for good."""
    command("sessions", "list")
    with closing(sqlite3.connect(journal_with_hidden_events)) as db:
        before = [db.execute(f"SELECT COUNT(*) FROM {table}").fetchall() for table in ("sessions", "texts", "prompts")]
    code, output = command(*arguments)
    assert code == 2
    assert "damaged" in output
    with closing(sqlite3.connect(journal_with_hidden_events)) as db:
        after = [db.execute(f"SELECT COUNT(*) FROM {table}").fetchall() for table in ("sessions", "texts", "prompts")]
    assert after == before


def read_with_prompts(path: Path, session: str) -> None:
    with closing(SqliteStore(path)) as store:
        for event in store.read(session):
            if prompt := getattr(event, "prompt", ""):
                store.prompt(prompt)


def run(change: str) -> Callable[[Path], None]:
    def execute(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.executescript(change)

    return execute


@pytest.mark.parametrize("table", TABLES)
def test_missing_table_is_reported_and_not_created(journal: Path, table: str) -> None:
    SqliteStore(journal).close()  # of this schema
    run(f"DROP TABLE {table}")(journal)
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=f"the journal is damaged: the table {table} is missing"):
            SqliteStore(journal)
    with closing(sqlite3.connect(journal)) as db:
        assert not db.execute("SELECT 1 FROM sqlite_master WHERE name=?", (table,)).fetchall()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ALTER TABLE texts RENAME COLUMN body TO words", "the table texts has no column body"),
        ("PRAGMA user_version=0", "it has records and no version"),
        ("DELETE FROM events WHERE seq=3", "events of session plain are missing"),
        ("UPDATE prompts SET added=replace(added, 'k:', 'K:')", "is damaged"),
    ],
)
def test_damaged_record_or_schema_is_reported(journal: Path, change: str, expected: str) -> None:
    run(change)(journal)
    with pytest.raises(StoreUnusable, match=expected):
        read_with_prompts(journal, "plain")


@pytest.mark.parametrize("version", [0, 1, 3])
def test_database_of_another_program_is_refused_unchanged(home: Path, version: int) -> None:
    path = home / "journal.db"
    run(f"CREATE TABLE bookmarks(url TEXT); PRAGMA user_version={version}")(path)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=r"a database of another program: it has a table 'bookmarks'"):
        SqliteStore(path)
    assert path.read_bytes() == before
