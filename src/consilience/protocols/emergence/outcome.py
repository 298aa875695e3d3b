"""From the course of a run to its report: what stands, who differed, how far the figures go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from consilience.domain.agents import Agent
from consilience.domain.messages import is_empty_remark
from consilience.domain.outcome import StopReason
from consilience.domain.positions import changes, exact, one_sided, pool, shortfall
from consilience.domain.report import Claim, Confidence, Dissent, Objection
from consilience.domain.topology import Topology
from consilience.engine.analysis import novelty
from consilience.engine.session import Session
from consilience.engine.similarity import jaccard, mean_pairwise
from consilience.engine.work import Failure, Reply, drawn_on
from consilience.protocols._common.answers import extract
from consilience.protocols._common.claims import conclusion_fields
from consilience.protocols._common.trees import ROOT, UNPLACED
from consilience.protocols.emergence.course import Course
from consilience.protocols.emergence.replies import RootRevision
from consilience.protocols.emergence.report import AgentRound, AnswerChange, Convergence, EmergenceReport, Round
from consilience.protocols.emergence.settings import Settings
from consilience.protocols.emergence.turns import Turn

NEAR = 0.2
"""A score that stays further below the threshold than this says the threshold was out of reach."""


async def conclude(session: Session, settings: Settings, course: Course, stop: StopReason) -> EmergenceReport:
    """The report. Dissent and objections are computed here from what agents declared, never by a model."""
    closing = course.closing
    cut = closing is not None and closing.cut
    ballots = tuple(ballot for cast in course.ballots for ballot in cast.values())
    pooled = pool(ballots)
    position, decided_by = _position(settings, course, pooled)
    unmet = _unmet(settings, course, position, decided_by)
    objections = course.book.outcomes(session.shown())
    conclusion = conclusion_fields(session, closing)
    answer_changes = tuple(_answer_changes(session, course))
    rounds = tuple(round_of(session.agents, settings, course, n) for n in range(1, len(course.rounds) + 1))
    scores = tuple(r.convergence_score for r in rounds[1:])
    _warn(session, settings, course, scores)
    if settings.ballots and closing and position is None:
        session.warn(UNPLACED)
    laterals = [turn for turns in course.rounds for turn in turns.values() if turn.lateral is not None]
    revised = [turn for turn in laterals if _revised(turn)]
    rate = len(revised) / len(laterals) if laterals else None
    inputs = [*_read_by_root(course), *(document.text for document in session.sources)]
    metrics = await session.compute(lambda: _metrics(session.topology, course, inputs))
    return await session.report(
        EmergenceReport,
        first=_first(session, course),
        stop_reason=stop,
        unmet=unmet,
        answer_cut=cut,
        check=course.checks[-1] if course.checks else None,
        confidence=_confidence(position, pooled),
        steps=len(course.rounds),
        answer=closing.text if closing else None,
        closing=drawn_on(closing, course.failures),
        position_changes=tuple(changes(ballots)),
        objections=objections,
        dissent=_dissent(settings, course, position or next(iter(pooled), None), objections),
        metrics=metrics
        | {"revision_rate": rate, "dropped_labels": session.dropped, "void_objections": course.book.void},
        answer_changes=answer_changes,
        rounds=rounds,
        convergence=Convergence(
            converged=stop is StopReason.CONVERGED and not unmet and not cut,
            rounds_used=len(course.rounds),
            score_trajectory=scores,
        ),
        strange_loops=tuple(course.loops),
        ballots=ballots,
        pool=pooled,
        position=position,
        decided_by=decided_by,
        lateral_revision_rate=rate,
        revision_counts=dict(Counter(turn.agent for turn in revised)),
        **conclusion,
    )


def _unmet(settings: Settings, course: Course, position: str | None, decided_by: str | None) -> tuple[str, ...]:
    """What keeps the run from counting as converged. Where the pool decides, the answer's own position is not what stands."""
    unmet = [*course.silences, *(f"no reply to finalize/{loop.index}" for loop in course.loops if loop.after is None)]
    if settings.ballots and course.closing is not None and decided_by != "pool":
        unmet += filter(None, [shortfall(position, course.held)])
    return tuple(unmet)


def _answer_changes(session: Session, course: Course) -> Iterator[AnswerChange]:
    """What the root declared about each text that followed an earlier one."""
    for reply in (*course.texts, *course.reviews):
        if isinstance(reply.value, RootRevision):
            changes = [change for change in reply.value.changes if not is_empty_remark(change.text)]
            yield AnswerChange(
                key=reply.key,
                stance=reply.value.stance,
                changes=tuple(Claim(text=one.text.strip(), ids=session.named(reply, one.ids)) for one in changes),
            )


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
    objections that stand or found no answer."""
    if not settings.ballots:
        return tuple(Dissent(agent=o.agent, text=o.text, id=o.id) for o in objections if o.is_open)
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
            if earlier is not None and turn.text is not None and turn.replied
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
            stance="changed" if turn.changed else turn.stance,
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


def _metrics(topology: Topology, course: Course, inputs: Sequence[str]) -> dict[str, float | int | None]:
    """Figures that compare texts; `inputs` are what the root could read."""
    first = course.rounds[0].values() if course.rounds else ()
    points = [point for turn in first if turn.agent in topology.leaves for point in turn.points]
    answer = course.closing.text if course.closing else ""
    found: dict[str, float | int | None] = {
        "novelty": novelty(answer, [*inputs, *points]),
        "conformity": sum(
            change.conformity for change in changes([b for cast in course.ballots for b in cast.values()])
        ),
    }
    for n, turns in enumerate(course.rounds, 1):
        found[f"sibling_similarity/leaf_respond/{n}"] = _sibling_similarity(topology, turns, lateral=False)
        found[f"sibling_similarity/lateral_leaves/{n}"] = _sibling_similarity(topology, turns, lateral=True)
    return found


def _sibling_similarity(topology: Topology, turns: Mapping[str, Turn], *, lateral: bool) -> float | None:
    """Mean over families of leaves of the mean pairwise `jaccard` of their texts in that phase."""
    families: dict[str, list[str]] = {}
    for leaf in topology.leaves:
        said = turns[leaf].lateral if lateral else turns[leaf].response
        if said is not None:
            families.setdefault(topology.parents[leaf][0], []).append(said.text)
    scores = [score for texts in families.values() if (score := mean_pairwise(texts)) is not None]
    return sum(scores) / len(scores) if scores else None


def _warn(session: Session, settings: Settings, course: Course, scores: Sequence[float | None]) -> None:
    known = [score for score in scores if score is not None]
    if (
        known
        and settings.kind in ("jaccard", "embedding")
        and exact(max(known)) < exact(settings.threshold) - exact(NEAR)
    ):
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
    if course.book.surplus:
        session.warn(f"objections beyond the cap of a reply were left out: {course.book.surplus}")
    if course.book.void:
        session.warn(f"objections that were empty, or to no text of another agent, were left out: {course.book.void}")
    if session.dropped:
        session.warn(f"references to texts that were not shown were dropped: {session.dropped}")
    last = course.rounds[-1].get(ROOT) if course.rounds else None
    if course.closing is not None and last is not None and last.response is None and not course.exhausted:
        session.warn(f"the last closing call failed; the answer is {course.closing.key}")
    if course.loops and course.loops[-1].after is None:
        session.warn("the last review of the answer failed; the answer is the one before it")
