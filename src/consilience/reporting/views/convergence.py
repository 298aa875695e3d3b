"""The score of every check against its threshold. Each kind of score has a scale of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.domain.outcome import Check
from consilience.domain.sections import Curve, Point, Series
from consilience.reporting.formatting import one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.terminal import cells, paragraph
from consilience.reporting.views.charts import curve_max, curve_min, describe_point, draw_picture
from consilience.reporting.views.drawing import Drawing

MAX_BAR_CELLS = 40
MAX_DETAIL_CHARS = 2_000
_HANG = " " * 6
HEADING = "How close it came to stopping"
NO_CHECK = "No check was made."


@dataclass(frozen=True)
class CheckCurves:
    """The checks of a session."""

    curves: tuple[Curve, ...]
    """One per kind of score."""
    verdicts: tuple[tuple[int, bool], ...]
    """Of every check: after which step, and whether the run might stop."""
    step: str = "round"
    """What a step is called."""


def fold(record: SessionRecord) -> CheckCurves:
    curves: dict[str, list[Point]] = {}
    for event in record.state.checks:
        for check in _single(event.check):
            point = Point(
                index=event.index,
                value=check.score,
                threshold=check.threshold,
                met=check.met,
                detail=one_line(check.detail, MAX_DETAIL_CHARS),
            )
            curves.setdefault(check.kind, []).append(point)
    return CheckCurves(
        tuple(Curve(name=kind, points=tuple(points)) for kind, points in curves.items()),
        tuple((event.index, event.check.met) for event in record.state.checks),
        record.presentation.step,
    )


def _single(check: Check) -> Iterator[Check]:
    if not check.parts:
        yield check
    for part in check.parts:
        yield from _single(part)


def plain(convergence: CheckCurves) -> dict[str, Any]:
    """Return the view for JSON."""
    curves = [
        {
            "kind": curve.name,
            "points": [
                {"index": p.index, "score": p.value, "threshold": p.threshold, "met": p.met, "detail": p.detail}
                for p in curve.points
            ],
        }
        for curve in convergence.curves
    ]
    return {"curves": curves, "verdicts": [list(verdict) for verdict in convergence.verdicts], "step": convergence.step}


def text(convergence: CheckCurves, width: int) -> str:
    if not convergence.curves:
        return f"{NO_CHECK}\n"
    lines: list[str] = []
    label_cells = max(
        len(_step_label(point, convergence)) + len(describe_point(point))
        for c in convergence.curves
        for point in c.points
    )
    room = max(10, min(MAX_BAR_CELLS, width - label_cells - 3))
    for curve in convergence.curves:
        lines.append(f"{curve.name} (scale {curve_min(curve):g} to {curve_max(curve):g})")
        for point in curve.points:
            first = _step_label(point, convergence)
            bar = [] if point.value is None else [_bar(point, point.value, curve, room)]
            lines += _wrap_parts([*bar, describe_point(point), *([point.detail] if point.detail else [])], first, width)
        lines.append("")
    if any("|" in line for line in lines):
        lines.append("█ score, | what is needed")
    if len(convergence.curves) > 1:
        lines += [
            f"together after {convergence.step} {index}: {'met' if met else 'not met'}"
            for index, met in convergence.verdicts
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _wrap_parts(parts: Sequence[str], first: str, width: int) -> list[str]:
    """Put parts beside each other while there is room, else on lines of their own."""
    lines = [f"{first}{parts[0]}"]
    for part in parts[1:]:
        if cells(lines[-1]) + 2 + cells(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines += paragraph(f"{_HANG}{part}", width, _HANG)
    return lines


def _step_label(point: Point, convergence: CheckCurves) -> str:
    return f"  after {convergence.step} {point.index:<3} "


def _bar(point: Point, score: float, curve: Curve, room: int) -> str:
    def cell_of(value: float) -> int:
        return round((value - curve_min(curve)) / (curve_max(curve) - curve_min(curve)) * room)

    filled = cell_of(score)
    bar = ["█"] * filled + ["·"] * (room - filled)
    if point.threshold is not None:
        bar.insert(cell_of(point.threshold), "|")
    return "".join(bar)


def draw(convergence: CheckCurves) -> Drawing:
    drawing = Drawing("convergence", HEADING, text(convergence, 100), empty=not convergence.curves)
    draw_picture(drawing, Series(step=convergence.step, curves=convergence.curves))
    return drawing
