"""What went down to whom, how much of it was shown, and what came up again, with how much weight: pass by pass."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from consilience.domain.events import CallCompleted
from consilience.domain.positions import LEVELS
from consilience.reporting.passes import Handed, handed_of, passes_of, weights_of
from consilience.reporting.record import Record
from consilience.reporting.views import passes
from consilience.reporting.views.drawing import Drawing
from consilience.reporting.views.layers import Layers, layered
from consilience.reporting.views.tables import paragraph, table
from consilience.reporting.words import one_line, share

_NARROW = 80
"""Columns under which an edge stands in lines and not in a table."""

applies = passes.applies

Edge = tuple[str, str]


@dataclass(frozen=True)
class Came:
    """What came up from child to parent: how sure its author says it is, and what that weighs beside the others'. `new` where it is
    of this pass, not of one before."""

    declared: str | None = None
    weight: float | None = None
    new: bool = True


@dataclass(frozen=True)
class Way:
    """One edge in one pass."""

    parent: str
    child: str
    down: tuple[Handed, ...] = ()
    up: Came | None = None

    @property
    def shown(self) -> float | None:
        """Share of the sentences handed down that the child was shown."""
        sentences = sum(one.sentences for one in self.down)
        return sum(one.kept for one in self.down) / sentences if sentences else None


@dataclass(frozen=True)
class Step:
    index: int
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class Flow:
    """`levels` of the roles, `best` the pass whose text is the answer, `why` what there is to say where nothing flowed."""

    levels: Mapping[str, int]
    steps: tuple[Step, ...] = ()
    best: int | None = None
    why: str = ""


def fold(record: Record) -> Flow:
    shape = record.topology
    edges = [(parent, child) for child in shape.agents for parent in shape.parents.get(child, ())]
    if record.report is None:
        return Flow({}, why="What was handed down stands in the report, and this session has none yet.")
    data = record.report.model_dump(mode="json")
    handed: dict[int, dict[Edge, list[Handed]]] = {}
    for one in handed_of(data):
        handed.setdefault(one.step, {}).setdefault((one.parent, one.child), []).append(one)
    best = passes_of(data).best
    came = _came(record, edges)
    weights = weights_of(data)
    steps = []
    for index in sorted(handed.keys() | came.keys()):
        down, up = handed.get(index, {}), came.get(index, {})
        if index == best:
            up = {edge: Came(one.declared, weights.get(edge[0], {}).get(edge[1]), one.new) for edge, one in up.items()}
        ways = tuple(
            Way(*edge, tuple(down.get(edge, ())), up.get(edge))
            for edge in dict.fromkeys((*edges, *down))
            if edge in down or edge in up
        )
        steps.append(Step(index, ways))
    within = {id for edge in (*edges, *(edge for step in handed.values() for edge in step)) for id in edge}
    levels = {id: level for id, level in shape.levels.items() if id in within and id != _judge(record)}
    return Flow(levels, tuple(steps), best, why="" if steps else "Nothing was handed down: nobody wrote anything.")


def _judge(record: Record) -> str:
    """A seat that is drawn beneath the first one and is given nothing by it."""
    return next((agent.id for agent in record.course.agents if agent.role == "critic"), "")


def _came(record: Record, edges: list[Edge]) -> dict[int, dict[Edge, Came]]:
    """By pass, what every parent had of each of its children at the end of it."""
    latest: dict[Edge, tuple[int, str | None]] = {}
    found: dict[int, dict[Edge, Came]] = {}
    for call in record.calls:
        index, edge, author = _place(call.key)
        if not index or not isinstance(call, CallCompleted):
            continue
        said_of_itself = (index, _declared(record.text(call.text)))
        latest |= {one: said_of_itself for one in edges if one == edge or one[1] == author}
        found[index] = {one: Came(said, None, new=of == index) for one, (of, said) in latest.items()}
    return {index: _weighed(up) for index, up in found.items()}


def _place(key: str) -> tuple[int, Edge, str]:
    """Pass and edge of `pass-2/specialist/body/stylist`, pass and author of `pass-2/draft/body` and `pass-2/revise/body`."""
    first, _, rest = key.partition("/")
    name, _, number = first.rpartition("-")
    index = int(number) if name == "pass" and number.isdecimal() else 0
    match rest.split("/"):
        case ["specialist", parent, child]:
            return index, (parent, child), ""
        case ["draft" | "revise", author]:
            return index, ("", ""), author
    return 0, ("", ""), ""


def _declared(said: str) -> str | None:
    """The confidence of a typed reply, as it came; the least where it is prose."""
    start = said.find("{")
    try:
        value = json.JSONDecoder().raw_decode(said[start:])[0] if start >= 0 else {}
    except (ValueError, RecursionError):
        return None
    found = value.get("confidence", "unsure")
    return found if isinstance(found, str) else None


def _weighed(up: Mapping[Edge, Came]) -> dict[Edge, Came]:
    """Every child's share of the confidence declared to its parent; alike where nobody declares any, none where one is unknown."""
    levels: Mapping[str, float] = {str(name): level for name, level in LEVELS.items()}
    found: dict[Edge, Came] = {}
    for edge, came in up.items():
        beside = [one.declared for (parent, _), one in up.items() if parent == edge[0]]
        known = [0.0 if said is None else levels.get(said) for said in beside]
        sure = [one for one in known if one is not None]
        own = 0.0 if came.declared is None else levels.get(came.declared, 0.0)
        total = math.fsum(sure)
        weight = None if len(sure) < len(known) else own / total if total else 1 / len(known)
        found[edge] = Came(came.declared, weight, came.new)
    return found


