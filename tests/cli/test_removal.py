"""`sessions rm` and `sessions gc`: who is asked, what goes, what stays."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import typer

from cli.town import MODEL, TASK, Cli, Town, recorded, sensible
from consilience.cli import session_admin
from consilience.domain.errors import SettingsError
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteAdmin, SqliteJournal, SqliteStore
from consilience.models.port import ModelRequest

RUN = ("emergence", TASK, "--model", MODEL, "--max-rounds", "1")
OTHER = "Should the ferry to the island run in winter?"
DAY = 86_400


@pytest.fixture
def session(cli: Cli, town: Town) -> str:
    """A finished one."""
    assert cli(*RUN).exit_code == 0
    return recorded()[-1]


@pytest.fixture
def broken_off(cli: Cli, town: Town) -> str:
    def never(request: ModelRequest) -> object:
        raise RuntimeError("boom")

    town.reply = never
    assert cli("emergence", OTHER, "--model", MODEL).exit_code == 1
    town.reply = sensible
    return recorded()[-1]


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(journal_path())
    yield store
    store.close()


class Terminal:
    """Somebody who sits at the terminal and answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
        self.asked: list[str] = []

        def confirm(text: str, **options: object) -> bool:
            self.asked.append(text)
            return answer

        monkeypatch.setattr(typer, "confirm", confirm)
        monkeypatch.setattr(session_admin, "can_confirm", lambda: True)


def aged(session: str, seconds: float) -> None:
    """Let a session have begun so long ago."""
    db = sqlite3.connect(journal_path())
    with db:
        db.execute("UPDATE sessions SET created=? WHERE id=?", (int((time.time() - seconds) * 1000), session))
    db.close()


def bytes_of_the_journal() -> bytes:
    return b"".join(path.read_bytes() for path in journal_path().parent.glob("journal.db*") if path.is_file())


# --- rm


def test_rm_removes_sessions_and_every_byte_of_their_tasks(cli: Cli, session: str, broken_off: str) -> None:
    assert OTHER.encode() in bytes_of_the_journal()
    result = cli("sessions", "rm", broken_off[:5], "--yes")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"1 session removed ({broken_off}); ")
    assert recorded() == [session]
    assert OTHER.encode() not in bytes_of_the_journal()
    assert broken_off.encode() not in bytes_of_the_journal()
    assert cli("show", session).exit_code == 0
    assert "events matched, 0 calls" in cli("replay", session).stdout
    assert cli("show", broken_off).exit_code == 2


def test_rm_removes_several_sessions_each_once(cli: Cli, session: str, broken_off: str) -> None:
    result = cli("sessions", "rm", session, broken_off, session[:6], "--yes", "--json")
    output = json.loads(result.stdout)
    assert output["removed"] == [session, broken_off]
    assert output["bytes_freed"] > 0
    assert recorded() == []
    assert cli("sessions", "list").stdout == "No session is recorded.\n"


def test_rm_without_a_terminal_or_consent_is_refused(cli: Cli, session: str) -> None:
    result = cli("sessions", "rm", session)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "Error: this would remove 1 session for good and there is no terminal to confirm it."
    )
    assert "--yes" in result.stderr
    assert recorded() == [session]


