"""The command as a process: Ctrl-C, pipes, and what a terminal shows."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from cli.town import MODEL, TASK, recorded
from kit.forks import PYTHONPATH, Fork, on_terminal, run

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
from cli.town import Town, sensible
from consilience.cli.main import main
from consilience.engine import execution, seats
from kit import runner

def latency(request):
    if {latency} > 10:
        print("asked", request.key, file=sys.stderr, flush=True)
    return {latency}

town = Town()
town.latency = latency
seats.resolve = town.resolve
main()
"""
RUN = ("emergence", TASK, "--model", MODEL, "--max-rounds", "2")
QUICK = "0.0"
HANG_AFTER_THE_LEAVES = "0.0 if 'leaf_respond' in request.key else 3600.0"
SLOW = "0.3"
PATIENCE = 300


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], list[str]]:
    """The program with a scripted model of that latency (an expression of `request`), as a command line."""

    def write(latency: str) -> list[str]:
        path = tmp_path / "consilience_with_a_town.py"
        path.write_text(PROGRAM.format(latency=latency))
        return [sys.executable, str(path)]

    return write


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)


def lines_until(process: Fork, words: str) -> list[str]:
    """Lines of standard error up to the first that holds the words; the process is killed if they do not come in time."""
    found: list[str] = []
    assert process.stderr is not None
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    try:
        for line in iter(process.stderr.readline, b""):
            found.append(line.decode())
            if words in found[-1]:
                return found
    finally:
        watchdog.cancel()
    raise AssertionError(f"{words!r} never came: {found}")


def test_ctrl_c_ends_cleanly_and_the_session_resumes(command: Callable[[str], list[str]]) -> None:
    process = Fork(
        [*command(HANG_AFTER_THE_LEAVES), *RUN],
        stdout=PIPE,
        stderr=PIPE,
        stdin=DEVNULL,
    )
    for _ in range(3):
        lines_until(process, "asked round-1/lateral")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    (session,) = recorded()
    assert process.returncode == 130, err
    assert out == b""
    assert err.decode().splitlines() == [
        "Stopping; Ctrl-C again ends it at once.",
        f"Interrupted. Recorded calls are kept; resume with: consilience resume {session}",
    ]
    done = run([*command(QUICK), "resume", session], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert re.search("3 calls recorded, .*; 3 in flight", done.stderr)


def test_interruption_is_printed_as_json(command: Callable[[str], list[str]]) -> None:
    process = Fork(
        [*command(HANG_AFTER_THE_LEAVES), *RUN, "--json"],
        stdout=PIPE,
        stderr=PIPE,
        stdin=DEVNULL,
    )
    lines_until(process, "asked round-1/lateral")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    (session,) = recorded()
    assert json.loads(out) == {
        "exit_code": process.returncode,
        "what": "interrupted",
        "where": "",
        "do": f"Resume with: consilience resume {session}",
        "session": session,
    }
    assert process.returncode == 130


def test_second_ctrl_c_ends_at_once(command: Callable[[str], list[str]], tmp_path: Path) -> None:
    program = command(HANG_AFTER_THE_LEAVES)
    stubborn = Path(program[1])
    stubborn.write_text(
        stubborn.read_text().replace(
            "main()\n",
            "import asyncio\n"
            "async def never(*a, **k):\n"
            "    print('putting away', file=sys.stderr, flush=True)\n"
            "    await asyncio.sleep(3600)\n"
            "execution._stop = never\n"
            "main()\n",
        )
    )
    process = Fork([*program, *RUN], stdout=PIPE, stderr=PIPE, stdin=DEVNULL)
    for _ in range(3):
        lines_until(process, "asked round-1/lateral")
    process.send_signal(signal.SIGINT)
    lines_until(process, "putting away")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130


PROGRAM_WITH_A_CHILD = """
import os, subprocess, sys, time
held = os.open({pipe!r}, os.O_WRONLY)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], pass_fds=[held])
print(os.getpid(), file=os.fdopen(held, "w"), flush=True)
time.sleep(3600)
"""
COMMAND = "from consilience.cli.main import main; main()"
HANG_WHILE_STOPPING = """
import asyncio, sys
from consilience.engine import execution
async def never(*a, **k):
    print("putting away", file=sys.stderr, flush=True)
    await asyncio.sleep(3600)
execution._stop = never
"""


class Programs:
    """A vote among programs that never answer. They and their children hold a pipe, whose end is read when all are dead."""

    def __init__(self, directory: Path, command: str = COMMAND, **more: Any) -> None:
        self.rooms = directory / "rooms"
        self.rooms.mkdir()
        path = directory / "pipe"
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.groups: list[int] = []
        program = shlex.join([sys.executable, "-c", PROGRAM_WITH_A_CHILD.format(pipe=str(path))])
        vote = ("vote", TASK, "--votes", "2", "--model", f"exec:{program}", "--max-calls", "2", "--yes")
        self.process = Fork(
            [sys.executable, "-c", command, *vote],
            **{"stdout": PIPE, "stderr": PIPE, "stdin": DEVNULL, **more},
            env={**os.environ, "TMPDIR": str(self.rooms)},
        )

    def wait(self) -> None:
        """Until both programs are at work, each with its child."""
        found = ""
        while found.count("\n") < 2:
            found += self._read()
        self.groups += map(int, found.split())

    def check_gone(self) -> None:
        assert self._read() == ""
        self.groups.clear()
        assert list(self.rooms.iterdir()) == []

    def close(self) -> None:
        for group in self.groups:
            os.killpg(group, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()
        os.close(self._pipe)

    def _read(self) -> str:
        assert select.select([self._pipe], [], [], PATIENCE)[0], "nothing came, and it was not closed"
        return os.read(self._pipe, 4096).decode()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Programs]]:
    """Programs at work, given what `Programs` takes beyond a directory."""
    begun: list[Programs] = []

    def begin(*given: Any, **more: Any) -> Programs:
        programs = Programs(tmp_path, *given, **more)
        begun.append(programs)
        programs.wait()
        return programs

    yield begin
    for programs in begun:
        programs.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_sigterm_and_hangup_end_cleanly_with_all_programs(
    number: signal.Signals, begin: Callable[..., Programs]
) -> None:
    programs = begin()
    programs.process.send_signal(number)
    out, err = programs.process.communicate(timeout=PATIENCE)
    programs.check_gone()
    (session,) = recorded()
    assert (programs.process.returncode, out) == (128 + number, b"")
    assert err.decode().splitlines()[-2:] == [
        "Stopping; a second signal ends it at once.",
        f"Stopped by {number.name}. Recorded calls are kept; resume with: consilience resume {session}",
    ]


