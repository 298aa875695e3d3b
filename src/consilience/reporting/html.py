"""A session as one HTML file. It loads nothing and runs nothing; texts of agents are shown as text."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from consilience.domain.agents import Agent, voices
from consilience.domain.events import SessionStarted
from consilience.domain.presenting import present
from consilience.domain.report import Report, labels_of
from consilience.domain.sections import Paragraph, View
from consilience.reporting.formatting import (
    count,
    describe_output_tokens,
    duration,
    money,
    one_line,
    seat_labels,
)
from consilience.reporting.page_parts import PageParts, render
from consilience.reporting.partial_report import partial_document
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import MAX_TITLE_CHARS, ReportDocument, describe_stop, report_document
from consilience.reporting.styles import style_sheet
from consilience.reporting.transcript import PagePlace, place_words, places_of, transcript
from consilience.reporting.views import COMMON, folded_views, views_of

MAX_SETTING_CHARS = 400
HEADING_TASK_CHARS = 600
"""A longer task stands below the heading of the page, in a box of its own."""


@dataclass(frozen=True)
class DocumentLines:
    """Lines of a source document on a page."""

    heading: str
    place: PagePlace
    first: int = 1
    """The number of the first of the lines."""
    lines: Sequence[str] = ()


def page(record: SessionRecord) -> str:
    """Return the page. Its size is linear in the texts and in the number of quotations."""
    places = places_of(record)
    phases, views = transcript(record, places), shown_views(record)
    return render(
        "page.html.j2",
        parts=page_parts(record, places),
        style=Markup(style_sheet("page", "charts")),
        calls=count(len(record.calls), "call"),
        phases=phases,
        **session_content(
            record, places, session_document(record), views, {"transcript": "Transcript"} if phases else {}
        ),
    )


def page_parts(record: SessionRecord, places: Mapping[str, PagePlace]) -> PageParts:
    """Return what renders the parts of a session's page."""
    started, report = record.state.started, record.report
    names = {source.id: source.name for source in started.sources} if started else {}
    return PageParts(places, names, report.quotations if report else ())


def session_document(record: SessionRecord, *, with_replies: bool = True) -> ReportDocument:
    """Return the report of a session, or its progress; that has an excerpt of each reply unless a log has the replies."""
    if record.report is None:
        return partial_document(record, with_replies=with_replies)
    return report_document(record.report, record.with_comments)


def shown_views(record: SessionRecord, *, without: Container[str] = ()) -> list[View]:
    """Return the views that a page shows beside the report, which has the folded ones, `without` some of the common ones."""
    if record.state.started is None:
        return []
    folded = folded_views(record)
    views = views_of(record, without=without)
    return [view for name, view in views.items() if name not in folded and not view.is_empty]


def is_natural(view: View, record: SessionRecord) -> bool:
    """Whether a view is the picture of the session's own protocol: one that the protocol adds or, of a tree, that of its agents."""
    return view.name not in COMMON or (view.name == "tree" and any(record.topology.parents.values()))


def session_content(
    record: SessionRecord,
    places: Mapping[str, PagePlace],
    document: ReportDocument,
    views: Sequence[View],
    sections: Mapping[str, str],
) -> dict[str, object]:
    """Return the values of the templates of a session's page. `sections` are headings of further sections, by their anchors."""
    started = record.state.started
    sections = {
        **sections,
        **({"settings": "Figures and settings"} if started else {}),
        **({"family": "Forks"} if record.family else {}),
    }
    return {
        **_content(document, record.text(started.task) if started else f"Session {record.session}", views, sections),
        "session": record.session,
        "about": about_session(record),
        "finished": record.report is not None,
        "facts": list(_facts(record)),
        "settings": "\n".join(_settings(started)) if started else "",
        "documents": list(_documents(record, places)),
        "family": record.family,
    }


