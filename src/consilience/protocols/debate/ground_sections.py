"""What lies across the cruxes of a debate: common ground, who stands together, what hangs on what, and what to ask next."""

from __future__ import annotations

from collections.abc import Iterator

from consilience.domain.sections import Block, Item, Paragraph, Section
from consilience.protocols._common.presenting import bullets
from consilience.protocols.debate.records import Coalition, Dependency
from consilience.protocols.debate.report_data import DebateData
from consilience.protocols.debate.state import DebateState
from consilience.protocols.debate.words import SIDES, crux_numbers, joined

_KINDS = {
    "ENTAILS": "a yes entails a yes",
    "CONTRADICTS": "a yes rules out a yes",
    "SUPPORTS": "a yes makes a yes likelier",
}


def ground_sections(report: DebateData, state: DebateState) -> tuple[Section, ...]:
    """Return the sections; those without content have no blocks and are left out."""
    return (
        Section(
            name="common-ground",
            part="differences",
            heading=f"All {len(state.debaters)} agents confirmed",
            blocks=tuple(_common_ground(report, state)),
        ),
        Section(
            name="coalitions",
            part="differences",
            heading="Who stands together",
            blocks=tuple(_coalitions(report, state)),
        ),
        Section(
            name="dependencies",
            part="differences",
            heading="What hangs on what",
            blocks=bullets(_dependencies(report, state)),
        ),
        Section(
            name="next-questions",
            part="unknown",
            heading="What to ask next",
            blocks=bullets(Item(text=text, refs=state.last_refs) for text in report.next_questions),
        ),
    )


def _common_ground(report: DebateData, state: DebateState) -> Iterator[Block]:
    yield from bullets(
        Item(
            text=f"{ground.statement}{''.join(map(state.mark, ground.sources))}",
            note=f"({ground.kind})",
            refs=(*ground.sources, *state.final_refs),
        )
        for ground in report.common_ground
    )


def _coalitions(report: DebateData, state: DebateState) -> Iterator[Block]:
    yield from bullets(
        Item(lead=f"{coalition.label}:", text=_together(coalition, state), refs=_votes(coalition, state))
        for coalition in report.coalitions
    )
    if report.coalition_finding and state.cruxes:
        finding = report.coalition_finding
        yield Paragraph(text=f"{finding[:1].upper()}{finding[1:]}.", refs=state.final_refs or state.last_refs)


def _together(coalition: Coalition, state: DebateState) -> str:
    numbers = {crux.thread: n for n, crux in enumerate(state.cruxes, 1)}
    names = {thread: f"crux {n}" for thread, n in numbers.items()}
    names |= {f"p{n}": f"proposition {n}" for n in range(1, len(state.propositions) + 1)}
    if len(state.propositions) == 1:
        names["p1"] = "the task"
    sides = [f"{names[name]} {SIDES[side]}" for name, side in coalition.positions.items() if name in names]
    parts = [joined([state.names[agent] for agent in coalition.members])]
    parts += [f"both or all answer {joined(sides)}"] if sides else []
    parts += [f"cohesion {coalition.cohesion:.2f}"]
    parts += [f"“{belief}”" for belief in coalition.shared_beliefs]
    return "; ".join(parts)


def _votes(coalition: Coalition, state: DebateState) -> tuple[str, ...]:
    return tuple(state.final[agent].key for agent in coalition.members if agent in state.final) or state.last_refs


def _dependencies(report: DebateData, state: DebateState) -> Iterator[Item]:
    """Roots first, then each dependency with its argument, then answers that contradict one another."""
    cruxes = {crux.thread: crux for crux in state.cruxes}
    numbers = {thread: n for n, thread in enumerate(cruxes, 1)}
    for root, downstream in report.roots.items():
        follows = sorted(numbers[thread] for thread in downstream if thread in numbers)
        if root in numbers and follows:
            text = f"{crux_numbers(follows)} {'follows' if len(follows) == 1 else 'follow'} from it."
            yield Item(lead=f"Settle crux {numbers[root]} first:", text=text, refs=state.crux_refs(cruxes[root]))
    for dependency in report.dependencies:
        if dependency.source in numbers and dependency.target in numbers:
            refs = (*state.crux_refs(cruxes[dependency.source]), *state.crux_refs(cruxes[dependency.target]))
            yield Item(text=_dependency(dependency, numbers), refs=refs)
    for contradiction in report.contradictions:
        if contradiction.source in numbers and contradiction.target in numbers:
            names = joined([state.names[agent] for agent in contradiction.agents])
            text = f"{names} on {crux_numbers([numbers[contradiction.source], numbers[contradiction.target]])}."
            refs = tuple(state.final[agent].key for agent in contradiction.agents if agent in state.final)
            yield Item(lead="Answers that rule each other out:", text=text, refs=refs or state.last_refs)


def _dependency(dependency: Dependency, numbers: dict[str, int]) -> str:
    checked = (
        "confirmed by the same model, which is no check" if dependency.same_model else "confirmed by another model"
    )
    return (
        f"Crux {numbers[dependency.source]} to crux {numbers[dependency.target]}: {_KINDS[dependency.kind]} "
        f"({dependency.confidence:.2f}; {checked}): {dependency.sketch}"
    )
