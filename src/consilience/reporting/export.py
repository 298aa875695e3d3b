"""A session as a file: JSON, Markdown, events, the files of a report; and JSON Schemas of these."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from consilience.domain.errors import SettingsError
from consilience.domain.events import (
    EVENT,
    SCHEMA_VERSION,
    AnswerReceived,
    AnyEvent,
    CallAwaited,
    CallCompleted,
    CallEvent,
    CommentPosted,
    MessagePublished,
    Noted,
    ReplyRejected,
    SessionFinished,
    SessionStarted,
    Settled,
    StepCompleted,
    TextsEmbedded,
)
from consilience.domain.prompt_parts import PromptText, read_part
from consilience.domain.report import Report
from consilience.reporting.files import PAGE, claim_directory, write_files
from consilience.reporting.markdown import blocks_markdown, markdown
from consilience.reporting.partial_report import partial_json, partial_markdown, replies_without_answer
from consilience.reporting.record import SessionRecord
from consilience.reporting.views import view_markdown, view_svg

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
    """Return the format named by a file's suffix. Raises `SettingsError` for an unknown one."""
    if path.is_dir():
        raise SettingsError(
            "a directory is named where a file is written",
            where=f"--out {path}",
            do=f"Name a file: {path / PAGE}.",
        )
    format = SUFFIXES.get(path.suffix.lower())
    if format is None:
        raise SettingsError(
            f"the suffix of {path.name!r} names no format",
            where="--out",
            do=f"Use one of {', '.join(SUFFIXES)}, or --format {'|'.join(FORMATS)}.",
        )
    return format


def as_json(record: SessionRecord) -> str:
    """Return the report as stored, or the progress of a session without one."""
    finished = record.state.finished
    body = json.loads(record.text(finished.report)) if finished is not None else partial_json(record)
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def as_markdown(record: SessionRecord) -> str:
    """Return the report, or the progress of a session without one, and related sessions."""
    forks = f"## Forks\n\n{blocks_markdown([record.family])}" if record.family else ""
    extra = "\n\n".join(filter(None, (replies_without_answer(record), forks)))
    if record.report is not None:
        return markdown(record.report, record.with_comments, addition=extra)
    return "\n".join(filter(None, (partial_markdown(record), f"{extra}\n" if extra else "")))


def as_events(record: SessionRecord) -> str:
    """Return one JSON object per line: the event as stored, its number `seq`, and the `bodies` of its texts by id.

    A call also has the `parts` of its prompt, and the bodies of its own text parts. The task, the sources and quoted messages
    have lines of their own, so the file grows with what was written and not with what was read. The instructions are the
    template of that name in the first line, rendered.
    """
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in event_rows(record))


def event_rows(record: SessionRecord) -> Iterator[dict[str, object]]:
    for event in record.events:
        row: dict[str, object] = {"seq": event.seq, **event.model_dump(mode="json")}
        ids = list(_texts(event))
        if isinstance(event, CallEvent | CallAwaited):
            parts = list(record.prompt(event.prompt)) if event.prompt else []
            row["parts"] = parts
            ids += [part.id for part in map(read_part, parts) if isinstance(part, PromptText) and part.kind == "t"]
        row["bodies"] = {id: record.text(id) for id in dict.fromkeys(ids)}
        yield row


def texts_said(event: AnyEvent) -> Iterator[str]:
    """Yield the ids of what is said in an event: the task, replies, answers, messages, comments, texts of notes."""
    match event:
        case SessionStarted():
            yield event.task
        case (
            CallCompleted()
            | ReplyRejected()
            | StepCompleted()
            | AnswerReceived()
            | MessagePublished()
            | CommentPosted()
        ):
            yield event.text
        case Noted():
            yield from event.texts


def _texts(event: AnyEvent) -> Iterator[str]:
    yield from texts_said(event)
    match event:
        case SessionStarted():
            yield from (source.text for source in event.sources)
            yield from event.templates.values()
        case CallAwaited():
            yield from filter(None, (event.form, *event.quoted))
        case Settled():
            yield event.body
        case TextsEmbedded():
            yield from event.texts
            if event.vectors:
                yield event.vectors
        case SessionFinished():
            yield event.report
            yield from filter(None, (event.presentation, event.forecasts))


