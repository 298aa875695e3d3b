"""The page: self-contained, without active content, complete, navigable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from xml.etree.ElementTree import Element

import html5lib
import pytest

from consilience.domain.events import CallCompleted, CallFailed, MessagePublished, ReplyRejected
from consilience.domain.messages import Source
from consilience.domain.outcome import FailureKind, Limits
from consilience.domain.sections import AgentText, Subheading
from consilience.domain.topology import complete
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.emergence import Emergence
from consilience.reporting.formatting import printable, reply_text
from consilience.reporting.html import page
from consilience.reporting.page_parts import Outline, PageParts
from consilience.reporting.record import SessionRecord, read_record
from consilience.testing import ScriptedModel
from kit import runner
from kit.cases import CASES, Case
from kit.runner import fork
from reporting.sessions import HOSTILE, by_hand, call, ran, saying

TASK = "Should the market be daily?"
SHOWN = [case for case in CASES if case.outside is None and case.tools is None]


def parsed(written: str) -> Element:
    """As a browser reads it; mistakes it would mend are mistakes here."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    return parser.parse(written)


async def test_verdict_and_dissent_precede_views_settings_and_transcript(store: SqliteStore) -> None:
    written = page(await ran(store))
    body = words(parsed(written)).partition("To the report")[2]
    order = ["Stopped:", "Where they differed", "I object", "All figures", "by phase", "max_rounds: 2"]
    body = body[body.index("Forks") if "Forks" in body else body.index("Figures and settings") :]
    places = [body.find(text) for text in order]
    assert -1 not in places
    assert places == sorted(places)
    assert '<meta name="viewport" content="width=device-width' in written
    folded = written.partition("<details><summary>All figures</summary>")[2].partition("</details>")[0]
    assert "Calls" in folded
    assert "Similarity among siblings" in folded
    assert "Similarity among siblings" not in written.replace(folded, "")


def words(element: Element) -> str:
    return "".join(element.itertext())


def by_id(root: Element, id: str) -> Element:
    (only,) = [element for element in root.iter() if element.get("id") == id]
    return only


def tags(root: Element) -> Iterator[str]:
    for element in root.iter():
        if isinstance(element.tag, str):
            yield element.tag.rpartition("}")[2]


LOADING = ("src", "srcset", "data", "poster", "action", "background", "formaction", "ping")


def assert_inert(root: Element) -> None:
    """Nothing runs, nothing is loaded, and no link leaves the page."""
    assert not {"script", "iframe", "img", "image", "object", "embed", "link", "form", "base", "foreignObject"} & set(
        tags(root)
    )
    for element in root.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), name
            assert name not in LOADING, name
            if name.rpartition("}")[2] == "href":
                assert value.startswith("#"), value
        if isinstance(element.tag, str) and element.tag.rpartition("}")[2] == "style":
            assert "url(" not in words(element)
            assert "@import" not in words(element)


def assert_links_resolve(root: Element) -> None:
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    targets = {value[1:] for element in root.iter() for name, value in element.attrib.items() if name == "href"}
    assert targets
    assert targets <= set(ids)


def test_page_of_the_recorded_run_is_complete_and_without_scripts(recorded: SessionRecord) -> None:
    written = page(recorded)
    assert written.startswith("<!doctype html>")
    root = parsed(written)
    assert_inert(root)
    assert_links_resolve(root)
    assert recorded.report is not None
    assert recorded.report.answer is not None
    assert recorded.report.answer in words(by_id(root, "report"))
    assert [words(h) for h in root.iter("h1")] == [recorded.report.task]
    for view in ("tree", "evolution", "convergence", "reads"):
        assert "{http://www.w3.org/2000/svg}svg" in {e.tag for e in by_id(root, view).iter()}
        assert words(by_id(root, view)).strip()
    assert "integrator (L1N1)" in words(next(by_id(root, "reads").iter("tbody"))), "a table, and no text in columns"
    assert "after round 2" in words(next(by_id(root, "convergence").iter("ul")))


