"""Texts in every place of every page: whatever they are, they are no structure, no script and no link that leaves the page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adversaries.nasty import MARKDOWN, TEXTS
from consilience.domain.events import EVENT
from consilience.domain.sections import Bullets, Details, Item, Paragraph, QuoteBlock, Subheading, Table
from consilience.journal.sqlite import SqliteStore
from consilience.reporting.formatting import CODE, one_line, strip_invalid_xml
from consilience.reporting.html import fragment, page, report_page
from consilience.reporting.page_parts import PageParts
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.summary import summary_page

JOURNALS = sorted((Path(__file__).parent.parent / "fixtures" / "journals").glob("*.db"))
KINDS = ("plain", "limited", "killed")
TEXT = st.one_of(MARKDOWN, st.sampled_from([t for t in TEXTS.values() if len(t) < 9_000]), st.text(max_size=40))

PLAIN = """head title style body header main footer ul em code br hr blockquote table thead tbody tr dt dd summary desc
del ins h3 h4 h5 h6"""
ELEMENTS: dict[str, set[str]] = {
    **{tag: set() for tag in PLAIN.split()},
    "li": {"id"},
    "strong": {"class"},
    "th": {"class"},
    "td": {"class"},
    "html": {"lang"},
    "meta": {"charset", "name", "content", "http-equiv"},
    "a": {"class", "href", "id", "title", "aria-label"},
    "nav": {"aria-label"},
    "ol": {"start", "class"},
    "main": {"id", "class"},
    "section": {"id", "class"},
    "article": {"id"},
    "details": {"id"},
    "dl": {"class"},
    "h1": {"class"},
    "h2": {"id"},
    "p": {"class", "id", "title"},
    "pre": {"tabindex"},
    "div": {"class", "tabindex", "role", "aria-label"},
    "span": {"class", "title"},
    "svg": {"xmlns", "class", "role", "aria-labelledby", "width", "height", "viewBox"},
    "rect": {"class", "x", "y", "width", "height", "rx", "fill-opacity"},
    "polyline": {"class", "points"},
    "circle": {"class", "cx", "cy", "r"},
    "text": {"class", "x", "y", "text-anchor"},
}
"""All that a page may consist of. A title of a picture has an id."""
VALUES = {
    "class": r"(cv[-a-z]*|skip|kind|small|facts|consilience|question|long|text|task|table|picture|refs|words|problem|lines"
    r"|fault|left|right|center| )+",
    "href": r"#[\w-]+",
    "id": r"[\w-]+",
    "tabindex": "0",
    "role": "group|img",
    "start": r"\d+",
}
MARKERS = {"style", "script", "meta", "h1", "article", "nav", "main", "header", "footer"}
"""Elements that no text of an agent has, whatever its Markdown."""


class Records(list[SessionRecord]):
    """Sessions, which are too long for a failure to print."""

    def __repr__(self) -> str:
        return f"{len(self)} sessions"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """A finished, a limited and an unfinished session of every protocol."""
    found = Records()
    for kept in JOURNALS:
        copy = tmp_path_factory.mktemp(kept.stem) / kept.name
        shutil.copy(kept, copy)
        store = SqliteStore(copy)
        for session in store.sessions():
            if session.rpartition("-")[2] in KINDS:
                record = read_record(store, session)
                page(record)  # reads its texts and prompts, which the record keeps
                found.append(record)
    return found


def said_everywhere(record: SessionRecord, words: Callable[[str], str]) -> SessionRecord:
    """The session with other words in each text: the task, documents and their names, roles, replies, every field of the report and
    of what its protocol adds to it."""

    def changed(value: Any, *, names: bool = False) -> Any:
        match value:
            case dict():
                named = {"name", "role", "model", "person", "by"} if names else set()
                return {
                    k: words(v) if k in named and isinstance(v, str) else changed(v, names=names)
                    for k, v in value.items()
                }
            case list():
                return [changed(entry, names=names) for entry in value]
            case str() if re.search(r"\s", value) and value != "fairly sure":
                return words(value)
        return value

    def text(id: str) -> str:
        stored = record.text(id)
        try:
            return json.dumps(changed(json.loads(stored)))
        except ValueError:
            return words(stored)

    events = []
    for event in record.events:
        body = event.model_dump(mode="json")
        for name in ("sources", "agents"):
            body |= {name: changed(body[name], names=True)} if name in body else {}
        events.append(EVENT.validate_python(changed(body)))
    return replace(record, events=events, text=text)


def assert_only_known(written: str) -> list[str]:
    """Every element and attribute is one of ours; return the names of those that no text may add."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    root: Element = parser.parse(written if written.startswith("<!") else f"<!doctype html><title>t</title>{written}")
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    markers = []
    for element in root.iter():
        assert isinstance(element.tag, str), "a comment"
        tag = element.tag.rpartition("}")[2]
        known = ELEMENTS[tag] | ({"id"} if tag in ("title", "desc") else set())
        for name, value in ((name.rpartition("}")[2], value) for name, value in element.attrib.items()):
            assert name in known, f"{tag} {name}"
            assert name not in VALUES or re.fullmatch(VALUES[name], value), f"{tag} {name}={value!r:.80}"
            assert name != "href" or value[1:] in ids
        if tag in MARKERS:
            markers.append(tag)
    return markers


FORMS: dict[str, Callable[[str, str], str]] = {
    "before": lambda own, words: words + own,
    "behind": lambda own, words: own + words,
}


@settings(max_examples=40)
@given(st.integers(0, 10_000), TEXT, st.sampled_from(sorted(FORMS)))
@example(0, "</style></title><script>alert(1)</script><h2 id=report onclick=x>", "before")
@example(1, "\" onmouseover=alert(1) x=\"' style='x", "behind")
@example(2, "|a|b|\n|:-:|-:|\n|[x](javascript:y)|![i](//z)|\n\n7. <https://x.example>\n\n# \ue0000\ue001", "before")
def test_no_text_anywhere_adds_an_element_or_an_attribute(records: Records, n: int, words: str, form: str) -> None:
    record = records[n % len(records)]
    hostile = said_everywhere(record, lambda own: FORMS[form](own, words))
    assert assert_only_known(page(hostile)) == assert_only_known(page(record))
    assert (record.report is None) == (hostile.report is None)
    if record.report is not None and hostile.report is not None:
        for write in (report_page, fragment, summary_page):
            assert assert_only_known(write(hostile.report)) == assert_only_known(write(record.report))


@given(TEXT)
@example("a`b|c`d` e`  `` f `` <b>&amp;</b>")
def test_plain_text_is_shown_as_it_is_in_every_block(text: str) -> None:
    """But code spans, which lose their marks."""
    shown = strip_invalid_xml(
        "".join(part[1:-1] if n % 2 else part for n, part in enumerate(CODE.split(one_line(text))))
    )
    blocks = [
        Paragraph(text=text, lead="l"),
        Paragraph(text=text, tone="strong"),
        Subheading(text=text),
        QuoteBlock(text=text, by=text),
        Bullets(items=(Item(text=text), Item(lead="l", text=text, by=text, note=text, below=text, depth=1))),
        Table(heads=("l", text), rows=((text, "l"),)),
        Details(summary="l", blocks=(Paragraph(text=text, lead="l"),)),
    ]
    written = PageParts({}, {}).blocks(blocks)
    assert_only_known(written)
    root = html5lib.parseFragment(written, namespaceHTMLElements=False)
    words = " ".join("".join(root.itertext()).split())
    places = 12 if shown.strip() else 0
    assert words.count(" ".join(shown.split())) >= places