def test_programs_end_when_the_command_is_killed(begin: Callable[..., Programs]) -> None:
    programs = begin(HANG_WHILE_STOPPING + COMMAND)
    programs.process.send_signal(signal.SIGTERM)
    lines_until(programs.process, "putting away")
    programs.process.send_signal(signal.SIGTERM)
    programs.process.communicate(timeout=PATIENCE)
    assert programs.process.returncode == 128 + signal.SIGTERM
    programs.check_gone()


def test_ignored_hangup_does_not_end_the_run(begin: Callable[..., Programs]) -> None:
    shut_out = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"  # as nohup does
    programs = begin(shut_out + COMMAND)
    programs.process.send_signal(signal.SIGHUP)
    programs.process.send_signal(signal.SIGTERM)
    _, err = programs.process.communicate(timeout=PATIENCE)
    assert b"Stopped by SIGTERM" in err
    programs.check_gone()


def test_closed_terminal_ends_the_programs(begin: Callable[..., Programs]) -> None:
    master, slave = pty.openpty()
    programs = begin(stdin=slave, stdout=slave, stderr=slave, terminal=True)
    os.close(slave)
    os.close(master)
    assert programs.process.wait(PATIENCE) == 128 + signal.SIGHUP
    programs.check_gone()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_on_stdout_is_an_error(
    command: Callable[[str], list[str]], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    for given in ((*RUN, "--json"), ("show", "last"), ("export", "last", "--format", "html"), ("--help",)):
        with open("/dev/full", "wb") as full:
            done = run([*command(QUICK), *given], stdout=full, stderr=PIPE, timeout=PATIENCE)
        assert done.returncode == 2, given
        assert done.stderr.decode().splitlines()[-1].startswith("Error: the output cannot be written: No space left")
    done = run([*command(QUICK), "show", "last"], capture_output=True, timeout=PATIENCE)
    assert b"## Answer" in done.stdout


def test_closed_stdout_does_not_crash(command: Callable[[str], list[str]]) -> None:
    program = command(QUICK)
    for given in (RUN, ("show", "last"), ("export", "last"), ("show", "last", "--json")):
        for closed, code in (((1,), 141), ((2,), 0), ((1, 2), 141)):
            done = run([*program, *given], closed=closed, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == code, (given, closed, done.stderr)
            assert "Error" not in done.stderr
    silent = run([*program, "export", "last", "--out", "report.md"], closed=(1,), capture_output=True, timeout=PATIENCE)
    assert silent.returncode == 0


def test_broken_pipe_does_not_crash(command: Callable[[str], list[str]]) -> None:
    for given in ((*RUN, "--quiet"), (*RUN, "--quiet", "--json"), ("show", "last"), ("nothing", "--json"), ("--help",)):
        read, write = os.pipe()
        os.close(read)
        done = run([*command(QUICK), *given], stdout=write, stderr=PIPE, text=True, timeout=PATIENCE)
        os.close(write)
        assert done.returncode == 141, given
        assert ("Error" in done.stderr) == ("nothing" in given)
        assert "Traceback" not in done.stderr
    assert len(recorded()) == 2


def test_max_time_ends_the_command() -> None:
    """Every call is a program that would run for a minute. Starting Python is no part of the run."""
    began = time.monotonic()
    done = run(
        [
            sys.executable,
            "-m",
            "consilience",
            *RUN[:2],
            "--model",
            "exec:sleep 60",
            "--max-time",
            "1",
            "--yes",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert time.monotonic() - began < 50
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert report["stop_reason"] == "exhausted_time"
    assert 1.0 <= report["ledger"]["actual"]["seconds"] < 30.0
    assert report["ledger"]["actual"]["timed_out"] == 4
    assert any("4 calls ended by the time limit, possibly charged: " in warning for warning in report["warnings"])
    assert "integrator (L1N1)" in done.stderr
    assert "no reply, time (ended by the time limit while a request was in flight)" in done.stderr
    assert "not asked" not in done.stderr


HANGING_LOOKUP = """
import socket, time
look_up = socket.getaddrinfo

def hang(host, *more, **named):
    if "nowhere" in str(host):
        time.sleep(60)
    return look_up(host, *more, **named)

socket.getaddrinfo = hang
from consilience.cli.main import main
main()
"""


def test_a_name_lookup_that_hangs_does_not_delay_the_report() -> None:
    """It runs in a thread of the standard library, which cannot be ended."""
    done = run(
        [sys.executable, "-c", HANGING_LOOKUP, *RUN[:2], "--model", "openai-chat:stub", "--max-time", "1", "--yes"],
        env={**os.environ, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "http://nowhere.example/v1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE / 2,
    )
    assert done.returncode == 3, done.stderr
    assert "Stopped: " in done.stdout


def on_a_terminal(arguments: list[str]) -> tuple[str, int]:
    """What a terminal receives, and the exit code."""
    process, terminal = on_terminal(arguments)
    received = b""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        ready, _, _ = select.select([terminal], [], [], PATIENCE)
        try:
            piece = os.read(terminal, 65536) if ready else b""
        except OSError:  # the other end is closed
            piece = b""
        if not piece:
            break
        received += piece
    os.close(terminal)
    return received.decode(), process.wait()


def test_terminal_shows_progress_and_then_the_report(command: Callable[[str], list[str]]) -> None:
    screen, code = on_a_terminal([*command(SLOW), *RUN])
    assert code == 0
    table, report = screen.split("Stopped: ", 1)
    assert "composing" in table
    assert "analytical" in table
    assert "of 15 calls" in table
    assert "round 1 · own answers" in table
    assert "tokens\r\n" not in table.split("composing", 1)[0], "no plain lines on a terminal"
    assert "Answer" in report
    assert "##" not in report, "Markdown is rendered"
    assert "\x1b[?25h" in screen, "the cursor is back"


def test_quiet_on_a_terminal_shows_only_the_report(command: Callable[[str], list[str]]) -> None:
    screen, code = on_a_terminal([*command(QUICK), *RUN, "--quiet"])
    assert code == 0
    assert "composing" not in screen
    assert screen.lstrip("\x1b[0123456789;m").startswith("Stopped: ")
