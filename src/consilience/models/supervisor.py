"""The process between this one and a child process (`child_process.py`): it ends the child with all its descendants.

Run as `python -I -S supervisor.py SOCKET KEEP_LC_CTYPE PROGRAM ARGUMENT…`, with the program's pipes, directory and environment.
The program is killed when the other end of the socket is shut or its owner has ended. Reports are lines on the socket:
`started PID` or `failed ERRNO`, then `ended CODE` once no descendant is left.

On Linux it is the reaper of all descendants of the program: a daemon that leaves its session and its parents becomes a
child of this process instead of init's, and is found. On other systems only the program's process group is killed.

It starts once per reply of a program, so it imports little, and nothing of this package.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_KILL_SECONDS = 5.0
"""How long killing is tried. A process that cannot be killed (of another user) is left after that."""
_SEARCH_SECONDS = 0.05
"""Time between two searches for descendants while no child ends."""


def main() -> None:
    lifeline, keep_locale, argv = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:]
    os.set_inheritable(lifeline, False)
    _become_reaper()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the program would inherit SIG_IGN
    signal.set_wakeup_fd(wake)
    if select.select([lifeline], [], [], 0)[0]:  # nothing is ever sent to this end: the other one is shut
        return
    environment = dict(os.environb)
    if not keep_locale:  # Python itself sets it in the C locale
        environment.pop(b"LC_CTYPE", None)
    try:
        leader = os.posix_spawn(argv[0], argv, environment, setsid=True, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
    except OSError as error:
        _report(lifeline, f"failed {error.errno}")
        return
    for descriptor in (0, 1, 2):  # else the program's pipes would stay open
        os.dup2(woken, descriptor)
    _report(lifeline, f"started {leader}")
    code = _wait(leader, lifeline, woken)
    _report(lifeline, f"ended {_end_all(leader, code, woken)}")


def _become_reaper() -> None:
    """Become the parent of descendants whose parent ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _report(lifeline: int, line: str) -> None:
    try:  # noqa: SIM105 - importing contextlib is slow
        os.write(lifeline, f"{line}\n".encode())
    except OSError:  # the owner has ended
        pass


def _wait(leader: int, lifeline: int, woken: int) -> int | None:
    """Return the program's exit code once it has ended, or None when it must be killed."""
    while True:
        ready, _, _ = select.select([lifeline, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            while (reaped := _reap()) is not None and reaped[0]:
                if reaped[0] == leader:
                    return reaped[1]
        if lifeline in ready:
            return None


def _end_all(leader: int, code: int | None, woken: int) -> int:
    """Kill until no child is left. A killed process leaves its children to this one, so then no descendant is left.

    Returns the leader's exit code, `code` if that is known.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while True:
        _kill_all(leader)
        while (reaped := _reap()) is not None and reaped[0]:  # all that ended are reaped before the next search
            if reaped[0] == leader:
                code = reaped[1]
        if reaped is None or time.monotonic() > deadline:
            return -signal.SIGKILL if code is None else code
        if select.select([woken], [], [], _SEARCH_SECONDS)[0]:
            os.read(woken, 4096)


def _kill_all(leader: int) -> None:
    try:  # noqa: SIM105
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    if sys.platform != "linux":
        return
    family = {os.getpid()}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                parent = int(file.read(512).rpartition(b")")[2].split()[1])
            if parent in family:
                family.add(pid)
                os.kill(pid, signal.SIGKILL)
        except (OSError, IndexError, ValueError):  # it has ended, or may not be killed
            continue


def _reap() -> tuple[int, int] | None:
    """A child that ended, 0 if none has, and its exit code; None if there is no child."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return pid, os.waitstatus_to_exitcode(status) if pid else 0


if __name__ == "__main__":
    main()
