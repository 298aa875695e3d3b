"""Branches: where in the program one is, and which of them can still move.

A place is the ordinal of an operation in its branch, prefixed by the place of the gather or start that opened the branch and by the
branch's index there. Places depend on the program alone, never on who answered first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consilience.engine.ledger import BranchBudget

Phase = tuple[str, int]


@dataclass(slots=True)
class Branch:
    """A line of execution. Operations get ordinals from 0 in program order. `pending_calls` bounds the calls it still makes. The
    texts with ids in `embedded` have recorded vectors in its past."""

    prefix: str
    budget: BranchBudget
    pending_calls: float = 0
    ordinal: int = 0
    embedded: set[str] = field(default_factory=set)

    def join(self, parent: Branch) -> None:
        """Give `parent` what is unspent and what has vectors."""
        self.budget.join(parent.budget)
        if self.embedded is not parent.embedded:
            parent.embedded |= self.embedded

    def next_place(self) -> str:
        place = f"{self.prefix}{self.ordinal}"
        self.ordinal += 1
        return place


current_branch: ContextVar[Branch] = ContextVar("current_branch")
current_phase: ContextVar[Phase | None] = ContextVar("current_phase", default=None)


class Activity:
    """`running` is the number of branches neither joined on others nor waiting outside.

    A branch that wakes another counts it in before it counts itself out, so `running` is 0 only when nothing moves.
    `generation` changes whenever a branch starts or resumes. `idle` is the seconds in which only outside answers were awaited.
    """

    def __init__(self) -> None:
        self.on_still: Callable[[], None] = lambda: None
        """Called whenever nothing moves any more."""
        self.running = 0
        self.generation = 0
        self.outside: dict[str, str] = {}
        self.left: set[str] = set()
        self.held: dict[str, Phase | None] = {}
        self.defective = False
        """Whether a branch that nothing awaits yet ended in a defect."""
        self._idle = 0.0
        self._since: float | None = None

    @property
    def idle(self) -> float:
        return self._idle + (time.monotonic() - self._since if self._since is not None else 0.0)

    def enter(self, n: int = 1) -> None:
        self.running += n
        self.generation += 1
        if self._since is not None:
            self._idle, self._since = self.idle, None

    def leave(self) -> None:
        self.running -= 1
        if self.running == 0:
            if self.outside:
                self._since = time.monotonic()
            self.on_still()

    def wait_outside(self, key: str, agent: str) -> None:
        self.outside[key] = agent
        self.leave()

    def mark_departed(self, key: str) -> None:
        """Mark the person answering `key` as departed. The branch keeps waiting, but the session need not stay up for it."""
        self.left.add(key)
        if self.running == 0:
            self.on_still()

    def hold(self, key: str, phase: Phase | None) -> None:
        """The branch stands before a call that is not to be made in this process."""
        self.held[key] = phase
        self.leave()

    @property
    def is_unanswerable(self) -> bool:
        """Whether all that is awaited outside will not come to this process."""
        return self.left.issuperset(self.outside)

    def answered(self, key: str) -> None:
        """The answer is here, or will not come; the waiting branch counts again from now."""
        del self.outside[key]
        self.left.discard(key)
        self.enter()
