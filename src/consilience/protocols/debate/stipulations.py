"""Sealed ballots cast again under something stipulated: tested cruxes, the placebo, and facts told after the end.

What agents say would change their minds is checked by asking them. Each of the top cruxes is taken as answered, both ways, and
every voter votes again; a fact of the same form, which all of them assume already, shows how many move for nothing. A fact
that `tell` brings is asked in the same way, but counts: its ballots replace the final ones. Nothing here is published, and no test
is shown to the closing call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consilience.domain.positions import LEVELS, PositionChange
from consilience.engine.prompt import Quote
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.debate import notes
from consilience.protocols.debate.ballots import (
    OWN_BALLOT,
    DebateBallots,
    again_words,
    ballot_words,
    cast,
    sides_of,
    votes_on_candidates,
)
from consilience.protocols.debate.floor import Floor, aside
from consilience.protocols.debate.moves import FIRM, Side, is_question
from consilience.protocols.debate.records import Crux, DebateBallot, Flip
from consilience.protocols.debate.replies import StipulatedReply, ToldReply, ballot_type
from consilience.protocols.debate.scoring import crux_score, hanging_on
from consilience.protocols.debate.stipulated import CruxTest, FlipRecord, PlaceboTest, StipulatedBallot, ToldFact
from consilience.protocols.debate.threads import Thread

PLACEBO = "Was the first proposal on this matter made in writing?"
"""The question of the placebo if the crystallizer wrote none."""

FlipRecords = dict[str, tuple[FlipRecord, ...]]


@dataclass
class Stipulations:
    """What the tests showed."""

    tests: list[CruxTest] = field(default_factory=list)
    placebo: PlaceboTest | None = None
    flips: FlipRecords = field(default_factory=dict)
    """By thread."""


def cruxes_to_test(cruxes: Iterable[Crux], limit: int) -> list[Crux]:
    """Return the top cruxes: validated ones first, then by score, ties to the earlier thread."""
    return sorted(cruxes, key=lambda crux: (not crux.validated, -crux.score.score))[:limit]


async def run_tests(floor: Floor, final: DebateBallots, asked: Sequence[Thread]) -> Stipulations:
    """Test the top cruxes with every voter. After a limit has refused a call none is tested.

    The order of the ballots is that in which a budget that runs out is worth most: the first crux, the placebo, the second.
    """
    cruxes = cruxes_to_test((t.crux for t in asked if t.crux is not None), floor.settings.test_cruxes)
    results = Stipulations()
    if not cruxes or not final:
        return results
    if floor.session.limit_hit:
        floor.session.warn("no crux was tested: a limit had run out")
        return results
    facts = [(f"{c.thread}/{side}", stipulation(c.question, side)) for c in cruxes for side in FIRM]
    placebo = stipulation(control_question(floor, cruxes, final), "YES")
    facts.insert(len(FIRM), ("placebo", placebo))
    base = ballot_type(StipulatedReply, len(floor.framing.propositions))
    async with floor.session.phase("tests", 1):
        replies = await floor.session.gather(
            [
                _ask(floor, final[agent], asked, "test", base, key=f"test/{name}/{agent}", fact=fact)
                for name, fact in facts
                for agent in final
            ]
        )
    _warn_of_missing(floor, replies, "ballots of tested cruxes")
    rows = [replies[n : n + len(final)] for n in range(0, len(replies), len(final))]
    by_fact = {name: _ballots(row) for (name, _), row in zip(facts, rows, strict=True)}
    results.placebo = PlaceboTest(fact=placebo, ballots=by_fact["placebo"])
    results.tests = [
        CruxTest(thread=crux.thread, stipulated=side, ballots=by_fact[f"{crux.thread}/{side}"])
        for crux in cruxes
        for side in FIRM
    ]
    _evaluate(floor, final, cruxes, results)
    return results


async def run_told(floor: Floor, final: DebateBallots, asked: Sequence[Thread], facts: Sequence[str]) -> list[ToldFact]:
    """Ask every voter again for each fact in turn. A later fact is put to those who answered on the one before."""
    told: list[ToldFact] = []
    base, last = ballot_type(ToldReply, len(floor.framing.propositions), len(asked)), final
    for n, fact in enumerate(facts, 1):
        async with floor.session.phase("told", n):
            replies = await floor.session.gather(
                [_ask(floor, ballot, asked, "told", base, key=f"told/{n}/{a}", fact=fact) for a, ballot in last.items()]
            )
        _warn_of_missing(floor, replies, f"ballots on the new fact {n}")
        before, last = last, cast(floor, replies, asked, told=n)
        moved = tuple(
            PositionChange(agent=a, before=_answers(before[a]), after=_answers(b), step=1 + n)
            for a, b in last.items()
            if (b.positions, b.questions) != (before[a].positions, before[a].questions)
        )
        told.append(ToldFact(fact=fact, before=tuple(before.values()), ballots=tuple(last.values()), moved=moved))
        floor.note(notes.FactTold(at=floor.now, fact=fact, moved=tuple(change.agent for change in moved)))
    return told


def control_question(floor: Floor, cruxes: Sequence[Crux], final: DebateBallots) -> str:
    """Return a question of the form of a crux to which all said yes: the first statement that their final ballots confirmed, else
    what the crystallizer wrote beside the first tested crux or another one. It is no question that the debate has asked."""
    confirmed, _ = votes_on_candidates(floor, final)
    threads = list(floor.threads.values())
    asked = {text.casefold() for t in threads for text in (t.question, t.locked_question, t.topic) if text}
    agreed = (candidate.question for candidate in confirmed)
    written = (floor.threads[crux.thread].control for crux in cruxes)
    usable = (text for text in (*agreed, *written, *(t.control for t in threads)) if is_question(text))
    return next((text for text in usable if text.casefold() not in asked), PLACEBO)


def stipulation(question: str, side: str) -> str:
    return f'The answer to "{question}" is {side}.'


def flips_of(
    crux: Crux,
    final: Mapping[str, tuple[tuple[Side, ...], Side]],
    tests: Mapping[str, Mapping[str, StipulatedBallot]],
    placebo: Mapping[str, StipulatedBallot],
) -> tuple[tuple[FlipRecord, ...], dict[str, Flip]]:
    """Return what each voter declared and did when told so, and the flips that it made in the form of declared ones.

    `final` holds each agent's answers to the propositions and to the crux, `tests` the ballots by the stipulated answer. Only an
    answer that the agent does not hold counts, for an uncertain agent either one. The confidence of a flip is that of its ballot.
    """
    records, flips = [], {}
    for agent, (positions, held) in final.items():
        flip = crux.flips.get(agent)
        against = [side for side in FIRM if side != held]
        cast = {side: ballot for side in against if (ballot := tests[side].get(agent)) is not None}
        moved = [side for side, ballot in cast.items() if ballot.positions != positions]
        observed = True if moved else False if len(cast) == len(against) else None
        idle = placebo.get(agent)
        records.append(
            FlipRecord(
                agent=agent,
                declared=any(map(flip.flips_on, against)) if flip else None,
                observed=observed,
                as_declared=None
                if flip is None or observed is None or not set(positions) & set(FIRM)
                else moved == [side for side in cast if flip.flips_on(side)],
                placebo=None if idle is None else idle.positions != positions,
            )
        )
        if observed is not None:
            sure = max((cast[side].confidence for side in moved), default=0.0)
            flips[agent] = Flip(agent=agent, side=held, would_flip=observed, confidence=sure)
    return tuple(records), flips


def _ask(
    floor: Floor,
    last: DebateBallot,
    asked: Sequence[Thread],
    template: str,
    returns: type[StipulatedReply],
    *,
    key: str,
    fact: str,
) -> Ask[StipulatedReply]:
    """Ask an agent that is shown what its final ballot was cast on, that ballot, and the fact."""
    session, agent = floor.session, last.agent
    words = session.render_template(
        template,
        letter=floor.letters[agent],
        seat=session.agent(agent).introduction(),
        propositions=floor.framing.propositions,
        questions=tuple(thread.question or "" for thread in asked),
        fact=fact,
        again=again_words(floor, agent, asked) if not last.told else (),
    )
    return session.ask(
        agent,
        aside(session, words, (*floor.overview(), Quote(last.key, OWN_BALLOT))),
        key=key,
        returns=returns,
        kind="ballot" if template == "told" else "test",
        audience=("crystallizer",) if template == "told" else (),
        quoted=ballot_words,
    )


def _warn_of_missing(floor: Floor, replies: Sequence[Reply[Any] | Failure], what: str) -> None:
    if failed := sum(isinstance(reply, Failure) for reply in replies):
        floor.session.warn(f"{what} that are missing: {failed} of {len(replies)}")


def _ballots(replies: Sequence[Reply[Any] | Failure]) -> dict[str, StipulatedBallot]:
    return {
        reply.agent: StipulatedBallot(
            positions=sides_of(reply.value, "p"),
            confidence=LEVELS[reply.value.confidence],
            reason=reply.value.reason.strip(),
        )
        for reply in replies
        if isinstance(reply, Reply)
    }


def _evaluate(floor: Floor, final: DebateBallots, cruxes: Sequence[Crux], results: Stipulations) -> None:
    """Compute flips and observed scores, and record them."""
    assert results.placebo is not None
    for crux in cruxes:
        held = {agent: (ballot.positions, ballot.questions[crux.thread]) for agent, ballot in final.items()}
        tests: dict[str, Mapping[str, StipulatedBallot]] = {
            test.stipulated: test.ballots for test in results.tests if test.thread == crux.thread
        }
        records, flips = flips_of(crux, held, tests, results.placebo.ballots)
        results.flips[crux.thread] = records
        if flips:
            sides = {agent: position.side for agent, position in crux.positions.items()}
            score = crux_score(sides, flips, len(floor.debaters))
            floor.note(
                notes.CruxTested(
                    at=floor.now,
                    thread=crux.thread,
                    declared=sum(record.declared is True for record in records),
                    observed=sum(record.observed is True for record in records),
                    tested=len(flips),
                    score=score,
                    hanging=hanging_on(crux, records),
                )
            )
    idle = [ballot.positions != final[a].positions for a, ballot in results.placebo.ballots.items()]
    floor.note(notes.PlaceboTested(at=floor.now, moved=sum(idle), tested=len(idle)))


def _answers(ballot: DebateBallot) -> str:
    """The typed answers of a ballot: those to the propositions, then those to the questions of threads."""
    return ", ".join((*ballot.positions, *(f"{thread} {side}" for thread, side in ballot.questions.items())))
