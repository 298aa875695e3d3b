"""The algorithm of `broadcast`, as the seed describes it, and the report of a run:

broadcast → execute_children → coordinate → evaluate → { re_broadcast → broadcast | synthesize → self_reflect }

for every parent, and execute → self_reflect for every leaf. `Family` holds what all parents have in common. The report has the
verdict, flags, disagreements with their fates, and figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from consilience.domain.messages import Message, bare_label, is_no_finding
from consilience.domain.outcome import StopReason
from consilience.domain.positions import Ballot, Spellings, exact
from consilience.domain.report import ConfidenceScore, Objection, ObjectionFate
from consilience.domain.wording import count
from consilience.engine.analysis import novelty
from consilience.engine.session import Session
from consilience.engine.work import Reply
from consilience.protocols._common.conclusion import (
    NO_POSITION,
    Conclusion,
    TextReply,
    ballot_fields,
    conclusion_fields,
    count_ballots,
    open_dissent,
    publish_from,
    read_ballot,
    sibling_similarity,
    step_limit,
    warn_alike,
    warn_failed_review,
    with_position,
)
from consilience.protocols._common.presenting import describe_calls
from consilience.protocols._common.remarks import LeftOut, is_restated, warn_left_out
from consilience.protocols._common.trees import ROOT
from consilience.protocols.broadcast.executions import (
    NOTES,
    AgentExecution,
    BroadcastRun,
    Disagreement,
    FlagRaised,
    IterationResult,
    has_conclusion,
    has_texts,
    last_goal,
    standing_flags,
)
from consilience.protocols.broadcast.family import Family
from consilience.protocols.broadcast.fold import Flag, Iteration
from consilience.protocols.broadcast.report import BroadcastAgentState, BroadcastReport
from consilience.protocols.broadcast.settings import (
    MAX_QUOTED_FLAGS,
    BroadcastSettings,
    CoordinatorSynthesis,
    DecidesDisagreements,
    RatedBallotReply,
    RootReflection,
    RootSynthesis,
)


class Broadcast(BroadcastSettings):
    """Tree of integrator, coordinators and contributors; every parent broadcasts until its children satisfy it."""

    # 1 counted flags kept over a silence twice, measured what is new by the leaves alone, and took "no issues" for missing;
    # 2 converged over an evaluator's no, failed calls, unsatisfied parents beneath the root, and the root's own rating and flags;
    # 3 kept the evaluation from a synthesis that satisfied, showed re-executed seats nothing of theirs, and coordinated by remarks
    # 4 reported a disagreement that the result follows as yielded by its target;
    # 5 took "none found" for a disagreement; 6 searched the answer for its position; 7 noted failed calls by their
    # keys, and did not count what it left out of disagreements; 8 did not note disagreements
    version: ClassVar[int] = 9
    notes: ClassVar[Mapping[str, type[BaseModel]]] = NOTES
    report: ClassVar[type[BroadcastReport]] = BroadcastReport
    phase_names: ClassVar[tuple[str, ...]] = (
        "broadcast",
        "re_broadcast",
        "execute",
        "execute_children",
        "coordinate",
        "synthesize",
        "evaluate",
        "self_reflect",
        "strange_loop",
    )
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> BroadcastReport:
        run, family = BroadcastRun(), Family(session, self)
        limit = step_limit(session, self.max_iterations)
        stop = StopReason.EXHAUSTED_STEPS
        for index in range(1, limit + 1):
            before = run.iterations[-1] if run.iterations else None
            work = family.iterate(ROOT, (index,), None, before, before.children if before else ())
            iteration = await session.settled("iteration", index, IterationResult, work, replies=self.reply_types)
            run.iterations.append(iteration)
            if not session.has_quorum(run.opening(session.topology.leaves)):
                return await conclude(session, self, run, StopReason.FAILED)
            run.check = iteration.check
            session.record_check(iteration.check, index)
            if session.limit_hit:
                break
            if iteration.check.met:
                stop = StopReason.CONVERGED
                break
        if run.iterations:
            await self._synthesize(family, run)
            for n in range(1, self.strange_loops + 1 if run.closing else 1):
                await self._strange_loop(family, run, n)
            await self._self_reflect(family, run)
            if run.unsatisfied:
                stop = StopReason.EXHAUSTED_STEPS
        return await conclude(session, self, run, stop)

    async def _synthesize(self, family: Family, run: BroadcastRun) -> None:
        """The root combines its children's texts. This call and `self_reflect` may draw on the reserve."""
        goal = last_goal(run.iterations)
        async with family.session.phase("synthesize", len(run.iterations)):
            reply = await family.session.ask(
                ROOT,
                family.asks.synthesis_prompt(ROOT, run.iterations, root=True, goal=goal),
                key=f"synthesize/{ROOT}",
                returns=with_position(RootSynthesis, self.answer_pattern),
                closing=True,
                max_tokens=family.session.reply_tokens,
            )
        if isinstance(reply, Reply):
            run.closing = run.synthesis = reply
            run.declared = _publish_conclusion(family.session, reply)

    async def _strange_loop(self, family: Family, run: BroadcastRun, n: int) -> None:
        """The root reviews its answer. Domain instructions appear in the last review only."""
        domain = self.domain_instructions if n == self.strange_loops else ""
        async with family.session.phase("strange_loop", n):
            reply = await family.session.ask(
                ROOT,
                family.asks.review_prompt(run, "strange_loop", domain=domain),
                key=f"strange_loop-{n}/{ROOT}",
                returns=with_position(RootSynthesis, self.answer_pattern),
            )
        if run.add_review(reply, task=family.session.task, domain=bool(domain)) and isinstance(reply, Reply):
            run.declared = _publish_conclusion(family.session, reply) or run.declared

    async def _self_reflect(self, family: Family, run: BroadcastRun) -> None:
        """The root judges its answer. A revised text that does not lose it takes its place."""
        if run.closing is None:
            return
        async with family.session.phase("self_reflect", len(run.iterations)):
            reply = await family.session.ask(
                ROOT,
                family.asks.review_prompt(run, "self_reflect", root=True, ballot=False),
                key=f"self_reflect/{ROOT}",
                returns=with_position(RootReflection, self.answer_pattern),
                closing=True,
            )
        execution = AgentExecution(ROOT, (), run.synthesis, text=run.closing)
        run.root = execution.reflected(reply, family.publisher.publish(execution, reply), family.session.task)
        run.closing = run.root.text


