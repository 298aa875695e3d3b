"""Where reports are written: through devices, pipes and links, in place of files, and never over the journal."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from cli.town import MODEL, TASK, Cli, Town
from consilience.evaluation import Comparison
from consilience.journal.sqlite import SqliteStore
from kit import forks
from kit.forks import PYTHONPATH

FIXTURE_JOURNAL = Path(__file__).parent.parent / "fixtures" / "journals" / "emergence.db"
EXPORT = ("export", "plain", "--format", "json")


@pytest.fixture(autouse=True)
def kept(home: Path) -> Path:
    """A journal with finished sessions."""
    return Path(shutil.copy(FIXTURE_JOURNAL, home / "journal.db"))


def process(*arguments: str, home: Path, **options: Any) -> CompletedProcess[bytes]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "CONSILIENCE_HOME": str(home)}
    command = [sys.executable, "-m", "consilience", *arguments]
    return forks.run(command, env=environment, timeout=300, **options)


def is_report(data: bytes | str) -> bool:
    return bool(json.loads(data)["session"] == "plain")


# --- devices, pipes and links


def test_out_to_a_pipe_writes_into_it(cli: Cli, here: Path) -> None:
    os.mkfifo(here / "pipe")
    reader = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    done = cli(*EXPORT, "--out", "pipe")
    assert done.exit_code == 0, done.stderr
    assert stat.S_ISFIFO((here / "pipe").lstat().st_mode)
    assert is_report(os.read(reader, 65536))
    os.close(reader)


def test_out_to_a_device_writes_into_it(cli: Cli, here: Path) -> None:
    try:
        os.mknod(here / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")
    for place in ("null", "link"):
        if place == "link":
            (here / "link").symlink_to("null")
        assert cli(*EXPORT, "--out", place).exit_code == 0
        assert stat.S_ISCHR((here / "null").lstat().st_mode)
    assert (here / "link").is_symlink()


def test_out_to_a_link_replaces_its_target(cli: Cli, here: Path) -> None:
    (here / "else").mkdir()
    (here / "else" / "old.json").write_text("old")
    before = (here / "else" / "old.json").stat().st_ino
    for link, target in (("a.json", "else/old.json"), ("b.json", "else/new.json")):
        (here / link).symlink_to(target)
        assert cli("export", "plain", "--out", link).exit_code == 0
        assert (here / link).is_symlink()
        assert is_report((here / target).read_text())
        assert stat.S_IMODE((here / target).stat().st_mode) == 0o600
    assert (here / "else" / "old.json").stat().st_ino != before, "a reader of the old file keeps it"
    assert sorted(path.name for path in (here / "else").iterdir()) == ["new.json", "old.json"], "no draft is left"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
def test_out_to_an_open_file_writes_into_it(here: Path, home: Path) -> None:
    """`--out >(command)` and `--out /dev/stdout`, the latter by a link of the test's own."""
    (here / "stdout").symlink_to("/proc/self/fd/1")
    read, write = os.pipe()
    done = process(*EXPORT, "--out", f"/dev/fd/{write}", home=home, pass_fds=[write], capture_output=True)
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert is_report(os.read(read, 65536))
    os.close(read)
    done = process(*EXPORT, "--out", "stdout", home=home, cwd=here, capture_output=True)
    assert is_report(done.stdout)
    assert (here / "stdout").is_symlink()
    (here / "log").write_text("before\n")
    with (here / "log").open("ab") as log:
        assert process(*EXPORT, "--out", "stdout", home=home, cwd=here, stdout=log).returncode == 0
    first, _, rest = (here / "log").read_text().partition("\n")
    assert first == "before"
    assert is_report(rest)


@pytest.mark.parametrize("place", ["/dev/fd/987", "socket", "directory.json"])
def test_unwritable_out_is_reported_and_unchanged(cli: Cli, here: Path, place: str) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        (here / "directory.json").mkdir()
        done = cli(*EXPORT, "--out", place)
        assert done.exit_code == 2
        assert "cannot be written" in done.stderr
        assert stat.S_ISSOCK((here / "socket").stat().st_mode)


@pytest.mark.parametrize("command", ["emergence", "compare"])
def test_out_that_looks_like_a_file_is_refused_before_a_call(command: str, cli: Cli, town: Town, here: Path) -> None:
    result = cli(command, TASK, "--model", MODEL, "--out", "report.html")
    assert (result.exit_code, town.requests) == (2, [])
    assert "Name a directory, such as report. One file, afterwards: consilience export last" in result.stderr
    assert not list(here.iterdir())


def test_export_to_a_directory_names_a_file_in_it(cli: Cli, here: Path) -> None:
    (here / "out dir ü").mkdir()
    result = cli("export", "plain", "--out", "out dir ü")
    assert result.exit_code == 2
    assert "Name a file: out dir ü/report.html." in result.stderr


