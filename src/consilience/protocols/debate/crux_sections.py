"""The cruxes of a debate as blocks of its report: where each agent stands, both sides' best statement, and what would settle it."""

from __future__ import annotations

from collections.abc import Iterator

from consilience.domain.sections import Block, Bullets, Details, Item, Paragraph, QuoteBlock, Subheading, Table
from consilience.protocols._common.presenting import bullets, format_share, plural
from consilience.protocols.debate.moves import FIRM, Side
from consilience.protocols.debate.records import Crux, CruxPosition, ThreadRecord
from consilience.protocols.debate.state import DebateState, numbered_tries, thread_name
from consilience.protocols.debate.words import (
    SIDES,
    ballot_words,
    certainty,
    excerpt,
    ordinal_try,
    side_word,
    tally,
    validation_failure,
)


def crux_blocks(state: DebateState) -> Iterator[Block]:
    for n, crux in enumerate(state.cruxes, 1):
        thread = state.thread(crux.thread)
        yield Subheading(text=f"Crux {n}. {crux.question}")
        yield Paragraph(text=_crux_verdict(crux, state), tone="strong")
        yield _crux_table(crux, state)
        yield from _best_statements(crux, thread, state)
        yield from bullets([*_reasons(crux, state), *_steelmen(thread, state)])
        yield from _concessions(thread, state)
        yield Paragraph(lead="Crux score:", text=_score(crux, state))
        if criteria := list(_criteria(crux, state)):
            yield Paragraph(lead="Settled by:", text="")
            yield Bullets(items=tuple(criteria))
    if not state.cruxes and state.propositions:
        yield Paragraph(text="No crux: no thread came so far that its agents committed to a question.")


def _crux_verdict(crux: Crux, state: DebateState) -> str:
    sides = state.sides_on(crux)
    where = f"{thread_name(crux.thread)}; {'final ballots on it: ' if state.final else ''}{tally(sides)}"
    if crux.validated:
        return f"A validated crux ({where})."
    locked = "It was locked, but it is" if crux.locked else "It is"
    return f"{locked} no validated crux: {'; '.join(map(validation_failure, crux.validation_failures))} ({where})."


def _crux_table(crux: Crux, state: DebateState) -> Table:
    several = len(state.propositions) > 1
    heads = ("agent", "answer now", "on this crux", "would change its mind if", "its top claim hangs on it")
    rows = []
    for agent in dict.fromkeys((*crux.positions, *state.final)):
        position = crux.positions.get(agent)
        ballot = state.final.get(agent)
        rows.append(
            (
                state.names[agent],
                "no ballot" if ballot is None else f"{ballot_words(ballot, several)}, {certainty(ballot.confidence)}",
                _on_crux(agent, crux, state),
                _threshold(position),
                _hangs(agent, crux),
            )
        )
    return Table(heads=heads, rows=tuple(rows), left=len(heads))


def _on_crux(agent: str, crux: Crux, state: DebateState) -> str:
    now = state.final_side(agent, crux)
    before, message = state.committed_side(agent, crux.thread)
    if message is None:
        return f"{side_word(now)} (did not commit)"
    changed = f", committed to {side_word(before)}" if before != now else ""
    return f"{side_word(now)}{changed} [{message.label}]"


def _threshold(position: CruxPosition | None) -> str:
    falsifier = position.falsifier if position else None
    if falsifier is None:
        return "–"
    derived = " (derived by the moderator)" if falsifier.derived else ""
    return f"{falsifier.threshold}{f', by {falsifier.deadline}' if falsifier.deadline else ''}{derived}"


def _hangs(agent: str, crux: Crux) -> str:
    flip = crux.flips.get(agent)
    if flip is None:
        return "–"
    return f"{'yes' if flip.would_flip else 'no'}, {certainty(flip.confidence)}"


