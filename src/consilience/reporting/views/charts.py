"""Pictures described as data: layered graphs, matrices, bar charts, timelines, curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, chain
from math import ceil

from consilience.domain.sections import (
    Bars,
    Curve,
    Graph,
    GraphPanel,
    Grid,
    GridCell,
    GridColumn,
    Matrix,
    Picture,
    Point,
    Series,
    View,
)
from consilience.reporting.formatting import one_line
from consilience.reporting.terminal import fitted, view_text, wrapped
from consilience.reporting.views.drawing import Drawing, Layers, layered, pixels

_MAX_NAME_CELLS = 22
_MAX_ROW_CELLS = 60


def draw(view: View) -> Drawing:
    """Return the picture of a view; its text if it has none."""
    text = view_text(view, 100)
    drawing = Drawing(view.name, view.heading, text)
    if view.picture is None:
        drawing.lines(16, 28, text.splitlines())
    else:
        draw_picture(drawing, view.picture)
    return drawing


def draw_picture(drawing: Drawing, picture: Picture) -> None:
    match picture:
        case Graph():
            _draw_graph(drawing, picture)
        case Matrix():
            _draw_matrix(drawing, picture)
        case Bars():
            _draw_bars(drawing, picture)
        case Series():
            _draw_series(drawing, picture)
        case Grid():
            _draw_grid(drawing, picture)


def _legend(drawing: Drawing, y: float, lines: tuple[str, ...]) -> None:
    drawing.lines(16, y, lines, "cv-small")


# --- layered graphs

_WIDE, _HIGH, _BESIDE, _BENEATH = 150.0, 46.0, 44.0, 96.0
_LINES: Mapping[str, str] = {"plain": "cv-line", "dashed": "cv-side", "faint": "cv-faint"}
_BOXES: Mapping[str, str] = {
    "plain": "cv-box",
    "quiet": "cv-box cv-quiet",
    "bad": "cv-box cv-bad",
    "wait": "cv-box cv-wait",
    "frame": "cv-frame",
}


def _draw_graph(drawing: Drawing, graph: Graph) -> None:
    levels = {node.id: node.level for panel in graph.panels for node in panel.nodes}
    pairs = dict.fromkeys((edge.source, edge.target) for panel in graph.panels for edge in panel.edges)
    edges = [(a, b) for a, b in pairs if a in levels and b in levels and levels[a] < levels[b]]
    ranks = {level: n for n, level in enumerate(sorted(set(levels.values())))}
    placed = layered({id: ranks[level] for id, level in levels.items()}, edges)
    top = 16.0
    for panel in graph.panels:
        if panel.title:
            drawing.words(16, top + 14, panel.title, "cv-head")
            top += 32
        _draw_panel(drawing, panel, placed, top)
        top += len(ranks) * (_HIGH + _BENEATH) - _BENEATH + 34
    _legend(drawing, top, graph.legend)


def _draw_panel(drawing: Drawing, panel: GraphPanel, placed: Layers, top: float) -> None:
    def position(across: float, row: int) -> tuple[float, float]:
        return 16 + _WIDE / 2 + across * (_WIDE + _BESIDE), top + _HIGH / 2 + row * (_HIGH + _BENEATH)

    labels: list[tuple[float, float, str, str]] = []
    for edge in panel.edges:
        pair = (edge.source, edge.target)
        if pair not in placed.routes:
            continue
        points = placed.path(pair, position, _HIGH / 2)
        drawing.line(points, _LINES[edge.tone])
        if edge.near_source:
            labels.append((*_interpolate(points[0], points[1], 0.36), edge.near_source, edge.tip))
        if edge.near_target:
            labels.append((*_interpolate(points[-2], points[-1], 0.70), edge.near_target, edge.tip))
    for x, y, words, tip in labels:
        drawing.box(x - 25, y - 9, 50, 18, "cv-ground", round=3, tip=tip)
        drawing.words(x, y + 4, words, "cv-small", "middle", room=50)
    for node in panel.nodes:
        x, y = position(placed.across[node.id], placed.levels[node.id])
        drawing.box(x - _WIDE / 2, y - _HIGH / 2, _WIDE, _HIGH, _BOXES[node.tone], tip=node.tip or node.id)
        left, base = x - _WIDE / 2 + 10, y + (-3 if node.note else 5)
        drawing.words(left, base, node.label or node.id, "cv-strong", within=_WIDE - 20)
        if node.note:
            drawing.words(left, y + 14, node.note, "cv-small", within=_WIDE - 20)


def _interpolate(start: tuple[float, float], end: tuple[float, float], part: float) -> tuple[float, float]:
    return start[0] + (end[0] - start[0]) * part, start[1] + (end[1] - start[1]) * part


# --- matrices

_CELL_HIGH, _CELLS_TOP = 36.0, 62.0
_DARKEST = 0.5
"""Opacity of the max value's colour; a number on a darker ground would be unreadable."""


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
                shade = _DARKEST * min(1.0, max(0.0, cell.value / max_value)) if max_value > 0 else 0.0
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
    small = partial(pixels, style="cv-small")
    lines = [
        [part for line in row.lines for part in wrapped(line, _LINES_WIDE, _MAX_LINES, small)] for row in bars.rows
    ]
    tops = list(accumulate((_BAR_STEP + 14 * len(row_lines) for row_lines in lines), initial=_BARS_TOP))
    bottom = tops.pop()
    for share in (0.0, 0.5, 1.0):
        x = _BARS_LEFT + share * _BAR_WIDE
        drawing.line([(x, _BARS_TOP - 8), (x, bottom)], "cv-faint")
        drawing.words(x, _BARS_TOP - 14, f"{share * bars.max:g}", "cv-small", "middle")
    for row, row_lines, y in zip(bars.rows, lines, tops, strict=True):
        drawing.words(16, y + 16, row.name, "cv-strong", within=_BARS_LEFT - 26)
        if row.value is not None:
            drawing.box(_BARS_LEFT, y + 4, max(1.0, row.value / bars.max * _BAR_WIDE), 16, "cv-cell", round=2)
        for dot in row.dots:
            drawing.dot(_BARS_LEFT + dot / bars.max * _BAR_WIDE, y + 12, "cv-dot", 3.5)
        drawing.words(_BARS_LEFT + _BAR_WIDE + 14, y + 16, row.note, "cv-small")
        drawing.lines(_BARS_LEFT + _BAR_WIDE + 14, y + 31, row_lines, "cv-small", 14)
    if bars.threshold is not None:
        x = _BARS_LEFT + bars.threshold / bars.max * _BAR_WIDE
        drawing.line([(x, _BARS_TOP - 8), (x, bottom)], "cv-needed")
    _legend(drawing, bottom + 22, bars.legend)


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))