def _publish_conclusion(session: Session, reply: Reply[Any]) -> Message | None:
    """Publish what the root declares in addition to its text, for its own reviews; None if it declares nothing."""
    value = reply.value
    assert isinstance(value, Conclusion)
    if not has_conclusion(value):
        return None
    lists = {
        "claims": [f"{claim.text} [{', '.join(claim.ids)}]" for claim in value.claims],
        "against": [f"{entry.text} [{', '.join(entry.ids)}]" for entry in value.against],
        "would_change": value.would_change,
        "unknown": value.unknown,
    }
    text = "\n".join("\n- ".join([f"{name}:", *entries]) for name, entries in lists.items() if entries)
    return publish_from(session, reply, "conclusion", 1, text, ())


async def conclude(
    session: Session, settings: BroadcastSettings, run: BroadcastRun, stop: StopReason
) -> BroadcastReport:
    """Return the report. Dissent and objections follow from what agents declared, never from a model's judgement."""
    executions = run.executions
    ballots = tuple([ballot async for ballot in _ballots(session, settings, executions)])
    positions = await count_ballots(session, ballots, settings.answer_pattern, run.closing)
    objections = tuple(_objections(session, settings, run))
    flags = _flags(session, run)
    metrics = _metrics(session, run)
    _warn(session, run, ballots, metrics)
    if settings.ballots and run.closing and positions.position is None:
        session.warn(NO_POSITION)
    confidence = positions.confidence
    if confidence.level is None and run.check is not None and run.check.score is not None:
        confidence = ConfidenceScore(level=run.check.score, kind="mean of the agents' ratings of themselves")
    return await session.close(
        BroadcastReport,
        run.closing,
        first=run.opening(session.topology.leaves),
        stop_reason=stop,
        unmet=(*_unmet(settings, run), *positions.unmet),
        check=run.check,
        confidence=confidence,
        steps=len(run.iterations),
        objections=objections,
        dissent=(*positions.dissent, *open_dissent(objections)),
        metrics={**metrics, "conformity": positions.conformity},
        total_iterations=len(run.iterations),
        total_coordination_rounds=sum(iteration.rounds for iteration in run.iterations),
        root_satisfaction=run.root.rating if run.root else None,
        signal_chain=tuple(dict.fromkeys(flag.link for flag in flags)),
        iterations=tuple(_iterations(run.iterations)),
        states=_states(session, run),
        flags=flags,
        past_disagreements=tuple(_past_disagreements(executions, objections))[::-1],
        strange_loops=tuple(run.loops),
        **conclusion_fields(session, run.conclusion),
        **ballot_fields(positions),
    )


