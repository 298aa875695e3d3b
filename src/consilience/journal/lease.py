"""The right to write a session, held by one process at a time."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from filelock import FileLock
from filelock import Timeout as LockTaken

from consilience.domain.errors import StoreUnusable

HOLDER_SECONDS = 1.0
"""How long a refused process waits for the holder to record itself."""


def describe_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def live_holder(read_holder: Callable[[], str | None]) -> str:
    """Return the recorded holder of a lease that is taken; `read_holder` reads it, as `describe_process` wrote it.

    A process records itself just after it takes the lease. Until then the record names an earlier holder, so a holder that has
    ended is read again, for up to `HOLDER_SECONDS`; after that it is "another process".
    """
    deadline = time.monotonic() + HOLDER_SECONDS
    while (holder := read_holder()) is None or _has_ended(holder):
        if time.monotonic() > deadline:
            return "another process"
        time.sleep(0.01)
    return holder


def _has_ended(holder: str) -> bool:
    """Return whether the process is of this host and ended. Windows has no signal that only checks."""
    pid = re.match(rf"process (\d+) on {re.escape(socket.gethostname())}$", holder)
    if pid is None or sys.platform == "win32":
        return False
    try:
        os.kill(int(pid[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


class Lease(Protocol):
    """The right to write one session. One holder at a time; the death of the holder's process ends it."""

    def acquire(self, patience: float = 0.0) -> bool:
        """Return True if the lease is held now, False if another holder kept it for `patience` seconds.

        Raises `StoreUnusable` if leases cannot be stored.
        """
        ...

    def is_taken(self) -> bool:
        """Return whether any process holds the lease. Never raises."""
        ...

    def release(self) -> None: ...

    def discard(self) -> None:
        """Release a lease for a session that no longer exists."""
        ...


class MemoryLease:
    """The lease of a session of a store in memory: an entry of `held`, the leases of that store."""

    def __init__(self, session: str, leases: dict[str, MemoryLease]) -> None:
        self._session = session
        self._held = leases

    def acquire(self, patience: float = 0.0) -> bool:
        return self._held.setdefault(self._session, self) is self

    def is_taken(self) -> bool:
        return self._session in self._held

    def release(self) -> None:
        if self._held.get(self._session) is self:
            del self._held[self._session]

    discard = release


class FileLease:
    """An operating-system lock on a file beside the journal `store`."""

    def __init__(self, store: str, session: str) -> None:
        self._file = Path(store + ".leases") / f"{session}.lock"
        self._lock = FileLock(self._file, mode=0o600, thread_local=False)

    def acquire(self, patience: float = 0.0) -> bool:
        if self._file.parent.is_symlink():
            raise StoreUnusable(
                "the directory of leases is a link", where=str(self._file.parent), do="Remove the link, then try again."
            )
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            self._lock.acquire(timeout=patience, poll_interval=0.01)
        except LockTaken:
            return False
        except OSError as error:
            raise StoreUnusable(
                f"the session cannot be leased: {error.strerror or error}",
                where=str(self._file),
                do="Free space or rights there, or name another directory with CONSILIENCE_HOME that has a copy of this "
                "one's files, then try again.",
            ) from error
        return True

    def is_taken(self) -> bool:
        """If the lock cannot be written, its file is checked; without a file no process holds the lease."""
        try:
            if not self.acquire():
                return True
        except StoreUnusable:
            return _is_locked(self._file)
        self.release()
        return False

    def release(self) -> None:
        if self._lock.is_locked:
            self._lock.release()

    def discard(self) -> None:
        self._file.unlink(missing_ok=True)  # a process that waits for the lock notices this and opens a new file
        self.release()


def _is_locked(file: Path) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False
