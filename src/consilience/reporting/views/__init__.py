"""Views of a session: those that every session has, and those that its protocol adds."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from consilience.domain.errors import SettingsError
from consilience.domain.sections import Paragraph, View
from consilience.reporting import terminal
from consilience.reporting.formatting import escape_markdown
from consilience.reporting.markdown import blocks_markdown
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import folded_sections
from consilience.reporting.views import charts, convergence, evolution, reads, tree

COMMON: Mapping[str, Callable[[SessionRecord], View]] = {
    "tree": tree.view,
    "evolution": evolution.view,
    "convergence": convergence.view,
    "reads": reads.view,
}
"""By the names that `--view` takes, those of `COMMON_VIEWS`."""
PER_CALL: Mapping[str, str] = {"evolution": evolution.HEADING, "reads": reads.HEADING}
"""Headings of those that have a place for each call, by name."""


def views_of(record: SessionRecord, *, without: Container[str] = ()) -> dict[str, View]:
    """Return all views of a session, by name, `without` some of the common ones."""
    return {name: view(record) for name, view in COMMON.items() if name not in without} | _own_views(record)


def _own_views(record: SessionRecord) -> dict[str, View]:
    return folded_views(record) | {view.name: view for view in record.presentation.views}


def folded_views(record: SessionRecord) -> dict[str, View]:
    """Return the folded sections of a report, by name. A session without a report has an empty one."""
    if record.report is None:
        none = Paragraph(text="The session has no report yet, and so no figures.")
        return {"figures": View(name="figures", heading="All figures", blocks=(none,), is_empty=True)}
    sections = folded_sections(record.report, record.presentation)
    return {s.name: View(name=s.name, heading=s.heading, blocks=s.blocks) for s in sections}


def view_of(name: str, record: SessionRecord) -> View:
    """Raises `SettingsError`, which lists the views of the session."""
    if name in COMMON:
        return COMMON[name](record)
    views = _own_views(record)
    if name not in views:
        empty = {view.name for view in record.presentation.views if view.is_empty}
        named = (name for name in (*COMMON, *views) if name not in empty)
        started = record.state.started
        owner = f"a session of {started.protocol}" if started else "a session that never began"
        more = "" if record.state.finished else " The protocol may add others when the session has ended."
        raise SettingsError(
            f"{owner} has no view {name!r:.60}", field="view", do=f"Its views: {', '.join(named)}.{more}"
        )
    return views[name]


def view_text(name: str, record: SessionRecord, width: int = 100) -> str:
    return terminal.view_text(view_of(name, record), width)


def view_markdown(name: str, record: SessionRecord) -> str:
    """Return the heading of a view and its blocks."""
    view = view_of(name, record)
    return f"## {escape_markdown(view.heading)}\n\n{blocks_markdown(view.blocks)}\n"


def view_svg(name: str, record: SessionRecord) -> str:
    """Return an SVG document."""
    return charts.draw(view_of(name, record)).svg()