def as_html(record: SessionRecord) -> str:
    from consilience.reporting.html import page

    return page(record)


REPORT_FILES: Mapping[str, str] = {
    "mca_report.json": "mca_report",
    "final_state.json": "final_state",
    "document.md": "document",
}
"""Further files of a report directory, with the report's method that returns their content: text, or data for JSON. Empty
content is not written."""


def report_files(report: Report, *, record: SessionRecord | None = None, stored: bool = True) -> dict[str, str]:
    """Return file contents by name. With the `record` of the session the page has its transcript and views."""
    from consilience.reporting.html import page, report_page
    from consilience.reporting.summary import summary_page

    files = {
        "report.json": report.model_dump_json(indent=2) + "\n",
        "report.md": markdown(
            report,
            record.presentation if record is not None else None,
            stored=stored,
            addition=replies_without_answer(record) if record is not None else "",
        ),
        PAGE: page(record) if record is not None else report_page(report),
        "summary.html": summary_page(report, record),
    }
    for name, method in {**REPORT_FILES, **report.exports}.items():
        export = getattr(report, method, None)
        if export is not None and (content := export()):
            files[name] = (
                content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            )
    return files


def report_data(report: Report, format: str) -> object:
    """Return the report as data for JSON, in its own form or in another."""
    if format == "json":
        return report.model_dump(mode="json")
    return getattr(report, report.exports[report.formats[format]])()


def save_report(report: Report, directory: Path) -> list[Path]:
    """Write the files of a report; return their paths. Raises `SettingsError`."""
    claim_directory(directory)
    return write_files(directory, report_files(report), session=report.session)


def as_svg(record: SessionRecord, view: str = "tree") -> str:
    return view_svg(view, record)


FORMATS: Mapping[str, Callable[[SessionRecord], str]] = {
    "json": as_json,
    "markdown": as_markdown,
    "html": as_html,
    "svg": as_svg,
    "events": as_events,
}

VIEW_FORMATS: Mapping[str, Callable[[str, SessionRecord], str]] = {"svg": view_svg, "markdown": view_markdown}
"""Formats of a single view."""


Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

REPORT, EVENTS = "report", "events"
"""Names of the schemas that every protocol shares."""


def report_schema(report: type[Report] = Report) -> Schema:
    """Return the schema of a protocol's report; for `Report`, of the common header. Further fields are allowed."""
    return {"$schema": DIALECT, **_open(report.model_json_schema(mode="serialization"))}


def events_schema() -> Schema:
    """Return the schema of one line of `export --format events`: an event as stored, with the fields that the export adds."""
    schema = EVENT.json_schema(mode="serialization")
    mapping: dict[str, str] = schema["discriminator"]["mapping"]
    for reference in mapping.values():
        event = schema["$defs"][reference.rpartition("/")[2]]
        event["properties"] |= _added(prompt="prompt" in event["properties"])
        event["required"] = ["type", "seq", "bodies", *(name for name in event.get("required", []) if name != "type")]
    return {
        "$schema": DIALECT,
        "title": "Event",
        "description": f"One line of an export of events, schema version {SCHEMA_VERSION}.",
        **_open(schema),
    }


def _open(node: Any, *, names: bool = False) -> Any:
    """Return a schema that allows unknown fields, without titles that repeat a name. `names`: the node maps names to schemas."""
    if isinstance(node, list):
        return [_open(item) for item in node]
    if not isinstance(node, dict):
        return node
    noise = set() if names else {"title"} if "enum" not in node and "properties" not in node else set()
    if not names and node.get("additionalProperties") is False:
        noise.add("additionalProperties")
    return {
        name: _open(value, names=not names and name in ("properties", "$defs"))
        for name, value in node.items()
        if name not in noise
    }


def _added(*, prompt: bool) -> Schema:
    fields: Schema = {
        "seq": {"type": "integer", "minimum": 1, "description": "Order of commit, from 1."},
        "bodies": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "The texts this event refers to, by id.",
        },
    }
    if prompt:
        fields["parts"] = {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]:"},
            "description": "The prompt: i:TEXT instructions, k:TEXT task, s:ID document, s:ID:FIRST-LAST lines of it, "
            "q:LABEL:MESSAGE quotation, t:TEXT words.",
        }
    return fields