def _best_statements(crux: Crux, thread: ThreadRecord, state: DebateState) -> Iterator[Block]:
    """The commitment with the highest confidence of either side, whole, as it was made."""
    best: dict[Side, tuple[float, QuoteBlock]] = {}
    commitments = {commitment.agent: commitment for commitment in thread.commitments}
    for agent, position in crux.positions.items():
        side, message = state.committed_side(agent, crux.thread)
        made = side or position.side
        if made in FIRM and position.statement and (made not in best or position.confidence > best[made][0]):
            left = ", who has left this side since" if state.final_side(agent, crux) != made else ""
            mark = (
                f" [{message.label}]"
                if message
                else state.mark(commitments[agent].message if agent in commitments else None)
            )
            by = f"{state.names[agent]}, {certainty(position.confidence)}{mark}{left}"
            best[made] = (position.confidence, QuoteBlock(text=position.statement, by=by))
    for side in FIRM:
        if side in best:
            yield Paragraph(lead=f"Best statement for {SIDES[side]}:", text="")
            yield best[side][1]


def _reasons(crux: Crux, state: DebateState) -> Iterator[Item]:
    """Why the top claim of an agent hangs on the crux, in its words."""
    for flip in crux.flips.values():
        if flip.would_flip and flip.why:
            yield Item(lead="Hangs on it:", text=f"“{flip.why}”", by=state.names[flip.agent])


def _concessions(thread: ThreadRecord, state: DebateState) -> Iterator[Block]:
    if not thread.concessions:
        return
    cheap = sum(concession.cheap for concession in thread.concessions)
    count = plural(len(thread.concessions), "concession")
    changed = "none changed a top claim" if cheap == len(thread.concessions) else f"{cheap} changed no top claim"
    items = (
        Item(text=f"“{c.proposition}”", by=f"{state.names[c.agent]}{state.mark(c.message)}") for c in thread.concessions
    )
    yield Details(summary=f"{count}; {changed}", blocks=(Bullets(items=tuple(items)),))


def _steelmen(thread: ThreadRecord, state: DebateState) -> Iterator[Item]:
    """One line for each pair: whether the steelman was accepted, on which try, and what was wrong with those before."""
    pairs: dict[tuple[str, str], list[str]] = {}
    accepted: dict[tuple[str, str], str] = {}
    for number, steelman in numbered_tries(thread.steelmen):
        pair = (steelman.agent, steelman.of)
        mark = state.mark(steelman.message)
        if steelman.grade == "ACCURATE":
            accepted.setdefault(pair, f"accepted on {ordinal_try(number)}{mark}")
        corrections = f": “{excerpt(steelman.corrections, 200)}”" if steelman.corrections else ""
        grade = "not graded" if steelman.grade == "PENDING" else steelman.grade.lower()
        pairs.setdefault(pair, [])
        if steelman.grade != "ACCURATE":
            pairs[pair].append(f"{ordinal_try(number)} {grade}{mark}{corrections}")
    for (agent, of), failed in pairs.items():
        verdict = accepted.get((agent, of), "never accepted")
        yield Item(
            lead="Steelman:",
            text=f"{state.names[agent]} put the case of {state.names[of]}: {verdict}",
            note="; ".join(failed),
        )


def _score(crux: Crux, state: DebateState) -> str:
    score, agents = crux.score, len(state.debaters)
    flipping = sum(flip.would_flip for flip in crux.flips.values())
    yes, no = (sum(position.side == side for position in crux.positions.values()) for side in FIRM)
    sure = f"they are {format_share(score.impact)} sure of that" if flipping else "so nobody's certainty counts"
    return (
        f"{score.score:.2f} = {score.coverage:.2f} × {score.polarity:.2f} × {score.impact:.2f}: the top claim of {flipping} of "
        f"{plural(agents, 'agent')} hangs on it by their own word (coverage); firm positions were {yes} yes to {no} no at the end "
        f"of the thread (polarity); {sure} (impact)."
    )


def _criteria(crux: Crux, state: DebateState) -> Iterator[Item]:
    """The falsifiers, each with the agents that named it."""
    by: dict[str, list[str]] = {}
    for agent, position in crux.positions.items():
        if position.falsifier:
            by.setdefault(position.falsifier.words(), []).append(state.names[agent])
    for words in dict.fromkeys((*crux.resolution_criteria, *by)):
        yield Item(text=words, by=", ".join(by.get(words, ())))
