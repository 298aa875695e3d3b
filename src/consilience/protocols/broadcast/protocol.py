"""The algorithm of `broadcast`, top to bottom as the seed describes it:

broadcast → execute_children → coordinate → evaluate → { re_broadcast → broadcast | synthesize → self_reflect }

for every parent, and execute → self_reflect for every leaf; `family` holds what all parents have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from consilience.domain.outcome import StopReason
from consilience.domain.replies import RootSynthesis
from consilience.domain.report import StrangeLoop
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.trees import ROOT
from consilience.engine.work import Ask, Failure, Reply, exhaustion
from consilience.protocols.broadcast.family import Family
from consilience.protocols.broadcast.outcome import conclude
from consilience.protocols.broadcast.replies import RootReflection
from consilience.protocols.broadcast.report import BroadcastReport
from consilience.protocols.broadcast.runs import Course, Cycle, Run, first_runs, latest
from consilience.protocols.broadcast.settings import Settings


class Broadcast(Settings):
    """Tree of integrator, coordinators and contributors; every parent broadcasts until its children satisfy it."""

    # 1 counted flags kept over a silence twice, measured what is new by the leaves alone, and took "no issues" for missing
    version: ClassVar[int] = 2
    report: ClassVar[type[BroadcastReport]] = BroadcastReport

    async def run(self, session: Session) -> BroadcastReport:
        course, family = Course(), Family(session, self)
        iterations = (
            self.max_iterations if session.limits.steps is None else min(self.max_iterations, session.limits.steps)
        )
        stop = StopReason.EXHAUSTED_STEPS
        for index in range(1, iterations + 1):
            before = course.cycles[-1] if course.cycles else None
            cycle = await family.iterate(ROOT, (index,), None, before, before.children if before else ())
            course.cycles.append(cycle)
            if not _quorum(session, course.cycles[0]):
                stop = StopReason.FAILED
                break
            course.check = cycle.check
            session.record_check(cycle.check, index)
            if cycle.limited:
                break
            if cycle.check.met:
                stop = StopReason.CONVERGED
                break
        if course.cycles and stop is not StopReason.FAILED:
            await self._close(session, course, family)
            stop = exhaustion(course.all_failures) or (stop if course.closing is not None else StopReason.FAILED)
        return await conclude(session, self, course, stop)

    async def _close(self, session: Session, course: Course, family: Family) -> None:
        """Synthesize, strange loops, self_reflect. The first and the last of them may draw on the reserve: whichever finds
        nothing else left."""
        index = len(course.cycles)
        async with session.phase("synthesize", index):
            reply = await self._synthesize(family, course.cycles)
        if isinstance(reply, Failure):
            course.failures.append(reply)
            return
        course.closing = course.synthesis = reply
        for n in range(1, self.strange_loops + 1):
            await self._strange_loop(family, course, n)
        await self._self_reflect(family, course)

    def _synthesize(self, family: Family, cycles: Sequence[Cycle]) -> Ask[RootSynthesis]:
        return family.session.ask(
            ROOT,
            family.synthesis_prompt(ROOT, cycles, root=True),
            key=f"synthesize/{ROOT}",
            returns=RootSynthesis,
            closing=True,
            max_tokens=self.reply_tokens,
        )

    async def _strange_loop(self, family: Family, course: Course, n: int) -> None:
        """The answer reviewed by its author; the domain's instructions appear in the last one only."""
        before = course.closing
        assert before is not None
        last = n == self.strange_loops
        domain = self.domain_instructions if last else ""
        async with family.session.phase("strange_loop", n):
            reply = await family.session.ask(
                ROOT,
                self._review(family, course, "strange_loop", domain=domain),
                key=f"strange_loop-{n}/{ROOT}",
                returns=RootSynthesis,
                max_tokens=self.reply_tokens,
            )
        after = reply.text if isinstance(reply, Reply) else None
        course.loops.append(StrangeLoop(index=n, before=before.text, after=after, domain=bool(domain)))
        if isinstance(reply, Failure):
            course.failures.append(reply)
        else:
            course.closing = reply

    async def _self_reflect(self, family: Family, course: Course) -> None:
        """The root judges its answer; a better one, where it gives one, is the answer."""
        assert course.closing is not None
        async with family.session.phase("self_reflect", len(course.cycles)):
            reply = await family.session.ask(
                ROOT,
                self._review(family, course, "self_reflect", root=True, goal=False, ballot=False),
                key=f"self_reflect/{ROOT}",
                returns=RootReflection,
                closing=True,
                max_tokens=self.reply_tokens,
            )
        if isinstance(reply, Failure):
            course.failures.append(reply)
        course.root = family.reflected(Run(ROOT, (), course.synthesis, text=course.closing), reply)
        course.closing = course.root.text

    def _review(self, family: Family, course: Course, template: str, **values: str | bool) -> Prompt:
        """The answer so far, beside the texts it rests on and the flags that stand."""
        children = latest(course.cycles)
        labels = family.labels(children)
        flags = family.flag_quotes(children, labels)
        words = family.words(template, ROOT, flags=tuple(quote.label for quote in flags), **values)
        assert course.closing is not None
        own = family.session.quote(course.closing, "you")
        return Prompt(words, (*flags, own), tuple(family.texts(children, labels)))


def _quorum(session: Session, first: Cycle) -> bool:
    """Whether enough leaves answered when they were first asked."""
    return session.quorum([(run.response, run.failures) for run in first_runs(first, session.topology.leaves)])
