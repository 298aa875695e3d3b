"""Running a coroutine from the main thread so that Ctrl-C, or who else ends a process, ends it in order; a second one at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

from consilience.cli.errors import SIGNALLED, Stopped, say

T = TypeVar("T")

STOPPING = "Stopping; Ctrl-C once more ends it at once."
STOPPING_TOO = "Stopping; a second signal ends it at once."

_SHOW_CURSOR = "\x1b[?25h"
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


def run_until_done(
    work: Coroutine[Any, Any, T], *, tell: Callable[[str], None] = say, leave: Callable[[], bool] = lambda: False
) -> T:
    """The coroutine's result. The first SIGINT, SIGTERM or SIGHUP cancels it, and `KeyboardInterrupt` (`Stopped` for the
    latter two) is raised when it has put everything away; the second ends the process on the spot, which the journal
    survives. `tell` says so in between. A SIGINT that `leave` takes for itself, giving True, does not count."""
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.set_default_executor(_Detached())
        main = loop.create_task(_whole(work))
        asked = 0
        terminals = [fd for fd in (1, 2) if os.isatty(fd)]

        def stop(number: int, frame: FrameType | None) -> None:
            nonlocal asked
            if number == signal.SIGINT and not asked and leave():
                return
            _let_go(terminals)
            if asked:
                _end_at_once(number)
            asked = number
            main.cancel()
            # wakes the loop, too, where it sleeps in a system call
            loop.call_soon_threadsafe(tell, STOPPING if number == signal.SIGINT else STOPPING_TOO)

        try:
            with _handled(stop):
                return loop.run_until_complete(main)
        except asyncio.CancelledError:
            if asked:
                raise (KeyboardInterrupt if asked == signal.SIGINT else Stopped(asked)) from None
            raise


@contextlib.contextmanager
def _handled(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals that end a process are given to `stop` meanwhile; but those somebody shut out, as `nohup` does, stay so."""
    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    before = {
        number: signal.signal(number, stop)
        for number in numbers
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Detached(ThreadPoolExecutor):
    """Runs each function in a daemon thread. A name lookup that hangs delays neither the report nor the end of the process."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


def _let_go(terminals: list[int]) -> None:
    """Whatever is still written to a terminal that went away goes nowhere, rather than wrong."""
    for fd in terminals:
        if not os.isatty(fd):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, fd)
            os.close(nowhere)


def _end_at_once(number: int) -> None:
    if programs := sys.modules.get("consilience.models.program"):
        programs.kill_all()
    if sys.stderr.isatty():
        sys.stderr.write(_SHOW_CURSOR)
        sys.stderr.flush()
    os._exit(SIGNALLED + number)


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    return await work
