"""Parts of a page as HTML: typed blocks, documents, views, entries of the transcript, from the templates in `page`.

The templates escape what they are given. Only an agent's own Markdown is rendered by a library, and contained: its tags, links and
images stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup, escape

from consilience.domain.messages import PLAIN_MARKS, Quotation
from consilience.domain.sections import Block, Item, Refs, View
from consilience.reporting.changed_words import WordMark, worded
from consilience.reporting.formatting import CODE, demote_markdown, one_line, strip_invalid_xml
from consilience.reporting.markdown import MAX_TABLE_ROWS
from consilience.reporting.report_sections import ReportDocument
from consilience.reporting.transcript import PagePlace, TranscriptEntry
from consilience.reporting.trust import describe_fault
from consilience.reporting.views.charts import draw

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_LINKS = 4
"""Links of one line to calls and messages; a line on more of them says how many."""
_REFERENCES = re.compile(r"\[S\d[^\[\]<>]{0,80}\]")
"""References to documents as agents write them: `[S3:12]`, `[S3:12-14, S4]`."""
_REFERENCE = re.compile(r"(S\d+)(?::(?:[A-Za-z]\w*:)?(\d{1,9})[\w:-]*|:[\w:-]+)?")
"""Document, and first line if one is named."""
MAX_TEXT_BEFORE = 4_000
"""Characters before a reference in which the words are looked for that are quoted from there."""
_TABLE = Markup(
    '<div class="table" tabindex="0" role="group" aria-label="A table that may be wider than the page">\n<table>\n'
)
"""Scrolls by itself, so that no word or number is broken on a narrow page."""


class ListEntry(NamedTuple):
    """An item of a list and those below it."""

    item: Item
    children: list[ListEntry]


class PageParts:
    """Renders the parts of one page, in the order in which they stand on it."""

    def __init__(
        self,
        places: Mapping[str, PagePlace],
        documents: Mapping[str, str],
        quotations: Sequence[Quotation] = (),
        *,
        is_document: bool = False,
    ) -> None:
        """`places`: by key of a call or id of a message or document; `documents`: their names by id; `quotations`: those of the
        report, of which what is wrong is marked where they stand; `is_document`: paragraphs that show a message are its place."""
        self._places = places
        self._documents = documents
        self._is_document = is_document
        self._faults = _faults(quotations)
        self.cited: set[str] = set()
        """Anchors with a link to them. The first link has the id `from-ANCHOR`, for a way back."""

    # --- parts

    def document(self, document: ReportDocument, *, level: int = 2) -> Markup:
        """Return a document with folded sections that open on demand, without title and commands.

        An answer that stands comes before the status of the run. Headings of chapters are of `level`; those of level 2 have an id.
        """
        return self._part("document", document=document, level=level)

    def blocks(self, blocks: Iterable[Block], *, under: int = 2) -> Markup:
        """Return blocks that stand below a heading of level `under`. No heading is more than one level below the one above it."""
        return self._part("blocks", blocks=blocks, outline=Outline(under))

    def view(self, view: View) -> Markup:
        """Return a section with the picture of a view, its text folded below; without a picture the text."""
        picture = Markup(draw(view, self._href).svg(styled=False)) if view.picture is not None else ""
        return self._part("view", view=view, picture=picture)

    def entry(self, entry: TranscriptEntry, *, level: int = 4) -> Markup:
        """Return a call or a message with a heading of `level`. Render the parts that may cite it first: it links back to the first
        line that does."""
        return self._part("entry", entry=entry, level=level)

    def _part(self, name: str, **values: object) -> Markup:
        return Markup(render(f"{name}.html.j2", parts=self, **values))

    # --- texts

    def text(self, text: str) -> Markup:
        """Return plain text on one line, with code spans, and references to documents named."""
        parts = CODE.split(one_line(text))
        return Markup().join(
            Markup("<code>{}</code>").format(self.verbatim(part[1:-1]))
            if n % 2
            else self.verbatim(part, partial("".join, parts[:n]))
            for n, part in enumerate(parts)
        )

    def verbatim(self, text: str, before: Callable[[], str] = str) -> Markup:
        """Return text in which references to documents, such as [S3:12], have the name of the document, and a link to the line if
        there is a page with it. A reference behind a quotation that is not verified says what is wrong with it. `before` returns
        what stands before the text in its paragraph."""
        shown = strip_invalid_xml(text)
        parts, end = list[Markup](), 0
        for match in _REFERENCES.finditer(shown):
            parts += [escape(shown[end : match.start()]), self._references(match[0])]
            if fault := self._fault(match, before):
                parts.append(_FAULT.format(fault))
            end = match.end()
        return Markup().join((*parts, escape(shown[end:])))

    def _references(self, text: str) -> Markup:
        parts, end = list[Markup](), 0
        for match in _REFERENCE.finditer(text):
            parts += [escape(text[end : match.start()]), self._reference(match)]
            end = match.end()
        return Markup().join((*parts, escape(text[end:])))

    def agent_text(self, text: str, outline: Outline | None = None) -> Markup:
        """Return an agent's Markdown. Its headings follow the `outline`; without one they are paragraphs.

        Line breaks are kept: the lines of a checklist or an address must not run together.
        """
        parser = _parser()
        tokens = parser.parse(strip_invalid_xml(demote_markdown(text)))
        for n, token in enumerate(tokens):
            if token.type == "heading_open":
                tag = "p" if outline is None else outline.tag(int(token.tag[1:]) - 2)
                token.tag = tokens[n + 2].tag = tag
            elif token.type in ("th_open", "td_open"):
                if align := str(token.attrs.pop("style", "")).rpartition(":")[2]:  # a policy may forbid styles
                    token.attrs["class"] = align
                if token.type == "th_open" and not tokens[n + 1].content:
                    token.tag = tokens[n + 2].tag = "td"
        return Markup(parser.renderer.render(tokens, parser.options, {"parts": self}))

    def diff(self, text: str) -> Markup:
        """Return a unified diff in which the words are marked that a line removed or added beside its other version."""
        rows = [Markup().join(_marked_words(tag, words, self.verbatim) for tag, words in row) for row in worded(text)]
        return Markup("\n").join(rows)

    # --- what the templates of blocks ask for

    def anchor(self, shows: str) -> str:
        """Return the anchor of a paragraph that shows a message; "" if the message has a place of its own."""
        return self._places[shows].anchor if self._is_document and shows in self._places else ""

    def links(self, refs: Refs) -> tuple[list[tuple[PagePlace, bool]], int]:
        """Return the places on which a line rests, each with whether this is the first link to it, and how many more there are."""
        places = [self._places[ref] for ref in dict.fromkeys(refs) if ref in self._places]
        shown = [(place, place.anchor not in self.cited) for place in places[:MAX_LINKS]]
        self.cited.update(place.anchor for place, _ in shown)
        return shown, len(places) - len(shown)

    def _href(self, refs: Sequence[str]) -> str:
        return next((self._places[ref].href for ref in refs if ref in self._places), "")

    def nested(self, items: Iterable[Item]) -> list[ListEntry]:
        """Return the items of a list by their depth."""
        top: list[ListEntry] = []
        open_lists = [(-1, top)]
        for item in items:
            while open_lists[-1][0] >= item.depth:
                open_lists.pop()
            entry = ListEntry(item, [ListEntry(Item(text=item.below), [])] if item.below else [])
            open_lists[-1][1].append(entry)
            open_lists.append((item.depth, entry.children))
        return top

    def _reference(self, match: re.Match[str]) -> Markup:
        id, line = match[1], match[2]
        if id not in self._documents:
            return escape(match[0])
        title, place = strip_invalid_xml(one_line(self._documents[id]) or id), self._places.get(id)
        if place is None:
            return Markup('<span title="{}">{}</span>').format(title, match[0])
        href = place.line_href(int(line)) if line else place.href
        return Markup('<a href="{}" title="{}">{}</a>').format(href, title, match[0])

    def _fault(self, references: re.Match[str], before: Callable[[], str]) -> str:
        """Return what is wrong with the quotation before references in a text; "" if nothing is, or none is known."""
        places = [(match[1], int(match[2])) for match in _REFERENCE.finditer(references[0]) if match[2]]
        faults = [fault for place in places for fault in self._faults.get(place, ())]
        if not faults:
            return ""
        text_before = before() + references.string[: references.start()]
        quoted = _plain(text_before[-MAX_TEXT_BEFORE:])
        return next((words for form, words in faults if quoted.rstrip(" .,;:*_\"'`").endswith(form)), "")


def _marked_words(tag: WordMark, words: str, shown: Callable[[str], Markup]) -> Markup:
    return Markup(f"<{tag}>{{}}</{tag}>").format(shown(words)) if tag else shown(words)


class Outline:
    """The headings below one of level `under`, none more than one level below the heading above it."""

    def __init__(self, under: int) -> None:
        self._under = under
        self._open: list[tuple[int, int]] = []

    def tag(self, depth: int) -> str:
        """Return the tag of the next heading, which is to stand `depth` levels below `under`."""
        while self._open and self._open[-1][0] >= depth:
            self._open.pop()
        shown = min(depth, self._open[-1][1] + 1 if self._open else 1)
        self._open.append((depth, shown))
        return f"h{min(6, self._under + shown)}"


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    for name, form in _TEXTS.items():
        parser.add_render_rule(name, _rule(form))
    parser.add_render_rule("table_open", lambda *_: _TABLE)
    parser.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    return parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])


_PRE = Markup('<pre tabindex="0">{}</pre>\n')
_TEXTS = {"text": Markup("{}"), "code_inline": Markup("<code>{}</code>"), "fence": _PRE, "code_block": _PRE}


def _rule(form: Markup) -> Callable[..., str]:
    def rendered(_: object, tokens: Sequence[Token], n: int, __: object, env: Mapping[str, PageParts]) -> str:
        def before() -> str:
            return "".join(token.content or (" " if token.type.endswith("break") else "") for token in tokens[:n])

        return form.format(env["parts"].verbatim(tokens[n].content, before))

    return rendered


_FAULT = Markup(' <strong class="fault">{}</strong>')


def _plain(text: str) -> str:
    return " ".join(text.translate(PLAIN_MARKS).casefold().split())


def _faults(quotations: Iterable[Quotation]) -> dict[tuple[str, int], list[tuple[str, str]]]:
    """Return, by document and line, the end of the words that are quoted from there and not verified, and what is wrong with them.

    Words that another agent quoted rightly are not among them.
    """
    verified = {(quotation.words, quotation.source, quotation.line) for quotation in quotations if quotation.verified}
    faults: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for quotation in quotations:
        if not quotation.verified and (quotation.words, quotation.source, quotation.line) not in verified:
            form = _plain(quotation.words).rstrip(" .,;:*_\"'`")[-MAX_TEXT_BEFORE // 2 :]
            faults.setdefault((quotation.source, quotation.line), []).append((form, describe_fault(quotation)))
    return faults


def render(template: str, **values: object) -> str:
    """Return a template of this package, filled with values, which it escapes."""
    return environment().get_template(template).render(values)


@cache
def environment() -> Environment:
    """Return the templates of this package. A server adds its own by `overlay(loader=…)`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("consilience.reporting", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_without_invalid_characters,
    )
    environment.filters["one_line"] = one_line
    environment.globals |= {"TABLE": _TABLE, "MAX_TABLE_ROWS": MAX_TABLE_ROWS}
    return environment


def _without_invalid_characters(value: object) -> object:
    return strip_invalid_xml(value) if isinstance(value, str) and not isinstance(value, Markup) else value
