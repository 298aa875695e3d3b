"""From the course of a run to its report: what stands, who differed, how far the figures go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from consilience.domain.outcome import StopReason
from consilience.domain.positions import Ballot, changes, exact, last_of, pool, shortfall
from consilience.domain.report import Confidence, Dissent
from consilience.engine.analysis import novelty
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols._common.answers import extract, extract_declared
from consilience.protocols._common.conclusion import conclusion_fields
from consilience.protocols._common.tree_run import NO_POSITION
from consilience.protocols._common.trees import ROOT
from consilience.protocols.broadcast.disagreements import all_objections, past_disagreements
from consilience.protocols.broadcast.executions import (
    EVALUATOR_SAYS_NO,
    BroadcastRun,
    Execution,
    IterationResult,
    RaisedFlag,
    first_runs,
    heard,
)
from consilience.protocols.broadcast.replies import MAX_FLAGS, SEVERITY, Voted
from consilience.protocols.broadcast.report import AgentState, BroadcastReport
from consilience.protocols.broadcast.settings import MAX_QUOTED_FLAGS, BroadcastSettings
from consilience.protocols.broadcast.views import Flag, Iteration


async def conclude(
    session: Session, settings: BroadcastSettings, course: BroadcastRun, stop: StopReason
) -> BroadcastReport:
    """The report. Dissent and objections are computed here from what agents declared, never by a model."""
    closing = course.closing
    runs = list(_runs(course))
    ballots = tuple(_ballots(session, settings, runs))
    pooled = pool(ballots)
    position = extract(settings.answer_pattern, closing.text) if settings.ballots and closing else None
    contradicted = shortfall(position, last_of(ballots)) if settings.ballots and closing else None
    objections = tuple(all_objections(session, settings, course))
    flags = _flags(session, settings, course, runs)
    _warn(session, settings, course, runs, ballots)
    if settings.ballots and closing and position is None:
        session.warn(NO_POSITION)
    return await session.report(
        BroadcastReport,
        first=_first(session, course),
        stop_reason=stop,
        unmet=(*_unmet(settings, course), *filter(None, [contradicted])),
        answer_cut=closing is not None and closing.cut,
        check=course.check,
        confidence=_confidence(course, position, pooled),
        steps=len(course.iterations),
        answer=closing.text if closing else None,
        closing=drawn_on(closing, course.all_failures),
        **conclusion_fields(session, course.conclusion),
        position_changes=tuple(changes(ballots)),
        objections=objections,
        dissent=(
            *_against(ballots, position or next(iter(pooled), None)),
            *(Dissent(agent=o.agent, text=o.text, id=o.id) for o in objections if o.is_open),
        ),
        metrics=_metrics(session, course, runs, ballots),
        total_iterations=len(course.iterations),
        total_coordination_rounds=sum(iteration.rounds for iteration in course.iterations),
        root_satisfaction=course.root.rating if course.root else None,
        signal_chain=tuple(dict.fromkeys(f"{flag.tag} ({flag.node})" for flag in flags)),
        iterations=tuple(_iterations(course.iterations)),
        states=_states(session, course, runs),
        flags=flags,
        past_disagreements=tuple(past_disagreements(session, runs, objections))[::-1],
        strange_loops=tuple(course.loops),
        ballots=ballots,
        pool=pooled,
        position=position,
    )


def _unmet(settings: BroadcastSettings, course: BroadcastRun) -> tuple[str, ...]:
    """What was not satisfied: parents in their last iterations, then what the root says of its own answer."""
    found = [f"{iteration.agent} is not satisfied ({'; '.join(iteration.unmet)})" for iteration in course.unsatisfied]
    unread = [iteration.agent for iteration in course.last_iterations if iteration.check.met and _unread(iteration)]
    found += [f"the evaluator gave no readable verdict ({agent})" for agent in unread]
    found += [f"no reply to {failure.key}" for failure in course.failures]
    if course.root is None:
        return tuple(found)
    rating, threshold = course.root.rating, settings.satisfaction_threshold
    if rating is None and course.root.reflection is not None:
        found.append(f"{ROOT} gave no readable rating of its own answer")
    if rating is not None and exact(rating) < exact(threshold):
        found.append(f"{ROOT} rates its own answer {rating:.2f}, needed {threshold:g}")
    flags = dict.fromkeys(flag.link for flag in course.root.flags if flag.tag in settings.critical_flags)
    return (*found, f"critical flags: {', '.join(flags)}") if flags else tuple(found)


def _unread(iteration: IterationResult) -> bool:
    """Whether its evaluator replied, and left its verdict out or was cut at the token limit."""
    return iteration.evaluation is not None and (
        iteration.evaluation.value.satisfied is None or iteration.evaluation.cut
    )


def _runs(course: BroadcastRun) -> Iterator[Execution]:
    """All executions as words went up, the root's own last."""
    for iteration in course.iterations:
        for child in iteration.children:
            yield from child.walk()
    if course.root is not None:
        yield course.root


