"""`review`: review apart; with gates, refine up to `max_iterations`; then judge each other's findings → close (seed 003)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel

from consilience.coordination.convergence import ConvergenceCheck, CoordinationFailure
from consilience.domain.outcome import StopReason
from consilience.engine.drafts import Drafts, PlannedCalls
from consilience.engine.quorum import Quorum
from consilience.engine.session import Session
from consilience.protocols.review.conclusion import conclude
from consilience.protocols.review.fold import Assignment
from consilience.protocols.review.forecast import planned_calls
from consilience.protocols.review.progress import GATES_NOTE
from consilience.protocols.review.report import ReviewReport
from consilience.protocols.review.rounds import ReviewRun
from consilience.protocols.review.settings import ReviewSettings


class Review(ReviewSettings):
    """Reviewers that do not read each other, judges of their findings, and a lead that writes the review."""

    # 2 took a reviewer whose second review was refused for one that had reviewed nothing
    # 3 gave few readers one question each, so that nobody asked the others
    # 4 looked for quotations in any document shown, dropped findings on unchanged lines and hid the ballots from the lead
    # 5 did not record the gates of an iteration
    # 6 had other questions for readers of code
    version: ClassVar[int] = 7
    report: ClassVar[type[ReviewReport]] = ReviewReport
    phase_names: ClassVar[tuple[str, ...]] = ("review", "judge", "closing")
    notes: ClassVar[Mapping[str, type[BaseModel]]] = {GATES_NOTE: ConvergenceCheck}

    def planned_calls(self, drafts: Drafts) -> PlannedCalls | None:
        return planned_calls(self, drafts) if self.parts else None

    async def run(self, session: Session) -> ReviewReport:
        run = ReviewRun(session, self)
        if session.limits.steps == 0:
            return await conclude(run, StopReason.EXHAUSTED_STEPS)
        stop = await (self._iterate(run) if self.is_gated else self._read(run))
        await run.review_from_reserve()
        try:
            run.require_results()
        except CoordinationFailure as failure:
            session.warn(str(failure))
            return await conclude(run, session.limit_hit or StopReason.FAILED)
        run.vet()
        if self.closing:
            await run.judge()
            await run.close()
        return await conclude(run, stop)

    async def _iterate(self, run: ReviewRun) -> StopReason:
        """Red and blue review every part; who misses a gate is asked again, with its own review and what it missed."""
        steps = run.session.limits.steps
        last = self.iterations if steps is None else min(self.iterations, steps)
        due = run.assignments
        for iteration in range(1, last + 1):
            await run.review(iteration, due)
            evaluation = run.evaluate(iteration, last)
            if evaluation.outcome == "converged":
                return StopReason.CONVERGED
            if evaluation.outcome != "continue":
                break
            due = run.due
        return StopReason.EXHAUSTED_STEPS

    async def _read(self, run: ReviewRun) -> StopReason:
        """Every reviewer reviews its parts once: red and blue all at once, or the second after the first, and none may be missing;
        readers one part after another, of whom a quorum is enough, except with partial="fail"."""
        if self.plan.spares_readers:
            await run.read_in_turn()
        elif self.plan.is_iterative:
            await run.review(1, run.assignments)
        else:
            for assignments in run.shifts:
                await run.review(1, assignments, self._quorum(assignments))
        is_failed = (self.plan.is_iterative or self.partial == "fail") and run.missing.keys() > run.withdrawn
        return StopReason.EXHAUSTED_STEPS if is_failed else StopReason.SETTLED

    def _quorum(self, assignments: list[Assignment]) -> Quorum:
        needed = self.quorum_of_reviewers or len(self.plan.reviewers)
        return Quorum(min(needed, len(assignments)), *self.waiting)
