"""Pictures described as data: graphs, matrices, bar charts, timelines, curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, combinations, pairwise
from math import ceil, cos, pi, sin, sqrt

from consilience.domain.sections import (
    Bars,
    Curve,
    Graph,
    GraphPanel,
    Grid,
    GridCell,
    GridColumn,
    Matrix,
    Node,
    Point,
    Series,
    View,
)
from consilience.reporting.formatting import one_line
from consilience.reporting.terminal import fitted, view_text, wrapped
from consilience.reporting.views.drawing import Drawing, NodePair, Position, layered, pixels

_MAX_NAME_CELLS = 22
_MAX_ROW_CELLS = 60
DARKEST = 0.42
"""Opacity of the darkest shade: text in the colour `cv-ink` has a contrast of 4.5 on it."""
_small_pixels = partial(pixels, style="cv-small")


def draw(view: View, href: Callable[[Sequence[str]], str] = lambda refs: "") -> Drawing:
    """Return the picture of a view; its text if it has none. `href` returns where refs lead on the page; "" for nowhere."""
    text = view_text(view, 100)
    drawing = Drawing(view.name, view.heading, text, href)
    match view.picture:
        case Graph() as graph:
            _draw_graph(drawing, graph)
        case Matrix() as matrix:
            _draw_matrix(drawing, matrix)
        case Bars() as bars:
            _draw_bars(drawing, bars)
        case Series() as series:
            _draw_series(drawing, series)
        case Grid() as grid:
            _draw_grid(drawing, grid)
        case None:
            drawing.lines(16, 28, text.splitlines())
    return drawing


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))


def _wrapped_lines(lines: Sequence[str], width: float, max_lines: int) -> list[str]:
    """Return small lines, each on at most `max_lines` lines of at most `width` pixels."""
    return [part for line in lines for part in wrapped(line, width, max_lines, _small_pixels)]


def _legend(drawing: Drawing, y: float, lines: tuple[str, ...]) -> None:
    drawing.lines(16, y, lines, "cv-small")


# --- graphs

_WIDE, _NARROW, _HIGH, _LABELLED, _UNLABELLED = 186.0, 92.0, 46.0, 96.0, 56.0
"""Widths of a box, its height with one line of note, and the space between two levels with and without labels of edges."""
GROUP_BORDERS = 4
"""Border styles of groups; of more groups some share one, and their letters tell them apart."""
MAX_WIDE_BOXES = 12
"""Boxes side by side that are drawn wide."""
MAX_RING_NODES = 12
"""Nodes of a circle that are drawn with a line for every pair."""
_LINES: Mapping[str, str] = {"plain": "cv-line", "dashed": "cv-side", "faint": "cv-faint"}
_BOXES: Mapping[str, str] = {
    "plain": "cv-box",
    "quiet": "cv-box cv-quiet",
    "bad": "cv-box cv-bad",
    "wait": "cv-box cv-wait",
    "frame": "cv-frame",
}


@dataclass(frozen=True)
class _Plan:
    """Where a panel's boxes and lines are, below the top of the panel."""

    wide: float
    high: float
    places: Mapping[str, Position]
    """Middles of the boxes."""
    paths: Mapping[NodePair, Sequence[Position]]
    is_ring: bool = False
    has_levels: bool = False


def _draw_graph(drawing: Drawing, graph: Graph) -> None:
    plan = _plan(graph)
    top = 16.0
    for panel in graph.panels:
        if panel.title:
            drawing.words(16, top + 14, panel.title, "cv-head")
            top += 32
        _draw_panel(drawing, panel, plan, top)
        top += max((y for _, y in plan.places.values()), default=0.0) + plan.high / 2 + 34
    _legend(drawing, top, graph.legend)