def _first(session: Session, course: BroadcastRun) -> list[Reply[object] | Failure]:
    """What each leaf came to when it was first asked."""
    if not course.iterations:
        return []
    runs = first_runs(course.iterations[0], session.topology.leaves)
    return [run.response if run.response is not None else run.failures[0] for run in runs]


def _ballots(session: Session, settings: BroadcastSettings, runs: Sequence[Execution]) -> Iterator[Ballot]:
    """Those that rode in a leaf's replies, its own numbered from 0: the first is cast before it has read anybody."""
    cast: dict[str, int] = {}
    for run in runs:
        for reply in (run.reflection, *run.talks):
            if reply is None or not isinstance(reply.value, Voted):
                continue
            position = extract_declared(settings.answer_pattern, reply.value.position)
            if position is None:
                continue
            step = cast.get(run.agent, -1) + 1
            cast[run.agent] = step
            named = getattr(reply.value, "cause", None)
            yield Ballot(
                agent=run.agent,
                step=step,
                position=position,
                confidence=reply.value.confidence,
                reason=reply.value.reason,
                cause=next(iter(session.named(reply, [named])), None) if named else None,
            )


def _against(ballots: Sequence[Ballot], position: str | None) -> tuple[Dissent, ...]:
    """Final ballots that are not for the answer, or where it holds no position, not for the pool's first."""
    against = (ballot for ballot in last_of(ballots).values() if ballot.position != position)
    return tuple(Dissent(agent=ballot.agent, text=ballot.reason, position=ballot.position) for ballot in against)


def _confidence(course: BroadcastRun, position: str | None, pooled: Mapping[str, float]) -> Confidence:
    """Of a position the share of pooled ballots, else the children's mean rating of themselves."""
    if position is not None and pooled:
        return Confidence(level=pooled.get(position, 0.0), kind="share of pooled ballots")
    if course.check is not None and course.check.score is not None:
        return Confidence(level=course.check.score, kind="mean of the agents' ratings of themselves")
    return Confidence()


def _flags(
    session: Session, settings: BroadcastSettings, course: BroadcastRun, runs: Sequence[Execution]
) -> tuple[Flag, ...]:
    shown, standing = session.shown(), {flag.message.id for flag in course.standing}
    raised: dict[str, tuple[RaisedFlag, Execution]] = {}
    for run in runs:  # one kept over a silence is met again
        for flag in run.flags:
            raised.setdefault(flag.message.id, (flag, run))
    return tuple(
        Flag(
            id=flag.message.id,
            tag=flag.tag,
            severity=SEVERITY[flag.tag],
            critical=flag.tag in settings.critical_flags,
            node=flag.node,
            path=run.path,
            text=_reason(flag),
            stands=flag.message.id in standing,
            read=flag.message.id in shown,
        )
        for flag, run in raised.values()
    )


def _reason(flag: RaisedFlag) -> str:
    return flag.message.text.removeprefix(flag.tag).removeprefix(": ")


def _iterations(iterations: Sequence[IterationResult]) -> Iterator[Iteration]:
    """Of one parent and of all beneath it, in program order."""
    before: IterationResult | None = None
    for iteration in iterations:
        for child in iteration.children:
            yield from _iterations(child.iterations)
        yield Iteration(
            node=iteration.agent,
            path=iteration.path,
            broadcast=iteration.broadcast.text if iteration.broadcast else None,
            caused_by=_causes(before) if before is not None else (),
            ratings={child.agent: child.rating for child in iteration.children},
            mean=iteration.check.score,
            coordination_rounds=iteration.rounds,
            flags=tuple(flag.message.id for child in iteration.children for flag in child.standing),
            feedback=iteration.evaluation.text if iteration.evaluation else None,
            said_satisfied=iteration.evaluation.value.satisfied if iteration.evaluation else None,
            satisfied=iteration.check.met,
            unmet="; ".join(iteration.unmet),
        )
        before = iteration


def _causes(before: IterationResult) -> tuple[str, ...]:
    flags = [flag.message.id for child in before.children for flag in child.standing]
    missing = [child.missing.id for child in before.children if child.missing is not None]
    return (*flags, *missing, *([before.evaluation.key] if before.evaluation else []))


def _states(session: Session, course: BroadcastRun, runs: Sequence[Execution]) -> dict[str, AgentState]:
    last: dict[str, Execution] = {}
    asked: dict[str, int] = {}
    for run in runs:
        asked[run.agent] = asked.get(run.agent, 0) + 1
        if run.text is not None or run.agent not in last:
            last[run.agent] = run
    found: dict[str, AgentState] = {}
    for seat in session.agents:
        run = last.get(seat.id, Execution(seat.id, ()))
        root, parent = seat.id == ROOT, bool(session.topology.children[seat.id])
        flags = course.standing if root else run.standing
        found[seat.id] = AgentState(
            role=seat.role,
            response=run.response.text if run.response else None,
            text=run.text.text if run.text else None,
            refined=run.refined,
            missing=run.reflection.value.missing.strip() if run.reflection and run.reflection.value.wanting else "",
            iterations=len(course.iterations) if root else len(run.iterations) if parent else 1,
            executions=min(len(course.iterations), 1) if root else asked.get(seat.id, 0),
            satisfaction=run.rating,
            flags=tuple(dict.fromkeys(flag.tag for flag in flags)),
        )
    return found