def report_page(report: Report) -> str:
    """Return a page for a report without its session."""
    shown = present(report)
    document = report_document(report, shown)
    names, labels = seat_labels(report.agents) | shown.names, labels_of(report.protocol, shown)
    places = {ref: PagePlace(f"said-{n}", place_words(ref, names, labels)) for n, ref in enumerate(_shown(document), 1)}
    return render(
        "page.html.j2",
        parts=PageParts(places, _document_names(report), report.quotations, is_document=True),
        style=Markup(style_sheet("page", "charts")),
        phases=(),
        documents=(),
        family=None,
        session=report.session,
        about=describe_run(report.protocol, report.agents),
        finished=True,
        facts=(),
        settings="\n".join(_named_settings(report.settings)),
        **_content(document, report.task, (), {"settings": "Figures and settings"}),
    )


def _content(
    document: ReportDocument, task: str, views: Sequence[View], sections: Mapping[str, str]
) -> dict[str, object]:
    chapters = {chapter.anchor: chapter.heading for chapter in document.chapters if chapter.heading}
    return {
        "document": document,
        "task": task,
        "title": one_line(task, MAX_TITLE_CHARS),
        "is_long": len(task) > HEADING_TASK_CHARS,
        "views": views,
        "contents": list({**chapters, **{view.name: view.heading for view in views}, **sections}.items()),
    }


def fragment(report: Report) -> str:
    """Return a report as part of another page, such as a notebook, in the style of that page."""
    document = report_document(report, present(report))
    parts = PageParts({}, _document_names(report), report.quotations)
    return render("fragment.html.j2", document=document, parts=parts)


def _shown(document: ReportDocument) -> list[str]:
    """Return the ids of the messages that the document shows."""
    parts = (*(chapter.blocks for chapter in document.chapters), *(section.blocks for section in document.folded))
    return [block.shows for part in parts for block in part if isinstance(block, Paragraph) and block.shows]


def about_session(record: SessionRecord) -> str:
    """Return when, by which protocol, by how many agents and on which models the session ran."""
    started, created = record.state.started, record.created
    when = "" if created is None else f"{datetime.fromtimestamp(created, UTC):%d %B %Y, %H:%M} UTC".lstrip("0")
    if started is None:
        return when
    return " · ".join(filter(None, (when, describe_run(started.protocol, started.agents))))


def _document_names(report: Report) -> dict[str, str]:
    return {document.id: document.name for document in report.documents}


def describe_run(protocol: str, agents: Sequence[Agent]) -> str:
    people = [agent.person or "a person" for agent in agents if agent.is_person]
    models = [agent.model for agent in agents if not agent.is_person]
    return f"{protocol} · {count(len(voices(agents)), 'agent')} · {', '.join(dict.fromkeys([*people, *models]))}"


def _facts(record: SessionRecord) -> Iterable[tuple[str, str]]:
    state, report = record.state, record.report
    yield "State", describe_stop(report, record.presentation) if report else record.status
    if service := [agent.id for agent in state.agents if not agent.voice]:
        yield "Service seats", ", ".join(service)
    yield "Calls", f"{state.made:,}"
    yield "Tokens", f"{state.tokens_in:,} read, {describe_output_tokens(state.tokens_out, state.tokens_thought)}"
    yield "Cost", money(state.cost)
    yield "Time", duration(state.seconds)
    if state.started and state.started.parent:
        yield "Forked from", state.started.parent


def _named_settings(settings: Mapping[str, object]) -> Iterable[str]:
    for name, value in settings.items():
        named = value.get("name", value) if isinstance(value, dict) else value
        yield f"{name}: {one_line(str(named), MAX_SETTING_CHARS)}"


def _settings(started: SessionStarted) -> Iterable[str]:
    yield from _named_settings(started.settings)
    yield f"seed: {started.seed}"
    yield f"quorum: {started.quorum:g}"
    yield from (f"limit on {name}: {value}" for name, value in started.limits if value not in (None, {}))


def _documents(record: SessionRecord, places: Mapping[str, PagePlace]) -> Iterable[DocumentLines]:
    """Yield the documents, with their lines if they are on this page."""
    for source in record.state.started.sources if record.state.started else ():
        place = places[source.id]
        lines = () if place.page else record.text(source.text).splitlines()
        yield DocumentLines(f"{source.id} {source.name}".rstrip(), place, lines=lines)
