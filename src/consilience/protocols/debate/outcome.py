"""From the run of a debate to its report: the regime, dissent, changes of position, and the figures in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from consilience.domain.messages import is_empty_remark
from consilience.domain.outcome import StopReason
from consilience.domain.positions import PositionChange
from consilience.domain.report import Dissent, Objection, ObjectionFate
from consilience.domain.wording import count
from consilience.engine.analysis import novelty
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import conclusion_fields
from consilience.protocols.debate.ballots import DebateBallots, sides_of, votes_on_candidates
from consilience.protocols.debate.floor import Floor
from consilience.protocols.debate.moves import SHIFTING, ClosingSide, Side
from consilience.protocols.debate.records import Crux, DebateBallot, DebateMessage, Framing
from consilience.protocols.debate.replies import ClosingReply, SingleReply
from consilience.protocols.debate.report import DebateReport
from consilience.protocols.debate.scoring import (
    Coalitions,
    as_cast,
    contradictions_of,
    detect_coalitions,
    dissenting,
    irreducible_of,
    is_split,
    regime_of,
    roots_of,
    sides_by_question,
)
from consilience.protocols.debate.single import added_sentence, single_record
from consilience.protocols.debate.state import WHEN_CAST, SystemMetrics, tally, thread_name, when_cast
from consilience.protocols.debate.stipulated import ToldFact
from consilience.protocols.debate.stipulations import Stipulations

NO_BALLOT = "No final ballot was cast."


@dataclass
class DebateRun:
    """The results of a run so far."""

    opening: list[Reply[Any] | Failure]
    final: DebateBallots = field(default_factory=dict)
    told: Sequence[ToldFact] = ()
    closing: Reply[ClosingReply] | Failure | None = None
    single: Reply[SingleReply] | Failure | None = None
    compared: Reply[Any] | Failure | None = None
    """Which questions of the single call are cruxes of the debate."""
    stipulations: Stipulations = field(default_factory=Stipulations)

    @property
    def last_ballots(self) -> tuple[DebateBallot, ...]:
        """The ballots that count: those on the last new fact, else the final ones."""
        return self.told[-1].ballots if self.told else tuple(self.final.values())

    @property
    def answer(self) -> Reply[ClosingReply] | None:
        return self.closing if isinstance(self.closing, Reply) else None


async def report_undebated(session: Session, framing: Framing | Failure | None, stop: StopReason) -> DebateReport:
    """The report of a run without opening ballots: nothing is disputed, the framing failed, or no message was allowed."""
    found = None if isinstance(framing, Failure) else framing
    description = NO_BALLOT
    if found is not None:
        description = f"Nothing in the task is disputed: {found.reason or 'no yes/no question was found'}"
        session.warn(f"nothing to dispute was found in the task: {found.reason or 'no reason given'}")
    return await session.close(
        DebateReport,
        None,
        first=[framing] if isinstance(framing, Failure) else [],
        stop_reason=stop,
        steps=0,
        framing=found,
        regime_description=description,
    )


async def conclude(floor: Floor, run: DebateRun, stop: StopReason = StopReason.SETTLED) -> DebateReport:
    """The report. `stop` is why the exchange ended; a limit that refused a call, or no answer, comes before it."""
    session, answer = floor.session, run.answer
    final, told = run.last_ballots, run.told
    rechecks = () if told else floor.fold.rechecks
    cruxes = final_cruxes(floor)
    cast = {} if told else as_cast(final, rechecks)
    split_when_cast = any(is_split(sides.values()) for sides in cast.values())
    validated = {crux.thread for crux in cruxes if crux.validated}
    regime = regime_of(sides_by_question(final), validated, split_when_cast=split_when_cast)
    description = _regime_words(floor, final, cruxes, when_cast(rechecks, "p1"))
    declared = conclusion_fields(session, answer)
    undecided: tuple[ClosingSide, ...] = tuple("UNDECIDED" for _ in floor.framing.propositions)
    decided: tuple[ClosingSide, ...] = sides_of(answer.value, "p") if answer else undecided
    _warn(floor)
    ranked = sorted(cruxes, key=lambda crux: -crux.deciding_score.score)
    primary = next((crux for crux in ranked if crux.validated), None)
    coalitions = _coalitions(floor, final)
    report = await session.close(
        DebateReport,
        run.closing,
        first=run.opening,
        stop_reason=stop,
        steps=floor.spoken,
        **declared,
        dissent=tuple(_dissent(decided, final, cast)),
        decided=decided if answer else (),
        first_step=_first_step(answer),
        position_changes=(*_changes(floor.openings, run.final), *(change for fact in told for change in fact.moved)),
        metrics=_metrics(floor, answer),
        duration=session.clock.now,
        ballots=(*floor.openings.values(), *final),
        **floor.fold.record() | _exchange(floor),
        regime=regime,
        regime_description=description,
        **_graph(floor, run, ranked, final),
        primary_crux=primary.thread if primary else None,
        primary_crux_reason=_primary_words(primary, cruxes),
        tests=tuple(run.stipulations.tests),
        placebo=run.stipulations.placebo,
        flip_records=run.stipulations.flips,
        told=tuple(told),
        coalitions=coalitions.found,
        coalition_finding=coalitions.finding,
        single_call=single_record(session, run.single, run.compared, cruxes),
    )
    return report.model_copy(update={"added": added_sentence(report)})


def _exchange(floor: Floor) -> dict[str, Any]:
    """The fields of the report on the exchange that its notes do not tell."""
    return {
        "objections": tuple(_objections(floor.messages, floor.session.shown())),
        "attention_mode": floor.mode,
        "unopened": floor.unopened,
        "ended_by": floor.fold.ended_by or "limit",
        "system_metrics": _system_metrics(floor),
    }


def _system_metrics(floor: Floor) -> SystemMetrics:
    """The seed's figures of how the mechanics worked."""
    threads = list(floor.threads.values())
    tried = [attempt for thread in threads for attempt in thread.attempts]
    failed = [attempt for attempt in tried if not attempt.success]
    steelmen = [steelman for thread in threads for steelman in thread.steelmen]
    graded = [steelman for steelman in steelmen if steelman.grade != "PENDING"]
    retries = sum(
        any((s.agent, s.of) == (t.agent, t.of) for t in thread.steelmen[:n])
        for thread in threads
        for n, s in enumerate(thread.steelmen)
    )
    return SystemMetrics(
        messages_blocked=sum(floor.blocked.values()),
        reasons_blocked={str(reason): n for reason, n in sorted(floor.blocked.items())},
        crux_lock_attempts=len(tried),
        crux_lock_successes=len(tried) - len(failed),
        crux_lock_failures=len(failed),
        failure_reasons=dict(sorted(Counter(kind for attempt in failed for kind in attempt.kinds).items())),
        steelman_attempts=len(steelmen),
        steelman_retries=retries,
        steelman_accuracy_rate=sum(s.grade == "ACCURATE" for s in graded) / len(graded) if graded else None,
        dcg_promotions=floor.promotions,
        horizon_mismatches=floor.mismatches,
        horizon_alignments=floor.alignments,
        attempts=floor.attempts,
        failed_turns=floor.failed_turns,
        attended=floor.attended,
        attended_highly=floor.attended_highly,
    )