def text(flow: Flow, width: int) -> str:
    if not flow.steps:
        return "\n".join(paragraph(flow.why, width)) + "\n"
    lines = [
        "Down: what was handed to whom, and how many of its sentences were shown, by the distance of the two roles.",
        "Up: how sure the author says the text is, and its weight among all that came to the same reader; "
        "(in brackets): of an earlier pass.",
    ]
    lines = [wrapped for line in lines for wrapped in paragraph(line, width)]
    for step in flow.steps:
        lines += ["", f"pass {step.index}{' (the answer)' if step.index == flow.best else ''}"]
        lines += _table(step, width) if width >= _NARROW else _listed(step, width)
    return "\n".join(lines) + "\n"


def _table(step: Step, width: int) -> list[str]:
    rows = []
    for way in step.ways:
        first = True
        for what, shown, distance, strength in [_figures(one) for one in way.down] or [("–", "", "", "")]:
            name = f"{one_line(way.parent)} → {one_line(way.child)}" if first else ""
            rows.append((name, what, shown, distance, strength, *(_up(way.up) if first else ("", ""))))
            first = False
    heads = ("from → to", "down", "shown", "distance", "strength", "up", "weight")
    return [f"  {line}" for line in table(heads, rows, width - 2, left=2)]


def _figures(one: Handed) -> tuple[str, str, str, str]:
    return (
        one_line(one.what),
        f"{one.kept} of {one.sentences}" + (f", {share(one.kept / one.sentences)}" if one.sentences else ""),
        "–" if one.distance is None else "<0.01" if 0 < one.distance < 0.005 else f"{one.distance:.2f}",
        "–" if one.strength is None else _strength(one.strength),
    )


def _strength(strength: float) -> str:
    """Rounded, but never to all of it: of 99.8 % of four sentences three are shown."""
    said = share(strength)
    return f"{math.floor(strength * 1000) / 10:g} %" if strength < 1 and said == share(1) else said


def _up(came: Came | None) -> tuple[str, str]:
    if came is None:
        return "–", "–"
    said = one_line(came.declared) if came.declared else "undeclared"
    return said if came.new else f"({said})", "–" if came.weight is None else f"{came.weight:.2f}"


def _listed(step: Step, width: int) -> list[str]:
    lines: list[str] = []
    for way in step.ways:
        lines.append(f"  {one_line(way.parent)} → {one_line(way.child)}")
        said, weight = _up(way.up)
        for what, shown, distance, strength in map(_figures, way.down):
            lines.append(f"    ↓ {what}: {shown}, distance {distance}, strength {strength}")
        if way.up is not None:
            lines.append(f"    ↑ {said}, weight {weight}")
    return [w for line in lines for w in paragraph(line, width, "      ")]


# --- as a picture

_WIDE, _HIGH, _BESIDE, _BENEATH = 150.0, 46.0, 44.0, 96.0


