"""What a framework does to the process, kept in: Inspect sets up logging for all, and leaves streams and loops unclosed."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def contained() -> Iterator[None]:
    """Inside, whatever is left open is not warned about; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
            gc.collect()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
