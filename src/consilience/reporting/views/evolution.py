"""What each agent wrote in each step, whether its text or its position changed, and where it gave no reply."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from consilience.domain.events import CallCompleted, CallFailed, Ended
from consilience.domain.positions import position_key
from consilience.domain.sections import Grid, GridCell, GridColumn, Tone
from consilience.reporting.formatting import count, describe_phase, one_line, percent, plain_text, reply_text
from consilience.reporting.record import SessionRecord, has_step_number, step_of, steps_of
from consilience.reporting.terminal import paragraph, text_columns, wrapped
from consilience.reporting.views.charts import CELL_ROOM, draw_picture
from consilience.reporting.views.drawing import Drawing, pixels

HEADING = "What was said, round by round"
NO_TEXT = "Nothing was said yet."
LEGEND = "● first words · ▲ changed · = same words · ✕ no reply · ◆ position moved"
MAX_EXCERPT_CHARS = 170
MAX_DRAWN_LINES = 6
MIN_COLUMN_CELLS = 26
"""With narrower columns the table becomes a list."""


@dataclass(frozen=True)
class AgentStep:
    """One agent in one step."""

    excerpt: str | None = None
    kept: float | None = None
    """Similarity to its last text of the same kind in an earlier step (Jaccard index of the words); None for its first."""
    same: bool = False
    """Whether the text equals that earlier one."""
    revised: bool = False
    """Whether an earlier phase of the same step had another text. In one phase an agent may write several."""
    position: str | None = None
    moved: bool = False
    """Whether the position differs from the last one declared."""
    failure: str = ""
    """Why the agent gave no reply; "" if it gave one."""


@dataclass(frozen=True)
class Evolution:
    """The turns of a session by agent and step."""

    steps: tuple[str, ...]
    """Steps with at least one turn."""
    agents: Mapping[str, str]
    """Labels by id."""
    turns: Mapping[str, Mapping[str, AgentStep]] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)
    """Headings by step; a step that occurs once has no number."""


def fold(record: SessionRecord) -> Evolution:
    steps = steps_of(record.calls)
    by_turn: dict[tuple[str, str], list[Ended]] = {}
    for call in record.calls:
        by_turn.setdefault((call.agent, step_of(call)), []).append(call)
    positions = {(held.agent, held.step): one_line(held.text) for held in record.presentation.positions}
    turns: dict[str, dict[str, AgentStep]] = {}
    for agent in record.agents:
        before: dict[str, str] = {}
        held: str | None = None
        for step in steps:
            if calls := by_turn.get((agent, step)):
                texts, turn = _turn(calls, before, record)
                position = positions.get((agent, step), turn.position)
                has_moved = None not in (position, held) and _key(position) != _key(held)
                if not texts and position is None and not turn.failure:
                    continue  # only a verdict on others, or a reply without words
                turns.setdefault(agent, {})[step] = replace(turn, position=position, moved=has_moved)
                before, held = before | texts, position or held
    used_steps = [step for step in steps if any(step in agent_steps for agent_steps in turns.values())]
    names = {id: record.names.get(id, id) for id in record.agents}
    return Evolution(tuple(used_steps), names, turns, _heads(used_steps, record))


def _heads(steps: Sequence[str], record: SessionRecord) -> dict[str, str]:
    """Return `round 2`; `intent` for a step that occurs once; `split, level 2` for phases counted by the level of the tree."""
    numbered_steps = {step_of(call) for call in record.calls if has_step_number(call)}
    levels = record.topology.levels
    unnumbered_names = {
        _name(step_of(call)) for call in record.calls if call.phase and call.phase[1] != levels.get(call.agent)
    }
    times = Counter(map(_name, steps))
    heads = {}
    for step in steps:
        name = _name(step)
        head = step if times[name] > 1 else name or step
        if times[name] > 1 and name not in unnumbered_names:
            head = f"{name}, level {step.rpartition(' ')[2]}"
        heads[step] = step if step in numbered_steps else head.replace(name, describe_phase(name, record.labels))
    return heads


def _name(step: str) -> str:
    return step.rpartition(" ")[0]


def _turn(calls: Iterable[Ended], before: Mapping[str, str], record: SessionRecord) -> tuple[dict[str, str], AgentStep]:
    """Return an agent's last texts in a step, by kind, and its turn, which has a failure only if there is no text."""
    turn = AgentStep()
    texts: dict[str, str] = {}
    asides, stance = record.presentation.asides, record.presentation.stance
    last: CallCompleted | None = None
    revised = False
    for call in calls:
        if isinstance(call, CallCompleted):
            text = record.text(call.text)
            turn = replace(turn, position=_position(text, stance) or turn.position)
            if call.kind not in asides and (words := _free_text(call, text)).strip():  # else its text stands
                is_revised = last is not None and words != texts[last.kind]
                revised = revised or (is_revised and (last is None or call.phase != last.phase))
                texts.pop(call.kind, None)
                texts[call.kind], last = words, call
        elif call.kind not in asides:
            failure_text = call.failure.value if isinstance(call, CallFailed) else "reply unusable"
            turn = replace(turn, failure=failure_text)
    if last is None:
        return {}, turn
    words, earlier = texts[last.kind], before.get(last.kind)
    similarity = None if earlier is None else word_similarity(earlier, words)
    excerpt = _excerpt(words, earlier)
    return texts, replace(turn, excerpt=excerpt, kept=similarity, same=words == earlier, revised=revised, failure="")


