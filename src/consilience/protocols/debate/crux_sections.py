"""The cruxes of a debate as blocks of its report, and what lies across them: common ground, coalitions, dependencies, questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from consilience.domain.sections import Block, Bullets, Details, Item, Paragraph, QuoteBlock, Subheading, Table
from consilience.domain.wording import count, join_names, percent
from consilience.protocols._common.presenting import bullets
from consilience.protocols.debate.moves import ACTIVE, FIRM, SIDES, STAGES, GivesUpIf, Side
from consilience.protocols.debate.records import Coalition, Crux, Dependency, ThreadRecord
from consilience.protocols.debate.state import (
    DebateData,
    DebateState,
    certainty,
    crux_numbers,
    excerpt,
    numbered_tries,
    ordinal_try,
    side_word,
    tally,
    tested_refs,
    thread_name,
)
from consilience.protocols.debate.stipulated import FlipRecord

_KINDS = {
    "ENTAILS": "a yes entails a yes",
    "CONTRADICTS": "a yes rules out a yes",
    "SUPPORTS": "a yes makes a yes likelier",
}


GIVES_UP: Mapping[GivesUpIf, str] = {
    "YES": "if it is yes",
    "NO": "if it is no",
    "either": "either way",
    "neither": "no",
}
"""Whether an agent gives up its top claim, by the answer that would make it do so."""


def crux_blocks(report: DebateData) -> Iterator[Block]:
    for n, crux in enumerate(report.cruxes, 1):
        thread = report.thread(crux.thread)
        records = {record.agent: record for record in report.flip_records.get(crux.thread, ())}
        refs = report.crux_refs(crux)
        yield Subheading(text=f"Crux {n}. {crux.question}")
        yield Paragraph(text=_crux_verdict(crux, report), tone="strong", refs=refs)
        yield _crux_table(crux, report, records)
        if records:
            yield Paragraph(text=_tested(crux, report, records), refs=tested_refs(crux.thread, records))
        yield from best_statements(crux, thread, report)
        yield from bullets([*_reasons(crux, report), *steelman_items(thread, report)])
        yield from _concessions(thread, report)
        yield Paragraph(lead="Crux score:", text=_score(crux, report), refs=refs)
        if criteria := list(criteria_items(crux, thread, report)):
            lead = "What would settle it, and change the mind of whoever is named:"
            yield Paragraph(lead=lead, text="", refs=criteria[0].refs)
            yield Bullets(items=tuple(criteria))
    if not report.cruxes and report.propositions:
        text = "No crux: no thread came so far that its agents committed to a question."
        yield Paragraph(text=text, refs=report.last_refs)


def _crux_verdict(crux: Crux, state: DebateState) -> str:
    thread = state.thread(crux.thread)
    unfinished = f", whose {STAGES[thread.stage]} stage was not finished" if thread.status in ACTIVE else ""
    details = f"{thread_name(crux.thread)}{unfinished}; {_counts(crux, state)}"
    if crux.validated:
        return f"A validated crux ({details})."
    head = "It was locked, but it is" if crux.locked else f"{_why_unlocked(thread, state)}, so it is"
    failures = "; ".join(flaw.words for flaw in crux.validation_failures if flaw.kind not in ("untried", "unlocked"))
    return f"{head} no validated crux{f': {failures}' if failures else ''} ({details})."


def _why_unlocked(thread: ThreadRecord, state: DebateState) -> str:
    """Return why the agents did not lock a question, by their last attempt."""
    if not thread.lock_attempts:
        reason = thread.closed_by or "the debate ended"
        return f"No lock was tried on it ({reason})"
    failures = "; ".join(missing.words(state.letters) for missing in thread.lock_attempts[-1].failures)
    attempts = "" if len(thread.lock_attempts) == 1 else f" at attempt {len(thread.lock_attempts)}"
    return f"Its lock failed{attempts} ({failures})"


def _counts(crux: Crux, state: DebateState) -> str:
    """Return the final ballots on a crux, and what agents without one last said of it."""
    if not state.final:
        return f"last said on it: {tally(state.sides_on(crux))}"
    ballots = {
        agent: ballot.questions[crux.thread] for agent, ballot in state.final.items() if crux.thread in ballot.questions
    }
    others = [side for agent in crux.positions if agent not in ballots and (side := state.final_side(agent, crux))]
    counts = [f"final ballots on it: {tally(list(ballots.values()))}"] if ballots else []
    counts += [f"last said without a ballot on it: {tally(others)}"] if others else []
    return "; ".join(counts)


def _crux_table(crux: Crux, report: DebateData, records: Mapping[str, FlipRecord]) -> Table:
    dependence_heading = "when told the answer (✔ as declared)" if records else "it gives up its claim"
    heads = ("agent", "answer now", "on this crux", dependence_heading)
    rows, refs = [], []
    for agent in dict.fromkeys((*crux.positions, *report.final)):
        last = _test_cell(records.get(agent), _moves(agent, crux, report)) if records else _hangs(agent, crux)
        on_crux = _crux_position(agent, crux, report)
        rows.append((report.names[agent], report.ballot_cell(report.final.get(agent)), on_crux, last))
        refs.append(report.agent_refs(agent, crux))
    return Table(heads=heads, rows=tuple(rows), left=len(heads), refs=tuple(refs))


def _moves(agent: str, crux: Crux, report: DebateData) -> str:
    """Return what told answer brought an agent to which position: `told yes: now no`."""
    before = report.final[agent].positions if agent in report.final else ()
    several = len(report.propositions) > 1
    moves = []
    for test in report.tests:
        if test.thread != crux.thread or agent not in test.ballots:
            continue
        after = enumerate(zip(before, test.ballots[agent].positions, strict=False))
        now = [
            f"{f'{report.proposition_name(n)} ' if several else ''}{side_word(new)}"
            for n, (old, new) in after
            if old != new
        ]
        moves += [f"told {SIDES[test.stipulated]}: now {' and '.join(now)}"] if now else []
    return "; ".join(moves)


def _test_cell(record: FlipRecord | None, moves: str) -> str:
    """Return what the agent did when told the answer against its own, and whether that is what it had declared."""
    if record is None or record.observed is None:
        return "not tested"
    mark = {True: " ✔", False: " ✘", None: ""}[record.as_declared]
    kept = "stayed" if record.declared is False else "did not flip"
    outcome = f"{'flipped' if record.observed else kept}{mark}" + (f" ({moves})" if moves else "")
    return f"{outcome}; moved when told something that decides nothing, too" if record.placebo else outcome


def _tested(crux: Crux, report: DebateData, records: Mapping[str, FlipRecord]) -> str:
    declared = sum(record.declared is True for record in records.values())
    moved = sum(record.observed is True for record in records.values())
    tested = sum(record.observed is not None for record in records.values())
    told = f"when told so, {moved} of {tested} changed position" if tested else "no agent was told its answer"
    line = f"Declared to depend on it: {declared} of {len(records)}; {told}"
    idle = [record.placebo for record in records.values() if record.placebo is not None]
    if idle and report.placebo:
        line += f"; told something that decides nothing instead ({report.placebo.fact.rstrip('.')}): {sum(idle)} of {len(idle)}"
    return f"{line}."


def _crux_position(agent: str, crux: Crux, state: DebateState) -> str:
    now = state.final_side(agent, crux)
    before, message = state.committed_side(agent, crux.thread)
    if message is None:
        return f"{side_word(now)} (did not commit)"
    changed = f", committed to {side_word(before)}" if before != now else ""
    return f"{side_word(now)}{changed} [{message.label}]"


def _hangs(agent: str, crux: Crux) -> str:
    flip = crux.flips.get(agent)
    if flip is None:
        return "–"
    depends = GIVES_UP[flip.gives_up_if] if flip.gives_up_if else "yes" if flip.would_flip else "no"
    return f"{depends}, {certainty(flip.confidence)}"


def best_statements(crux: Crux, thread: ThreadRecord, state: DebateState) -> Iterator[Block]:
    """The commitment with the highest confidence of either side, whole, as it was made, also by an agent that has left the side."""
    best: dict[Side, tuple[float, QuoteBlock]] = {}
    commitments = {commitment.agent: commitment.message for commitment in thread.commitments}
    for agent, position in crux.positions.items():
        side, message = state.committed_side(agent, crux.thread)
        made = side or position.side
        text, confidence = position.statement, position.confidence
        if message:
            text, confidence = message.text, position.confidence if message.confidence is None else message.confidence
        if made in FIRM and text and (made not in best or confidence > best[made][0]):
            left = ", who has since left this side" if state.final_side(agent, crux) != made else ""
            statement = message.id if message else commitments.get(agent, "")
            by = f"{state.names[agent]}, {certainty(confidence)}{state.mark(statement)}{left}"
            refs = (statement,) if statement else state.agent_refs(agent, crux)
            best[made] = (confidence, QuoteBlock(text=text, by=by, refs=refs))
    for side in FIRM:
        if side in best:
            yield Paragraph(lead=f"Best statement for {SIDES[side]}:", text="", refs=best[side][1].refs)
            yield best[side][1]


def _reasons(crux: Crux, state: DebateState) -> Iterator[Item]:
    """Why the top claim of an agent hangs on the crux, in its words."""
    for flip in crux.flips.values():
        if flip.would_flip and flip.why:
            refs = state.flip_refs(crux, [flip.agent])
            yield Item(lead="Depends on it:", text=f"“{flip.why}”", by=state.names[flip.agent], refs=refs)


def _concessions(thread: ThreadRecord, state: DebateState) -> Iterator[Block]:
    if not thread.concessions:
        return
    concessions = count(len(thread.concessions), "concession")
    changing = sum(not concession.cheap for concession in thread.concessions)
    items = (
        Item(text=f"“{c.proposition}”", by=f"{state.names[c.agent]}{state.mark(c.message)}", refs=(c.message,))
        for c in thread.concessions
    )
    yield Details(
        summary=f"{concessions}; {changing or 'none'} changed a top claim", blocks=(Bullets(items=tuple(items)),)
    )


def steelman_items(thread: ThreadRecord, state: DebateState, *, is_running: bool = False) -> Iterator[Item]:
    """One line for each pair: whether the steelman was accepted, on which try, and what was wrong with those before."""
    pairs: dict[tuple[str, str], list[str]] = {}
    accepted: dict[tuple[str, str], str] = {}
    ungraded: dict[tuple[str, str], str] = {}
    refs: dict[tuple[str, str], list[str]] = {}
    for number, steelman in numbered_tries(thread.steelmen):
        pair = (steelman.agent, steelman.of)
        mark = state.mark(steelman.message)
        refs.setdefault(pair, []).append(steelman.message)
        if steelman.grade == "ACCURATE":
            accepted.setdefault(pair, f"accepted on {ordinal_try(number)}{mark}")
        corrections = f": “{excerpt(steelman.corrections, 200)}”" if steelman.corrections else ""
        pairs.setdefault(pair, [])
        if steelman.grade == "PENDING":
            ungraded[pair] = f"{ordinal_try(number)} {'waits for its grade' if is_running else 'was not graded'}{mark}"
        elif steelman.grade != "ACCURATE":
            pairs[pair].append(f"{ordinal_try(number)} {steelman.grade.lower()}{mark}{corrections}")
    when = "so far" if is_running else "when the debate ended"
    never = f"not accepted {when}" if thread.status == "LOCKING" else "never accepted"
    for (agent, of), failed in pairs.items():
        verdict = accepted.get((agent, of)) or ungraded.get((agent, of), never)
        yield Item(
            lead="The other side's case:",
            text=f"{state.names[agent]} put the case of {state.names[of]}: {verdict}",
            note="; ".join(failed),
            refs=tuple(refs[agent, of]),
        )


def _score(crux: Crux, state: DebateState) -> str:
    score, agents = crux.score, len(state.debaters)
    flipping = sum(flip.would_flip for flip in crux.flips.values())
    yes, no = (sum(position.side == side for position in crux.positions.values()) for side in FIRM)
    certainty = f"they are {percent(score.impact)} sure of that" if flipping else "so nobody's certainty counts"
    tested = crux.observed_score
    both = f"{score.score:.2f} as declared, {tested.score:.2f} when told so. " if tested else ""
    return (
        f"{both}{score.score:.2f} = {score.coverage:.2f} × {score.polarity:.2f} × {score.impact:.2f}: the top claim of "
        f"{flipping} of {count(agents, 'agent')} depends on it by their own word (coverage); positions were {yes} yes to "
        f"{no} no at the end of the thread (polarity); {certainty} (impact)."
    )


def criteria_items(crux: Crux, thread: ThreadRecord, state: DebateState) -> Iterator[Item]:
    """The falsifiers, each with the agents that named it; criteria of the crystallizer's own without a name."""
    by: dict[str, list[str]] = {}
    derived = {p.falsifier.words() for p in crux.positions.values() if p.falsifier and p.falsifier.derived}
    for agent, position in crux.positions.items():
        if position.falsifier:
            by.setdefault(position.falsifier.words(), []).append(agent)
    commitments = {commitment.agent: commitment.message for commitment in thread.commitments}
    for words in dict.fromkeys((*crux.resolution_criteria, *by)):
        agents = by.get(words, [])
        refs = tuple(commitments[agent] for agent in agents if agent in commitments) or state.crux_refs(crux)
        note = "derived by the moderator" if words in derived else ""
        yield Item(text=words, by=", ".join(state.names[agent] for agent in agents), note=note, refs=refs)


