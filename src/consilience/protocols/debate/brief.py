"""The frame of the decision brief: above the answer what limits it, the verdict and what to do today; below it what would turn it
and the worst news; in the end how far the debate can be trusted.

Every line follows from typed fields of the report and names in `refs` the messages and calls on which it rests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from consilience.domain.outcome import StopReason
from consilience.domain.report import FailedCall
from consilience.domain.sections import Block, Bullets, Item, Paragraph, Refs
from consilience.domain.wording import count, join_names, percent
from consilience.protocols.debate.attention import NOTICED
from consilience.protocols.debate.moves import ACTIVE, BLOCKED, CRITERIA, FAILURES, FIRM, REGIMES, SIDES, STAGES, Side
from consilience.protocols.debate.records import Crux
from consilience.protocols.debate.scoring import is_split, sides_by_question
from consilience.protocols.debate.single import unread_documents
from consilience.protocols.debate.state import (
    DebateData,
    DebateState,
    tally,
    tested_refs,
    thread_name,
    when_cast,
)

OTHER: dict[str, Side] = {"YES": "NO", "NO": "YES"}


def headline(report: DebateData) -> Iterator[Block]:
    """What limits the result first, then the ballots on each proposition, then what the answer decided."""
    if limits := [*_shortcomings(report)]:
        refs = tuple(call.key for call in report.failed_calls) or report.last_refs
        yield Paragraph(lead="Incomplete:", text=" ".join(limits), refs=refs)
    if report.framing is not None and not report.propositions:
        reason = report.framing.reason or "no yes/no question was found in it"
        text = f"the task holds no dispute ({reason.rstrip('.')})."
        yield Paragraph(lead="Nothing to debate:", text=text, refs=("framing",))
    if not report.final:
        if report.first_step:
            yield Paragraph(lead="First:", text=report.first_step, refs=("closing",))
        return
    finals = report.final_refs
    is_plural, rechecks = len(report.propositions) > 1, () if report.told else report.rechecks
    for n, text in enumerate(report.propositions):
        sides = report.positions_on(n)
        voted = f"secret final ballots of {len(sides)} of {count(len(report.debaters), 'agent')}{_on_models(report)}"
        label = f"Proposition {n + 1}: {text}" if is_plural and not report.options else text
        verdict = f"{_verdict(sides, len(report.debaters))}: {tally(sides)}{when_cast(rechecks, f'p{n + 1}')}"
        yield Paragraph(lead=verdict, text=f"({voted}). {label}", refs=finals)
    yield from _decide_today(report)


def qualifications(report: DebateData) -> Iterator[Block]:
    """What would turn the answer, how the questions stand, how independent the ballots are, and the worst news."""
    if not report.final:
        return
    finals = report.final_refs
    yield from _turning_points(report)
    yield Paragraph(text=_regime(report), refs=finals)
    if shared := _independence(report):
        yield Paragraph(lead="Independence:", text=shared, refs=finals)
    if news := [*_reservations(report)]:
        yield Paragraph(lead="Before you rely on it:", text="", refs=news[0].refs)
        yield Bullets(items=tuple(news))


def _regime(report: DebateData) -> str:
    """Return how the questions stand. Without a firm ballot of every agent on every question there is no agreement."""
    sides = [side for ballot in report.final.values() for side in (*ballot.positions, *ballot.questions.values())]
    if report.regime == "consensus" and ("UNCERTAIN" in sides or len(report.final) < len(report.debaters)):
        return "No firm disagreement in the final ballots: no question has firm answers on both sides."
    if report.regime == "partial" and not any(
        is_split(cast) for cast in sides_by_question(report.final.values()).values()
    ):
        return "Partial: a question was split when its ballots were cast, and is not since some were cast again."
    return REGIMES[report.regime]


def _on_models(report: DebateData) -> str:
    models = {agent.model for agent in report.agents if agent.id in report.letters}
    return f" on {count(len(models), 'model')}" if all(models) else ""


def _independence(report: DebateData) -> str:
    """Return which agents share a model; nothing if each has its own."""
    parts = []
    for shared in report.independence.shared:
        names = [report.names.get(agent, agent) for agent in shared.agents]
        share = f"all {len(names)} agents" if len(names) == len(report.debaters) else join_names(names)
        parts.append(f"{share} run on {shared.model}, so they are not {len(names)} independent voices")
    line = "; ".join(parts)
    effective = report.independence.effective
    if line and effective is not None:
        line += f", about {effective:.1f} in all"
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def _shortcomings(report: DebateData) -> Iterator[str]:
    """Sentences on why the debate did not come to its end."""
    open_threads = [thread for thread in report.threads if thread.status in ACTIVE]
    open_names = ", ".join(f"{thread_name(t.id)} (stage: {STAGES[t.stage]})" for t in open_threads)
    open_note = f" Still open: {open_names}." if open_threads else ""
    unfinished = f", still open: {open_names}" if open_threads else " the debate ended"
    phases = dict.fromkeys(
        call.phase[0].replace("_", " ") for call in report.failed_calls if call.exhausted and call.phase
    )
    if report.ended_by == "stalled" or report.stop_reason is StopReason.STALLED:
        yield f"The debate stalled: messages brought no question, no lock and no crux any more.{open_note}"
    elif report.stop_reason is StopReason.CANCELLED:
        yield f"The debate was cancelled.{open_note}"
    elif report.ended_by == "max_messages":
        yield f"After {count(report.steps, 'message')}{unfinished}."
    elif report.ended_by == "max_duration":
        yield f"After {report.duration // 1000} s of virtual time{unfinished}."
    elif phases or report.stop_reason in (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME):
        refused = f" (no reply in: {', '.join(phases)})" if phases else ""
        cut = "cut the debate short" if report.ended_by == "limit" else "was reached"
        yield f"{_limit(report)} {cut}{refused}.{open_note}"
    for thread in report.threads:
        if thread.topic in report.propositions and thread.status == "STALE" and thread.stage != "EVIDENCE":
            where = (
                f" on {report.proposition_name(report.propositions.index(thread.topic))}"
                if len(report.propositions) > 1
                else ""
            )
            yield f"{thread_name(thread.id).capitalize()}{where} ended before its question was locked: {thread.closed_by}."
    if report.propositions:
        yield from _missing_ballots(report)


def _missing_ballots(report: DebateData) -> Iterator[str]:
    """Sentences on the agents without a final ballot, one for each reason."""
    silent = [agent for agent in report.debaters if agent not in report.final]
    failed = {
        call.agent: call for call in report.failed_calls if call.key.split("/")[0] in ("opening", "final", "told")
    }
    reasons: dict[str, list[str]] = {}
    for agent in silent:
        reasons.setdefault(_missing_reason(failed.get(agent)), []).append(report.names[agent])
    for reason, names in reasons.items():
        yield f"No final ballot from {join_names(names)}: {reason}."
    if silent and len(silent) == len(report.debaters):
        yield (
            "Only opening ballots show where agents stood."
            if report.opening
            else "Nothing shows where the agents stand."
        )
    elif silent:
        yield f"The counts below leave {count(len(silent), 'agent')} out."


def _missing_reason(failed: FailedCall | None) -> str:
    """Return why an agent cast no final ballot, from its failed ballot, if one failed."""
    if failed is None:
        return "the debate ended after the opening ballots"
    opening = " (opening ballot, without which an agent takes no part)" if failed.key.startswith("opening/") else ""
    return f"{FAILURES[failed.kind]}{opening}"


def _limit(report: DebateData) -> str:
    """Return the limit that ran out first, with its agent or phase: `The limit on calls of tests`."""
    refused = next((call for call in report.failed_calls if call.exhausted), None)
    if refused is None:
        return "A limit on what the session may spend"
    return f"The limit on {refused.exhausted}{f' of {refused.limit}' if refused.limit else ''}"


def _verdict(sides: list[Side], agents: int) -> str:
    """Return how ballots stand to one another, in a word. One side with undecided or missing agents is no unanimity."""
    firm = {side for side in sides if side in FIRM}
    if len(firm) == 2:
        return "SPLIT"
    if not firm:
        return "UNDECIDED"
    return "UNANIMOUS" if "UNCERTAIN" not in sides and len(sides) == agents else "ONE-SIDED"


# --- what to do today, and what would turn it


def _decide_today(report: DebateData) -> Iterator[Block]:
    """The side of the answer against the ballots, and the finding to get first by the closing call's own word."""
    if not report.decided:
        yield Paragraph(text="There is no answer to compare with the ballots.", refs=report.final_refs)
        return
    several = len(report.propositions) > 1
    parts = []
    for n, decided in enumerate(report.decided):
        parts.append(
            f"{f'on {report.proposition_name(n)} ' if several else ''}{_decided(decided, report.positions_on(n))}"
        )
    first = f" First: {report.first_step}" if report.first_step else ""
    yield Paragraph(
        lead="If you must decide today:", text=f"{'; '.join(parts)}.{first}", refs=("closing", *report.final_refs)
    )


