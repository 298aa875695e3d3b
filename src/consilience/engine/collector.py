"""The garbage collector of Python, while a session is read back."""

from __future__ import annotations

import gc
import threading
from typing import ClassVar, Self


class CollectorPause:
    """Pauses the cyclic garbage collector of the process until `release`.

    A resume keeps nearly all objects that it makes: events, messages, replies. Collections would traverse them again and again
    without finding garbage, for a fifth of the CPU. Pauses may overlap; the last release ends them. A collector that was disabled
    before stays disabled.
    """

    _lock: ClassVar = threading.Lock()
    _held: ClassVar[set[CollectorPause]] = set()
    _was_enabled: ClassVar = False

    def __enter__(self) -> Self:
        cls = CollectorPause
        with cls._lock:
            if not cls._held:
                cls._was_enabled = gc.isenabled()
                gc.disable()
            cls._held.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End this pause. Harmless the second time."""
        cls = CollectorPause
        with cls._lock:
            is_last = cls._held == {self}
            cls._held.discard(self)
            if is_last and cls._was_enabled:
                gc.enable()
