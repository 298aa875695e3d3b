"""The numbers of new sessions, which order them by their creation in any process."""

from __future__ import annotations

import os
import threading
import time

_numbering = threading.Lock()
_last_number = 0


def new_number() -> int:
    """Return the number of a new session, above those of older ones, without asking the journal.

    Microseconds since the epoch, with ten bits of the process in the last place.
    """
    global _last_number
    with _numbering:
        _last_number = max(_last_number + 1024, (time.time_ns() // 1000) << 10 | os.getpid() & 1023)
        return _last_number