def _decided(decided: str, sides: list[Side]) -> str:
    """Return what the answer decides and whether more firm ballots are on its side."""
    yes, no = (sides.count(side) for side in FIRM)
    if decided == "UNDECIDED":
        return "the answer takes neither side"
    supporting, opposing = (yes, no) if decided == "YES" else (no, yes)
    word = SIDES[decided]
    if supporting == opposing:
        return f"{word}; {'no ballot takes a side' if not supporting else 'the ballots are tied'}"
    if supporting > opposing > 0:
        return f"{word}, as most ballots say ({_count_of(decided, supporting, opposing)})"
    if supporting > opposing:
        voices = {1: "the only ballot that takes a side", 2: "both ballots that take a side"}
        return f"{word}, as {voices.get(supporting, f'all {supporting} ballots that take a side')} say{'s' * (supporting == 1)}"
    return f"{word}, against most ballots ({_count_of(decided, supporting, opposing)})"


def _count_of(decided: str, supporting: int, opposing: int) -> str:
    """`2 yes, 1 no`."""
    yes, no = (supporting, opposing) if decided == "YES" else (opposing, supporting)
    return f"{yes} yes, {no} no"


def _turning_points(report: DebateData) -> Iterator[Block]:
    """Which answer to a crux would turn the majority behind the answer: by tests where there are any, else by declarations."""
    several = len(report.propositions) > 1
    for n, decided in enumerate(report.decided):
        if decided not in FIRM or _lead(report.positions_on(n), decided) <= 0:
            continue
        proposition_note = f" on {report.proposition_name(n)}" if several else ""
        lead = f"Becomes {SIDES[OTHER[decided]]}{proposition_note} if"
        turning = [*_tested(report, n, decided)] if report.tests else [*_declared(report, n, decided)]
        for text, refs in turning:
            yield Paragraph(lead=lead, text=text, refs=refs)
        if not turning and report.cruxes:
            basis = "No tested answer to a crux" if report.tests else "By what the agents declared, no answer to a crux"
            refs = tuple(key for test in report.tests for key in test.keys(test.ballots)) or report.final_refs
            yield Paragraph(text=f"{basis} turns the majority{proposition_note}.", refs=refs)


