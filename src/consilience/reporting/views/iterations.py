"""Why a goal was broadcast again: every iteration of every parent, how its children rated themselves, the flags, the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from consilience.reporting.record import Record
from consilience.reporting.views.drawing import Drawing, pixels, wrapped
from consilience.reporting.views.tables import paragraph, table
from consilience.reporting.words import count, one_line, step_word


@dataclass(frozen=True)
class Row:
    """`path` are the iterations of the parents above and this one; `ratings` by child, None where one could not be read; `said` is
    the evaluator's own verdict, `satisfied` the computed one, which decides. The first `critical` of the flags are so."""

    node: str
    path: tuple[int, ...]
    ratings: Mapping[str, float | None]
    mean: float | None
    flags: tuple[str, ...]
    caused_by: tuple[str, ...]
    feedback: str
    said: bool | None
    satisfied: bool
    critical: int = 0

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
    given, (named, critical) = data.get("iterations"), _flags(data.get("flags"))
    rows = (
        tuple(_row(one, named, critical) for one in given if isinstance(one, dict)) if isinstance(given, list) else ()
    )
    needed = record.report.settings.get("satisfaction_threshold")
    return Iterations(rows, _number(needed), "" if rows else "Nothing was broadcast.")


def _flags(given: object) -> tuple[dict[str, str], frozenset[str]]:
    """Flags by id, as the seed writes them: `goal_mismatch (L3N2)`; and the ids of the critical ones."""
    flags = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    named = {str(one.get("id")): one_line(f"{one.get('tag')} ({one.get('node')})", 80) for one in flags}
    return named, frozenset(str(one.get("id")) for one in flags if one.get("critical") is True)


def _row(given: Mapping[str, object], named: Mapping[str, str], critical: frozenset[str]) -> Row:
    flags = sorted(_texts(given.get("flags")), key=lambda id: id not in critical)
    causes = sorted(_texts(given.get("caused_by")), key=lambda id: id not in critical)
    ratings, said, path = given.get("ratings"), given.get("said_satisfied"), given.get("path")
    return Row(
        node=one_line(str(given.get("node", "")), 40),
        path=tuple(n for n in path if isinstance(n, int)) if isinstance(path, list) else (),
        ratings={str(k): _number(v) for k, v in ratings.items()} if isinstance(ratings, dict) else {},
        mean=_number(given.get("mean")),
        flags=tuple(named.get(id, id) for id in flags),
        caused_by=tuple(named.get(id, id) for id in causes),
        feedback=one_line(str(given.get("feedback") or ""), 2_000),
        said=said if isinstance(said, bool) else None,
        satisfied=given.get("satisfied") is True,
        critical=sum(id in critical for id in flags),
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
        yield _flagged(row)
    if row.feedback:
        yield f"feedback: {row.feedback}"


def _flagged(row: Row) -> str:
    """How many flags, and which: the critical ones first."""
    critical = f", {row.critical} critical" if row.critical else ""
    return f"{count(len(row.flags), 'flag')}{critical}: {', '.join(row.flags)}"


# --- as a picture

_LEFT, _TOP, _STEP, _BAR = 190.0, 64.0, 30.0, 220.0
_SAID, _LINES = 460.0, 5
"""How wide the flags of an iteration are set, and in how many lines at most; all of them stand in words."""


def draw(found: Iterations) -> Drawing:
    """A bar for the mean of every iteration, a dot for each child's rating, a line for what is needed."""
    drawing = Drawing("iterations", "Why a goal was broadcast again", text(found, 100))
    if not found.rows:
        drawing.words(16, 28, found.why)
        return drawing
    drawing.words(16, 28, "mean rating of the children, iteration by iteration", "cv-head")
    small = partial(pixels, style="cv-small")
    said = [wrapped(_flagged(row), _SAID, _LINES, small) if row.flags else [] for row in found.rows]
    tops = list(accumulate((_STEP + 14 * len(lines) for lines in said), initial=_TOP))
    bottom = tops.pop()
    for share in (0.0, 0.5, 1.0):
        x = _LEFT + share * _BAR
        drawing.line([(x, _TOP - 8), (x, bottom)], "cv-faint")
        drawing.words(x, _TOP - 14, f"{share:g}", "cv-small", "middle")
    for row, lines, y in zip(found.rows, said, tops, strict=True):
        drawing.words(16, y + 16, row.name, "cv-strong", within=_LEFT - 26)
        if row.mean is not None:
            drawing.box(_LEFT, y + 4, max(1.0, _at(row.mean)), 16, "cv-cell", round=2)
        for rating in row.ratings.values():
            if rating is not None:
                drawing.dot(_LEFT + _at(rating), y + 12, "cv-dot", 3.5)
        drawing.words(_LEFT + _BAR + 14, y + 16, f"{_two(row.mean)} {row.verdict}", "cv-small")
        drawing.lines(_LEFT + _BAR + 14, y + 31, lines, "cv-small", 14)
    if found.needed is not None:
        x = _LEFT + _at(found.needed)
        drawing.line([(x, _TOP - 8), (x, bottom)], "cv-needed")
    drawing.words(16, bottom + 22, "bar: the mean · dots: each child's rating · dashed: what is needed", "cv-small")
    return drawing


def _at(rating: float) -> float:
    return min(1.0, max(0.0, rating)) * _BAR
