"""The report of a debate as sections, the decision brief: all of it follows from the fields of the report.

Ballots come first, since they decide and the answer does not; then each crux, who moved and why, dissent, what was never
resolved, and how far the debate can be trusted. A label in brackets names the message where a line comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from consilience.domain.outcome import StopReason
from consilience.domain.sections import (
    Block,
    Bullets,
    HeldPosition,
    Item,
    KeyFigure,
    Paragraph,
    Presentation,
    QuoteBlock,
    SeatNote,
    Section,
    Table,
)
from consilience.protocols._common.presenting import bullets, extend_presentation, key_figures, plural
from consilience.protocols.debate.attention import NOTICED
from consilience.protocols.debate.crux_sections import crux_blocks
from consilience.protocols.debate.moves import ACTIVE, FIRM, Side
from consilience.protocols.debate.state import DebateState, thread_name
from consilience.protocols.debate.tested_sections import tested_sections
from consilience.protocols.debate.trust_sections import SINGLE_HEADING, single_blocks, trust_items
from consilience.protocols.debate.views import transcript_blocks, views
from consilience.protocols.debate.words import (
    ENDINGS,
    REGIMES,
    SIDES,
    STAGES,
    ballot_words,
    certainty,
    excerpt,
    side_word,
    tally,
)

if TYPE_CHECKING:
    from consilience.protocols.debate.report import DebateReport


def state_of(report: DebateReport) -> DebateState:
    return DebateState(
        agents=report.agents,
        letters=report.letters,
        framing=report.framing,
        messages=report.messages,
        threads=report.threads,
        ballots=report.ballots,
        duration=report.duration,
    )


def presentation(report: DebateReport) -> Presentation:
    """Return how a finished debate is shown."""
    state = state_of(report)
    ordinary = (StopReason.SETTLED, StopReason.STALLED, StopReason.EXHAUSTED_STEPS)
    sections = (
        Section(name="cruxes", part="differences", blocks=tuple(crux_blocks(state))),
        *tested_sections(report, state),
        Section(name="changes", part="differences", heading="Changes of position", blocks=tuple(_moves(state))),
        Section(name="dissent", part="differences", heading="Dissent", blocks=tuple(_dissent(report, state))),
        Section(
            name="unresolved",
            part="differences",
            heading="Unresolved threads",
            blocks=bullets(_unresolved(report, state)),
        ),
        Section(name="debate", part="trust", blocks=bullets(trust_items(report, state))),
        Section(name="single-call", part="trust", heading=SINGLE_HEADING, blocks=tuple(single_blocks(report, state))),
        Section(
            name="transcript",
            part="figures",
            heading="Messages in order",
            blocks=tuple(transcript_blocks(state)),
            folded=True,
        ),
    )
    return extend_presentation(
        report,
        max_steps="max_messages",
        ending=ENDINGS.get(report.ended_by, "") if report.stop_reason in ordinary else "",
        above_answer=tuple(_headline(report, state)),
        sections=sections,
        figures=tuple(_figures(report)),
        views=views(state),
        positions=tuple(_positions(state)),
        seats=_seats(state),
    )


# --- above the answer


def _headline(report: DebateReport, state: DebateState) -> Iterator[Block]:
    """What limits the result first, then the ballots on each proposition with what the answer decided, then the regime."""
    limits = [*_shortcomings(report, state)]
    if limits:
        yield Paragraph(lead="Incomplete:", text=" ".join(limits))
    if report.framing is not None and not state.propositions:
        reason = report.framing.reason or "no yes/no question was found in it"
        yield Paragraph(lead="Nothing to debate:", text=f"the task holds no dispute ({reason.rstrip('.')}).")
    if not state.final:
        return
    several = len(state.propositions) > 1
    models = {agent.model for agent in report.agents if agent.id in state.letters}
    on = f" on {plural(len(models), 'model')}" if all(models) else ""
    for n, text in enumerate(state.propositions):
        sides = [ballot.positions[n] for ballot in state.final.values()]
        voted = f"sealed final ballots of {len(sides)} of {plural(len(state.debaters), 'agent')}{on}"
        which = f"Proposition {n + 1}: {text}" if several else text
        decided = _decided(report.decided[n] if report.decided else None, sides)
        yield Paragraph(lead=f"{_verdict(sides, len(state.debaters))}: {tally(sides)}", text=f"({voted}). {which}")
        yield Paragraph(text=decided)
    yield Paragraph(text=REGIMES[report.regime])


def _shortcomings(report: DebateReport, state: DebateState) -> Iterator[str]:
    """Sentences on why the debate did not come to its end."""
    open_threads = [thread for thread in report.threads if thread.status in ACTIVE]
    where = ", ".join(f"{thread_name(t.id)} in its stage {STAGES[t.stage]}" for t in open_threads)
    left = f" Still open: {where}." if open_threads else ""
    if report.ended_by == "stalled" or report.stop_reason is StopReason.STALLED:
        yield f"The debate stalled: messages brought no question, no lock and no crux any more.{left}"
    elif report.ended_by == "max_messages":
        yield f"The limit on messages ended the debate after {report.steps}.{left}"
    elif report.ended_by == "max_duration":
        yield f"The limit on virtual time ended the debate after {report.duration // 1000} s.{left}"
    elif report.ended_by == "limit" or report.stop_reason in (
        StopReason.EXHAUSTED_BUDGET,
        StopReason.EXHAUSTED_TIME,
    ):
        yield f"A limit on what the session may spend cut the debate short.{left}"
    silent = [state.names[agent] for agent in state.debaters if agent not in state.final]
    if state.propositions and silent and len(silent) == len(state.debaters):
        yield "No final ballot was cast, so nothing shows where the agents stand."
    elif state.propositions and silent:
        yield f"No final ballot from {' and '.join(silent)}; the counts below leave {plural(len(silent), 'agent')} out."


def _verdict(sides: list[Side], agents: int) -> str:
    """Return how ballots stand to one another, in a word. One side with undecided or missing agents is no unanimity."""
    firm = {side for side in sides if side in FIRM}
    if len(firm) == 2:
        return "SPLIT"
    if not firm:
        return "UNDECIDED"
    return "UNANIMOUS" if "UNCERTAIN" not in sides and len(sides) == agents else "ONE-SIDED"


def _decided(decided: str | None, sides: list[Side]) -> str:
    """Return what the answer decided and whether more firm ballots are on its side."""
    yes, no = (sides.count(side) for side in FIRM)
    if decided is None:
        return "There is no answer to compare with the ballots."
    if decided == "UNDECIDED":
        return "The answer takes neither side."
    own, other = (yes, no) if decided == "YES" else (no, yes)
    word = SIDES[decided]
    if own == other:
        return f"The answer decides {word}; {'no ballot is firm' if not own else 'the firm ballots are tied'}."
    with_most = (
        "as most firm ballots do" if own > other else f"against most firm ballots ({own} for it, {other} against)"
    )
    if own > other and not other:
        with_most = "as all firm ballots do"
    return f"The answer decides {word}, {with_most}."


# --- who moved, dissent, what was never resolved


def _moves(state: DebateState) -> Iterator[Block]:
    """Where each agent stood at first and in the end; of every change the message that caused it, quoted."""
    if not state.opening:
        return
    several = len(state.propositions) > 1
    rows = []
    for agent in state.debaters:
        before, after = state.opening.get(agent), state.final.get(agent)
        claim = after.claim if after and after.claim else before.claim if before else ""
        cells = (
            "no ballot" if ballot is None else f"{ballot_words(ballot, several)}, {certainty(ballot.confidence)}"
            for ballot in (before, after)
        )
        rows.append((state.names[agent], *cells, claim))
    yield Table(heads=("agent", "opening ballot", "final ballot", "argues for"), rows=tuple(rows), left=4)
    items = [*_ballot_changes(state, several), *_crux_changes(state)]
    if items:
        yield Bullets(items=tuple(items))
    if state.final and not any(True for _ in _ballot_changes(state, several)):
        yield Paragraph(text="No agent changed its position on the task between its two ballots.")


def _ballot_changes(state: DebateState, several: bool) -> Iterator[Item]:
    for agent, after in state.final.items():
        before = state.opening.get(agent)
        if before is None or before.positions == after.positions:
            continue
        cause = state.by_id.get(after.cause or "")
        why = "it named no message that changed its mind"
        if cause:
            why = f"because of {state.names[cause.agent]}{state.mark(cause.id)}: “{excerpt(cause.text)}”"
        yield Item(
            lead=f"{state.names[agent]}: {ballot_words(before, several)} → {ballot_words(after, several)},",
            text=why,
            note=f"its reason: {excerpt(after.reason)}" if after.reason else "",
        )


def _crux_changes(state: DebateState) -> Iterator[Item]:
    """Changes on the question of a thread: said in public, or seen only in the sealed ballot."""
    for n, crux in enumerate(state.cruxes, 1):
        for agent in crux.positions:
            before, _ = state.committed_side(agent, crux.thread)
            now = state.final_side(agent, crux)
            if before is None or now is None or before == now:
                continue
            said = [m for m in state.said_in(crux.thread) if m.agent == agent and m.move == "UPDATE_POSITION"]
            text = "only in its sealed ballot; in public it kept its position"
            if said and said[-1].new_side == now:
                text = f"said in public [{said[-1].label}]: “{excerpt(said[-1].text)}”"
            elif said:
                text = f"in its sealed ballot; in public it last said {side_word(said[-1].new_side)} [{said[-1].label}]"
            yield Item(lead=f"{state.names[agent]} on crux {n}: {side_word(before)} → {side_word(now)},", text=text)


def _dissent(report: DebateReport, state: DebateState) -> Iterator[Block]:
    """Final ballots against the answer; against the larger side where the answer is undecided, on a tie those of both."""
    if report.dissent and "UNDECIDED" in report.decided:
        yield Paragraph(
            text="Where the answer takes no side, these are the ballots of the smaller side, on a tie of both."
        )
    for dissent in report.dissent:
        position = (dissent.position or "").rpartition(" ")[2]
        which = (dissent.position or "").partition(":")[0].removeprefix("p") if ":" in (dissent.position or "") else ""
        of = f"proposition {which}: " if which else ""
        yield QuoteBlock(text=dissent.text, by=f"{state.names[dissent.agent]}, {of}{side_word(position)}")
    if not report.dissent and report.answer is not None and state.final:
        undecided = sum("UNCERTAIN" in ballot.positions for ballot in state.final.values())
        rest = f"; {plural(undecided, 'agent')} stayed undecided" if undecided else ""
        yield Paragraph(text=f"No sealed final ballot is against the answer{rest}.")


def _unresolved(report: DebateReport, state: DebateState) -> Iterator[Item]:
    """Threads that ended without a crux that holds: failed, stale, merged, or still open at the end."""
    for thread in report.threads:
        if thread.status == "CONVERGED":
            continue
        said = state.said_in(thread.id)
        spoken = [message for message in said if not message.by_moderator]
        why = {
            "FAILED_LOCK": "failed: " + thread.closed_by,
            "STALE": f"went stale: {thread.closed_by}",
            "MERGED": f"merged into {thread_name(thread.merged_into or '')}: {thread.closed_by}",
        }.get(thread.status, f"still open in its stage {STAGES[thread.stage]} when the debate ended")
        last = f", the last [{spoken[-1].label}]" if spoken else ""
        yield Item(
            lead=f"{thread.question or thread.topic}",
            text=f"({thread_name(thread.id)}) {why}",
            note=f"{plural(len(spoken), 'message')}{last}",
        )


# --- figures


def _figures(report: DebateReport) -> Iterator[KeyFigure]:
    metrics = report.system_metrics
    names = {
        "messages": "Messages of agents",
        "threads": "Threads",
    }
    shares = {"attention_high": f"Answered messages with an attention score of at least {NOTICED:g}"}
    yield KeyFigure(name="Virtual time", value=f"{report.duration / 1000:.0f} s")
    yield from key_figures(report.metrics, names=names, shares=shares)
    yield KeyFigure(name="Replies asked for in threads", value=f"{metrics.attempts}, {metrics.failed_turns} failed")
    yield KeyFigure(name="Replies blocked", value=str(metrics.messages_blocked))
    yield KeyFigure(
        name="Crux locks", value=f"{metrics.crux_lock_successes} of {plural(metrics.crux_lock_attempts, 'attempt')}"
    )
    yield KeyFigure(
        name="Time horizons", value=f"{metrics.horizon_mismatches} mismatches, {metrics.horizon_alignments} aligned"
    )
    if report.primary_crux:
        yield KeyFigure(name="Primary crux", value=f"{thread_name(report.primary_crux)}, {report.primary_crux_reason}")


def _positions(state: DebateState) -> Iterable[HeldPosition]:
    several = len(state.propositions) > 1
    for ballot in state.ballots:
        step = "final 1" if ballot.step else "opening 1"
        yield HeldPosition(agent=ballot.agent, step=step, text=ballot_words(ballot, several))


def _seats(state: DebateState) -> dict[str, SeatNote]:
    """The movement of every agent from its opening to its final ballot, `yes → no`."""
    several = len(state.propositions) > 1
    notes = {}
    for agent in state.debaters:
        ballots = [ballot for ballot in (state.opening.get(agent), state.final.get(agent)) if ballot]
        if words := list(dict.fromkeys(ballot_words(ballot, several) for ballot in ballots)):
            notes[agent] = SeatNote(text=" → ".join(words))
    return notes
