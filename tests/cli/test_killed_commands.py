"""The real command against a provider on loopback: killed, run twice, out of disk; then `consilience resume`."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.loopback import MODEL, command, environment, prose, provider
from cli.loopback import begin as begin_command
from cli.town import recorded
from consilience.domain.events import CallCompleted, SessionFinished, canonical_digest
from consilience.domain.paths import journal_path
from consilience.engine.faults import POINTS
from consilience.journal.sqlite import SqliteStore
from kit.forks import PYTHONPATH

pytestmark = pytest.mark.processes

RUN = ("emergence", "Is a bridge better than a ferry?", "--model", MODEL, "--max-rounds", "2", "--children", "2")
CALLS = 11


@pytest.fixture
def env(home: Path, here: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "CONSILIENCE_HOME": str(home),
        "HOME": str(here),
        "OPENAI_API_KEY": "none-needed",
    }


def ending() -> tuple[str, str]:
    """Digests of the only session's canonical journal and report."""
    store = SqliteStore(journal_path())
    (session,) = store.sessions()
    events = store.read(session)
    store.close()
    (finished,) = [event for event in events if isinstance(event, SessionFinished)]
    return canonical_digest(events), finished.report_digest


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    home = tmp_path_factory.mktemp("uninterrupted")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": str(home), "OPENAI_API_KEY": "none-needed"}
    with provider() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSILIENCE_HOME", str(home))
        done = command(*RUN, env={**env, "CONSILIENCE_HOME": str(home), **environment(server.url)}, cwd=home)
        assert done.returncode == 0, done.stderr
        assert len(server.asked) == CALLS
        return ending()


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(("point", "nth"), [*zip(POINTS, itertools.cycle((1, 3)), strict=False)], ids=str)
def test_killed_command_can_be_resumed(
    point: str, nth: int, env: dict[str, str], here: Path, uninterrupted: tuple[str, str]
) -> None:
    with provider() as server:
        env |= environment(server.url)
        first = command(*RUN, env={**env, "CONSILIENCE_FAULT": f"{point}#{nth}"}, cwd=here)
        assert first.returncode in (-signal.SIGKILL, 0), first.stderr
        (session,) = recorded()
        store = SqliteStore(journal_path())
        done = sum(event.type in ("call_completed", "reply_rejected") for event in store.read(session))
        kept = len(store.arrivals(session))
        flights = len(store.flights(session)) - kept
        store.close()
        asked = len(server.asked)
        again = command("resume", session, env=env, cwd=here)
    assert again.returncode == 0, again.stderr
    assert "yes" in again.stdout
    assert len(server.asked) - asked == CALLS - done - kept, "what has arrived is not asked again"
    assert len(server.asked) <= CALLS + flights
    assert ending() == uninterrupted
    if done < CALLS:
        line = f"{done} call{'s' if done != 1 else ''} recorded" if done else "no call is recorded yet"
        assert line in again.stderr
        if flights:
            assert f"{flights} more interrupted, possibly charged" in again.stdout


def test_what_was_read_so_far_is_in_every_format(env: dict[str, str], here: Path) -> None:
    (here / "papers").mkdir()
    (here / "papers" / "lake.md").write_text("The lake is deep.\nIt is cold.\n")
    (here / "papers" / "photo.png").write_bytes(b"\x89PNG\x00")
    (here / "secret.md").write_text("The ferry is old.\n")
    run = (*RUN, "--source", "papers", "--source", "L2N1=secret.md", "--model", MODEL)
    with provider() as server:
        killed = {**env, **environment(server.url), "CONSILIENCE_FAULT": "after_commit#3"}
        assert command(*run, env=killed, cwd=here).returncode == -signal.SIGKILL
    (session,) = recorded()
    shown = command("show", session, env=env, cwd=here).stdout
    texts = [shown]
    for name in ("report.md", "report.html"):
        command("export", session, "--out", name, env=env, cwd=here)
        texts.append((here / name).read_text())
    for text in texts:
        assert all(word in text for word in ("What was read so far", "papers/lake.md", "secret.md", "photo.png"))
    table = [line.split("|")[1:-1] for line in shown.splitlines() if line.startswith("| S")]
    assert [[cell.strip() for cell in row[2:]] for row in table] == [
        ["", "2", "30"],
        ["integrator (L1N1), creative (L2N2)", "1", "18"],
    ], shown
    documents = json.loads(command("show", session, "--json", env=env, cwd=here).stdout)["documents"]
    assert [(d["name"], d["agents"]) for d in documents] == [("papers/lake.md", None), ("secret.md", ["L2N1"])]
    assert any(document["readers"] for document in documents)


def store_with_replies(calls: int) -> SqliteStore:
    """The journal, once its only session has that many recorded replies and has not ended."""
    patience = time.monotonic() + 60
    while time.monotonic() < patience:
        if journal_path().exists():
            store = SqliteStore(journal_path())
            events = [event for session in store.sessions() for event in store.read(session)]
            if sum(isinstance(event, CallCompleted) for event in events) == calls:
                return store
            store.close()
    raise AssertionError("the replies were never recorded")