def test_transcript_shows_text_usage_and_read_messages_of_every_call(recorded: SessionRecord) -> None:
    root = parsed(page(recorded))
    articles = {element.get("id"): element for element in root.iter("article")}
    assert len(articles) == len(recorded.calls) + sum(isinstance(e, MessagePublished) for e in recorded.events)
    for n, recorded_call in recorded.said:
        if isinstance(recorded_call, MessagePublished):
            continue
        assert isinstance(recorded_call, CallCompleted)
        article = articles[f"call-{n}"]
        said = recorded.text(recorded_call.text)
        assert "".join(printable(reply_text(said)).split()) in "".join(words(article).split())
        assert [words(whole) for whole in article.iter("pre")] == ([said] if reply_text(said) != said else [])
        assert f"{recorded_call.tokens_in:,} tokens read, {recorded_call.tokens_out:,} written" in words(article)
        quoted = recorded.readings[recorded_call.key].quoted
        for link, read in zip(article.iter("a"), quoted, strict=True):
            author = recorded.names[recorded.authors[read.message]]
            assert author in words(link)
            assert author in words(articles[link.attrib["href"][1:]])


async def test_agent_html_is_escaped(store: SqliteStore) -> None:
    record = await ran(
        store, Emergence(max_rounds=2, signals=True), reply=lambda request: saying(request, HOSTILE), task=HOSTILE
    )
    root = parsed(page(record))
    assert_inert(root)
    assert_links_resolve(root)
    texts = [words(e) for article in root.iter("article") for e in article.iter("div") if e.get("class") == "words"]
    assert len(texts) == len(record.calls) + sum(isinstance(e, MessagePublished) for e in record.events)
    assert sum("<script>alert(1)</script></style>]]> & <img" in text for text in texts) == len(texts)
    answer = words(by_id(root, "report"))
    assert "<script>alert(1)</script>" in answer
    assert "![pixel](https://evil.example/p.png) [press](javascript:alert(3))" in answer
    headings = [words(h) for h in root.iter() if h.tag in ("h1", "h2")]
    assert "Not a heading of ours" not in headings


async def test_page_contains_task_settings_and_documents(store: SqliteStore) -> None:
    task = f"{'Long. ' * 60}\n\nAnd in several paragraphs."
    sources = [Source(text="line one\nline </pre> two", name="minutes"), Source(text="for one alone", agents=("L2N1",))]
    await runner.start(
        task, Emergence(children=2, max_rounds=1), models=ScriptedModel(saying), store=store, session="s", sources=sources,
        seed=7, limits=Limits(calls=9),
    )  # fmt: skip
    root = parsed(page(read_record(store, "s")))
    assert task in words(next(root.iter("header")))
    assert "max_rounds: 1" in words(by_id(root, "settings"))
    assert "seed: 7" in words(by_id(root, "settings"))
    assert "limit on calls: 9" in words(by_id(root, "settings"))
    assert words(by_id(root, "document-1")) == "Document S1 minutesline oneline </pre> two\n"
    assert words(by_id(root, "document-1-2")) == "line </pre> two"
    record = read_record(store, "s")
    first, second = (next(n for n, event in record.said if event is call) for call in record.calls[:2])
    links = [a.attrib["href"] for a in by_id(root, f"call-{first}").iter("a")]
    assert links == ["#document-1", "#document-2"]
    assert "#document-2" not in {a.attrib["href"] for a in by_id(root, f"call-{second}").iter("a")}
    assert_links_resolve(root)


def test_missing_reference_is_named_without_a_link() -> None:
    root = parsed(page(by_hand(complete(1), [call("talk-1/A1", "x", "0", "q:A:lost/A1", "s:S9")])))
    assert_links_resolve(root)
    assert "had read A: lost/A1; S9" in words(by_id(root, "call-2"))


def test_transcript_is_in_program_order() -> None:
    late, early = call("talk-1/A2", "second", "1"), call("talk-1/A1", "first", "0")
    root = parsed(page(by_hand(complete(2), [late, early])))
    assert ["first" in words(article) for article in root.iter("article")] == [True, False]


def test_markdown_images_and_links_of_agents_stay_text() -> None:
    for text in (
        "[a](https://x.example)",
        "![a](https://x.example)",
        "<https://x.example>",
        "[a]\n\n[a]: https://x.example",
        "<b onclick=x>",
        "<!-- c -->",
    ):
        root = parsed(f"<!doctype html><title>t</title>{PageParts({}, {}).agent_text(text)}")
        assert set(tags(root)) <= {"html", "head", "title", "body", "p"}
        assert "".join(text.split()) in "".join(words(root).split())
    assert PageParts({}, {}).agent_text("## Answer", Outline(2)) == "<h3>Answer</h3>\n"
    assert PageParts({}, {}).agent_text("## Answer") == "<p>Answer</p>\n"
    assert "<table>" in PageParts({}, {}).agent_text("| a |\n|---|\n| b |\n")


