"""Three protocols that exist to be shaken: nested gathers on a short budget, a debate in virtual time, an outside agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from consilience.domain.agents import Agent
from consilience.domain.messages import Label, Message
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.topology import Topology, complete
from consilience.engine.ports import FreePort, PendingAnswer
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import Protocol, register
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.models.port import Completion, ModelRequest


class Throwaway(Protocol):
    summary: ClassVar[str] = "for tests"
    report: ClassVar[type[Report]] = Report
    templates: ClassVar[Mapping[str, str]] = {"instructions": "Be brief."}
    size: int = 3

    def topology(self) -> Topology:
        return complete(self.size)

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return tuple(Agent(id=id, role="member") for id in self.topology().agents)

    @property
    def max_quoted_replies(self) -> int:
        return self.size


Result = Reply[Any] | Failure
Body = Callable[[Session], Awaitable[object]]


async def close(session: Session, first: Sequence[Result], others: Sequence[Result], answer: Result) -> Report:
    failed = [result for result in (*first, *others, answer) if isinstance(result, Failure)]
    stop = session.limit_hit or (StopReason.EXHAUSTED_BUDGET if failed else StopReason.SETTLED)
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
            made = await session.gather([session.subtask(self._member(session, id), calls=4) for id in ids])
        sums, parts = [total for total, _ in made], [part for _, below in made for part in below]
        async with session.phase("close", 1):
            quotes = tuple(Quote(reply.key, reply.agent) for reply in sums if isinstance(reply, Reply))
            answer = await session.ask(ids[0], Prompt("close", quotes), key="close", closing=True)
        return await close(session, sums, parts, answer)

    async def _member(self, session: Session, id: str) -> tuple[Result, list[Result]]:
        inner = await session.gather([session.subtask(self._pair(session, id), calls=2), self._leaf(session, id, 3)])
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
class Made(Throwaway):
    """Runs the body a test gives it; its settings cannot hold a function, so there is one at a time."""

    name: ClassVar[str] = "made"
    must_be_read: ClassVar[frozenset[str]] = frozenset({"hint"})
    body: ClassVar[Body]

    def estimate(self) -> Estimate:
        return Estimate(min=0, max=100)

    async def run(self, session: Session) -> Report:
        answer = await type(self).body(session)
        done = answer if isinstance(answer, Reply) else Reply("none", "A1", "done", "done")
        return await close(session, [done], (), done)


class Turn(BaseModel):
    """What a member of the toy debate replies."""

    text: str
    to: Label | None = None


@register
class ToyDebate(Throwaway):
    """Members read what was published and publish when they are done thinking, in virtual time; a gate blocks some replies."""

    name: ClassVar[str] = "toy-debate"
    size: int = 12
    turns: int = 36
    """Max calls of all members together."""
    window: int = 4
    """Messages that a member reads."""

    def estimate(self) -> Estimate:
        return Estimate(min=2, max=self.turns + 1)

    async def run(self, session: Session) -> Report:
        floor = Floor(session, self)
        for agent in session.agents:
            session.clock.spawn(agent.id, floor.take_part(agent.id))
        await session.clock.run()
        quotes = tuple(Quote(message.id, message.sender) for message in floor.published[-self.size :])
        answer = await session.ask("A1", Prompt("close", quotes), key="close", closing=True)
        first = {result.agent: result for result in reversed(floor.results)}
        return await close(session, list(first.values()), floor.results, answer)


class Floor:
    """What the members of the toy debate share."""

    def __init__(self, session: Session, settings: ToyDebate) -> None:
        self.session = session
        self.settings = settings
        self.everyone = tuple(agent.id for agent in session.agents)
        self.composed = 0
        self.published: list[Message] = []
        self.results: list[Reply[Turn] | Failure] = []

    async def take_part(self, agent: str) -> None:
        session, clock = self.session, self.session.clock
        await clock.sleep(session.rng("idle", agent).randrange(2000, 5000))
        turn = 0
        while self.composed < self.settings.turns:
            self.composed += 1
            turn += 1
            async with session.phase("speak", turn):
                pending = session.start(self.turn_of(agent, turn))
                await clock.sleep(session.rng("think", agent, turn).randrange(500, 8000))
                await self.publish(agent, turn, await pending)
            await clock.sleep(6000)

    def turn_of(self, agent: str, turn: int) -> Ask[Turn]:
        read = self.published[-self.settings.window :]
        quotes = tuple(Quote(message.id, f"M{n}") for n, message in enumerate(read))
        return self.session.ask(agent, Prompt(f"turn {turn}", quotes), key=f"turn/{agent}/{turn}", returns=Turn)

    async def publish(self, agent: str, turn: int, result: Reply[Turn] | Failure) -> None:
        """Publish a reply that passes the gate; one that is blocked is shown to no agent."""
        self.results.append(result)
        if isinstance(result, Failure) or "blocked" in result.text:
            return
        message = Message(f"{result.key}/said", agent, "message", result.text, self.everyone, phase=("speak", turn))
        self.session.publish(message)
        self.published.append(message)


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


class Outside(FreePort):
    """An agent whose answer comes when `answer` is called, or while the session is parked, through the store."""

    name = "outside"

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.asked = asyncio.Event()
        self._waiting: dict[str, asyncio.Future[Completion]] = {}

    async def send(self, request: ModelRequest) -> Completion | PendingAnswer:
        self.sent.append(request.key)
        return self._wait(request.key)

    async def collect(self, key: str, digest: str) -> Completion | PendingAnswer | None:
        return self._wait(key) if key in self.sent else None

    def answer(self, key: str, text: str) -> None:
        self._waiting[key].set_result(Completion(text=text, model=self.name, cost=0.0))

    def fail(self, key: str, error: Exception) -> None:
        self._waiting[key].set_exception(error)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None

    def _wait(self, key: str) -> PendingAnswer:
        self._waiting[key] = asyncio.get_running_loop().create_future()
        self.asked.set()
        return PendingAnswer(self._waiting[key])