def _metrics(
    session: Session,
    course: BroadcastRun,
    runs: Sequence[Execution],
    ballots: Sequence[Ballot],
) -> dict[str, float | int | None]:
    inputs = [said.text for run in runs if run.agent != ROOT for said in (run.response, run.text) if said is not None]
    answer = course.closing.text if course.closing else ""
    changed = [before.split() != after.split() for run in runs for before, after in _talks(run)]
    found: dict[str, float | int | None] = {
        "novelty": novelty(answer, [*inputs, *(document.text for document in session.sources)]),
        "revision_rate": sum(changed) / len(changed) if changed else None,
        "dropped_labels": session.dropped,
        "conformity": sum(change.conformity for change in changes(ballots)),
        "flags": len({flag.message.id for run in runs for flag in run.flags}),
    }
    for n, iteration in enumerate(course.iterations, 1):
        below = [run for child in iteration.children for run in child.walk() if not run.iterations]
        found[f"sibling_similarity/execute/{n}"] = _similarity(session, below, talked=False)
        found[f"sibling_similarity/coordinate/{n}"] = _similarity(session, below, talked=True)
    return found


def _talks(run: Execution) -> Iterator[tuple[str, str]]:
    """The text it went into each talk with, and that it came out with."""
    said = [reply.text for reply in (run.brought, *run.talks) if reply is not None]
    yield from pairwise(said)


def _similarity(session: Session, leaves: Sequence[Execution], *, talked: bool) -> float | None:
    """Mean over families of leaves, each time they were asked, of the mean pairwise `jaccard` of their texts."""
    families: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for run in leaves:
        said = (run.talks[-1] if run.talks else None) if talked else run.response
        if said is not None:
            families.setdefault((session.topology.parents[run.agent][0], run.path), []).append(said.text)
    scores = [score for texts in families.values() if (score := mean_pairwise(texts)) is not None]
    return sum(scores) / len(scores) if scores else None


def _contradicts(iteration: IterationResult) -> bool:
    """Whether the evaluator says no where nothing else is unmet, or yes where something is."""
    said = iteration.evaluation.value.satisfied if iteration.evaluation else None
    return bool(iteration.unmet) if said else iteration.unmet == (EVALUATOR_SAYS_NO,)


def _warn(
    session: Session,
    settings: BroadcastSettings,
    course: BroadcastRun,
    runs: Sequence[Execution],
    ballots: Sequence[Ballot],
) -> None:
    iterations = [*course.iterations, *(iteration for run in runs for iteration in run.iterations)]
    if contrary := sum(_contradicts(iteration) for iteration in iterations):
        session.warn(
            f"in {contrary} of {len(iterations)} iterations the evaluator contradicted the agents' own ratings and flags"
        )
    if surplus := sum(run.surplus for run in runs):
        session.warn(f"flags beyond the {MAX_FLAGS} that a reply may raise were left out: {surplus}")
    shown = session.shown()
    for flag in sorted({flag.message.id for run in runs if run.agent != ROOT for flag in run.flags} - shown):
        session.warn(f"the flag {flag} was read by no later call")
    if unquoted := sum(iteration.unquoted for iteration in iterations):
        session.warn(f"flags beyond the {MAX_QUOTED_FLAGS} that a prompt may quote were left out of it: {unquoted}")
    unrated = [run for run in runs if run.text is not None and run.rating is None]
    if unrated:
        who = ", ".join(dict.fromkeys(run.agent for run in unrated))
        session.warn(f"ratings that were not given or could not be read: {len(unrated)} ({who}); they satisfy nobody")
    silent_parents = [run.agent for run in runs if run.text is None and heard(run.iterations)]
    if silent_parents:
        session.warn(
            f"{', '.join(dict.fromkeys(silent_parents))} did not put together what was written beneath; it did not go up"
        )
    if session.dropped:
        session.warn(f"references to texts that were not shown were dropped: {session.dropped}")
    read = Counter(ballot.agent for ballot in ballots)
    voted = [
        run.agent for run in runs for reply in (run.reflection, *run.talks) if reply and isinstance(reply.value, Voted)
    ]
    if silent := sorted(set(voted) - read.keys()):
        session.warn(f"no ballot of {', '.join(silent)} holds what the answer_pattern looks for")
    if unread := sorted(agent for agent, cast in Counter(voted).items() if 0 < read[agent] < cast):
        session.warn(
            f"not every ballot of {', '.join(unread)} holds what the answer_pattern looks for; the others stand"
        )
    if course.loops and course.loops[-1].after is None:
        session.warn("the last review of the answer failed; the answer is the one before it")
