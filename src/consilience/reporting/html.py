"""A session as one HTML file: nothing is loaded, nothing runs, and whatever agents wrote stands there as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from consilience.domain.agents import voices
from consilience.domain.events import CallCompleted, CallFailed, Ended, MessagePublished, ReplyRejected, SessionStarted
from consilience.domain.report import Report, present
from consilience.domain.sections import Block, Details, Presentation
from consilience.reporting.formatting import (
    count,
    describe_output_tokens,
    duration,
    escape_markdown,
    money,
    one_line,
    reply_text,
)
from consilience.reporting.markdown import MAX_HEADING_CHARS, blocks_markdown, last_line
from consilience.reporting.partial_report import partial_markdown, status_of
from consilience.reporting.record import SessionRecord, phase_of
from consilience.reporting.report_sections import ReportPart, describe_stop, folded_sections, headline, parts_of
from consilience.reporting.session_state import call_seconds
from consilience.reporting.views import folded_views, views_of
from consilience.reporting.views.drawing import escape_xml, strip_invalid_xml

if TYPE_CHECKING:
    from jinja2 import Template
    from markdown_it import MarkdownIt

_LONGEST_SETTING = 400
_WIDTH = 92
"""Columns of a view in words; more would not fit beside the margins."""
_TABLE = '<div class="table" tabindex="0" role="group" aria-label="A table that may be wider than the page">'
"""It scrolls by itself, so that no word or number is broken where there is little room."""


@dataclass(frozen=True)
class Link:
    """`anchor` is empty for what has no place on the page."""

    words: str
    anchor: str = ""


@dataclass(frozen=True)
class Said:
    """One attempt of a call in the transcript. `whole` is a typed reply as it came, where `said` shows only its prose; `read` what
    it had been shown, each under its label there."""

    anchor: str
    who: str
    what: str
    figures: str
    said: Markup | str = ""
    whole: Markup | str = ""
    problem: str = ""
    read: Sequence[Link] = ()
    reply_to: Link | None = None


@dataclass(frozen=True)
class Phase:
    name: str
    calls: Sequence[Said]


@dataclass(frozen=True)
class Document:
    anchor: str
    heading: str
    text: str


@dataclass(frozen=True)
class Picture:
    name: str
    heading: str
    picture: Markup
    words: Markup


def page(record: SessionRecord) -> str:
    """The whole page. Its size is linear in what was said and in what was shown to whom."""
    started = record.state.started
    phases = _phases(record)
    pictures = []
    folded = folded_views(record)  # they stand in the report
    shown = {name: view for name, view in views_of(record).items() if name not in folded}
    for name, view in shown.items() if started else ():
        data = view.fold(record)
        pictures.append(
            Picture(name, view.heading, Markup(view.draw(data).svg()), Markup(escape_xml(view.text(data, _WIDTH))))
        )
    return _template().render(
        title=strip_invalid_xml(one_line(record.text(started.task), 160) if started else f"Session {record.session}"),
        session=record.session,
        style=Markup(_read("page.css")),
        facts=[(name, strip_invalid_xml(value)) for name, value in _facts(record)],
        finished=record.report is not None,
        report=Markup(_report(record)),
        views=pictures,
        task=strip_invalid_xml(record.text(started.task)) if started else "",
        settings=strip_invalid_xml("\n".join(_settings(started))) if started else "",
        documents=_documents(record),
        calls=count(len(record.calls), "call"),
        phases=phases,
        family=Markup(html_of(record.family, down=0)) if record.family else "",
        footer=f"Made from the journal of session {record.session} without a call. "
        f"See it again: consilience show {record.session}",
    )


def report_page(report: Report, *, stored: bool = True) -> str:
    """A page with the report alone, for a report without its session."""
    return _template().render(
        title=strip_invalid_xml(one_line(report.task, 160)),
        session=report.session,
        style=Markup(_read("page.css")),
        facts=[],
        finished=True,
        report=Markup(report_html(report, present(report), down=0, stored=stored)),
        views=[],
        task=strip_invalid_xml(report.task),
        settings=strip_invalid_xml("\n".join(_named_settings(report.settings))),
        documents=[],
        calls="",
        phases=[],
        family="",
        footer=f"Made from the report of session {report.session}.",
    )


def fragment(report: Report) -> str:
    """A report for a page of somebody else's, a notebook: the same words as everywhere, in the page's own style."""
    return f'<div class="consilience">\n{report_html(report, present(report), heading=True)}</div>\n'


def html_of(text: str, *, down: int = 1) -> str:
    """Markdown as HTML with its headings `down` levels lower. A line break stays one: lines of a checklist or an address must
    not run together. Tags in it are text, and links and images stay as written, so
    that nothing an agent wrote is loaded or leads anywhere."""
    parser = _parser()
    tokens = parser.parse(strip_invalid_xml(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + down)}"
    return str(parser.renderer.render(tokens, parser.options, {}))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    parser.add_render_rule("table_open", lambda *_: f"{_TABLE}\n<table>\n")
    parser.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    return parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(_read("page.html.j2"))


def _read(name: str) -> str:
    return (files("consilience.reporting") / "page" / name).read_text(encoding="utf-8")


def _report(record: SessionRecord) -> str:
    report = record.report
    if report is not None:
        return report_html(report, record.presentation, down=0)
    text = partial_markdown(
        record.session, record.state, record.text, flights=list(record.flights), holder=record.holder
    )
    return html_of(text.partition("\n")[2] if text.startswith("# ") else text, down=0)


def report_html(
    report: Report, presentation: Presentation, *, heading: bool = False, down: int = 1, stored: bool = True
) -> str:
    """A report's sections, with details that open on demand."""
    title = f"# {escape_markdown(one_line(report.task, MAX_HEADING_CHARS))}\n\n" if heading else ""
    parts = [html_of(f"{title}**{escape_markdown(headline(report, presentation))}**", down=down)]
    parts += [_part_html(part, down) for part in parts_of(report, presentation)]
    parts.append(html_of(last_line(report, presentation, stored), down=down))
    folded = folded_sections(report, presentation)
    parts += [_block_html(Details(summary=section.heading, blocks=section.blocks), down) for section in folded]
    return "".join(parts)


