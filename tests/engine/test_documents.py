"""Documents per call: what a call names is what it is shown, what its reply may quote, and what a person reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from consilience.domain.errors import ProtocolViolation, Rejected, SessionWaiting
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, SpendingLimits
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.reporting.questions import pending_questions
from consilience.reporting.record import read_record
from engine.test_session import play
from kit import runner

PLAN = "\n".join(f"line {n}" for n in range(1, 301))
SOURCES = [
    Source("The market opened in 1998.", name="town"),
    Source(PLAN, name="plan"),
    Source("closed", agents=("A2",)),
]


async def test_prompt_contains_only_the_documents_and_lines_that_the_call_names() -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("some", documents=("S2:120-122", "S1")), key="some")
        await session.ask("A1", Prompt("none", documents=()), key="none")
        await session.ask("A1", Prompt("line", documents=("S2:300", "S2:300-300")), key="line")
        await session.ask("A1", Prompt("all"), key="all")

    model = ScriptedModel(lambda request: "fine")
    report, store = await play(body, model, sources=SOURCES, session="s")
    some, none, line, everything = (request.text for request in model.requests)
    assert "plan\n120| line 120\n121| line 121\n122| line 122\n</quote" in some
    assert "from document S2:120-122>" in some
    assert some.index("line 120") < some.index("1| The market opened"), "in the order named"
    assert "documents" not in none
    assert "market" not in none
    assert line.count("300| line 300") == 1
    assert "1| line 1\n" not in line
    assert "1998" in everything
    assert "\n1| line 1\n" in everything
    assert "300| line 300" in everything
    assert "closed" not in some + none + line + everything
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    assert read_record(store, "s").readings["some"].documents == ("S2", "S1")


async def test_request_digest_and_size_depend_on_the_lines_shown() -> None:
    """The size of the call is that of the lines: a limit that the whole document breaks admits a few of them."""
    asked: list[object] = []

    async def body(session: Session) -> None:
        for lines in ("S2:1-9", "S2:1-8"):
            asked.append(await session.ask("A1", Prompt("read", documents=(lines,)), key=lines))
        asked.append(await session.ask("A1", Prompt("read"), key="whole"))

    sources = [Source("short"), Source("\n".join(["word " * 50] * 1000))]
    _, store = await play(
        body, sources=sources, session="s", limits=Limits(agents={"A1": SpendingLimits(tokens=20_000)})
    )
    assert [isinstance(reply, Failure) for reply in asked] == [False, False, True]
    events = {event.key: event for event in store.read("s") if event.type == "call_completed"}
    assert events["S2:1-9"].digest != events["S2:1-8"].digest


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("S3", "A1 may not be shown document S3, which is for \\('A2',\\)"),
        ("S3:1", "A1 may not be shown document S3"),
        ("S4", "'S4' is not a document of this session \\(S1, S2, S3\\)"),
        ("plan", "'plan' is not a document"),
        ("S2:0-3", "'S2:0-3' is not a document"),
        ("S2:9-3", "'S2:9-3' is not in the document: S2 has 300 lines"),
        ("S2:290-301", "'S2:290-301' is not in the document: S2 has 300 lines"),
    ],
)
async def test_call_that_names_a_closed_or_missing_document_is_a_violation(reference: str, message: str) -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("x", documents=(reference,)), key="x")

    model = ScriptedModel([])
    with pytest.raises(ProtocolViolation, match=message):
        await play(body, model, sources=SOURCES)


async def test_quotation_of_lines_not_shown_to_the_call_is_unverified() -> None:
    """Words of lines that were not shown are not verified, unless a message that was shown quotes them truly."""
    fields = {
        "reader": 'It says "line 121" [S2:121] and "line 7" [S2:7] and "line 122 line 123" [S2:122].',
        "own": 'Closed: "closed" [S3:1].',
        "relay": 'As found: "line 121" [S2:121], "line  121" [S2:121], "line 200" [S2:200], "closed" [S3:1].',
        "all": 'It says "line 7" [S2:7].',
    }

    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("x", documents=("S2:120-122",)), key="reader", audience=["A3"])
        await session.ask("A2", Prompt("x", documents=("S3",)), key="own", audience=["A3"])
        shown = (Quote("reader", "A"), Quote("own", "B"))
        await session.ask("A3", Prompt("x", shown, documents=()), key="relay")
        await session.ask("A3", Prompt("x"), key="all")

    report, store = await play(body, ScriptedModel(lambda request: fields[request.key]), sources=SOURCES, session="s")
    assert [(q.words, q.agent, q.verified) for q in report.quotations] == [
        ("line 121", "A1", True),
        ("line 7", "A1", False),
        ("line 122 line 123", "A1", False),
        ("closed", "A2", True),
        ("line 121", "A3", True),
        ("line  121", "A3", True),
        ("line 200", "A3", False),
        ("closed", "A3", True),
        ("line 7", "A3", True),
    ]
    assert (await runner.replay("s", store=store)).digest() == report.digest()


PAGES = "[page 1]\nIn March it rained.\n[page 2]\nIn May it did not.\n[sheet 3: May]\nNobody came."


@pytest.mark.parametrize(
    ("reference", "verified", "place"),
    [
        ("S1:4", True, "page 2"),
        ("S1:p2:4", True, "page 2"),
        ("S1:P02:4", True, "page 2"),
        ("S1:page 2:4", True, "page 2"),
        ("S1:p.2:4", True, "page 2"),
        ("S1:p1:4", False, "page 1"),
        ("S1:p2:5", False, "sheet 2"),
        ("S1:p2:999", False, "sheet 2"),
        ("S2:p2:2", True, ""),
    ],
)
async def test_quotation_names_the_page_of_its_line_and_is_checked_against_a_named_one(
    reference: str, verified: bool, place: str
) -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("x"), key="x")

    sources = [Source(PAGES), Source("a\nIn May it did not.")]
    report, _ = await play(body, ScriptedModel([f'It says "In May it did not" [{reference}].']), sources=sources)
    assert [(q.source, q.verified, q.place) for q in report.quotations] == [(reference[:2], verified, place)]
    (quotation,) = report.quotations
    assert quotation.is_wrong is not verified
    assert quotation.stands == ("" if verified else "S1:4 (page 2)")


MAIL = """From: Lena
Lena: "The provider rejects it."
key = f"{order.id}"
The members' fee is 5 € and
due in C:\\temp by May.
The fee is due."""


@pytest.mark.parametrize(
    ("quoting", "found"),
    [
        ('"The provider rejects it" [S1:2-3]', [("The provider rejects it", 2, True)]),
        ('"due in C:\\temp" [S1:4-5]', [("due in C:\\temp", 5, True)]),
        ('"The fee is due" [S1:1–6]', [("The fee is due", 6, True)]),
        ('"The fee is due" [S1:2-4]', [("The fee is due", 2, False)]),
        ('"The fee is due" [S1:1, 6]', [("The fee is due", 6, True)]),
        ('"From: Lena" [S2:1; S1:1]', [("From: Lena", 1, True)]),
        ('`key = f"{order.id}"` [S1:3]', [('key = f"{order.id}"', 3, True)]),
        ("'Lena: \"The provider rejects it.\"' [S1:2]", [('Lena: "The provider rejects it."', 2, True)]),
        ("\"Lena: 'The provider rejects it.'\" [S1:2]", [("Lena: 'The provider rejects it.'", 2, True)]),
        ("'members’ fee' [S1:4]", []),
        ("don't say 'the fee is due' [S1:6]", [("the fee is due", 6, True)]),
        ('**"The fee is due"**, [S1:6]', [("The fee is due", 6, True)]),
        ('"The fee is waived" [S1:5-6]', [("The fee is waived", 5, False)]),
    ],
)
async def test_quotation_is_checked_in_every_form_in_which_agents_write_it(
    quoting: str, found: list[tuple[str, int, bool]]
) -> None:
    """Ranges and lists of lines, words marked as code, inner quotation marks and marks of emphasis."""

    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("x"), key="x")

    report, _ = await play(body, ScriptedModel([f"It says {quoting}."]), sources=[Source(MAIL), Source("Nothing.")])
    assert [(q.words, q.line, q.verified) for q in report.quotations] == found


class Ballot(BaseModel):
    """A reply without a text of its own: its message is the JSON of the reply."""

    side: bool
    reason: str


async def test_quotation_in_a_reply_without_text_is_read_without_the_escapes_of_json() -> None:
    reason = 'The fee is "5 € and\ndue in C:\\temp" [S1:4].'

    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("x"), key="x", returns=Ballot)

    reply = json.dumps({"side": True, "reason": reason}, ensure_ascii=True)
    report, _ = await play(body, ScriptedModel([reply]), sources=[Source(MAIL)])
    assert [(q.words, q.verified) for q in report.quotations] == [("5 € and\ndue in C:\\temp", True)]


async def test_words_of_a_document_in_a_text_that_was_read_are_known_from_it() -> None:
    """The text that is read has them apart from their reference, or without quotation marks. What it has not stays unread."""
    read = 'Severance is "about 38,000 euros" for all six [S1:1], and two of them may refuse a move [S1:2].'
    relay = (
        '"about 38,000 euros" [S1:1], "may refuse" [S1:2], "about 38,000 euros" [S1:2], "half a month\'s pay" [S1:1].'
    )

    async def body(session: Session) -> None:
        await session.ask("A2", Prompt("x"), key="own", audience=["A1"])
        await session.ask("A1", Prompt("x", (Quote("own", "A"),)), key="relay")

    sources = [Source("Pay: half a month's pay, about 38,000 euros.\nThose over 55 may refuse.", agents=("A2",))]
    replies = {"own": read, "relay": relay}
    report, _ = await play(body, ScriptedModel(lambda request: replies[request.key]), sources=sources)
    assert [(q.words, q.verified, q.relayed, q.stands) for q in report.quotations] == [
        ("about 38,000 euros", True, True, ""),
        ("may refuse", True, True, ""),
        ("about 38,000 euros", False, False, "S1:1"),
        ("half a month's pay", False, False, "S1:1"),
    ]


async def test_question_to_a_person_contains_numbered_lines_before_and_after_parking(tmp_path: Path) -> None:
    async def body(session: Session) -> None:
        await session.ask("A2", Prompt("say", documents=("S2:120-121",)), key="say")

    store = SqliteStore(tmp_path / "j.db")
    model = {"A1": ScriptedModel([]), "A2": "human", "A3": ScriptedModel([])}
    with pytest.raises(SessionWaiting):
        await play(body, model, sources=SOURCES, store=store, session="s")
    (question,) = pending_questions(store.read("s"), store.text, store.prompt)
    assert "document S2:120-121:\n  | plan\n  | 120| line 120\n  | 121| line 121\n" in question.text
    store.post("s", "answer", "say", 'So it says: "line 121" [S2:121].')
    report = await runner.resume("s", store=store, models=model)  # type: ignore[arg-type]
    assert [quotation.verified for quotation in report.quotations] == [True]
    store.close()


async def test_fork_with_a_new_document_repeats_the_calls_that_name_it() -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("named", documents=("S1:1",)), key="named")
        await session.ask("A1", Prompt("other", documents=("S2",)), key="other")
        await session.ask("A1", Prompt("opening"), key="opening")

    _, store = await play(body, ScriptedModel(lambda request: "fine"), sources=SOURCES, session="p")
    model = ScriptedModel(lambda request: "again")
    moved = Source("The market moved in 1999.", name="town")
    report = await runner.fork("p", store=store, models=model, sources=[moved], session="f")
    assert [request.key for request in model.requests] == ["named"]
    assert "1999" in model.requests[0].text
    (warning,) = [warning for warning in report.warnings if "asked for again" in warning]
    assert "named" in warning
    assert (await runner.replay("f", store=store)).digest() == report.digest()
    silent = ScriptedModel([])
    await runner.fork("f", store=store, models=silent, session="g")
    assert silent.requests == [], "the reply of the fork is as old as the document"


async def test_report_lists_the_lines_that_each_agent_was_shown() -> None:
    """Lines that meet are one range, and a document read in pieces is read. A call without a reply shows nothing to anybody."""

    async def body(session: Session) -> None:
        for n, lines in enumerate(("S2:120-122", "S2:7", "S2:123-130", "S2:121")):
            await session.ask("A1", Prompt("x", documents=(lines,)), key=f"part-{n}")
        await session.ask("A2", Prompt("x", documents=("S2:150-300",)), key="end")
        await session.ask("A2", Prompt("x", documents=("S2:1-149", "S3")), key="begin")
        await session.ask("A3", Prompt("x"), key="failing")

    def reply(request: ModelRequest) -> str:
        if request.key == "failing":
            raise Rejected("refused")
        return "fine"

    sources = [*SOURCES, Source("unread", name="extra.pdf", remarks=("extra.pdf: pictures left out: 2",))]
    report, store = await play(body, ScriptedModel(reply), sources=sources, session="s")
    assert [(d.id, [(r.agent, r.lines) for r in d.readers]) for d in report.documents] == [
        ("S1", []),
        ("S2", [("A1", ((7, 7), (120, 130))), ("A2", ())]),
        ("S3", [("A2", ())]),
        ("S4", []),
    ]
    assert "extra.pdf: pictures left out: 2" in report.warnings
    text = report.markdown().replace("\\", "")
    assert "| S2 plan | member (A1) (lines 7, 120-130), member (A2) |  | 300 |" in text
    assert "| S4 extra.pdf | no agent |" in text
    assert text.partition("What was read")[2].count("extra.pdf: pictures left out: 2") == 1
    assert text.count("extra.pdf: pictures left out: 2") == 1
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_document_that_a_fork_adds_was_not_read_by_the_replies_that_it_inherits() -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("old"), key="old")
        if len(session.sources) > 1:
            await session.ask("A2", Prompt("new"), key="new")

    first = [Source("old", name="a.pdf", remarks=("a.pdf: pictures left out: 2",))]
    _, store = await play(body, sources=first, session="p")
    model = ScriptedModel(lambda request: "fine")
    report = await runner.fork("p", store=store, models=model, sources=[Source("new", name="b")], session="f")
    assert [r.key for r in model.requests] == ["new"]
    assert [[r.agent for r in d.readers] for d in report.documents] == [["A1", "A2"], ["A2"]]
    assert report.documents[0].remarks == ("a.pdf: pictures left out: 2",)
