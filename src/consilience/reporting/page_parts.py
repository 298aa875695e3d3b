"""Parts of a page as HTML: typed blocks, documents, views, entries of the transcript, from the templates in `page`.

The templates escape what they are given. Only an agent's own Markdown is rendered by a library, and contained: its tags, links and
images stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup, escape

from consilience.domain.sections import Block, Item, Refs, View
from consilience.reporting.formatting import CODE, demote_markdown, one_line, strip_invalid_xml
from consilience.reporting.markdown import MAX_TABLE_ROWS
from consilience.reporting.report_sections import ReportDocument
from consilience.reporting.transcript import PagePlace, TranscriptEntry
from consilience.reporting.views.charts import draw

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it import MarkdownIt

MAX_LINKS = 8
"""Links of one line to calls and messages; a line on more of them says how many."""
_REFERENCES = re.compile(r"\[S\d[^\[\]<>]{0,80}\]")
"""References to documents as agents write them: `[S3:12]`, `[S3:12-14, S4]`."""
_REFERENCE = re.compile(r"S\d+(?::[\w:-]+)?")
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
        self, places: Mapping[str, PagePlace], documents: Mapping[str, str], *, is_document: bool = False
    ) -> None:
        """`places`: by key of a call or id of a message or document; `documents`: their names by id; `is_document`: paragraphs that
        show a message are its place."""
        self._places = places
        self._documents = documents
        self._is_document = is_document
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
        picture = Markup(draw(view).svg(styled=False)) if view.picture is not None else ""
        return self._part("view", view=view, picture=picture)

    def entry(self, entry: TranscriptEntry) -> Markup:
        """Return a call or a message. Render the parts that may cite it first: it links back to the first line that does."""
        return self._part("entry", entry=entry)

    def _part(self, name: str, **values: object) -> Markup:
        return Markup(render(f"{name}.html.j2", parts=self, **values))

    # --- texts

    def text(self, text: str) -> Markup:
        """Return plain text on one line, with code spans, and references to documents named."""
        parts = CODE.split(one_line(text))
        return Markup().join(
            Markup("<code>{}</code>").format(self.verbatim(part[1:-1])) if n % 2 else self.verbatim(part)
            for n, part in enumerate(parts)
        )

    def verbatim(self, text: str) -> Markup:
        """Return text in which references to documents, such as [S3:12], have the name of the document, and a link to its text if
        the page has it."""
        return Markup(
            _REFERENCES.sub(lambda part: _REFERENCE.sub(self._named, part[0]), escape(strip_invalid_xml(text)))
        )

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
            elif token.type == "th_open" and not tokens[n + 1].content:
                token.tag = tokens[n + 2].tag = "td"
        return Markup(parser.renderer.render(tokens, parser.options, {"parts": self}))

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

    def _named(self, match: re.Match[str]) -> str:
        id = match[0].partition(":")[0]
        if id not in self._documents:
            return match[0]
        title, place = one_line(self._documents[id]) or id, self._places.get(id)
        if place is None:
            return Markup('<span title="{}">{}</span>').format(strip_invalid_xml(title), Markup(match[0]))
        return Markup('<a href="#{}" title="{}">{}</a>').format(
            place.anchor, strip_invalid_xml(title), Markup(match[0])
        )


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
    return lambda _, tokens, n, __, env: form.format(env["parts"].verbatim(tokens[n].content))


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
