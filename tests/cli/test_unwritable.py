"""A read-only or full journal: reading commands work, writing commands report a remedy."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.town import MODEL, TASK, Cli, Town, recorded
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore
from kit import forks
from kit.forks import PYTHONPATH

FILES = ("journal.db", "journal.db-wal", "journal.db-shm")
RESTRICTED = """
import ctypes, json, os, resource, sys
if sys.argv[1] == "full":  # no file can grow, for root as for anybody; what SQLite is told is what a full disk tells it
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
if sys.argv[1] == "shut" and os.geteuid() == 0:  # what the bits of files and directories say holds for root, too
    libc, header, rights = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    override, read_and_search = 1 << 1, 1 << 2
    libc.capget(header, rights)
    for kind in (0, 1):  # effective, and permitted, by which access(2) goes
        rights[kind] &= ~(override | read_and_search)
    if libc.capset(header, rights):
        sys.exit("cannot")
from typer.testing import CliRunner
from consilience.cli.main import app
results = [CliRunner().invoke(app, arguments) for arguments in json.loads(sys.argv[2])]
print(json.dumps([[done.exit_code, done.stdout, done.stderr] for done in results]))
"""


@dataclass
class Done:
    exit_code: int
    stdout: str
    stderr: str


def commands(how: str, arguments: Sequence[Sequence[str]], home: Path) -> list[Done]:
    """The commands, one after the other in a process that is so restricted."""
    done = forks.run(
        [sys.executable, "-c", RESTRICTED, how, json.dumps(arguments)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home)},
        timeout=300,
    )
    if done.stderr.strip() == "cannot":
        pytest.skip("root may write anywhere here")
    assert done.returncode == 0, done.stderr
    return [Done(*result) for result in json.loads(done.stdout)]


@pytest.fixture
def sessions(cli: Cli, town: Town) -> list[str]:
    """Two finished ones."""
    for rounds in ("1", "2"):
        assert cli("emergence", TASK, "--model", MODEL, "--max-rounds", rounds).exit_code == 0
    return recorded()


@pytest.fixture
def archived(sessions: list[str], tmp_path: Path) -> Callable[[Sequence[str]], Path]:
    """Those files of the journal, as they lay while somebody wrote to it, in a home of their own."""

    def copy(names: Sequence[str]) -> Path:
        home = tmp_path / "archive"
        home.mkdir()
        store = SqliteStore(journal_path())
        if len(names) > 1:
            store.create("written to the log").release()
        else:
            store.close()
        for name in names:
            shutil.copy(journal_path().with_name(name), home)
        store.close()
        return home

    return copy


def shut(home: Path) -> None:
    for path in home.iterdir():
        path.chmod(0o400)
    home.chmod(0o500)


@pytest.mark.parametrize(
    ("how", "files"),
    [("full", 1), ("full", 2), ("full", 3), ("shut", 1), ("shut", 3)],
    ids=["full", "full, with a log", "full, with a log and its index", "shut", "shut, with a log and its index"],
)
def test_reading_commands_work_in_a_read_only_home(
    how: str, files: int, sessions: list[str], archived: Callable[[Sequence[str]], Path]
) -> None:
    one, other = sessions
    home = archived(FILES[:files])
    asked = [
        ("sessions", "list", "--json"),
        *(("show", one), ("show", one, "--view", "tree"), ("show", one, "--events")),
        *(("export", one, "--format", format) for format in ("json", "markdown", "html", "svg", "events")),
        ("diff", one, other),
        ("sessions", "gc", "--dry-run", "--older-than", "0m"),
    ]
    free = commands("", asked, journal_path().parent)
    if how == "shut":
        shut(home)
    *bound, replayed = commands(how, [*asked, ("replay", other)], home)
    assert [done.exit_code for done in free] == [0] * len(asked)
    assert [done.stdout for done in bound] == [done.stdout for done in free]
    assert replayed.exit_code == 0, replayed.stderr
    assert "0 calls" in replayed.stdout
    listed = [row["session"] for row in json.loads(bound[0].stdout)]
    assert ("written to the log" in listed) == (files > 1)


@pytest.mark.parametrize("how", ["full", "shut"])
def test_writing_commands_in_a_read_only_home_are_refused(
    how: str, sessions: list[str], archived: Callable[[Sequence[str]], Path], cli: Cli, town: Town
) -> None:
    town.reply = lambda request: RuntimeError("boom")
    assert cli("emergence", TASK, "--model", MODEL).exit_code == 1
    home = archived(FILES[:1])
    before = (home / "journal.db").read_bytes()
    if how == "shut":
        shut(home)
    rm, gc, *runs = commands(
        how,
        [
            ("sessions", "rm", "last", "--yes"),
            ("sessions", "gc"),
            ("solo", TASK, "--model", "exec:cat", "--yes"),
            ("resume", "last", "--yes"),
        ],
        home,
    )
    for done in (rm, gc, *runs):
        assert done.exit_code == 2
        said = done.stderr.splitlines()[-1]
        assert said.startswith("Error: ")
        assert "the journal cannot be used: " in said
        assert str(home / "journal.db") in said
        assert "CONSILIENCE_HOME" in said
    assert ("move its directory to a disk with room" in rm.stderr) == (how == "full")
    assert "nothing was removed" in rm.stderr or how == "shut"
    assert (home / "journal.db").read_bytes() == before


def test_running_session_is_detected_in_a_read_only_home(cli: Cli, town: Town, home: Path) -> None:
    town.reply = lambda request: RuntimeError("boom")
    assert cli("emergence", TASK, "--model", MODEL).exit_code == 1
    (session,) = recorded()
    store = SqliteStore(journal_path())
    journal = store.open(session)
    for path in (*home.rglob("*"), home):
        path.chmod(0o500)
    (meanwhile,) = commands("shut", [("sessions", "list", "--json")], home)
    journal.release()
    (afterwards,) = commands("shut", [("sessions", "list", "--json")], home)
    for path in (home, *home.rglob("*")):
        path.chmod(0o700)
    store.close()
    assert [json.loads(done.stdout)[0]["state"] for done in (meanwhile, afterwards)] == ["running", "unfinished"]
