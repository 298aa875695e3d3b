"""One call that reads what a task asks for, without carrying it out."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from consilience.domain.agents import Agent
from consilience.domain.messages import NO_OPTION
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology, independent
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import Protocol
from consilience.engine.session import Session
from consilience.engine.work import Reply

SEAT = "C1"

TaskKind = Literal["answer", "decision", "text", "review"]
TaskShape = Literal["one", "separate", "ordered"]


class TaskReading(BaseModel):
    """What a task asks for."""

    kind: TaskKind
    divides: bool = False
    """Whether informed people would still disagree."""
    record: bool = False
    """Whether objections or differing views are to be kept on record."""
    shape: TaskShape = "one"
    why: str = ""
    """What decided it, in an English sentence for whoever asked, like the lines that `ask` prints around it."""


class ChooseReport(Report):
    """The report of `choose`. Its `answer` is the reading as text."""

    protocol: str = "choose"
    reading: TaskReading | None = None
    """None without a usable reply."""


class Choose(Protocol):
    """One agent, one call; `consilience.choosing.choose` takes its report's `reading`."""

    name: ClassVar[str] = "choose"
    summary: ClassVar[str] = "a model reads what a task asks for (used by ask)"
    report: ClassVar[type[ChooseReport]] = ChooseReport
    phase_names: ClassVar[tuple[str, ...]] = ("choose",)

    material_index: Annotated[
        tuple[str, ...], Field(description="what is given with the task, one line per document"), NO_OPTION
    ] = ()

    @property
    def max_quoted_replies(self) -> int:
        return 0

    def topology(self) -> Topology:
        return independent((SEAT,))

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return (Agent(id=SEAT, role="reader"),)

    def estimate(self) -> Estimate:
        return Estimate(min=1, max=1)

    async def run(self, session: Session) -> ChooseReport:
        if session.limits.steps == 0:
            return await session.report(ChooseReport, first=(), stop_reason=StopReason.EXHAUSTED_STEPS)
        async with session.phase("choose", 1):
            reply = await session.ask(
                SEAT,
                Prompt(session.render_template("choose", material_index=self.material_index)),
                key=f"choose/{SEAT}",
                returns=TaskReading,
                closing=True,
            )
        if not isinstance(reply, Reply):
            return await session.close(ChooseReport, reply, first=[reply], steps=1)
        reading = reply.value
        return await session.close(
            ChooseReport, reply, first=[reply], steps=1, answer=f"{reading.kind}: {reading.why}", reading=reading
        )
