"""The agents of a session: levels, parents, who read each other, and the state of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

from consilience.domain.events import CallCompleted, CallFailed, Ended
from consilience.domain.sections import SeatNote
from consilience.reporting.formatting import count, describe_agent, one_line
from consilience.reporting.record import SessionRecord
from consilience.reporting.terminal import cells, paragraph, wrapped
from consilience.reporting.views.drawing import Drawing, Position, layered

HEADING = "Who took part"
NO_AGENTS = "No agents: the session was killed before it began."
MAX_RING_AGENTS = 12
"""Agents of one circle that are drawn with a line for every pair."""
MAX_LARGE_BOXES = 12
"""Agents side by side that are drawn with all details."""


@dataclass(frozen=True)
class DrawnSeat:
    """An agent in the view."""

    id: str
    name: str
    """Its perspective and its id."""
    stands_for: str
    model: str
    level: int
    parents: tuple[str, ...]
    replies: int
    failures: int
    state: str
    """In words."""
    well: bool
    """False after a permanent failure."""
    note: SeatNote | None = None
    """What the protocol adds."""


@dataclass(frozen=True)
class SeatTree:
    kind: str
    seats: tuple[DrawnSeat, ...]
    circles: tuple[tuple[str, ...], ...]
    legend: str = ""


def fold(record: SessionRecord) -> SeatTree:
    ends_by_agent: dict[str, list[Ended]] = {}
    for call in record.state.calls:
        ends_by_agent.setdefault(call.agent, []).append(call)
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
        calls = ends_by_agent.get(id, [])
        if not (agent.voice or calls or id in outside or id in flying):
            continue  # a service seat that made no call took no part
        state, well = _state(calls, outside.get(id, ""), id in flying, record)
        seats.append(
            DrawnSeat(
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
    return SeatTree(topology.kind, tuple(seats), topology.circles, record.presentation.seats_legend)


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


def text(tree: SeatTree, width: int) -> str:
    if not tree.seats:
        return f"{NO_AGENTS}\n"
    models = Counter(seat.model for seat in tree.seats)
    shared = next(iter(models)) if len(models) == 1 else ""
    head = f"{count(len(tree.seats), 'agent')}, {tree.kind}" + (f", all on {one_line(shared)}" if shared else "")
    lines = paragraph(head, width, "  ")
    by_id = {seat.id: seat for seat in tree.seats}
    below = _listed_children(tree)
    for root in (seat for seat in tree.seats if not _first_parent(seat, by_id)):
        lines += _branch(root, below, by_id, "", "", bool(shared), width)
    if tree.circles:
        lines.append("")
        for circle in tree.circles:
            lines += paragraph(f"read each other: {' – '.join(circle)}", width, "  ")
    return "\n".join(lines) + "\n"


def _branch(
    seat: DrawnSeat,
    below: Mapping[str, list[str]],
    by_id: Mapping[str, DrawnSeat],
    first: str,
    indent_below: str,
    shared: bool,
    width: int,
) -> Iterator[str]:
    others = [parent for parent in seat.parents if parent != _first_parent(seat, by_id)]
    also = f" (also below {', '.join(others)})" if others else ""
    model = "" if shared or not seat.model else f" · {one_line(seat.model)}"
    rated = f" · {seat.note.text}" if seat.note else ""
    children = below.get(seat.id, [])
    entry = one_line(f"{seat.name}{also}: {_describe_replies(seat)}{rated}{model}")
    room = width - len(first)
    lines = [entry] if cells(entry) <= room else wrapped(entry, max(room - 2, 20), len(entry))
    yield f"{first}{lines[0]}"
    yield from (f"{indent_below}{'│ ' if children else '  '}{line}" for line in lines[1:])
    for n, child in enumerate(children, 1):
        last = n == len(children)
        yield from _branch(
            by_id[child],
            below,
            by_id,
            indent_below + ("└─ " if last else "├─ "),
            indent_below + ("   " if last else "│  "),
            shared,
            width,
        )


def _describe_replies(seat: DrawnSeat) -> str:
    replies = count(seat.replies, "reply", "replies")
    lacking = f", {count(seat.failures, 'call')} without a reply" if seat.failures else ""
    return f"{replies}{lacking}" if seat.state == "replied" else f"{seat.state}, {replies}{lacking}"


def _first_parent(seat: DrawnSeat, by_id: Mapping[str, DrawnSeat]) -> str:
    return next((parent for parent in seat.parents if parent in by_id), "")


def _listed_children(tree: SeatTree) -> dict[str, list[str]]:
    """Return children by the parent below which they are listed: their first."""
    by_id = {seat.id: seat for seat in tree.seats}
    children: dict[str, list[str]] = {}
    for seat in tree.seats:
        if parent := _first_parent(seat, by_id):
            children.setdefault(parent, []).append(seat.id)
    return children


# --- as a picture

_DARKEST = 0.55
"""Opacity of a shade of 1; text on it stays readable."""


@dataclass(frozen=True)
class _Size:
    """The size of a box, and the gaps beside and below it."""

    width: float
    height: float
    across: float
    down: float


_LARGE, _SMALL = _Size(186, 62, 26, 56), _Size(92, 44, 14, 56)


def draw(tree: SeatTree) -> Drawing:
    drawing = Drawing("tree", HEADING, text(tree, 100), empty=not tree.seats)
    if not tree.seats:
        return drawing
    flat = not any(seat.parents for seat in tree.seats)
    widest = max(Counter(seat.level for seat in tree.seats).values())
    ring = flat and len(tree.circles) == 1 and len(tree.circles[0]) == len(tree.seats) and widest <= MAX_RING_AGENTS
    size = _LARGE if ring or flat or widest <= MAX_LARGE_BOXES else _SMALL
    places = _ring(tree, size) if ring else _grid(tree, size) if flat else _layers(drawing, tree, size)
    if ring:
        _chords(drawing, tree.circles[0], places)
        drawing.words(16, max(y for _, y in places.values()) + size.height, _circles_text(tree.circles), "cv-small")
    elif flat and tree.circles:
        names = {seat.id: seat.name for seat in tree.seats}
        if names.keys() <= set().union(*tree.circles):
            right, bottom = max(x for x, _ in places.values()), max(y for _, y in places.values())
            drawing.box(20, 36, right + size.width / 2, bottom + size.height / 2 - 20, "cv-side", round=12)
            words = _circles_text(tree.circles)
        else:
            words = "read each other: " + "; ".join(", ".join(map(names.__getitem__, one)) for one in tree.circles)
        drawing.words(24, 26, words, "cv-small")
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


def _circles_text(circles: tuple[tuple[str, ...], ...]) -> str:
    return (
        "all of them read each other"
        if len(circles) == 1
        else f"{len(circles)} circles; within one, all read each other"
    )


def _node(drawing: Drawing, seat: DrawnSeat, at: Position, size: _Size) -> None:
    x, y, room = at[0] - size.width / 2, at[1] - size.height / 2, size.width - 16
    style = "cv-box" if seat.well else "cv-box cv-bad"
    if seat.state in ("answered", "awaited", "composing") or seat.state.startswith("in flight"):
        style = "cv-box cv-wait"
    elif not seat.replies and seat.well:
        style = "cv-box cv-quiet"
    note = seat.note or SeatNote(text="")
    state = ", ".join(filter(None, (_describe_replies(seat), note.text)))
    drawing.box(x, y, size.width, size.height, style, tip=f"{seat.name}: {state}, {seat.model}")
    if note.shade is not None:
        shade = _DARKEST * min(1.0, max(0.0, note.shade))
        drawing.box(x + 1, y + 1, size.width - 2, size.height - 2, "cv-shade", shade=shade)
    drawing.words(x + 10, y + 18, seat.name, "cv-strong", within=room)
    if size is _LARGE:
        second = note.short or note.text
        third = note.alert or _describe_replies(seat)
        if second:
            drawing.words(x + 10, y + 36, second, within=room)
        drawing.words(x + 10, y + (52 if second else 40), third, "cv-small", within=room)
    else:
        drawing.words(x + 10, y + 34, _describe_replies(seat), "cv-small", within=room)


def _layers(drawing: Drawing, tree: SeatTree, size: _Size) -> dict[str, Position]:
    """Draw the lines from parents to children; return the places of the agents, one row for each level."""
    levels = {seat.id: seat.level for seat in tree.seats}
    edges = [(parent, seat.id) for seat in tree.seats for parent in seat.parents if parent in levels]
    layers = layered(levels, edges)

    def position(across: float, level: int) -> Position:
        return (
            16 + size.width / 2 + across * (size.width + size.across),
            16 + size.height / 2 + (level - 1) * (size.height + size.down),
        )

    for edge in edges:
        drawing.line(layers.path(edge, position, size.height / 2))
    return {id: position(across, levels[id]) for id, across in layers.across.items()}


def _ring(tree: SeatTree, size: _Size) -> dict[str, Position]:
    """Place agents far enough apart that no box covers another; flattened, since boxes are wider than tall."""
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


def _grid(tree: SeatTree, size: _Size) -> dict[str, Position]:
    columns = max(1, math.ceil(math.sqrt(len(tree.seats) / 2)))
    return {
        seat.id: (
            36 + size.width / 2 + n % columns * (size.width + size.across),
            52 + size.height / 2 + n // columns * (size.height + 24),
        )
        for n, seat in enumerate(tree.seats)
    }


def _chords(drawing: Drawing, circle: tuple[str, ...], places: Mapping[str, Position]) -> None:
    for a, b in combinations(circle, 2):
        drawing.line([places[a], places[b]], "cv-side")


def _chains(drawing: Drawing, tree: SeatTree, places: Mapping[str, Position], size: _Size) -> None:
    """Join the neighbours of a circle side by side; those of different levels by a slanting line."""
    for circle in tree.circles:
        seated = sorted((id for id in circle if id in places), key=lambda id: places[id])
        for a, b in pairwise(seated):
            (x0, y0), (x1, y1) = places[a], places[b]
            drawing.line([(x0 + size.width / 2, y0), (x1 - size.width / 2, y1)], "cv-side")
