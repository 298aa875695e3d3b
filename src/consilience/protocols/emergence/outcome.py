"""From the course of a run to its report: what stands, who differed, how far the figures go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from consilience.domain.agents import Agent
from consilience.domain.messages import Message
from consilience.domain.outcome import StopReason
from consilience.domain.positions import changes, one_sided, pool
from consilience.domain.replies import MOST_POINTS, LeafReply
from consilience.domain.report import Claim, Confidence, Dissent, Objection
from consilience.engine.analysis import RESTATED, novelty, survival
from consilience.engine.answers import extract
from consilience.engine.session import Session
from consilience.engine.similarity import jaccard, mean_pairwise
from consilience.engine.trees import ROOT, UNPLACED
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols.emergence.course import Course
from consilience.protocols.emergence.replies import MOST_OBJECTIONS, Answering, Exchange
from consilience.protocols.emergence.report import AgentRound, Convergence, EmergenceReport, Round
from consilience.protocols.emergence.rounds import Turn
from consilience.protocols.emergence.settings import Settings

NEAR = 0.2
"""A score that stays further below the threshold than this says the threshold was out of reach."""


async def conclude(session: Session, settings: Settings, course: Course, stop: StopReason) -> EmergenceReport:
    """The report. Dissent and objections are computed here from what agents declared, never by a model."""
    closing = course.closing
    ballots = tuple(ballot for cast in course.ballots for ballot in cast.values())
    pooled = pool(ballots)
    position, decided_by = _position(settings, course, pooled)
    objections = standing(session, course)
    claims = session.claims(closing)
    rounds = tuple(round_of(session.agents, settings, course, n) for n in range(1, len(course.rounds) + 1))
    scores = tuple(r.convergence_score for r in rounds[1:])
    _warn(session, settings, course, scores)
    if settings.ballots and closing and position is None:
        session.warn(UNPLACED)
    laterals = [turn for turns in course.rounds for turn in turns.values() if turn.lateral is not None]
    revised = [turn for turn in laterals if _revised(turn)]
    counts: dict[str, int] = {}
    for turn in revised:
        counts[turn.agent] = counts.get(turn.agent, 0) + 1
    return await session.report(
        EmergenceReport,
        first=_first(session, course),
        stop_reason=stop,
        check=course.checks[-1] if course.checks else None,
        confidence=_confidence(position, pooled),
        steps=len(course.rounds),
        answer=closing.text if closing else None,
        closing=drawn_on(closing, course.failures),
        claims=claims,
        position_changes=tuple(changes(ballots)),
        objections=objections,
        dissent=_dissent(settings, course, position or next(iter(pooled), None), objections),
        metrics=_metrics(session, course, claims, len(revised) / len(laterals) if laterals else None),
        rounds=rounds,
        convergence=Convergence(
            converged=stop is StopReason.CONVERGED, rounds_used=len(course.rounds), score_trajectory=scores
        ),
        strange_loops=tuple(course.loops),
        ballots=ballots,
        pool=pooled,
        position=position,
        decided_by=decided_by,
        lateral_revision_rate=len(revised) / len(laterals) if laterals else None,
        revision_counts=counts,
    )


def standing(session: Session, course: Course) -> tuple[Objection, ...]:
    """Objections that no later reply, shown them, says it answers. One raised again, alike, stands in its latest form."""
    raised = [m for turns in course.rounds for turn in turns.values() for m in turn.objections]
    replies: list[Reply[Answering]] = [
        reply
        for turns in course.rounds
        for turn in turns.values()
        for reply in (turn.response, turn.lateral)
        if reply is not None and isinstance(reply.value, Answering)
    ]
    replies += course.reviews
    answered = {id for reply in replies for id in session.named(reply, reply.value.answers)}
    read = session.shown()
    left: dict[str, Message] = {}
    between: dict[tuple[str, str], list[Message]] = {}
    for objection in raised:
        earlier = between.setdefault((objection.sender, _to(session, objection)), [])
        for other in [one for one in earlier if jaccard(one.text, objection.text) >= RESTATED]:
            earlier.remove(other)
            del left[other.id]
        if objection.id not in answered:
            earlier.append(objection)
            left[objection.id] = objection
    return tuple(
        Objection(id=m.id, agent=m.sender, to=_to(session, m), text=m.text, read=m.id in read) for m in left.values()
    )


def _to(session: Session, objection: Message) -> str:
    return session.message(objection.reply_to).sender if objection.reply_to else ""


def _position(settings: Settings, course: Course, pooled: Mapping[str, float]) -> tuple[str | None, str | None]:
    """The answer's own position, or the pool's where positions stayed split and `fallback` says so."""
    if not settings.ballots:
        return None, None
    agreed = one_sided(course.held)
    if settings.fallback == "vote" and not agreed and pooled:
        return next(iter(pooled)), "pool"
    position = extract(settings.answer_pattern, course.closing.text) if course.closing else None
    return position, "answer" if position else None


def _dissent(
    settings: Settings, course: Course, position: str | None, objections: Sequence[Objection]
) -> tuple[Dissent, ...]:
    """Final ballots against the answer, or where it holds no position against the pool's first; without ballots, the
    objections that stand."""
    if not settings.ballots:
        return tuple(Dissent(agent=o.agent, text=o.text, id=o.id) for o in objections)
    against = (ballot for ballot in course.held.values() if ballot.position != position)
    return tuple(Dissent(agent=ballot.agent, text=ballot.reason, position=ballot.position) for ballot in against)


def _confidence(position: str | None, pooled: Mapping[str, float]) -> Confidence:
    if position is None or not pooled:
        return Confidence()
    return Confidence(level=pooled.get(position, 0.0), kind="share of pooled ballots")


def _first(session: Session, course: Course) -> list[Reply[object] | Failure]:
    """What each leaf came to in the first round."""
    if not course.rounds:
        return []
    found: list[Reply[object] | Failure] = []
    for leaf in session.topology.leaves:
        turn = course.rounds[0][leaf]
        result = turn.response if turn.response is not None else turn.failures[0]
        found.append(result)
    return found


def round_of(seats: Sequence[Agent], settings: Settings, course: Course, n: int) -> Round:
    """The n-th round, from 1, as reports tell it."""
    turns = course.rounds[n - 1]
    before = course.rounds[n - 2] if n > 1 else {}
    sent = course.nudges[n] if n < len(course.nudges) else {}
    check = course.checks[n - 1] if n <= len(course.checks) else None
    agents: dict[str, AgentRound] = {}
    for seat in seats:
        turn = turns.get(seat.id)
        if turn is None:
            continue
        earlier = before[seat.id].text if seat.id in before else None
        similarity = (
            jaccard(earlier.text, turn.text.text)
            if earlier is not None and turn.text is not None and turn.said_something
            else None
        )
        agents[seat.id] = AgentRound(
            role=seat.role,
            perspective=seat.persona or seat.perspective,
            response=_text(turn.response) or _text(turn.before or (None if turn.failures else turn.text)),
            lateral_response=_text(turn.lateral),
            revised=_revised(turn),
            signal_sent=_text(sent.get(seat.id)),
            signal_received=_text(turn.nudge),
            similarity=similarity,
            converged=similarity is not None and similarity >= settings.threshold,
        )
    return Round(round=n, agents=agents, convergence_score=check.score if check else None)


def _text(reply: Reply[object] | None) -> str | None:
    return None if reply is None else reply.text


def _revised(turn: Turn) -> bool:
    """Lateral talk changed the words."""
    if turn.lateral is None:
        return False
    return turn.before is None or turn.lateral.text.split() != turn.before.text.split()


def _read_by_root(course: Course) -> list[str]:
    """What everybody but the root has said, in every round."""
    turns = [turn for turns in course.rounds for turn in turns.values() if turn.agent != ROOT]
    texts = [said.text for turn in turns for said in (turn.response, turn.lateral) if said is not None]
    return [*texts, *(objection.text for turn in turns for objection in turn.objections)]


def _metrics(
    session: Session, course: Course, claims: Sequence[Claim], revision_rate: float | None
) -> dict[str, float | int | None]:
    first = [turn.response for turn in course.rounds[0].values()] if course.rounds else []
    replies = [reply.value for reply in first if reply is not None and isinstance(reply.value, LeafReply)]
    points = [point for reply in replies for point in reply.points[:MOST_POINTS] if point.strip()]
    inputs = [*_read_by_root(course), *(document.text for document in session.sources)]
    answer = course.closing.text if course.closing else ""
    found: dict[str, float | int | None] = {
        "facts": len(points),
        "fact_survival": survival(points, answer, [claim.text for claim in claims]) if answer else None,
        "novelty": novelty(answer, [*inputs, *points]),
        "revision_rate": revision_rate,
        "dropped_labels": session.dropped,
        "conformity": sum(
            change.conformity for change in changes([b for cast in course.ballots for b in cast.values()])
        ),
    }
    for n, turns in enumerate(course.rounds, 1):
        found[f"sibling_similarity/leaf_respond/{n}"] = _sibling_similarity(session, turns, lateral=False)
        found[f"sibling_similarity/lateral_leaves/{n}"] = _sibling_similarity(session, turns, lateral=True)
    return found


def _sibling_similarity(session: Session, turns: Mapping[str, Turn], *, lateral: bool) -> float | None:
    """Mean over families of leaves of the mean pairwise `jaccard` of their texts in that phase."""
    families: dict[str, list[str]] = {}
    for leaf in session.topology.leaves:
        said = turns[leaf].lateral if lateral else turns[leaf].response
        if said is not None:
            families.setdefault(session.topology.parents[leaf][0], []).append(said.text)
    scores = [score for texts in families.values() if (score := mean_pairwise(texts)) is not None]
    return sum(scores) / len(scores) if scores else None


def _warn(session: Session, settings: Settings, course: Course, scores: Sequence[float | None]) -> None:
    known = [score for score in scores if score is not None]
    if known and "positions" not in settings.kind and max(known) < settings.threshold - NEAR:
        session.warn(
            f"no similarity came within {NEAR} of the threshold {settings.threshold}: "
            f"the greatest was {max(known):.2f}; stability of text alone would hardly have stopped this run"
        )
    copies = [n for n, (a, b) in enumerate(pairwise(course.texts), 2) if a.text.split() == b.text.split()]
    if copies:
        session.warn(
            f"in round {', '.join(map(str, copies))} the root repeated its last text word for word; "
            "its stability says little"
        )
    said = [r for turns in course.rounds for turn in turns.values() for r in (turn.response, turn.lateral) if r]
    surplus = sum(len(r.value.objections[MOST_OBJECTIONS:]) for r in said if isinstance(r.value, Exchange))
    if surplus:
        session.warn(f"objections beyond the one that a reply may raise were left out: {surplus}")
    if session.dropped:
        session.warn(f"references to texts that were not shown were dropped: {session.dropped}")
    last = course.rounds[-1].get(ROOT) if course.rounds else None
    if course.closing is not None and last is not None and last.response is None and not course.exhausted:
        session.warn(f"the last closing call failed; the answer is {course.closing.key}")
    if course.loops and course.loops[-1].after is None:
        session.warn("the last review of the answer failed; the answer is the one before it")
