"""The algorithm of `broadcast`, top to bottom as the seed describes it:

broadcast → execute_children → coordinate → evaluate → { re_broadcast → broadcast | synthesize → self_reflect }

for every parent, and execute → self_reflect for every leaf; `family` holds what all parents have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel

from consilience.domain.outcome import StopReason
from consilience.domain.report import StrangeLoop
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply, exhaustion
from consilience.protocols._common.trees import ROOT
from consilience.protocols.broadcast.executions import (
    BroadcastRun,
    Execution,
    IterationResult,
    first_runs,
    last_goal,
    latest,
)
from consilience.protocols.broadcast.family import Family
from consilience.protocols.broadcast.notes import NOTES
from consilience.protocols.broadcast.outcome import conclude
from consilience.protocols.broadcast.replies import RootReflection, RootSynthesis
from consilience.protocols.broadcast.report import BroadcastReport
from consilience.protocols.broadcast.settings import BroadcastSettings


class Broadcast(BroadcastSettings):
    """Tree of integrator, coordinators and contributors; every parent broadcasts until its children satisfy it."""

    # 1 counted flags kept over a silence twice, measured what is new by the leaves alone, and took "no issues" for missing;
    # 2 converged over an evaluator's no, failed calls, unsatisfied parents beneath the root, and the root's own rating and flags;
    # 3 kept the evaluation from a synthesis that satisfied, showed re-executed seats nothing of theirs, and coordinated by remarks
    version: ClassVar[int] = 4
    notes: ClassVar[Mapping[str, type[BaseModel]]] = NOTES
    report: ClassVar[type[BroadcastReport]] = BroadcastReport
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> BroadcastReport:
        course, family = BroadcastRun(), Family(session, self)
        limit = self.max_iterations if session.limits.steps is None else min(self.max_iterations, session.limits.steps)
        stop = StopReason.EXHAUSTED_STEPS
        for index in range(1, limit + 1):
            before = course.iterations[-1] if course.iterations else None
            iteration = await family.iterate(ROOT, (index,), None, before, before.children if before else ())
            course.iterations.append(iteration)
            if not _quorum(session, course.iterations[0]):
                stop = StopReason.FAILED
                break
            course.check = iteration.check
            session.record_check(iteration.check, index)
            if iteration.limited:
                break
            if iteration.check.met:
                stop = StopReason.CONVERGED
                break
        if course.iterations and stop is not StopReason.FAILED:
            await self._close(session, course, family)
            if course.closing is None:
                stop = StopReason.FAILED
            elif course.unsatisfied:
                stop = StopReason.EXHAUSTED_STEPS
            stop = exhaustion(course.all_failures) or stop
        return await conclude(session, self, course, stop)

    async def _close(self, session: Session, course: BroadcastRun, family: Family) -> None:
        """Synthesize, strange loops, self_reflect. The first and the last of them may draw on the reserve: whichever finds
        nothing else left."""
        async with session.phase("synthesize", len(course.iterations)):
            reply = await session.ask(
                ROOT,
                family.asks.synthesis_prompt(ROOT, course.iterations, root=True, goal=last_goal(course.iterations)),
                key=f"synthesize/{ROOT}",
                returns=RootSynthesis,
                closing=True,
            )
        if isinstance(reply, Failure):
            course.failures.append(reply)
            return
        course.closing = course.synthesis = reply
        course.declared = family.publisher.conclusion(reply)
        for n in range(1, self.strange_loops + 1):
            await self._strange_loop(family, course, n)
        await self._self_reflect(family, course)

    async def _strange_loop(self, family: Family, course: BroadcastRun, n: int) -> None:
        """The answer reviewed by its author; the domain's instructions appear in the last one only."""
        before = course.closing
        assert before is not None
        domain = self.domain_instructions if n == self.strange_loops else ""
        async with family.session.phase("strange_loop", n):
            reply = await family.session.ask(
                ROOT,
                self._review(family, course, "strange_loop", domain=domain),
                key=f"strange_loop-{n}/{ROOT}",
                returns=RootSynthesis,
            )
        after = reply.text if isinstance(reply, Reply) else None
        course.loops.append(StrangeLoop(index=n, before=before.text, after=after, domain=bool(domain)))
        if isinstance(reply, Failure):
            course.failures.append(reply)
        else:
            course.reviews.append(reply)
            course.closing = reply
            course.declared = family.publisher.conclusion(reply) or course.declared

    async def _self_reflect(self, family: Family, course: BroadcastRun) -> None:
        """The root judges its answer; a revised text, if it gives one, is the answer."""
        assert course.closing is not None
        async with family.session.phase("self_reflect", len(course.iterations)):
            reply = await family.session.ask(
                ROOT,
                self._review(family, course, "self_reflect", root=True, ballot=False),
                key=f"self_reflect/{ROOT}",
                returns=RootReflection,
                closing=True,
            )
        if isinstance(reply, Failure):
            course.failures.append(reply)
        run = Execution(ROOT, (), course.synthesis, text=course.closing)
        course.root = run.reflected(reply, family.publisher.publish(run, reply))
        course.closing = course.root.text

    def _review(self, family: Family, course: BroadcastRun, template: str, **values: str | bool) -> Prompt:
        """The answer so far and what was declared with it, beside the goal, the texts it rests on, what they disagree about, the
        flags that stand, and the evaluation of the texts."""
        assert course.closing is not None
        asks, runs, goal = family.asks, latest(course.iterations), last_goal(course.iterations)
        judged = asks.evaluation_quotes(course.iterations)
        declared = (family.session.quote(course.declared, "conclusion"),) if course.declared is not None else ()
        shown = {"goal": goal is not None, "evaluation": bool(judged), "conclusion": bool(declared)}
        words = asks.words(template, ROOT, **asks.remark_labels(runs), **shown, **values)
        own = family.session.quote(course.closing, "you")
        return Prompt(
            words,
            (*asks.remark_quotes(runs), *judged, own, *declared),
            (*asks.goal_quotes(goal), *asks.text_quotes(runs)),
        )


def _quorum(session: Session, first: IterationResult) -> bool:
    """Whether enough leaves answered when they were first asked."""
    return session.quorum([(run.response, run.failures) for run in first_runs(first, session.topology.leaves)])