def _free_text(call: CallCompleted, text: str) -> str:
    """Return the free text of a reply; "" for a typed reply of its own kind without one, such as a division of the task."""
    fields = _fields(text)
    is_wordless = fields is not None and not isinstance(fields.get("text"), str)
    return "" if is_wordless and call.kind != "reply" else reply_text(text)


def _excerpt(text: str, before: str | None) -> str:
    """Return the beginning of a text, or what follows its first new sentence if the beginning repeats `before`."""
    line, last = one_line(plain_text(text)), one_line(plain_text(before or ""))
    shared = next((n for n, (a, b) in enumerate(zip(line, last, strict=False)) if a != b), min(len(line), len(last)))
    if MAX_EXCERPT_CHARS // 2 < shared < len(line):
        sentence = line.rfind(". ", 0, shared) + 2
        start = sentence if sentence > 1 else line.rfind(" ", 0, shared) + 1
        return f"… {one_line(line[start:], MAX_EXCERPT_CHARS - 2)}"
    return one_line(line, MAX_EXCERPT_CHARS)


def word_similarity(a: str, b: str) -> float:
    """Return the Jaccard index of the words of two texts, regardless of case; 1 if neither has words."""
    first, second = (set(re.findall(r"\w+", text.lower())) for text in (a, b))
    return len(first & second) / len(first | second) if first | second else 1.0


def _position(text: str, stance: str) -> str | None:
    position = (_fields(text) or {}).get(stance) if stance else None
    return one_line(position) if isinstance(position, str) and position.strip() else None


def _key(position: str | None) -> str | None:
    return None if position is None else position_key(position)


def _fields(text: str) -> dict[str, object] | None:
    """Return the fields of a typed reply; None for prose."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def change(turn: AgentStep) -> str:
    """Describe what is new in a turn."""
    if turn.failure:
        return f"no reply: {turn.failure}"
    if turn.excerpt is None:
        return ""
    if turn.kept is None:
        return "first words, revised" if turn.revised else "first words"
    return "same words" if turn.same else f"changed, {percent(turn.kept)} of words kept"


def stance(turn: AgentStep) -> str:
    """Describe its position, and whether it moved."""
    if turn.position is None:
        return ""
    return f"moved to: {turn.position}" if turn.moved else f"position: {turn.position}"


def text(evolution: Evolution, width: int) -> str:
    if not evolution.turns:
        return f"{NO_TEXT}\n"
    if 16 + len(evolution.steps) * MIN_COLUMN_CELLS <= width:
        return _table(evolution, width)
    lines: list[str] = []
    for agent, turns in evolution.turns.items():
        lines += paragraph(evolution.agents[agent], width, "  ")
        for step in evolution.steps:
            if step in turns:
                turn = turns[step]
                marks = "; ".join(filter(None, (change(turn), stance(turn))))
                excerpt = f" {turn.excerpt}" if turn.excerpt else ""
                lines += paragraph(f"  {evolution.heads[step]} [{marks}]{excerpt}", width, "    ")
        lines.append("")
    return "\n".join(lines)


def _table(evolution: Evolution, width: int) -> str:
    heads = ["agent", *(evolution.heads[step] for step in evolution.steps)]
    rows = [
        [evolution.agents[agent], *(_cell(turns[step]) if step in turns else "" for step in evolution.steps)]
        for agent, turns in evolution.turns.items()
    ]
    return "\n".join(text_columns(heads, rows, width)) + "\n"


def _cell(turn: AgentStep) -> str:
    marks = [f"[{mark}]" for mark in (change(turn), stance(turn)) if mark]
    return "\n".join(filter(None, (*marks, turn.excerpt)))


# --- as a picture


def draw(evolution: Evolution) -> Drawing:
    if not evolution.turns:
        return Drawing("evolution", HEADING, NO_TEXT, empty=True)
    agents, steps = count(len(evolution.turns), "agent"), count(len(evolution.steps), "step")
    drawing = Drawing("evolution", HEADING, f"A row for each of {agents}, a column for each of {steps}: {LEGEND}.")
    grid = Grid(
        rows=tuple(evolution.agents[agent] for agent in evolution.turns),
        columns=tuple(GridColumn(name=step, label=evolution.heads[step]) for step in evolution.steps),
        cells=tuple(
            _grid_cell(evolution.agents[agent], step, turn)
            for agent, turns in evolution.turns.items()
            for step, turn in turns.items()
        ),
        legend=(LEGEND,),
    )
    draw_picture(drawing, grid)
    return drawing


def _grid_cell(name: str, step: str, turn: AgentStep) -> GridCell:
    mark = "✕" if turn.failure else "=" if turn.same else "▲" if turn.kept is not None else "●"
    marks = (f"{mark} {change(turn)}" if change(turn) else "", f"{'◆ ' if turn.moved else ''}{stance(turn)}")
    excerpt = wrapped(turn.excerpt or "", CELL_ROOM, MAX_DRAWN_LINES, partial(pixels, style="cv-small"))
    tone: Tone = "bad" if turn.failure else "quiet" if turn.same or turn.excerpt is None else "plain"
    return GridCell(row=name, column=step, lines=(*filter(None, marks), *excerpt), tone=tone)
