"""`kit.forks`: a forked program cannot tell that Python did not start for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from kit.forks import PYTHONPATH, Fork, on_terminal, run

PATIENCE = 300
DESCRIBE = """
import json, os, signal, sys, threading
streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
mask = os.umask(0)
os.umask(mask)
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path,
    "main": [__name__, sys.modules["__main__"].__dict__ is globals(), globals().get("__file__")],
    "environment": dict(os.environ),
    "directory": os.getcwd(),
    "mask": mask,
    "group": os.getpgid(0) if os.getpgid(0) != os.getpid() else "own",
    "descriptors": sorted(os.listdir("/dev/fd")),
    "threads": threading.active_count(),
    "bytecode": sys.dont_write_bytecode,
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": {number: str(getattr(signal.getsignal(number), "__name__", signal.getsignal(number)))
                 for number in sorted(signal.valid_signals())},
    "streams": {name: stream and [stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering,
                                  stream.write_through, stream.closed] for name, stream in streams.items()},
}))
"""


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """The program that describes its process, as text, as a file and as a module."""
    (tmp_path / "describe.py").write_text(DESCRIBE)
    how = {"text": ["-c", DESCRIBE], "file": ["describe.py"], "module": ["-m", "describe"]}
    return [sys.executable, *how[request.param], "--and", "more"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("program", ["text", "file", "module"], indirect=True)
def test_fork_equals_a_new_process(program: list[str], session: bool, unbuffered: str, tmp_path: Path) -> None:
    variables = {"LANG": "C.UTF-8", "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": unbuffered, "OWN": "ü"}
    options = {"env": variables, "cwd": tmp_path, "start_new_session": session, "capture_output": True, "timeout": 60}
    new = subprocess.run(program, **options)  # type: ignore[call-overload]
    fork = run(program, **options)
    assert (fork.returncode, fork.stderr) == (new.returncode, new.stderr) == (0, b"")
    assert json.loads(fork.stdout) == json.loads(new.stdout)


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "import sys; sys.exit()",
        "import sys; sys.exit(7)",
        "import sys; sys.exit(True)",
        "import sys; sys.exit(-1)",
        "import sys; sys.exit('Goodbye.')",
        "import sys; print('begun'); sys.stdout.flush(); raise KeyboardInterrupt",
        "import os; os._exit(3)",
        "import os; os.abort()",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'last'); 1 / 0",
        "import threading; threading.Timer(0.01, print, ['later']).start()",
    ],
)
def test_fork_ends_as_a_new_process_does(code: str) -> None:
    new = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    fork = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout)
    assert fork.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_killed_fork_is_gone_and_the_next_one_starts() -> None:
    with Fork([sys.executable, "-c", "print('up', flush=True); input()"], stdin=PIPE, stdout=PIPE, text=True) as fork:
        assert fork.stdout is not None
        assert fork.stdout.readline() == "up\n"
        assert fork.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            fork.wait(0.01)
        os.kill(fork.pid, signal.SIGKILL)
        assert fork.wait(PATIENCE) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(fork.pid, 0)
    assert run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\n"


def test_fork_without_streams_has_none() -> None:
    code = "import sys; sys.exit([sys.stdin, sys.stdout, sys.stderr] != [None] * 3)"
    assert run([sys.executable, "-c", code], closed=(0, 1, 2)).returncode == 0


def test_descriptor_passed_to_a_fork_keeps_its_number() -> None:
    read, write = os.pipe()
    run([sys.executable, "-c", f"import os; os.write({write}, b'here')"], pass_fds=[write], stdin=DEVNULL, check=True)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "here"


def test_fork_on_a_terminal_leads_it() -> None:
    # Short sleeps: Python would lose an interrupt that arrives just before it blocks.
    code = "import os, time; print(os.tcgetpgrp(0) == os.getpid())\nfor _ in range(6000): time.sleep(0.01)"
    fork, screen = on_terminal([sys.executable, "-c", code])
    received = b""
    while b"\n" not in received:
        received += os.read(screen, 100)
    os.write(screen, b"\x03")
    assert received == b"True\r\n"
    assert fork.wait(PATIENCE) == -signal.SIGINT
    os.close(screen)


@pytest.mark.parametrize("options", [{"preexec_fn": print}, {"umask": 0}, {"env": {"PYTHONUTF8": "0"}}])
def test_fork_refuses_what_needs_a_new_process(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="use subprocess"):
        run([sys.executable, "-c", ""], **options)