def _objections(messages: Sequence[DebateMessage], shown: Collection[str]) -> Iterator[Objection]:
    """Yield every challenge to a message of another agent, with its fate; `shown` are the messages that a prompt quoted.

    It yielded if its target conceded or changed its position in a reply to it. A target that replied otherwise answered it
    (`refuted`). A challenge that its target did not reply to is unanswered, whatever others said.
    """
    by_id = {message.id: message for message in messages}
    for message in messages:
        target = by_id.get(message.reply_to or "")
        objects = message.move in ("CHALLENGE", "CHALLENGE_EVIDENCE") and not message.by_moderator
        if not objects or target is None or target.agent == message.agent:
            continue
        replies = [m for m in messages if m.reply_to == message.id and m.agent == target.agent]
        yielded = next((m for m in replies if m.move in SHIFTING), None)
        answer = yielded or next(iter(replies), None)
        fate: ObjectionFate = "yielded" if yielded else "refuted" if answer else "unanswered"
        yield Objection(
            id=message.id,
            agent=message.agent,
            to=target.agent,
            text=message.text,
            read=message.id in shown,
            fate=fate,
            how=answer.text if answer else "",
            answer=answer.id if answer else None,
        )


def _first_step(answer: Reply[ClosingReply] | None) -> str:
    step = answer.value.first_step.strip() if answer else ""
    return "" if is_empty_remark(step) else step


def final_cruxes(floor: Floor) -> list[Crux]:
    """Cruxes of threads, the highest score first."""
    cruxes = [thread.crux for thread in floor.threads.values() if thread.crux is not None]
    return sorted(cruxes, key=lambda crux: -crux.score.score)


def _irreducible(floor: Floor, cruxes: Sequence[Crux], final: Sequence[DebateBallot]) -> list[str]:
    """Threads of validated cruxes on which final ballots hold both sides, and that no other of them would settle."""
    later = floor.fold.repeated
    valid = [crux.thread for crux in cruxes if crux.validated and crux.thread not in later]
    split = [thread for thread in valid if is_split({ballot.questions.get(thread) for ballot in final})]
    return irreducible_of(split, floor.fold.dependencies)


