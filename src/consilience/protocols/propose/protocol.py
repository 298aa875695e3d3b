"""One call that proposes a panel of personas for a task."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from consilience.domain.agents import Agent
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import MAX_DESCRIPTION_CHARS, MAX_NAME_CHARS, Panel, Persona
from consilience.domain.report import Report
from consilience.domain.topology import Topology, independent
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import Protocol
from consilience.engine.session import Session
from consilience.engine.work import Reply


class ProposeReport(Report):
    """The report of `propose`. Its `answer` is the panel as text."""

    protocol: str = "propose"
    panel: Panel | None = None
    """None without two usable personas."""


SEAT = "P1"


class ProposedRole(BaseModel):
    """One persona as a model describes it."""

    __qualname__ = "Role"  # recorded requests name their schema so

    name: Annotated[str, Field(min_length=1)]
    asks: str = ""
    trusts: str = ""
    distrusts: str = ""


class ProposedRoles(BaseModel):
    personas: Annotated[list[ProposedRole], Field(json_schema_extra={"maxItems": 12})]


class Propose(Protocol):
    """One agent, one call; its report's `panel` can be given to any protocol."""

    name: ClassVar[str] = "propose"
    summary: ClassVar[str] = "a model proposes a panel of personas for a task (used by --panel auto)"
    version: ClassVar[int] = 3  # 1 did not name failed calls; 2 cut what a role says after 500 characters
    report: ClassVar[type[ProposeReport]] = ProposeReport
    phase_names: ClassVar[tuple[str, ...]] = ("propose",)
    closing: ClassVar[bool] = True

    personas: Annotated[int, Field(ge=2, le=12, description="number of personas")] = 4

    @property
    def max_quoted_replies(self) -> int:
        return 0

    def topology(self) -> Topology:
        return independent((SEAT,))

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return (Agent(id=SEAT, role="host"),)

    def estimate(self) -> Estimate:
        return Estimate(min=1, max=1)

    async def run(self, session: Session) -> ProposeReport:
        if session.limits.steps == 0:
            return await session.report(ProposeReport, first=(), stop_reason=StopReason.EXHAUSTED_STEPS)
        async with session.phase("propose", 1):
            reply = await session.ask(
                SEAT,
                Prompt(session.render_template("propose", number=self.personas)),
                key=f"propose/{SEAT}",
                returns=ProposedRoles,
                accept=_usable,
                closing=True,
            )
        if not isinstance(reply, Reply):
            return await session.close(ProposeReport, reply, first=[reply], steps=1)
        personas = personas_of(reply.value)[: self.personas]
        if len(personas) < self.personas:
            session.warn(f"only {len(personas)} of {self.personas} personas are usable")
        panel = Panel(name="proposed", description="Proposed by a model for this task.", personas=tuple(personas))
        return await session.close(
            ProposeReport,
            reply,
            first=[reply],
            steps=1,
            answer="\n".join(f"- **{persona.name}**: {persona.description}" for persona in personas),
            panel=panel,
        )


def personas_of(roles: ProposedRoles) -> list[Persona]:
    """Return the personas in the second person, without repeated names or descriptions."""
    personas: dict[str, Persona] = {}
    described: set[str] = set()
    for role in roles.personas:
        name = _clean(role.name)[:MAX_NAME_CHARS].strip()
        if not name or name.casefold() in personas:
            continue
        parts = [("You always ask:", role.asks), ("You trust:", role.trusts), ("You distrust:", role.distrusts)]
        sentences = [f"{lead} {_sentence(text)}" for lead, text in parts if _clean(text)]
        description = " ".join(sentences)[:MAX_DESCRIPTION_CHARS] or f"You speak as {name}."
        if description.casefold() in described:
            continue
        described.add(description.casefold())
        personas[name.casefold()] = Persona(name=name, description=description)
    return list(personas.values())


def _usable(roles: ProposedRoles) -> None:
    if len(personas_of(roles)) < 2:
        raise ValueError("at least two roles are needed that differ in name and in what they ask, trust or distrust")


def _sentence(text: str) -> str:
    words = _clean(text)
    return words if words[-1] in ".?!" else f"{words}."


def _clean(text: str) -> str:
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text).split())
