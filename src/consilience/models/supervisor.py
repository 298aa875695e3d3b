"""A process between this one and a program: it ends the program with all that the program started.

Run as `python -I -S supervisor.py SOCKET KEEP_LC_CTYPE PROGRAM ARGUMENT…`, with the program's pipes, directory and
environment. The socket is its lifeline: when the other end is shut, or its owner is killed, the program ends. It writes
lines to it: `started PID` or `failed ERRNO`, and `ended CODE` once no process is left.

On Linux it is the reaper of all descendants of the program, so that a daemon which leaves its session and its parents
becomes a child of this process instead of init's, and is found. Elsewhere only the program's process group is ended.

Nothing of this package is imported here, and little else: it starts once for each reply of a program.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_TO_END = 5.0
"""Seconds in which all must be dead. What cannot be killed (another user's process) is left then."""
_SEARCH_EVERY = 0.05
"""Seconds between two searches when no child ends."""


def main() -> None:
    lifeline, keep_locale, argv = int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:]
    os.set_inheritable(lifeline, False)
    _adopt_orphans()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, for what is ignored would be ignored in the program too
    signal.set_wakeup_fd(wake)
    if select.select([lifeline], [], [], 0)[0]:  # nothing is ever sent here: the other end is shut
        return
    environment = dict(os.environb)
    if not keep_locale:  # Python itself sets it where the locale is C
        environment.pop(b"LC_CTYPE", None)
    try:
        leader = os.posix_spawn(argv[0], argv, environment, setsid=True, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
    except OSError as error:
        _tell(lifeline, f"failed {error.errno}")
        return
    for descriptor in (0, 1, 2):  # else the program's pipes would stay open
        os.dup2(awake, descriptor)
    _tell(lifeline, f"started {leader}")
    code = _wait(leader, lifeline, awake)
    _tell(lifeline, f"ended {_end_all(leader, code, awake)}")


def _adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _tell(lifeline: int, line: str) -> None:
    try:  # noqa: SIM105 - contextlib takes long to import
        os.write(lifeline, f"{line}\n".encode())
    except OSError:  # the owner is gone
        pass


def _wait(leader: int, lifeline: int, awake: int) -> int | None:
    """The program's exit code once it ended by itself; None when it is not wanted any more."""
    while True:
        ready, _, _ = select.select([lifeline, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            while (ended := _reap(os.WNOHANG)) is not None and ended[0]:
                if ended[0] == leader:
                    return ended[1]
        if lifeline in ready:
            return None


def _end_all(leader: int, code: int | None, awake: int) -> int:
    """Kill until no child is left. A killed process leaves its children to this one, so then no descendant is left.

    Returns the leader's exit code, `code` if that is known.
    """
    latest = time.monotonic() + _TO_END
    while True:
        _kill_all(leader)
        while (ended := _reap(os.WNOHANG)) is not None and ended[0]:  # all that ended are taken before the next search
            if ended[0] == leader:
                code = ended[1]
        if ended is None or time.monotonic() > latest:
            return -signal.SIGKILL if code is None else code
        if select.select([awake], [], [], _SEARCH_EVERY)[0]:
            os.read(awake, 4096)


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
        except (OSError, IndexError, ValueError):  # it is gone, or may not be killed
            continue


def _reap(flags: int) -> tuple[int, int] | None:
    """A child that ended, 0 for none so far, and its exit code; None if there is no child."""
    try:
        pid, status = os.waitpid(-1, flags)
    except ChildProcessError:
        return None
    return pid, os.waitstatus_to_exitcode(status) if pid else 0


if __name__ == "__main__":
    main()
