"""A session as a file: JSON, Markdown, events. HTML and SVG have rooms of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from consilience.domain.errors import SettingsError
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    CallAwaited,
    CallCompleted,
    CallEvent,
    MessagePublished,
    ReplyRejected,
    SessionFinished,
    SessionStarted,
    StepCompleted,
    TextsEmbedded,
)
from consilience.reporting.frontmatter import front_matter
from consilience.reporting.markdown import markdown
from consilience.reporting.mermaid import reads_diagram, tree_diagram
from consilience.reporting.record import Record
from consilience.reporting.unfinished import unfinished, unfinished_json
from consilience.reporting.views import VIEWS, reads, tree, view_svg

SUFFIXES: Mapping[str, str] = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".svg": "svg",
    ".jsonl": "events",
    ".ndjson": "events",
}


def format_of(path: Path) -> str:
    """What a file's name says it is to be. Raises `SettingsError` where it says nothing."""
    found = SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise SettingsError(
            f"the name {path.name!r} does not say what to write",
            where="--out",
            do=f"End it in one of {', '.join(SUFFIXES)}, or say it: --format {'|'.join(FORMATS)}.",
        )
    return found


def as_json(record: Record) -> str:
    """The report as it is stored; how far it got for a session without one."""
    finished = record.course.finished
    if finished is not None:
        body = json.loads(record.text(finished.report))
    else:
        body = unfinished_json(
            record.session, record.course, record.text, flights=list(record.flights), holder=record.holder
        )
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def as_markdown(record: Record) -> str:
    """Front matter, the report, diagrams of who took part and who read whom, the family."""
    more = "\n\n".join(filter(None, (*_diagrams(record), record.family)))
    if record.report is not None:
        return front_matter(record) + "\n" + markdown(record.report, more=more)
    body = unfinished(record.session, record.course, record.text, flights=list(record.flights), holder=record.holder)
    return "\n".join(filter(None, (front_matter(record), body, f"{more}\n" if more else "")))


def _diagrams(record: Record) -> Iterator[str]:
    sections = {
        "tree": tree_diagram(tree.fold(record)),
        "reads": reads_diagram(reads.fold(record), record.names),
    }
    for name, diagram in sections.items():
        if diagram:
            yield f"## {VIEWS[name].heading}\n\n{diagram}"


def as_events(record: Record) -> str:
    """One JSON object a line: the event as it is stored, its number `seq`, and the `bodies` of the texts it refers to, by id.

    A call has the `parts` of its prompt besides, with the words of its own among these. The task, the documents and the
    messages it was shown stand in lines of their own, so that the file grows with what was said and not with what was read; the
    instructions are the template of that name in the first line, rendered.
    """
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in event_rows(record))


def event_rows(record: Record) -> Iterator[dict[str, object]]:
    for event in record.events:
        row: dict[str, object] = {"seq": event.seq, **event.model_dump(mode="json")}
        ids = list(_texts(event))
        if isinstance(event, CallEvent | CallAwaited):
            parts = list(record.prompt(event.prompt)) if event.prompt else []
            row["parts"] = parts
            ids += [part[2:] for part in parts if part.startswith("t:")]
        row["bodies"] = {id: record.text(id) for id in dict.fromkeys(ids)}
        yield row


def _texts(event: AnyEvent) -> Iterator[str]:
    match event:
        case SessionStarted():
            yield event.task
            yield from (source.text for source in event.sources)
            yield from event.templates.values()
        case CallCompleted() | ReplyRejected() | StepCompleted() | AnswerReceived() | MessagePublished():
            yield event.text
        case CallAwaited() if event.form:
            yield event.form
        case TextsEmbedded():
            yield from event.texts
            if event.vectors:
                yield event.vectors
        case SessionFinished():
            yield event.report


def as_html(record: Record) -> str:
    from consilience.reporting.html import page

    return page(record)


def as_svg(record: Record, view: str = "tree") -> str:
    return view_svg(view, record)


FORMATS: Mapping[str, Callable[[Record], str]] = {
    "json": as_json,
    "markdown": as_markdown,
    "html": as_html,
    "svg": as_svg,
    "events": as_events,
}
