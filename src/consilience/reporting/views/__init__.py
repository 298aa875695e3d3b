"""Views of a session: five that every session has, folded from its events, and those that its protocol adds as data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from consilience.domain.errors import SettingsError
from consilience.domain.sections import Paragraph, View
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import folded_sections
from consilience.reporting.views import convergence, evolution, pictures, reads, tree
from consilience.reporting.views.drawing import Drawing
from consilience.reporting.views.words import view_lines


def as_json(data: Any) -> dict[str, Any]:
    """The data of a view for JSON."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(data), default=lambda inner: inner.model_dump(mode="json")))
    return found


@dataclass(frozen=True)
class SessionView:
    """`fold` makes the data; `text` writes it for a terminal of `width` columns, `draw` as a picture, `plain` as JSON does."""

    heading: str
    fold: Callable[[SessionRecord], Any]
    text: Callable[[Any, int], str]
    draw: Callable[[Any], Drawing]
    plain: Callable[[Any], dict[str, Any]] = as_json


def _stored(heading: str, fold: Callable[[SessionRecord], View]) -> SessionView:
    return SessionView(heading, fold, view_lines, pictures.draw, lambda data: dict(data.model_dump(mode="json")))


COMMON: Mapping[str, SessionView] = {
    "tree": SessionView("Who took part", tree.fold, tree.text, tree.draw),
    "evolution": SessionView("What was said, round by round", evolution.fold, evolution.text, evolution.draw),
    "convergence": SessionView(
        "How close it came to stopping", convergence.fold, convergence.text, convergence.draw, convergence.plain
    ),
    "reads": SessionView("Who read whom", reads.fold, reads.text, reads.draw, reads.plain),
}
"""By the names that `--view` takes. A protocol's view of the same name takes its place."""


def views_of(record: SessionRecord) -> dict[str, SessionView]:
    """All views of a session, by name."""
    return {**COMMON, **folded_views(record), **{view.name: _given(view) for view in record.presentation.views}}


def folded_views(record: SessionRecord) -> dict[str, SessionView]:
    """The folded sections of a report, by name. A session without a report has one that says so."""
    if record.report is None:
        none = Paragraph(text="The session has no report yet, and so no figures.")
        return {"figures": _given(View(name="figures", heading="All figures", blocks=(none,)))}
    sections = folded_sections(record.report, record.presentation)
    return {s.name: _given(View(name=s.name, heading=s.heading, blocks=s.blocks)) for s in sections}


def _given(view: View) -> SessionView:
    return _stored(view.heading, lambda record: view)


def view_of(name: str, record: SessionRecord) -> SessionView:
    """Raises `SettingsError` naming the views that there are."""
    views = views_of(record)
    if name not in views:
        started = record.state.started
        whose = f"a session of {started.protocol}" if started else "a session that never began"
        raise SettingsError(f"{whose} has no view {name!r:.60}", where="--view", do=f"Its views: {', '.join(views)}.")
    return views[name]


def view_text(name: str, record: SessionRecord, width: int = 100) -> str:
    view = view_of(name, record)
    return view.text(view.fold(record), width)


def view_svg(name: str, record: SessionRecord) -> str:
    """A whole SVG document."""
    view = view_of(name, record)
    return view.draw(view.fold(record)).svg()