def test_out_directory_follows_links(cli: Cli, town: Town, here: Path) -> None:
    (here / "out").mkdir()
    for name, target in (("report.json", "kept.json"), ("report.schema.json", "kept.schema.json")):
        (here / "out" / name).symlink_to(here / target)
    os.mkfifo(here / "out" / "report.md")
    reader = os.open(here / "out" / "report.md", os.O_RDONLY | os.O_NONBLOCK)
    assert cli("solo", TASK, "--model", MODEL, "--out", "out").exit_code == 0
    assert b"## Answer" in os.read(reader, 65536)
    os.close(reader)
    assert json.loads((here / "kept.json").read_text())["answer"]
    assert cli("schema", "--out", "out").exit_code == 0
    assert json.loads((here / "kept.schema.json").read_text())["title"]
    assert all((here / "out" / name).is_symlink() for name in ("report.json", "report.schema.json"))


def test_compare_out_directory_follows_links(cli: Cli, town: Town, here: Path) -> None:
    import pyarrow.parquet

    names = ("results.json", "results.csv", "report.md", "results.parquet")
    (here / "out").mkdir()
    for name in names:
        (here / "out" / name).symlink_to(here / name)
    assert cli("compare", TASK, "--protocols", "solo,vote", "--model", MODEL, "--out", "out").exit_code == 0
    assert all((here / "out" / name).is_symlink() for name in names)
    assert Comparison.model_validate_json((here / "results.json").read_text()).runs
    assert pyarrow.parquet.read_table(here / "results.parquet").num_rows == 2


# --- the journal


def hard_link(home: Path, here: Path) -> Path:
    os.link(home / "journal.db", here / "hard.json")
    return here / "hard.json"


def symlink(home: Path, here: Path) -> Path:
    (here / "soft.json").symlink_to(home / "journal.db")
    return here / "soft.json"


def linked_directory(home: Path, here: Path) -> Path:
    (here / "linked").symlink_to(home)
    return here / "linked" / "journal.db-wal"


def lease(home: Path, here: Path) -> Path:
    (home / "journal.db.leases").mkdir()
    (home / "journal.db.leases" / "plain.lock").touch()
    return home / "journal.db.leases" / "plain.lock"


def lease_by_a_hard_link(home: Path, here: Path) -> Path:
    os.link(lease(home, here), here / "lock.json")
    return here / "lock.json"


PLACES: dict[str, Callable[[Path, Path], Path]] = {
    "itself": lambda home, here: home / "journal.db",
    "relative": lambda home, here: Path("../home/journal.db"),
    "log": lambda home, here: home / "journal.db-wal",
    "index": lambda home, here: home / "journal.db-shm",
    **{way.__name__: way for way in (hard_link, symlink, linked_directory, lease, lease_by_a_hard_link)},
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_out_to_a_journal_file_is_refused(
    cli: Cli, home: Path, here: Path, place: Callable[[Path, Path], Path]
) -> None:
    target = place(home, here)
    before = cli(*EXPORT).stdout
    done = cli(*EXPORT, "--out", str(target))
    assert done.exit_code == 2
    assert "that is a file of the journal" in done.stderr
    assert done.stderr.endswith("Name another place with --out.\n")
    assert cli(*EXPORT).stdout == before


def test_out_directory_with_a_link_to_the_journal_is_refused(cli: Cli, town: Town, home: Path, here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "report.json").symlink_to(home / "journal.db")
    (here / "out" / "report.schema.json").symlink_to(home / "journal.db")
    done = cli("solo", TASK, "--model", MODEL, "--out", "out")
    assert done.exit_code == 2
    assert "## Answer" in done.stdout, "the report is not lost for it"
    assert "that is a file of the journal" in done.stderr
    assert cli("schema", "--out", "out").exit_code == 2
    asked = len(town.requests)
    assert cli("solo", TASK, "--model", MODEL, "--out", str(home / "journal.db.leases")).exit_code == 2
    assert len(town.requests) == asked, "known before anything is spent"
    assert cli("show", "plain").exit_code == 0


def test_compare_out_directory_with_a_link_to_its_store_is_refused(cli: Cli, town: Town, here: Path) -> None:
    (here / "out").mkdir()
    journal = here / "out" / "results.json"
    done = cli(
        "compare", TASK, "--protocols", "solo,vote", "--model", MODEL, "--out", "out", "--store", str(journal)
    )  # fmt: skip
    assert done.exit_code == 2
    assert "that is a file of the journal" in done.stderr
    store = SqliteStore(journal)
    assert len(store.sessions()) == 2
    store.close()
