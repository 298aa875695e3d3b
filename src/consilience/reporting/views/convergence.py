"""How close it came to stopping: the score of every check against its threshold. Scores of different kinds measure different
things, so each kind has a scale of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from consilience.domain.outcome import Check
from consilience.reporting.record import Record
from consilience.reporting.views.drawing import Drawing, cells
from consilience.reporting.views.tables import paragraph
from consilience.reporting.words import one_line, step_word

_BAR = 40
_LONGEST = 2_000
"""Characters of a detail; of a picture, which has one line for it, fewer."""
_LONGEST_DRAWN = 120
_HANG = " " * 6
_NO_CHECK = {
    "round": "No check was made: nothing was compared with a round before.",
    "pass": "No check was made: nobody judged a pass.",
    "iteration": "No check was made: nobody rated an iteration.",
}
"""By what a step is called."""


@dataclass(frozen=True)
class Point:
    """A judgement after step `index`. `score` is None where there was none to give."""

    index: int
    score: float | None
    threshold: float | None
    met: bool
    detail: str = ""


@dataclass(frozen=True)
class Curve:
    """All judgements of one kind, in order; `low` and `high` bound its scale."""

    kind: str
    points: tuple[Point, ...]

    @property
    def low(self) -> float:
        return min([0.0, *self._values()])

    @property
    def high(self) -> float:
        return max([1.0, *self._values()])

    def _values(self) -> Iterator[float]:
        for point in self.points:
            yield from (value for value in (point.score, point.threshold) if value is not None)


@dataclass(frozen=True)
class Convergence:
    """`verdicts` are the checks as wholes: after which step, and whether the run might stop; `step` is what a step is called."""

    curves: tuple[Curve, ...]
    verdicts: tuple[tuple[int, bool], ...]
    step: str = "round"


def fold(record: Record) -> Convergence:
    curves: dict[str, list[Point]] = {}
    for event in record.course.checks:
        for check in _single(event.check):
            point = Point(event.index, check.score, check.threshold, check.met, one_line(check.detail, _LONGEST))
            curves.setdefault(check.kind, []).append(point)
    return Convergence(
        tuple(Curve(kind, tuple(points)) for kind, points in curves.items()),
        tuple((event.index, event.check.met) for event in record.course.checks),
        step_word(record.course.started.settings) if record.course.started else "round",
    )


def _single(check: Check) -> Iterator[Check]:
    if not check.parts:
        yield check
    for part in check.parts:
        yield from _single(part)


def text(convergence: Convergence, width: int) -> str:
    if not convergence.curves:
        return f"{_no_check(convergence)}\n"
    lines: list[str] = []
    beside = max(len(_after(point, convergence)) + len(_words(point)) for c in convergence.curves for point in c.points)
    room = max(10, min(_BAR, width - beside - 3))
    for curve in convergence.curves:
        lines.append(f"{curve.kind} (scale {curve.low:g} to {curve.high:g})")
        for point in curve.points:
            first = _after(point, convergence)
            bar = [] if point.score is None else [_bar(point, point.score, curve, room)]
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


def _no_check(convergence: Convergence) -> str:
    return _NO_CHECK.get(convergence.step, "No check was made.")


def _words(point: Point) -> str:
    needed = f", needed {point.threshold:g}" if point.threshold is not None else ""
    score = "no score" if point.score is None else f"{point.score:.2f}"
    return f"{score}{needed}: {'met' if point.met else 'not met'}"


def _bar(point: Point, score: float, curve: Curve, room: int) -> str:
    def at(value: float) -> int:
        return round((value - curve.low) / (curve.high - curve.low) * room)

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
        drawing.words(16, 28, _no_check(convergence))
    top = 0.0
    for curve in convergence.curves:
        if any(point.score is not None for point in curve.points):
            _panel(drawing, curve, top, convergence.step)
            top += _TALL + 126
        else:
            drawing.words(16, top + 28, curve.kind, "cv-head")
            said = [
                f"after {convergence.step} {point.index}: {_words(point)}; {one_line(point.detail, _LONGEST_DRAWN)}".rstrip(
                    "; "
                )
                for point in curve.points
            ]
            drawing.lines(16, top + 48, said)
            top += 60 + 16 * len(said)
    return drawing


def _panel(drawing: Drawing, curve: Curve, top: float, step: str) -> None:
    first, last = curve.points[0].index, curve.points[-1].index
    base = top + 66 + _TALL
    right = _LEFT + 40 + max(1, last - first) * _STRIDE + 40

    def x(point: Point) -> float:
        return _LEFT + 40 + (point.index - first) * _STRIDE

    def y(value: float) -> float:
        return base - (value - curve.low) / (curve.high - curve.low) * _TALL

    drawing.words(16, top + 28, f"{curve.kind}, {step} by {step}", "cv-head")
    for quarter in range(5):
        value = curve.low + (curve.high - curve.low) * quarter / 4
        drawing.line([(_LEFT, y(value)), (right, y(value))], "cv-faint")
        drawing.words(_LEFT - 8, y(value) + 4, f"{value:.2f}", "cv-small", "end")
    needed = [(x(point), y(point.threshold)) for point in curve.points if point.threshold is not None]
    if needed:
        drawing.line([(_LEFT, needed[0][1]), *needed, (right, needed[-1][1])], "cv-needed")
        drawing.words(right + 6, needed[-1][1] + 4, f"needed {curve.points[-1].threshold or 0:g}", "cv-small")
    scored = [(point, y(point.score)) for point in curve.points if point.score is not None]
    drawing.line([(x(point), at) for point, at in scored], "cv-curve")
    for point in curve.points:
        drawing.words(x(point), base + 20, f"{step} {point.index}", "cv-small", "middle")
    for n, (point, at) in enumerate(scored):
        drawing.dot(x(point), at, "cv-dot" if point.met else "cv-ring")
        rises = n + 1 < len(scored) and scored[n + 1][1] < at
        beside = at + 20 if rises and at + 20 < base else at - 10
        drawing.words(x(point), beside, f"{point.score:.2f}{' met' if point.met else ''}", "cv-strong", "middle")
    drawing.words(_LEFT, base + 42, "● met · ○ not met · dashed: what is needed", "cv-small")
