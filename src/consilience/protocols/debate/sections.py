"""The report of a debate as sections, the decision brief: all of it follows from the fields of the report.

Ballots come first, since they decide and the answer does not; then each crux, who moved and why, dissent, what was never
resolved, and how far the debate can be trusted. A label in brackets names the message where a line comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from consilience.domain.outcome import StopReason
from consilience.domain.report import Report
from consilience.domain.sections import (
    Block,
    Bullets,
    Details,
    HeldPosition,
    Item,
    KeyFigure,
    Paragraph,
    Presentation,
    QuoteBlock,
    ReportPart,
    SeatNote,
    Section,
    SettingLimit,
    Table,
    View,
    extend_presentation,
)
from consilience.domain.wording import count, join_names
from consilience.protocols._common.presenting import bullets, key_figures
from consilience.protocols.debate.attention import NOTICED
from consilience.protocols.debate.brief import headline, qualifications, trust_items
from consilience.protocols.debate.crux_map import crux_map
from consilience.protocols.debate.crux_sections import (
    coalitions,
    common_ground,
    crux_blocks,
    dependencies,
    next_questions,
)
from consilience.protocols.debate.moves import ACTIVE, ENDINGS, SHIFTING, STAGES, ClosingSide
from consilience.protocols.debate.records import DebateBallot, Recheck
from consilience.protocols.debate.scoring import as_cast, dissenting
from consilience.protocols.debate.single import single_blocks
from consilience.protocols.debate.state import (
    WHEN_CAST,
    DebateData,
    DebateState,
    excerpt,
    side_word,
    tally,
    thread_name,
)
from consilience.protocols.debate.stipulated import ToldFact
from consilience.protocols.debate.views import transcript_blocks, views


def presentation(report: DebateData) -> Presentation:
    """Return how a finished debate is shown."""
    ordinary = (StopReason.SETTLED, StopReason.STALLED, StopReason.EXHAUSTED_STEPS)
    sections = (
        _section("cruxes", "", crux_blocks(report)),
        _section("told", "What the new fact changed", _told(report)),
        _section("changes", "Changes of position", _moves(report)),
        _section("common-ground", f"All {len(report.debaters)} agents confirmed", common_ground(report)),
        _section("coalitions", "Who stands together", coalitions(report)),
        _section("dependencies", "What depends on what", bullets(dependencies(report))),
        _section("next-questions", "What to ask next", bullets(next_questions(report)), "unknown"),
        _section("dissent", "Dissent", _dissent(report)),
        _section("unresolved", "Unresolved threads", bullets(_unresolved(report))),
        _section("debate", "", bullets(trust_items(report)), "trust"),
        _section("single-call", "Compared with one call", single_blocks(report), "trust"),
        _section("transcript", "Messages in order", transcript_blocks(report), "figures", folded=True),
    )
    return extend_presentation(
        Report.presentation(report),
        ending=ENDINGS.get(report.ended_by, "") if report.stop_reason in ordinary else "",
        ended_by=_limit(report),
        above_answer=(*_told_headline(report), *headline(report)),
        below_answer=tuple(qualifications(report)),
        sections=sections,
        figures=tuple(_figures(report)),
        views=(*views(report), *_crux_map(report)),
        positions=tuple(_positions(report)),
        seats=_seats(report),
        names=report.names,
        calls=_calls(report),
        can_tell=bool(report.final),
    )


def _crux_map(report: DebateData) -> Iterator[View]:
    if len(report.cruxes) > 1:
        yield crux_map(report, report.coalitions, bullets(dependencies(report)))


def _limit(report: DebateData) -> SettingLimit | None:
    """Return the limit of the settings that ended the debate, if that was another one than that on messages."""
    if report.ended_by != "max_duration" or report.stop_reason is not StopReason.EXHAUSTED_STEPS:
        return None
    return SettingLimit(setting="max_duration", words=f"{report.duration // 1000} s of virtual time")


def _section(
    name: str, heading: str, blocks: Iterable[Block], part: ReportPart = "differences", *, folded: bool = False
) -> Section:
    return Section(name=name, part=part, heading=heading, blocks=tuple(blocks), folded=folded)


# --- who moved, dissent, what was never resolved


def _moves(report: DebateData) -> Iterator[Block]:
    """Where each agent stood at first and in the end; of every change the message that caused it, quoted."""
    if not report.opening:
        return
    rows, refs = [], []
    for agent in report.debaters:
        ballots = (report.opening.get(agent), report.final.get(agent))
        claims = [ballot.claim for ballot in ballots if ballot and ballot.claim]
        rows.append((report.names[agent], *map(report.ballot_cell, ballots), claims[-1] if claims else ""))
        refs.append(tuple(ballot.key for ballot in ballots if ballot))
    yield Table(
        heads=("agent", "opening ballot", "final ballot", "argues for"), rows=tuple(rows), left=4, refs=tuple(refs)
    )
    yield from bullets(
        [
            *_ballot_changes(report),
            *_crux_changes(report),
            *_public_and_private(report),
            *_rechecks(report),
        ]
    )
    if not report.final:
        return
    if report.position_changes:
        unargued = sum(change.conformity for change in report.position_changes)
        yield Paragraph(lead="Changes without a named argument:", text=f"{unargued}.", refs=report.ballot_refs)
    else:
        yield Paragraph(
            text="No agent changed its position on the task between its two ballots.", refs=report.ballot_refs
        )


def _ballot_changes(state: DebateState) -> Iterator[Item]:
    for agent, after in state.final.items():
        before = state.opening.get(agent)
        if before is None or before.positions == after.positions:
            continue
        cause = state.by_id.get(after.cause or "")
        why = "it named no message that changed its mind"
        if cause:
            why = f"because of {state.names[cause.agent]}{state.mark(cause.id)}: “{excerpt(cause.text)}”"
        yield Item(
            lead=f"{state.names[agent]}: {state.position_words(before)} → {state.position_words(after)},",
            text=why,
            note=f"its reason: {excerpt(after.reason)}" if after.reason else "",
            refs=(before.key, after.key, *((cause.id,) if cause else ())),
        )


def _crux_changes(report: DebateData) -> Iterator[Item]:
    """Changes on the question of a thread: said in public, or seen only in the sealed ballot, unless a recheck shows them."""
    rechecked = {(check.agent, check.question) for check in report.rechecks}
    for n, crux in enumerate(report.cruxes, 1):
        for agent in crux.positions:
            before, committed = report.committed_side(agent, crux.thread)
            now = report.final_side(agent, crux)
            if before is None or committed is None or now is None or before == now:
                continue
            updates = [m for m in report.said_in(crux.thread) if m.agent == agent and m.move in SHIFTING and m.new_side]
            if not updates and (agent, crux.thread) in rechecked:
                continue
            text = "only in its secret ballot; in public it kept its position"
            if updates and updates[-1].new_side == now:
                text = f"said in public [{updates[-1].label}]: “{excerpt(updates[-1].text)}”"
            elif updates:
                text = f"in its secret ballot; in public it last said {side_word(updates[-1].new_side)} [{updates[-1].label}]"
            lead = f"{report.names[agent]} on crux {n}: {side_word(before)} → {side_word(now)},"
            ballot = (report.final[agent].key,) if agent in report.final else ()
            yield Item(lead=lead, text=text, refs=(committed.id, *(m.id for m in updates[-1:]), *ballot))


def _public_and_private(state: DebateState) -> Iterator[Item]:
    """Cruxes on which the last public positions count otherwise than the sealed ballots."""
    for n, crux in enumerate(state.cruxes, 1):
        public = state.public_positions(crux.thread)
        cast = [
            agent for agent in public if crux.thread in (state.final[agent].questions if agent in state.final else ())
        ]
        voted = [state.final[agent].questions[crux.thread] for agent in cast]
        sides = [public[agent].new_side or "UNCERTAIN" for agent in cast]
        if sorted(sides) != sorted(voted):
            text = f"{tally(sides)} when last said in public; {tally(voted)} in the secret ballots of the same agents."
            refs = (*(public[agent].id for agent in cast), *(state.final[agent].key for agent in cast))
            yield Item(lead=f"On crux {n}:", text=text, refs=refs)


def _dissent(report: DebateData) -> Iterator[Block]:
    """Final ballots against the answer; against the larger side where the answer is undecided, on a tie those of both."""
    if report.dissent and "UNDECIDED" in report.decided:
        text = "Where the answer takes no side, these are the ballots of the smaller side, on a tie of both."
        yield Paragraph(text=text, refs=("closing",))
    decided: Sequence[ClosingSide] = report.decided or ["UNDECIDED"] * len(report.propositions)
    final = list(report.final.values())
    for held in dissenting(decided, final, {} if report.told else as_cast(final, report.rechecks)):
        mark = f"{WHEN_CAST}, counts as undecided" if held.only_when_cast else ""
        proposition_note = f"{report.proposition_name(held.n - 1)}: " if len(decided) > 1 else ""
        by = f"{report.names[held.ballot.agent]}, {proposition_note}{side_word(held.side)}{mark}"
        text = held.ballot.reason or held.ballot.claim
        yield QuoteBlock(text=text, by=by, refs=(held.ballot.key,))
    if not report.dissent and report.answer is not None and report.final:
        undecided = sum("UNCERTAIN" in ballot.positions for ballot in report.final.values())
        undecided_note = f"; {count(undecided, 'agent')} stayed undecided" if undecided else ""
        yield Paragraph(text=f"No secret final ballot is against the answer{undecided_note}.", refs=report.final_refs)
    yield from _objections(report)


def _objections(report: DebateData) -> Iterator[Block]:
    """Those that were never answered in full; the others folded, each with what met it."""
    unanswered = [objection for objection in report.objections if objection.fate == "unanswered"]
    yield from bullets(
        Item(
            lead="Open objection, never answered:",
            text=f"“{objection.text}”",
            by=f"{report.names[objection.agent]}{report.mark(objection.id)} → {report.names.get(objection.to, objection.to)}",
            note="" if objection.read else "no agent read it",
            refs=(objection.id,),
        )
        for objection in unanswered
    )
    met = [objection for objection in report.objections if objection.fate != "unanswered"]
    if not met:
        return
    items = (
        Item(
            lead="Conceded:" if objection.fate == "yielded" else "Answered:",
            text=f"“{excerpt(objection.text)}” — {report.names[objection.agent]}{report.mark(objection.id)}; the reply: "
            f"“{excerpt(objection.how)}”{report.mark(objection.answer)}",
            refs=(objection.id, *([objection.answer] if objection.answer else [])),
        )
        for objection in met
    )
    yielded = sum(objection.fate == "yielded" for objection in met)
    summary = f"{count(len(met), 'objection')} met: {yielded} conceded, {len(met) - yielded} answered otherwise"
    yield Details(summary=summary, blocks=(Bullets(items=tuple(items)),))


def _unresolved(report: DebateData) -> Iterator[Item]:
    """Threads that ended without a crux that holds: failed, stale, merged, or not finished; then questions that two agents wanted
    and no thread asked. Of a validated crux its own section says that its thread is not finished."""
    for thread in report.threads:
        if thread.status == "CONVERGED" or (thread.status in ACTIVE and thread.crux and thread.crux.validated):
            continue
        messages = report.said_in(thread.id)
        spoken = [message for message in messages if not message.by_moderator]
        reasons = {
            "FAILED_LOCK": "failed: " + thread.closed_by,
            "STALE": f"went stale: {thread.closed_by}",
            "MERGED": f"merged into {thread_name(thread.merged_into or '')}: {thread.closed_by}",
        }.get(thread.status, f"not finished (stage: {STAGES[thread.stage]})")
        last = f", the last [{spoken[-1].label}]" if spoken else ""
        yield Item(
            lead=f"{thread.question or thread.topic}",
            text=f"({thread_name(thread.id)}) {reasons}",
            note=f"{count(len(spoken), 'message')}{last}",
            refs=tuple(message.id for message in (messages[:1] + spoken[-1:])) or report.last_refs,
        )
    for question in report.unopened:
        supporters = [f"{report.names[report.by_id[id].agent]}{report.mark(id)}" for id in question.supports]
        yield Item(
            lead=question.question,
            text=f"(proposed by {report.names[question.agent]}{report.mark(question.message)}, "
            f"supported by {join_names(supporters)}) no thread was opened: {question.reason}",
            refs=(question.message, *question.supports),
        )


# --- figures


def _figures(report: DebateData) -> Iterator[KeyFigure]:
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
        name="Crux locks", value=f"{metrics.crux_lock_successes} of {count(metrics.crux_lock_attempts, 'attempt')}"
    )
    differed = "differed once" if metrics.horizon_mismatches == 1 else f"differed {metrics.horizon_mismatches} times"
    yield KeyFigure(name="Time horizons", value=f"{differed}, aligned {metrics.horizon_alignments}")
    if report.primary_crux:
        yield KeyFigure(name="Primary crux", value=f"{thread_name(report.primary_crux)}, {report.primary_crux_reason}")


def _calls(report: DebateData) -> str:
    """Return `debate 36, tests 9, single call 2`."""
    usage = report.ledger.actual
    failed = [call.key.split("/")[0] for call in report.failed_calls if not call.exhausted]
    cast = [test.ballots for test in report.tests] + ([report.placebo.ballots] if report.placebo else [])
    single = report.single_call
    parts = {
        "tests": sum(map(len, cast)) + failed.count("test"),
        "single call": int(single is not None)
        + int(single is not None and single.compared_by != "")
        + failed.count("single")
        + failed.count("named"),
    }
    other_calls = usage.calls + usage.inherited + usage.cached - sum(parts.values())
    return ", ".join(f"{name} {number}" for name, number in {"debate": other_calls, **parts}.items() if number)


def _positions(state: DebateState) -> Iterable[HeldPosition]:
    for ballot in state.ballots:
        step = "final 1" if ballot.step else "opening 1"
        yield HeldPosition(agent=ballot.agent, step=step, text=state.position_words(ballot))


def _seats(state: DebateState) -> dict[str, SeatNote]:
    """The movement of every agent from its opening to its final ballot, `yes → no`."""
    notes = {}
    for agent in state.debaters:
        ballots = [ballot for ballot in (state.opening.get(agent), state.final.get(agent)) if ballot]
        if words := list(dict.fromkeys(state.position_words(ballot) for ballot in ballots)):
            notes[agent] = SeatNote(text=" → ".join(words))
    return notes


def _told_headline(report: DebateData) -> Iterator[Block]:
    """Return the last new fact with those who moved, for the top of the report."""
    if report.told:
        fact = report.told[-1]
        refs = tuple(f"told/{len(report.told)}/{ballot.agent}" for ballot in fact.ballots)
        yield Paragraph(lead="New fact:", text=f"{fact.fact} {_count(fact, report)}", refs=refs)


def _told(report: DebateData) -> Iterator[Block]:
    for n, fact in enumerate(report.told, 1):
        refs = tuple(f"told/{n}/{ballot.agent}" for ballot in fact.ballots)
        yield Paragraph(lead="Fact:", text=fact.fact, refs=refs)
        before = {ballot.agent: ballot for ballot in fact.before}
        after = {ballot.agent: ballot for ballot in fact.ballots}
        moved = [change.agent for change in fact.moved]
        items = (
            _answer(agent, before[agent], after.get(agent), moved, report).model_copy(
                update={"refs": (f"told/{n}/{agent}",) if agent in after else (f"final/{agent}",)}
            )
            for agent in before
        )
        yield Bullets(items=tuple(items))
        yield Paragraph(text=_count(fact, report), refs=refs)


def _answer(agent: str, before: DebateBallot, after: DebateBallot | None, moved: list[str], state: DebateState) -> Item:
    if after is None:
        return Item(lead=f"{state.names[agent]}:", text="cast no ballot on it")
    name = state.names[agent]
    if agent not in moved:
        return Item(lead=f"{name}:", text="stayed", note=after.reason)
    sides = [*zip(before.positions, after.positions, strict=True)]
    is_plural = len(sides) > 1
    changed = [(f"p{n}" if is_plural else "", a, b) for n, (a, b) in enumerate(sides, 1) if a != b]
    changed += [(thread_name(t), side, after.questions[t]) for t, side in before.questions.items()]
    words = ", ".join(f"{place} {a} → {b}".strip() for place, a, b in changed if a != b)
    return Item(lead=f"{name}:", text=words, note=after.reason)


def _count(fact: ToldFact, state: DebateState) -> str:
    names = [state.names[change.agent] for change in fact.moved]
    return f"{len(names)} of {len(fact.ballots)} moved" + (f": {', '.join(names)}." if names else ".")


def _rechecks(report: DebateData) -> Iterator[Item]:
    """One item for each answer that was asked again: what its agent had answered, what it answers now, and what counts."""
    for check in report.rechecks:
        before = [f"{side_word(side)}{_where(key, report)}" for key, side in check.before.items()]
        history = ", ".join((*before, f"{side_word(check.ballot)} in its final ballot"))
        yield Item(
            lead=f"{report.names[check.agent]} on {_subject(check.question, report)}:",
            text=f"{history}; {_outcome(check)}",
            note=f"its reason: {excerpt(check.reason)}" if check.reason else "",
            refs=(*check.before, f"final/{check.agent}", *([check.key] if check.again else [])),
        )


def _outcome(check: Recheck) -> str:
    reason = (
        "asked again"
        if check.why == "differs"
        else "asked to confirm it, since only such answers stood against a consensus"
    )
    if check.again is None:
        return f"{reason}, it did not reply: {side_word(check.counts)} counts."
    if check.again == check.counts:
        return f"{reason}, it answers {side_word(check.again)}, which counts."
    return f"{reason}, it answers {side_word(check.again)}: it counts as undecided."


def _where(key: str, state: DebateState) -> str:
    if key in state.by_id:
        return f" in public{state.mark(key)}"
    kinds = {"opening": " in its opening ballot", "flip": " after the evidence", "recheck": " when asked again"}
    return kinds.get(key.partition("/")[0], "")


def _subject(question: str, state: DebateState) -> str:
    """Return the question of an answer in words: the task, a proposition, a crux by its number, or a thread."""
    if question.startswith("p"):
        return "the task" if len(state.propositions) == 1 else state.proposition_name(int(question[1:]) - 1)
    cruxes = [crux.thread for crux in state.cruxes]
    return f"crux {cruxes.index(question) + 1}" if question in cruxes else f"the question of {thread_name(question)}"