# --- across the cruxes


def common_ground(report: DebateData) -> Iterator[Block]:
    yield from bullets(
        Item(
            text=f"{ground.statement}{''.join(map(report.mark, ground.sources))}",
            note=f"({ground.kind})",
            refs=(*ground.sources, *report.final_refs),
        )
        for ground in report.common_ground
    )


def coalitions(report: DebateData) -> Iterator[Block]:
    yield from bullets(
        Item(lead=f"{coalition.label}:", text=_together(coalition, report), refs=_votes(coalition, report))
        for coalition in report.coalitions
    )
    if report.coalition_finding and report.cruxes:
        finding = report.coalition_finding
        yield Paragraph(text=f"{finding[:1].upper()}{finding[1:]}.", refs=report.final_refs or report.last_refs)


def _together(coalition: Coalition, state: DebateState) -> str:
    numbers = {crux.thread: n for n, crux in enumerate(state.cruxes, 1)}
    names = {thread: f"crux {n}" for thread, n in numbers.items()}
    names |= {f"p{n + 1}": state.proposition_name(n) for n in range(len(state.propositions))}
    if len(state.propositions) == 1:
        names["p1"] = "the task"
    sides = [f"{names[name]} {SIDES[side]}" for name, side in coalition.positions.items() if name in names]
    parts = [join_names([state.names[agent] for agent in coalition.members])]
    parts += [f"both or all answer {join_names(sides)}"] if sides else []
    parts += [f"cohesion {coalition.cohesion:.2f}"]
    parts += [f"“{belief}”" for belief in coalition.shared_beliefs]
    return "; ".join(parts)