def test_wide_table_scrolls(recorded: SessionRecord) -> None:
    root = parsed(page(recorded))
    tables = list(root.iter("table"))
    boxes = [box for box in root.iter("div") if box.attrib.get("class") == "table"]
    assert tables
    assert [box.find("table") for box in boxes] == tables
    assert all(box.attrib["tabindex"] == "0" and box.attrib["aria-label"] for box in boxes)
    (style,) = (words(style) for head in root.iter("head") for style in head.iter("style"))
    rules = dict(re.findall(r"([^{}]+)\{([^{}]*)\}", style))
    assert "overflow-x:auto" in next(rule for of, rule in rules.items() if ".table" in of.strip().split(","))
    assert {"overflow-x:auto", "white-space:pre"} <= set(rules["\npre"].split(";")), (
        "commands scroll, and are not broken"
    )
    assert "max-width:60rem" in rules["\nbody"], "and no width that a phone has not got"
    assert not re.search(r"(?<!max-)(?<!min-)(?<!stroke-)width:", str(style))
    assert "overflow-wrap:break-word" in rules["\ntable"], "the page's `anywhere` lets columns be narrower than a word"


def test_heading_levels_are_consecutive(recorded: SessionRecord) -> None:
    for record in (recorded, by_hand(complete(2), [call("talk-1/A1", "# High\n\n## Lower", "0")])):
        levels = [int(h.tag[1]) for h in parsed(page(record)).iter() if re.fullmatch("h[1-6]", str(h.tag))]
        assert levels[0] == 1
        assert all(below <= above + 1 for above, below in pairwise(levels)), levels


def test_head_has_the_whole_question_date_protocol_and_contents() -> None:
    task = f"{'Two jobs failed silently. ' * 12}Move, or stay?"
    record = replace(by_hand(complete(1), [call("talk-1/A1", "x", "0")], task=task), created=0.0)
    for asked in (task, f"{task}\n\n{'More. ' * 200}"):
        (header,) = parsed(page(replace(record, text=lambda id, asked=asked: asked))).iter("header")
        assert asked in words(header)
        assert "1 January 1970, 00:00 UTC · seance · 1 agent" in words(header)
        assert "#transcript" in {a.attrib["href"] for a in header.iter("a")}


def test_answer_that_stands_precedes_how_the_run_ended(recorded: SessionRecord) -> None:
    written = words(by_id(parsed(page(recorded)), "report"))
    assert recorded.report is not None
    assert written.index(str(recorded.report.answer)) < written.index("Finished:") < written.index("Basis")


async def test_answer_whose_basis_failed_follows_how_the_run_ended(store: SqliteStore) -> None:
    await runner.start(
        TASK, Emergence(max_rounds=2), models=ScriptedModel(saying), store=store, session="s", limits=Limits(calls=4)
    )
    written = words(by_id(parsed(page(read_record(store, "s"))), "report"))
    assert written.index("Stopped: ") < written.index("A limit cut in")


def test_pictures_and_transcript_have_no_raw_markdown() -> None:
    said = "## Verdict\n**Stay** for *now*; run `__init__` at 3 * 4 and a_b_c."
    root = parsed(page(by_hand(complete(1), [call("talk-1/A1", said, "0")])))
    (evolution,) = [element for element in root.iter("section") if element.get("id") == "evolution"]
    for text in (words(evolution), words(by_id(root, "call-2"))):
        assert "Stay for now; run __init__ at 3 * 4 and a_b_c." in " ".join(text.split())
        assert not {"**", "##", "`"} & set(re.findall(r"\*\*|##|`", text))


def test_view_that_only_says_that_there_is_nothing_is_left_out() -> None:
    root = parsed(page(by_hand(complete(2), [call("talk-1/A1", "x", "0")])))
    assert {"tree", "evolution"} <= {element.get("id") for element in root.iter("section")}
    assert not {"convergence", "reads"} & {element.get("id") for element in root.iter("section")}
    assert_links_resolve(root)


def test_raw_names_of_phases_are_words_of_the_protocol(recorded: SessionRecord) -> None:
    root = parsed(page(recorded))
    headings = [words(h) for h in by_id(root, "transcript").iter("h3")]
    assert headings[:2] == ["Round 1 · own answers", "Round 1 · replies to one another"]
    visible = "".join(words(e) for article in root.iter("article") for e in article if e.tag != "details")
    assert "leaf_respond" not in visible


