"""A session as one HTML file. It loads nothing and runs nothing; texts of agents are shown as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from consilience.domain.agents import Agent, voices
from consilience.domain.events import SessionStarted
from consilience.domain.presenting import present
from consilience.domain.report import Report, labels_of
from consilience.domain.sections import Block, Bullets, Details, Item, Paragraph, QuoteBlock, Refs, Table
from consilience.reporting.formatting import (
    count,
    demote_markdown,
    describe_output_tokens,
    duration,
    escape_xml,
    money,
    one_line,
    seat_labels,
    strip_invalid_xml,
)
from consilience.reporting.markdown import blocks_markdown, chapter_heading
from consilience.reporting.partial_report import partial_document
from consilience.reporting.record import SessionRecord
from consilience.reporting.report_sections import Chapter, MarkdownBlock, ReportDocument, describe_stop, report_document
from consilience.reporting.transcript import PagePlace, place_words, places_of, transcript
from consilience.reporting.views import folded_views, views_of
from consilience.reporting.views.charts import draw

if TYPE_CHECKING:
    from jinja2 import Template
    from markdown_it import MarkdownIt

MAX_TITLE_CHARS = 160
MAX_SETTING_CHARS = 400
MAX_LINKS = 8
"""Links of one line to calls and messages; a line on more of them says how many."""
_LINK_MARK = re.compile("\ue000(\\d+)\ue001")
"""Stands for the links of a line until the line is HTML. The characters are for private use, and no markup."""
_REFERENCES = re.compile(r"<[^>]*>|\[S\d[^\[\]<>]{0,80}\]")
"""A tag, or references to documents as agents write them: `[S3:12]`, `[S3:12-14, S4]`."""
_REFERENCE = re.compile(r"S\d+(?::[\w:-]+)?")
_TABLE = '<div class="table" tabindex="0" role="group" aria-label="A table that may be wider than the page">'
"""Scrolls by itself, so that no word or number is broken on a narrow page."""


HEADING_TASK_CHARS = 600
"""A longer task stands below the heading of the page, in a box of its own."""
_ALONE: Mapping[str, Sequence[object]] = dict.fromkeys(("views", "documents", "phases", "family"), ())
"""Parts of the page that a report alone does not have."""


def page(record: SessionRecord) -> str:
    """Return the page. Its size is linear in the texts and in the number of quotations."""
    started, report = record.state.started, record.report
    document = partial_document(record) if report is None else report_document(report, record.with_comments)
    places = places_of(record)
    names = {source.id: source.name for source in started.sources} if started else {}
    links = LineLinks(places, names)
    body = document_html(document, links)
    views = _views(record, links) if started else []
    return _page(
        document,
        task=record.text(started.task) if started else f"Session {record.session}",
        session=record.session,
        about=about_session(record),
        finished=report is not None,
        facts=list(_facts(record)),
        report=Markup(body),
        views=views,
        settings="\n".join(_settings(started)) if started else "",
        documents=_documents(record),
        calls=count(len(record.calls), "call"),
        phases=transcript(record, places, lambda text: links.resolved(text_html(text)), links.cited),
        family=Markup(html_of(record.family, down=0)) if record.family else "",
    )


def report_page(report: Report) -> str:
    """Return a page for a report without its session."""
    shown = present(report)
    document = report_document(report, shown)
    names, labels = seat_labels(report.agents) | shown.names, labels_of(report.protocol, shown)
    places = {ref: PagePlace(f"said-{n}", place_words(ref, names, labels)) for n, ref in enumerate(_shown(document), 1)}
    return _page(
        document,
        **_ALONE,
        task=report.task,
        session=report.session,
        about=describe_run(report.protocol, report.agents),
        finished=True,
        facts=(),
        report=Markup(document_html(document, LineLinks(places, _document_names(report), is_document=True))),
        settings="\n".join(_named_settings(report.settings)),
    )


def _page(document: ReportDocument, *, task: str, **parts: object) -> str:
    chapters = [(_anchor(chapter), chapter.heading) for chapter in document.chapters if chapter.heading]
    written = template("page.html.j2").render(
        parts,
        title=one_line(task, MAX_TITLE_CHARS),
        task=task,
        is_long=len(task) > HEADING_TASK_CHARS,
        chapters=chapters,
        style=Markup(read_file("page.css")),
    )
    return consecutive_headings(written)


def _views(record: SessionRecord, links: LineLinks) -> list[dict[str, str]]:
    """Return name, heading, picture and text of every view that shows something which the report does not."""
    folded = folded_views(record)
    rendered = []
    for name, view in views_of(record).items():
        if name in folded or view.is_empty:
            continue
        words = Markup("".join(_block_html(block, 1, links) for block in view.blocks))
        picture = Markup(draw(view).svg()) if view.picture is not None else ""
        rendered.append({"name": name, "heading": view.heading, "picture": picture, "words": words})
    return rendered


def fragment(report: Report) -> str:
    """Return a report as part of another page, such as a notebook, in the style of that page."""
    document = report_document(report, present(report))
    title = html_of(f"# {document.title}", down=1) if document.title is not None else ""
    return f'<div class="consilience">\n{title}{document_html(document, LineLinks({}, _document_names(report)), down=1)}</div>\n'


def html_of(text: str, *, down: int = 1) -> str:
    """Return Markdown as HTML with headings `down` levels lower.

    Line breaks are kept: the lines of a checklist or an address must not run together. Tags are text, links and images stay as
    written, so nothing that an agent wrote is loaded or can be followed.
    """
    parser = _parser()
    tokens = parser.parse(strip_invalid_xml(text))
    for n, token in enumerate(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + down)}"
        elif token.type == "th_open" and not tokens[n + 1].content:
            token.tag = tokens[n + 2].tag = "td"
    return str(parser.renderer.render(tokens, parser.options, {}))


def text_html(text: str) -> str:
    """Return an agent's Markdown as HTML whose headings are no headings of the page."""
    return re.sub(r"<(/?)h[1-6]>", r"<\1p>", html_of(demote_markdown(text)))


