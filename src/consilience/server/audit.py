"""The audit log: who did what to which session, a line of JSON each. It holds no text, no token and no address."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from consilience.server.access_settings import AccessSettings

logger = logging.getLogger("consilience")

Deed = Literal[
    "began", "answered", "passed", "commented", "forked", "told", "cancelled", "resumed", "lifted", "linked", "shared", "unlinked",
    "voted", "deleted", "expired",
]  # fmt: skip


class Audit:
    """Appends to a file that only its owner reads. It may be moved away at any time: the next line begins a new one."""

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.time) -> None:
        """None writes nothing. `now` is in seconds since the epoch."""
        self._path = path
        self._now = now
        self._lock = threading.Lock()

    def note(self, by: str, deed: Deed, session: str, **more: str | int) -> None:
        """Write a line. One that cannot be written is in the server's log, and stops nothing."""
        if self._path is None:
            return
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now()))
        line = json.dumps({"at": at, "by": by or "local", "did": deed, "session": session, **more}) + "\n"
        try:
            with self._lock:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    os.write(file, line.encode())
                finally:
                    os.close(file)
        except OSError as error:
            logger.error("the audit log cannot be written: %s; %s", error.strerror, line.strip())


def audit_path(access: AccessSettings, journal: str) -> Path | None:
    """Return where the audit log of a server is: beside its journal, if the operator names no other place; None without either."""
    if access.audit_log is not None:
        return access.audit_log
    return None if journal == ":memory:" else Path(journal).with_name("audit.log")
