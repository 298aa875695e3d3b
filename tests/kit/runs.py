"""Running a case once: with an order of arrival, a budget and a fault of its own."""

from __future__ import annotations

from pathlib import Path

from consilience.engine.faults import Fault
from consilience.models.scripted import ScriptedModel
from consilience.models.tool_agent import ToolAgent
from consilience.testing.shaking import Arrivals, ShakenRun, Shuffled, to_the_end
from kit.cases import Case
from kit.throwaways import Outside
from kit.tools import MAX_STEPS, tooled

__all__ = ["TASK", "Seat", "ShakenRun", "Shuffled", "arrivals", "run", "run_killed", "seated", "to_the_end"]

TASK = "Is it so?"
Seat = ScriptedModel | Outside | ToolAgent


def seated(case: Case, model: ScriptedModel, order: int | None = None) -> dict[str, Seat]:
    """The model for everybody but the agent outside, and beneath the one with tools."""

    def seat(id: str) -> Seat:
        if id == case.tools:
            return tooled(id, model, order)
        return Outside() if id == case.outside else model

    return {agent.id: seat(agent.id) for agent in case.protocol.agents(None)}


def arrivals(case: Case) -> Arrivals:
    return Arrivals(
        case.protocol,
        case.script,
        sources=case.sources,
        seats=lambda model, order: seated(case, model, order),
        max_steps=MAX_STEPS if case.tools else 1,
    )


async def run(
    case: Case, *, order: int | None = None, calls: int | None = None, path: Path | str = ":memory:"
) -> ShakenRun:
    """Once, from start to end."""
    return await arrivals(case).run(order=order, calls=calls, path=path)


async def run_killed(
    case: Case, path: Path, fault: Fault, *, order: int | None = None, calls: int | None = None
) -> ShakenRun:
    """Killed where the fault says, then resumed to the end; says what was asked again although it was recorded."""
    return await arrivals(case).run(order=order, calls=calls, path=path, fault=fault.hit)
