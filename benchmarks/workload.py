"""What is run: scripted replies and latencies, a plain protocol of one gather, and the run of a protocol on a journal file."""

from __future__ import annotations

import gc
import itertools
import json
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import consilience
from consilience.domain.agents import Agent
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology, complete
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import Protocol, register
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence

TASK = "Should a team of five move its nightly batch jobs from cron on one server to a managed workflow service?"

_numbers = itertools.count(1)

Latency = Callable[[ModelRequest], float]


def reply(request: ModelRequest) -> str:
    """About 220 characters that depend on who says them where; typed replies with a point, every third with an objection."""
    words = (
        f"{request.agent} answers in {request.key} that the move pays only where somebody is on call for the jobs, "
        "that half of them could be dropped, and that nobody has counted what a missed night really costs."
    )
    if request.returns is None:
        return words
    body: dict[str, object] = {}
    if "/leaf_respond/" in request.key:
        body["points"] = [f"{request.agent} has seen a missed night"]
    elif "/lateral/" in request.key and request.agent[-1] in "258":
        body["objections"] = [{"to": "A", "text": f"{request.agent} finds no figure behind that in {request.key}"}]
    body["text"] = words
    return json.dumps(body)


def fresh(directory: Path) -> Path:
    """A path for a file that is not there yet."""
    return directory / f"{next(_numbers)}.db"


def fixed(seconds: float) -> Latency:
    return lambda request: seconds


def log_normal(median: float, seed: int, sigma: float = 0.5) -> Latency:
    """Seconds drawn by key, so that a call takes the same time whoever runs it."""

    def draw(request: ModelRequest) -> float:
        return random.Random(f"{seed}/{request.key}").lognormvariate(math.log(median), sigma)

    return draw


def emergence(children: int, depth: int, rounds: int) -> Emergence:
    """It never converges: no two texts of the root are equal."""
    return Emergence(children=children, depth=depth, max_rounds=rounds, threshold=1.0)


class Plain(Protocol):
    """What the protocols made for benchmarks have in common: `size` members, free text, no templates of their own."""

    summary: ClassVar[str] = "for benchmarks"
    report: ClassVar[type[Report]] = Report
    templates: ClassVar[Mapping[str, str]] = {"instructions": "Be brief."}
    size: int

    def topology(self) -> Topology:
        return complete(self.size)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return tuple(Agent(id=id, role="member") for id in self.topology().agents)


@register
class OneGather(Plain):
    """Every member asked once, side by side; nothing else."""

    name: ClassVar[str] = "bench-one-gather"
    size: int = 100

    def estimate(self) -> Estimate:
        return Estimate(min=self.size, max=self.size)

    @property
    def max_quoted_replies(self) -> int:
        return 1

    async def run(self, session: Session) -> Report:
        async with session.phase("answer", 1):
            replies: list[Reply[str] | Failure] = await session.gather(
                [session.ask(a.id, Prompt(f"Answer as {a.id}."), key=f"answer/{a.id}") for a in session.agents]
            )
        last = replies[-1]
        answer = last.text if isinstance(last, Reply) else None
        return await session.report(Report, first=replies, stop_reason=StopReason.SETTLED, answer=answer)


@register
class InTurn(Plain):
    """A chat: members speak in turn, `at_once` of them side by side, each shown the last `shown` messages."""

    name: ClassVar[str] = "bench-in-turn"
    size: int = 12
    messages: int = 200
    at_once: int = 1
    shown: int = 12

    def estimate(self) -> Estimate:
        return Estimate(min=self.messages, max=self.messages)

    @property
    def max_quoted_replies(self) -> int:
        return self.size

    async def run(self, session: Session) -> Report:
        members = [agent.id for agent in session.agents]
        replies: list[Reply[str]] = []
        for begin in range(0, self.messages, self.at_once):
            shown = tuple(session.quote(reply, reply.agent) for reply in replies[-self.shown :])
            turns = range(begin, min(begin + self.at_once, self.messages))
            async with session.phase("speak", begin + 1):
                works = [
                    session.ask(
                        members[n % self.size], Prompt("Your turn.", (), shown), key=f"turn/{n}", audience=members
                    )
                    for n in turns
                ]
                replies += [reply for reply in await session.gather(works) if isinstance(reply, Reply)]
        first = replies[: self.size]
        return await session.report(Report, first=first, stop_reason=StopReason.SETTLED, answer=replies[-1].text)


