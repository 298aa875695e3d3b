"""Counting who can still move, exactly: a session in which nobody can is waiting for the outside world, or is stuck."""

from __future__ import annotations

from collections.abc import Callable


class Activity:
    """`running` is the number of branches neither joined on others nor waiting outside.

    A branch that wakes another counts it in before it counts itself out, so `running` is 0 only when nothing moves.
    """

    def __init__(self, still: Callable[[], None]) -> None:
        self.running = 0
        self.outside: dict[str, str] = {}
        self._still = still

    def enter(self, n: int = 1) -> None:
        self.running += n

    def leave(self) -> None:
        self.running -= 1
        if self.running == 0:
            self._still()

    def wait_outside(self, key: str, agent: str) -> None:
        self.outside[key] = agent
        self.leave()

    def answered(self, key: str) -> None:
        """The answer is here; the waiting branch counts again from now."""
        del self.outside[key]
        self.enter()
