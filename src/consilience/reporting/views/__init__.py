"""Views of a session: each a fold of its events into plain data, and that data as text and as SVG.

None needs code of the protocol, so they work for every journal, finished or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from consilience.reporting.record import Record
from consilience.reporting.views import convergence, evolution, reads, tree
from consilience.reporting.views.drawing import Drawing


@dataclass(frozen=True)
class View:
    """`fold` makes the data; `text` writes it for a terminal of `width` columns, `draw` as a picture, `plain` as JSON does."""

    heading: str
    fold: Callable[[Record], Any]
    text: Callable[[Any, int], str]
    draw: Callable[[Any], Drawing]
    plain: Callable[[Any], dict[str, Any]] = asdict


VIEWS: Mapping[str, View] = {
    "tree": View("Who took part", tree.fold, tree.text, tree.draw),
    "evolution": View("What was said, round by round", evolution.fold, evolution.text, evolution.draw),
    "convergence": View("How close it came to stopping", convergence.fold, convergence.text, convergence.draw),
    "reads": View("Who read whom", reads.fold, reads.text, reads.draw, reads.plain),
}


def view_text(name: str, record: Record, width: int = 100) -> str:
    view = VIEWS[name]
    return view.text(view.fold(record), width)


def view_svg(name: str, record: Record) -> str:
    """A whole SVG document."""
    view = VIEWS[name]
    return view.draw(view.fold(record)).svg()
