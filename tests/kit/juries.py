"""Protocols for comparing: one who answers alone, a vote of any size, and a circle that shares what its members know.

They stand in for `solo` and `vote` where a test compares; `seated` puts them in their place for its duration.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import ClassVar

import pytest

from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import Report
from consilience.domain.topology import Topology
from consilience.engine import protocol as registry
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.evaluation.scoring import extract
from consilience.models.port import ModelRequest
from consilience.testing import Scripted
from kit.throwaways import Result, Throwaway


class JuryReport(Report):
    position: str | None = None
    tally: dict[str, int] = {}


class Jury(Throwaway):
    report: ClassVar[type[Report]] = JuryReport
    size: int = 3
    answer_pattern: str = ""

    @property
    def max_quoted_replies(self) -> int:
        return 0

    async def conclude(
        self, session: Session, first: list[Result], answer: str | None, tally: dict[str, int]
    ) -> Report:
        failed = any(isinstance(result, Failure) and result.kind.is_limit for result in first)
        return await session.report(
            JuryReport,
            first=first,
            stop_reason=StopReason.EXHAUSTED_BUDGET if failed else StopReason.SETTLED,
            answer=answer,
            position=next(iter(tally), None),
            tally=tally,
        )

    def read(self, replies: list[Result]) -> dict[str, int]:
        answers = [extract(self.answer_pattern or ".+", reply.text) for reply in replies if isinstance(reply, Reply)]
        return dict(Counter(position for position in answers if position).most_common())


class Alone(Jury):
    """One call; it holds what is private to the first seat, and nobody holds the rest."""

    name: ClassVar[str] = "solo"
    size: int = 1

    def seat(self, n: int) -> str | None:
        return "A1" if n == 1 else None

    def estimate(self) -> Estimate:
        return Estimate(min=1, max=1)

    async def run(self, session: Session) -> Report:
        reply = await session.ask("A1", Prompt("answer"), key="answer", closing=True)
        return await self.conclude(session, [reply], _text(reply), self.read([reply]))


class Poll(Jury):
    """Independent answers and a majority."""

    name: ClassVar[str] = "vote"

    def topology(self) -> Topology:
        ids = tuple(f"V{n}" for n in range(1, self.size + 1))
        return Topology(kind="complete", agents=ids, circles=(ids,) if len(ids) > 1 else ())

    def resized_for_calls(self, calls: int) -> Poll:
        return self.model_copy(update={"size": calls})

    def estimate(self) -> Estimate:
        return Estimate(min=self.size, max=self.size)

    async def run(self, session: Session) -> Report:
        *others, last = (agent.id for agent in session.agents)
        votes: list[Result] = await session.gather(
            [session.ask(id, Prompt("answer"), key=f"vote/{id}") for id in others]
        )
        votes.append(await session.ask(last, Prompt("answer"), key=f"vote/{last}", closing=True))
        tally = self.read(votes)
        chosen = next((v.text for v in votes if isinstance(v, Reply)), None)
        return await self.conclude(session, votes, chosen, tally)


class Circle(Jury):
    """Each says what it knows, and the first sums up what all have said."""

    name: ClassVar[str] = "circle"

    @property
    def max_quoted_replies(self) -> int:
        return self.size

    def estimate(self) -> Estimate:
        return Estimate(min=self.size + 1, max=self.size + 1)

    async def run(self, session: Session) -> Report:
        ids = [agent.id for agent in session.agents]
        replies: list[Result] = await session.gather(
            [session.ask(id, Prompt("answer"), key=f"say/{id}", audience=ids) for id in ids]
        )
        quotes = tuple(Quote(r.key, r.agent) for r in replies if isinstance(r, Reply))
        answer = await session.ask(ids[0], Prompt("sum up", quotes), key="close", closing=True)
        return await self.conclude(session, replies, _text(answer), self.read([answer]))


def seated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make them known by name until the test ends, in the place of any installed ones."""
    for protocol in (Alone, Poll, Circle):
        monkeypatch.setitem(registry._registered, protocol.name, protocol)


def adding_up(request: ModelRequest) -> Scripted:
    """A model that knows what it is shown: it repeats every fact of the form `Ann has 3 apples.` and adds them up."""
    facts = dict(re.findall(r"(\w+) has (\d+) apples", request.text))
    known = " ".join(f"{name} has {n} apples." for name, n in sorted(facts.items()))
    return Scripted(f"{known} Answer: {sum(map(int, facts.values()))}", tokens_in=200, tokens_out=50, cost=0.001)


def _text(result: Result) -> str | None:
    return result.text if isinstance(result, Reply) else None
