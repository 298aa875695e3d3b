"""Who may write a session: an operating-system lock, given back by the system itself when its process dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from filelock import FileLock
from filelock import Timeout as LockTaken

from consilience.domain.errors import StoreUnusable


class Lease:
    """The lock of one session beside the journal file, or in `held` for a journal in memory."""

    def __init__(self, store: str, session: str, held: dict[str, Lease]) -> None:
        self._session = session
        self._held = held
        self._lock: FileLock | None = None
        if store != ":memory:":
            self._file = Path(store + ".leases") / f"{session}.lock"
            self._lock = FileLock(self._file, mode=0o600, thread_local=False)

    def acquire(self, patience: float = 0.0) -> bool:
        """True when the lease is ours now; False when somebody has held it for `patience` seconds. Raises `StoreUnusable`."""
        if self._lock is None:
            return self._held.setdefault(self._session, self) is self
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            self._lock.acquire(timeout=patience, poll_interval=0.01)
        except LockTaken:
            return False
        except OSError as error:
            raise StoreUnusable(
                f"the session cannot be leased: {error.strerror or error}",
                where=str(self._file),
                do="Free space or rights there, or name another place with CONSILIENCE_HOME, then try again.",
            ) from error
        return True

    def taken(self) -> bool:
        """Whether somebody has it. Where no lock can be written the lock's file is looked at; without one nobody has."""
        try:
            if not self.acquire():
                return True
        except StoreUnusable:
            return _is_locked(self._file)
        self.release()
        return False

    def release(self) -> None:
        if self._lock is None:
            if self._held.get(self._session) is self:
                del self._held[self._session]
        elif self._lock.is_locked:
            self._lock.release()

    def discard(self) -> None:
        """Give a lease that is held back for good: its file goes too."""
        if self._lock is not None:
            self._file.unlink(missing_ok=True)  # whoever waits for it sees that and opens another
        self.release()


def _is_locked(file: Path) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        seen = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(seen, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(seen)
    return False
