"""Stop conditions that judge by a model or by ballots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from consilience.domain.outcome import Check
from consilience.domain.positions import unchanged
from consilience.engine.conditions import ConditionInput, StopCondition
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.work import Reply


class Judgement(BaseModel):
    """How much the second text changes the first."""

    sameness: Literal["different", "similar", "same"]


SAMENESS: Mapping[str, float] = {"different": 0.0, "similar": 0.5, "same": 1.0}


@dataclass(frozen=True)
class Judged(StopCondition):
    """A model compares the last two texts; one call by `judge`, from the template `judge`."""

    judge: str
    threshold: float

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        before, after = progress.texts[-2:]
        quotes = (session.quote(before, "before"), session.quote(after, "after"))
        reply = await session.ask(
            self.judge,
            Prompt(session.words("judge"), quotes),
            key=f"round-{progress.step}/judge",
            returns=Judgement,
            kind="judgement",
        )
        if not isinstance(reply, Reply):
            progress.failures.append(reply)
            return Check(met=False, kind="judge", threshold=self.threshold, detail=f"no judgement: {reply.kind.value}")
        score = SAMENESS[reply.value.sameness]
        return Check(met=score >= self.threshold, kind="judge", score=score, threshold=self.threshold)


class PositionsSettled(StopCondition):
    """No ballot changed side and no confidence moved since the step before (protocols §0), and a quorum cast one."""

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        before, after = progress.ballots[-2:]
        score = unchanged(before, after)
        heard = session.quorate(len(after), progress.voters)
        detail = "" if heard else f"ballots that could be read: {len(after)} of {progress.voters}, which is no quorum"
        return Check(met=heard and score == 1.0, kind="positions", score=score, threshold=1.0, detail=detail)
