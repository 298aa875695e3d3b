"""The algorithm of `emergence`, top to bottom as the seed describes it:

leaf_respond → lateral_leaves → [observe_Lk → lateral_Lk] → observe_root → signal_down → check_convergence → … → finalize
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel

from consilience.domain.outcome import Check, StopReason
from consilience.domain.positions import Ballot, BallotReply, one_sided
from consilience.domain.report import StrangeLoop
from consilience.engine.conditions import ConditionInput
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols._common.answers import extract_declared
from consilience.protocols._common.trees import ROOT, path_labels
from consilience.protocols.emergence.course import Course
from consilience.protocols.emergence.declared import Declared
from consilience.protocols.emergence.objections import NOTES
from consilience.protocols.emergence.outcome import conclude
from consilience.protocols.emergence.replies import RootRevision
from consilience.protocols.emergence.report import EmergenceReport
from consilience.protocols.emergence.rounds import RoundRun
from consilience.protocols.emergence.settings import Settings
from consilience.protocols.emergence.turns import FamilyResult, Nudge, Turn


class Emergence(Settings):
    """Tree of integrator, coordinators and specialists; rounds until the root's text, or the leaves' positions, are stable."""

    # 1 measured what is new in the answer by the first texts alone; 2 converged over silent seats, failed calls and a cut answer;
    # 3 showed no objection to its target, quoted no points, and stopped by the similarity of the root's texts
    version: ClassVar[int] = 4
    notes: ClassVar[Mapping[str, type[BaseModel]]] = NOTES
    report: ClassVar[type[EmergenceReport]] = EmergenceReport
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> EmergenceReport:
        course = Course(self._labels(session))
        rounds = self.max_rounds if session.limits.steps is None else min(self.max_rounds, session.limits.steps)
        stop = StopReason.EXHAUSTED_STEPS
        nudges: dict[str, Nudge] = {}
        for index in range(1, rounds + 1):
            previous = course.rounds[-1] if course.rounds else {}
            run = self._round(session, course, index, previous, nudges)
            result = await run.family(ROOT)
            await self._gather_in(session, course, result, nudges)
            if not run.quorum(list(result.below)):
                stop = StopReason.FAILED
                break
            if course.exhausted:
                stop = course.exhausted
                break
            check = await self._check_convergence(session, course, index)
            if course.exhausted:
                stop = course.exhausted
                break
            if check is not None and check.met:
                stop = self._met(course)
                break
            nudges = await self._signal_down(run, result) if self.signals and index < rounds else {}
        if stop is not StopReason.FAILED:
            await self._finalize(session, course)
            stop = course.exhausted or stop
        if course.closing is None and stop is not StopReason.FAILED and not course.exhausted and rounds:
            stop = StopReason.FAILED
        return await conclude(session, self, course, stop)

    def _round(
        self, session: Session, course: Course, index: int, previous: Mapping[str, Turn], nudges: Mapping[str, Nudge]
    ) -> RoundRun:
        return RoundRun(session, self, index, previous, nudges, course.labels, course.book)

    def _labels(self, session: Session) -> Mapping[str, str]:
        topology = session.topology
        return path_labels(topology) if self.anonymous_peers else {agent: agent for agent in topology.agents}

    async def _gather_in(
        self, session: Session, course: Course, result: FamilyResult, nudges: Mapping[str, Nudge]
    ) -> None:
        """Take in a round: the nudges it began with, turns, refusals, objections, the root's text, the ballots cast in it."""
        before = len(course.failures)
        sent = {node: await pending for node, pending in nudges.items()}
        course.nudges.append({node: reply for node, reply in sent.items() if isinstance(reply, Reply)})
        course.failures.extend(reply for reply in sent.values() if isinstance(reply, Failure))
        turns = {turn.agent: turn for turn in result.turns}
        course.rounds.append(turns)
        course.book.add([turns[agent] for agent in session.topology.agents])
        course.failures.extend(failure for turn in turns.values() for failure in turn.failures)
        if result.top.response is not None:
            course.texts.append(result.top.response)
            course.closing = course.texts[-1]
        for step in sorted({step for step, _ in result.ballots}):
            cast = {leaf: await pending for (s, leaf), pending in result.ballots.items() if s == step}
            course.failures.extend(reply for reply in cast.values() if isinstance(reply, Failure))
            course.ballots.append(
                {leaf: self._ballot(session, step, reply) for leaf, reply in cast.items() if isinstance(reply, Reply)}
            )
        failed = [failure for failure in course.failures[before:] if "/ballot/" not in failure.key]
        course.silences = tuple(self._silences(session, course, failed))

    def _silences(self, session: Session, course: Course, failed: Sequence[Failure]) -> Iterator[str]:
        """Why no test can be met in the last round: a seat that spoke in it or in the one before gave nothing, or not all that it
        was asked for, nudges included. Of ballots a quorum is enough."""
        if len(course.rounds) < 2:
            return
        before, now = course.rounds[-2:]
        leaves = session.topology.leaves
        speaking = sum(now[leaf].spoke for leaf in leaves)
        index = len(course.rounds)
        lacking: dict[str, list[str]] = {}
        for agent, turn in now.items():
            if before[agent].spoke and not turn.spoke:
                lacking.setdefault(f"silent in round {index}", []).append(agent)
            elif before[agent].spoke or turn.replied:
                for what in dict.fromkeys(_lack(one.key, index) for one in failed if one.agent == agent):
                    lacking.setdefault(what, []).append(agent)
        yield from (f"{what}: {', '.join(agents)}" for what, agents in lacking.items())
        if not session.quorate(speaking, len(leaves)):
            yield f"only {speaking} of {len(leaves)} specialists spoke in round {index}"
        if self.ballots and not session.quorate(len(course.ballots[-1]), len(leaves)):
            yield f"only {len(course.ballots[-1])} of {len(leaves)} ballots of round {index} could be read"

    def _ballot(self, session: Session, step: int, reply: Reply[BallotReply]) -> Ballot:
        value = reply.value
        cause = next(iter(session.named(reply, [value.cause])), None) if value.cause else None
        position = extract_declared(self.answer_pattern, value.position)
        assert position is not None
        return Ballot(
            agent=reply.agent,
            step=step,
            position=position,
            confidence=value.confidence,
            reason=value.reason,
            cause=cause,
        )

    async def _check_convergence(self, session: Session, course: Course, index: int) -> Check | None:
        """Judge once the root has a text of round 2 or later; the first round, and one without a text, judge nothing."""
        check = None
        if index >= 2 and len(course.texts) >= 2 and course.rounds[-1][ROOT].response is not None:
            async with session.phase("check_convergence", index):
                progress = ConditionInput(index, course.texts, course.ballots, len(session.topology.leaves))
                condition = self.condition(Declared(tuple(course.rounds[-1].values()), course.book.waiting))
                check = (await condition.check(session, progress)).vetoed(*course.silences)
                course.failures.extend(progress.failures)
            session.record_check(check, index)
        course.checks.append(check)
        return check

    def _met(self, course: Course) -> StopReason:
        """Nothing has converged while the last ballots differ, whatever has come to rest, or, where declarations decide, while an
        objection stands."""
        held = course.held
        objected = "declared" in self.kind and bool(course.book.standing)
        return StopReason.CONVERGED if (not held or one_sided(held)) and not objected else StopReason.STALLED

    async def _signal_down(self, run: RoundRun, result: FamilyResult) -> dict[str, Nudge]:
        """Every parent with a text of its own nudges its children; each child waits for its own parent's nudge only."""
        turns = {turn.agent: turn for turn in result.turns}
        sent: dict[str, Nudge] = {}
        async with run.session.phase("signal_down", run.index):
            for node in run.session.topology.agents:
                children = run.session.topology.children[node]
                own = turns[node].text
                if children and own is not None:
                    sent[node] = run.session.start(run.nudge_ask(node, [turns[c] for c in children], own))
        return sent

    async def _finalize(self, session: Session, course: Course) -> None:
        """Self-reviews of the root, each from the last result; domain instructions appear in the last one only."""
        reviews = self.strange_loops + bool(self.domain_instructions)
        for n in range(1, reviews + 1):
            if course.closing is None:
                return
            domain = n == reviews and bool(self.domain_instructions)
            async with session.phase("finalize", n):
                reply = await self._review(session, course, n, domain, last=n == reviews)
                if isinstance(reply, Reply):
                    course.book.met += self._last_round(session, course).rulings(reply)
            after = reply.text if isinstance(reply, Reply) else None
            course.loops.append(StrangeLoop(index=n, before=course.closing.text, after=after, domain=domain))
            if isinstance(reply, Reply):
                course.closing = reply
                course.reviews.append(reply)
            else:
                course.failures.append(reply)

    def _review(self, session: Session, course: Course, n: int, domain: bool, *, last: bool) -> Ask[RootRevision]:
        assert course.closing is not None
        domain_words = self.domain_instructions if domain else ""
        prompt = self._last_round(session, course).review_prompt(course.closing, domain_words)
        return session.ask(ROOT, prompt, key=f"finalize/{n}", returns=RootRevision, closing=last)

    def _last_round(self, session: Session, course: Course) -> RoundRun:
        return self._round(session, course, len(course.rounds), course.rounds[-1], {})


def _lack(key: str, index: int) -> str:
    """What a failed call of an agent that spoke in round `index` leaves out."""
    if "/signal/" in key:
        return f"no nudge after round {index - 1}"
    return f"no reply {'to siblings' if '/lateral/' in key else 'but to siblings'} in round {index}"
