"""Three protocols that exist to be shaken: nested gathers on a short budget, a loop in virtual time, an outside agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from consilience.domain.agents import Agent
from consilience.domain.messages import Message
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology, complete
from consilience.engine.ports import Awaited
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import Protocol, register
from consilience.engine.session import Session
from consilience.engine.templates import Templates
from consilience.engine.work import Failure, Reply
from consilience.models.port import Completion, ModelRequest


class Throwaway(Protocol):
    summary: ClassVar[str] = "for tests"
    report: ClassVar[type[Report]] = Report
    size: int = 3

    @classmethod
    def templates(cls, override: Path | None = None) -> Templates:
        return Templates({"instructions": "Be brief."})

    def topology(self) -> Topology:
        return complete(self.size)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return tuple(Agent(id=id, role="member") for id in self.topology().agents)

    @property
    def widest(self) -> int:
        return self.size


Result = Reply[str] | Failure


async def close(session: Session, first: Sequence[Result], others: Sequence[Result], answer: Result) -> Report:
    failed = [result for result in (*first, *others, answer) if isinstance(result, Failure)]
    stop = StopReason.EXHAUSTED_BUDGET if failed else StopReason.SETTLED
    return await session.report(
        Report, first=first, stop_reason=stop, answer=answer.text if isinstance(answer, Reply) else None
    )


@register
class NestedGathers(Throwaway):
    """Each member asks three times in two nested gathers, then sums up; the first member closes."""

    name: ClassVar[str] = "nested-gathers"

    def estimate(self) -> Estimate:
        return Estimate(min=4 * self.size + 1, max=4 * self.size + 1)

    async def run(self, session: Session) -> Report:
        ids = [agent.id for agent in session.agents]
        async with session.phase("members", 1):
            made = await session.gather([session.procedure(self._member(session, id), calls=4) for id in ids])
        sums, parts = [total for total, _ in made], [part for _, below in made for part in below]
        async with session.phase("close", 1):
            quotes = tuple(Quote(reply.key, reply.agent) for reply in sums if isinstance(reply, Reply))
            answer = await session.ask(ids[0], Prompt("close", quotes), key="close", closing=True)
        return await close(session, sums, parts, answer)

    async def _member(self, session: Session, id: str) -> tuple[Result, list[Result]]:
        inner = await session.gather([session.procedure(self._pair(session, id), calls=2), self._leaf(session, id, 3)])
        parts = [*inner[0], inner[1]]
        dice = session.rng("order", id).random()
        total = await session.ask(
            id,
            Prompt(f"sum {dice:.6f}", tuple(Quote(r.key, "you") for r in parts if isinstance(r, Reply))),
            key=f"sum/{id}",
            audience=[agent.id for agent in session.agents],
        )
        return total, parts

    async def _pair(self, session: Session, id: str) -> list[Result]:
        return await session.gather([self._leaf(session, id, n) for n in (1, 2)])

    def _leaf(self, session: Session, id: str, n: int):  # type: ignore[no-untyped-def]
        return session.ask(id, Prompt(f"part {n}"), key=f"part/{id}/{n}")


@register
class VirtualLoop(Throwaway):
    """Members wake, read what was said before, and speak when they are done thinking, in virtual time."""

    name: ClassVar[str] = "virtual-loop"
    turns: int = 8

    def estimate(self) -> Estimate:
        return Estimate(min=self.turns + 1, max=self.turns + 1)

    async def run(self, session: Session) -> Report:
        everyone = [agent.id for agent in session.agents]
        said: list[Message] = []
        replies: list[Result] = []
        first: dict[str, Result] = {}
        started = 0

        async def wake(agent: str) -> None:
            nonlocal started
            if started >= self.turns:
                return
            started += 1
            n = started
            async with session.phase("speak", n):
                quotes = tuple(Quote(m.id, m.sender) for m in said[-3:])
                pending = session.start(
                    session.ask(agent, Prompt(f"turn {n}", quotes), key=f"turn/{n}", audience=everyone)
                )
            think = session.rng("think", agent, n).randrange(3000, 8000)

            async def due() -> None:
                reply = await pending
                first.setdefault(agent, reply)
                replies.append(reply)
                if isinstance(reply, Reply):
                    said.append(session.message(reply.key))
                session.schedule.at(session.schedule.now + 6000, agent, lambda: wake(agent))

            session.schedule.at(session.schedule.now + think, agent, due)

        for agent in everyone:
            session.schedule.at(
                session.rng("idle", agent).randrange(2000, 5000), agent, lambda agent=agent: wake(agent)
            )
        await session.schedule.run()
        quotes = tuple(Quote(m.id, m.sender) for m in said)
        answer = await session.ask(everyone[0], Prompt("close", quotes[: self.size]), key="close", closing=True)
        return await close(session, list(first.values()), replies, answer)


@register
class OutsideAgent(Throwaway):
    """Two models and somebody outside, who may answer when nobody runs the session; then a model closes."""

    name: ClassVar[str] = "outside-agent"

    def estimate(self) -> Estimate:
        return Estimate(min=self.size + 1, max=self.size + 1)

    async def run(self, session: Session) -> Report:
        ids = [agent.id for agent in session.agents]
        async with session.phase("opinions", 1):
            opinions = await session.gather(
                [session.ask(id, Prompt("say"), key=f"say/{id}", audience=ids) for id in ids]
            )
        quotes = tuple(Quote(r.key, r.agent) for r in opinions if isinstance(r, Reply))
        answer = await session.ask(ids[0], Prompt("close", quotes), key="close", closing=True)
        return await close(session, opinions, (), answer)


class Outside:
    """An agent whose answer comes when `answer` is called, or while the session is parked, through the store."""

    name = "outside"

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.asked = asyncio.Event()
        self._waiting: dict[str, asyncio.Future[Completion]] = {}

    async def send(self, request: ModelRequest) -> Completion | Awaited:
        self.sent.append(request.key)
        return self._wait(request.key)

    async def collect(self, key: str, digest: str) -> Completion | Awaited | None:
        return self._wait(key) if key in self.sent else None

    def answer(self, key: str, text: str) -> None:
        self._waiting[key].set_result(Completion(text=text, model=self.name, cost=0.0))

    def fail(self, key: str, error: Exception) -> None:
        self._waiting[key].set_exception(error)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None

    def _wait(self, key: str) -> Awaited:
        self._waiting[key] = asyncio.get_running_loop().create_future()
        self.asked.set()
        return Awaited(self._waiting[key])