_HEADING_TAG = re.compile(r"<h([1-6])([^>]*)>(.*?)</h\1>", re.DOTALL)


def consecutive_headings(html: str) -> str:
    """Return HTML in which no heading is more than one level below the one above it. Texts of agents contain no tags."""
    open_levels: list[tuple[int, int]] = []

    def placed(match: re.Match[str]) -> str:
        level = int(match[1])
        while open_levels and open_levels[-1][0] >= level:
            open_levels.pop()
        shown = min(level, open_levels[-1][1] + 1) if open_levels else level
        open_levels.append((level, shown))
        return f"<h{shown}{match[2]}>{match[3]}</h{shown}>"

    return _HEADING_TAG.sub(placed, html)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    parser.add_render_rule("table_open", lambda *_: f"{_TABLE}\n<table>\n")
    parser.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    for block in ("fence", "code_block"):
        parser.add_render_rule(
            block, lambda _, tokens, n, *__: f'<pre tabindex="0">{escape(tokens[n].content)}</pre>\n'
        )
    return parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])


@cache
def template(name: str) -> Template:
    """Return a template of this package that escapes what it is given."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True, finalize=_without_invalid_characters
    )
    return environment.from_string(read_file(name))


def _without_invalid_characters(value: object) -> object:
    return strip_invalid_xml(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def read_file(name: str) -> str:
    return (files("consilience.reporting") / "page" / name).read_text(encoding="utf-8")


def document_html(document: ReportDocument, links: LineLinks, *, down: int = 0) -> str:
    """Return a document with folded sections that open on demand, without commands. Headings are `down` levels lower.

    An answer that stands comes before the status of the run.
    """
    status = html_of(f"**{document.status}**", down=down)
    after_answer = document.answer_stands and bool(document.chapters)
    parts = [] if after_answer else [status]
    for n, chapter in enumerate(document.chapters):
        heading = html_of(chapter_heading(chapter), down=down)
        parts.append(heading if down else heading.replace(">", f' id="{_anchor(chapter)}">', 1))
        parts += [_block_html(block, down, links) for block in chapter.blocks]
        parts += [status] if after_answer and not n else []
    parts.append(html_of(f"---\n\n{document.footer}" if document.footer else "", down=down))
    parts += [_block_html(Details(summary=s.heading, blocks=s.blocks), down, links) for s in document.folded]
    return "".join(parts)


def _anchor(chapter: Chapter) -> str:
    return "part-" + "-".join(re.findall(r"\w+", chapter.heading.lower()))


class LineLinks:
    """Marks the lines of blocks, and replaces the marks by links once the blocks are rendered. References to documents get the
    document's name, and a link to its text if the page has it."""

    def __init__(
        self, places: Mapping[str, PagePlace], documents: Mapping[str, str], *, is_document: bool = False
    ) -> None:
        """`places`: by key of a call or id of a message or document; `documents`: their names by id; `is_document`: paragraphs that
        show a message are its place."""
        self._places = places
        self._documents = documents
        self._is_document = is_document
        self._lines: list[str] = []
        self.cited: set[str] = set()
        """Anchors with a link to them. The first link has the id `from-ANCHOR`, for a way back."""

    def marked(self, block: Block | MarkdownBlock) -> Block | MarkdownBlock:
        """Return a block with a mark at the end of each line that rests on calls or messages of the page, and before a paragraph to
        which these link."""
        match block:
            case Paragraph() if self._is_document and block.shows in self._places:
                name = "lead" if block.lead else "text"
                anchor = self._places[block.shows].anchor
                return block.model_copy(update={name: self._anchor(anchor) + getattr(block, name)})
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

        return _LINK_MARK.sub(links, self.resolved(html))

    def resolved(self, html: str) -> str:
        """Return HTML in which references to documents, such as [S3:12], have the name of the document."""

        def named(match: re.Match[str]) -> str:
            id = match[0].partition(":")[0]
            if id not in self._documents:
                return match[0]
            title = escape_xml(one_line(self._documents[id]) or id)
            place = self._places.get(id)
            link = f'<a href="#{place.anchor}"' if place else "<span"
            return f'{link} title="{title}">{match[0]}</{"a" if place else "span"}>'

        return _REFERENCES.sub(lambda m: m[0] if m[0][0] == "<" else _REFERENCE.sub(named, m[0]), html)

    def _item(self, item: Item) -> Item:
        name = "note" if item.note or item.by else "text"
        return item.model_copy(update={name: getattr(item, name) + self._mark(item.refs)})

    def _row(self, row: Sequence[str], refs: Refs) -> tuple[str, ...]:
        return (*row[:-1], row[-1] + self._mark(refs))

    def _mark(self, refs: Refs) -> str:
        places = [self._places[ref] for ref in dict.fromkeys(refs) if ref in self._places]
        if not places:
            return ""
        rest_note = f" +{len(places) - MAX_LINKS}" if len(places) > MAX_LINKS else ""
        return self._replaced_by(
            f' <span class="refs">{"".join(map(self._link, places[:MAX_LINKS]))}{rest_note}</span>'
        )

    def _link(self, place: PagePlace) -> str:
        words = escape_xml(place.words)
        id = "" if place.anchor in self.cited else f' id="from-{place.anchor}"'
        self.cited.add(place.anchor)
        return f'<a{id} href="#{place.anchor}" title="{words}" aria-label="{words}">↗</a>'

    def _anchor(self, anchor: str) -> str:
        return self._replaced_by(f'<span id="{anchor}"></span>')

    def _replaced_by(self, html: str) -> str:
        self._lines.append(html)
        return f"\ue000{len(self._lines) - 1}\ue001"


def _shown(document: ReportDocument) -> list[str]:
    """Return the ids of the messages that the document shows."""
    parts = (*(chapter.blocks for chapter in document.chapters), *(section.blocks for section in document.folded))
    return [block.shows for part in parts for block in part if isinstance(block, Paragraph) and block.shows]


def _block_html(block: Block | MarkdownBlock, down: int, links: LineLinks) -> str:
    if isinstance(block, Details):
        inner = "".join(_block_html(inner, down, links) for inner in block.blocks)
        return f"<details><summary>{escape_xml(one_line(block.summary))}</summary>\n{inner}</details>\n"
    return links.linked(html_of(blocks_markdown([links.marked(block)]), down=down))


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


def _documents(record: SessionRecord) -> list[dict[str, str]]:
    sources = record.state.started.sources if record.state.started else ()
    return [
        {"anchor": f"document-{n}", "heading": f"{source.id} {source.name}".rstrip(), "text": record.text(source.text)}
        for n, source in enumerate(sources, 1)
    ]
