"""An event loop whose clock jumps to the next timer, but waits for commits of a journal and for threads."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from consilience.domain.errors import StoreUnusable
from consilience.journal.writer import Writer

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Where a selector would wait, the clock jumps. Commits and threads take no time on it, and are waited for."""

    now = 0.0
    awaited = 0

    def __init__(self) -> None:
        super().__init__()
        self.writers: set[Writer] = set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        for writer in self.writers:
            with contextlib.suppress(StoreUnusable):
                writer.flush()
        ready = super().select(60 if self.awaited or timeout is None else 0)
        if not ready:
            assert timeout is not None, "nothing is left that could happen"
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now

    def run_in_executor(self, *arguments: Any) -> asyncio.Future[Any]:
        return self.awaited(super().run_in_executor(*arguments))

    def awaited(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        self.selector.awaited += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self.selector.awaited -= 1


def run(main: Coroutine[object, object, T]) -> T:
    """Run on a loop of its own."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=JumpingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, JumpingLoop)
        patch.setattr(Writer, "put", _registering(Writer.put, loop))
        patch.setattr(Writer, "put_and_wait", _registering(Writer.put_and_wait, loop))
        return runner.run(main)


def _registering(put, loop: JumpingLoop):  # type: ignore[no-untyped-def]
    def registered(self: Writer, *arguments):  # type: ignore[no-untyped-def]
        loop.selector.writers.add(self)
        future = put(self, *arguments)
        return future if future is None else loop.awaited(future)

    return registered


def now() -> float:
    return asyncio.get_running_loop().time()