def _unmet(settings: BroadcastSettings, run: BroadcastRun) -> tuple[str, ...]:
    """Return what was not satisfied: parents in their last iterations, then the root's judgement of its own answer."""
    reasons = [
        f"{iteration.agent} is not satisfied ({'; '.join(iteration.unmet.values())})" for iteration in run.unsatisfied
    ]
    unread = [iteration.agent for iteration, _ in run.families if iteration.check.met and _is_unread(iteration)]
    reasons += [f"the evaluator gave no readable verdict ({agent})" for agent in unread]
    reasons += run.failed_reviews
    if run.root is None:
        return tuple(reasons)
    reasons += [f"no reply: {describe_calls([failure.key])}" for failure in run.root.failures]
    rating, threshold = run.root.rating, settings.satisfaction_threshold
    if rating is None and run.root.reflection is not None:
        reasons.append(f"{ROOT} gave no readable rating of its own answer")
    if rating is not None and exact(rating) < exact(threshold):
        reasons.append(f"{ROOT} rates its own answer {rating:.2f}, needed {threshold:g}")
    if flags := dict.fromkeys(flag.link for flag in run.root.flags if flag.critical):
        reasons.append(f"critical flags: {', '.join(flags)}")
    return tuple(reasons)


def _is_unread(iteration: IterationResult) -> bool:
    """Return whether its evaluator replied without a verdict, or was cut at the token limit."""
    reply = iteration.evaluation
    return reply is not None and (reply.value.satisfied is None or reply.cut)


def _rated_ballots(execution: AgentExecution) -> list[Reply[RatedBallotReply]]:
    replies = (execution.reflection, *execution.talks)
    return [reply for reply in replies if reply is not None and isinstance(reply.value, RatedBallotReply)]


async def _ballots(
    session: Session, settings: BroadcastSettings, executions: Sequence[AgentExecution]
) -> AsyncIterator[Ballot]:
    """Yield the readable ballots, each agent's numbered from 0. The first is cast before it has read any peer."""
    ballot_counts: Counter[str] = Counter()
    spellings = Spellings()
    for execution in executions:
        for reply in _rated_ballots(execution):
            step = ballot_counts[execution.agent]
            if ballot := await read_ballot(session, settings.answer_pattern, spellings, step, reply):
                ballot_counts[execution.agent] += 1
                yield ballot


def _objections(session: Session, settings: BroadcastSettings, run: BroadcastRun) -> Iterator[Objection]:
    """Yield the disagreements of every family's last coordination, from the leaves up, then the critical flags and contradictions
    that stand at the root."""
    shown_ids = session.shown()
    for iteration, rulings in run.families:
        ruled_ids = {id for reply in rulings for id in reply.shown}
        entries = [entry for child in iteration.children for entry in child.disagreements]
        for entry in entries:
            ruled, ruling = _ruling(entry.id, rulings)
            unmet: ObjectionFate = "stands" if entry.id in ruled_ids else "unanswered"
            yield Objection(
                id=entry.id,
                agent=entry.agent,
                to=entry.to,
                text=entry.text,
                read=entry.id in shown_ids,
                fate="refuted" if ruled == "rejected" else unmet,
                answer=_other_side(entry, entries),
                ruled="upheld" if ruled == "upheld" else None,
                ruling=ruling,
            )
    for flag in run.standing:
        if not flag.critical and flag.tag != "contradiction_detected":
            continue
        ruled, ruling = _ruling(flag.id, run.rulings)
        parents = session.topology.parents.get(flag.node, ()) if flag.critical else ()
        yield Objection(
            id=flag.id,
            agent=flag.node,
            to=next(iter(parents), ""),
            text=session.message(flag.id).text,
            read=flag.id in shown_ids,
            fate="refuted" if ruled == "rejected" and not flag.critical else "stands",
            ruling=ruling,
        )


def _other_side(entry: Disagreement, entries: Sequence[Disagreement]) -> str | None:
    """Return the disagreement of the target with the author; None unless each has one with the other."""
    between = [other for other in entries if {other.agent, other.to} == {entry.agent, entry.to}]
    back = [other.id for other in between if other.agent == entry.to]
    return back[0] if len(back) == 1 and len(between) == 2 else None


