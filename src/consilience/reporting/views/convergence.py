"""How close it came to stopping: the score of every check against its threshold. Scores of different kinds measure different
things, so each kind has a scale of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.domain.outcome import Check
from consilience.domain.sections import Curve, Point, Series
from consilience.reporting.formatting import one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.views.drawing import Drawing, cells
from consilience.reporting.views.words import paragraph

_BAR = 40
_LONGEST = 2_000
"""Characters of a detail; of a picture, which has one line for it, fewer."""
_LONGEST_DRAWN = 120
_HANG = " " * 6
_NO_CHECK = "No check was made."


def _low(curve: Curve) -> float:
    return min([0.0, *_values(curve)])


def _high(curve: Curve) -> float:
    return max([1.0, *_values(curve)])


def _values(curve: Curve) -> Iterator[float]:
    for point in curve.points:
        yield from (value for value in (point.value, point.threshold) if value is not None)


@dataclass(frozen=True)
class Convergence:
    """`verdicts` are the checks as wholes: after which step, and whether the run might stop; `step` is what a step is called."""

    curves: tuple[Curve, ...]
    verdicts: tuple[tuple[int, bool], ...]
    step: str = "round"


def fold(record: SessionRecord) -> Convergence:
    curves: dict[str, list[Point]] = {}
    for event in record.state.checks:
        for check in _single(event.check):
            point = Point(
                index=event.index,
                value=check.score,
                threshold=check.threshold,
                met=check.met,
                detail=one_line(check.detail, _LONGEST),
            )
            curves.setdefault(check.kind, []).append(point)
    return Convergence(
        tuple(Curve(name=kind, points=tuple(points)) for kind, points in curves.items()),
        tuple((event.index, event.check.met) for event in record.state.checks),
        record.presentation.step,
    )


def _single(check: Check) -> Iterator[Check]:
    if not check.parts:
        yield check
    for part in check.parts:
        yield from _single(part)


def plain(convergence: Convergence) -> dict[str, Any]:
    """For JSON."""
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
    return {"curves": curves, "verdicts": [list(one) for one in convergence.verdicts], "step": convergence.step}


def text(convergence: Convergence, width: int) -> str:
    if not convergence.curves:
        return f"{_NO_CHECK}\n"
    lines: list[str] = []
    beside = max(len(_after(point, convergence)) + len(_words(point)) for c in convergence.curves for point in c.points)
    room = max(10, min(_BAR, width - beside - 3))
    for curve in convergence.curves:
        lines.append(f"{curve.name} (scale {_low(curve):g} to {_high(curve):g})")
        for point in curve.points:
            first = _after(point, convergence)
            bar = [] if point.value is None else [_bar(point, point.value, curve, room)]
            lines += _set([*bar, _words(point), *([point.detail] if point.detail else [])], first, width)
        lines.append("")
    if any("|" in line for line in lines):
        lines.append("█ score, | what is needed")
    if len(convergence.curves) > 1:
        lines += [
            f"together after {convergence.step} {index}: {'met' if met else 'not met'}"
            for index, met in convergence.verdicts
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _set(parts: Sequence[str], first: str, width: int) -> list[str]:
    """Parts beside each other while there is room, else on lines of their own."""
    lines = [f"{first}{parts[0]}"]
    for part in parts[1:]:
        if cells(lines[-1]) + 2 + cells(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines += paragraph(f"{_HANG}{part}", width, _HANG)
    return lines


def _after(point: Point, convergence: Convergence) -> str:
    return f"  after {convergence.step} {point.index:<3} "


def _words(point: Point) -> str:
    needed = f", needed {point.threshold:g}" if point.threshold is not None else ""
    score = "no score" if point.value is None else f"{point.value:.2f}"
    return f"{score}{needed}: {'met' if point.met else 'not met'}"


def _bar(point: Point, score: float, curve: Curve, room: int) -> str:
    def at(value: float) -> int:
        return round((value - _low(curve)) / (_high(curve) - _low(curve)) * room)

    filled = at(score)
    bar = ["█"] * filled + ["·"] * (room - filled)
    if point.threshold is not None:
        bar.insert(at(point.threshold), "|")
    return "".join(bar)


# --- as a picture

_LEFT, _TALL, _STRIDE = 64.0, 180.0, 84.0


def draw(convergence: Convergence) -> Drawing:
    drawing = Drawing("convergence", "How close it came to stopping", text(convergence, 100))
    if not convergence.curves:
        drawing.words(16, 28, _NO_CHECK)
    draw_curves(drawing, Series(step=convergence.step, curves=convergence.curves))
    return drawing


def draw_curves(drawing: Drawing, series: Series) -> None:
    """A panel for each curve; a list for one without a value."""
    top = 0.0
    for curve in series.curves:
        if any(point.value is not None for point in curve.points):
            _panel(drawing, curve, top, series.step)
            top += _TALL + 126
        else:
            drawing.words(16, top + 28, curve.name, "cv-head")
            said = [
                f"after {series.step} {point.index}: {_words(point)}; {one_line(point.detail, _LONGEST_DRAWN)}".rstrip(
                    "; "
                )
                for point in curve.points
            ]
            drawing.lines(16, top + 48, said)
            top += 60 + 16 * len(said)


def _panel(drawing: Drawing, curve: Curve, top: float, step: str) -> None:
    first, last = curve.points[0].index, curve.points[-1].index
    base = top + 66 + _TALL
    right = _LEFT + 40 + max(1, last - first) * _STRIDE + 40

    def x(point: Point) -> float:
        return _LEFT + 40 + (point.index - first) * _STRIDE

    def y(value: float) -> float:
        return base - (value - _low(curve)) / (_high(curve) - _low(curve)) * _TALL

    drawing.words(16, top + 28, f"{curve.name}, {step} by {step}", "cv-head")
    for quarter in range(5):
        value = _low(curve) + (_high(curve) - _low(curve)) * quarter / 4
        drawing.line([(_LEFT, y(value)), (right, y(value))], "cv-faint")
        drawing.words(_LEFT - 8, y(value) + 4, f"{value:.2f}", "cv-small", "end")
    needed = [(x(point), y(point.threshold)) for point in curve.points if point.threshold is not None]
    if needed:
        drawing.line([(_LEFT, needed[0][1]), *needed, (right, needed[-1][1])], "cv-needed")
        drawing.words(right + 6, needed[-1][1] + 4, f"needed {curve.points[-1].threshold or 0:g}", "cv-small")
    scored = [(point, y(point.value)) for point in curve.points if point.value is not None]
    drawing.line([(x(point), at) for point, at in scored], "cv-curve")
    for point in curve.points:
        drawing.words(x(point), base + 20, f"{step} {point.index}", "cv-small", "middle")
    for n, (point, at) in enumerate(scored):
        drawing.dot(x(point), at, "cv-dot" if point.met else "cv-ring")
        rises = n + 1 < len(scored) and scored[n + 1][1] < at
        beside = at + 20 if rises and at + 20 < base else at - 10
        drawing.words(x(point), beside, f"{point.value:.2f}{' met' if point.met else ''}", "cv-strong", "middle")
    drawing.words(_LEFT, base + 42, "● met · ○ not met · dashed: what is needed", "cv-small")
