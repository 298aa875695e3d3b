"""What agents return, what each of them did, and the report of `decompose`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field, create_model

from consilience.domain.messages import Message
from consilience.domain.outcome import StopReason
from consilience.domain.report import Frozen
from consilience.domain.sections import Presentation, extend_presentation
from consilience.domain.wording import count
from consilience.engine.analysis import novelty
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure
from consilience.protocols._common.conclusion import (
    TextReply,
    TreeRun,
    conclusion_fields,
    stated_position,
    warn_failed_review,
)
from consilience.protocols._common.presenting import TreeReport, key_figures, position_blocks


class PartReply(BaseModel):
    """A part of the task, for one child."""

    title: str
    instructions: str = ""

    @property
    def text(self) -> str:
        """The part as the child is shown it; empty without content."""
        return ": ".join(filter(None, (self.title.strip(), self.instructions.strip())))


class Split(BaseModel):
    """The parts of a task, in the order of the children who get them."""

    parts: list[PartReply]

    @property
    def with_content(self) -> list[PartReply]:
        return [part for part in self.parts if part.text]


@lru_cache(maxsize=64)
def split_for(children: int) -> type[Split]:
    """Return the type of a split with at most as many parts as there are children."""
    parts = Annotated[list[PartReply], Field(json_schema_extra={"minItems": 1, "maxItems": children})]
    return create_model("Split", __base__=Split, parts=(parts, ...))


@dataclass(frozen=True, slots=True)
class AssignedPart:
    """A part as published for the child that gets it."""

    part: PartReply
    message: Message


@dataclass(frozen=True, slots=True)
class AgentWork:
    """What one agent did."""

    agent: str
    part: PartReply | None = None
    """What it was assigned; None for the task as a whole."""
    text: TextReply | None = None
    below: tuple[AgentWork, ...] = ()
    """The work of its children."""
    surplus: int = 0
    """Parts beyond the number of its children."""
    failure: Failure | None = None
    """Why it gave no text."""

    def responded(self, reply: TextReply | Failure) -> AgentWork:
        return replace(self, failure=reply) if isinstance(reply, Failure) else replace(self, text=reply)

    def walk(self) -> Iterator[AgentWork]:
        """Yield this and all work below it."""
        yield self
        for work in self.below:
            yield from work.walk()


class Part(Frozen):
    """What an agent was assigned, and its result."""

    agent: str
    parent: str
    title: str = ""
    instructions: str = ""
    given: bool = True
    """False if the split failed: the agent then had the task as a whole."""
    text: str | None = None
    """None if the agent gave no result."""


class DecomposeReport(TreeReport):
    """Report of `decompose`."""

    labels: ClassVar[Mapping[str, str]] = {
        "split": "division of the task",
        "execute": "work on the parts",
        "strange_loop": "self-review",
        "synthesize": "synthesis",
    }
    for_people: ClassVar[Mapping[str, str]] = {
        "": 'Several people divide a task: one splits it, the others do a part each. "part" is yours.',
    }

    protocol: str = "decompose"
    parts: tuple[Part, ...] = ()
    """The parts that were handed out, parents first."""
    idle: tuple[str, ...] = ()
    """Agents without a part."""

    def presentation(self) -> Presentation:
        return extend_presentation(
            super().presentation(),
            above_answer=position_blocks(self.position),
            figures=tuple(key_figures(self.metrics)),
        )

    def final_state(self) -> dict[str, object]:
        """Return the seed's `final_state.json`, the fields of its `State` at the root, as it is without its `mca_mode`."""
        (root,) = self.topology.roots
        below = [part for part in self.parts if part.parent == root]
        tasks = {part.agent: ": ".join(filter(None, (part.title, part.instructions))) or self.task for part in below}
        texts = {part.agent: part.text for part in below}
        return self.seed_state(texts, {part.agent: part.text for part in self.parts}) | {
            "decomposition": "\n".join(f"{n}. {task}" for n, task in enumerate(tasks.values(), 1)),
            "child_tasks": tasks,
        }


async def conclude(
    session: Session, run: TreeRun, works: Sequence[AgentWork], stop: StopReason, pattern: str
) -> DecomposeReport:
    """Return the report. `works` is the work of all agents, parents first. No agent contradicts another, so there is no dissent."""
    agents_asked = {work.agent for work in works}
    _warn(session, run, works)
    position = await stated_position(session, pattern, run.closing)
    warn_failed_review(session, run)
    return await session.close(
        DecomposeReport,
        run.closing,
        first=opening(session, works),
        stop_reason=stop,
        steps=1 if works else 0,
        metrics=_metrics(session, run, works),
        parts=tuple(_parts(works)),
        idle=tuple(agent for agent in session.topology.agents if works and agent not in agents_asked),
        position=position,
        strange_loops=tuple(run.loops),
        **conclusion_fields(session, run.closing),
    )


def opening(session: Session, works: Sequence[AgentWork]) -> list[TextReply | Failure]:
    """Return the result and the failures of each leaf that was asked."""
    leaves = (work for work in works if work.agent in session.topology.leaves)
    return [result for work in leaves if (result := work.text or work.failure)]


def _parts(works: Sequence[AgentWork]) -> Iterator[Part]:
    for parent in works:
        for work in parent.below:
            yield Part(
                agent=work.agent,
                parent=parent.agent,
                title=work.part.title.strip() if work.part else "",
                instructions=work.part.instructions.strip() if work.part else "",
                given=work.part is not None,
                text=work.text.text if work.text is not None else None,
            )


def _metrics(session: Session, run: TreeRun, works: Sequence[AgentWork]) -> dict[str, float | int | None]:
    texts = {work.agent: work.text.text for work in works[1:] if work.text is not None}
    answer = run.closing.text if run.closing else ""
    return {
        "novelty": novelty(answer, [*texts.values(), *(document.text for document in session.sources)]),
        "dropped_labels": session.dropped,
        "sibling_similarity/execute/1": mean_pairwise([texts[a] for a in texts if a in session.topology.leaves]),
    }


def _warn(session: Session, run: TreeRun, works: Sequence[AgentWork]) -> None:
    agents_asked = {work.agent for work in works}
    without = {work.agent: work.below for work in works if any(not child.part for child in work.below)}
    if without:
        replied = any(child.text for below in without.values() for child in below)
        instead = "; the agents below had the whole task" if replied else ""
        session.warn(f"{', '.join(without)} assigned no parts{instead}")
    if idle_leaves := [leaf for leaf in session.topology.leaves if works and leaf not in agents_asked]:
        session.warn(f"fewer parts than agents; not asked: {', '.join(idle_leaves)}")
    if surplus := sum(work.surplus for work in works):
        session.warn(f"left out: {count(surplus, 'part')} beyond the number of agents")
    textless = [work.agent for work in works[1:] if work.text is None and any(child.text for child in work.below)]
    if textless:
        session.warn(f"{', '.join(textless)} did not combine the results below; the parent did not read them")
