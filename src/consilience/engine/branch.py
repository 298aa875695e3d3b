"""Branches: where in the program an operation is.

A place is the ordinal of an operation in its branch, prefixed by the place of the gather or start that opened the branch and by the
branch's index there. Places depend on the program alone, never on who answered first.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from consilience.engine.activity import Phase
from consilience.engine.ledger import BranchBudget


@dataclass(slots=True)
class Branch:
    """A line of execution. Its operations get ordinals from 0 in program order."""

    prefix: str
    """Opens the place of each of its operations."""
    budget: BranchBudget
    pending_calls: float = 0
    """Upper bound on the calls it still makes."""
    ordinal: int = 0
    embedded: set[str] = field(default_factory=set)
    """Ids of the texts that have recorded vectors in its past."""

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
