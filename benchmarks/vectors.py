"""What comparing texts by vectors costs a debate: CPU of all wakes together."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import consilience
from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology, complete
from consilience.engine.protocol import Protocol, register
from consilience.engine.session import Session
from consilience.engine.templates import Templates
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from rows import OURS, Results, Row, Series

GROUP = "vectors"
AGENTS, MESSAGES, WAKES = 12, 500, 200
DIMENSIONS = 384
TARGET_SECONDS = 2.0


class Prepared:
    """An encoder whose vectors are drawn before the clock starts, so that encoding costs nothing."""

    name = "prepared"

    def __init__(self, texts: int) -> None:
        rng = random.Random(1)
        self._vectors = [[rng.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(texts)]
        self.texts = 0

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        begin, self.texts = self.texts, self.texts + len(texts)
        return self._vectors[begin : self.texts]


@register
class Wakes(Protocol):
    """Each wake of an agent compares the messages that are new to it with its own; every fifth wake or so it writes one."""

    name: ClassVar[str] = "bench-wakes"
    summary: ClassVar[str] = "for the benchmark of vectors"
    report: ClassVar[type[Report]] = Report

    @classmethod
    def load_templates(cls, override: Path | None = None, detail: Detail = "full") -> Templates:
        return Templates({"instructions": "None."})

    def topology(self) -> Topology:
        return complete(AGENTS)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return tuple(Agent(id=id, role="member") for id in self.topology().agents)

    def estimate(self) -> Estimate:
        return Estimate(min=0, max=0)

    @property
    def max_quoted_replies(self) -> int:
        return 0

    @property
    def needs_encoder(self) -> bool:
        return True

    async def run(self, session: Session) -> Report:
        written: list[tuple[str, str]] = []

        async def member(agent: str) -> None:
            read = 0
            for _ in range(WAKES):
                await session.clock.sleep(1000)
                new = [text for writer, text in written[read:] if writer != agent]
                own = [text for writer, text in written if writer == agent]
                read = len(written)
                await session.cosines(new, own)
                if len(written) < MESSAGES * session.clock.now // (1000 * WAKES):
                    written.append((agent, f"message {len(written)} of {agent}"))

        for agent in session.agents:
            session.clock.spawn(agent.id, member(agent.id))
        await session.clock.run()
        return await session.report(Report, first=(), stop_reason=StopReason.SETTLED, answer="done")


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    seconds = tuple(asyncio.run(_run(directory / f"vectors-{n}.db")) for n in range(repeats))
    name = f"{AGENTS} agents, {MESSAGES} messages, {WAKES} wakes each: CPU of all comparisons, journal included"
    results.add([Row(GROUP, name, "s", Series(OURS, seconds), TARGET_SECONDS)])


async def _run(path: Path) -> float:
    store, encoder = SqliteStore(path), Prepared(MESSAGES + 1)
    began = time.process_time()
    await consilience.deliberate("?", Wakes(), model=ScriptedModel([]), store=store, encoder=encoder)
    spent = time.process_time() - began
    store.close()
    assert encoder.texts >= MESSAGES - AGENTS, encoder.texts
    return spent