def _graph(floor: Floor, run: DebateRun, cruxes: Sequence[Crux], final: Sequence[DebateBallot]) -> dict[str, Any]:
    """The fields of the report on all threads together: how cruxes bear on each other, what all agents hold, what to ask next.
    Answers are those of final ballots, else the last in a thread."""
    agreed = tuple(votes_on_candidates(floor, run.final)[0])
    later = floor.fold.repeated
    threads = [
        crux.thread for crux in cruxes if crux.thread not in later and floor.threads[crux.thread].crystallized == "crux"
    ]
    answers: dict[str, dict[str, Side]] = {}
    for crux in cruxes:
        cast = {b.agent: b.questions[crux.thread] for b in final if crux.thread in b.questions}
        public = {agent: position.side for agent, position in crux.positions.items() if agent not in cast}
        answers[crux.thread] = cast | public
    related = floor.settings.crystallization_level > 1
    return {
        "irreducible_cruxes": tuple(_irreducible(floor, cruxes, final)),
        "common_ground": agreed,
        "contradictions": contradictions_of(floor.fold.dependencies, answers),
        "roots": roots_of(threads, floor.fold.dependencies) if related else {},
    }


def _coalitions(floor: Floor, final: Sequence[DebateBallot]) -> Coalitions:
    detected = detect_coalitions(floor.cruxes, final, floor.messages)
    live = floor.settings.coalitions == "live"
    unchanged = (
        floor.spoken - floor.coalitions_since if live and detected.partition == floor.coalitions.partition else 0
    )
    return detected.at_the_end(settled=floor.over in ("settled", "stable"), unchanged_for=unchanged if live else None)


def _regime_words(floor: Floor, final: Sequence[DebateBallot], cruxes: Sequence[Crux], changed: str) -> str:
    """The regime in a sentence, from the figures. `changed` answers on the first proposition were other ones when cast."""
    if not final:
        return NO_BALLOT
    counts, seats = sides_by_question(final), len(floor.debaters)
    first = tally(counts["p1"]) if "p1" in counts else ""
    split = sum({"YES", "NO"} <= set(sides) for sides in counts.values())
    missing = f"; {seats - len(final)} of {seats} agents cast no final ballot" if len(final) < seats else ""
    validated = sum(crux.validated for crux in cruxes)
    return (
        f"{first}{changed} on the first proposition; {split} of {len(counts)} questions split; "
        f"{count(validated, 'validated crux')}{missing}."
    )


def _primary_words(primary: Crux | None, cruxes: Sequence[Crux]) -> str:
    if primary is None:
        return "no crux was validated" if cruxes else ""
    score, kind = primary.deciding_score, "when told so" if primary.observed_score else "as declared"
    figures = f"{kind}: coverage {score.coverage:.2f} × polarity {score.polarity:.2f} × impact {score.impact:.2f}"
    return f"highest crux score of {len([c for c in cruxes if c.validated])}: {score.score:.2f} ({figures})"


def _dissent(
    answer: Sequence[ClosingSide], final: Sequence[DebateBallot], cast: Mapping[str, Mapping[str, Side]]
) -> Iterator[Dissent]:
    for held in dissenting(answer, final, cast):
        place = f"p{held.n}: {held.side}" if len(answer) > 1 else held.side
        text = held.ballot.reason or held.ballot.claim
        yield Dissent(agent=held.ballot.agent, text=text, position=place + (WHEN_CAST if held.only_when_cast else ""))


def _changes(openings: DebateBallots, final: DebateBallots) -> Iterator[PositionChange]:
    for agent, ballot in final.items():
        before = openings[agent].positions
        if before != ballot.positions:
            yield PositionChange(
                agent=agent,
                before=", ".join(before),
                after=", ".join(ballot.positions),
                step=1,
                cause=ballot.cause,
                conformity=ballot.cause is None,
            )


def _metrics(floor: Floor, answer: Reply[ClosingReply] | None) -> dict[str, float | int | None]:
    spoken = [message.text for message in floor.said]
    documents = [document.text for document in floor.session.sources]
    return {
        "novelty": novelty(answer.text, [*spoken, *documents]) if answer else None,
        "dropped_labels": floor.session.dropped,
        "messages": floor.spoken,
        "threads": len(floor.threads),
        "attention_high": floor.attended_highly / floor.attended if floor.attended else None,
    }


def _warn(floor: Floor) -> None:
    session = floor.session
    if floor.failed_turns:
        session.warn(f"turns that failed: {floor.failed_turns} of {floor.attempts}")
    lost = {key.split("/")[0] for key in floor.unanswered}
    if "crystallize" in lost:
        keys = (key.split("/") for key in floor.unanswered)
        threads = ", ".join(dict.fromkeys(thread_name(place[0]) for kind, *place in keys if kind == "crystallize"))
        session.warn(
            f"the crystallizer did not write down {threads}: question and falsifiers stand as they were declared"
        )
    if lost & {"relate", "confirm"}:
        session.warn("a comparison of cruxes failed: duplicates and dependencies may be missing")
    if "synthesize" in lost:
        session.warn("the search for common ground failed: no statement was put to the vote")
    silent = [agent for agent in floor.openings if not floor.members[agent].spoken]
    if silent:
        session.warn(f"agents that never spoke in a thread: {', '.join(floor.names[agent] for agent in silent)}")
