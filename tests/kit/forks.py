"""Python programs in processes of their own, without the seconds that Python needs to start and to import.

A server process imports everything once and has a single thread. It forks a child for each program. The child gets the
arguments, environment, directory, streams, signal handlers and process group of a new process, runs the program and exits.

A test of the start itself uses `subprocess`: the time of imports, packaging, a variable that Python or an import reads.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import pty
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import consilience

PYTHONPATH = os.pathsep.join(str(path.resolve().parent.parent) for path in (Path(__file__), Path(consilience.__file__)))
"""Path of the test packages and of the package under test, for a process that a test starts."""
HEEDED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
"""Variables of the interpreter that a fork obeys although Python has started."""
SERVER_VARIABLES = ("PATH", "PYTHON", "LANG", "LC_")
"""Beginnings of the names of variables that the server inherits; it imports without the settings of a test."""
MAX_DESCRIPTORS = 64
"""Max open files that a child receives."""
MAX_WAITING = 128
"""Max orders that wait while the server imports or forks."""
NUMBER_BYTES = 8
"""Length of a process id or exit status as it is sent."""


class Fork(subprocess.Popen[Any]):
    """A `Popen` of `[sys.executable, "-c" | "-m" | PATH, …]`.

    `closed` are standard streams that the child does not have. With `terminal`, standard input becomes its controlling terminal.
    """

    def __init__(
        self, args: Sequence[str], *, closed: Iterable[int] = (), terminal: bool = False, **options: Any
    ) -> None:
        self._closed, self._terminal = set(closed), terminal
        super().__init__(args, **options)

    def _execute_child(  # type: ignore[no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, process_group,
    ) -> None:  # fmt: skip
        env = {name: str(value) for name, value in (os.environ if env is None else env).items()}
        unheeded = {name for name, value in env.items() if name.startswith("PYTHON") and os.environ.get(name) != value}
        options = (executable, preexec_fn, not close_fds, shell, gid, gids, uid, umask >= 0)
        if args[0] != sys.executable or any(options) or unheeded - set(HEEDED):
            raise ValueError(f"a fork cannot do this; use subprocess: {args[:2]}, {options}, {unheeded}")
        streams = (p2cread, c2pwrite, errwrite)
        given = {n: n if stream == -1 else stream for n, stream in enumerate(streams) if n not in self._closed}
        given |= {fd: fd for fd in pass_fds}
        order = {
            "args": [os.fspath(arg) for arg in args[1:]],
            "env": env,
            "cwd": os.fspath(cwd or os.getcwd()),
            "descriptors": list(given),
            "session": start_new_session,
            "group": process_group,
            "terminal": self._terminal,
        }
        try:
            self._status = socket.socket(socket.AF_UNIX)
            self._status.connect(_server())
            socket.send_fds(self._status, [b"."], list(given.values()))
            self._status.sendall(json.dumps(order).encode() + b"\n")
            self.pid = int.from_bytes(self._status.recv(NUMBER_BYTES), sys.byteorder)
            assert self.pid, "the server of forks is gone"
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                status = self._status.recv(NUMBER_BYTES)
                assert status, "the server of forks is gone"
                self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, sys.byteorder))
                self._status.close()
        return self.returncode

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


def run(
    args: Sequence[str],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with a `Fork`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Fork(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def on_terminal(args: Sequence[str]) -> tuple[Fork, int]:
    """Start a program on a terminal of its own. Returns its process and the descriptor of the terminal's other end."""
    screen, terminal = pty.openpty()
    try:
        return Fork(args, stdin=terminal, stdout=terminal, stderr=terminal, terminal=True), screen
    finally:
        os.close(terminal)


LAUNCHER = """#!{python} -IS
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({address!r})
socket.send_fds(asked, [b"."], [0, 1, 2])
order = {{"args": [*{before!r}, *sys.argv[1:]], "env": dict(os.environ), "cwd": os.getcwd(), "descriptors": [0, 1, 2],
    "session": False, "group": None, "terminal": False}}
asked.sendall(json.dumps(order).encode() + b"\\n")
asked.recv({number})
code = os.waitstatus_to_exitcode(int.from_bytes(asked.recv({number}), sys.byteorder))
sys.exit(code if code >= 0 else 128 - code)
"""


@cache
def launcher(*before: str) -> str:
    """Return the path of a program that runs Python with the arguments `before` and its own in a fork, for callers that start
    programs by their path.

    A signal sent to it does not reach the fork. A fork that a signal ended gives it the exit status that a shell gives.
    """
    descriptor, path = tempfile.mkstemp(dir=Path(_server()).parent)
    with open(descriptor, "w") as program:
        program.write(LAUNCHER.format(python=sys.executable, address=_server(), before=before, number=NUMBER_BYTES))
    os.chmod(path, 0o755)
    return path


