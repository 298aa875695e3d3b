"""Why a goal was broadcast again: every iteration of every parent, how its children rated themselves, the flags, the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from consilience.reporting.record import Record
from consilience.reporting.views.drawing import Drawing, fitted
from consilience.reporting.views.tables import paragraph, table
from consilience.reporting.words import one_line, step_word


@dataclass(frozen=True)
class Row:
    """`path` are the iterations of the parents above and this one; `ratings` by child, None where one could not be read; `said` is
    the evaluator's own verdict, `satisfied` the computed one, which decides."""

    node: str
    path: tuple[int, ...]
    ratings: Mapping[str, float | None]
    mean: float | None
    flags: tuple[str, ...]
    caused_by: tuple[str, ...]
    feedback: str
    said: bool | None
    satisfied: bool

    @property
    def name(self) -> str:
        return f"{self.node} {'.'.join(map(str, self.path))}"

    @property
    def verdict(self) -> str:
        decided = "satisfied" if self.satisfied else "not satisfied"
        return (
            decided if self.said is None or self.said == self.satisfied else f"{decided}, the evaluator said otherwise"
        )


@dataclass(frozen=True)
class Iterations:
    """`why` says why there is none, where there is none."""

    rows: tuple[Row, ...] = ()
    needed: float | None = None
    why: str = ""


def applies(record: Record) -> bool:
    return record.course.started is not None and step_word(record.course.started.settings) == "iteration"


def fold(record: Record) -> Iterations:
    if record.report is None:
        return Iterations(why="What each iteration came to stands in the report, and this session has none yet.")
    data = record.report.model_dump(mode="json")
    given, named = data.get("iterations"), _flags(data.get("flags"))
    rows = tuple(_row(one, named) for one in given if isinstance(one, dict)) if isinstance(given, list) else ()
    needed = record.report.settings.get("satisfaction_threshold")
    return Iterations(rows, _number(needed), "" if rows else "Nothing was broadcast.")


def _flags(given: object) -> dict[str, str]:
    """Flags by id, as the seed writes them: `goal_mismatch (L3N2)`."""
    flags = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    return {str(one.get("id")): one_line(f"{one.get('tag')} ({one.get('node')})", 80) for one in flags}


def _row(given: Mapping[str, object], named: Mapping[str, str]) -> Row:
    ratings, said, path = given.get("ratings"), given.get("said_satisfied"), given.get("path")
    return Row(
        node=one_line(str(given.get("node", "")), 40),
        path=tuple(n for n in path if isinstance(n, int)) if isinstance(path, list) else (),
        ratings={str(k): _number(v) for k, v in ratings.items()} if isinstance(ratings, dict) else {},
        mean=_number(given.get("mean")),
        flags=tuple(named.get(id, id) for id in _texts(given.get("flags"))),
        caused_by=tuple(named.get(id, id) for id in _texts(given.get("caused_by"))),
        feedback=one_line(str(given.get("feedback") or ""), 2_000),
        said=said if isinstance(said, bool) else None,
        satisfied=given.get("satisfied") is True,
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one_line(str(one), 80) for one in value) if isinstance(value, list) else ()


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def text(found: Iterations, width: int) -> str:
    if not found.rows:
        return f"{found.why}\n"
    needed = f", needed {found.needed:.2f} on average" if found.needed is not None else ""
    named = "Every broadcast of a parent, named by the iterations from the root's down"
    lines = paragraph(f"{named}; how its children rated themselves{needed}.", width)
    heads = ("iteration", "ratings", "mean", "flags", "verdict")
    rows = [
        (row.name, " ".join(map(_two, row.ratings.values())) or "–", _two(row.mean), str(len(row.flags)), row.verdict)
        for row in found.rows
    ]
    lines += ["", *table(heads, rows, width, left=1), ""]
    for row in found.rows:
        for said in _told(row):
            lines += paragraph(f"  {row.name}: {said}", width, "    ")
    return "\n".join(lines).rstrip("\n") + "\n"


def _told(row: Row) -> Iterator[str]:
    """What caused it, what was flagged in it, what was missing after it."""
    if row.caused_by:
        yield f"broadcast again because of {', '.join(row.caused_by)}"
    if row.flags:
        yield f"flags {', '.join(row.flags)}"
    if row.feedback:
        yield f"feedback: {row.feedback}"


# --- as a picture

_LEFT, _TOP, _STEP, _BAR = 190.0, 64.0, 30.0, 220.0


def draw(found: Iterations) -> Drawing:
    """A bar for the mean of every iteration, a dot for each child's rating, a line for what is needed."""
    drawing = Drawing("iterations", "Why a goal was broadcast again", text(found, 100))
    if not found.rows:
        drawing.words(16, 28, found.why)
        return drawing
    drawing.words(16, 28, "mean rating of the children, iteration by iteration", "cv-head")
    bottom = _TOP + len(found.rows) * _STEP
    for share in (0.0, 0.5, 1.0):
        x = _LEFT + share * _BAR
        drawing.line([(x, _TOP - 8), (x, bottom)], "cv-faint")
        drawing.words(x, _TOP - 14, f"{share:g}", "cv-small", "middle")
    for n, row in enumerate(found.rows):
        y = _TOP + n * _STEP
        drawing.words(16, y + 16, fitted(row.name, 22), "cv-strong", room=10)
        if row.mean is not None:
            drawing.box(_LEFT, y + 4, max(1.0, _at(row.mean)), 16, "cv-cell", round=2)
        for rating in row.ratings.values():
            if rating is not None:
                drawing.dot(_LEFT + _at(rating), y + 12, "cv-dot", 3.5)
        flags = f" · flags: {', '.join(row.flags)}" if row.flags else ""
        drawing.words(_LEFT + _BAR + 14, y + 16, fitted(f"{_two(row.mean)} {row.verdict}{flags}", 90), "cv-small")
    if found.needed is not None:
        x = _LEFT + _at(found.needed)
        drawing.line([(x, _TOP - 8), (x, bottom)], "cv-needed")
    drawing.words(16, bottom + 22, "bar: the mean · dots: each child's rating · dashed: what is needed", "cv-small")
    return drawing


def _at(rating: float) -> float:
    return min(1.0, max(0.0, rating)) * _BAR
