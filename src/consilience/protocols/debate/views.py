"""The views of a debate: cruxes, threads, timeline, and what was said in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from consilience.domain.sections import (
    Block,
    Bullets,
    Details,
    Grid,
    GridCell,
    GridColumn,
    Item,
    Matrix,
    MatrixCell,
    Paragraph,
    Table,
    Tone,
    View,
)
from consilience.domain.wording import count
from consilience.protocols._common.presenting import empty_view, format_score
from consilience.protocols.debate.moves import ACTIVE, MOVES, SIDES, STAGES, STATUSES, ThreadStatus
from consilience.protocols.debate.records import Crux, DebateMessage, ThreadRecord
from consilience.protocols.debate.stance import stance_view
from consilience.protocols.debate.state import (
    DebateState,
    certainty,
    excerpt,
    thread_name,
    virtual_time,
)

MAX_LINES = 12
"""Lines of a cell in a picture; the words below it have all."""
SLICES = 10
_TONES: dict[ThreadStatus, Tone] = {"FAILED_LOCK": "bad", "STALE": "bad", "MERGED": "quiet"}


def views(state: DebateState) -> tuple[View, ...]:
    """Return all views, the table of cruxes first. Of a single thread, `threads` has what a timeline would show."""
    timeline = (_timeline(state),) if len(state.threads) > 1 else ()
    return (_cruxes(state), stance_view(state), _threads(state), *timeline)


def badge(thread: ThreadRecord) -> str:
    """Return the stage of a thread that goes on, or how it ended: `crux lock`, `converged`."""
    if thread.status in ACTIVE:
        return STAGES[thread.stage]
    into = f" into {thread_name(thread.merged_into)}" if thread.merged_into else ""
    return f"{STATUSES[thread.status]}{into}"


def thread_heading(thread: ThreadRecord) -> str:
    """Return the number and the question of a thread, or its topic as long as it has none."""
    return f"{thread.id.rpartition('-')[2]}. {_title(thread)}"


def _title(thread: ThreadRecord) -> str:
    return thread.question or thread.topic


# --- cruxes


def _cruxes(state: DebateState) -> View:
    """A row for each crux, then the messages that it rests on."""
    if not state.cruxes:
        return empty_view("cruxes", "Cruxes", "No crux has been found.")
    heads = ("crux", "thread", "validated", "yes", "no", "undecided", "score")
    rows, details = [], []
    for n, crux in enumerate(state.cruxes, 1):
        sides = Counter(state.sides_on(crux))
        counts = (str(sides[side]) for side in ("YES", "NO", "UNCERTAIN"))
        validated = "yes" if crux.validated else "no"
        rows.append(
            (f"{n}. {crux.question}", thread_name(crux.thread), validated, *counts, format_score(crux.score.score))
        )
        details.append(Details(summary=f"Crux {n}: its messages", blocks=(Bullets(items=tuple(_map(crux, state))),)))
    table = Table(heads=heads, rows=tuple(rows), left=3)
    return View(name="cruxes", heading="Cruxes", blocks=(table, *details), picture=_crux_picture(state))


def _map(crux: Crux, state: DebateState) -> Iterator[Item]:
    """The messages of a crux, by what they did for it."""
    messages = state.said_in(crux.thread)
    for heading in dict.fromkeys(row.heading for row in MOVES.values() if row.heading):
        if matching := [m for m in messages if MOVES[m.move].heading == heading and not m.by_moderator]:
            yield Item(lead=heading, text=state.marks(matching))


def _crux_picture(state: DebateState) -> Matrix | None:
    agents = list(dict.fromkeys(agent for crux in state.cruxes for agent in (*crux.positions, *state.final)))
    if not agents:
        return None
    columns = tuple(f"{n}. {crux.question}" for n, crux in enumerate(state.cruxes, 1))
    cells = []
    for n, crux in enumerate(state.cruxes, 1):
        for agent in agents:
            position, flip = crux.positions.get(agent), crux.flips.get(agent)
            side = state.final_side(agent, crux)
            if side is None:
                continue
            sure = f", {certainty(position.confidence)}" if position else ""
            cells.append(
                MatrixCell(
                    row=state.names[agent],
                    column=columns[n - 1],
                    text=SIDES[side],
                    value=position.confidence if position and side != "UNCERTAIN" else None,
                    framed=bool(flip and flip.would_flip),
                    tip=f"{state.names[agent]} on {crux.question}: {SIDES[side]}{sure}",
                )
            )
    legend = ("darker: more certain · framed: the agent's top claim depends on the crux, by its own word",)
    rows = tuple(state.names[agent] for agent in agents)
    return Matrix(
        title="Where each agent stands on each crux", rows=rows, columns=columns, cells=tuple(cells), legend=legend
    )


# --- threads


def _threads(state: DebateState) -> View:
    """A column for each thread: stage, outcome, convergence signal, and what each agent said in it."""
    if not state.threads:
        return empty_view("threads", "Threads", "No thread has been opened.")
    rows = tuple(
        (
            f"{thread_name(thread.id)}: {excerpt(_title(thread), 120)}",
            badge(thread),
            format_score(thread.signal),
            str(sum(not message.by_moderator for message in state.said_in(thread.id))),
            f"{virtual_time(thread.created_at)}–{virtual_time(thread.closed_at or state.duration)}",
        )
        for thread in state.threads
    )
    table = Table(heads=("thread", "stage or outcome", "convergence", "messages", "time"), rows=rows, left=2)
    details = (
        Details(
            summary=f"{thread_name(thread.id).capitalize()}: {_title(thread)} ({badge(thread)})",
            blocks=(Bullets(items=tuple(_line(message, state) for message in state.said_in(thread.id))),),
        )
        for thread in state.threads
    )
    return View(name="threads", heading="Threads", blocks=(table, *details), picture=_thread_picture(state))


def _line(message: DebateMessage, state: DebateState) -> Item:
    lead = f"{message.label} {state.names[message.agent]} {_move(message, state)}:"
    return Item(lead=lead, text=brief_words(message))


def brief_words(message: DebateMessage, chars: int = 160) -> str:
    """Return the beginning of what a message says, and all that it declares: a question, what it concedes."""
    return " ".join((excerpt(message.text, chars), *message.parts))


def _move(message: DebateMessage, state: DebateState) -> str:
    if message.by_moderator:
        return "asks"
    to = f" ({SIDES[message.new_side]})" if message.new_side else ""
    if message.move == "GRADE_STEELMAN":
        graded = (s.grade for thread in state.threads for s in thread.steelmen if s.message == message.reply_to)
        to = "".join(f" ({grade.lower()})" for grade in graded)
    answered = state.by_id.get(message.reply_to or "")
    return f"{MOVES[message.move].words}{to}{f', to {answered.label}' if answered else ''}"


def _thread_picture(state: DebateState) -> Grid:
    columns, cells = [], []
    for thread in state.threads:
        messages = [message for message in state.said_in(thread.id) if not message.by_moderator]
        columns.append(
            GridColumn(
                name=thread.id,
                label=thread_heading(thread),
                value=thread.signal,
                value_text=format_score(thread.signal),
                note=f"{badge(thread)} · {count(len(messages), 'message')}",
                framed=bool(thread.crux and thread.crux.validated),
            )
        )
        for agent in state.debaters:
            own = [message for message in messages if message.agent == agent]
            if own:
                cells.append(
                    GridCell(
                        row=state.names[agent],
                        column=thread.id,
                        lines=tuple(_cut([f"{message.label} {MOVES[message.move].words}" for message in own])),
                        tone=_TONES.get(thread.status, "plain"),
                        tip=f"{state.names[agent]}: {state.marks(own)}",
                    )
                )
    return Grid(
        rows=tuple(state.names[agent] for agent in state.debaters),
        columns=tuple(columns),
        cells=tuple(cells),
        head="convergence",
        legend=("bars: convergence signal, 0 to 1 · framed: its crux is validated",),
    )


def _cut(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MAX_LINES
    return list(lines) if rest <= 0 else [*lines[: MAX_LINES - 1], f"and {rest + 1} more"]


# --- timeline


def _timeline(state: DebateState) -> View:
    """The stages of every thread in virtual time."""
    rows = []
    for thread in state.threads:
        at = thread.created_at
        for stage in thread.stages:
            end = at + stage.duration
            when = f"{virtual_time(at)}–{virtual_time(end)}"
            rows.append((thread_name(thread.id), STAGES[stage.stage], when, str(stage.messages)))
            at = end
        end_time = "" if thread.closed_at is None else virtual_time(thread.closed_at)
        rows.append((thread_name(thread.id), f"{badge(thread)}{_closing_reason(thread)}", end_time, ""))
    table = Table(heads=("thread", "stage", "virtual time", "messages"), rows=tuple(rows), left=3)
    return View(name="timeline", heading="Timeline", blocks=(table,), picture=_timeline_picture(state))


def _closing_reason(thread: ThreadRecord) -> str:
    return f": {thread.closed_by}" if thread.closed_by else ""


def _timeline_picture(state: DebateState) -> Grid:
    """A column for each tenth of the debate, a row for each thread."""
    end = max([state.duration, *(message.at for message in state.messages)], default=0) + 1
    width = max(10_000, -(-end // SLICES) // 1000 * 1000 + 1000)
    starts = range(0, end, width)
    columns = tuple(
        GridColumn(name=str(start), label=f"{virtual_time(start)}–{virtual_time(start + width)}") for start in starts
    )
    cells = []
    for thread in state.threads:
        for start in starts:
            messages = [m for m in state.said_in(thread.id) if start <= m.at < start + width]
            if messages:
                cells.append(
                    GridCell(
                        row=f"{thread_name(thread.id)}: {_title(thread)}",
                        column=str(start),
                        lines=tuple(
                            _cut([f"{m.label} {'asks' if m.by_moderator else MOVES[m.move].words}" for m in messages])
                        ),
                    )
                )
    rows = tuple(f"{thread_name(thread.id)}: {_title(thread)}" for thread in state.threads)
    return Grid(rows=rows, columns=columns, cells=tuple(cells), head="virtual time")


# --- what was said


def transcript_blocks(state: DebateState) -> Iterator[Block]:
    """Every message in order with its label, author, move, thread and time."""
    for message in state.messages:
        asked = " (asked to argue the other side)" if message.opposing else ""
        memory = " †" if message.from_memory else ""
        yield Paragraph(
            lead=f"{message.label}{memory} {state.names[message.agent]} {_move(message, state)}{asked}",
            text=f"({thread_name(message.thread)}, {virtual_time(message.at)}): {message.words}",
            shows=message.id,
        )
    if state.messages and state.messages[-1].by_moderator:
        yield from _unanswered(state.messages[-1], state)
    if any(message.from_memory for message in state.messages):
        yield Paragraph(text="† evidence from the model's memory: no document is quoted.", tone="remark")
    if not state.messages:
        yield Paragraph(text="Nothing has been said.")


def _unanswered(last: DebateMessage, state: DebateState) -> Iterator[Block]:
    """What came of a message of the moderator after which nothing was said, once its thread has ended."""
    thread = state.thread(last.thread)
    if thread.status in ACTIVE:
        return
    crux = f", with {'a' if thread.crux.validated else 'no'} validated crux" if thread.crux else ""
    ended = f"{thread_name(thread.id)} {badge(thread)}{crux}{_closing_reason(thread)}"
    yield Paragraph(text=f"No message answers {last.label}: {ended}.", tone="remark", refs=(last.id,))
