"""Independent answers to one question; the most frequent position, or the most typical text, is the answer.

Self-consistency, after Wang et al. 2022 (arXiv:2203.11171). If answers can be extracted, the majority decides, and the answer is
the most typical text with that position; else the medoid, the text most similar to all others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field

from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.positions import Spellings, exact
from consilience.domain.report import ConfidenceScore, Dissent
from consilience.domain.wording import count
from consilience.engine.analysis import sentences
from consilience.engine.session import Session
from consilience.engine.similarity import mean_score, pairwise
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.answers import stated_answer
from consilience.protocols.baselines.report import VoteCast, VoteReport
from consilience.protocols.baselines.seats import BaselineProtocol

MAX_VOTES = 500


class Vote(BaselineProtocol):
    """`votes` agents, each asked once; no agent reads another."""

    name: ClassVar[str] = "vote"
    summary: ClassVar[str] = (
        "independent answers to one question; the most frequent position, or the most typical text, is the answer"
    )
    # 1 left missing votes out of the agreement, and did not name failed calls; 2 took the first match of the answer
    # pattern; 3 counted sentences in every prompt; 4 left answers without a match out of the headline;
    # 5 took the last choice that an answer named for its position
    version: ClassVar[int] = 6
    report: ClassVar[type[VoteReport]] = VoteReport
    phase_names: ClassVar[tuple[str, ...]] = ("answer",)
    closing: ClassVar[bool] = False

    votes: Annotated[int, Field(ge=1, le=MAX_VOTES, description="number of independent answers")] = 5

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f"V{n}" for n in range(1, self.votes + 1))

    def estimate(self) -> Estimate:
        return Estimate(min=self.votes, max=self.votes)

    def resized_for_calls(self, calls: int) -> Self:
        """Return a copy with as many votes as calls."""
        return self.model_copy(update={"votes": min(max(1, calls), MAX_VOTES)})

    async def run(self, session: Session) -> VoteReport:
        if session.limits.steps == 0:
            return await session.report(VoteReport, first=(), stop_reason=StopReason.EXHAUSTED_STEPS)
        replies = await self._ask_all(session)
        answers = [reply for reply in replies if isinstance(reply, Reply)]
        similarities = pairwise([reply.text for reply in answers])
        votes = await self._cast(session, answers, similarities)
        if not (session.limit_hit or session.has_quorum(replies)):
            return await session.close(VoteReport, None, first=replies, steps=1, votes=votes)
        return await self._conclude(session, replies, votes, mean_score(similarities))

    async def _ask_all(self, session: Session) -> list[Reply[str] | Failure]:
        asks = [session.ask(id, self.prompt(session, "answer", id), key=f"answer/{id}") for id in self.ids]
        async with session.phase("answer", 1):
            return await session.gather(asks)

    async def _cast(
        self, session: Session, replies: Sequence[Reply[str]], similarities: Sequence[Sequence[float]]
    ) -> tuple[VoteCast, ...]:
        spellings, cast = Spellings(), []
        for reply, others in zip(replies, similarities, strict=True):
            pattern = self.answer_pattern
            stated = await stated_answer(session, pattern, reply.text, reply.agent) if pattern else None
            cast.append(
                VoteCast(
                    agent=reply.agent,
                    text=reply.text,
                    position=spellings.of(stated) if stated else None,
                    similarity=math.fsum(others) / len(others) if others else None,
                    cut=reply.cut,
                )
            )
        return tuple(cast)

    async def _conclude(
        self,
        session: Session,
        replies: Sequence[Reply[str] | Failure],
        cast: tuple[VoteCast, ...],
        mean_similarity: float | None,
    ) -> VoteReport:
        tally = dict(Counter(vote.position for vote in cast if vote.position is not None).most_common())
        leading = [position for position, n in tally.items() if n == max(tally.values())]
        elected = _medoid([vote for vote in cast if not leading or vote.position in leading])
        unmet = []
        if len(leading) > 1 and elected is not None:
            unmet.append(f"a tie: {count(tally[leading[0]], 'vote')} each for {', '.join(leading)}")
            session.warn(f"{unmet[0]}; {_tie_breaker([vote for vote in cast if vote.position in leading])}")
        without = sum(vote.position is None for vote in cast) if self.answer_pattern else 0
        if without:
            instead = "" if tally else "; the text most similar to all others is the answer"
            session.warn(f"{without} of {count(len(cast), 'answer')} took no position{instead}")
        if self.answer_pattern and not tally:
            unmet.append("no answer took a position")
        position = elected.position if elected else None
        agreement = ConfidenceScore(level=tally[position] / self.votes, kind="agreement") if position else None
        answers = {reply.agent: reply for reply in replies if isinstance(reply, Reply)}
        return await session.close(
            VoteReport,
            answers[elected.agent] if elected else None,
            first=replies,
            stop_reason=StopReason.INCONCLUSIVE if self.answer_pattern and not tally else StopReason.SETTLED,
            unmet=unmet,
            steps=1,
            confidence=agreement,
            dissent=tuple(
                Dissent(agent=vote.agent, text=(sentences(vote.text) or [vote.text])[0], position=vote.position)
                for vote in cast
                if position is not None and vote.position not in (None, position)
            ),
            metrics={"sibling_similarity/answer/1": mean_similarity},
            votes=cast,
            tally=tally,
            position=position,
            decided_by=("majority" if position is not None else "medoid") if elected else None,
            tie=len(leading) > 1,
        )


def _tie_breaker(votes: Sequence[VoteCast]) -> str:
    """Return what decided among tied votes."""
    scores = [exact(vote.similarity or 0.0) for vote in votes]
    if scores.count(max(scores)) > 1:
        return "the first of the texts most similar to all others decided"
    return "the text most similar to all others decided"


def _medoid(votes: Sequence[VoteCast]) -> VoteCast | None:
    """Return the answer most similar to the others; the first of equals."""
    return max(votes, key=lambda vote: exact(vote.similarity or 0.0), default=None)
