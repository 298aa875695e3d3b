"""The algorithm of `decompose`, top to bottom: split → children, side by side → synthesize; at the root strange loops.

It is the form from which seed 001 sets out: parents assign, siblings do not see each other's work, nothing goes up but texts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from consilience.domain.messages import Message, Synthesis
from consilience.domain.outcome import StopReason
from consilience.domain.report import StrangeLoop
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply, exhaustion
from consilience.protocols._common.answers import form
from consilience.protocols._common.conclusion import Conclusion
from consilience.protocols._common.trees import ROOT, path_labels
from consilience.protocols.decompose.outcome import conclude
from consilience.protocols.decompose.replies import PartReply, Split, split_for
from consilience.protocols.decompose.report import DecomposeReport
from consilience.protocols.decompose.settings import Settings
from consilience.protocols.decompose.work import Course, Given, Job


class Decompose(Settings):
    """Tree of root, leads and workers; every parent splits what it was given among its children."""

    # 1 measured what is new in the answer by the parts alone, and dropped references unsaid; 2 did not name failed calls;
    # 3 asked workers for points that no agent read, and numbered the parts of every family from 1
    version: ClassVar[int] = 4
    report: ClassVar[type[DecomposeReport]] = DecomposeReport
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> DecomposeReport:
        if session.limits.steps == 0:
            return await conclude(session, self, Course(), StopReason.EXHAUSTED_STEPS)
        crew = Crew(session, self)
        course = Course(root=await crew.lead(ROOT, None))
        if not _quorum(session, course.jobs):
            return await conclude(session, self, course, StopReason.FAILED)
        await self._close(crew, course)
        stop = exhaustion(course.all_failures) or (
            StopReason.SETTLED if course.closing is not None else StopReason.FAILED
        )
        return await conclude(session, self, course, stop)

    async def _close(self, crew: Crew, course: Course) -> None:
        """The answer, which may draw on the reserve, and its reviews by its author, the last of which may too."""
        assert course.root is not None
        texts = crew.texts(course.root.below)
        async with crew.session.phase("synthesize", 1):
            reply = await crew.session.ask(
                ROOT,
                Prompt(crew.synthesis_words(ROOT, course.root.below, part=False, root=True), (), tuple(texts)),
                key=f"synthesize/{ROOT}",
                returns=Conclusion,
                closing=True,
            )
        course.closing = reply if isinstance(reply, Reply) else None
        if isinstance(reply, Failure):
            course.failures.append(reply)
            return
        for n in range(1, self.strange_loops + 1):
            await self._strange_loop(crew, course, n, texts)

    async def _strange_loop(self, crew: Crew, course: Course, n: int, texts: list[Quote]) -> None:
        """The answer reviewed; the domain's instructions appear in the last review only."""
        before = course.closing
        assert before is not None
        last = n == self.strange_loops
        domain = self.domain_instructions if last else ""
        words = crew.words("strange_loop", ROOT, domain=domain)
        async with crew.session.phase("strange_loop", n):
            reply = await crew.session.ask(
                ROOT,
                Prompt(words, (crew.session.quote(before, "you"),), tuple(texts)),
                key=f"strange_loop-{n}/{ROOT}",
                returns=Conclusion,
                closing=last,
            )
        after = reply.text if isinstance(reply, Reply) else None
        course.loops.append(StrangeLoop(index=n, before=before.text, after=after, domain=bool(domain)))
        if isinstance(reply, Failure):
            course.failures.append(reply)
        else:
            course.closing = reply


