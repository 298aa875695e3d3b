"""Facts that a debate was told after its end, and who moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from consilience.domain.sections import Block, Bullets, Item, Paragraph
from consilience.protocols.debate.report_data import DebateData
from consilience.protocols.debate.state import DebateState, thread_name

if TYPE_CHECKING:
    from consilience.protocols.debate.records import DebateBallot, ToldFact


def told_headline(report: DebateData, state: DebateState) -> Iterator[Block]:
    """Return the last new fact with those who moved, for the top of the report."""
    if report.told:
        fact = report.told[-1]
        refs = tuple(f"told/{len(report.told)}/{ballot.agent}" for ballot in fact.ballots)
        yield Paragraph(lead="New fact:", text=f"{fact.fact} {_count(fact, state)}", refs=refs)


def told_blocks(report: DebateData, state: DebateState) -> Iterator[Block]:
    for n, fact in enumerate(report.told, 1):
        refs = tuple(f"told/{n}/{ballot.agent}" for ballot in fact.ballots)
        yield Paragraph(lead="Fact:", text=fact.fact, refs=refs)
        before = {ballot.agent: ballot for ballot in fact.before}
        after = {ballot.agent: ballot for ballot in fact.ballots}
        moved = [change.agent for change in fact.moved]
        items = (
            _answer(agent, before[agent], after.get(agent), moved, state).model_copy(
                update={"refs": (f"told/{n}/{agent}",) if agent in after else (f"final/{agent}",)}
            )
            for agent in before
        )
        yield Bullets(items=tuple(items))
        yield Paragraph(text=_count(fact, state), refs=refs)


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