def draw(flow: Flow) -> Drawing:
    drawing = Drawing("flow", "What went down and what came up", text(flow, 100))
    if not flow.steps:
        drawing.words(16, 28, flow.why)
        return drawing
    edges = list(dict.fromkeys((way.parent, way.child) for step in flow.steps for way in step.ways))
    edges = [
        edge for edge in edges if flow.levels.get(edge[0], 0) < flow.levels.get(edge[1], 0) and edge[0] in flow.levels
    ]
    ranks = {level: n for n, level in enumerate(sorted(set(flow.levels.values())))}
    placed = layered({id: ranks[level] for id, level in flow.levels.items()}, edges)
    top = 16.0
    for step in flow.steps:
        title = f"pass {step.index}{', the answer' if step.index == flow.best else ''}"
        drawing.words(16, top + 14, title, "cv-head")
        _panel(drawing, step, placed, {id: ranks[level] for id, level in flow.levels.items()}, top + 32)
        top += 32 + len(ranks) * (_HIGH + _BENEATH) - _BENEATH + 34
    drawing.words(
        16, top, "↓ share of what was handed down that was shown; dashed: not all of it, faint: nothing was", "cv-small"
    )
    drawing.words(16, top + 16, "↑ weight of what came up, among all that came to the same reader", "cv-small")
    drawing.words(16, top + 32, "grey frame: wrote nothing in this pass", "cv-small")
    return drawing


def _panel(drawing: Drawing, step: Step, placed: Layers, rank: Mapping[str, int], top: float) -> None:
    def at(across: float, row: int) -> tuple[float, float]:
        return 16 + _WIDE / 2 + across * (_WIDE + _BESIDE), top + _HIGH / 2 + row * (_HIGH + _BENEATH)

    labels: list[tuple[float, float, str, str]] = []
    for way in step.ways:
        edge = (way.parent, way.child)
        if edge not in placed.routes:
            continue
        x, y = at(placed.across[way.parent], rank[way.parent])
        points = [(x, y + _HIGH / 2)]
        for between in placed.routes[edge]:
            x, y = at(*between)
            points += [(x, y - _HIGH / 2), (x, y + _HIGH / 2)]
        x, y = at(placed.across[way.child], rank[way.child])
        points.append((x, y - _HIGH / 2))
        shown = way.shown
        drawing.line(points, "cv-faint" if shown is None else "cv-side" if shown < 1 else "cv-line")
        tip = "; ".join(_told(way))
        if shown is not None:
            labels.append((*_along(points[0], points[1], 0.36), f"↓ {share(shown)}", tip))
        if way.up is not None and way.up.weight is not None:
            labels.append((*_along(points[-2], points[-1], 0.70), f"↑ {way.up.weight:.2f}", tip))
    for x, y, words, tip in labels:
        drawing.box(x - 25, y - 9, 50, 18, "cv-ground", round=3, tip=tip)
        drawing.words(x, y + 4, words, "cv-small", "middle", room=50)
    wrote = {way.child for way in step.ways if way.up is not None and way.up.new}
    for id, across in placed.across.items():
        x, y = at(across, rank[id])
        works = id in wrote or rank[id] == 0
        drawing.box(x - _WIDE / 2, y - _HIGH / 2, _WIDE, _HIGH, "cv-box" if works else "cv-box cv-quiet", tip=id)
        sure = _said(id, step)
        drawing.words(x - _WIDE / 2 + 10, y + (-3 if sure else 5), id, "cv-strong", within=_WIDE - 20)
        if sure:
            drawing.words(x - _WIDE / 2 + 10, y + 14, sure, "cv-small", within=_WIDE - 20)


def _said(id: str, step: Step) -> str:
    """How sure a role was; of what it wrote for several, in their order."""
    up = [way.up for way in step.ways if way.child == id and way.up is not None]
    said = dict.fromkeys(one_line(one.declared) if one.declared else "undeclared" for one in up)
    return ", ".join(said)


def _told(way: Way) -> Iterator[str]:
    yield f"{way.parent} to {way.child}"
    for what, shown, distance, _ in map(_figures, way.down):
        yield f"{what}: {shown} sentences shown, distance {distance}"
    if way.up is not None:
        said, weight = _up(way.up)
        yield f"came up: {said}, weight {weight}"


def _along(start: tuple[float, float], end: tuple[float, float], part: float) -> tuple[float, float]:
    return start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part
