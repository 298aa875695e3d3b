"""From the course of a run to its report: what stands, who differed, how far the figures go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from consilience.domain.outcome import StopReason
from consilience.domain.positions import Ballot, changes, last_of, pool
from consilience.domain.replies import MOST_POINTS, LeafReply
from consilience.domain.report import Claim, Confidence, Dissent, Objection
from consilience.engine.analysis import novelty, survival
from consilience.engine.answers import extract
from consilience.engine.session import Session
from consilience.engine.similarity import mean_pairwise
from consilience.engine.trees import ROOT, UNPLACED
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols.broadcast.replies import MOST_FLAGS, SEVERITY, Voted
from consilience.protocols.broadcast.report import AgentState, BroadcastReport, Flag, Iteration
from consilience.protocols.broadcast.runs import Course, Cycle, Raised, Run, first_runs, heard
from consilience.protocols.broadcast.settings import MOST_QUOTED_FLAGS, Settings


async def conclude(session: Session, settings: Settings, course: Course, stop: StopReason) -> BroadcastReport:
    """The report. Dissent and objections are computed here from what agents declared, never by a model."""
    closing = course.closing
    runs = list(_runs(course))
    ballots = tuple(_ballots(session, settings, runs))
    pooled = pool(ballots)
    position = extract(settings.answer_pattern, closing.text) if settings.ballots and closing else None
    objections = _standing(session, settings, course)
    flags = _flags(session, settings, course, runs)
    claims = session.claims(closing)
    _warn(session, settings, course, runs, ballots)
    if settings.ballots and closing and position is None:
        session.warn(UNPLACED)
    return await session.report(
        BroadcastReport,
        first=_first(session, course),
        stop_reason=stop,
        check=course.check,
        confidence=_confidence(course, position, pooled),
        steps=len(course.cycles),
        answer=closing.text if closing else None,
        closing=drawn_on(closing, course.all_failures),
        claims=claims,
        position_changes=tuple(changes(ballots)),
        objections=objections,
        dissent=(
            *_against(ballots, position or next(iter(pooled), None)),
            *(Dissent(agent=o.agent, text=o.text, id=o.id) for o in objections),
        ),
        metrics=_metrics(session, course, runs, ballots, claims),
        total_iterations=len(course.cycles),
        total_coordination_rounds=sum(cycle.rounds for cycle in course.cycles),
        root_satisfaction=course.root.rating if course.root else None,
        signal_chain=tuple(dict.fromkeys(f"{flag.tag} ({flag.node})" for flag in flags)),
        iterations=tuple(_iterations(course.cycles)),
        states=_states(session, course, runs),
        flags=flags,
        strange_loops=tuple(course.loops),
        ballots=ballots,
        pool=pooled,
        position=position,
    )


def _runs(course: Course) -> Iterator[Run]:
    """All executions as words went up, the root's own last."""
    for cycle in course.cycles:
        for child in cycle.children:
            yield from child.walk()
    if course.root is not None:
        yield course.root


def _first(session: Session, course: Course) -> list[Reply[object] | Failure]:
    """What each leaf came to when it was first asked."""
    if not course.cycles:
        return []
    runs = first_runs(course.cycles[0], session.topology.leaves)
    return [run.response if run.response is not None else run.failures[0] for run in runs]


def _ballots(session: Session, settings: Settings, runs: Sequence[Run]) -> Iterator[Ballot]:
    """Those that rode in a leaf's replies, its own numbered from 0: the first is cast before it has read anybody."""
    cast: dict[str, int] = {}
    for run in runs:
        for reply in (run.reflection, *run.talks):
            if reply is None or not isinstance(reply.value, Voted):
                continue
            position = extract(settings.answer_pattern, reply.value.position)
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


def _confidence(course: Course, position: str | None, pooled: Mapping[str, float]) -> Confidence:
    """Of a position the share of pooled ballots, else the children's mean rating of themselves."""
    if position is not None and pooled:
        return Confidence(level=pooled.get(position, 0.0), kind="share of pooled ballots")
    if course.check is not None and course.check.score is not None:
        return Confidence(level=course.check.score, kind="mean of the agents' ratings of themselves")
    return Confidence()


def _standing(session: Session, settings: Settings, course: Course) -> tuple[Objection, ...]:
    """Critical flags and contradictions that stand at the root: nothing that came later has settled them. The objection is to
    whoever set the goal."""
    shown = session.shown()
    grave = {*settings.critical_flags, "contradiction_detected"}
    return tuple(
        Objection(
            id=flag.message.id,
            agent=flag.node,
            to=next(iter(session.topology.parents.get(flag.node, ())), "")
            if flag.tag != "contradiction_detected"
            else "",
            text=flag.message.text,
            read=flag.message.id in shown,
        )
        for flag in course.standing
        if flag.tag in grave
    )


def _flags(session: Session, settings: Settings, course: Course, runs: Sequence[Run]) -> tuple[Flag, ...]:
    shown, standing = session.shown(), {flag.message.id for flag in course.standing}
    raised: dict[str, tuple[Raised, Run]] = {}
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


def _reason(flag: Raised) -> str:
    return flag.message.text.removeprefix(flag.tag).removeprefix(": ")