@pytest.mark.parametrize("answer", [True, False])
def test_rm_on_a_terminal_lists_sessions_and_asks(
    cli: Cli, session: str, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(monkeypatch, answer)
    result = cli("sessions", "rm", "last")
    assert terminal.asked == ["Remove 1 session for good?"]
    assert f"{session} " in result.stderr
    assert TASK[:40] in result.stderr
    assert result.exit_code == (0 if answer else 2)
    assert ("Nothing was removed." in result.stderr) is not answer
    assert recorded() == ([] if answer else [session])


@pytest.mark.parametrize("rounds", ["1", "3"])
@pytest.mark.parametrize("command", [("rm", "last", "--yes"), ("gc", "--older-than", "0m", "--dry-run")])
def test_line_of_a_finished_session_needs_two_events_and_the_task(
    cli: Cli, town: Town, command: tuple[str, ...], rounds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the session is, and whatever its report holds."""
    assert cli("emergence", TASK, "--model", MODEL, "--max-rounds", rounds).exit_code == 0
    decoded: list[int] = []
    texts: list[str] = []
    event, read = SqliteStore._event, SqliteStore.texts
    monkeypatch.setattr(SqliteStore, "_event", lambda self, seq, body: (decoded.append(seq), event(self, seq, body))[1])
    monkeypatch.setattr(
        SqliteStore, "texts", lambda self, ids: (texts.extend(read(self, ids).values()), read(self, ids))[1]
    )
    assert cli("sessions", *command).exit_code == 0
    assert (decoded[0], len(decoded), texts) == (1, 2, [TASK])


def test_rm_of_many_sessions_lists_all_sessions_once(cli: Cli, town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        assert cli("solo", f"{n}?", "--model", MODEL, "-q").exit_code == 0
    ids, listings = recorded(), []
    listed = SqliteStore.sessions
    monkeypatch.setattr(SqliteStore, "sessions", lambda self: (listings.append(1), listed(self))[1])
    assert cli("sessions", "rm", *ids, "last", "--yes").exit_code == 0
    assert len(listings) == 1


def test_rm_with_a_running_session_removes_nothing(cli: Cli, session: str, broken_off: str, store: SqliteStore) -> None:
    journal = store.open(broken_off)
    result = cli("sessions", "rm", session, broken_off, "--yes")
    journal.release()
    assert result.exit_code == 2
    assert f"session {broken_off} is being run by process" in result.stderr
    assert recorded() == [session, broken_off]


@pytest.mark.parametrize("arguments", [("zzz",), ("r",), ()])
def test_rm_with_an_unknown_id_removes_nothing(
    cli: Cli, session: str, broken_off: str, arguments: tuple[str, ...]
) -> None:
    assert cli("sessions", "rm", *arguments, "--yes").exit_code == 2
    assert recorded() == [session, broken_off]


def test_rm_removes_an_unreadable_session(cli: Cli, session: str) -> None:
    db = sqlite3.connect(journal_path())
    with db:
        db.execute('UPDATE events SET body=\'{"type":"of another age"}\'')
    db.close()
    aged(session, 90 * DAY)
    kept = cli("sessions", "gc", "--older-than", "30d", "--yes")
    assert f"consilience sessions rm {session}" in kept.stderr
    assert recorded() == [session]
    assert cli("sessions", "rm", session, "--yes").exit_code == 0
    assert recorded() == []


# --- gc


def test_gc_removes_old_finished_sessions(cli: Cli, session: str, broken_off: str) -> None:
    assert cli(*RUN).exit_code == 0
    young = recorded()[-1]
    aged(session, 31 * DAY)
    aged(broken_off, 31 * DAY)
    aged(young, 29 * DAY)
    result = cli("sessions", "gc", "--older-than", "30d", "--yes")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"1 session removed ({session}); ")
    assert recorded() == [broken_off, young], "one can be gone on with, the other is young"
    assert "events matched, 0 calls" in cli("replay", young).stdout


def test_gc_reads_no_session_that_it_keeps(
    cli: Cli, session: str, broken_off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(session, 31 * DAY)
    aged(broken_off, 31 * DAY)
    read: list[str] = []
    whole = SqliteStore.read
    monkeypatch.setattr(SqliteStore, "read", lambda self, id, *more: (read.append(id), whole(self, id, *more))[1])
    assert session in cli("sessions", "gc", "--older-than", "30d", "--dry-run").stdout
    assert read == []
    assert broken_off in cli("sessions", "gc", "--older-than", "30d", "--all", "--dry-run").stdout
    assert read == [broken_off], "the state of one that may be resumed follows from all its events"


def test_gc_all_removes_unfinished_but_no_running_sessions(
    cli: Cli, session: str, broken_off: str, store: SqliteStore
) -> None:
    for removed in (session, broken_off):
        aged(removed, 2 * DAY)
    journal = store.open(broken_off)
    assert f"({session})" in cli("sessions", "gc", "--older-than", "1d", "--all", "--yes").stdout
    journal.release()
    assert recorded() == [broken_off]
    assert f"({broken_off})" in cli("sessions", "gc", "--older-than", "1d", "--all", "--yes").stdout
    assert recorded() == []


def test_gc_dry_run_prints_sessions_and_size(cli: Cli, session: str, broken_off: str) -> None:
    aged(session, 15 * DAY)
    result = cli("sessions", "gc", "--older-than", "2w", "--dry-run")
    assert result.exit_code == 0
    line, total = result.stdout.splitlines()
    assert line.startswith(f"{session} ")
    assert "finished" in line
    assert total.startswith("1 session would be removed, ")
    output = json.loads(cli("sessions", "gc", "--older-than", "2w", "--dry-run", "--json").stdout)
    assert [row["session"] for row in output["would_remove"]] == [session]
    assert output["bytes"] > len(TASK)
    assert recorded() == [session, broken_off]


def test_gc_removes_in_batches(cli: Cli, town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session of a removal holds a file open, of which a process may have a few hundred."""
    for n in range(5):
        assert cli("solo", f"{n}?", "--model", MODEL, "-q").exit_code == 0
    monkeypatch.setattr(session_admin, "MAX_REMOVED_AT_ONCE", 2)
    sizes: list[int] = []
    remove = SqliteAdmin.remove
    monkeypatch.setattr(SqliteAdmin, "remove", lambda self, some: (sizes.append(len(some)), remove(self, some)))
    assert cli("sessions", "gc", "--older-than", "0m", "--yes").exit_code == 0
    assert sizes == [2, 2, 1]
    assert recorded() == []


def test_gc_skips_sessions_removed_or_resumed_meanwhile(
    cli: Cli, town: Town, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        assert cli("solo", f"{n}?", "--model", MODEL, "-q").exit_code == 0
    gone, held, *others = recorded()
    remove = SqliteAdmin.remove
    leases: list[SqliteJournal] = []

    def meanwhile(self: SqliteAdmin, some: Collection[str]) -> None:
        if not leases:
            leases.append(store.open(held))
            remove(self, [gone])
        remove(self, some)

    monkeypatch.setattr(SqliteAdmin, "remove", meanwhile)
    result = cli("sessions", "gc", "--older-than", "0m", "--yes", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["removed"] == others
    assert recorded() == [held]
    leases[0].release()


@pytest.mark.parametrize("command", [("list",), ("gc", "--dry-run", "--older-than", "0m")], ids=["list", "gc"])
def test_list_skips_sessions_removed_meanwhile(
    cli: Cli, session: str, command: tuple[str, ...], store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("solo", "And?", "--model", MODEL, "-q").exit_code == 0
    read = SqliteStore.read

    def meanwhile(self: SqliteAdmin, id: str) -> object:
        events = read(self, id)
        if session in store.sessions():
            store.admin.remove([session])
        return events

    monkeypatch.setattr(SqliteStore, "read", meanwhile)
    result = cli("sessions", *command)
    assert result.exit_code == 0, result.stderr
    assert recorded()[0] in result.stdout


def test_gc_asks_for_consent(cli: Cli, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    aged(session, 2 * DAY)
    assert cli("sessions", "gc", "--older-than", "1d").exit_code == 2
    terminal = Terminal(monkeypatch, False)
    assert cli("sessions", "gc", "--older-than", "1d").exit_code == 2
    assert terminal.asked == ["Remove 1 session for good?"]
    assert recorded() == [session]


def test_gc_without_an_age_only_compacts(cli: Cli, session: str) -> None:
    aged(session, 900 * DAY)
    result = cli("sessions", "gc")
    assert result.exit_code == 0
    assert result.stdout.startswith("0 sessions removed; ")
    assert recorded() == [session]


def test_gc_keeps_a_session_started_in_the_future(cli: Cli, session: str) -> None:
    """The clock was set back since."""
    aged(session, -400 * DAY)
    assert cli("sessions", "gc", "--older-than", "1m", "--yes").stdout.startswith("0 sessions removed")
    assert recorded() == [session]
    assert session in cli("sessions", "list").stdout


@pytest.mark.parametrize(
    ("text", "seconds"), [("45m", 2700), ("12h", 43_200), (" 30d ", 30 * DAY), ("1.5w", 10.5 * DAY)]
)
def test_age_option_reads_units(text: str, seconds: float) -> None:
    assert session_admin.age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "30 days", "-1d", "1y", "1e3d", "٣d", "9999999d"])
def test_gc_invalid_age_is_reported(text: str) -> None:
    with pytest.raises(SettingsError, match="invalid age") as error:
        session_admin.age(text)
    assert "30d" in str(error.value)


def test_removal_without_a_journal_does_nothing(cli: Cli, home: Path) -> None:
    for command in (("rm", "last", "--yes"), ("gc", "--older-than", "1d", "--yes")):
        result = cli("sessions", *command)
        assert result.exit_code == 2
        assert "no session is recorded yet" in result.stderr
    assert not journal_path().exists()