def _lead(sides: Sequence[Side], side: str) -> int:
    """Return by how many firm ballots a side leads."""
    return sides.count(side) - sides.count(OTHER[side])


def _tested(report: DebateData, n: int, decided: str) -> Iterator[tuple[str, Refs]]:
    for test in report.tests:
        sides = [ballot.positions[n] for ballot in test.ballots.values()]
        if _lead(sides, decided) < 0:
            other = OTHER[decided]
            crux = report.number_of(test.thread)
            text = f"the answer to crux {crux} is {SIDES[test.stipulated]}. When told so: {tally(sides)}"
            flipped = [a for a, ballot in test.ballots.items() if ballot.positions[n] == other]
            yield f"{text}.", test.keys(dict.fromkeys((*flipped, *test.ballots)))


def _declared(state: DebateState, n: int, decided: str) -> Iterator[tuple[str, Refs]]:
    """Answers to a crux that, by their own word, take enough agents from the answer's side to turn the majority."""
    supporters = [agent for agent, ballot in state.final.items() if ballot.positions[n] == decided]
    against = len([side for side in state.positions_on(n) if side == OTHER[decided]])
    for number, crux in enumerate(state.cruxes, 1):
        for answer in FIRM:
            flipping = [agent for agent in supporters if _would_flip_against(crux, agent, answer)]
            if flipping and against + len(flipping) > len(supporters) - len(flipping):
                names = join_names([state.names[agent] for agent in flipping])
                outcome = f"the answer to crux {number} is {SIDES[answer]}"
                text = f"{outcome}. By their own word, {names} would then give up what they argue for (not tested)."
                yield text, state.flip_refs(crux, flipping)