def _iterations(cycles: Sequence[Cycle]) -> Iterator[Iteration]:
    """Of one parent and of all beneath it, in program order."""
    before: Cycle | None = None
    for cycle in cycles:
        for child in cycle.children:
            yield from _iterations(child.cycles)
        yield Iteration(
            node=cycle.agent,
            path=cycle.path,
            broadcast=cycle.broadcast.text if cycle.broadcast else None,
            caused_by=_causes(before) if before is not None else (),
            ratings={child.agent: child.rating for child in cycle.children},
            mean=cycle.check.score,
            coordination_rounds=cycle.rounds,
            flags=tuple(flag.message.id for child in cycle.children for flag in child.standing),
            feedback=cycle.evaluation.text if cycle.evaluation else None,
            said_satisfied=cycle.evaluation.value.satisfied if cycle.evaluation else None,
            satisfied=cycle.check.met,
        )
        before = cycle


def _causes(before: Cycle) -> tuple[str, ...]:
    flags = [flag.message.id for child in before.children for flag in child.standing]
    return (*flags, before.evaluation.key) if before.evaluation else tuple(flags)


def _states(session: Session, course: Course, runs: Sequence[Run]) -> dict[str, AgentState]:
    last: dict[str, Run] = {}
    asked: dict[str, int] = {}
    for run in runs:
        asked[run.agent] = asked.get(run.agent, 0) + 1
        if run.text is not None or run.agent not in last:
            last[run.agent] = run
    found: dict[str, AgentState] = {}
    for seat in session.agents:
        run = last.get(seat.id, Run(seat.id, ()))
        root, parent = seat.id == ROOT, bool(session.topology.children[seat.id])
        flags = course.standing if root else run.standing
        found[seat.id] = AgentState(
            role=seat.role,
            response=run.response.text if run.response else None,
            text=run.text.text if run.text else None,
            refined=run.refined,
            missing=run.reflection.value.missing.strip() if run.reflection and run.reflection.value.wanting else "",
            iterations=len(course.cycles) if root else len(run.cycles) if parent else 1,
            executions=min(len(course.cycles), 1) if root else asked.get(seat.id, 0),
            satisfaction=run.rating,
            flags=tuple(dict.fromkeys(flag.tag for flag in flags)),
        )
    return found


def _metrics(
    session: Session, course: Course, runs: Sequence[Run], ballots: Sequence[Ballot], claims: Sequence[Claim]
) -> dict[str, float | int | None]:
    first = first_runs(course.cycles[0], session.topology.leaves) if course.cycles else []
    replies = [run.response for run in first if run.response is not None]
    points = [
        point
        for reply in replies
        if isinstance(reply.value, LeafReply)
        for point in reply.value.points[:MOST_POINTS]
        if point.strip()
    ]
    inputs = [said.text for run in runs if run.agent != ROOT for said in (run.response, run.text) if said is not None]
    answer = course.closing.text if course.closing else ""
    changed = [before.split() != after.split() for run in runs for before, after in _talks(run)]
    found: dict[str, float | int | None] = {
        "facts": len(points),
        "fact_survival": survival(points, answer, [claim.text for claim in claims]) if answer else None,
        "novelty": novelty(answer, [*inputs, *points, *(document.text for document in session.sources)]),
        "revision_rate": sum(changed) / len(changed) if changed else None,
        "dropped_labels": session.dropped,
        "conformity": sum(change.conformity for change in changes(ballots)),
        "flags": len({flag.message.id for run in runs for flag in run.flags}),
    }
    for n, cycle in enumerate(course.cycles, 1):
        below = [run for child in cycle.children for run in child.walk() if not run.cycles]
        found[f"sibling_similarity/execute/{n}"] = _similarity(session, below, talked=False)
        found[f"sibling_similarity/coordinate/{n}"] = _similarity(session, below, talked=True)
    return found


def _talks(run: Run) -> Iterator[tuple[str, str]]:
    """The text it went into each talk with, and that it came out with."""
    said = [reply.text for reply in (run.brought, *run.talks) if reply is not None]
    yield from pairwise(said)


def _similarity(session: Session, leaves: Sequence[Run], *, talked: bool) -> float | None:
    """Mean over families of leaves, each time they were asked, of the mean pairwise `jaccard` of their texts."""
    families: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for run in leaves:
        said = (run.talks[-1] if run.talks else None) if talked else run.response
        if said is not None:
            families.setdefault((session.topology.parents[run.agent][0], run.path), []).append(said.text)
    scores = [score for texts in families.values() if (score := mean_pairwise(texts)) is not None]
    return sum(scores) / len(scores) if scores else None


def _warn(session: Session, settings: Settings, course: Course, runs: Sequence[Run], ballots: Sequence[Ballot]) -> None:
    cycles = [*course.cycles, *(cycle for run in runs for cycle in run.cycles)]
    if contrary := sum(
        cycle.evaluation is not None and cycle.evaluation.value.satisfied not in (None, cycle.check.met)
        for cycle in cycles
    ):
        session.warn(
            f"in {contrary} of {len(cycles)} iterations the evaluator said otherwise than the ratings and flags"
        )
    if surplus := sum(run.surplus for run in runs):
        session.warn(f"flags beyond the {MOST_FLAGS} that a reply may raise were left out: {surplus}")
    if unquoted := sum(cycle.unquoted for cycle in cycles):
        session.warn(f"flags beyond the {MOST_QUOTED_FLAGS} that a prompt may quote were left out of it: {unquoted}")
    unrated = [run for run in runs if run.text is not None and run.rating is None]
    if unrated:
        who = ", ".join(dict.fromkeys(run.agent for run in unrated))
        session.warn(f"ratings that were not given or could not be read: {len(unrated)} ({who}); they satisfy nobody")
    silent_parents = [run.agent for run in runs if run.text is None and heard(run.cycles)]
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