@dataclass(frozen=True)
class Ran:
    """A run: CPU and wall seconds from before its session is made until its report is there, and what it asked for."""

    cpu: float
    wall: float
    writer: float
    requests: tuple[ModelRequest, ...]
    session: str

    @property
    def calls(self) -> int:
        return len(self.requests)


async def run(protocol: Protocol, path: Path, latency: float | Latency = 0.0, *, session: str = "bench") -> Ran:
    """Run a protocol on a journal file. Opening and closing the file is not counted; every commit of the run is."""
    store = SqliteStore(path)
    model = ScriptedModel(reply, latency)
    try:
        writer, wall, cpu = thread_cpu("journal:"), time.perf_counter(), time.process_time()
        report = await consilience.deliberate(TASK, protocol, model=model, store=store, session=session)
        cpu, wall, writer = (
            time.process_time() - cpu,
            time.perf_counter() - wall,
            thread_cpu("journal:") - writer,
        )
    finally:
        store.close()
    if report.stop_reason not in (StopReason.EXHAUSTED_STEPS, StopReason.SETTLED):
        raise RuntimeError(
            f"the run ended {report.stop_reason.value}, which measures something else: {report.warnings}"
        )
    return Ran(cpu, wall, writer, tuple(model.requests), session)


async def timed(model: ScriptedModel, work: Callable[[], Awaitable[object]]) -> Ran:
    """What somebody else's run took that asked this model."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Ran(cpu, wall, 0.0, tuple(model.requests), "bench")


class Interrupted(Exception):
    """What a run breaks off with."""


async def interrupt(last: str, work: Callable[[ScriptedModel], Awaitable[object]]) -> None:
    """Run until the call with the key `last`, which raises."""
    try:
        await work(ScriptedModel(lambda request: Interrupted() if request.key == last else reply(request)))
    except Interrupted:
        return
    raise RuntimeError(f"the run did not break off at {last}")


@dataclass(frozen=True)
class Resumed:
    """CPU seconds of a resume, from before its journal is opened to its first call, and to its end."""

    first: float
    end: float


async def resume(work: Callable[[ScriptedModel], Awaitable[object]]) -> Resumed:
    """What it takes to go on with a run whose last call is missing."""
    first: list[float] = []

    def noted(request: ModelRequest) -> str:
        first.append(time.process_time())
        return reply(request)

    settle_memory()
    began = time.process_time()
    await work(ScriptedModel(noted))
    end = time.process_time()
    if len(first) != 1:
        raise RuntimeError(f"the resumed run asked for {len(first)} calls, and one was missing")
    return Resumed(first[0] - began, end - began)


def settle_memory() -> None:
    """Before a measurement: what the packages compared with left in memory is not walked again by the collector."""
    gc.collect()
    gc.freeze()


async def model_cpu(requests: tuple[ModelRequest, ...]) -> float:
    """CPU seconds of the scripted model alone for these requests."""
    model = ScriptedModel(reply)
    began = time.process_time()
    for request in requests:
        await model.complete(request)
    return time.process_time() - began


def thread_cpu(prefix: str) -> float:
    """CPU seconds so far of live threads whose names begin so; 0 where the system does not tell."""
    import threading

    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return 0.0
    threads = [t.ident for t in threading.enumerate() if t.name.startswith(prefix) and t.ident is not None]
    return sum(time.clock_gettime(clock_of(ident)) for ident in threads)