def test_interrupt_acts_while_a_hostile_pattern_runs_and_no_reply_is_paid_again(
    env: dict[str, str], here: Path
) -> None:
    numbers = itertools.count()
    votes = 12

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        status, said = prose(body, headers)
        said["choices"][0]["message"]["content"] = f"{next(numbers)}: {'a' * 60}!"  # type: ignore[index]
        return status, said

    run = ("vote", "Which?", "--model", MODEL, "--votes", str(votes), "--answer-pattern", "(?:a|a|aa)+$")
    with provider(answer) as server:
        env |= environment(server.url)
        process = begin_command(*run, env=env, cwd=here)
        store = store_with_replies(votes)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        (session,) = store.sessions()
        assert process.returncode == 130, err
        assert not any(isinstance(event, SessionFinished) for event in store.read(session))
        store.close()
        again = command("resume", session, env=env, cwd=here)
    assert "12 of 12 answers took no position" in again.stdout, again.stderr
    assert len(server.asked) == votes


def test_second_command_on_a_session_names_its_holder(
    env: dict[str, str], here: Path, uninterrupted: tuple[str, str]
) -> None:
    with provider() as server:
        env |= environment(server.url)
        assert command(*RUN, env={**env, "CONSILIENCE_FAULT": "after_commit#3"}, cwd=here).returncode < 0
        (session,) = recorded()
        asked = len(server.asked)
        server.open.clear()
        server.arrived.clear()
        first = begin_command("resume", session, env=env, cwd=here)
        assert server.arrived.wait(60)
        second = command("resume", session, env=env, cwd=here)
        shown = command("show", session, env=env, cwd=here)
        removed = command("sessions", "rm", session, "--yes", env=env, cwd=here)
        server.open.set()
        out, err = first.communicate(timeout=300)
    holder = f"process {first.pid} on {socket.gethostname()}"
    assert first.returncode == 0, err
    assert "yes" in out
    for refused in (second, removed):
        assert refused.returncode == 2
        assert refused.stdout == ""
        assert f"is being run by {holder}." in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert f"Running now: {holder}" in shown.stdout
    assert asked < len(server.asked) <= CALLS + 3
    assert ending() == uninterrupted


# --- a full disk

ROOM = 140_000
Free = Callable[[], object]


def limit_of_file_size(home: Path) -> tuple[int | None, Free]:
    return ROOM, lambda: None


def small_file_system(home: Path) -> tuple[int | None, Free]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can make a file system; the limit of file size is tested all the same")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={ROOM + 50_000}", "tmpfs", str(home)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here; the limit of file size is tested all the same")

    def grow() -> None:
        subprocess.run(["mount", "-o", "remount,size=64m", str(home)], check=True, capture_output=True)

    return None, grow


@pytest.fixture(params=[limit_of_file_size, small_file_system], ids=lambda fill: fill.__name__)
def full(request: pytest.FixtureRequest, home: Path) -> Iterator[tuple[int | None, Free]]:
    """The most bytes a file may have, if that is what leaves too little room for a whole run; and how to make room."""
    yield request.param(home)
    if os.path.ismount(home):
        subprocess.run(["umount", "-l", str(home)], check=True, capture_output=True)


def test_full_disk_is_reported_and_the_session_resumes(
    env: dict[str, str],
    here: Path,
    full: tuple[int | None, Free],
    uninterrupted: tuple[str, str],
) -> None:
    most, free = full
    with provider() as server:
        env |= environment(server.url)
        first = command(*RUN, env=env, cwd=here, most=most)
        assert first.returncode == 2
        assert first.stdout == ""
        assert "Error: the journal cannot be used: " in first.stderr
        assert "Traceback" not in first.stderr
        assert 0 < len(server.asked) < CALLS
        free()
        (session,) = recorded()
        assert f"consilience resume {session}" in first.stderr
        store = SqliteStore(journal_path())
        done = sum(event.type == "call_completed" for event in store.read(session)) + len(store.arrivals(session))
        store.close()
        asked = len(server.asked)
        again = command("resume", session, env=env, cwd=here)
    assert again.returncode == 0, again.stderr
    assert len(server.asked) - asked == CALLS - done
    assert ending() == uninterrupted


def test_journal_path_below_a_file_is_refused_before_any_call(env: dict[str, str], here: Path) -> None:
    (here / "file").write_text("")
    with provider(prose) as server:
        env |= {**environment(server.url), "CONSILIENCE_HOME": str(here / "file" / "home")}
        done = command(*RUN, env=env, cwd=here)
    assert done.returncode == 2
    assert "Error: the journal cannot be stored there: a file is in its way" in done.stderr
    assert "Traceback" not in done.stderr
    assert server.asked == []
