"""The score of every check against its threshold. Each kind of score has a scale of its own."""

from __future__ import annotations

from collections.abc import Iterator

from consilience.domain.outcome import Check
from consilience.domain.sections import (
    Block,
    Bullets,
    Curve,
    Item,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Point,
    Series,
    Subheading,
    View,
)
from consilience.reporting.formatting import one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.views.charts import curve_max, curve_min, describe_point

BAR_CELLS = 30
MAX_DETAIL_CHARS = 2_000


def view(record: SessionRecord) -> View:
    step, checks = record.presentation.step, record.state.checks
    points: dict[str, list[Point]] = {}
    for event in checks:
        for check in _single(event.check):
            detail = one_line(check.detail, MAX_DETAIL_CHARS)
            point = Point(index=event.index, value=check.score, threshold=check.threshold, met=check.met, detail=detail)
            points.setdefault(check.kind, []).append(point)
    curves = tuple(Curve(name=kind, points=tuple(kept)) for kind, kept in points.items())
    blocks: list[Block] = [block for curve in curves for block in _curve_blocks(curve, step)]
    if any("|" in _bar(point, curve) for curve in curves for point in curve.points):
        blocks.append(Paragraph(text="█ score, | what is needed", tone="remark"))
    if len(curves) > 1:
        verdicts = [(f"together after {step} {event.index}", event.check.met) for event in checks]
        blocks.append(KeyFigures(figures=tuple(KeyFigure(name=name, value=_verdict(met)) for name, met in verdicts)))
    return View(
        name="convergence",
        heading="How close it came to stopping",
        blocks=tuple(blocks) or (Paragraph(text="No check was made."),),
        picture=Series(step=step, curves=curves) if curves else None,
        is_empty=not curves,
    )


def _single(check: Check) -> Iterator[Check]:
    if not check.parts:
        yield check
    for part in check.parts:
        yield from _single(part)


def _curve_blocks(curve: Curve, step: str) -> tuple[Block, ...]:
    items = (
        Item(
            lead=f"after {step} {point.index}",
            text=" ".join(filter(None, (_bar(point, curve), describe_point(point)))),
            below=point.detail,
        )
        for point in curve.points
    )
    scale = f"{curve.name} (scale {curve_min(curve):g} to {curve_max(curve):g})"
    return Subheading(text=scale), Bullets(items=tuple(items))


def _verdict(met: bool) -> str:
    return "met" if met else "not met"


def _bar(point: Point, curve: Curve) -> str:
    """Return the score as a bar with a mark at the threshold; "" without a score."""

    def cell_of(value: float) -> int:
        return round((value - curve_min(curve)) / (curve_max(curve) - curve_min(curve)) * BAR_CELLS)

    if point.value is None:
        return ""
    bar = ["█" if n < cell_of(point.value) else "·" for n in range(BAR_CELLS)]
    if point.threshold is not None:
        bar.insert(cell_of(point.threshold), "|")
    return "".join(bar)