@cache
def _server() -> str:
    """Start the server of this process, which ends when this process does. Returns the path of the socket where it takes orders."""
    directory = tempfile.TemporaryDirectory(prefix="forks-")
    address = f"{directory.name}/orders"
    ours, its = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name.startswith(SERVER_VARIABLES)}
    with its, socket.socket(socket.AF_UNIX) as orders:
        orders.bind(address)
        orders.listen(MAX_WAITING)
        server = subprocess.Popen(
            [sys.executable, __file__, str(orders.fileno()), str(its.fileno())],
            env={**environment, "PYTHONPATH": PYTHONPATH},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[orders.fileno(), its.fileno()],
        )
    atexit.register(directory.cleanup)
    atexit.register(server.wait)
    atexit.register(ours.close)
    return address


# --- in the server


def _serve(orders: socket.socket, life: socket.socket) -> None:
    """Fork a child for each order, and send its id and then its exit status, until the other end of `life` is closed."""
    children: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()  # a signal that comes just before `select` would not end it
    woken.setblocking(False)
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGINT):  # Ctrl-C at the terminal is meant for pytest
        signal.signal(number, lambda *_: None)
    while life not in (ready := select.select([orders, life, woken], [], [])[0]):
        if woken in ready:
            woken.recv(4096)  # before the children are asked, so that none is missed
            _send_ends(children)
        if orders not in ready:
            continue
        asker, _ = orders.accept()
        _, descriptors, _, _ = socket.recv_fds(asker, 1, MAX_DESCRIPTORS)
        with asker.makefile("rb") as lines:
            line = lines.readline()
        if line.endswith(b"\n"):  # else its asker was killed
            pid = os.fork()
            if not pid:
                _child(json.loads(line), descriptors)
            children[pid] = asker
            with suppress(OSError):
                asker.sendall(pid.to_bytes(NUMBER_BYTES, sys.byteorder))
        for descriptor in descriptors:
            os.close(descriptor)


def _send_ends(children: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with children.pop(ended[0]) as asker, suppress(OSError):
                asker.sendall(ended[1].to_bytes(NUMBER_BYTES, sys.byteorder))


def _import_everything() -> None:
    """Import all that a command can need, and leave no thread behind: only a process with one thread can fork safely."""
    for module in pkgutil.walk_packages(consilience.__path__, "consilience."):
        with suppress(ImportError):  # what an extra needs
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in WARM:
        importlib.import_module(name)
    importlib.import_module("kit.certificates").share_certificates()
    assert threading.active_count() == 1
    tasks = Path("/proc/self/task")
    assert not tasks.exists() or len(list(tasks.iterdir())) == 1
    gc.collect()
    gc.freeze()


WARM = (
    *("kit.cases", "kit.fake_gh", "kit.runs", "kit.runner", "cli.town", "anyio._backends._asyncio", "typer._adapters"),
    *("pydantic_ai.direct", "pydantic_ai.models.openai", "openai.resources.chat", "genai_prices.data"),
)
"""Modules that commands and tests import only when they run."""


# --- in a child


def _child(order: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _place(order["descriptors"], descriptors)
        if order["session"] or order["terminal"]:
            os.setsid()
        if order["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if order["group"] is not None and order["group"] >= 0:
            os.setpgid(0, order["group"])
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["env"])
        time.tzset()
        tempfile.tempdir = None
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        _open_streams()
        code = _status_of(order["args"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _place(numbers: Sequence[int], descriptors: Sequence[int]) -> None:
    """Give the descriptors their numbers, and close all others."""
    above = max(numbers, default=0) + MAX_DESCRIPTORS
    lifted = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    for number, descriptor in zip(numbers, lifted, strict=True):
        os.dup2(descriptor, number)
    last = -1
    for number in [*sorted(numbers), above + 2 * MAX_DESCRIPTORS]:
        if number > last + 1:  # `closerange(0, 0)` closes all
            os.closerange(last + 1, number)
        last = number


def _open_streams() -> None:
    """Open the standard streams as Python does at its start."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, stream = getattr(sys, name), None
        with suppress(OSError):  # closed
            raw = open(number, "wb" if number else "rb", buffering=0 if number and unbuffered else -1, closefd=False)  # noqa: SIM115
            getattr(raw, "raw", raw).name = f"<{name}>"
            stream = io.TextIOWrapper(
                raw,  # type: ignore[arg-type]
                encoding=old.encoding,
                errors=old.errors,
                line_buffering=not unbuffered and (number == 2 or os.isatty(number)),
                write_through=unbuffered,
            )
            stream.mode = "w" if number else "r"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _status_of(args: list[str]) -> int:
    """Run the program as `__main__`, and then what Python runs at its end. Returns the exit status."""
    code, interrupted = 0, False
    try:
        _execute(args)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code != end.code and end.code is not None:
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            code = code or 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF


def _execute(args: list[str]) -> None:
    isolated = args[0] == "-I"
    how, *rest = args[isolated:]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    own = [{"-c": "", "-m": os.getcwd()}.get(how, str(Path(how).parent.absolute()))]
    theirs = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    shared = {str(Path(__file__).parent), *PYTHONPATH.split(os.pathsep)}
    sys.path[:] = [*([] if isolated else own + theirs), *(path for path in sys.path if path not in shared)]
    if how == "-m":
        sys.argv = rest
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [how, *rest]
        main.__file__ = os.path.abspath(how)
        exec(compile(Path(how).read_bytes(), how, "exec"), main.__dict__)


if __name__ == "__main__":
    _import_everything()
    _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
