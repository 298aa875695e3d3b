"""A child process that ends with all its descendants: when it is killed, and when this process ends in any way.

A supervisor (`supervisor.py`) between this process and the child does the killing. asyncio's own subprocesses do not suffice:
until their pipes are connected only the event loop knows the process, so a cancellation or a signal in between leaves it running.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import IO

from consilience.models import supervisor

KILL_SECONDS = 2.0
"""How long `kill_all` waits for each child to end."""


class ChildProcess:
    """A program below a supervisor. `kill_all` knows it from before its start until it is killed or has ended.

    A thread starts the supervisor and reads its reports. No cancellation or signal handler can interrupt that thread between the
    start and the moment from which the child can be killed. `stderr` is as in `subprocess.Popen`. Cancelling a wait for `started`
    or `ended` leaves the child alone.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None, stderr: int | IO[bytes]
    ) -> None:
        self.cwd = cwd
        self.pid = 0
        """Process id of the program; 0 until it is started."""
        self.started: Future[subprocess.Popen[bytes]] = Future()
        """The supervisor's process, with the program's pipes. Raises `OSError` or `ValueError` if the program was not started."""
        self.ended: Future[int] = Future()
        """The program's exit code, negative for a signal, once no descendant is left; -1 if it was not started."""
        for future in (self.started, self.ended):
            future.set_running_or_notify_cancel()
        self._popen: subprocess.Popen[bytes] | None = None
        self._wanted = True
        self._starting = threading.RLock()  # a signal handler may run while its own thread holds the lock
        self._lifeline, self._far_end = socket.socketpair()
        _children.add(self)
        thread = threading.Thread(target=self._run, args=(argv, env, stderr), name=f"run {argv[0]}", daemon=True)
        try:
            thread.start()
        except BaseException:
            _children.discard(self)
            raise

    def kill(self) -> None:
        """Kill the program and its descendants, without waiting. A program that was not started yet never is."""
        with self._starting:
            self._wanted = False
            with contextlib.suppress(OSError):  # the supervisor has ended
                self._lifeline.shutdown(socket.SHUT_WR)
            if self._popen is not None:
                self._popen.send_signal(signal.SIGCONT)  # the program may have stopped its supervisor
        _children.discard(self)

    def close_pipes(self) -> None:
        """Close the program's pipes. Only after `kill`."""
        if self._popen is not None:
            for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                if pipe is not None:
                    pipe.close()

    def _run(self, argv: Sequence[str], env: Mapping[str, str], stderr: int | IO[bytes]) -> None:
        code = -1
        try:
            popen = self._start(argv, env, stderr)
            with self._lifeline.makefile("rb") as reports:
                self.pid = _pid(reports.readline(), argv[0])
                self.started.set_result(popen)
                code = _exit_code(reports.readline(), self.pid)
            popen.wait()
        except Exception as error:
            if self._popen is not None:
                self._popen.wait()
            self.started.set_exception(error)
        finally:
            self._lifeline.close()
            self._far_end.close()
            _children.discard(self)
            self.ended.set_result(code)

    def _start(self, argv: Sequence[str], env: Mapping[str, str], stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
        keep_locale = "1" if "LC_CTYPE" in env else "0"
        with self._starting, self._far_end:
            if not self._wanted:
                raise ProcessLookupError(_KILLED_EARLY)
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(self._far_end.fileno()), keep_locale, *argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=self.cwd,
                env=env,
                start_new_session=True,  # Ctrl-C at the terminal does not reach it
                pass_fds=[self._far_end.fileno()],
            )
            return self._popen

    def _forget(self) -> None:
        """In a forked copy of this process: close the lifeline, so that it does not outlive the original process."""
        self._lifeline.close()
        if self._popen is not None:
            self._popen.returncode = 0  # no child of this process
            self.close_pipes()


def kill_all() -> None:
    """Kill every child with its descendants and remove its working directory, for a process that ends at once."""
    children = tuple(_children)
    for child in children:
        child.kill()
    for child in children:
        with contextlib.suppress(TimeoutError):
            child.ended.result(KILL_SECONDS)
        if child.cwd is not None:
            shutil.rmtree(child.cwd, ignore_errors=True)


_KILLED_EARLY = "it was killed before it was started"
_children: set[ChildProcess] = set()


def _forget_all() -> None:
    for child in _children:
        child._forget()
    _children.clear()


atexit.register(kill_all)
os.register_at_fork(after_in_child=_forget_all)


def _pid(report: bytes, program: str) -> int:
    """The process id in a supervisor's first report. Raises `OSError` if the program was not started."""
    word, _, number = report.partition(b" ")
    if word == b"failed":
        raise OSError(int(number), os.strerror(int(number)), program)
    if word != b"started":
        raise ProcessLookupError(_KILLED_EARLY)
    return int(number)


def _exit_code(report: bytes, pid: int) -> int:
    """The exit code in a supervisor's last report. An empty one means that it was killed: then the program's group is killed."""
    if report:
        return int(report.partition(b" ")[2])
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return -signal.SIGKILL
