"""`emergence`, its settings and its algorithm, as the seed describes it:

leaf_respond → lateral_leaves → [observe_Lk → lateral_Lk] → observe_root → signal_down → check_convergence → … → finalize

`rounds` has the calls of a round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from consilience.domain.detail import Detail
from consilience.domain.messages import LeafReply
from consilience.domain.outcome import Check, Estimate, StopReason
from consilience.domain.positions import BallotReply, one_sided, unchanged
from consilience.domain.validation import Unfit
from consilience.engine.conditions import ConditionInput, StopCondition, TextStable
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.answers import BallotPattern
from consilience.protocols._common.conclusion import count_ballots, read_ballot, step_limit, with_position
from consilience.protocols._common.remarks import NOTES
from consilience.protocols._common.trees import (
    ROOT,
    AnonymousPeers,
    Perspectives,
    StrangeLoops,
    TreeProtocol,
    peer_labels,
)
from consilience.protocols.emergence.report import EmergenceReport, conclude
from consilience.protocols.emergence.rounds import PERSPECTIVES, Nudge, RoundRun
from consilience.protocols.emergence.turns import (
    EmergenceRun,
    ObservationReply,
    PeerReply,
    RevisitReply,
    RootReply,
    RootRevision,
    RoundResult,
)

BRIEF_MAX_ROUNDS = 2
"""Rounds of models that are asked briefly."""

TESTS = ("declared", "jaccard", "embedding", "positions", "judge")


class Emergence(TreeProtocol):
    """Tree of integrator, coordinators and specialists; rounds until the root's text, or the leaves' positions, are stable."""

    roles: ClassVar[tuple[str, str, str]] = ("integrator", "coordinator", "specialist")

    name: ClassVar[str] = "emergence"
    summary: ClassVar[str] = (
        "specialists answer alone, then object to each other and revise, in rounds; an integrator decides"
    )
    # 1 measured what is new in the answer by the first texts alone; 2 converged over silent seats, failed calls and a cut answer;
    # 3 showed no objection to its target, quoted no points, and stopped by the similarity of the root's texts;
    # 4 searched the answer for its position
    version: ClassVar[int] = 5
    notes: ClassVar[Mapping[str, type[BaseModel]]] = NOTES
    report: ClassVar[type[EmergenceReport]] = EmergenceReport
    phase_names: ClassVar[tuple[str, ...]] = (
        "leaf_respond",
        "lateral_leaves",
        "lateral_L*",
        "observe_L*",
        "observe_root",
        "signal_down",
        "check_convergence",
        "ballot",
        "finalize",
    )
    must_be_read: ClassVar[frozenset[str]] = frozenset({"nudge"})
    closing: ClassVar[bool] = True

    max_rounds: Annotated[int, Field(ge=1, le=100, description="max rounds")] = 5
    threshold: Annotated[
        float, Field(ge=0, le=1, description="similarity at which jaccard, embedding or judge stops the run")
    ] = 0.85
    similarity: Annotated[
        str,
        Field(
            description="stop test: auto, declared, positions, jaccard, embedding or judge; several joined by & or |"
        ),
    ] = "auto"
    signals: Annotated[bool, Field(description="parents nudge their children between rounds")] = True
    strange_loops: StrangeLoops = 0
    domain_instructions: Annotated[
        str, Field(max_length=20_000, description="instructions for one more self-review, the last")
    ] = ""
    perspectives: Perspectives = tuple(PERSPECTIVES)
    leaf_reask: Annotated[bool, Field(description="ask every leaf in every round, nudge or not")] = True
    answer_pattern: BallotPattern = ""
    anonymous_peers: AnonymousPeers = True
    fallback: Annotated[Literal["none", "vote"], Field(description="how to decide if ballots stay split")] = "none"

    async def run(self, session: Session) -> EmergenceReport:
        run = EmergenceRun(labels=peer_labels(session.topology, self.anonymous_peers))
        limit = step_limit(session, self.max_rounds)
        stop = StopReason.EXHAUSTED_STEPS
        for index in range(1, limit + 1):
            work = self._run_round(session, run, index)
            result = await session.settled("round", index, RoundResult, work, replies=self._reply_types)
            await self._add_round(session, run, result)
            if not self._round(session, run, index, {}).is_quorum(result.turns):
                return await self._conclude(session, run, StopReason.FAILED)
            if session.limit_hit:
                break
            check = await self._check_convergence(session, run, index)
            if session.limit_hit:
                break
            if check is not None and check.met:
                stop = self._verdict(run)
                break
        await self._finalize(session, run)
        return await self._conclude(session, run, stop)

    def _round(self, session: Session, run: EmergenceRun, index: int, nudges: Mapping[str, Nudge]) -> RoundRun:
        """Return the round after those recorded in `run`, or the last of them again."""
        previous = run.rounds[-1] if run.rounds else {}
        ends = index == step_limit(session, self.max_rounds) and not self._reviews
        return RoundRun(
            session, self.answer_pattern, self.leaf_reask, index, previous, nudges, run.labels, run.book, ends
        )

    @property
    def _reviews(self) -> int:
        """Self-reviews of the root after the last round."""
        return self.strange_loops + bool(self.domain_instructions)

    async def _run_round(self, session: Session, run: EmergenceRun, index: int) -> RoundResult:
        """signal_down, then leaf_respond, lateral and observe, from the leaves to the root; and await the ballots cast in it."""
        nudges = await self._signal_down(session, run, index - 1) if self.signals and index > 1 else {}
        result = await self._round(session, run, index, nudges).family(ROOT)
        sent = {node: await pending for node, pending in nudges.items()}
        cast = {key: await pending for key, pending in result.ballots.items()}
        ballots = {
            step: {leaf: reply for (n, leaf), reply in cast.items() if n == step and isinstance(reply, Reply)}
            for step in sorted({step for step, _ in cast})
        }
        return RoundResult(result.turns, sent, ballots)

    @property
    def _reply_types(self) -> tuple[type[BaseModel], ...]:
        """The types of the replies of a round."""
        of_root = [with_position(reply, self.answer_pattern) for reply in (RootReply, RootRevision)]
        return (
            LeafReply,
            RevisitReply,
            ObservationReply,
            PeerReply,
            with_position(BallotReply, self.answer_pattern),
            *of_root,
        )

    async def _add_round(self, session: Session, run: EmergenceRun, result: RoundResult) -> None:
        """Record a round: the nudges it began with, turns, failures, objections, the root's text and the ballots cast in it."""
        run.nudges.append({node: reply for node, reply in result.nudges.items() if isinstance(reply, Reply)})
        turns = {turn.agent: turn for turn in result.turns}
        run.rounds.append(turns)
        in_order = [turns[agent] for agent in session.topology.agents]
        run.book.raised(objection for turn in in_order for objection in turn.objections)
        run.book.met([met for turn in in_order for met in turn.met])
        run.left_out = sum((turn.left_out for turn in in_order), run.left_out)
        if (answer := turns[ROOT].response) is not None:
            run.closing = answer
            run.texts.append(answer)
        failed = [reply for reply in result.nudges.values() if isinstance(reply, Failure)]
        failed += [failure for turn in turns.values() for failure in turn.failures]
        for step, cast in result.ballots.items():
            ballots = {
                leaf: await read_ballot(session, self.answer_pattern, run.spellings, step, reply)
                for leaf, reply in cast.items()
            }
            run.ballots.append({leaf: ballot for leaf, ballot in ballots.items() if ballot is not None})
        run.silences = tuple(self._silences(session, run, failed))

    def _silences(self, session: Session, run: EmergenceRun, failed: Sequence[Failure]) -> Iterator[str]:
        """Yield why no stop test can be met in the last round: an agent that spoke in it or in the round before did not reply, or
        not to all calls, nudges included. Of the ballots a quorum is enough."""
        if len(run.rounds) < 2:
            return
        before, now = run.rounds[-2:]
        leaves = session.topology.leaves
        speaking = sum(now[leaf].spoke for leaf in leaves)
        index = len(run.rounds)
        missing_by_agent: dict[str, list[str]] = {}
        for agent, turn in now.items():
            if before[agent].spoke and not turn.spoke:
                missing_by_agent.setdefault(f"silent in round {index}", []).append(agent)
            elif before[agent].spoke or turn.replied:
                for missing_reply in dict.fromkeys(_missing_reply(f.key, index) for f in failed if f.agent == agent):
                    missing_by_agent.setdefault(missing_reply, []).append(agent)
        yield from (f"{missing_reply}: {', '.join(agents)}" for missing_reply, agents in missing_by_agent.items())
        if not session.is_quorum(speaking, len(leaves)):
            yield f"{'only ' if speaking else ''}{speaking} of {len(leaves)} specialists spoke in round {index}"
        if self.answer_pattern and not session.is_quorum(len(run.ballots[-1]), len(leaves)):
            yield f"only {len(run.ballots[-1])} of {len(leaves)} ballots of round {index} could be read"

    async def _check_convergence(self, session: Session, run: EmergenceRun, index: int) -> Check | None:
        """Apply the stop test from round 2 on, if the root gave a text in this round."""
        check = None
        if index >= 2 and len(run.texts) >= 2 and run.rounds[-1][ROOT].response is not None:
            async with session.phase("check_convergence", index):
                progress = ConditionInput(index, run.texts, run.ballots, len(session.topology.leaves))
                check = (await self.stop_test(run).check(session, progress)).vetoed(*run.silences)
            session.record_check(check, index)
        run.checks.append(check)
        return check

    def _verdict(self, run: EmergenceRun) -> StopReason:
        """A met stop test is `stalled` if the last ballots differ or, where declarations decide, an objection stands."""
        split = bool(run.held) and not one_sided(run.held)
        objected = "declared" in self.chosen_test and run.book.count("stands") > 0
        return StopReason.STALLED if split or objected else StopReason.CONVERGED

    async def _signal_down(self, session: Session, run: EmergenceRun, index: int) -> dict[str, Nudge]:
        """After a round every parent with a text nudges its children. A child waits for its own parent's nudge only."""
        round_run, turns, sent = self._round(session, run, index, {}), run.rounds[-1], dict[str, Nudge]()
        async with session.phase("signal_down", index):
            for node in session.topology.agents:
                children = [turns[child] for child in session.topology.children[node]]
                own_text = turns[node].text
                if children and own_text is not None:
                    sent[node] = session.start(round_run.ask_nudge(node, children, own_text))
        return sent

    async def _finalize(self, session: Session, run: EmergenceRun) -> None:
        """Self-reviews of the root, each of the last result. Domain instructions appear in the last one only."""
        for n in range(1, self._reviews + 1):
            if run.closing is None:
                return
            last_round = self._round(session, run, len(run.rounds), {})
            domain = self.domain_instructions if n == self._reviews else ""
            async with session.phase("finalize", n):
                prompt = last_round.review_prompt(run.closing, domain)
                reply = await session.ask(
                    ROOT,
                    prompt,
                    key=f"finalize/{n}",
                    returns=with_position(RootRevision, self.answer_pattern),
                    closing=n == self._reviews,
                )
                if isinstance(reply, Reply):
                    run.book.met(last_round.rulings(reply))
            run.add_review(reply, task=session.task, domain=bool(domain))

    async def _conclude(self, session: Session, run: EmergenceRun, stop: StopReason) -> EmergenceReport:
        """The pool of ballots decides if it may and positions stayed split."""
        split = self.fallback == "vote" and not one_sided(run.held)
        positions = await count_ballots(session, run.all_ballots, self.answer_pattern, run.closing, pool_decides=split)
        return await conclude(session, run, stop, positions, bool(self.answer_pattern), self.threshold)

    # what follows from the settings

    def with_detail(self, detail: Detail) -> Self:
        """Small models are slow and gain nothing from many rounds: two at most, unless the settings name a number."""
        bounded = detail == "brief" and "max_rounds" not in self.model_fields_set
        changes = {"max_rounds": min(self.max_rounds, BRIEF_MAX_ROUNDS)} if bounded else {}
        return super().with_detail(detail).model_copy(update=changes)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        tests = re.split(r"\s*[&|]\s*", self.similarity.strip())
        if tests.count("judge") > 1:
            raise Unfit("similarity: name 'judge' once; each mention is a paid call", "similarity")
        for test in tests:
            if test not in ("auto", *TESTS):
                raise Unfit(f"similarity: {test!r} is not one of auto, {', '.join(TESTS)}", "similarity")
            if test == "positions" and not self.answer_pattern:
                raise Unfit("similarity 'positions' compares ballots, which need an answer_pattern", "similarity")
        if self.fallback == "vote" and not self.answer_pattern:
            raise Unfit("fallback 'vote' counts ballots, which need an answer_pattern", "fallback")
        return self

    @property
    def chosen_test(self) -> str:
        """The similarity with `auto` decided."""
        return self.similarity.replace("auto", "positions" if self.answer_pattern else "declared")

    @property
    def needs_encoder(self) -> bool:
        return "embedding" in self.chosen_test

    @property
    def max_quoted_replies(self) -> int:
        """A text of every child, and at parents of parents objections from another reply; points and answers below these texts, a
        quarter of their length; own text and nudge, and at a coordinator an earlier text."""
        replies, own_texts = (2, 4) if self.depth > 2 else (1, 2)
        return self.children * replies + math.ceil(self.children / 4) + own_texts

    @property
    def points_of_view(self) -> tuple[str, ...]:
        return self.perspectives

    def stop_test(self, run: EmergenceRun) -> StopCondition:
        """Return the test of the last round. `|` binds weaker than `&`, as in Python."""
        alternatives = [
            reduce(and_, [self._single_test(test.strip(), run) for test in part.split("&")])
            for part in self.chosen_test.split("|")
        ]
        return reduce(or_, alternatives)

    def _single_test(self, test: str, run: EmergenceRun) -> StopCondition:
        if test == "declared":
            speaking = [turn for turn in run.rounds[-1].values() if turn.spoke]
            return StanceKept(sum(turn.kept for turn in speaking), len(speaking), run.book.count("unanswered"))
        if test == "positions":
            return PositionsSettled()
        if test == "judge":
            return JudgedSame(self.threshold)
        return TextStable("embedding" if test == "embedding" else "jaccard", self.threshold)

    def calls(self, rounds: int) -> int:
        """Return the calls of that many rounds in which every call is answered and no text reused (protocols §1)."""
        leaves = self.count_agents(self.depth, self.depth)
        internal = self.count_agents(2, self.depth - 1)
        lateral = leaves + internal if self.children > 1 else 0
        nudges = internal + 1 if self.signals else 0
        total = rounds * (leaves + lateral + internal + 1) + (rounds - 1) * nudges
        total += self._reviews
        total += self.chosen_test.count("judge") * (rounds - 1)
        return total + (leaves * (1 + rounds) if self.answer_pattern else 0)

    def estimate(self) -> Estimate:
        """With `leaf_reask` off a text is reused unless there is a nudge or an objection."""
        rounds = min(2, self.max_rounds)
        reused = 0 if self.leaf_reask or self.signals else (rounds - 1) * self.count_agents(self.depth, self.depth)
        return Estimate(min=self.calls(rounds) - reused, max=self.calls(self.max_rounds))