def test_page_lists_failed_calls_and_rejected_replies() -> None:
    rejected = ReplyRejected(key="talk-1/A1", agent="A1", text="<no json>", error="no JSON & no sense", place="0")
    failed = CallFailed(key="talk-1/A2", agent="A2", failure=FailureKind.DEADLINE, detail="300 s", place="1")
    cut = call("talk-1/A1", "all of it", "0").model_copy(update={"attempt": 2, "finish": "length"})
    root = parsed(page(by_hand(complete(2), [rejected, cut, failed])))
    assert "invalid reply: no JSON & no sense" in words(by_id(root, "call-2"))
    assert "<no json>" in words(by_id(root, "call-2"))
    assert "attempt 2" in words(by_id(root, "call-3"))
    assert "cut at the token limit" in words(by_id(root, "call-3"))
    assert "no reply, deadline: 300 s" in words(by_id(root, "call-4"))
    assert "Progress" in words(root)


async def test_page_shows_the_tree_of_forks(store: SqliteStore) -> None:
    await ran(store)
    await fork("s", store=store, at=3, models=ScriptedModel(saying), session="child", settings={"max_rounds": 1})
    root = parsed(page(read_record(store, "child")))
    assert "child (this one) from event 3: max_rounds 2 → 1" in words(by_id(root, "family"))
    assert "inherited" in words(by_id(root, "call-2"))
    assert_links_resolve(root)


@pytest.mark.parametrize(
    "record", [SessionRecord("r0", [], text=str, prompt=lambda id: ()), by_hand(complete(3))], ids=["nothing", "begun"]
)
def test_page_of_a_session_without_replies_is_rendered(record: SessionRecord) -> None:
    root = parsed(page(record))
    assert_inert(root)
    assert not list(root.iter("article"))
    assert record.session in words(root)


def test_lone_surrogate_does_not_break_the_page() -> None:
    broken = "half \ud83d of it \x00 \ufffe"
    written = page(by_hand(complete(1), [call("talk-1/A1", broken, "0")], task=broken, views={"A1": broken}))
    assert_inert(parsed(written))
    written.encode("utf-8")
    assert "<p>half  of it  \ufffd</p>" in written


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case.name)
async def test_page_of_every_protocol_can_be_sent_to_others_and_read_by_everybody(
    case: Case, store: SqliteStore
) -> None:
    """What axe checks and needs no browser; no command of an operator; links with names and ways back."""
    await runner.start(
        TASK, case.protocol, sources=case.sources, models=ScriptedModel(case.script), store=store, session="s"
    )
    record = read_record(store, "s")
    assert record.report is not None
    for written in (page(record), record.report.html()):
        root = parsed(written)
        assert_links_resolve(root)
        assert all(element.get("tabindex") == "0" for element in root.iter("pre"))
        assert all(words(head).strip() for head in root.iter("th"))
        levels = [int(h.tag[1]) for h in root.iter() if re.fullmatch("h[1-6]", str(h.tag))]
        assert all(below <= above + 1 for above, below in pairwise(levels)), levels
        assert levels.count(1) == 1
        assert not re.search(r"\bconsilience (replay|show|fork|resume|tell|sessions)\b", words(root))
        for link in root.iter("a"):
            name = link.get("aria-label") or words(link)
            assert "/" not in name.split(":")[0] or " " in name, f"{name} is a key"
        cited = {a.attrib["href"][1:] for a in by_id(root, "report").iter("a")}
        ways_back = {a.attrib["href"] for article in root.iter("article") for a in article.iter("a")}
        assert {f"#from-{anchor}" for anchor in cited if anchor.startswith(("call-", "message-"))} <= ways_back


@pytest.mark.parametrize("answer", ["#### Deep\n\ntext\n\n## High\n\ntext\n\n#### Deep", "###### Deepest"])
def test_headings_of_an_answer_skip_no_level(answer: str) -> None:
    written = PageParts({}, {}).blocks(
        [AgentText(text=answer), Subheading(text="ours"), AgentText(text=answer)], under=2
    )
    levels = [2, *(int(level) for level in re.findall("<h([1-6])>", written))]
    assert len(levels) > 3
    assert min(levels[1:]) == 3
    assert all(below <= above + 1 for above, below in pairwise(levels)), levels
