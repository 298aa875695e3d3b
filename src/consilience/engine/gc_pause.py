"""The cyclic garbage collector, paused while a journal is read again."""

from __future__ import annotations

import gc
import threading
from typing import Self

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


class CollectorPause:
    """Pauses the cyclic garbage collector of the process until `release`.

    A resume keeps nearly all objects that it makes: events, messages, replies. Collections would traverse them again and again
    without finding garbage, for a fifth of the CPU. Pauses may overlap; the last release ends them. A collector that was disabled
    before stays disabled.
    """

    def __init__(self) -> None:
        global _pauses, _was_enabled
        self._held = True
        with _lock:
            if not _pauses:
                _was_enabled = gc.isenabled()
                gc.disable()
            _pauses += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End this pause. Harmless the second time."""
        global _pauses
        with _lock:
            if not self._held:
                return
            self._held = False
            _pauses -= 1
            if not _pauses and _was_enabled:
                gc.enable()
