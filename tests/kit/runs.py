"""Running a case once: with an order of arrival, a budget and a fault of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path

from consilience.domain.errors import SessionWaiting
from consilience.domain.events import CallCompleted, ReplyRejected
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine import runner
from consilience.engine.faults import Crash, Fault
from consilience.engine.runner import Options
from consilience.journal.canonical import canonical_digest
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.models.tools import ToolAgent
from kit.cases import Case
from kit.throwaways import Outside
from kit.tools import tooled

TASK = "Is it so?"


class Shuffled(ScriptedModel):
    """Answers after a random number of turns of the loop, so that replies arrive in a random order."""

    def __init__(self, case: Case, order: int | None) -> None:
        super().__init__(case.script)
        self._order = random.Random(order) if order is not None else None
        self.arrived: list[str] = []

    async def complete(self, request: ModelRequest) -> Completion:
        completion = await super().complete(request)
        if self._order is not None:
            for _ in range(self._order.randrange(12)):
                await asyncio.sleep(0)
        self.arrived.append(request.key)
        return completion


@dataclass
class Outcome:
    """What a run came to, and what was asked for it, over all its processes."""

    journal: str
    report: Report
    asked: list[tuple[str, int]] = field(default_factory=list)
    arrived: tuple[str, ...] = ()
    crashes: int = 0
    asked_again: set[tuple[str, int]] = field(default_factory=set)

    @property
    def same(self) -> tuple[str, str]:
        return self.journal, self.report.digest()


Seat = ScriptedModel | Outside | ToolAgent


def seated(case: Case, model: ScriptedModel, order: int | None = None) -> dict[str, Seat]:
    """The model for everybody but the agent outside, and beneath the one with tools."""

    def seat(id: str) -> Seat:
        if id == case.tools:
            return tooled(id, model, order)
        return Outside() if id == case.outside else model

    return {agent.id: seat(agent.id) for agent in case.protocol.agents(None)}


async def to_the_end(store: SqliteStore, seats: dict[str, Seat], begun: Awaitable[Report]) -> Report:
    """Whenever the session is parked, answer what it awaits, and go on."""
    while True:
        try:
            return await begun
        except SessionWaiting as parked:
            for key in parked.awaited:
                store.answer(parked.session, key, f"from outside, on {key}")
            begun = runner.resume(parked.session, store=store, models=seats, options=Options(patience=0))


async def run(
    case: Case, *, order: int | None = None, calls: int | None = None, path: Path | str = ":memory:"
) -> Outcome:
    """Once, from start to end."""
    store = SqliteStore(path)
    try:
        model = Shuffled(case, order)
        seats = seated(case, model, order)
        begun = runner.start(
            TASK, case.protocol, models=seats, store=store, limits=Limits(calls=calls), options=Options(patience=0)
        )
        report = await to_the_end(store, seats, begun)
        asked = [(request.key, request.attempt) for request in model.requests]
        return Outcome(canonical_digest(store.read(report.session)), report, asked, tuple(model.arrived))
    finally:
        store.close()


async def run_killed(
    case: Case, path: Path, fault: Fault, *, order: int | None = None, calls: int | None = None
) -> Outcome:
    """Killed where the fault says, then resumed to the end; says what was asked again although it was recorded."""
    store = SqliteStore(path)
    model = Shuffled(case, order)
    options = Options(faults=fault.hit, patience=0)
    seats = seated(case, model, order)
    asked_again: set[tuple[str, int]] = set()
    crashes = 0
    try:
        begun = runner.start(
            TASK, case.protocol, models=seats, store=store, limits=Limits(calls=calls), session="s", options=options
        )
        report = await to_the_end(store, seats, begun)
    except Crash:
        crashes = 1
        store = SqliteStore(path)
        events = store.read("s")
        done = {(e.key, e.attempt) for e in events if isinstance(e, CallCompleted | ReplyRejected)}
        before = len(model.requests)
        seats = seated(case, model, order)
        resumed = runner.resume("s", store=store, models=seats, options=Options(patience=0))
        report = await to_the_end(store, seats, resumed)
        asked_again = done & {(request.key, request.attempt) for request in model.requests[before:]}
    try:
        asked = [(request.key, request.attempt) for request in model.requests]
        return Outcome(canonical_digest(store.read("s")), report, asked, (), crashes, asked_again)
    finally:
        store.close()