def _ruling(id: str, rulings: Sequence[TextReply]) -> tuple[Literal["upheld", "rejected"] | None, str]:
    """Return the latest decision about a message: `rejected` if `against` names it, with the words there; `upheld` if the result
    follows it."""
    for reply in reversed(rulings):
        value = reply.value
        if isinstance(value, Conclusion | CoordinatorSynthesis):
            for entry in value.against:
                if not is_no_finding(entry.text) and _is_named(reply, entry.ids, id):
                    return "rejected", entry.text.strip()
        if isinstance(value, DecidesDisagreements) and _is_named(reply, value.followed, id):
            return "upheld", ""
    return None, ""


def _is_named(reply: Reply[object], labels: Sequence[str], id: str) -> bool:
    return any(reply.labels.get(bare_label(label)) == id for label in labels)


def _past_disagreements(
    executions: Sequence[AgentExecution], objections: Sequence[Objection]
) -> Iterator[Disagreement]:
    """Yield, latest first, the disagreements before a family's last coordination that their author did not raise again in nearly
    the same words."""
    known_ids = {objection.id for objection in objections}
    raised: dict[tuple[str, str], list[str]] = {}
    for objection in objections:
        raised.setdefault((objection.agent, objection.to), []).append(objection.text)
    disagreements = [
        (execution, entry) for execution in executions for entry in (*execution.superseded, *execution.disagreements)
    ]
    for execution, entry in reversed(disagreements):
        texts = raised.setdefault((entry.agent, entry.to), [])
        if entry.id not in known_ids and not is_restated(entry.text, texts):
            known_ids.add(entry.id)
            texts.append(entry.text)
            yield entry.model_copy(update={"path": execution.path})  # of the last execution that kept it


def _flags(session: Session, run: BroadcastRun) -> tuple[Flag, ...]:
    shown_ids, standing_ids = session.shown(), {flag.id for flag in run.standing}
    raised: dict[str, tuple[FlagRaised, tuple[int, ...]]] = {}
    for execution in run.executions:
        for flag in execution.flags:
            raised.setdefault(flag.id, (flag, execution.path))  # one kept over a silence occurs again
    return tuple(
        Flag(
            **flag.model_dump(exclude={"path", "text"}),
            path=path,
            text=flag.text.rstrip(": "),
            stands=flag.id in standing_ids,
            read=flag.id in shown_ids,
        )
        for flag, path in raised.values()
    )


def _iterations(iterations: Sequence[IterationResult]) -> Iterator[Iteration]:
    """Yield the iterations of one parent and of all below it, in program order."""
    before: IterationResult | None = None
    for iteration in iterations:
        for child in iteration.children:
            yield from _iterations(child.iterations)
        yield Iteration(
            **iteration.judgement,
            broadcast=iteration.broadcast.text if iteration.broadcast else None,
            caused_by=_causes(before) if before is not None else (),
            flags=tuple(flag.id for flag in standing_flags(iteration.children)),
            feedback=iteration.evaluation.text if iteration.evaluation else None,
        )
        before = iteration


def _causes(before: IterationResult) -> tuple[str, ...]:
    flags = [flag.id for flag in standing_flags(before.children)]
    missing = [child.missing.id for child in before.children if child.missing is not None]
    return (*flags, *missing, *([before.evaluation.key] if before.evaluation else []))


def _states(session: Session, run: BroadcastRun) -> dict[str, BroadcastAgentState]:
    last: dict[str, AgentExecution] = {}
    for execution in run.executions:
        if execution.text is not None or execution.agent not in last:
            last[execution.agent] = execution
    count = Counter(execution.agent for execution in run.executions)
    states: dict[str, BroadcastAgentState] = {}
    for agent in session.agents:
        execution = last.get(agent.id, AgentExecution(agent.id, ()))
        root, parent = agent.id == ROOT, bool(session.topology.children[agent.id])
        reflection = execution.reflection.value if execution.reflection else None
        states[agent.id] = BroadcastAgentState(
            role=agent.role,
            response=execution.response.text if execution.response else None,
            text=execution.text.text if execution.text else None,
            refined=execution.refined,
            missing=reflection.missing.strip() if reflection and reflection.has_missing else "",
            iterations=len(run.iterations) if root else len(execution.iterations) if parent else 1,
            executions=min(len(run.iterations), 1) if root else count[agent.id],
            satisfaction=execution.rating,
            flags=tuple(dict.fromkeys(flag.tag for flag in (run.standing if root else execution.standing))),
        )
    return states


