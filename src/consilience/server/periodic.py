"""Work of a server that is done again and again on a thread of its own, whatever the runs and readers do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("consilience")


@contextmanager
def periodically(work: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Do some work at once and then every so often while the block runs. A failure is logged, and the work done again."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                work()
            except Exception:
                logger.exception("%s failed, and will be tried again", name)
            stop.wait(seconds)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