def _missing_reply(key: str, index: int) -> str:
    """Return what a failed call leaves out in round `index`."""
    if "/signal/" in key:
        return f"no nudge after round {index - 1}"
    return f"{'no reply' if '/lateral/' in key else 'replied only'} to siblings in round {index}"


@dataclass(frozen=True)
class StanceKept(StopCondition):
    """Every agent that spoke in the round declares its answer unchanged, and no objection waits for its target (protocols §1)."""

    kept: int
    speaking: int
    waiting: int
    """Objections that wait for their target."""

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        return Check(
            met=self.speaking > 0 and self.kept == self.speaking and not self.waiting,
            kind="declared",
            score=self.kept / self.speaking if self.speaking else None,
            threshold=1.0,
            detail=self._described(),
        )

    def _described(self) -> str:
        keep = "agent keeps its answer" if self.kept == 1 else "agents keep their answers"
        words = f"{self.kept} of {self.speaking} {keep}; all must" if self.kept < self.speaking else ""
        waiting = f"objections that wait for their target: {self.waiting}" if self.waiting else ""
        return "; ".join(filter(None, (words, waiting)))


@dataclass(frozen=True)
class PositionsSettled(StopCondition):
    """No ballot changed side and no confidence moved since the step before (protocols §0), and a quorum cast one."""

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        before, after = progress.ballots[-2:]
        score = unchanged(before, after)
        quorum = session.is_quorum(len(after), progress.voters)
        detail = "" if quorum else f"ballots that could be read: {len(after)} of {progress.voters}, which is no quorum"
        return Check(met=quorum and score == 1.0, kind="positions", score=score, threshold=1.0, detail=detail)


class SamenessReply(BaseModel):
    """How much the second text changes the first."""

    sameness: Literal["different", "similar", "same"]


SAMENESS: Mapping[str, float] = {"different": 0.0, "similar": 0.5, "same": 1.0}


@dataclass(frozen=True)
class JudgedSame(StopCondition):
    """The root's model compares the root's last two texts; one call, from the template `judge`."""

    threshold: float

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        before, after = progress.texts[-2:]
        reply = await session.ask(
            ROOT,
            Prompt(session.render_template("judge"), (session.quote(before, "before"), session.quote(after, "after"))),
            key=f"round-{progress.step}/judge",
            returns=SamenessReply,
            kind="judgement",
        )
        if not isinstance(reply, Reply):
            return Check(met=False, kind="judge", threshold=self.threshold, detail=f"no judgement: {reply.kind.value}")
        score = SAMENESS[reply.value.sameness]
        return Check(met=score >= self.threshold, kind="judge", score=score, threshold=self.threshold)