def _metrics(session: Session, run: BroadcastRun) -> dict[str, float | int | None]:
    executions = run.executions
    below = [execution for execution in executions if execution.agent != ROOT]
    inputs = [reply.text for e in below for reply in (e.response, e.text) if reply is not None]
    inputs += [document.text for document in session.sources]
    talks = [[reply.text for reply in (e.brought, *e.talks) if reply is not None] for e in executions]
    changed = [before.split() != after.split() for texts in talks for before, after in pairwise(texts)]
    metrics: dict[str, float | int | None] = {
        "novelty": novelty(run.closing.text if run.closing else "", inputs),
        "revision_rate": sum(changed) / len(changed) if changed else None,
        "dropped_labels": session.dropped,
        "flags": len({flag.id for execution in executions for flag in execution.flags}),
    }
    for n, iteration in enumerate(run.iterations, 1):
        leaves = [e for child in iteration.children for e in child.walk() if not e.iterations]
        for phase, replies in (
            ("execute", [leaf.response for leaf in leaves]),
            ("coordinate", [leaf.talks[-1] if leaf.talks else None for leaf in leaves]),
        ):
            families = [(session.topology.parents[leaf.agent][0], leaf.path) for leaf in leaves]
            metrics[f"sibling_similarity/{phase}/{n}"] = sibling_similarity(families, replies)
    return metrics


def _is_contradicted(iteration: IterationResult) -> bool:
    """Return whether the evaluator says no and nothing else is unmet, or yes and something is."""
    satisfied = iteration.evaluation.value.satisfied if iteration.evaluation else None
    return bool(iteration.unmet) if satisfied else set(iteration.unmet) == {"evaluator"}


def _warn(
    session: Session, run: BroadcastRun, ballots: Sequence[Ballot], metrics: Mapping[str, float | int | None]
) -> None:
    executions = run.executions
    iterations = [*run.iterations, *(iteration for execution in executions for iteration in execution.iterations)]
    if contrary := sum(_is_contradicted(iteration) for iteration in iterations):
        session.warn(
            f"in {contrary} of {len(iterations)} iterations the evaluator contradicted the agents' own ratings and flags"
        )
    if lost := sum(execution.lost for execution in executions):
        session.warn(f"left out: {count(lost, 'revision')} that kept less than a third of the text; the text stands")
    warn_left_out(session, sum((execution.left_out for execution in executions), LeftOut()))
    flags = {flag.id for execution in executions if execution.agent != ROOT for flag in execution.flags}
    for flag in sorted(flags - session.shown()):
        session.warn(f"the flag {flag} was read by no later call")
    if unquoted := sum(iteration.unquoted for iteration in iterations):
        session.warn(f"not quoted: {count(unquoted, 'flag')} beyond the {MAX_QUOTED_FLAGS} that a prompt may quote")
    if unrated := [e.agent for e in executions if e.text is not None and e.rating is None]:
        agents = ", ".join(dict.fromkeys(unrated))
        session.warn(f"missing or unreadable ratings: {len(unrated)} ({agents}); they count as unsatisfied")
    if silent := dict.fromkeys(e.agent for e in executions if e.text is None and has_texts(e.iterations)):
        session.warn(f"{', '.join(silent)} did not combine the texts below; the parent did not read them")
    read_counts = Counter(ballot.agent for ballot in ballots)
    cast_counts = Counter(execution.agent for execution in executions for _ in _rated_ballots(execution))
    if unread := sorted(cast_counts.keys() - read_counts.keys()):
        session.warn(f"no ballot of {', '.join(unread)} matches the answer_pattern")
    if partly := sorted(agent for agent in cast_counts if 0 < read_counts[agent] < cast_counts[agent]):
        session.warn(f"some ballots of {', '.join(partly)} do not match the answer_pattern; the others count")
    warn_failed_review(session, run)
    texts: dict[str, set[str]] = {}
    for execution in executions:
        if execution.agent in session.topology.leaves:
            for reply in filter(None, (execution.response, execution.text)):
                texts.setdefault(execution.agent, set()).add(reply.text)
    warn_alike(session, metrics.get("sibling_similarity/execute/1"), texts)
