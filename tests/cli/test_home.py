"""The home directory: private to its owner, unchanged if it has other files, refused if another user owns it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.test_unwritable import commands
from cli.town import MODEL, TASK, Cli, Town, recorded
from consilience.domain.errors import SettingsError
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore

FIXTURE_JOURNAL = Path(__file__).parent.parent / "fixtures" / "journals" / "emergence.db"
NOBODY_UID = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_journal_files_are_private(cli: Cli, home: Path) -> None:
    """As after `cp -r`, with the log and its index there since a process was killed."""
    path = Path(shutil.copy(FIXTURE_JOURNAL, home / "journal.db"))
    store = SqliteStore(path)
    store.create("s").abandon()
    (home / "journal.db.leases" / "old.lock").touch()
    for file in (path, home / "journal.db-wal", home / "journal.db-shm", *(home / "journal.db.leases").iterdir()):
        file.touch()
        file.chmod(0o666)
    (home / "journal.db.leases").chmod(0o777)
    held = SqliteStore(path)
    loose = {file.name: oct(mode(file)) for file in home.glob("journal.db*") if mode(file) & 0o077}
    loose |= {file.name: oct(mode(file)) for file in (home / "journal.db.leases").iterdir() if mode(file) & 0o077}
    held.close()
    assert loose == {}


@pytest.mark.parametrize("name", ["journal.db.leases", "journal.db.leases/one.lock"])
def test_target_of_a_journal_link_keeps_its_mode(cli: Cli, town: Town, home: Path, tmp_path: Path, name: str) -> None:
    public = tmp_path / "public"
    public.mkdir()
    (public / "page.html").touch()
    (public / "page.html").chmod(0o666)
    public.chmod(0o777)
    link = home / name
    link.parent.mkdir(exist_ok=True)
    link.parent.chmod(0o777)
    link.symlink_to(public / "page.html" if "lock" in name else public)
    done = cli("solo", TASK, "--model", MODEL)
    assert (mode(public), mode(public / "page.html")) == (0o777, 0o666)
    if name == "journal.db.leases":
        assert done.exit_code == 2
        assert "the directory of leases is a link" in done.stderr
        assert list(public.iterdir()) == [public / "page.html"]
    else:
        assert done.exit_code == 0


@pytest.mark.parametrize("before", [0o777, 0o775, 0o770])
def test_home_writable_by_others_is_closed(cli: Cli, town: Town, home: Path, before: int) -> None:
    home.chmod(before)
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    assert mode(home) == 0o700
    assert "WARNING" not in cli("doctor").stdout


@pytest.mark.parametrize("before", [0o755, 0o750, 0o1777])
def test_private_or_sticky_home_keeps_its_mode(cli: Cli, town: Town, home: Path, before: int) -> None:
    home.chmod(before)
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    assert mode(home) == before
    assert mode(journal_path()) == 0o600
    assert "WARNING" not in cli("doctor").stdout


def test_home_with_other_files_keeps_its_mode_and_doctor_warns(cli: Cli, town: Town, home: Path) -> None:
    (home / "letters").mkdir()
    home.chmod(0o777)
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    assert mode(home) == 0o777
    assert mode(journal_path()) == 0o600
    done = cli("doctor")
    assert done.exit_code == 0
    assert f"other users may replace the files in it; to close it: chmod go-w {home}" in done.stdout


@pytest.fixture
def home_of_another_user(home: Path) -> Iterator[Path]:
    shutil.copy(FIXTURE_JOURNAL, home / "journal.db")
    os.chown(home, NOBODY_UID, -1)
    home.chmod(0o700)
    yield home
    os.chown(home, 0, -1)


COMMANDS = [
    ("sessions", "list"),
    ("show", "last"),
    ("export", "last"),
    ("resume", "last"),
    ("sessions", "gc"),
    ("models", "list"),
    ("solo", TASK, "--model", MODEL),
    ("compare", TASK, "--model", MODEL),
]


@needs_root
@pytest.mark.parametrize("how", ["", "shut"], ids=["by one who may read it", "by one who may not"])
def test_the_home_of_another_user_is_refused(home_of_another_user: Path, how: str) -> None:
    before = sorted(path.name for path in home_of_another_user.iterdir())
    *refused, doctor = commands(how, [*COMMANDS, ("doctor",)], home_of_another_user)
    for done in refused:
        assert done.exit_code == 2
        assert "the home directory belongs to another user (nobody)" in done.stderr
        assert "CONSILIENCE_HOME" in done.stderr
    assert doctor.exit_code == 2
    assert "NOT USABLE: the home directory belongs to another user (nobody)" in doctor.stdout
    assert sorted(path.name for path in home_of_another_user.iterdir()) == before


@needs_root
def test_store_in_the_home_of_another_user_is_refused(home_of_another_user: Path) -> None:
    with pytest.raises(SettingsError, match="belongs to another user"):
        SqliteStore(journal_path())


def test_inaccessible_home_is_reported(cli: Cli, town: Town, home: Path) -> None:
    assert cli("solo", TASK, "--model", MODEL).exit_code == 0
    home.chmod(0o000)
    done = commands("shut", [("sessions", "list"), ("doctor",)], home)
    home.chmod(0o700)
    assert [process.exit_code for process in done] == [2, 2]
    assert "the home directory cannot be entered: Permission denied" in done[0].stderr
    assert "NOT USABLE: the home directory cannot be entered" in done[1].stdout
    assert len(recorded()) == 1


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry and without HOME, as in a container."""

    def no_entry(_: object) -> None:
        raise KeyError("no such user")

    for name in ("HOME", "CONSILIENCE_HOME", "CONSILIENCE_JOURNAL", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.setattr("pwd.getpwnam", no_entry)


@pytest.mark.parametrize("command", [("sessions", "list"), ("doctor",), ("solo", TASK, "--model", MODEL), ("models",)])
def test_user_without_a_home_is_told_of_the_variable(cli: Cli, nobody: None, command: tuple[str, ...]) -> None:
    result = cli(*command)
    assert result.exit_code == 2
    assert "this user has no home directory" in result.stderr
    assert "Set CONSILIENCE_HOME" in result.stderr


def test_path_from_a_home_that_is_unknown_is_a_mistake(
    cli: Cli, town: Town, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    for arguments in (("@~nobody-here/task.txt",), (TASK, "--source", "~nobody-here/s.txt")):
        result = cli("solo", *arguments, "--model", MODEL)
        assert result.exit_code == 2
        assert "there is no home directory for ~nobody-here" in result.stderr
    assert cli("solo", "~5 people or more?", "--model", MODEL).exit_code == 0


def test_files_of_settings_are_read_without_a_byte_order_mark(
    cli: Cli, town: Town, here: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONSILIENCE_TEST_WORD", raising=False)
    mark = "\ufeff"
    (here / "consilience.toml").write_text(f"{mark}[solo]\nreviews = 0\n", encoding="utf-8")
    (here / "secrets.env").write_text(f"{mark}CONSILIENCE_TEST_WORD=seen\n", encoding="utf-8")
    (here / "prompts").mkdir()
    (here / "prompts" / "instructions.j2").write_text(f"{mark}Answer like a pirate.\n", encoding="utf-8")
    (here / "panel.toml").write_text(f'{mark}name = "two"\ndescription = "x"\n', encoding="utf-8")
    result = cli("solo", TASK, "--model", MODEL, "--env-file", "secrets.env", "--prompts", "prompts")
    assert result.exit_code == 0, result.stderr
    assert os.environ.pop("CONSILIENCE_TEST_WORD") == "seen"
    assert "Answer like a pirate." in town.requests[0].system
    assert mark not in town.requests[0].system + town.requests[0].text
