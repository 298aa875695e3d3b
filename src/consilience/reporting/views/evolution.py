"""What each agent said, round by round, whether its words or its position changed, and where it gave no reply."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING

from consilience.domain.events import CallCompleted, CallFailed, Ended
from consilience.reporting.formatting import one_line, percent, reply_text
from consilience.reporting.record import SessionRecord, has_step_number, step_of, steps_of
from consilience.reporting.views.drawing import Drawing, pixels, wrapped
from consilience.reporting.views.words import paragraph

if TYPE_CHECKING:
    from rich.text import Text

_EXCERPT = 170
"""Characters shown of a text."""
_COLUMN = 26
"""The least cells a column needs to be read; where there is less, the table becomes a list."""


@dataclass(frozen=True)
class Turn:
    """One agent in one step. `kept` is the share of words its text has in common with its own last one of that kind in an earlier
    step (Jaccard, of the two sets of words; None for its first, since a plan and what came of it are not one text), `revised`
    whether it said something else in an earlier phase of the same step (in one phase it may write for several), `moved` whether
    its position is another than the last it declared."""

    excerpt: str | None = None
    kept: float | None = None
    same: bool = False
    revised: bool = False
    position: str | None = None
    moved: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Evolution:
    """`steps` in which anybody said anything or failed to; `heads` is what each is called, which counts nothing that came once."""

    steps: tuple[str, ...]
    agents: Mapping[str, str]
    turns: Mapping[str, Mapping[str, Turn]] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)


def fold(record: SessionRecord) -> Evolution:
    steps = steps_of(record.calls)
    by_turn: dict[tuple[str, str], list[Ended]] = {}
    for call in record.calls:
        by_turn.setdefault((call.agent, step_of(call)), []).append(call)
    read = _positions_read(record)
    turns: dict[str, dict[str, Turn]] = {}
    for agent in record.agents:
        before: dict[str, str] = {}
        held: str | None = None
        for step in steps:
            if calls := by_turn.get((agent, step)):
                said, turn = _turn(calls, before, record)
                position = read.get((agent, step), turn.position)
                moved = position is not None and held is not None and position != held
                if not said and position is None and not turn.failure:
                    continue  # only a verdict on others, or a reply without words
                turns.setdefault(agent, {})[step] = replace(turn, position=position, moved=moved)
                before, held = before | said, position or held
    taken = [step for step in steps if any(step in those for those in turns.values())]
    names = {id: record.names.get(id, id) for id in record.agents}
    return Evolution(tuple(taken), names, turns, _heads(taken, record))


def _heads(steps: Sequence[str], record: SessionRecord) -> dict[str, str]:
    """`round 2`; `intent` for what came once, and `split, level 2` for phases that are counted by the level of the tree."""
    counted = {step_of(call) for call in record.calls if has_step_number(call)}
    levels = record.topology.levels
    elsewhere = {
        _name(step_of(call)) for call in record.calls if call.phase and call.phase[1] != levels.get(call.agent)
    }
    times = Counter(map(_name, steps))
    heads = {}
    for step in steps:
        name = _name(step)
        said = step if times[name] > 1 else name or step
        if times[name] > 1 and name not in elsewhere:
            said = f"{name}, level {step.rpartition(' ')[2]}"
        heads[step] = step if step in counted else said.replace("_", " ")
    return heads


def _name(step: str) -> str:
    return step.rpartition(" ")[0]


def _turn(calls: Iterable[Ended], before: Mapping[str, str], record: SessionRecord) -> tuple[dict[str, str], Turn]:
    """Its last contributions in the step by kind, and the turn; a failure only where nothing came of the step."""
    turn = Turn()
    said: dict[str, str] = {}
    asides, stance = record.presentation.asides, record.presentation.stance
    last: CallCompleted | None = None
    revised = False
    for call in calls:
        if isinstance(call, CallCompleted):
            text = record.text(call.text)
            turn = replace(turn, position=_position(text, stance) or turn.position)
            if call.kind not in asides and (words := _said(call, text)).strip():  # else it let its words stand
                again = last is not None and words != said[last.kind]
                revised = revised or (again and (last is None or call.phase != last.phase))
                said.pop(call.kind, None)
                said[call.kind], last = words, call
        elif call.kind not in asides:
            why = call.failure.value if isinstance(call, CallFailed) else "reply unusable"
            turn = replace(turn, failure=why)
    if last is None:
        return {}, turn
    words, earlier = said[last.kind], before.get(last.kind)
    kept = None if earlier is None else word_similarity(earlier, words)
    excerpt = _excerpt(words, earlier)
    return said, replace(turn, excerpt=excerpt, kept=kept, same=words == earlier, revised=revised, failure="")


def _said(call: CallCompleted, text: str) -> str:
    """Its words. A typed reply of a kind of its own without a text, such as a division of the task, has none."""
    fields = _fields(text)
    is_wordless = fields is not None and not isinstance(fields.get("text"), str)
    return "" if is_wordless and call.kind != "reply" else reply_text(text)


def _excerpt(said: str, before: str | None) -> str:
    """Its beginning; where that only repeats the text before, from the first sentence that does not."""
    line = one_line(said)
    last = one_line(before or "")
    shared = next((n for n, (a, b) in enumerate(zip(line, last, strict=False)) if a != b), min(len(line), len(last)))
    if _EXCERPT // 2 < shared < len(line):
        sentence = line.rfind(". ", 0, shared) + 2
        start = sentence if sentence > 1 else line.rfind(" ", 0, shared) + 1
        return f"… {one_line(line[start:], _EXCERPT - 2)}"
    return one_line(line, _EXCERPT)


def word_similarity(one: str, other: str) -> float:
    """Jaccard: words in both over words in either, regardless of case and order; 1 for two texts without words."""
    first, second = (set(re.findall(r"\w+", text.lower())) for text in (one, other))
    return len(first & second) / len(first | second) if first | second else 1.0


def _position(text: str, stance: str) -> str | None:
    found = (_fields(text) or {}).get(stance) if stance else None
    return one_line(found).lower() if isinstance(found, str) and found.strip() else None


def _fields(text: str) -> dict[str, object] | None:
    """Those of a typed reply; None for prose."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _positions_read(record: SessionRecord) -> dict[tuple[str, str], str]:
    """Positions as the protocol read them."""
    return {(held.agent, held.step): one_line(held.text) for held in record.presentation.positions}