@dataclass(frozen=True)
class Crew:
    """Makes all calls but those that close the run."""

    session: Session
    settings: Settings

    async def lead(self, agent: str, given: Given | None) -> Job:
        """A parent splits what it was given; where that fails each child has the task as a whole. Nobody works without a part."""
        children = self.session.topology.children[agent]
        level = self.session.topology.levels[agent]
        async with self.session.phase("split", level):
            reply = await self._split(agent, given)
        failed = (reply,) if isinstance(reply, Failure) else ()
        parts: Sequence[Given | None] = (
            [None] * len(children) if isinstance(reply, Failure) else self._hand_out(agent, reply)
        )
        need = self.settings.need(level + 1, self.settings.children)
        below = await self.session.gather(
            [
                self.session.procedure(self._work(child, part), calls=need)
                for child, part in zip(children, parts, strict=False)
            ]
        )
        surplus = 0 if isinstance(reply, Failure) else max(len(_said(reply)) - len(children), 0)
        return Job(agent, given.part if given else None, None, tuple(below), surplus, failed)

    async def _work(self, agent: str, given: Given | None) -> Job:
        if not self.session.topology.children[agent]:
            async with self.session.phase("execute", self.session.topology.levels[agent]):
                return _done(Job(agent, given.part if given else None), await self._execute(agent, given))
        job = await self.lead(agent, given)
        texts = self.texts(job.below)
        if not texts:
            return job
        async with self.session.phase("synthesize", self.session.topology.levels[agent]):
            return _done(job, await self._synthesize(job, given, texts))

    def _split(self, agent: str, given: Given | None) -> Ask[Split]:
        children = len(self.session.topology.children[agent])
        words = self.words("split", agent, children=children, part=given is not None)
        return self.session.ask(
            agent,
            Prompt(words, self._own(given)),
            key=f"split/{agent}",
            returns=split_for(children),
            kind="split",
            accept=_accept,
        )

    def _hand_out(self, agent: str, reply: Reply[Split]) -> list[Given]:
        """Publish each part for the child that gets it; there may be fewer than children."""
        found: list[Given] = []
        for n, (child, part) in enumerate(zip(self.session.topology.children[agent], _said(reply), strict=False), 1):
            message = Message(
                id=f"{reply.key}/part-{n}",
                sender=agent,
                kind="part",
                text=part.text,
                audience=(child,),
                reply_to=reply.key,
                phase=self.session.message(reply.key).phase,
            )
            self.session.publish(message)
            found.append(Given(part, message))
        return found

    def _execute(self, leaf: str, given: Given | None) -> Ask[Synthesis]:
        return self.session.ask(
            leaf,
            Prompt(self.words("execute", leaf, part=given is not None), self._own(given)),
            key=f"execute/{leaf}",
            returns=Synthesis,
            audience=self.session.topology.parents[leaf],
        )

    def _synthesize(self, job: Job, given: Given | None, texts: list[Quote]) -> Ask[Synthesis]:
        agent = job.agent
        words = self.synthesis_words(agent, job.below, part=given is not None, root=False)
        return self.session.ask(
            agent,
            Prompt(words, self._own(given), tuple(texts)),
            key=f"synthesize/{agent}",
            returns=Synthesis,
            audience=self.session.topology.parents[agent],
        )

    def _own(self, given: Given | None) -> tuple[Quote, ...]:
        return (self.session.quote(given.message, "part"),) if given is not None else ()

    def texts(self, jobs: Sequence[Job]) -> list[Quote]:
        """The children's results, each under the label of its part."""
        return [self.session.quote(job.text, self.label(job)) for job in jobs if job.text is not None]

    def label(self, job: Job) -> str:
        """The label of a part, which no other part of the session has."""
        return f"part {path_labels(self.session.topology)[job.agent]}"

    def synthesis_words(self, agent: str, below: Sequence[Job], *, part: bool, root: bool) -> str:
        texts = tuple(self.label(job) for job in below if job.text is not None)
        missing = tuple(self.label(job) for job in below if job.text is None)
        divided = all(job.part is not None for job in below)
        return self.words("synthesize", agent, texts=texts, missing=missing, part=part, divided=divided, root=root)

    def words(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        pattern = form(self.settings.answer_pattern)
        return self.session.words(template, seat=seat.introduction(), pattern=pattern, **values)


def _accept(split: Split) -> None:
    """There must be something to do."""
    if not any(part.text for part in split.parts):
        raise ValueError("parts: at least one part with a title is needed")


def _said(reply: Reply[Split]) -> list[PartReply]:
    return [part for part in reply.value.parts if part.text]


def _done(job: Job, reply: Reply[Any] | Failure) -> Job:
    if isinstance(reply, Failure):
        return replace(job, failures=(*job.failures, reply))
    return replace(job, text=reply)


def _quorum(session: Session, jobs: Sequence[Job]) -> bool:
    """Whether enough of the leaves that were asked did their part."""
    return session.quorum([(job.text, job.failures) for job in jobs if job.agent in session.topology.leaves])
