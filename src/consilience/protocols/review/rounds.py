"""A review as far as it has come: who has reviewed what, how each iteration was judged, and what became of the findings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from consilience.coordination.convergence import (
    RETRY_TTL_FACTOR,
    ConvergenceCheck,
    evaluate_partial,
    judge_iteration,
    refinement,
    threshold_at,
)
from consilience.coordination.waiting import timeout_after
from consilience.domain.findings import BallotCast
from consilience.domain.messages import Message
from consilience.domain.outcome import Check, FailureKind
from consilience.engine.quorum import Claims, Quorum
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import publish_from
from consilience.protocols.review.ballots import MAX_BALLOTS, by_strictness
from consilience.protocols.review.findings import ClosingReply, CrossReply, FinalBallotReply, ReviewReply
from consilience.protocols.review.fold import Assignment, OpenParts, ReviewFold
from consilience.protocols.review.presenting import name_parts
from consilience.protocols.review.progress import GATES_NOTE
from consilience.protocols.review.requests import Requests
from consilience.protocols.review.rules import ruled_files
from consilience.protocols.review.settings import ReviewSettings
from consilience.protocols.review.strategies import LEAD, ROLES
from consilience.protocols.review.vetting import merged, ranked
from consilience.targets.diffs import parse_changes


@dataclass
class ReviewRun:
    """A run. Its methods are the steps of the protocol."""

    session: Session
    settings: ReviewSettings
    replies: dict[Assignment, Reply[ReviewReply]] = field(default_factory=dict)
    """The latest of each assignment."""
    missing: dict[Assignment, Failure] = field(default_factory=dict)
    """Assignments without a reply when they were last asked."""
    failures: list[Failure] = field(default_factory=list)
    evaluations: list[ConvergenceCheck] = field(default_factory=list)
    messages: dict[str, Message] = field(default_factory=dict)
    """Findings as published, by id."""
    final_ballots: dict[Assignment, BallotCast] = field(default_factory=dict)
    """Cast by judges that reviewed the part themselves."""
    votes: dict[BallotCast, Message] = field(default_factory=dict)
    """Ballots as published to the lead."""
    said_of: dict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    """Judgements as published, by the id of the finding."""
    unjudged: int = 0
    """Findings that did not fit into the prompt of a judge."""
    untold: int = 0
    """Findings that did not fit into the prompt of the lead."""
    closing: Reply[ClosingReply] | None = None
    check: Check | None = None
    """Of the last iteration."""

    def __post_init__(self) -> None:
        self.changes = parse_changes(self.session.sources)
        self.fold = ReviewFold(OpenParts(self.settings, self.session.sources))
        """The same reviews, as gates and vetting read them, and the findings."""
        self.requests = Requests(self.session, self.settings, self.changes, self.fold.open)
        self.ruled = ruled_files(self.session.sources, self.changes)
        self.parts = range(1, len(self.settings.parts) + 1)

    # --- reviewing

    @property
    def assignments(self) -> list[Assignment]:
        """All assignments, by part, without those of which nothing is open to the agent, and those that a quick review spares."""
        plan = self.settings.plan
        return [
            (agent, part)
            for part in self.parts
            for agent in plan.readers_of(part, len(self.parts))
            if self.fold.open.references(agent, part) and not self._is_spared(agent, part)
        ]

    def _is_spared(self, agent: str, part: int) -> bool:
        """Whether a quick review needs no second reader of a part: the first approved and reported nothing, and no rule of the
        project names a file of it."""
        plan = self.settings.plan
        first = self.fold.submitted.get((plan.reviewers[0], part))
        if not plan.spares_readers or agent == plan.reviewers[0] or first is None:
            return False
        if not self.ruled.isdisjoint(self.fold.open.files(agent, part)):
            return False
        return first.reply.vote == "approve" and not first.reply.findings

    async def read_in_turn(self) -> None:
        """Ask the first reviewer for a review of each part, and the second where that calls for one."""
        for reviewer in self.settings.plan.reviewers:
            await self.review(1, [assignment for assignment in self.assignments if assignment[0] == reviewer])

    @property
    def shifts(self) -> list[list[Assignment]]:
        """The assignments in the order in which each reviewer, who has one part at a time, reads them."""
        by_agent: dict[str, list[Assignment]] = defaultdict(list)
        for assignment in self.assignments:
            by_agent[assignment[0]].append(assignment)
        longest = max(map(len, by_agent.values()), default=0)
        return [[assignments[n] for assignments in by_agent.values() if n < len(assignments)] for n in range(longest)]

    async def review(self, iteration: int, assignments: Sequence[Assignment], quorum: Quorum | None = None) -> None:
        """Ask for a review at each assignment. With partial="fail" those without a reply are asked again."""
        await self._ask(iteration, assignments, quorum)
        for again in range(1, self.settings.max_requeues + 1 if self.settings.partial == "fail" else 1):
            late = [
                assignment
                for assignment in assignments
                if assignment in self.missing and assignment not in self.withdrawn
            ]
            if not late or self.session.limit_hit:
                break
            await self._ask(iteration, late, self._rest_of(quorum, assignments), again)

    async def _ask(
        self, iteration: int, assignments: Sequence[Assignment], quorum: Quorum | None, again: int = 0
    ) -> None:
        once_more = f"again-{again}/" if again else ""
        keys = {due: f"review-{iteration}/{once_more}part-{due[1]}/{due[0]}" for due in assignments}
        types = {keys[due]: self.requests.review_reply(*due) for due in assignments}
        work = self._results(iteration, keys, quorum, again)
        results = await self.session.settled(
            "review", iteration, list[Reply[ReviewReply] | Failure], work, replies=types
        )
        for assignment, result in zip(assignments, results, strict=True):
            self._receive(iteration, assignment, result)

    async def _results(
        self, iteration: int, keys: Mapping[Assignment, str], quorum: Quorum | None, again: int
    ) -> list[Reply[ReviewReply] | Failure]:
        asks = [
            self.requests.review(
                agent,
                part,
                key=key,
                prior=self.replies.get((agent, part)),
                refinement=self._refinement(agent, part),
            )
            for (agent, part), key in keys.items()
        ]
        async with self.session.phase("review", iteration, quorum=quorum, claims=self._claims(again)):
            return await self.session.gather(asks)

    def _rest_of(self, quorum: Quorum | None, assignments: Sequence[Assignment]) -> Quorum | None:
        """Return how many of the agents asked again are enough, after the replies that are there."""
        if quorum is None:
            return None
        replied = sum(assignment not in self.missing for assignment in assignments)
        return replace(quorum, agents=max(quorum.agents - replied, 1))

    def _claims(self, again: int = 0) -> Claims:
        """Return how long claims of outside agents last: longer each time that missing agents are asked again."""
        timeout, strategy = self.settings.waiting
        late = Counter(failure.agent for failure in self.failures if failure.kind is FailureKind.DEADLINE)
        seconds = {
            agent: timeout_after(late[agent], timeout, strategy) * RETRY_TTL_FACTOR**again
            for agent in self.settings.topology().agents
        }
        return Claims(seconds, max_requeues=1 if self.settings.partial == "accept" else 0)

    async def review_from_reserve(self) -> None:
        """If a limit refused every review, let the reserve pay for one: there is nothing else to close with."""
        if self.replies or not self.session.limit_hit or not self.assignments or not self.settings.closing:
            return
        agent, part = self.assignments[0]
        async with self.session.phase("review", 1):
            result = await self.requests.review(agent, part, key=f"reserve/part-{part}/{agent}", closing=True)
        self._receive(1, (agent, part), result)

    def _receive(self, iteration: int, assignment: Assignment, result: Reply[ReviewReply] | Failure) -> None:
        if isinstance(result, Failure):
            self.failures.append(result)
            self.missing[assignment] = result
            return
        self.missing.pop(assignment, None)
        self.replies[assignment] = result
        self.fold.submit(assignment, iteration, result.key, result.value)

    @property
    def withdrawn(self) -> set[Assignment]:
        """Assignments that nobody waited for any more: enough other agents had replied."""
        return {assignment for assignment, failure in self.missing.items() if failure.kind.is_withdrawn}

    @property
    def first_ballots(self) -> dict[Assignment, BallotCast]:
        """The ballots of the last reviews, cast before their agents read findings of others."""
        return {
            assignment: BallotCast(
                agent=submitted.agent,
                part=submitted.part,
                iteration=submitted.iteration,
                vote=submitted.reply.vote,
                confidence=submitted.reply.confidence,
                reason=submitted.reply.reason,
            )
            for assignment, submitted in self.fold.submitted.items()
            if submitted.reply.vote is not None
        }

    @property
    def ballots(self) -> tuple[BallotCast, ...]:
        """The last ballot of each agent on each part."""
        last = {**self.first_ballots, **self.final_ballots}
        return tuple(last[assignment] for assignment in self.fold.submitted if assignment in last)

    # --- convergence

    def evaluate(self, iteration: int, last: int) -> ConvergenceCheck:
        """Judge the gates over the latest reviews of all, and record the check. A missing agent misses every gate."""
        settings, missing = self.settings, self.missing_by_agent
        gates = settings.review_gates
        verdicts = gates.judge(list(self.fold.submitted.values()), self.session.sources, absent=tuple(missing))
        evaluation = judge_iteration(
            iteration,
            [agent for agent in settings.plan.reviewers if agent not in missing],
            missing,
            quorum=len(settings.plan.reviewers),
            verdicts=verdicts,
            threshold=threshold_at(settings.thresholds, iteration),
            is_last=iteration == last or self.session.limit_hit is not None,
            partial=settings.partial,
        )
        self.evaluations.append(evaluation)
        self.session.note(GATES_NOTE, evaluation)
        check = Check(
            met=evaluation.converged,
            kind="gates",
            score=evaluation.quality,
            threshold=evaluation.threshold,
            detail=evaluation.reason,
        )
        self.session.record_check(check, iteration)
        self.check = check
        return evaluation

    @property
    def missing_by_agent(self) -> dict[str, str]:
        """Agents without a reply at some assignment when they were last asked, each with the reasons."""
        reasons: dict[str, dict[str, None]] = defaultdict(dict)
        for (agent, _), failure in self.missing.items():
            reasons[agent][f"{failure.kind.value}: {failure.detail}" if failure.detail else failure.kind.value] = None
        return {agent: "; ".join(texts) for agent, texts in reasons.items()}

    @property
    def absent(self) -> dict[str, str]:
        """The agents that never reviewed something assigned to them, each as it follows `no review by`: with the parts if it
        reviewed others."""
        by_agent: dict[str, list[int]] = defaultdict(list)
        for agent, part in self.missing.keys() - self.replies.keys():
            by_agent[agent].append(part)
        have_reviewed = {agent for agent, _ in self.replies}
        return {
            agent: f"{agent} of {name_parts(sorted(by_agent[agent]))}" if agent in have_reviewed else agent
            for agent in self.missing_by_agent
            if agent in by_agent
        }

    @property
    def due(self) -> list[Assignment]:
        """The assignments to ask again. A written review is deepened by everyone; else only who missed a gate is asked."""
        if self.settings.review_gates.are_written:
            return self.assignments
        return [
            assignment
            for assignment in self.assignments
            if assignment in self.missing or self._shortcomings(assignment)
        ]

    def _shortcomings(self, assignment: Assignment) -> list[str]:
        submitted = self.fold.submitted.get(assignment)
        if submitted is None:
            return []
        by_gate = self.settings.review_gates.shortcomings(submitted, self.session.sources)
        return [f"{id}: {lacking}" for id, lackings in by_gate.items() for lacking in lackings]

    def _refinement(self, agent: str, part: int) -> str:
        """Return what an agent is asked to add to its review of a part, after an iteration."""
        if not self.evaluations:
            return ""
        asked = refinement(self.evaluations[-1], agent, ROLES.get(agent))
        return "\n".join([asked, *(f"  - {lacking}" for lacking in self._shortcomings((agent, part)))])

    def require_results(self) -> None:
        """Raise `CoordinationFailure` if no reviewer replied."""
        reviewers = self.settings.plan.reviewers
        evaluate_partial(
            {agent: [key for (of, _), key in self.replies.items() if of == agent] for agent in reviewers},
            self.settings.partial,
        )

    # --- cross-reading

    def vet(self) -> None:
        """Find what of the reviews stands."""
        for warning in self.fold.vet():
            self.session.warn(warning)

    async def judge(self) -> None:
        """Each judge says of findings by others whether they hold, on the documents that they are about."""
        assignments = {submitted.key: assignment for assignment, submitted in self.fold.submitted.items()}
        due: dict[Assignment, dict[str, Message]] = defaultdict(dict)
        for finding in self.fold.findings:
            judges = self.settings.plan.judges_of(finding.by)
            authors = [assignments[ref] for ref in finding.refs]
            message = self.requests.publish(finding, authors[0][0], judges)
            self.messages[finding.id] = message
            for judge in judges:
                part = next(part for author, part in authors if author in self.settings.plan.judges[judge])
                if self.fold.open.references(judge, part):
                    due[judge, part][finding.id] = message
        await self._judge(due)

    async def _judge(self, due: dict[Assignment, dict[str, Message]]) -> None:
        first = self.first_ballots
        calls = [
            self.requests.judging(
                *judging,
                findings,
                votes=judging in self.fold.submitted,
                vote=self._publish_vote(first[judging], self.replies[judging]) if judging in first else None,
            )
            for judging, findings in sorted(due.items())
        ]
        self.unjudged = sum(map(len, due.values())) - sum(fitting for _, fitting in calls)
        async with self.session.phase("judge", 1, claims=self._claims()):
            results = await self.session.gather([ask for ask, _ in calls])
        by_message = {message.id: id for id, message in self.messages.items()}
        for assignment, result in zip(sorted(due), results, strict=True):
            if isinstance(result, Failure):
                continue
            self._receive_ballot(assignment, result)
            for n, verdict in enumerate(result.value.verdicts, 1):
                for id in map(by_message.__getitem__, self.session.named(result, [verdict.finding])):
                    if not self.fold.judge(result.agent, id, verdict):
                        continue
                    text = f"{verdict.verdict}. {verdict.reason}".rstrip()
                    self.said_of[id].append(publish_from(self.session, result, "judgement", n, text, (LEAD,)))
        self.fold.apply_judgements()

    def _receive_ballot(self, judging: Assignment, result: Reply[CrossReply]) -> None:
        ballot = result.value
        if not isinstance(ballot, FinalBallotReply) or ballot.vote is None:
            return
        cast = BallotCast(
            agent=result.agent,
            part=judging[1],
            iteration=self.fold.submitted[judging].iteration,
            vote=ballot.vote,
            confidence=ballot.confidence,
            reason=self.fold.with_places(ballot.reason),
            cause=next(iter(self.session.named(result, [ballot.cause])), None) if ballot.cause else None,
            is_final=True,
        )
        self.final_ballots[judging] = cast
        self._publish_vote(cast, result)

    # --- closing

    async def close(self) -> None:
        """The lead writes the review for its reader. Without a finding there is nothing to write."""
        if not self.fold.findings:
            return
        shown = {f.id: [self.messages[f.id], *self.said_of[f.id]] for f in ranked(self.fold.findings)}
        strictest = by_strictness(self.ballots)[:MAX_BALLOTS]
        votes = {ballot: self._publish_vote(ballot, self.replies[ballot.agent, ballot.part]) for ballot in strictest}
        ask, fitting = self.requests.closing(shown, list(self.absent.values()), self.ballots, votes)
        self.untold = len(shown) - fitting
        async with self.session.phase("closing", 1):
            result = await ask
        if isinstance(result, Failure):
            return
        self.closing = result
        by_message = {message.id: id for id, message in self.messages.items()}
        groups = [
            [by_message[id] for id in self.session.named(result, group) if id in by_message]
            for group in result.value.duplicates
        ]
        self.fold.findings = merged(self.fold.findings, [group for group in groups if len(group) > 1])

    def _publish_vote(self, ballot: BallotCast, reply: Reply[Any]) -> Message:
        """Publish a sealed ballot, once, to the lead, which reviews nothing. Its own agent may be shown it too."""
        if ballot not in self.votes:
            text = f"{ballot.vote}. {ballot.reason}".rstrip()
            self.votes[ballot] = publish_from(self.session, reply, "vote", 1, text, (LEAD,))
        return self.votes[ballot]