def _would_flip_against(crux: Crux, agent: str, answer: Side) -> bool:
    flip = crux.flips.get(agent)
    return flip is not None and flip.flips_on(answer)


# --- the worst news


def _reservations(report: DebateData) -> Iterator[Item]:
    yield from _misreported(report)
    idle = report.placebo.ballots if report.placebo else {}
    if moved := [
        a for a, ballot in idle.items() if a in report.final and ballot.positions != report.final[a].positions
    ]:
        text = f"{len(moved)} of {count(len(idle), 'agent')} changed position when told something that decides nothing."
        yield Item(text=text, refs=tuple(f"test/placebo/{agent}" for agent in moved))
    if unargued := [change for change in report.position_changes if change.conformity]:
        text = f"{count(len(unargued), 'agent')} changed position without naming an argument."
        keys = (f"told/{c.step - 1}/{c.agent}" if c.step > 1 else f"final/{c.agent}" for c in unargued)
        yield Item(text=text, refs=tuple(keys))
    if unanswered := [objection for objection in report.objections if objection.fate == "unanswered"]:
        text = f"{count(len(unanswered), 'objection')} {'was' if len(unanswered) == 1 else 'were'} never answered."
        yield Item(text=text, refs=tuple(objection.id for objection in unanswered))
    if missed := [quotation for quotation in report.quotations if quotation.is_wrong]:
        verb = "is" if len(missed) == 1 else "are"
        text = (
            f"{len(missed)} of {count(len(report.quotations), 'quotation')} {verb} not in the documents where claimed."
        )
        held = [m.id for m in report.messages if any(quotation.is_wrong for quotation in m.quotations)]
        yield Item(text=text, refs=tuple(held) or ("closing",))
    if memory := sum(claim.from_memory for claim in report.claims):
        verb = "quotes" if memory == 1 else "quote"
        text = f"{memory} of {count(len(report.claims), 'claim')} of the answer {verb} no document (marked †)."
        yield Item(text=text, refs=("closing",))
    single = report.single_call
    if single and report.decided and report.decided != single.positions and not unread_documents(report):
        yield Item(text="One call on the same task came to another answer.", refs=(single.key, "closing"))


def _misreported(report: DebateData) -> Iterator[Item]:
    """Agents whose tested ballot contradicts what they had declared, by crux."""
    for thread, records in report.flip_records.items():
        asserted = [r for r in records if r.declared and r.observed is not None]
        stayed = [r.agent for r in asserted if r.observed is False]
        moved = [r.agent for r in records if r.observed and r.as_declared is False]
        number = report.number_of(thread)
        if stayed:
            said = "One agent" if len(asserted) == 1 else f"{len(asserted)} agents"
            minds = "its mind" if len(asserted) == 1 else "their minds"
            text = (
                f"{said} had said that the answer to crux {number} would change {minds}. When told so, "
                f"{join_names([report.names[agent] for agent in stayed])} kept the same position."
            )
            yield Item(text=text, refs=tested_refs(thread, stayed))
        if moved:
            names = join_names([report.names[agent] for agent in moved])
            text = f"{names} changed position when told an answer to crux {number} that, as declared, changes nothing."
            yield Item(text=text, refs=tested_refs(thread, moved))


