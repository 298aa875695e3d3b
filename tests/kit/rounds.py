"""A protocol whose rounds are settled, and leave in the session whatever calls can leave there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel

from consilience.domain.messages import Label, Message
from consilience.domain.outcome import Check, Estimate
from consilience.domain.report import Report
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import register
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.models.port import ModelRequest
from kit.throwaways import Throwaway, close


class Opinion(BaseModel):
    """What a member thinks, and whose text it rests on."""

    rests_on: list[Label] = []
    text: str


class Verdict(BaseModel):
    """A judgement without a text."""

    agreed: bool


class Heard(BaseModel):
    """A note of a round."""

    agents: tuple[str, ...]


@dataclass(frozen=True)
class RoundGiven:
    """What a round gives to the next one."""

    opinions: dict[str, Reply[Opinion] | Failure]
    verdict: Reply[Verdict] | Failure
    hint: Message | None = None
    cited: tuple[str, ...] = ()
    aside: Reply[str] | None = field(default=None)


@register
class SettledRounds(Throwaway):
    """In each round all members state an opinion, side by side; the first judges them meanwhile; then a hint is published."""

    name: ClassVar[str] = "settled-rounds"
    notes: ClassVar[Mapping[str, type[BaseModel]]] = {"heard": Heard}
    must_be_read: ClassVar[frozenset[str]] = frozenset({"hint"})
    executed: ClassVar[Counter[int]] = Counter()
    """How often each round was executed in this process."""
    rounds: int = 3

    def estimate(self) -> Estimate:
        return Estimate(min=2 * self.size + 2, max=self.rounds * (self.size + 2) + 1)

    @property
    def max_quoted_replies(self) -> int:
        return 2 * self.size + 1

    async def run(self, session: Session) -> Report:
        rounds: list[RoundGiven] = []
        for index in range(1, self.rounds + 1):
            rounds.append(await session.settled("round", index, RoundGiven, self._round(session, index, rounds[-1:])))
            agreed = [r.verdict for r in rounds if isinstance(r.verdict, Reply) and r.verdict.value.agreed]
            session.record_check(Check(met=len(agreed) == len(rounds), kind="agreed", score=len(agreed)), index)
            if session.limit_hit:
                break
        given = rounds[-1]
        quotes = tuple(Quote(r.key, f"O{n}") for n, r in enumerate(given.opinions.values()) if isinstance(r, Reply))
        answer = await session.ask("A1", Prompt("close", quotes), key="close", closing=True)
        others = [result for made in rounds for result in (*made.opinions.values(), made.verdict)]
        return await close(session, list(rounds[0].opinions.values()), others, answer)

    async def _round(self, session: Session, index: int, before: list[RoundGiven]) -> RoundGiven:
        self.executed[index] += 1
        everyone = [agent.id for agent in session.agents]
        quotes = [
            Quote(reply.key, f"O{n}")
            for given in before
            for n, reply in enumerate(given.opinions.values())
            if isinstance(reply, Reply)
        ]
        quotes += [Quote(given.hint.id, "hint") for given in before if given.hint is not None]
        async with session.phase("verdict", index):
            aside = session.start(session.ask("A1", Prompt("aside"), key=f"round-{index}/aside", audience=everyone))
        async with session.phase("opinions", index):
            asks = [
                session.ask(
                    id,
                    Prompt(f"round {index}", tuple(quotes), documents=("S1:1-2",) if id == "A2" else None),
                    key=f"round-{index}/{id}",
                    returns=Opinion,
                    audience=everyone,
                    quoted=(lambda opinion: opinion.text.upper())
                    if id == "A3"
                    else lambda o: f"{o.text}\n(an opinion)",
                )
                for id in everyone
            ]
            replies = await session.gather(asks)
        cited = [
            id for reply in replies if isinstance(reply, Reply) for id in session.named(reply, reply.value.rests_on)
        ]
        spoke = [reply for reply in replies if isinstance(reply, Reply)]
        session.note("heard", Heard(agents=tuple(reply.agent for reply in spoke)))
        session.warn(f"round {index}: {len(spoke)} spoke")
        async with session.phase("verdict", index):
            shown = tuple(Quote(reply.key, reply.agent) for reply in spoke)
            verdict = await session.ask("A1", Prompt("judge", shown), key=f"round-{index}/verdict", returns=Verdict)
        hint = None
        if spoke:
            hint = Message(f"{spoke[0].key}/hint", spoke[0].agent, "hint", spoke[0].text[::-1], tuple(everyone))
            session.publish(hint)
        said = await aside
        return RoundGiven(
            dict(zip(everyone, replies, strict=True)),
            verdict,
            hint,
            tuple(cited),
            said if isinstance(said, Reply) else None,
        )


def opining(request: ModelRequest) -> str:
    """Opinions that depend on all that was read and cite one label that exists and one that does not; some malformed."""
    words = f'{request.agent} on {request.key}: {len(request.text)}. "It is so." [S1:1]'
    if request.returns is None:
        return words
    if request.key.endswith("verdict"):
        return json.dumps({"agreed": len(request.text) % 2 == 0})
    if request.attempt == 1 and (len(request.text) + len(request.key)) % 5 == 0:
        return '{"rests_on": 3}'
    return json.dumps({"rests_on": ["O1", f"Z{len(request.text)}"], "text": words})
