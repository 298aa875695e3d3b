"""The stop test by what agents declare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consilience.domain.outcome import Check
from consilience.engine.conditions import ConditionInput, StopCondition
from consilience.engine.session import Session
from consilience.protocols.emergence.turns import Turn


@dataclass(frozen=True)
class Declared(StopCondition):
    """Every agent that spoke in the round declares its answer unchanged, and no objection waits for its target (protocols §1)."""

    turns: Sequence[Turn]
    waiting: int
    """Objections that wait for their target."""

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        speaking = [turn for turn in self.turns if turn.spoke]
        kept = sum(turn.kept for turn in speaking)
        return Check(
            met=bool(speaking) and kept == len(speaking) and not self.waiting,
            kind="declared",
            score=kept / len(speaking) if speaking else None,
            threshold=1.0,
            detail=f"objections that wait for their target: {self.waiting}" if self.waiting else "",
        )
