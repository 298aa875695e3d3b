"""What each agent wrote in each step, whether its text or its position changed, and where it gave no reply."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from consilience.domain.events import CallCompleted, CallFailed, Ended
from consilience.domain.positions import position_key
from consilience.domain.sections import (
    Block,
    Bullets,
    Grid,
    GridCell,
    GridColumn,
    Item,
    Paragraph,
    Subheading,
    Tone,
    View,
)
from consilience.reporting.formatting import describe_phase, one_line, percent, plain_text, reply_text
from consilience.reporting.record import SessionRecord, has_step_number, step_of, steps_of

HEADING = "What was said, round by round"
LEGEND = "● first words · ▲ changed · = same words · ✕ no reply · ◆ position moved"
MAX_EXCERPT_CHARS = 170


@dataclass(frozen=True)
class _Turn:
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

    @property
    def change(self) -> str:
        """What is new, in words."""
        if self.failure:
            return f"no reply: {self.failure}"
        if self.excerpt is None:
            return ""
        if self.kept is None:
            return "first words, revised" if self.revised else "first words"
        return "same words" if self.same else f"changed, {percent(self.kept)} of words kept"

    @property
    def stance(self) -> str:
        """Its position, and whether it moved, in words."""
        return "" if self.position is None else f"{'moved to' if self.moved else 'position'}: {self.position}"


def view(record: SessionRecord) -> View:
    turns = _turns(record)
    steps = [step for step in steps_of(record.calls) if any(step in by_step for by_step in turns.values())]
    if not steps:
        nothing = Paragraph(text="Nothing was said yet.")
        return View(name="evolution", heading=HEADING, blocks=(nothing,), is_empty=True)
    heads, names = _heads(steps, record), {agent: record.names.get(agent, agent) for agent in turns}
    blocks: list[Block] = []
    for agent, by_step in turns.items():
        items = (_item(heads[step], turn) for step, turn in by_step.items())
        blocks += [Subheading(text=names[agent]), Bullets(items=tuple(items))]
    picture = Grid(
        rows=tuple(names.values()),
        columns=tuple(GridColumn(name=step, label=heads[step]) for step in steps),
        cells=tuple(_cell(names[agent], step, turn) for agent in turns for step, turn in turns[agent].items()),
        legend=(LEGEND,),
    )
    return View(name="evolution", heading=HEADING, blocks=tuple(blocks), picture=picture)


def _item(step: str, turn: _Turn) -> Item:
    marks = "; ".join(filter(None, (turn.change, turn.stance)))
    return Item(lead=step, text=f"[{marks}] {turn.excerpt or ''}".rstrip())


def _cell(name: str, step: str, turn: _Turn) -> GridCell:
    mark = "✕" if turn.failure else "=" if turn.same else "▲" if turn.kept is not None else "●"
    lines = (turn.change and f"{mark} {turn.change}", f"{'◆ ' if turn.moved else ''}{turn.stance}", turn.excerpt)
    tone: Tone = "bad" if turn.failure else "quiet" if turn.same or turn.excerpt is None else "plain"
    return GridCell(row=name, column=step, value=turn.kept, lines=tuple(filter(None, lines)), tone=tone)


def _turns(record: SessionRecord) -> dict[str, dict[str, _Turn]]:
    """Return turns by agent and step. Only a verdict on others, or a reply without words, is no turn."""
    by_turn: dict[tuple[str, str], list[Ended]] = {}
    for call in record.calls:
        by_turn.setdefault((call.agent, step_of(call)), []).append(call)
    positions = {(held.agent, held.step): one_line(held.text) for held in record.presentation.positions}
    steps = steps_of(record.calls)
    turns: dict[str, dict[str, _Turn]] = {}
    for agent in record.agents:
        before: dict[str, str] = {}
        held: str | None = None
        for step in steps:
            if calls := by_turn.get((agent, step)):
                texts, turn = _turn(calls, before, record)
                position = positions.get((agent, step), turn.position)
                if not texts and position is None and not turn.failure:
                    continue
                moved = None not in (position, held) and _key(position) != _key(held)
                turns.setdefault(agent, {})[step] = replace(turn, position=position, moved=moved)
                before, held = before | texts, position or held
    return turns


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


def _turn(calls: Iterable[Ended], before: Mapping[str, str], record: SessionRecord) -> tuple[dict[str, str], _Turn]:
    """Return an agent's last texts in a step, by kind, and its turn, which has a failure only if there is no text."""
    texts: dict[str, str] = {}
    asides, stance = record.presentation.asides, record.presentation.stance
    last: CallCompleted | None = None
    position, failure, revised = None, "", False
    for call in calls:
        if isinstance(call, CallCompleted):
            text = record.text(call.text)
            position = _position(text, stance) or position
            if call.kind not in asides and (words := _free_text(call, text)).strip():  # else its text stands
                is_revised = last is not None and words != texts[last.kind]
                revised = revised or (is_revised and (last is None or call.phase != last.phase))
                texts.pop(call.kind, None)
                texts[call.kind], last = words, call
        elif call.kind not in asides:
            failure = call.failure.value if isinstance(call, CallFailed) else "reply unusable"
    if last is None:
        return {}, _Turn(position=position, failure=failure)
    words, earlier = texts[last.kind], before.get(last.kind)
    kept = None if earlier is None else word_similarity(earlier, words)
    return texts, _Turn(_excerpt(words, earlier), kept, words == earlier, revised, position)


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
