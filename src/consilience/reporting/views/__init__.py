"""Views of a session: each a fold of its events into plain data, and that data as text and as SVG.

None needs code of the protocol, so they work for every journal, finished or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from consilience.reporting.record import Record
from consilience.reporting.views import convergence, distances, evolution, flow, iterations, passes, reads, tree
from consilience.reporting.views.drawing import Drawing


def _always(record: Record) -> bool:
    return True


@dataclass(frozen=True)
class View:
    """`fold` makes the data; `text` writes it for a terminal of `width` columns, `draw` as a picture, `plain` as JSON does.

    `applies` says whether a session has what the view shows, finished or not; what it lacks is `lacked`, in words.
    """

    heading: str
    fold: Callable[[Record], Any]
    text: Callable[[Any, int], str]
    draw: Callable[[Any], Drawing]
    plain: Callable[[Any], dict[str, Any]] = asdict
    applies: Callable[[Record], bool] = _always
    lacked: str = ""


VIEWS: Mapping[str, View] = {
    "tree": View("Who took part", tree.fold, tree.text, tree.draw),
    "evolution": View("What was said, round by round", evolution.fold, evolution.text, evolution.draw),
    "convergence": View("How close it came to stopping", convergence.fold, convergence.text, convergence.draw),
    "reads": View("Who read whom", reads.fold, reads.text, reads.draw, reads.plain),
    "iterations": View(
        "Why a goal was broadcast again",
        iterations.fold,
        iterations.text,
        iterations.draw,
        applies=iterations.applies,
        lacked="iterations",
    ),
    "passes": View(
        "How the text became better, pass by pass",
        passes.fold,
        passes.text,
        passes.draw,
        applies=passes.applies,
        lacked="passes over one text",
    ),
    "flow": View(
        "What went down and what came up",
        flow.fold,
        flow.text,
        flow.draw,
        applies=flow.applies,
        lacked="passes over one text",
    ),
    "distances": View(
        "How far the roles are from each other",
        distances.fold,
        distances.text,
        distances.draw,
        applies=distances.applies,
        lacked="roles with distances",
    ),
}


def views_of(record: Record) -> dict[str, View]:
    """Those that have something to show of a session."""
    return {name: view for name, view in VIEWS.items() if view.applies(record)}


def lacking(name: str, record: Record) -> str:
    """What a session has not, where it has nothing that the view shows; else nothing."""
    if VIEWS[name].applies(record):
        return ""
    what = f"a session of {record.course.started.protocol}" if record.course.started else "a session that never began"
    return f"{what} has no {VIEWS[name].lacked}"


def _instead(name: str, record: Record) -> str:
    """That as a sentence, with the views that there are."""
    missing = lacking(name, record)
    return f"{missing[:1].upper()}{missing[1:]}; its views are {', '.join(views_of(record))}." if missing else ""


def view_text(name: str, record: Record, width: int = 100) -> str:
    view = VIEWS[name]
    if instead := _instead(name, record):
        return f"{instead}\n"
    return view.text(view.fold(record), width)


def view_svg(name: str, record: Record) -> str:
    """A whole SVG document."""
    view = VIEWS[name]
    if instead := _instead(name, record):
        drawing = Drawing(name, view.heading, instead)
        drawing.words(16, 28, instead)
        return drawing.svg()
    return view.draw(view.fold(record)).svg()