def _part_html(part: ReportPart, down: int) -> str:
    found = [html_of(f"## {escape_markdown(part.heading)}", down=down)]
    for section in part.sections:
        if section.heading:
            found.append(html_of(f"### {escape_markdown(section.heading)}", down=down))
        found += [_block_html(block, down) for block in section.blocks]
    return "".join(found)


def _block_html(block: Block, down: int) -> str:
    if isinstance(block, Details):
        inner = "".join(_block_html(one, down) for one in block.blocks)
        return f"<details><summary>{escape_xml(one_line(block.summary))}</summary>\n{inner}</details>\n"
    return html_of(blocks_markdown([block]), down=down)


def _facts(record: SessionRecord) -> Iterable[tuple[str, str]]:
    course, report = record.state, record.report
    state = status_of(course, record.holder)
    yield "State", f"{describe_stop(report, record.presentation)} ({report.stop_reason.value})" if report else state
    if course.started:
        yield "Protocol", course.started.protocol
        yield "Agents", str(len(voices(course.agents)))
        if service := [agent.id for agent in course.agents if not agent.voice]:
            yield "Service seats", ", ".join(service)
        yield "Models", ", ".join(dict.fromkeys(agent.model for agent in course.agents))
    if record.created is not None:
        yield "Begun", datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "Calls", f"{course.made:,}"
    yield "Tokens", f"{course.tokens_in:,} read, {describe_output_tokens(course.tokens_out, course.tokens_thought)}"
    yield "Money", money(course.cost)
    yield "Time", duration(course.seconds)
    if course.started and course.started.parent:
        yield "Forked from", course.started.parent


def _named_settings(settings: Mapping[str, object]) -> Iterable[str]:
    for name, value in settings.items():
        named = value.get("name", value) if isinstance(value, dict) else value
        yield f"{name}: {one_line(str(named), _LONGEST_SETTING)}"


def _settings(started: SessionStarted) -> Iterable[str]:
    yield from _named_settings(started.settings)
    yield f"seed: {started.seed}"
    yield f"quorum: {started.quorum:g}"
    yield from (f"limit on {name}: {value}" for name, value in started.limits if value not in (None, {}))


