"""Running a coroutine from the main thread so that Ctrl-C ends it in order, and a second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from consilience.cli.failures import INTERRUPTED, say

T = TypeVar("T")

STOPPING = "Stopping; Ctrl-C once more ends it at once."

_SHOW_CURSOR = "\x1b[?25h"


def run_until_done(
    work: Coroutine[Any, Any, T], *, tell: Callable[[str], None] = say, leave: Callable[[], bool] = lambda: False
) -> T:
    """The coroutine's result. The first SIGINT cancels it, and `KeyboardInterrupt` is raised when it has put everything
    away; the second ends the process on the spot, which the journal survives. `tell` says so in between. A SIGINT that
    `leave` takes for itself, giving True, does not count."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        main = loop.create_task(_whole(work))
        asked = False

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if not asked and leave():
                return
            if asked:
                if sys.stderr.isatty():
                    sys.stderr.write(_SHOW_CURSOR)
                    sys.stderr.flush()
                os._exit(INTERRUPTED)
            asked = True
            main.cancel()
            loop.call_soon_threadsafe(tell, STOPPING)  # wakes the loop, too, where it sleeps in a system call

        before = signal.signal(signal.SIGINT, stop)
        try:
            return loop.run_until_complete(main)
        except asyncio.CancelledError:
            if asked:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, before)


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    return await work
