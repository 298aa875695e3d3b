"""Views of a session: five that every session has, and those that its protocol adds as data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Any

from consilience.domain.errors import SettingsError
from consilience.domain.sections import Block, Paragraph, View
from consilience.reporting.formatting import escape_markdown
from consilience.reporting.markdown import blocks_markdown
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import folded_sections
from consilience.reporting.terminal import view_text as stored_text
from consilience.reporting.views import charts, convergence, evolution, reads, tree
from consilience.reporting.views.drawing import Drawing


def as_json(data: Any) -> dict[str, Any]:
    """Return the data of a view for JSON."""
    fields: dict[str, Any] = json.loads(json.dumps(asdict(data), default=lambda inner: inner.model_dump(mode="json")))
    return fields


@dataclass(frozen=True)
class SessionView:
    """How to make the data of a view and to show it."""

    heading: str
    fold: Callable[[SessionRecord], Any]
    """Returns the data."""
    text: Callable[[Any, int], str]
    """Returns the data as text for a terminal of so many columns."""
    draw: Callable[[Any], Drawing]
    plain: Callable[[Any], dict[str, Any]] = as_json
    blocks: Sequence[Block] | None = None
    """The blocks of a stored view."""

    def has_picture(self, data: Any) -> bool:
        """Whether there is more to draw than the text of the view."""
        return self.blocks is None or data.picture is not None

    def is_empty(self, data: Any) -> bool:
        """Whether the view only says that there is nothing to show."""
        if self.blocks is None:
            return self.draw(data).empty
        return bool(data.is_empty)


COMMON: Mapping[str, SessionView] = {
    "tree": SessionView(tree.HEADING, tree.fold, tree.text, tree.draw),
    "evolution": SessionView(evolution.HEADING, evolution.fold, evolution.text, evolution.draw),
    "convergence": SessionView(
        convergence.HEADING, convergence.fold, convergence.text, convergence.draw, convergence.plain
    ),
    "reads": SessionView(reads.HEADING, reads.fold, reads.text, reads.draw, reads.plain),
}
"""By the names that `--view` takes, those of `COMMON_VIEWS`."""


def views_of(record: SessionRecord) -> dict[str, SessionView]:
    """Return all views of a session, by name."""
    return {**COMMON, **folded_views(record), **{view.name: _stored(view) for view in record.presentation.views}}


def folded_views(record: SessionRecord) -> dict[str, SessionView]:
    """Return the folded sections of a report, by name. A session without a report has an empty one."""
    if record.report is None:
        none = Paragraph(text="The session has no report yet, and so no figures.")
        return {"figures": _stored(View(name="figures", heading="All figures", blocks=(none,), is_empty=True))}
    sections = folded_sections(record.report, record.presentation)
    return {s.name: _stored(View(name=s.name, heading=s.heading, blocks=s.blocks)) for s in sections}


def _stored(view: View) -> SessionView:
    return SessionView(
        view.heading,
        lambda record: view,
        stored_text,
        charts.draw,
        lambda data: dict(data.model_dump(mode="json")),
        view.blocks,
    )


def view_of(name: str, record: SessionRecord) -> SessionView:
    """Raises `SettingsError`, which lists the views of the session."""
    views = views_of(record)
    if name not in views:
        empty = {view.name for view in record.presentation.views if view.is_empty}
        named = (name for name in views if name not in empty)
        started = record.state.started
        owner = f"a session of {started.protocol}" if started else "a session that never began"
        more = "" if record.state.finished else " The protocol may add others when the session has ended."
        raise SettingsError(
            f"{owner} has no view {name!r:.60}", where="--view", do=f"Its views: {', '.join(named)}.{more}"
        )
    return views[name]


def view_text(name: str, record: SessionRecord, width: int = 100) -> str:
    view = view_of(name, record)
    return view.text(view.fold(record), width)


def view_markdown(name: str, record: SessionRecord) -> str:
    """Return the heading of a view and its blocks; without blocks its text as an indented code block."""
    view = view_of(name, record)
    body = indent(view_text(name, record), "    ") if view.blocks is None else blocks_markdown(view.blocks)
    return f"## {escape_markdown(view.heading)}\n\n{body.rstrip()}\n"


def view_svg(name: str, record: SessionRecord) -> str:
    """Return an SVG document."""
    view = view_of(name, record)
    return view.draw(view.fold(record)).svg()
