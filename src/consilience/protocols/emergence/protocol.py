"""The algorithm of `emergence`, top to bottom as the seed describes it:

leaf_respond → lateral_leaves → [observe_Lk → lateral_Lk] → observe_root → signal_down → check_convergence → … → finalize
"""

from __future__ import annotations

from typing import ClassVar

from consilience.domain.outcome import Check, StopReason
from consilience.domain.positions import Ballot, BallotReply, one_sided
from consilience.domain.report import StrangeLoop
from consilience.engine.answers import extract
from consilience.engine.conditions import Progress
from consilience.engine.session import Session
from consilience.engine.trees import ROOT
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols.emergence.course import Course
from consilience.protocols.emergence.outcome import conclude
from consilience.protocols.emergence.replies import ReviewReply, RootReply
from consilience.protocols.emergence.report import EmergenceReport
from consilience.protocols.emergence.rounds import Harvest, Nudge, Observe, RoundRun, Turn
from consilience.protocols.emergence.settings import Settings


class Emergence(Settings):
    """Tree of integrator, coordinators and specialists; rounds until the root's text, or the leaves' positions, are stable."""

    version: ClassVar[int] = 2  # 1 measured what is new in the answer by the first texts alone
    report: ClassVar[type[EmergenceReport]] = EmergenceReport

    async def run(self, session: Session) -> EmergenceReport:
        course = Course()
        rounds = self.max_rounds if session.limits.steps is None else min(self.max_rounds, session.limits.steps)
        stop = StopReason.EXHAUSTED_STEPS
        nudges: dict[str, Nudge] = {}
        for index in range(1, rounds + 1):
            previous = course.rounds[-1] if course.rounds else {}
            run = RoundRun(session, self, index, previous, nudges)
            harvest = await run.family(ROOT, self._observe_root(run))
            await self._gather_in(session, course, harvest, nudges)
            if not run.quorum(list(harvest.below)):
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
            nudges = await self._signal_down(run, harvest) if self.signals and index < rounds else {}
        if stop is not StopReason.FAILED:
            await self._finalize(session, course)
            stop = course.exhausted or stop
        if course.closing is None and stop is not StopReason.FAILED and not course.exhausted and rounds:
            stop = StopReason.FAILED
        return await conclude(session, self, course, stop)

    def _observe_root(self, run: RoundRun) -> Observe:
        """The root's observation, which may be the answer and may draw on the reserve."""

        def observe(node: str, children: list[Turn], nudge: Reply[str] | None) -> Ask[RootReply]:
            return run.session.ask(
                node,
                run.observe_prompt("observe_root", node, children, nudge),
                key=f"round-{run.index}/observe/{node}",
                returns=RootReply,
                closing=True,
                max_tokens=self.reply_tokens,
            )

        return observe

    async def _gather_in(self, session: Session, course: Course, harvest: Harvest, nudges: dict[str, Nudge]) -> None:
        """Take in a round: the nudges it began with, turns, refusals, the root's text, the ballots cast in it."""
        sent = {node: await pending for node, pending in nudges.items()}
        course.nudges.append({node: reply for node, reply in sent.items() if isinstance(reply, Reply)})
        course.failures.extend(reply for reply in sent.values() if isinstance(reply, Failure))
        turns = {turn.agent: turn for turn in harvest.turns}
        course.rounds.append(turns)
        course.failures.extend(failure for turn in turns.values() for failure in turn.failures)
        if harvest.top.response is not None:
            course.texts.append(harvest.top.response)  # type: ignore[arg-type]
            course.closing = course.texts[-1]
        for step in sorted({step for step, _ in harvest.ballots}):
            cast = {leaf: await pending for (s, leaf), pending in harvest.ballots.items() if s == step}
            course.failures.extend(reply for reply in cast.values() if isinstance(reply, Failure))
            course.ballots.append(
                {leaf: self._ballot(session, step, reply) for leaf, reply in cast.items() if isinstance(reply, Reply)}
            )

    def _ballot(self, session: Session, step: int, reply: Reply[BallotReply]) -> Ballot:
        value = reply.value
        cause = next(iter(session.named(reply, [value.cause])), None) if value.cause else None
        position = extract(self.answer_pattern, value.position)
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
                progress = Progress(index, course.texts, course.ballots, len(session.topology.leaves))
                check = await self.condition().check(session, progress)
                course.failures.extend(progress.failures)
            session.record_check(check, index)
        course.checks.append(check)
        return check

    def _met(self, course: Course) -> StopReason:
        """Where the last ballots differ nothing has converged, whatever has come to rest."""
        held = course.held
        return StopReason.CONVERGED if not held or one_sided(held) else StopReason.STALLED

    async def _signal_down(self, run: RoundRun, harvest: Harvest) -> dict[str, Nudge]:
        """Every parent with a text of its own nudges its children; each child waits for its own parent's nudge only."""
        turns = {turn.agent: turn for turn in harvest.turns}
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
            after = reply.text if isinstance(reply, Reply) else None
            course.loops.append(StrangeLoop(index=n, before=course.closing.text, after=after, domain=domain))
            if isinstance(reply, Reply):
                course.closing = reply
                course.reviews.append(reply)
            else:
                course.failures.append(reply)

    def _review(self, session: Session, course: Course, n: int, domain: bool, *, last: bool) -> Ask[ReviewReply]:
        assert course.closing is not None
        run = RoundRun(session, self, len(course.rounds), course.rounds[-1], {})
        children = [course.rounds[-1][child] for child in session.topology.children[ROOT]]
        prompt = run.review_prompt(children, course.closing, self.domain_instructions if domain else "")
        return session.ask(
            ROOT, prompt, key=f"finalize/{n}", returns=ReviewReply, closing=last, max_tokens=self.reply_tokens
        )
