"""Counting who can still move, exactly: a session in which nobody can is waiting for the outside world, or is stuck."""

from __future__ import annotations

import time
from collections.abc import Callable

from consilience.engine.branch import Phase


class Activity:
    """`running` is the number of branches neither joined on others nor waiting outside.

    A branch that wakes another counts it in before it counts itself out, so `running` is 0 only when nothing moves.
    `stirred` changes whenever somebody begins to move; `idle` is the time, in seconds, in which only the outside was awaited.
    """

    def __init__(self, still: Callable[[], None]) -> None:
        self.running = 0
        self.stirred = 0
        self.outside: dict[str, str] = {}
        self.left: set[str] = set()
        self.held: dict[str, Phase | None] = {}
        self._still = still
        self._idle = 0.0
        self._since: float | None = None

    @property
    def idle(self) -> float:
        return self._idle + (time.monotonic() - self._since if self._since is not None else 0.0)

    def enter(self, n: int = 1) -> None:
        self.running += n
        self.stirred += 1
        if self._since is not None:
            self._idle, self._since = self.idle, None

    def leave(self) -> None:
        self.running -= 1
        if self.running == 0:
            if self.outside:
                self._since = time.monotonic()
            self._still()

    def wait_outside(self, key: str, agent: str) -> None:
        self.outside[key] = agent
        self.leave()

    def gone(self, key: str) -> None:
        """Whoever is asked has left; the branch goes on waiting, and nobody need have patience for it."""
        self.left.add(key)
        if self.running == 0:
            self._still()

    def hold(self, key: str, phase: Phase | None) -> None:
        """The branch stands before a call that is not to be made in this process."""
        self.held[key] = phase
        self.leave()

    @property
    def hopeless(self) -> bool:
        """Whether all that is awaited outside will not come to this process."""
        return self.left.issuperset(self.outside)

    def answered(self, key: str) -> None:
        """The answer is here, or will not come; the waiting branch counts again from now."""
        del self.outside[key]
        self.enter()