def _plan(graph: Graph) -> _Plan:
    """Return levels from top to bottom; nodes of a single level as a ring if all are joined with each other, else as a grid."""
    nodes = [node for panel in graph.panels for node in panel.nodes]
    edges = [edge for panel in graph.panels for edge in panel.edges]
    levels = {node.id: node.level for node in nodes}
    rows = Counter(levels.values())
    wide = _WIDE if len(rows) == 1 or max(rows.values(), default=0) <= MAX_WIDE_BOXES else _NARROW
    high = _HIGH + 16 * any("\n" in node.note for node in nodes)
    if len(rows) != 1:
        pairs = dict.fromkeys((edge.source, edge.target) for edge in edges)
        downward = [(a, b) for a, b in pairs if a in levels and b in levels and levels[a] < levels[b]]
        ranks = {level: n for n, level in enumerate(sorted(rows))}
        layers = layered({id: ranks[level] for id, level in levels.items()}, downward)
        beneath = _LABELLED if any(edge.near_source or edge.near_target for edge in edges) else _UNLABELLED

        def at(across: float, row: int) -> Position:
            return 16 + wide / 2 + across * (wide * 7 / 6), high / 2 + row * (high + beneath)

        places = {id: at(across, layers.levels[id]) for id, across in layers.across.items()}
        return _Plan(wide, high, places, {pair: layers.path(pair, at, high / 2) for pair in downward}, has_levels=True)
    circles = (circle for panel in graph.panels for circle in panel.circles)
    if len(levels) <= MAX_RING_NODES and any(levels.keys() <= set(circle) for circle in circles):
        return _Plan(wide, high, _ring(list(levels), wide, high), {}, is_ring=True)
    columns = ceil(sqrt(len(levels) / 2))
    places = {
        id: (16 + wide / 2 + n % columns * (wide + 26), high / 2 + n // columns * (high + 24))
        for n, id in enumerate(levels)
    }
    return _Plan(wide, high, places, {})


def _ring(ids: Sequence[str], wide: float, high: float) -> dict[str, Position]:
    """Place nodes far enough apart that no box covers another; flattened, since boxes are wider than tall."""
    radius = (wide + 20) / (2 * sin(pi / len(ids))) if len(ids) > 1 else 0.0
    tall = 0.75 * radius
    turns = {id: 2 * pi * n / len(ids) for n, id in enumerate(ids)}
    return {
        id: (16 + wide / 2 + radius * (1 + sin(turn)), high / 2 + tall * (1 - cos(turn))) for id, turn in turns.items()
    }


def _draw_panel(drawing: Drawing, panel: GraphPanel, plan: _Plan, top: float) -> None:
    labels: list[tuple[float, float, str, str]] = []
    for edge in panel.edges:
        points = [(x, y + top) for x, y in plan.paths.get((edge.source, edge.target), ())]
        if points:
            drawing.line(points, _LINES[edge.tone])
            if edge.near_source:
                labels.append((*_interpolate(points[0], points[1], 0.36), edge.near_source, edge.tip))
            if edge.near_target:
                labels.append((*_interpolate(points[-2], points[-1], 0.70), edge.near_target, edge.tip))
    for x, y, words, tip in labels:
        drawing.box(x - 25, y - 9, 50, 18, "cv-ground", round=3, tip=tip)
        drawing.words(x, y + 4, words, "cv-small", "middle", room=50)
    for circle in panel.circles:
        seated = sorted((x, y + top) for x, y in (plan.places[id] for id in circle if id in plan.places))
        if plan.is_ring:
            for pair in combinations(seated, 2):
                drawing.line(pair, "cv-side")
        elif plan.has_levels:
            for (x0, y0), (x1, y1) in pairwise(seated):
                drawing.line([(x0 + plan.wide / 2, y0), (x1 - plan.wide / 2, y1)], "cv-side")
    groups = {group: n for n, group in enumerate(sorted({node.group for node in panel.nodes if node.group}))}
    for node in panel.nodes:
        x, y = plan.places[node.id]
        with drawing.link(node.refs, node.tip or node.label or node.id):
            _draw_node(drawing, node, x - plan.wide / 2, top + y, plan, groups.get(node.group))


def _draw_node(drawing: Drawing, node: Node, left: float, middle: float, plan: _Plan, group: int | None) -> None:
    top = middle - plan.high / 2
    drawing.box(left, top, plan.wide, plan.high, _BOXES[node.tone], tip=node.tip or node.id)
    if node.shade is not None:
        shade = DARKEST * _unit(node.shade)
        drawing.box(left + 1, top + 1, plan.wide - 2, plan.high - 2, "cv-shade", round=5, shade=shade)
    if group is not None:
        drawing.box(left + 2, top + 2, plan.wide - 4, plan.high - 4, f"cv-frame cv-group-{group % GROUP_BORDERS}")
        drawing.words(left + plan.wide - 10, top + 17, node.group, "cv-strong", "end", room=40)
    note = node.note.splitlines()[:2]
    base = middle + 5 - 8 * len(note)
    drawing.words(left + 10, base, node.label or node.id, "cv-strong", within=plan.wide - 16 - 16 * bool(node.group))
    for n, line in enumerate(note):
        style = "cv-small cv-ink" if n + 1 == len(note) else ""
        drawing.words(left + 10, base + 17 + 16 * n, line, style, within=plan.wide - 16)


def _interpolate(start: tuple[float, float], end: tuple[float, float], part: float) -> tuple[float, float]:
    return start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part


# --- matrices

_CELL_HIGH, _CELLS_TOP = 36.0, 62.0


def _draw_matrix(drawing: Drawing, matrix: Matrix) -> None:
    """Draw values as shades, with the number in every cell."""
    cells = {(cell.row, cell.column): cell for cell in matrix.cells}
    max_value = max((cell.value for cell in matrix.cells if cell.value is not None), default=0.0)
    heads = [fitted(name, _MAX_NAME_CELLS) for name in matrix.columns]
    rows = [fitted(name, _MAX_ROW_CELLS) for name in matrix.rows]
    wide = max(52.0, *(pixels(head, "cv-small") + 10 for head in heads))
    left = 36 + max(pixels(row, "cv-strong") for row in rows)
    drawing.words(16, 28, matrix.title, "cv-head")
    for j, head in enumerate(heads):
        drawing.words(left + (j + 0.5) * wide, _CELLS_TOP - 8, head, "cv-small", "middle", room=wide)
    framed = []
    for i, row in enumerate(matrix.rows):
        drawing.words(16, _CELLS_TOP + (i + 0.5) * _CELL_HIGH + 5, rows[i], "cv-strong")
        for j, column in enumerate(matrix.columns):
            x, y = left + j * wide, _CELLS_TOP + i * _CELL_HIGH
            cell = cells.get((row, column))
            if cell is None:
                continue
            if cell.value is not None:
                shade = DARKEST * _unit(cell.value / max_value) if max_value > 0 else 0.0
                drawing.box(x + 1, y + 1, wide - 2, _CELL_HIGH - 2, "cv-shade", round=2, tip=cell.tip, shade=shade)
            drawing.words(x + wide / 2, y + _CELL_HIGH / 2 + 5, cell.text, "", "middle", room=10)
            if cell.framed:
                framed.append((x, y))
    for x, y in framed:
        drawing.box(x + 2, y + 2, wide - 4, _CELL_HIGH - 4, "cv-frame", round=2)
    _legend(drawing, _CELLS_TOP + len(rows) * _CELL_HIGH + 24, matrix.legend)


# --- bar charts

_BARS_LEFT, _BARS_TOP, _BAR_STEP, _BAR_WIDE = 190.0, 64.0, 30.0, 220.0
_LINES_WIDE, _MAX_LINES = 460.0, 5
"""Width and max number of the lines of a bar; the view's text has all of them."""


def _draw_bars(drawing: Drawing, bars: Bars) -> None:
    """Draw a bar for each row, a dot for each single value, a line for the threshold."""
    drawing.words(16, 28, bars.title, "cv-head")
    lines = [_wrapped_lines(row.lines, _LINES_WIDE, _MAX_LINES) for row in bars.rows]
    tops = list(accumulate((_BAR_STEP + 14 * len(row_lines) for row_lines in lines), initial=_BARS_TOP))
    bottom = tops.pop()
    for share in (0.0, 0.5, 1.0):
        x = _BARS_LEFT + share * _BAR_WIDE
        drawing.line([(x, _BARS_TOP - 8), (x, bottom)], "cv-faint")
        drawing.words(x, _BARS_TOP - 14, f"{share * bars.length:g}", "cv-small", "middle")
    for row, row_lines, y in zip(bars.rows, lines, tops, strict=True):
        drawing.words(16, y + 16, row.name, "cv-strong", within=_BARS_LEFT - 26)
        if row.value is not None:
            drawing.box(_BARS_LEFT, y + 4, max(1.0, row.value / bars.length * _BAR_WIDE), 16, "cv-cell", round=2)
        for dot in row.dots:
            drawing.dot(_BARS_LEFT + dot / bars.length * _BAR_WIDE, y + 12, "cv-dot", 3.5)
        drawing.words(_BARS_LEFT + _BAR_WIDE + 14, y + 16, row.note, "cv-small")
        drawing.lines(_BARS_LEFT + _BAR_WIDE + 14, y + 31, row_lines, "cv-small", 14)
    if bars.threshold is not None:
        x = _BARS_LEFT + bars.threshold / bars.length * _BAR_WIDE
        drawing.line([(x, _BARS_TOP - 8), (x, bottom)], "cv-needed")
    _legend(drawing, bottom + 22, bars.legend)


# --- timelines

_COLUMN, _GAP, _METER = 226.0, 12.0, 120.0
_HEAD, _LINE, _MAX_CELL_LINES = 92.0, 18.0, 6


def _draw_grid(drawing: Drawing, grid: Grid) -> None:
    """Draw a column for each step, a row for each agent or part."""
    measured = any(cell.value_text for cell in grid.cells)
    names = {row: wrapped(row, _MAX_NAME_CELLS, 3) for row in grid.rows}
    lines = [_wrapped_lines(cell.lines, _COLUMN - 20, _MAX_CELL_LINES) for cell in grid.cells]
    most_lines = max([*map(len, lines), *(len(name) - 1 for name in names.values())], default=0)
    height = (42.0 if measured else 18.0) + _LINE * most_lines
    rows = {row: _HEAD + 16 + n * (height + _GAP) for n, row in enumerate(grid.rows)}
    for row, y in rows.items():
        drawing.lines(16, y + 24, names[row], "cv-strong")
    drawing.words(16, 42, grid.head, "cv-strong")
    left = 36 + ceil(max(pixels(line, "cv-strong") for line in (grid.head, *chain.from_iterable(names.values()))))
    across = {column.name: left + n * (_COLUMN + _GAP) for n, column in enumerate(grid.columns)}
    for column in grid.columns:
        _draw_column(drawing, across[column.name], column, grid.threshold)
        for cell, cell_lines in zip(grid.cells, lines, strict=True):
            if cell.column == column.name:
                with drawing.link(cell.refs, cell.tip or f"{cell.row}, {column.label or column.name}"):
                    _draw_cell(drawing, across[cell.column], rows[cell.row], height, cell, cell_lines)
    _legend(drawing, _HEAD + 30 + len(rows) * (height + _GAP), grid.legend)


def _draw_column(drawing: Drawing, x: float, column: GridColumn, threshold: float | None) -> None:
    drawing.words(x + 10, 36, column.label or column.name, "cv-head", within=_COLUMN - 20)
    if column.framed:
        drawing.box(x, 16, _COLUMN, _HEAD - 12, "cv-frame")
    if column.value_text:
        _meter(drawing, x + 10, 46, column.value)
        drawing.words(x + 20 + _METER, 58, column.value_text, "cv-strong")
        if threshold is not None:
            threshold_x = x + 10 + _METER * _unit(threshold)
            drawing.line([(threshold_x, 42), (threshold_x, 62)], "cv-needed")
    drawing.words(x + 10, 80, column.note, "cv-small", within=_COLUMN - 16)


def _draw_cell(drawing: Drawing, x: float, y: float, height: float, cell: GridCell, lines: Sequence[str]) -> None:
    drawing.box(x, y, _COLUMN, height, _BOXES[cell.tone], tip=cell.tip)
    base = y + 24
    if cell.value_text:
        _meter(drawing, x + 10, y + 12, cell.value)
        drawing.words(x + 20 + _METER, y + 24, cell.value_text, "cv-strong")
        base = y + 46
    drawing.lines(x + 10, base, lines, "cv-small", _LINE)


def _meter(drawing: Drawing, x: float, y: float, value: float | None) -> None:
    drawing.box(x, y, _METER, 12, "cv-box cv-quiet", round=2)
    if value is not None:
        drawing.box(x, y, _METER * _unit(value), 12, "cv-dot", round=2)


# --- curves

MAX_DETAIL_CHARS = 120
_AXIS, _CURVE_HIGH, _POINT_STEP = 64.0, 180.0, 84.0


def curve_min(curve: Curve) -> float:
    return min([0.0, *_values(curve)])


def curve_max(curve: Curve) -> float:
    return max([1.0, *_values(curve)])


def _values(curve: Curve) -> Iterator[float]:
    for point in curve.points:
        yield from (value for value in (point.value, point.threshold) if value is not None)


def describe_point(point: Point) -> str:
    threshold_text = f", needed {point.threshold:g}" if point.threshold is not None else ""
    score = "no score" if point.value is None else f"{point.value:.2f}"
    return f"{score}{threshold_text}: {'met' if point.met else 'not met'}"


def _draw_series(drawing: Drawing, series: Series) -> None:
    """Draw a panel for each curve, and a list for one without a value."""
    top = 0.0
    for curve in series.curves:
        if any(point.value is not None for point in curve.points):
            _draw_curve(drawing, curve, top, series.step)
            top += _CURVE_HIGH + 126
        else:
            drawing.words(16, top + 28, curve.name, "cv-head")
            lines = [
                f"after {series.step} {point.index}: {describe_point(point)}; {one_line(point.detail, MAX_DETAIL_CHARS)}".rstrip(
                    "; "
                )
                for point in curve.points
            ]
            drawing.lines(16, top + 48, lines)
            top += 60 + 16 * len(lines)


def _draw_curve(drawing: Drawing, curve: Curve, top: float, step: str) -> None:
    first, last = curve.points[0].index, curve.points[-1].index
    base = top + 66 + _CURVE_HIGH
    right = _AXIS + 40 + max(1, last - first) * _POINT_STEP + 40

    def x(point: Point) -> float:
        return _AXIS + 40 + (point.index - first) * _POINT_STEP

    def y(value: float) -> float:
        return base - (value - curve_min(curve)) / (curve_max(curve) - curve_min(curve)) * _CURVE_HIGH

    drawing.words(16, top + 28, f"{curve.name}, {step} by {step}", "cv-head")
    for quarter in range(5):
        value = curve_min(curve) + (curve_max(curve) - curve_min(curve)) * quarter / 4
        drawing.line([(_AXIS, y(value)), (right, y(value))], "cv-faint")
        drawing.words(_AXIS - 8, y(value) + 4, f"{value:.2f}", "cv-small", "end")
    thresholds = [(x(point), y(point.threshold)) for point in curve.points if point.threshold is not None]
    if thresholds:
        drawing.line([(_AXIS, thresholds[0][1]), *thresholds, (right, thresholds[-1][1])], "cv-needed")
        drawing.words(right + 6, thresholds[-1][1] + 4, f"needed {curve.points[-1].threshold or 0:g}", "cv-small")
    scored = [(point, y(point.value)) for point in curve.points if point.value is not None]
    drawing.line([(x(point), score_y) for point, score_y in scored], "cv-curve")
    for point in curve.points:
        drawing.words(x(point), base + 20, f"{step} {point.index}", "cv-small", "middle")
    for n, (point, score_y) in enumerate(scored):
        drawing.dot(x(point), score_y, "cv-dot" if point.met else "cv-ring")
        rises = n + 1 < len(scored) and scored[n + 1][1] < score_y
        label_y = score_y + 20 if rises and score_y + 20 < base else score_y - 10
        drawing.words(x(point), label_y, f"{point.value:.2f}{' met' if point.met else ''}", "cv-strong", "middle")
    drawing.words(_AXIS, base + 42, "● met · ○ not met · dashed: what is needed", "cv-small")
