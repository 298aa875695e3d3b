"""The algorithm of `debate` (seed 002), top to bottom: frame → opening ballots → debate in virtual time → final ballots → close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from consilience.domain.outcome import StopReason
from consilience.domain.report import Report
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import Telling
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.debate.attention import Interests, Mode, keywords
from consilience.protocols.debate.ballots import (
    DebateBallots,
    again_words,
    ballot_of,
    ballot_words,
    cast,
    recheck,
    votes_on_candidates,
)
from consilience.protocols.debate.debaters import Debater
from consilience.protocols.debate.floor import Floor, Member, aside
from consilience.protocols.debate.moderator import Moderator, watch
from consilience.protocols.debate.moves import FAILURES, Side
from consilience.protocols.debate.notes import NOTES, GlobalConvergence
from consilience.protocols.debate.outcome import DebateRun, conclude, final_cruxes, report_undebated
from consilience.protocols.debate.records import Framing
from consilience.protocols.debate.replies import (
    ClosingReply,
    FinalReply,
    FramingReply,
    OpeningReply,
    ballot_type,
    falsifier_of,
    refuse_bad_framing,
)
from consilience.protocols.debate.report import DebateReport
from consilience.protocols.debate.settings import DebateSettings, proposition
from consilience.protocols.debate.single import compare_questions, start_single
from consilience.protocols.debate.stipulations import run_tests, run_told

_STOPS: Mapping[str, StopReason] = {
    "settled": StopReason.SETTLED,
    "stable": StopReason.SETTLED,
    "stalled": StopReason.STALLED,
    "max_messages": StopReason.EXHAUSTED_STEPS,
    "max_duration": StopReason.EXHAUSTED_STEPS,
}
"""By why the exchange ended."""
_OTHER_SIDE: Mapping[Side, Side] = {"YES": "NO", "NO": "YES", "UNCERTAIN": "UNCERTAIN"}


class Debate(DebateSettings):
    """Agents debate in threads in virtual time; what really divides them is locked as a question, tested, and reported."""

    version: ClassVar[int] = 7  # 6 closed without opening ballots and falsifiers
    report: ClassVar[type[Report]] = DebateReport
    phase_names: ClassVar[tuple[str, ...]] = (
        "single",
        "framing",
        "opening",
        "discovery",
        "crux_lock",
        "evidence",
        "falsifiers",
        "flips",
        "crystallization",
        "relations",
        "comparison",
        "final",
        "rechecks",
        "tests",
        "told",
        "synthesis",
        "closing",
    )
    after_answer: ClassVar[frozenset[str]] = frozenset({"single", "tests"})
    notes: ClassVar[Mapping[str, type[BaseModel]]] = NOTES
    telling: ClassVar[Telling | None] = Telling(setting="new_facts", positions="final", again=("closing",))

    async def run(self, session: Session) -> DebateReport:
        if session.limits.steps == 0:
            return await report_undebated(session, None, StopReason.EXHAUSTED_STEPS)
        framing = await self._frame(session)
        if isinstance(framing, Failure):
            # Where a limit left no call for the framing, what is left goes to the closing call.
            if session.limit_hit is None:
                return await report_undebated(session, framing, StopReason.FAILED)
            framing = Framing(form="yes/no", propositions=(proposition(session.task),), reason="a limit was reached")
        session.note("framed", framing)
        if not framing.propositions:
            return await report_undebated(session, framing, StopReason.INCONCLUSIVE)
        floor = Floor(session, self, self._mode(session), framing)
        run = DebateRun(await self._open(floor))
        if not session.has_quorum(run.opening):
            return await conclude(floor, run)
        with session.set_aside() as kept:  # final ballots decide everything
            floor.keep_ballots = lambda: kept.keep(lambda: self._final_asks(floor), floor.ballot_growth)
            floor.keep_ballots()
            single = await start_single(floor) if self.single_call else None
            await self._debate(floor)
        run.single = await single if single else None
        threads_asked = floor.asked
        run.final = await recheck(floor, await self._vote(floor), threads_asked)
        run.told = await run_told(floor, run.final, threads_asked, self.new_facts)
        run.closing = await self._close(floor, run)
        run.compared = await compare_questions(floor, run.single, final_cruxes(floor))
        run.stipulations = await run_tests(floor, run.final, threads_asked)
        return await conclude(floor, run, _STOPS.get(floor.over or "", StopReason.STALLED))

    def _mode(self, session: Session) -> Mode:
        """How attention is scored: by meaning where an encoder is given, unless the settings name keywords."""
        if self.attention == "auto":
            return "embedding" if session.has_encoder else "keyword"
        return self.attention

    @property
    def needs_encoder(self) -> bool:
        return self.attention == "embedding"

    async def _frame(self, session: Session) -> Framing | Failure:
        """The task as yes/no questions: by the settings, else by one call."""
        if self.as_is:
            return Framing(form="yes/no", propositions=(proposition(session.task),), given=True)
        if self.option:
            propositions = tuple(session.render_template("option", option=option) for option in self.option)
            return Framing(form="choose one", propositions=propositions, given=True)
        async with session.phase("framing", 1):
            reply = await session.ask(
                "framing",
                Prompt(session.render_template("frame")),
                key="framing",
                returns=FramingReply,
                kind="framing",
                accept=refuse_bad_framing,
            )
        if isinstance(reply, Failure):
            return reply
        value = reply.value
        kept = [proposition(text) for text in value.propositions if text.strip()]
        disputable = value.form != "not disputable"
        return Framing(
            form=value.form,
            propositions=tuple(dict.fromkeys(kept))[:3] if disputable else (),
            reason=value.reason.strip(),
        )

    async def _open(self, floor: Floor) -> list[Reply[Any] | Failure]:
        """Every debater's sealed position, before it has seen anybody else's."""
        session, propositions = floor.session, floor.framing.propositions
        async with session.phase("opening", 1):
            replies = await session.gather(
                [
                    session.ask(
                        agent,
                        Prompt(
                            session.render_template(
                                "opening", seat=session.agent(agent).introduction(), propositions=propositions
                            )
                        ),
                        key=f"opening/{agent}",
                        returns=ballot_type(OpeningReply, len(propositions)),
                        kind="ballot",
                        audience=("crystallizer",),
                        quoted=ballot_words,
                    )
                    for agent in floor.debaters
                ]
            )
        for agent, reply in zip(floor.debaters, replies, strict=True):
            interests = session.agent(agent).interests
            if isinstance(reply, Reply):
                value = reply.value
                interests = (*interests, *value.interests)
                ballot = ballot_of(agent, value, step=0, horizon=value.horizon, falsifier=falsifier_of(value))
                if claim := session.agent(agent).claim:
                    ballot = ballot.model_copy(update={"claim": claim})
                floor.openings[agent], floor.claims[agent] = ballot, ballot.claim
            else:
                floor.missing[agent] = reply
            floor.members[agent] = Member(Interests(interests or keywords(session.task)[:5]))
        return list(replies)

    async def _debate(self, floor: Floor) -> None:
        """The exchange itself, in virtual time."""
        moderator, clock = Moderator(floor), floor.session.clock
        present = [agent for agent in floor.debaters if agent in floor.openings]

        async def begin() -> None:
            in_dispute = disputed(floor.framing, [floor.openings[agent].positions for agent in present])
            floor.duration_ms = self.duration_limit(len(in_dispute)) * 1000
            for n in in_dispute:
                await floor.open_thread(floor.framing.propositions[n], present)
            await watch(moderator)

        clock.spawn("moderator", begin())
        for agent in present:
            clock.spawn(agent, Debater(floor, moderator, agent).take_part())
        await clock.run()
        floor.closed = True
        at = floor.now
        for thread in floor.active:
            moderator.crystallizer.extract(thread)
        await moderator.crystallizer.finish()
        floor.unopened = moderator.spawning.unopened()
        floor.note(GlobalConvergence(at=at, reason=floor.over or "limit"))

    async def _vote(self, floor: Floor) -> DebateBallots:
        """Every debater's sealed final position."""
        async with floor.session.phase("final", 1):
            return cast(floor, await floor.session.gather(self._final_asks(floor)), floor.asked)

    def _final_asks(self, floor: Floor) -> list[Ask[Any]]:
        """The final ballots: on the propositions, on the question of every thread that has one, and on the candidates for common
        ground."""
        session, propositions = floor.session, floor.framing.propositions
        threads_asked, common = floor.asked, tuple(candidate.statement for candidate in floor.fold.candidates)
        return [
            session.ask(
                agent,
                aside(
                    session,
                    session.render_template(
                        "final",
                        letter=floor.letters[agent],
                        seat=session.agent(agent).introduction(),
                        propositions=propositions,
                        questions=tuple(thread.question or "" for thread in threads_asked),
                        common=common,
                        claim=floor.openings[agent].claim,
                        opening=floor.openings[agent].positions,
                    ),
                    floor.overview(),
                ),
                key=f"final/{agent}",
                returns=ballot_type(FinalReply, len(propositions), len(threads_asked), len(common)),
                kind="ballot",
                audience=("crystallizer",),
                quoted=ballot_words,
            )
            for agent in floor.debaters
            if agent in floor.openings
        ]

    async def _close(self, floor: Floor, run: DebateRun) -> Reply[ClosingReply] | Failure:
        """The answer to the task, by a seat that took no side."""
        session = floor.session
        letters = floor.letters
        final = run.last_ballots
        latest = {**floor.openings, **run.final}
        voted = {ballot.agent for ballot in final}
        earlier = tuple(ballot for agent, ballot in latest.items() if agent not in voted)
        quotes = tuple(Quote(ballot.key, letters[ballot.agent]) for ballot in (*final, *earlier))
        cruxes = tuple(f"q{n}: {thread.question}" for n, thread in enumerate(floor.asked, 1))
        confirmed, denied = votes_on_candidates(floor, run.final)
        words = session.render_template(
            "closing",
            propositions=floor.framing.propositions,
            cruxes=cruxes,
            common=tuple(candidate.statement for candidate in confirmed),
            denied=tuple((candidate.statement, tuple(letters[a] for a in agents)) for candidate, agents in denied),
            ballots=tuple(letters[ballot.agent] for ballot in final),
            earlier=tuple(letters[ballot.agent] for ballot in earlier),
            missing=tuple(sorted((letters[f.agent], FAILURES[f.kind]) for f in floor.missing.values())),
            falsifiers=tuple(
                (letters[agent], ballot.falsifier.words())
                for agent, ballot in floor.openings.items()
                if ballot.falsifier
            ),
            again=self._corrections(floor, run),
            facts=self.new_facts,
        )
        async with session.phase("closing", 1):
            return await session.ask(
                "crystallizer",
                aside(session, words, (), (*quotes, *floor.key_quotes())),
                key="closing",
                returns=ballot_type(ClosingReply, len(floor.framing.propositions)),
                kind="closing",
                closing=True,
            )

    def _corrections(self, floor: Floor, run: DebateRun) -> tuple[tuple[str, str], ...]:
        """Letter and words of each agent whose final ballot counts otherwise than it was cast; none after a new fact."""
        corrections = (
            (floor.letters[agent], ", ".join(again_words(floor, agent, floor.asked))) for agent in floor.debaters
        )
        return () if run.told else tuple((letter, words) for letter, words in corrections if words)


def disputed(framing: Framing, ballots: Sequence[Sequence[Side]]) -> list[int]:
    """Return the propositions that get a thread, by their sealed opening ballots: those on which firm agents differ. Options that
    divide the agents in the same way are one dispute: the first stands for them. Where nothing is split, the proposition with
    fewest agents on one side."""
    columns = list(zip(*ballots, strict=True))
    split = [n for n, sides in enumerate(columns) if {"YES", "NO"} <= set(sides)]
    if framing.form == "choose one":
        divisions = [{columns[n], tuple(_OTHER_SIDE[side] for side in columns[n])} for n in split]
        split = [n for place, n in enumerate(split) if divisions.index(divisions[place]) == place]
    if split or not columns:
        return split
    return [min(range(len(columns)), key=lambda n: max(columns[n].count(side) for side in ("YES", "NO")))]
