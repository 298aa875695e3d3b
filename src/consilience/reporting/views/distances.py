"""How far the roles are from each other, by which what is handed down is shortened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from consilience.domain.hierarchies import Hierarchy, distance
from consilience.reporting.passes import distances_of
from consilience.reporting.record import Record
from consilience.reporting.views.drawing import Drawing, fitted, pixels
from consilience.reporting.views.tables import paragraph, table
from consilience.reporting.words import one_line

_MOST_COLUMNS = 14
_LONGEST_NAME = 14


@dataclass(frozen=True)
class Distances:
    """`rows` by role and role, in [0, 1]; `above` the parents of each; `why` says why there are none, where there are none."""

    rows: Mapping[str, Mapping[str, float]]
    above: Mapping[str, tuple[str, ...]]
    why: str = ""

    def handed(self, one: str, other: str) -> bool:
        """Whether texts go down between the two."""
        return one in self.above.get(other, ()) or other in self.above.get(one, ())


def applies(record: Record) -> bool:
    return record.course.started is not None and "hierarchy" in record.course.started.settings


def fold(record: Record) -> Distances:
    started = record.course.started
    settings = started.settings if started else {}
    above = record.topology.parents
    if record.report is not None:
        rows = distances_of(record.report.model_dump(mode="json"))
    else:
        rows = _from_vectors(settings.get("hierarchy"))
    if rows:
        return Distances(rows, above)
    why = "No distances were measured, so everything that was handed down was shown whole."
    if settings.get("filter") is False:
        why = (
            "The roles have no vectors, and what is handed down was not to be shortened, so no distances were measured."
        )
    elif record.report is None:
        why = "The roles have no vectors; their distances stand in the report, and this session has none yet."
    return Distances({}, above, why)


def _from_vectors(hierarchy: object) -> dict[str, dict[str, float]]:
    try:
        found = Hierarchy.model_validate(hierarchy)
    except (ValidationError, TypeError):
        return {}
    if not found.has_vectors:
        return {}
    return {a.name: {b.name: distance(a.vector, b.vector) for b in found.roles} for a in found.roles}


def text(found: Distances, width: int) -> str:
    if not found.rows:
        return "\n".join(paragraph(found.why, width)) + "\n"
    names = list(found.rows)
    head = "0 is the same direction, 0.5 nothing in common, 1 opposed; * where texts go down from one to the other."
    lines = [*paragraph(head, width), ""]
    if len(names) <= min(_MOST_COLUMNS, (width - 14) // 8):
        rows = [(name, *(_cell(found, name, other) for other in names)) for name in names]
        lines += table(("", *(fitted(name, _LONGEST_NAME) for name in names)), rows, width)
    else:
        lines += _listed(found)
    return "\n".join(lines) + "\n"


def _cell(found: Distances, one: str, other: str) -> str:
    value = found.rows[one].get(other)
    if one == other or value is None:
        return "·" if one == other else "–"
    return f"{value:.2f}{'*' if found.handed(one, other) else ' '}"


def _listed(found: Distances) -> list[str]:
    """Those between which texts go down; a matrix of all would not fit."""
    pairs = [(a, b) for b, parents in found.above.items() for a in parents if b in found.rows.get(a, {})]
    return [f"  {one_line(a)} → {one_line(b)}: {found.rows[a][b]:.2f}" for a, b in pairs]


# --- as a picture

_HIGH, _TOP = 36.0, 62.0
_DARKEST = 0.5
"""How much of its colour the greatest distance has; with more, its number could not be read on it."""


def draw(found: Distances) -> Drawing:
    """A matrix: the farther, the more colour, and the number in every cell."""
    drawing = Drawing("distances", "How far the roles are from each other", text(found, 100))
    if not found.rows:
        drawing.words(16, 28, found.why)
        return drawing
    names = list(found.rows)
    most = max((value for row in found.rows.values() for value in row.values()), default=0.0)
    shown = [fitted(name, _LONGEST_NAME) for name in names]
    wide = max(52.0, *(pixels(name, "cv-small") + 10 for name in shown))
    left = 36 + max(pixels(name, "cv-strong") for name in shown)
    drawing.words(16, 28, "distance, from 0 (the same) to 1 (opposed)", "cv-head")
    for n, name in enumerate(shown):
        drawing.words(left + (n + 0.5) * wide, _TOP - 8, name, "cv-small", "middle", room=wide)
        drawing.words(16, _TOP + (n + 0.5) * _HIGH + 5, name, "cv-strong")
    framed = []
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            x, y = left + j * wide, _TOP + i * _HIGH
            value = found.rows[one].get(other)
            if one == other or value is None:
                drawing.words(x + wide / 2, y + _HIGH / 2 + 5, "·" if one == other else "–", "", "middle", room=10)
                continue
            tip = f"{one} and {other}: {value:.3f}"
            shade = _DARKEST * min(1.0, max(0.0, value / most)) if most > 0 else 0.0
            drawing.box(x + 1, y + 1, wide - 2, _HIGH - 2, "cv-shade", round=2, tip=tip, shade=shade)
            drawing.words(x + wide / 2, y + _HIGH / 2 + 5, f"{value:.2f}", "", "middle", room=10)
            if found.handed(one, other):
                framed.append((x, y))
    for x, y in framed:
        drawing.box(x + 2, y + 2, wide - 4, _HIGH - 4, "cv-frame", round=2)
    bottom = _TOP + len(names) * _HIGH
    drawing.words(16, bottom + 24, f"the more colour, the farther; {most:.2f} is the farthest here", "cv-small")
    drawing.words(16, bottom + 40, "framed: texts go down from one to the other", "cv-small")
    return drawing
