"""`decompose`, its settings and its algorithm: split → children, side by side → synthesize; at the root strange loops.

It is the form from which seed 001 sets out: parents assign, siblings do not see each other's work, only texts go up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.messages import Synthesis
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.topology import Topology
from consilience.engine.document_index import reader_numbers
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols._common.answers import AnswerPattern, describe_pattern
from consilience.protocols._common.conclusion import Conclusion, TreeRun, publish_from, with_position
from consilience.protocols._common.trees import (
    ROOT,
    LoopInstructions,
    StrangeLoops,
    TreeProtocol,
    path_labels,
    require_strange_loop,
)
from consilience.protocols.decompose.report import (
    AgentWork,
    AssignedPart,
    DecomposeReport,
    Split,
    conclude,
    opening,
    split_for,
)


class Decompose(TreeProtocol):
    """Tree of root, leads and workers; every parent splits what it was given among its children."""

    roles: ClassVar[tuple[str, str, str]] = ("root", "lead", "worker")

    name: ClassVar[str] = "decompose"
    summary: ClassVar[str] = (
        "a lead splits the task into parts, workers do them alone, and the lead combines the results"
    )
    # 1 measured what is new in the answer by the parts alone, and dropped references without a count; 2 did not name failed calls;
    # 3 asked workers for points that no agent read, and numbered the parts of every family from 1;
    # 4 searched the answer for its position
    version: ClassVar[int] = 5
    report: ClassVar[type[DecomposeReport]] = DecomposeReport
    phase_names: ClassVar[tuple[str, ...]] = ("split", "execute", "synthesize", "strange_loop")
    closing: ClassVar[bool] = True

    children: Annotated[
        int, Field(ge=1, le=64, description="children of every internal node, and max number of parts")
    ] = 3
    strange_loops: StrangeLoops = 0
    domain_instructions: LoopInstructions = ""
    answer_pattern: AnswerPattern = ""

    async def run(self, session: Session) -> DecomposeReport:
        run = TreeRun()
        if session.limits.steps == 0:
            return await conclude(session, run, [], StopReason.EXHAUSTED_STEPS, self.answer_pattern)
        calls = DecomposeRun(session, self)
        root = await calls.lead(ROOT, None)
        works = list(root.walk())
        if not session.has_quorum(opening(session, works)):
            return await conclude(session, run, works, StopReason.FAILED, self.answer_pattern)
        await self._close(calls, root, run)
        return await conclude(session, run, works, StopReason.SETTLED, self.answer_pattern)

    async def _close(self, calls: DecomposeRun, root: AgentWork, run: TreeRun) -> None:
        """The answer and its self-reviews. The first and the last of these calls may draw on the reserve."""
        async with calls.session.phase("synthesize", 1):
            reply = await calls.synthesize(root, None, with_position(Conclusion, self.answer_pattern))
        if isinstance(reply, Failure):
            return
        run.closing = reply
        for n in range(1, self.strange_loops + 1):
            last = n == self.strange_loops
            domain = self.domain_instructions if last else ""
            words = calls.render("strange_loop", ROOT, domain=domain)
            async with calls.session.phase("strange_loop", n):
                review = await calls.session.ask(
                    ROOT,
                    Prompt(words, (calls.session.quote(run.closing, "you"),), tuple(calls.quote_texts(root.below))),
                    key=f"strange_loop-{n}/{ROOT}",
                    returns=with_position(Conclusion, self.answer_pattern),
                    closing=last,
                )
            run.add_review(review, task=calls.session.task, domain=bool(domain))

    # what follows from the settings

    @model_validator(mode="after")
    def _possible(self) -> Self:
        require_strange_loop(self.strange_loops, self.domain_instructions)
        return self

    @property
    def max_quoted_replies(self) -> int:
        """The children's texts, the agent's own part and text."""
        return self.children + 2

    def quoted_by(self, agent: str) -> int:
        """A worker is shown its part only."""
        return self.max_quoted_replies if self.topology().children[agent] else 1

    def topology(self) -> Topology:
        """The tree, without circles: no agent reads a sibling."""
        return super().topology().model_copy(update={"circles": ()})

    def need(self, level: int, parts: int) -> int:
        """Return the calls of a node on that level and of all below it, if every parent finds that many parts (protocols §2)."""
        return 1 if level == self.depth else 2 + parts * self.need(level + 1, parts)

    def estimate(self) -> Estimate:
        return Estimate(min=self.need(1, 1) + self.strange_loops, max=self.need(1, self.children) + self.strange_loops)


@dataclass(frozen=True)
class DecomposeRun:
    """Makes the calls of a run."""

    session: Session
    settings: Decompose

    async def lead(self, agent: str, assigned: AssignedPart | None) -> AgentWork:
        """A parent splits what it was assigned; after a failed split each child has the task as a whole. A child without a part is
        not asked."""
        session, children = self.session, self.session.topology.children[agent]
        level = session.topology.levels[agent]
        async with session.phase("split", level):
            reply = await self._split(agent, assigned)
        parts: Sequence[AssignedPart | None] = [None] * len(children)
        surplus = 0
        if isinstance(reply, Reply):
            parts = self._hand_out(agent, reply)
            surplus = max(len(reply.value.with_content) - len(children), 0)
        need = self.settings.need(level + 1, self.settings.children)
        child_work = await session.gather(
            [session.subtask(self._work(child, part), calls=need) for child, part in zip(children, parts, strict=False)]
        )
        return AgentWork(agent, assigned.part if assigned else None, None, tuple(child_work), surplus)

    async def _work(self, agent: str, assigned: AssignedPart | None) -> AgentWork:
        level = self.session.topology.levels[agent]
        if not self.session.topology.children[agent]:
            async with self.session.phase("execute", level):
                work = AgentWork(agent, assigned.part if assigned else None)
                return work.responded(await self._execute(agent, assigned))
        work = await self.lead(agent, assigned)
        if all(child.text is None for child in work.below):
            return work
        async with self.session.phase("synthesize", level):
            return work.responded(await self.synthesize(work, assigned, Synthesis))

    def _split(self, agent: str, assigned: AssignedPart | None) -> Ask[Split]:
        children = len(self.session.topology.children[agent])
        material = self._closed_documents(agent)
        words = self.render("split", agent, children=children, part=assigned is not None, material=material)
        return self.session.ask(
            agent,
            Prompt(words, self._quote_part(assigned)),
            key=f"split/{agent}",
            returns=split_for(children),
            kind="split",
            accept=_accept,
        )

    def _closed_documents(self, agent: str) -> tuple[str, ...]:
        """Return for each child, in order, the documents that it or an agent below it can read and another child cannot; nothing if
        all can read the same."""
        documents, topology = self.session.sources, self.session.topology
        teams = [frozenset(_team(topology, child)) for child in topology.children[agent]]
        if readers := reader_numbers(documents):  # the index has their documents
            numbers = ([readers[member] for member in readers if member in team] for team in teams)
            return tuple("what the index gives to reader " + ", ".join(map(str, n)) if n else "" for n in numbers)
        closed = [d for d in documents if d.agents is not None and not all(team & {*d.agents} for team in teams)]
        names = [[f"{d.id} {d.name}".rstrip() for d in closed if team & {*(d.agents or ())}] for team in teams]
        return tuple(map(", ".join, names)) if any(names) else ()

    def _hand_out(self, agent: str, reply: Reply[Split]) -> list[AssignedPart]:
        """Publish each part for the child that gets it. There may be fewer parts than children."""
        assigned: list[AssignedPart] = []
        children = self.session.topology.children[agent]
        for n, (child, part) in enumerate(zip(children, reply.value.with_content, strict=False), 1):
            message = publish_from(self.session, reply, "part", n, part.text, (child,))
            assigned.append(AssignedPart(part, message))
        return assigned

    def _execute(self, leaf: str, assigned: AssignedPart | None) -> Ask[Synthesis]:
        return self.session.ask(
            leaf,
            Prompt(self.render("execute", leaf, part=assigned is not None), self._quote_part(assigned)),
            key=f"execute/{leaf}",
            returns=Synthesis,
            audience=self.session.topology.parents[leaf],
        )

    def synthesize(
        self, work: AgentWork, assigned: AssignedPart | None, returns: type[Conclusion | Synthesis]
    ) -> Ask[Conclusion | Synthesis]:
        """A parent puts its children's results together. The root's result is the answer."""
        root = work.agent == ROOT
        words = self.render(
            "synthesize",
            work.agent,
            texts=tuple(self._label(child) for child in work.below if child.text is not None),
            missing=tuple(self._label(child) for child in work.below if child.text is None),
            part=assigned is not None,
            divided=all(child.part is not None for child in work.below),
            root=root,
        )
        return self.session.ask(
            work.agent,
            Prompt(words, self._quote_part(assigned), tuple(self.quote_texts(work.below))),
            key=f"synthesize/{work.agent}",
            returns=returns,
            audience=self.session.topology.parents.get(work.agent, ()),
            closing=root,
            max_tokens=self.session.reply_tokens if self.settings.strange_loops else None,
        )

    def _quote_part(self, assigned: AssignedPart | None) -> tuple[Quote, ...]:
        return (self.session.quote(assigned.message, "part"),) if assigned is not None else ()

    def quote_texts(self, works: Sequence[AgentWork]) -> list[Quote]:
        """Quote the children's results, each under the label of its part."""
        return [self.session.quote(work.text, self._label(work)) for work in works if work.text is not None]

    def _label(self, work: AgentWork) -> str:
        """Return the label of a part, which is unique in the session."""
        return f"part {path_labels(self.session.topology)[work.agent]}"

    def render(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        pattern = describe_pattern(self.settings.answer_pattern)
        return self.session.render_template(template, seat=seat.introduction(), pattern=pattern, **values)


def _team(topology: Topology, agent: str) -> Iterator[str]:
    """Yield an agent and all below it."""
    yield agent
    for child in topology.children[agent]:
        yield from _team(topology, child)


def _accept(split: Split) -> None:
    if not split.with_content:
        raise ValueError("parts: at least one part with a title is needed")
