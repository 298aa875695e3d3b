"""A session as one HTML file. It loads nothing and runs nothing; texts of agents are shown as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from consilience.domain.agents import voices
from consilience.domain.events import CallCompleted, CallFailed, Ended, MessagePublished, ReplyRejected, SessionStarted
from consilience.domain.presenting import present
from consilience.domain.report import Report
from consilience.domain.sections import Block, Bullets, Details, Item, Paragraph, QuoteBlock, Refs, Table
from consilience.reporting.formatting import (
    count,
    describe_output_tokens,
    duration,
    escape_xml,
    money,
    one_line,
    reply_text,
    strip_invalid_xml,
)
from consilience.reporting.markdown import blocks_markdown, chapter_heading, footer_markdown
from consilience.reporting.partial_report import partial_document
from consilience.reporting.record import SessionRecord, phase_of
from consilience.reporting.report_sections import MarkdownBlock, ReportDocument, describe_stop, report_document
from consilience.reporting.session_state import call_seconds
from consilience.reporting.views import folded_views, views_of

if TYPE_CHECKING:
    from jinja2 import Template
    from markdown_it import MarkdownIt

MAX_TITLE_CHARS = 160
MAX_SETTING_CHARS = 400
MAX_ERROR_CHARS = 300
MAX_LINKS = 8
"""Links of one line to calls and messages; a line on more of them says how many."""
_LINK_MARK = re.compile("\ue000(\\d+)\ue001")
"""Stands for the links of a line until the line is HTML. The characters are for private use, and no markup."""
VIEW_COLUMNS = 92
"""Columns of a view as text, which fit between the margins."""
_TABLE = '<div class="table" tabindex="0" role="group" aria-label="A table that may be wider than the page">'
"""Scrolls by itself, so that no word or number is broken on a narrow page."""


@dataclass(frozen=True)
class Link:
    """A reference to a place on the page."""

    words: str
    anchor: str = ""
    """"" for what has no place on the page."""


@dataclass(frozen=True)
class TranscriptEntry:
    """One attempt of a call, or a message."""

    anchor: str
    who: str
    what: str
    """Its kind, and what is special about it."""
    figures: str
    text: str = ""
    """Its text; of a typed reply the free text."""
    whole: str = ""
    """A typed reply as received."""
    problem: str = ""
    read: Sequence[Link] = ()
    """What its prompt quoted, under the labels used there."""
    reply_to: Link | None = None


_PARTS_OF_A_SESSION = ("facts", "views", "documents", "phases", "calls", "family")
"""Parts of the page that a report alone does not have."""


def page(record: SessionRecord) -> str:
    """Return the page. Its size is linear in the texts and in the number of quotations."""
    started, report = record.state.started, record.report
    document = partial_document(record) if report is None else report_document(report, record.presentation)
    return _template().render(
        title=one_line(record.text(started.task), MAX_TITLE_CHARS) if started else f"Session {record.session}",
        session=record.session,
        style=Markup(_read("page.css")),
        facts=list(_facts(record)),
        finished=report is not None,
        report=Markup(document_html(document, anchors=anchors_of(record))),
        views=_views(record) if started else [],
        task=record.text(started.task) if started else "",
        settings="\n".join(_settings(started)) if started else "",
        documents=_documents(record),
        calls=count(len(record.calls), "call"),
        phases=_phases(record),
        family=Markup(html_of(record.family, down=0)) if record.family else "",
        footer=f"Rendered from the journal of session {record.session} without a model call: "
        f"consilience show {record.session}",
    )


def report_page(report: Report, *, stored: bool = True) -> str:
    """Return a page for a report without its session."""
    return _template().render(
        dict.fromkeys(_PARTS_OF_A_SESSION, ()),
        title=one_line(report.task, MAX_TITLE_CHARS),
        session=report.session,
        style=Markup(_read("page.css")),
        finished=True,
        report=Markup(document_html(report_document(report, present(report), stored=stored), alone=True)),
        task=report.task,
        settings="\n".join(_named_settings(report.settings)),
        footer=f"Rendered from the report of session {report.session}.",
    )


def _views(record: SessionRecord) -> list[dict[str, str]]:
    """Return name, heading, picture and text of every view that the report does not contain."""
    folded = folded_views(record)
    blocks, links = {view.name: view.blocks for view in record.presentation.views}, LineLinks(anchors_of(record))
    rendered = []
    for name, view in views_of(record).items():
        if name not in folded:
            data = view.fold(record)
            if name in blocks:
                words = Markup("".join(_block_html(block, 1, links) for block in blocks[name]))
            else:
                words = Markup("<pre>{}</pre>").format(strip_invalid_xml(view.text(data, VIEW_COLUMNS)))
            picture = Markup(view.draw(data).svg())
            rendered.append({"name": name, "heading": view.heading, "picture": picture, "words": words})
    return rendered


def fragment(report: Report) -> str:
    """Return a report as part of another page, such as a notebook, in the style of that page."""
    return f'<div class="consilience">\n{document_html(report_document(report, present(report)), heading=True, down=1)}</div>\n'


def html_of(text: str, *, down: int = 1) -> str:
    """Return Markdown as HTML with headings `down` levels lower.

    Line breaks are kept: the lines of a checklist or an address must not run together. Tags are text, links and images stay as
    written, so nothing that an agent wrote is loaded or can be followed.
    """
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

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True, finalize=_without_invalid_characters
    )
    return environment.from_string(_read("page.html.j2"))


def _without_invalid_characters(value: object) -> object:
    return strip_invalid_xml(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _read(name: str) -> str:
    return (files("consilience.reporting") / "page" / name).read_text(encoding="utf-8")


def document_html(
    document: ReportDocument,
    *,
    heading: bool = False,
    down: int = 0,
    anchors: Mapping[str, str] | None = None,
    alone: bool = False,
) -> str:
    """Return a document with folded sections that open on demand. Headings are `down` levels lower. `anchors`: places on the page
    by id of a message or key of a call, to which lines that rest on them are linked; `alone`: the page has no transcript, and lines
    are linked to paragraphs of the document that show a message."""
    links = LineLinks(anchors or {}, _own_anchors(document) if alone else {})
    title = f"# {document.title}\n\n" if heading and document.title is not None else ""
    parts = [html_of(f"{title}**{document.status}**", down=down)]
    for chapter in document.chapters:
        parts.append(html_of(chapter_heading(chapter), down=down))
        parts += [_block_html(block, down, links) for block in chapter.blocks]
    parts.append(html_of(footer_markdown(document), down=down))
    parts += [_block_html(Details(summary=s.heading, blocks=s.blocks), down, links) for s in document.folded]
    return "".join(parts)


class LineLinks:
    """Marks the lines of blocks, and replaces the marks by links once the blocks are rendered."""

    def __init__(self, anchors: Mapping[str, str], own_anchors: Mapping[str, str] | None = None) -> None:
        """`anchors`: places on the page, by id; `own_anchors`: those of paragraphs that show a message."""
        self._own = own_anchors or {}
        self._anchors = {**self._own, **anchors}
        self._lines: list[str] = []

    def marked(self, block: Block | MarkdownBlock) -> Block | MarkdownBlock:
        """Return a block with a mark at the end of each line that rests on calls or messages of the page, and before a paragraph to
        which these link."""
        match block:
            case Paragraph() if block.shows and block.shows in self._own:
                name = "lead" if block.lead else "text"
                return block.model_copy(update={name: self._place(self._own[block.shows]) + getattr(block, name)})
            case Paragraph():
                return block.model_copy(update={"text": block.text + self._mark(block.refs)})
            case QuoteBlock():
                name = "by" if block.by else "text"
                return block.model_copy(update={name: getattr(block, name) + self._mark(block.refs)})
            case Bullets():
                return block.model_copy(update={"items": tuple(map(self._item, block.items))})
            case Table() if block.refs:
                rows = zip(block.rows, block.refs, strict=True)
                return block.model_copy(update={"rows": tuple(self._row(row, refs) for row, refs in rows)})
        return block

    def linked(self, html: str) -> str:
        """Return HTML with links for marks. A mark of an agent's own making is dropped or links to a line's messages."""

        def links(match: re.Match[str]) -> str:
            n = int(match[1][:9])
            return self._lines[n] if n < len(self._lines) else ""

        return _LINK_MARK.sub(links, html)

    def _item(self, item: Item) -> Item:
        name = "note" if item.note or item.by else "text"
        return item.model_copy(update={name: getattr(item, name) + self._mark(item.refs)})

    def _row(self, row: Sequence[str], refs: Refs) -> tuple[str, ...]:
        return (*row[:-1], row[-1] + self._mark(refs))

    def _mark(self, refs: Refs) -> str:
        linked_refs = [ref for ref in dict.fromkeys(refs) if ref in self._anchors]
        if not linked_refs:
            return ""
        links = [
            f'<a href="#{self._anchors[ref]}" title="{escape_xml(ref)}" aria-label="{escape_xml(ref)}">↗</a>'
            for ref in linked_refs[:MAX_LINKS]
        ]
        rest_note = f" +{len(linked_refs) - MAX_LINKS}" if len(linked_refs) > MAX_LINKS else ""
        return self._replaced_by(f' <span class="refs">{"".join(links)}{rest_note}</span>')

    def _place(self, anchor: str) -> str:
        return self._replaced_by(f'<span id="{anchor}"></span>')

    def _replaced_by(self, html: str) -> str:
        self._lines.append(html)
        return f"\ue000{len(self._lines) - 1}\ue001"


def _own_anchors(document: ReportDocument) -> dict[str, str]:
    parts = (*(chapter.blocks for chapter in document.chapters), *(section.blocks for section in document.folded))
    blocks = (block for part in parts for block in part)
    shown_refs = (block.shows for block in blocks if isinstance(block, Paragraph) and block.shows)
    return {id: f"said-{n}" for n, id in enumerate(shown_refs, 1)}


def _block_html(block: Block | MarkdownBlock, down: int, links: LineLinks) -> str:
    if isinstance(block, Details):
        inner = "".join(_block_html(inner, down, links) for inner in block.blocks)
        return f"<details><summary>{escape_xml(one_line(block.summary))}</summary>\n{inner}</details>\n"
    return links.linked(html_of(blocks_markdown([links.marked(block)]), down=down))


def _facts(record: SessionRecord) -> Iterable[tuple[str, str]]:
    state, report = record.state, record.report
    yield (
        "State",
        f"{describe_stop(report, record.presentation)} ({report.stop_reason.value})" if report else record.status,
    )
    if state.started:
        yield "Protocol", state.started.protocol
        yield "Agents", str(len(voices(state.agents)))
        if service := [agent.id for agent in state.agents if not agent.voice]:
            yield "Service seats", ", ".join(service)
        yield "Models", ", ".join(dict.fromkeys(agent.model for agent in state.agents))
    if record.created is not None:
        yield "Begun", datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "Calls", f"{state.made:,}"
    yield "Tokens", f"{state.tokens_in:,} read, {describe_output_tokens(state.tokens_out, state.tokens_thought)}"
    yield "Money", money(state.cost)
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


def _documents(record: SessionRecord) -> list[dict[str, str]]:
    sources = record.state.started.sources if record.state.started else ()
    return [
        {"anchor": f"document-{n}", "heading": f"{source.id} {source.name}".rstrip(), "text": record.text(source.text)}
        for n, source in enumerate(sources, 1)
    ]


def anchors_of(record: SessionRecord) -> dict[str, str]:
    """Return the places on the page: of calls by key (the answered attempt, else the last), of messages and documents by id."""
    numbered = [(call, f"call-{n}") for n, call in enumerate(record.calls, 1)]
    anchors = {call.key: anchor for call, anchor in numbered}
    anchors |= {call.key: anchor for call, anchor in numbered if isinstance(call, CallCompleted)}
    sources = record.state.started.sources if record.state.started else ()
    anchors |= {source.id: f"document-{n}" for n, source in enumerate(sources, 1)}
    return anchors | {event.id: f"message-{n}" for n, event in enumerate(_messages(record), 1)}


def _messages(record: SessionRecord) -> list[MessagePublished]:
    return [event for event in record.events if isinstance(event, MessagePublished)]


def _phases(record: SessionRecord) -> list[tuple[str, list[TranscriptEntry]]]:
    """Return calls in program order by phase, phases in order of appearance, then messages such as objections."""
    anchors_by_id = anchors_of(record)
    phases: dict[str, list[TranscriptEntry]] = {}
    for n, call in enumerate(record.calls, 1):
        phases.setdefault(phase_of(call), []).append(_entry(call, f"call-{n}", anchors_by_id, record))
    for event in _messages(record):
        phase = f"{event.phase[0]} {event.phase[1]}" if event.phase else "published"
        phases.setdefault(phase, []).append(
            TranscriptEntry(
                anchor=anchors_by_id[event.id],
                who=record.names.get(event.sender, event.sender),
                what=event.kind,
                figures=event.id,
                text=record.text(event.text),
                reply_to=_link("", event.reply_to, anchors_by_id) if event.reply_to else None,
            )
        )
    return [(name.replace("_", " "), entries) for name, entries in phases.items()]


def _entry(call: Ended, anchor: str, anchors_by_id: dict[str, str], record: SessionRecord) -> TranscriptEntry:
    reading = record.readings.get(call.key)
    links = [_link(quoted.label, quoted.message, anchors_by_id) for quoted in reading.quoted] if reading else []
    links += [_link("document", id, anchors_by_id) for id in reading.documents] if reading else []
    marks = [
        "" if call.kind == "reply" else call.kind,
        "" if call.attempt == 1 else f"attempt {call.attempt}",
        "inherited" if call.inherited else "",
        "from a recorded reply" if isinstance(call, CallCompleted) and call.cached else "",
        "paid from the reserve" if call.reserve else "",
    ]
    free_text = whole = problem = ""
    match call:
        case CallCompleted():
            text = record.text(call.text)
            free_text = reply_text(text)
            whole = text if reply_text(text) != text else ""
            problem = "cut at the token limit" if call.cut else ""
        case ReplyRejected():
            whole = record.text(call.text)
            problem = f"invalid reply: {one_line(call.error, MAX_ERROR_CHARS)}"
        case CallFailed():
            problem = f"no reply, {call.failure.value}: {one_line(call.detail, MAX_ERROR_CHARS)}".rstrip(": ")
    return TranscriptEntry(
        anchor=anchor,
        who=record.names.get(call.agent, call.agent),
        what=", ".join(filter(None, marks)),
        figures=" · ".join(_figures(call)),
        text=free_text,
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


def _link(label: str, message: str, anchors_by_id: dict[str, str]) -> Link:
    """Return a link to a message, named by the label that the reader's prompt used and by its id."""
    return Link(f"{label}: {message}" if label else message, anchors_by_id.get(message, ""))
