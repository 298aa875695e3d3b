"""Sections on what was stipulated: tested cruxes, and facts that the debate was told after its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from consilience.domain.sections import Block, Bullets, Item, Paragraph, Section, Table
from consilience.protocols._common.presenting import format_score
from consilience.protocols.debate.state import DebateState, thread_name

if TYPE_CHECKING:
    from consilience.protocols.debate.records import DebateBallot, FlipRecord, ToldFact
    from consilience.protocols.debate.report import DebateReport


def tested_sections(report: DebateReport, state: DebateState) -> tuple[Section, ...]:
    """Return the sections on new facts and on tested cruxes; neither without any."""
    return (
        Section(
            name="told", part="differences", heading="What the new fact changed", blocks=tuple(_told(report, state))
        ),
        Section(
            name="tests",
            part="differences",
            heading="What they do when told so",
            blocks=tuple(_tests(report, state)),
        ),
    )


def _tests(report: DebateReport, state: DebateState) -> Iterator[Block]:
    """One table for each tested crux, then how many moved for nothing."""
    cruxes = {crux.thread: crux for crux in state.cruxes}
    for thread, records in report.flip_records.items():
        crux = cruxes[thread]
        yield Paragraph(lead=f"{thread_name(thread)}:", text=crux.question)
        yield Table(
            heads=("agent", "said it would change its answer", "did when tested", "moved for the placebo"),
            rows=tuple(
                (state.names[r.agent], _yes_no(r.declared), _yes_no(r.observed), _yes_no(r.placebo)) for r in records
            ),
            left=4,
        )
        yield Paragraph(
            text=f"{_share(records, 'declared', 'Declared')}, {_share(records, 'observed', 'observed')}; "
            f"{_share(records, 'placebo', 'placebo')}. Crux score: {format_score(crux.score.score)} declared, "
            f"{format_score(crux.observed_score.score if crux.observed_score else None)} observed."
        )
    if report.placebo is not None:
        yield Paragraph(lead="Placebo:", text=report.placebo.fact, tone="remark")


def _told(report: DebateReport, state: DebateState) -> Iterator[Block]:
    for fact in report.told:
        yield Paragraph(lead="New fact:", text=fact.fact)
        before = {ballot.agent: ballot for ballot in fact.before}
        after = {ballot.agent: ballot for ballot in fact.ballots}
        moved = [change.agent for change in fact.moved]
        yield Bullets(items=tuple(_answer(agent, before[agent], after.get(agent), moved, state) for agent in before))
        yield Paragraph(text=_count(fact, state))


def _answer(agent: str, before: DebateBallot, after: DebateBallot | None, moved: list[str], state: DebateState) -> Item:
    if after is None:
        return Item(lead=f"{state.names[agent]}:", text="cast no ballot on it")
    name = state.names[agent]
    if agent not in moved:
        return Item(lead=f"{name}:", text="stayed", note=after.reason)
    sides = [*zip(before.positions, after.positions, strict=True)]
    several = len(sides) > 1
    changed = [(f"p{n}" if several else "", a, b) for n, (a, b) in enumerate(sides, 1) if a != b]
    changed += [(thread_name(t), side, after.questions[t]) for t, side in before.questions.items()]
    words = ", ".join(f"{where} {a} → {b}".strip() for where, a, b in changed if a != b)
    return Item(lead=f"{name}:", text=words, note=after.reason)


def _count(fact: ToldFact, state: DebateState) -> str:
    names = [state.names[change.agent] for change in fact.moved]
    return f"{len(names)} of {len(fact.ballots)} moved" + (f": {', '.join(names)}." if names else ".")


def _share(records: tuple[FlipRecord, ...], name: str, word: str) -> str:
    known = [value for record in records if (value := getattr(record, name)) is not None]
    return f"{word} {sum(known)} of {len(known)}"


def _yes_no(value: bool | None) -> str:
    return "not known" if value is None else "yes" if value else "no"
