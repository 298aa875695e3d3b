"""Where each agent of a debate stood over time, and what moved it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from consilience.domain.sections import Grid, GridCell, GridColumn, Refs, Table, View
from consilience.protocols._common.presenting import empty_view
from consilience.protocols.debate.records import DebateMessage
from consilience.protocols.debate.state import (
    DebateState,
    side_word,
    thread_name,
    virtual_time,
)

SLICES = 8
MAX_LINES = 6
"""Of a cell; the table below the picture has all."""
OPENING, FINAL = "opening ballot", "final ballot"


class DeclaredStance(NamedTuple):
    """A position that an agent declared."""

    agent: str
    column: str
    when: str
    what: str
    why: str
    """The message that it names as the cause, or answers."""
    refs: Refs
    """The cause, then where it was declared."""
    moved: bool


def stance_view(state: DebateState) -> View:
    """Return a row for each agent, with its ballots and all that it declared in between, by virtual time."""
    width = _width(state)
    stances = [*_opening(state), *_declared(state, width), *_final(state)]
    heading = "Where each agent stood, and what moved it"
    if not stances:
        return empty_view("stance", heading, "No agent has declared a position yet.")
    starts = [str(n * width) for n in range(SLICES)]
    columns = [
        GridColumn(name=OPENING),
        *(GridColumn(name=at, label=f"{virtual_time(int(at))}–{virtual_time(int(at) + width)}") for at in starts),
        GridColumn(name=FINAL),
    ]
    used = {stance.column for stance in stances}
    agents = [agent for agent in state.debaters if any(stance.agent == agent for stance in stances)]
    picture = Grid(
        rows=tuple(state.names[agent] for agent in agents),
        columns=tuple(column for column in columns if column.name in used),
        cells=tuple(
            _cell(state.names[agent], column.name, [s for s in stances if (s.agent, s.column) == (agent, column.name)])
            for agent in agents
            for column in columns
            if any((s.agent, s.column) == (agent, column.name) for s in stances)
        ),
        legend=("thick border: it changed its position there; on a page, the box leads to the message that moved it",),
    )
    rows = tuple(
        (state.names[s.agent], s.when, s.what, s.why or "–") for agent in agents for s in stances if s.agent == agent
    )
    refs = tuple(s.refs for agent in agents for s in stances if s.agent == agent)
    table = Table(heads=("agent", "when", "position", "because of"), rows=rows, left=4, refs=refs)
    return View(name="stance", heading=heading, blocks=(table,), picture=picture)


def _width(state: DebateState) -> int:
    """Return how much virtual time a column spans, in whole seconds."""
    end = max([state.duration, *(message.at for message in state.messages)], default=0) + 1
    return max(1000, -(-end // SLICES // 1000) * 1000)


def _cell(row: str, column: str, stances: list[DeclaredStance]) -> GridCell:
    lines = [f"{s.what}{f', because of {s.why}' if s.why else ''}" for s in stances]
    rest = len(lines) - MAX_LINES
    shown = lines if rest <= 0 else [*lines[: MAX_LINES - 1], f"and {rest + 1} more"]
    changed = [s for s in stances if s.moved]
    return GridCell(
        row=row,
        column=column,
        lines=tuple(shown),
        tone="frame" if changed else "plain",
        tip=f"{row}: {'; '.join(lines)}",
        refs=tuple(ref for s in (*changed, *stances) for ref in s.refs),
    )


def _opening(state: DebateState) -> Iterator[DeclaredStance]:
    for agent, ballot in state.opening.items():
        yield DeclaredStance(agent, OPENING, OPENING, state.ballot_cell(ballot), "", (ballot.key,), moved=False)


def _final(state: DebateState) -> Iterator[DeclaredStance]:
    for agent, ballot in state.final.items():
        before = state.opening.get(agent)
        moved = before is not None and before.positions != ballot.positions
        cause = state.by_id.get(ballot.cause or "") if moved else None
        what = state.ballot_cell(ballot)
        what = f"{state.position_words(before)} → {what}" if moved and before else what
        yield DeclaredStance(agent, FINAL, FINAL, what, _name(cause, state), (*_ids(cause), ballot.key), moved)


def _declared(state: DebateState, width: int) -> Iterator[DeclaredStance]:
    """Positions on the questions of threads, said in public, and changes of top claims."""
    for message in state.messages:
        moved = message.prior_side not in (None, message.new_side) and message.new_side is not None
        parts = []
        if moved:
            parts.append(
                f"{thread_name(message.thread)}: {side_word(message.prior_side)} → {side_word(message.new_side)}"
            )
        elif message.new_side is not None:
            parts.append(f"{thread_name(message.thread)}: {side_word(message.new_side)}")
        if message.top_claim is not None:
            parts.append(f"top claim: now {message.top_claim.lower()}")
        if parts:
            changed = moved or message.top_claim is not None
            cause = state.by_id.get(message.reply_to or "") if changed else None
            what = f"[{message.label}] {'; '.join(parts)}"
            refs = (*_ids(cause), message.id)
            column = str(message.at // width * width)
            yield DeclaredStance(
                message.agent, column, virtual_time(message.at), what, _name(cause, state), refs, changed
            )


def _ids(cause: DebateMessage | None) -> Refs:
    return (cause.id,) if cause else ()


def _name(cause: DebateMessage | None, state: DebateState) -> str:
    return f"{state.names[cause.agent]} [{cause.label}]" if cause else ""