def _documents(record: SessionRecord) -> list[Document]:
    sources = record.state.started.sources if record.state.started else ()
    return [
        Document(
            f"document-{n}",
            strip_invalid_xml(f"{source.id} {source.name}".rstrip()),
            strip_invalid_xml(record.text(source.text)),
        )
        for n, source in enumerate(sources, 1)
    ]


def _phases(record: SessionRecord) -> list[Phase]:
    """Calls in program order under their phases, these as they first came up; objections follow who raised them."""
    anchors = {(call.key, call.attempt): f"call-{n}" for n, call in enumerate(record.calls, 1)}
    homes = {call.key: anchors[call.key, call.attempt] for call in record.calls if isinstance(call, CallCompleted)}
    messages = [event for event in record.events if isinstance(event, MessagePublished)]
    sources = record.state.started.sources if record.state.started else ()
    homes |= {source.id: f"document-{n}" for n, source in enumerate(sources, 1)}
    homes |= {event.id: f"message-{n}" for n, event in enumerate(messages, 1)}
    found: dict[str, list[Said]] = {}
    for call in record.calls:
        found.setdefault(phase_of(call), []).append(_said(call, anchors[call.key, call.attempt], homes, record))
    for event in messages:
        phase = f"{event.phase[0]} {event.phase[1]}" if event.phase else "published"
        found.setdefault(phase, []).append(
            Said(
                anchor=homes[event.id],
                who=_name(event.sender, record),
                what=event.kind,
                figures=event.id,
                said=strip_invalid_xml(record.text(event.text)),
                reply_to=_link("", event.reply_to, homes) if event.reply_to else None,
            )
        )
    return [Phase(name.replace("_", " "), calls) for name, calls in found.items()]


def _said(call: Ended, anchor: str, homes: dict[str, str], record: SessionRecord) -> Said:
    reading = record.readings.get(call.key)
    links = [_link(quoted.label, quoted.message, homes) for quoted in reading.quoted] if reading else []
    links += [_link("document", id, homes) for id in reading.documents] if reading else []
    marks = [
        "" if call.kind == "reply" else call.kind,
        "" if call.attempt == 1 else f"attempt {call.attempt}",
        "inherited" if call.inherited else "",
        "from a recorded reply" if isinstance(call, CallCompleted) and call.cached else "",
        "out of the reserve" if call.reserve else "",
    ]
    said = whole = problem = ""
    match call:
        case CallCompleted():
            text = record.text(call.text)
            said = strip_invalid_xml(reply_text(text))
            whole = strip_invalid_xml(text) if reply_text(text) != text else ""
            problem = "cut at the token limit" if call.cut else ""
        case ReplyRejected():
            whole = strip_invalid_xml(record.text(call.text))
            problem = f"could not be used: {strip_invalid_xml(one_line(call.error, 300))}"
        case CallFailed():
            problem = f"no reply, {call.failure.value}: {strip_invalid_xml(one_line(call.detail, 300))}".rstrip(": ")
    return Said(
        anchor=anchor,
        who=_name(call.agent, record),
        what=strip_invalid_xml(", ".join(filter(None, marks))),
        figures=strip_invalid_xml(" · ".join(_figures(call))),
        said=said,
        whole=whole,
        problem=problem,
        read=links,
    )


def _figures(call: Ended) -> Iterable[str]:
    yield call.key
    if not isinstance(call, CallFailed):
        yield f"{call.tokens_in:,} tokens read, {describe_output_tokens(call.tokens_out, call.tokens_thought)}"
        if call.cost:
            yield money(call.cost)
    seconds = call_seconds(call)
    if seconds is not None:
        yield duration(seconds)


def _link(label: str, message: str, homes: dict[str, str]) -> Link:
    """A message by its id, under the label by which the reader's own words may call it."""
    return Link(strip_invalid_xml(f"{label}: {message}" if label else message), homes.get(message, ""))


def _name(agent: str, record: SessionRecord) -> str:
    return strip_invalid_xml(record.names.get(agent, agent))
