"""Running a coroutine from code that is not asynchronous, also where an event loop runs already."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_POLL_SECONDS = 0.1
"""Interval between two checks whether a task that waits for a run was cancelled."""


def as_blocking(coroutine: Callable[P, Coroutine[Any, Any, T]], name: str = "") -> Callable[P, T]:
    """Return a function that runs `coroutine` to its end, also where a loop runs already. Default name: NAME_sync."""

    parameters = signature(coroutine)

    @wraps(coroutine)
    def blocked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            parameters.bind(*args, **kwargs)
        except TypeError as error:  # it would name the coroutine
            raise TypeError(f"{blocked.__name__}() {error}") from None
        return run_blocking(coroutine(*args, **kwargs))

    blocked.__name__ = blocked.__qualname__ = name or f"{coroutine.__name__}_sync"
    first_line, _, rest = (coroutine.__doc__ or "").partition("\n")
    blocked.__doc__ = f"{first_line} Blocks; works in notebooks too. `{coroutine.__name__}` is the coroutine.\n{rest}"
    return blocked


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; in a thread of its own where this thread has a running loop."""
    try:
        asyncio.get_running_loop()
        has_loop = True
    except RuntimeError:
        has_loop = False
    # outside the handler, which every traceback would show
    return _run_in_thread(work) if has_loop else asyncio.run(work)


def _run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result. An interrupt, or the cancellation of the waiting task, cancels it and awaits its end."""
    ended: Future[T] = Future()
    stop: Future[None] = Future()

    async def main() -> T:
        loop, running = asyncio.get_running_loop(), asyncio.current_task()
        assert running is not None

        def cancel(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: the coroutine has ended
                loop.call_soon_threadsafe(running.cancel)

        stop.add_done_callback(cancel)
        return await work

    def target() -> None:
        try:
            ended.set_result(asyncio.run(main()))
        except BaseException as raised:  # handed to the caller's thread
            ended.set_exception(raised)

    threading.Thread(target=target, name="consilience", daemon=True).start()
    waiting = asyncio.current_task()
    before = waiting.cancelling() if waiting else 0
    try:
        while not wait((ended,), timeout=CANCEL_POLL_SECONDS).done:
            # `asyncio.run` turns the first Ctrl-C into a cancellation, which a task that does not await never sees.
            if waiting is not None and waiting.cancelling() > before:
                raise asyncio.CancelledError
    except BaseException:
        stop.set_result(None)
        wait((ended,))
        raise
    return ended.result()
