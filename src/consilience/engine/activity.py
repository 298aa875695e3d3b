"""Counting the branches that can still move, so that parking and deadlock are decided exactly."""

from __future__ import annotations

import time
from collections.abc import Callable

from consilience.engine.ports import PendingAnswer

Phase = tuple[str, int]
"""The label of a call: a name and an index."""


def phase_name(phase: Phase) -> str:
    """Return a phase as `--at` and `--phase-limit` name it."""
    return f"{phase[0]}/{phase[1]}"


class Activity:
    """Which branches of a session move, wait for an outside answer, or are held.

    A branch that wakes another counts it in before it counts itself out, so `running` is 0 only when nothing moves.
    """

    def __init__(self) -> None:
        self.on_still: Callable[[], None] = lambda: None
        """Called whenever no branch moves any more."""
        self.running = 0
        """Branches that neither wait to join others nor wait for an outside answer."""
        self.generation = 0
        """Changes whenever a branch starts or resumes."""
        self.outside: dict[str, PendingAnswer] = {}
        """Answers from outside this process that are awaited, by the key of the call."""
        self.departed: set[str] = set()
        """Those keys whose agent has left without an answer."""
        self.held_calls: dict[str, Phase | None] = {}
        """Phases of the calls that are not to be made in this process, by key."""
        self.defective = False
        """Whether a branch that nothing awaits yet ended in a defect."""
        self._idle_seconds = 0.0
        self._since: float | None = None

    @property
    def idle_seconds(self) -> float:
        """Seconds in which only outside answers were awaited, one of them a person's."""
        return self._idle_seconds + (time.monotonic() - self._since if self._since is not None else 0.0)

    def enter(self, n: int = 1) -> None:
        self.running += n
        self.generation += 1
        if self._since is not None:
            self._idle_seconds, self._since = self.idle_seconds, None

    def leave(self) -> None:
        self.running -= 1
        if self.running == 0:
            if any(answer.person for answer in self.outside.values()):
                self._since = time.monotonic()
            self.on_still()

    def wait_outside(self, key: str, answer: PendingAnswer) -> None:
        self.outside[key] = answer
        self.leave()

    async def has_live_ticket(self) -> bool:
        """Return whether an agent outside this process works on an awaited answer now, or has ended it."""
        for ticket in [answer.ticket for answer in self.outside.values() if answer.ticket is not None]:
            if await ticket.is_live():
                return True
        return False

    def mark_departed(self, key: str) -> None:
        """Mark the person answering `key` as departed. The branch keeps waiting, but the session need not stay up for it."""
        self.departed.add(key)
        if self.running == 0:
            self.on_still()

    def hold(self, key: str, phase: Phase | None) -> None:
        """Wait forever before a call that is not to be made in this process."""
        self.held_calls[key] = phase
        self.leave()

    @property
    def is_unanswerable(self) -> bool:
        """Whether no awaited outside answer will come to this process."""
        return self.departed.issuperset(self.outside)

    def end_wait(self, key: str) -> None:
        """Count the waiting branch again: the answer has come, or will not."""
        del self.outside[key]
        self.departed.discard(key)
        self.enter()
