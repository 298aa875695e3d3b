"""Stop conditions, composed with `&` and `|`. Scores of different kinds are never averaged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.domain.outcome import Check
from consilience.domain.positions import Ballot
from consilience.engine.session import Session
from consilience.engine.work import Reply


@dataclass(frozen=True, slots=True)
class ConditionInput:
    """What a condition judges."""

    step: int
    texts: Sequence[Reply[object]]
    """The outcome after each step."""
    ballots: Sequence[Mapping[str, Ballot]] = ()
    """The ballots after each step, by agent."""
    voters: int = 0
    """Number of agents that may cast a ballot."""


class StopCondition(ABC):
    @abstractmethod
    async def check(self, session: Session, progress: ConditionInput) -> Check:
        """Judge. May make calls in the current branch. Without a judgement the condition is not met."""

    def __and__(self, other: StopCondition) -> StopCondition:
        return _Both((self, other))

    def __or__(self, other: StopCondition) -> StopCondition:
        return _Either((self, other))


@dataclass(frozen=True)
class _Both(StopCondition):
    parts: tuple[StopCondition, ...]

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        parts = tuple([await part.check(session, progress) for part in self.parts])
        return Check(met=all(p.met for p in parts), kind="all", detail=_details(parts), parts=parts)


@dataclass(frozen=True)
class _Either(StopCondition):
    parts: tuple[StopCondition, ...]

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        parts = tuple([await part.check(session, progress) for part in self.parts])
        return Check(met=any(p.met for p in parts), kind="any", detail=_details(parts), parts=parts)


@dataclass(frozen=True)
class TextStable(StopCondition):
    """The similarity of the last two texts is at least `threshold`."""

    kind: Literal["jaccard", "embedding"]
    threshold: float

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        before, after = progress.texts[-2:]
        score = await session.similarity(self.kind, before.text, after.text)
        detail = "" if score is not None else "the texts could not be compared"
        met = score is not None and score >= self.threshold
        return Check(met=met, kind=self.kind, score=score, threshold=self.threshold, detail=detail)


def _details(parts: Sequence[Check]) -> str:
    return "; ".join(f"{p.kind} {'met' if p.met else 'not met'}" for p in parts)
