"""Who took part: agents by level, who is above whom, who read each other, and what became of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from consilience.domain.events import CallCompleted, CallFailed, Ended
from consilience.domain.sections import SeatNote
from consilience.reporting.formatting import count, describe_agent, one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.views.drawing import Drawing, cells, wrapped
from consilience.reporting.views.layers import layered
from consilience.reporting.views.words import paragraph

_RING = 12
"""The most agents of one circle that are drawn with a line for every pair; beyond, the lines would be a blot."""
_ROOMY = 12
"""The most agents side by side that are drawn with all that is said of them."""


@dataclass(frozen=True)
class Seat:
    """`state` is in words; `well` is False where a lasting failure was the last thing heard of it. `note` is what
    its protocol adds."""

    id: str
    name: str
    """What it stands for, and its id."""
    stands_for: str
    model: str
    level: int
    parents: tuple[str, ...]
    replies: int
    failures: int
    state: str
    well: bool
    note: SeatNote | None = None


@dataclass(frozen=True)
class Tree:
    kind: str
    seats: tuple[Seat, ...]
    circles: tuple[tuple[str, ...], ...]
    legend: str = ""


def fold(record: SessionRecord) -> Tree:
    ended: dict[str, list[Ended]] = {}
    for call in record.state.calls:
        ended.setdefault(call.agent, []).append(call)
    outside = {
        record.flights.get(key) or _named(key, record): state
        for state, keys in (("answered", record.state.answered), ("awaited", record.state.awaited))
        for key in keys
    }
    flying = set(record.flights.values())
    topology = record.topology
    notes = record.presentation.seats
    seats = []
    for id, agent in record.agents.items():
        calls = ended.get(id, [])
        state, well = _state(calls, outside.get(id, ""), id in flying, record)
        seats.append(
            Seat(
                id=id,
                name=record.names.get(id, id),
                stands_for=describe_agent(agent),
                model=agent.model,
                level=topology.levels.get(id, 1),
                parents=topology.parents.get(id, ()),
                replies=sum(isinstance(call, CallCompleted) for call in calls),
                failures=len({call.key for call in calls} - {c.key for c in calls if isinstance(c, CallCompleted)}),
                state=state,
                well=well,
                note=notes.get(id),
            )
        )
    return Tree(topology.kind, tuple(seats), topology.circles, record.presentation.seats_legend)


def _state(calls: list[Ended], outside: str, flying: bool, record: SessionRecord) -> tuple[str, bool]:
    if outside:
        return outside, True
    if flying:
        return ("composing" if record.holder else "in flight when it stopped"), True
    if not calls:
        return ("never asked" if record.report else "not asked yet"), True
    last = calls[-1]
    if isinstance(last, CallCompleted):
        return "replied", True
    if isinstance(last, CallFailed):
        limited = last.failure.is_limit
        return (f"cut short by {last.failure.value}" if limited else f"failed: {last.failure.value}"), limited
    return "last reply unusable", False


def _named(key: str, record: SessionRecord) -> str:
    return next((part for part in reversed(key.split("/")) if part in record.agents), "")


def text(tree: Tree, width: int) -> str:
    if not tree.seats:
        return "Nobody: the session was killed before it began.\n"
    models = Counter(seat.model for seat in tree.seats)
    shared = next(iter(models)) if len(models) == 1 else ""
    head = f"{count(len(tree.seats), 'agent')}, {tree.kind}" + (f", all on {one_line(shared)}" if shared else "")
    lines = paragraph(head, width, "  ")
    by_id = {seat.id: seat for seat in tree.seats}
    below = _below(tree)
    for root in (seat for seat in tree.seats if not _first_parent(seat, by_id)):
        lines += _branch(root, below, by_id, "", "", bool(shared), width)
    if tree.circles:
        lines.append("")
        for circle in tree.circles:
            lines += paragraph(f"read each other: {' – '.join(circle)}", width, "  ")
    return "\n".join(lines) + "\n"


def _branch(
    seat: Seat,
    below: Mapping[str, list[str]],
    by_id: Mapping[str, Seat],
    first: str,
    rest: str,
    shared: bool,
    width: int,
) -> Iterator[str]:
    others = [parent for parent in seat.parents if parent != _first_parent(seat, by_id)]
    also = f" (also below {', '.join(others)})" if others else ""
    model = "" if shared or not seat.model else f" · {one_line(seat.model)}"
    rated = f" · {seat.note.text}" if seat.note else ""
    children = below.get(seat.id, [])
    said = one_line(f"{seat.name}{also}: {_words(seat)}{rated}{model}")
    room = width - len(first)
    lines = [said] if cells(said) <= room else wrapped(said, max(room - 2, 20), len(said))
    yield f"{first}{lines[0]}"
    yield from (f"{rest}{'│ ' if children else '  '}{line}" for line in lines[1:])
    for n, child in enumerate(children, 1):
        last = n == len(children)
        yield from _branch(
            by_id[child],
            below,
            by_id,
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
            shared,
            width,
        )


def _words(seat: Seat) -> str:
    said = count(seat.replies, "reply", "replies")
    lost = f", {seat.failures} failed" if seat.failures else ""
    return f"{seat.state}, {said}{lost}" if seat.state != "replied" else f"{said}{lost}"


def _first_parent(seat: Seat, by_id: Mapping[str, Seat]) -> str:
    return next((parent for parent in seat.parents if parent in by_id), "")


def _below(tree: Tree) -> dict[str, list[str]]:
    """Children by the parent beneath which they are written: their first."""
    by_id = {seat.id: seat for seat in tree.seats}
    found: dict[str, list[str]] = {}
    for seat in tree.seats:
        if parent := _first_parent(seat, by_id):
            found.setdefault(parent, []).append(seat.id)
    return found


# --- as a picture

Point = tuple[float, float]

_DARKEST = 0.55
"""Of the colour of a shade of 1, so that words on it can still be read."""


@dataclass(frozen=True)
class _Size:
    """Of a box, and the gaps beside and beneath it."""

    width: float
    height: float
    across: float
    down: float


_LARGE, _SMALL = _Size(186, 62, 26, 56), _Size(92, 44, 14, 56)


def draw(tree: Tree) -> Drawing:
    drawing = Drawing("tree", "Who took part", text(tree, 100))
    if not tree.seats:
        drawing.words(16, 28, "Nobody: the session was killed before it began.")
        return drawing
    flat = not any(seat.parents for seat in tree.seats)
    widest = max(Counter(seat.level for seat in tree.seats).values())
    ring = flat and len(tree.circles) == 1 and len(tree.circles[0]) == len(tree.seats) and widest <= _RING
    size = _LARGE if ring or flat or widest <= _ROOMY else _SMALL
    shared = any(len(seat.parents) > 1 for seat in tree.seats)
    if shared:
        places = _dag(drawing, tree, size)
    else:
        places = _ring(tree, size) if ring else _grid(tree, size) if flat else _layers(tree, size)
        _edges(drawing, tree, places, size)
    if ring:
        _chords(drawing, tree.circles[0], places)
        drawing.words(16, max(y for _, y in places.values()) + size.height, _said_of(tree.circles), "cv-small")
    elif flat and tree.circles:
        right, bottom = max(x for x, _ in places.values()), max(y for _, y in places.values())
        drawing.box(20, 36, right + size.width / 2, bottom + size.height / 2 - 20, "cv-side", round=12)
        drawing.words(24, 26, _said_of(tree.circles), "cv-small")
    else:
        _chains(drawing, tree, places, size)
    for seat in tree.seats:
        _node(drawing, seat, places[seat.id], size)
    bottom = max(y for _, y in places.values()) + size.height / 2 + 30
    if tree.circles and not flat:
        drawing.line([(16, bottom - 4), (56, bottom - 4)], "cv-side")
        drawing.words(64, bottom, "read each other (all who are joined so)", "cv-small")
        bottom += 18
    if tree.legend:
        drawing.words(16, bottom, tree.legend, "cv-small")
    return drawing


def _said_of(circles: tuple[tuple[str, ...], ...]) -> str:
    return (
        "all of them read each other"
        if len(circles) == 1
        else f"{len(circles)} circles; within one, all read each other"
    )


def _node(drawing: Drawing, seat: Seat, at: Point, size: _Size) -> None:
    x, y, room = at[0] - size.width / 2, at[1] - size.height / 2, size.width - 16
    style = "cv-box" if seat.well else "cv-box cv-bad"
    if seat.state in ("answered", "awaited", "composing") or seat.state.startswith("in flight"):
        style = "cv-box cv-wait"
    elif not seat.replies and seat.well:
        style = "cv-box cv-quiet"
    note = seat.note or SeatNote(text="")
    said = ", ".join(filter(None, (_words(seat), note.text)))
    drawing.box(x, y, size.width, size.height, style, tip=f"{seat.name}: {said}, {seat.model}")
    if note.shade is not None:
        shade = _DARKEST * min(1.0, max(0.0, note.shade))
        drawing.box(x + 1, y + 1, size.width - 2, size.height - 2, "cv-shade", shade=shade)
    drawing.words(x + 10, y + 18, seat.name, "cv-strong", within=room)
    if size is _LARGE:
        second = note.short or note.text
        third = note.alert or _words(seat)
        if second:
            drawing.words(x + 10, y + 36, second, within=room)
        drawing.words(x + 10, y + (52 if second else 40), third, "cv-small", within=room)
    else:
        drawing.words(x + 10, y + 34, _words(seat), "cv-small", within=room)


def _layers(tree: Tree, size: _Size) -> dict[str, Point]:
    """Leaves side by side in the order of the tree, everybody else above the middle of those written beneath it."""
    below = _below(tree)
    by_id = {seat.id: seat for seat in tree.seats}
    across: dict[str, float] = {}
    free = 0

    def put(id: str) -> float:
        nonlocal free
        children = [put(child) for child in below.get(id, [])]
        if children:
            across[id] = (children[0] + children[-1]) / 2
        else:
            across[id] = free
            free += 1
        return across[id]

    for seat in tree.seats:
        if not _first_parent(seat, by_id):
            put(seat.id)
    stride = size.width + size.across
    return {
        id: (
            16 + size.width / 2 + x * stride,
            16 + size.height / 2 + (by_id[id].level - 1) * (size.height + size.down),
        )
        for id, x in across.items()
    }


def _dag(drawing: Drawing, tree: Tree, size: _Size) -> dict[str, Point]:
    """Nodes with several parents: placed so that few edges cross; an edge past a level goes through a gap in it."""
    levels = {seat.id: seat.level for seat in tree.seats}
    edges = [(parent, seat.id) for seat in tree.seats for parent in seat.parents if parent in levels]
    found = layered(levels, edges)

    def at(across: float, level: int) -> Point:
        return (
            16 + size.width / 2 + across * (size.width + size.across),
            16 + size.height / 2 + (level - 1) * (size.height + size.down),
        )

    places = {id: at(x, levels[id]) for id, x in found.across.items()}
    half = size.height / 2
    for parent, child in edges:
        points = [(places[parent][0], places[parent][1] + half)]
        for x, y in (at(*point) for point in found.routes[parent, child]):
            points += [(x, y - half), (x, y + half)]
        drawing.line([*points, (places[child][0], places[child][1] - half)])
    return places


def _ring(tree: Tree, size: _Size) -> dict[str, Point]:
    """Far enough apart that no box covers its neighbour; a little flattened, since boxes are wider than tall."""
    number = len(tree.seats)
    radius = (size.width + 20) / (2 * math.sin(math.pi / number)) if number > 1 else 0.0
    tall = 0.75 * radius
    middle = (radius + size.width / 2 + 16, tall + size.height / 2 + 16)
    return {
        seat.id: (
            middle[0] + radius * math.sin(2 * math.pi * n / number),
            middle[1] - tall * math.cos(2 * math.pi * n / number),
        )
        for n, seat in enumerate(tree.seats)
    }


def _grid(tree: Tree, size: _Size) -> dict[str, Point]:
    columns = max(1, math.ceil(math.sqrt(len(tree.seats) / 2)))
    return {
        seat.id: (
            36 + size.width / 2 + n % columns * (size.width + size.across),
            52 + size.height / 2 + n // columns * (size.height + 24),
        )
        for n, seat in enumerate(tree.seats)
    }


def _edges(drawing: Drawing, tree: Tree, places: Mapping[str, Point], size: _Size) -> None:
    """From the lower edge of a parent, over a level half-way, to the upper edge of its child."""
    for seat in tree.seats:
        for parent in seat.parents:
            if parent in places:
                (x0, y0), (x1, y1) = places[parent], places[seat.id]
                half = y1 - size.height / 2 - size.down / 2
                start, end = (x0, y0 + size.height / 2), (x1, y1 - size.height / 2)
                drawing.line([start, (x0, half), (x1, half), end])


def _chords(drawing: Drawing, circle: tuple[str, ...], places: Mapping[str, Point]) -> None:
    for n, one in enumerate(circle):
        for other in circle[n + 1 :]:
            drawing.line([places[one], places[other]], "cv-side")


def _chains(drawing: Drawing, tree: Tree, places: Mapping[str, Point], size: _Size) -> None:
    """Neighbours of a circle are joined, side by side; those of different levels by a slanting line."""
    for circle in tree.circles:
        seated = sorted((id for id in circle if id in places), key=lambda id: places[id])
        for one, other in pairwise(seated):
            (x0, y0), (x1, y1) = places[one], places[other]
            drawing.line([(x0 + size.width / 2, y0), (x1 - size.width / 2, y1)], "cv-side")
