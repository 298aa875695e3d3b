"""A small protocol with all kinds of seats: those of the panel, and two service seats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from consilience.domain.agents import Agent
from consilience.domain.delivery import Delivery
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import Dissent, Report
from consilience.domain.topology import Topology, complete, independent
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import PanelSeats, register
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply


@register
class Council(PanelSeats):
    """The moderator opens, every member speaks, the crystallizer closes. Everyone who spoke dissents, for the test's sake."""

    name: ClassVar[str] = "council"
    summary: ClassVar[str] = "for tests"
    report: ClassVar[type[Report]] = Report
    max_seats: ClassVar[int] = 4
    size: int = 3

    @property
    def default_seats(self) -> tuple[str, ...]:
        return complete(self.size).agents

    @property
    def service_seats(self) -> tuple[Agent, ...]:
        return tuple(Agent(id=id, role=id, voice=False) for id in ("moderator", "crystallizer"))

    templates: ClassVar[Mapping[str, str]] = {"instructions": "Be brief.", "say": "{{ seat }} Speak."}

    def topology(self) -> Topology:
        return independent(self.seat_ids)

    def estimate(self) -> Estimate:
        return Estimate(min=len(self.seat_ids) + 2, max=len(self.seat_ids) + 2)

    @property
    def max_quoted_replies(self) -> int:
        return len(self.seat_ids) + 1

    async def run(self, session: Session) -> Report:
        everyone = [agent.id for agent in session.agents]
        async with session.phase("open", 1):
            opening = await session.ask("moderator", Prompt("open"), key="open", audience=everyone)
        async with session.phase("speak", 1):
            replies = await session.gather(
                [
                    session.ask(
                        id,
                        Prompt(session.render_template("say", seat=session.agent(id).introduction())),
                        key=f"say/{id}",
                        audience=everyone,
                    )
                    for id in self.seat_ids
                ]
            )
        async with session.phase("close", 1):
            quotes = tuple(Quote(reply.key, reply.agent) for reply in replies if isinstance(reply, Reply))
            closing = await session.ask("crystallizer", Prompt("close", quotes), key="close", closing=True)
        spoke = [reply for reply in (opening, *replies) if isinstance(reply, Reply)]
        alive = session.is_quorum(len(replies) - sum(isinstance(reply, Failure) for reply in replies), len(replies))
        return await session.report(
            Report,
            first=[opening, *replies],
            stop_reason=session.limit_hit or (StopReason.SETTLED if alive else StopReason.FAILED),
            answer=closing.text if isinstance(closing, Reply) else None,
            dissent=tuple(Dissent(agent=reply.agent, text=reply.text) for reply in spoke),
        )


class JuryReport(Report):
    """A report with a format, a condition and a file of its own."""

    exports: ClassVar[Mapping[str, str]] = {"seats.json": "seats"}
    formats: ClassVar[Mapping[str, str]] = {"seats": "seats.json"}
    deliveries: ClassVar[tuple[Delivery, ...]] = (
        Delivery(option="--unless", help="Exit with 9.", values=("many", "few"), method="too_small", exit_code=9),
        Delivery(option="--roll", help="Write who sat.", method="roll"),
    )

    def seats(self) -> list[str]:
        return [agent.id for agent in self.agents]

    def roll(self) -> str:
        return "\n".join(self.seats())

    def too_small(self, size: str) -> str:
        return f"only {len(self.agents)} sat." if size == "many" else ""


@register
class Jury(Council):
    """The council with that report."""

    name: ClassVar[str] = "jury"
    report: ClassVar[type[Report]] = JuryReport