def change(turn: Turn) -> str:
    """In words, what is new about it."""
    if turn.failure:
        return f"no reply: {turn.failure}"
    if turn.excerpt is None:
        return ""
    if turn.kept is None:
        return "first words, revised" if turn.revised else "first words"
    return "same words" if turn.same else f"changed, {percent(turn.kept)} of words kept"


def stance(turn: Turn) -> str:
    """Its position, marked where it moved."""
    if turn.position is None:
        return ""
    return f"moved to: {turn.position}" if turn.moved else f"position: {turn.position}"


def text(evolution: Evolution, width: int) -> str:
    if not evolution.turns:
        return "Nothing was said yet.\n"
    if 16 + len(evolution.steps) * _COLUMN <= width:
        return _table(evolution, width)
    lines: list[str] = []
    for agent, turns in evolution.turns.items():
        lines += paragraph(evolution.agents[agent], width, "  ")
        for step in evolution.steps:
            if step in turns:
                turn = turns[step]
                marks = "; ".join(filter(None, (change(turn), stance(turn))))
                said = f" {turn.excerpt}" if turn.excerpt else ""
                lines += paragraph(f"  {evolution.heads[step]} [{marks}]{said}", width, "    ")
        lines.append("")
    return "\n".join(lines)


def _table(evolution: Evolution, width: int) -> str:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, width=width, show_lines=True, pad_edge=False)
    table.add_column("agent", width=14)
    for step in evolution.steps:
        table.add_column(_words(evolution.heads[step]), ratio=1)
    for agent, turns in evolution.turns.items():
        table.add_row(
            _words(evolution.agents[agent]), *(_cell(turns[s]) if s in turns else "" for s in evolution.steps)
        )
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().strip("\n").splitlines()) + "\n"


def _cell(turn: Turn) -> Text:
    marks = [f"[{mark}]" for mark in (change(turn), stance(turn)) if mark]
    return _words("\n".join(filter(None, (*marks, turn.excerpt))))


def _words(words: str) -> Text:
    from rich.text import Text

    return Text(words)


# --- as a picture

_WIDTH, _NAMES = 268.0, 132.0
_ROOM = _WIDTH - 20


def draw(evolution: Evolution) -> Drawing:
    drawing = Drawing(
        "evolution",
        "What was said, round by round",
        f"A row for each of {len(evolution.turns)} agents, a column for each of {len(evolution.steps)} steps: "
        "▲ words changed, ● first words, = the same words, ✕ no reply, ◆ the position moved.",
    )
    if not evolution.turns:
        drawing.words(16, 28, "Nothing was said yet.")
        return drawing
    columns = {step: 16 + _NAMES + n * (_WIDTH + 10) for n, step in enumerate(evolution.steps)}
    for step, x in columns.items():
        drawing.words(x + 4, 28, evolution.heads[step], "cv-head", within=_WIDTH - 4)
    y = 42.0
    for agent, turns in evolution.turns.items():
        name, _, stands_for = evolution.agents[agent].partition(" (")
        about = wrapped(stands_for.removesuffix(")"), _NAMES - 8, 3, partial(pixels, style="cv-small"))
        drawing.words(16, y + 20, name, "cv-strong", within=_NAMES - 8)
        drawing.lines(16, y + 37, about, "cv-small", 14)
        height = max(36.0 + 14 * len(about), *(_height(turn) for turn in turns.values()))
        for step, turn in turns.items():
            _draw_turn(drawing, columns[step], y, height, turn)
        y += height + 10
    drawing.words(16, y + 14, "● first words · ▲ changed · = same words · ✕ no reply · ◆ position moved", "cv-small")
    return drawing


def _height(turn: Turn) -> float:
    return 14 + 17 * (bool(change(turn)) + bool(stance(turn))) + 16 * len(_lines(turn))


def _lines(turn: Turn) -> list[str]:
    return wrapped(turn.excerpt or "", _ROOM, 6, pixels)


def _draw_turn(drawing: Drawing, x: float, y: float, height: float, turn: Turn) -> None:
    style = "cv-box cv-bad" if turn.failure else "cv-box cv-quiet" if turn.same or turn.excerpt is None else "cv-box"
    drawing.box(x, y, _WIDTH, height, style)
    mark = "✕" if turn.failure else "=" if turn.same else "▲" if turn.kept is not None else "●"
    top = y + 20
    if words := change(turn):
        drawing.words(x + 10, top, f"{mark} {words}", "cv-strong cv-small", within=_ROOM)
        top += 17
    if held := stance(turn):
        drawing.words(x + 10, top, f"{'◆ ' if turn.moved else ''}{held}", "cv-small", within=_ROOM)
        top += 17
    drawing.lines(x + 10, top, _lines(turn))