# --- timelines

CELL_ROOM = 206.0
"""Width of the lines in a cell of a timeline."""
_COLUMN, _GAP, _METER = CELL_ROOM + 20, 12.0, 120.0
_HEAD, _LINE = 92.0, 18.0


def _draw_grid(drawing: Drawing, grid: Grid) -> None:
    """Draw a column for each step, a row for each agent or part."""
    measured = any(cell.value_text for cell in grid.cells)
    names = {row: wrapped(row, _MAX_NAME_CELLS, 3) for row in grid.rows}
    lines = max([len(cell.lines) for cell in grid.cells] + [len(name) - 1 for name in names.values()], default=0)
    height = (42.0 if measured else 18.0) + _LINE * lines
    rows = {row: _HEAD + 16 + n * (height + _GAP) for n, row in enumerate(grid.rows)}
    for row, y in rows.items():
        drawing.lines(16, y + 24, names[row], "cv-strong")
    drawing.words(16, 42, grid.head, "cv-strong")
    left = 36 + ceil(max(pixels(line, "cv-strong") for line in (grid.head, *chain.from_iterable(names.values()))))
    across = {column.name: left + n * (_COLUMN + _GAP) for n, column in enumerate(grid.columns)}
    for column in grid.columns:
        _draw_column(drawing, across[column.name], column, grid.threshold)
        for cell in (cell for cell in grid.cells if cell.column == column.name):
            _draw_cell(drawing, across[cell.column], rows[cell.row], height, cell)
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


def _draw_cell(drawing: Drawing, x: float, y: float, height: float, cell: GridCell) -> None:
    drawing.box(x, y, _COLUMN, height, _BOXES[cell.tone], tip=cell.tip)
    base = y + 24
    if cell.value_text:
        _meter(drawing, x + 10, y + 12, cell.value)
        drawing.words(x + 20 + _METER, y + 24, cell.value_text, "cv-strong")
        base = y + 46
    for n, line in enumerate(cell.lines):
        drawing.words(x + 10, base + n * _LINE, line, "cv-small", within=_COLUMN - 16)


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