def _votes(coalition: Coalition, state: DebateState) -> tuple[str, ...]:
    return tuple(state.final[agent].key for agent in coalition.members if agent in state.final) or state.last_refs


def dependencies(report: DebateData) -> Iterator[Item]:
    """Roots first, then each dependency with its argument, then answers that contradict one another."""
    cruxes = {crux.thread: crux for crux in report.cruxes}
    numbers = {thread: n for n, thread in enumerate(cruxes, 1)}
    for root, downstream in report.roots.items():
        follows = sorted(numbers[thread] for thread in downstream if thread in numbers)
        if root in numbers and follows:
            text = f"{crux_numbers(follows)} {'follows' if len(follows) == 1 else 'follow'} from it."
            yield Item(lead=f"Settle crux {numbers[root]} first:", text=text, refs=report.crux_refs(cruxes[root]))
    yield from relations(report)
    for contradiction in report.contradictions:
        if contradiction.source in numbers and contradiction.target in numbers:
            names = join_names([report.names[agent] for agent in contradiction.agents])
            text = f"{names} on {crux_numbers([numbers[contradiction.source], numbers[contradiction.target]])}."
            refs = tuple(report.final[agent].key for agent in contradiction.agents if agent in report.final)
            yield Item(lead="Answers that rule each other out:", text=text, refs=refs or report.last_refs)


def relations(state: DebateState) -> Iterator[Item]:
    """How the answer to one crux bears on another, each with its argument."""
    cruxes = {crux.thread: crux for crux in state.cruxes}
    numbers = {thread: n for n, thread in enumerate(cruxes, 1)}
    for dependency in state.dependencies:
        if dependency.source in numbers and dependency.target in numbers:
            refs = (*state.crux_refs(cruxes[dependency.source]), *state.crux_refs(cruxes[dependency.target]))
            yield Item(text=_dependency(dependency, numbers), refs=refs)


def next_questions(report: DebateData) -> Iterator[Item]:
    return (Item(text=text, refs=report.last_refs) for text in report.next_questions)


def _dependency(dependency: Dependency, numbers: dict[str, int]) -> str:
    checked = (
        "confirmed by the same model, which is no check" if dependency.same_model else "confirmed by another model"
    )
    return (
        f"Crux {numbers[dependency.source]} to crux {numbers[dependency.target]}: {_KINDS[dependency.kind]} "
        f"({dependency.confidence:.2f}; {checked}): {dependency.sketch}"
    )