# --- how far to trust it


def evidence_items(report: DebateData, *, labelled: bool = True) -> Iterator[Item]:
    """On how many verified words of documents the debate rests."""
    evidence = [m for m in report.messages if m.move == "PROVIDE_EVIDENCE"]
    if evidence:
        memory = [m for m in evidence if m.from_memory]
        memory_note = f": {report.marks(memory)}" if memory and labelled else ""
        verified = len(evidence) - len(memory)
        yield Item(
            text=f"Messages that give evidence: {len(evidence)}; {verified} quote a document with verified words, "
            f"{len(memory)} rest on the model's memory{memory_note}.",
            refs=tuple(message.id for message in evidence),
        )
    elif report.messages:
        yield Item(text="No message gives evidence.", refs=report.last_refs)


def trust_items(report: DebateData) -> Iterator[Item]:
    """What the mechanics of the debate say about its worth."""
    metrics = report.system_metrics
    yield from evidence_items(report)
    if metrics.attended:
        mode = {"keyword": "shared words", "embedding": "similarity of meaning"}.get(report.attention_mode, "attention")
        yield Item(
            text=f"Attention by {mode}: of {count(metrics.attended, 'reply')} to a message of the "
            f"agent's own choice, {metrics.attended_highly} answered one with a score of at least {NOTICED:g} "
            f"({percent(metrics.attended_highly / metrics.attended)}).",
            refs=tuple(message.id for message in report.messages if message.attention is not None),
        )
    if metrics.messages_blocked:
        reasons = _counted(metrics.reasons_blocked, BLOCKED)
        yield Item(
            text=f"Replies blocked before any agent read them: {metrics.messages_blocked} ({reasons}).",
            refs=report.last_refs,
        )
    yield from _lock_items(report)
    if opposing := [message for message in report.messages if message.opposing]:
        opposing_agents = ", ".join(f"{report.names[message.agent]} [{message.label}]" for message in opposing)
        yield Item(
            text=f"Asked to argue the other side, since nobody challenged anything: {opposing_agents}.",
            refs=tuple(m.id for m in opposing),
        )


def _lock_items(report: DebateData) -> Iterator[Item]:
    metrics = report.system_metrics
    if metrics.crux_lock_attempts:
        text = f"Agreement on a question: {count(metrics.crux_lock_attempts, 'attempt')}, {metrics.crux_lock_failures} failed"
        reasons = _counted(metrics.failure_reasons, CRITERIA)
        committed = tuple(c.message for thread in report.threads for c in thread.commitments) or report.last_refs
        yield Item(text=f"{text} ({reasons})." if reasons else f"{text}.", refs=committed)
    for thread in report.threads:
        for n, attempt in enumerate(thread.lock_attempts, 1):
            if not attempt.success:
                failures = "; ".join(missing.words(report.letters) for missing in attempt.failures)
                before = tuple(message.id for message in report.said_in(thread.id) if message.at <= attempt.at)
                yield Item(text=f"Lock {n} of {thread_name(thread.id)} failed: {failures}.", refs=before[-1:])
    if metrics.steelman_attempts:
        rate = metrics.steelman_accuracy_rate
        graded = "none was graded" if rate is None else f"{percent(rate)} of the graded ones accepted"
        retries = f", {metrics.steelman_retries} of them another try" if metrics.steelman_retries else ""
        refs = tuple(steelman.message for thread in report.threads for steelman in thread.steelmen)
        yield Item(
            text=f"The other side's case was put {count(metrics.steelman_attempts, 'time')}{retries}; {graded}.",
            refs=refs,
        )


def _counted(numbers: Mapping[str, int], words: Mapping[str, str]) -> str:
    return ", ".join(f"{number} {words.get(name, name)}" for name, number in numbers.items())
