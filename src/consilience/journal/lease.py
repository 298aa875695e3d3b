"""Who may write a session: an operating-system lock, given back by the system itself when its process dies."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock
from filelock import Timeout as LockTaken

from consilience.domain.errors import StoreUnusable


class Lease:
    """The lock of one session beside the journal file, or in `held` for a journal in memory."""

    def __init__(self, store: str, session: str, held: set[str]) -> None:
        self._session = session
        self._held = held
        self._lock: FileLock | None = None
        if store != ":memory:":
            self._file = Path(store + ".leases") / f"{session}.lock"
            self._lock = FileLock(self._file, mode=0o600, thread_local=False)

    def acquire(self, patience: float = 0.0) -> bool:
        """True when the lease is ours now; False when somebody has held it for `patience` seconds. Raises `StoreUnusable`."""
        if self._lock is None:
            if self._session in self._held:
                return False
            self._held.add(self._session)
            return True
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

    def release(self) -> None:
        if self._lock is None:
            self._held.discard(self._session)
        elif self._lock.is_locked:
            self._lock.release()

    def discard(self) -> None:
        """Give a lease that is held back for good: its file goes too."""
        if self._lock is not None:
            self._file.unlink(missing_ok=True)  # whoever waits for it sees that and opens another
        self.release()
