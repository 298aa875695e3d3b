"""The summary: the report on two pages, for readers who were not there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from consilience.domain.errors import Rejected
from consilience.domain.messages import Source
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate import Debate
from consilience.protocols.emergence import Emergence
from consilience.reporting.html import page
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.summary import summary_page
from consilience.testing import Scripted, ScriptedModel
from kit import runner
from kit.cases import CASES, Case
from kit.debating import Debaters, related_cruxes
from reporting.sessions import HOSTILE, saying
from reporting.test_html import assert_inert, parsed, words

QUESTION = (
    "Should the market be daily? " + "It is held on Saturdays, with forty stalls; else its square is a car park. " * 5
)
SHOWN = [case for case in CASES if case.outside is None and case.tools is None]
HOUSE_WORDS = (
    *("attention", "crux", "dcg", "falsif", "nudge", "placebo", "sealed", "steelm", "stipulat", "topology"),
    *("crux lock", "virtual time"),
)
"""Words of the house, which mean nothing to a reader who was not there."""
SENTENCE = "The wing loses 255,000 euros a year before any debt. "
MAX_CHARS = 14_000
"""Of two pages of A4, in any shape of text."""


def summary(record: SessionRecord) -> str:
    assert record.report is not None
    return summary_page(record.report, record)


def text_of(written: str) -> str:
    return " ".join(words(parsed(written).find("body")).split())  # type: ignore[arg-type]


async def ended(store: SqliteStore, reply: object, *, task: str = QUESTION, **more: object) -> SessionRecord:
    model = ScriptedModel(reply)  # type: ignore[arg-type]
    await runner.start(task, Emergence(max_rounds=2), models=model, store=store, session="s", **more)  # type: ignore[arg-type]
    return read_record(store, "s")


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case.name)
async def test_summary_of_every_protocol_has_what_a_reader_asks_and_nothing_else(
    case: Case, store: SqliteStore
) -> None:
    await runner.start(
        QUESTION, case.protocol, sources=case.sources, models=ScriptedModel(case.script), store=store, session="s"
    )
    record = read_record(store, "s")
    assert record.report is not None
    for written in (summary(record), summary_page(record.report)):
        root = parsed(written)
        assert_inert(root)
        text = text_of(written)
        assert text.count(" ".join(QUESTION.split())) == 1
        assert f"{case.protocol.name} · " in text
        assert f"{record.report.ledger.actual.calls} call" in text
        assert "How far to trust it" in text
        for absent in ("details", "nav", "svg", "article", "a"):
            assert root.find(f".//{absent}") is None, absent
        assert not re.search(r"\bconsilience [a-z]", text)
        assert [word for word in HOUSE_WORDS if word in text.casefold()] == []
        levels = [int(h.tag[1]) for h in root.iter() if re.fullmatch("h[1-6]", str(h.tag))]
        assert levels.count(1) == 1
        assert all(below <= above + 1 for above, below in pairwise(levels)), levels
    text = text_of(summary(record))
    assert record.created is not None
    assert f"{datetime.fromtimestamp(record.created, UTC):%B %Y}" in text
    assert all(source.name in text for source in case.sources)


async def test_summary_of_a_debate_has_each_question_that_divides_it_and_what_would_settle_it(
    store: SqliteStore,
) -> None:
    protocol = Debate(debaters=4, option=("queues", "streams"), test_cruxes=2)
    model = ScriptedModel(Debaters(related_cruxes("ENTAILS", hold=[1])))
    await runner.start("Queues or streams?", protocol, models=model, store=store, session="s")
    record = read_record(store, "s")
    text = text_of(summary(record))
    for n, about in enumerate(("queues", "streams"), 1):
        _, found, below = text.partition(f"Question {n}. Would {about} lose orders?")
        assert found
        assert below.startswith(" Yes: ")
        assert "What would settle it" in below
        assert "an audit that finds none" in below
    assert "changed their position" in text
    assert "If you must decide today: on queues " in text
    assert "queues: yes, streams: yes" in text
    assert "proposition" not in text.casefold(), "each option is called by its name"
    assert re.findall(r"\[[A-RT-Z]\d+\]", text) == [], "no message stands there that a label could mean"
    assert [word for word in HOUSE_WORDS if word in text.casefold()] == []
    assert "Crux 2" in text_of(page(record)), "the report has the words of the house"


async def test_short_report_is_whole_in_its_summary(store: SqliteStore) -> None:
    record = await ended(store, saying, sources=[Source(text="Forty stalls.", name="stalls.md")])
    text = text_of(summary(record))
    assert "L1N1 thinks of round-2/observe/L1N1." in text
    assert "I object." in text
    assert text.count("S1 stalls.md") == 1
    assert "more in report.html" not in text
    assert "Shortened" not in text


SHAPES = {
    "sentences": SENTENCE * 400,
    "paragraphs": "\n\n".join([SENTENCE * 3] * 60),
    "points": "\n".join(f"- {SENTENCE}" for _ in range(300)),
    "headings": "\n\n".join(f"## Part {n}\n\n{SENTENCE}" for n in range(150)),
    "table": "| a | b |\n|---|---|\n" + "\n".join(f"| {n} | {SENTENCE} |" for n in range(200)),
    "code": "```\n" + "\n".join(f"line {n}" for n in range(400)) + "\n```",
    "one word": "".join(f"{n:x}" for n in range(9_000)),
    "wide characters": "我们应该建造新的博物馆。" * 900,
    "hostile": HOSTILE + "\n" + SENTENCE * 300,
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_long_report_is_shortened_to_two_pages_and_says_so(shape: str, store: SqliteStore) -> None:
    sources = [Source(text="Forty stalls.", name=f"stalls {n}.md") for n in range(9)]
    record = await ended(store, lambda request: saying(request, SHAPES[shape]), sources=sources)
    written = summary(record)
    assert_inert(parsed(written))
    text = text_of(written)
    assert len(text) < MAX_CHARS
    assert len(re.findall("<(?:p|li|tr|h[1-6])[ >]", written)) < 170
    assert "Shortened here; report.html has all of it." in text
    assert "Stopped: " in text, "what qualifies a long answer is kept"
    assert "How far to trust it" in text
    assert f"{record.state.made} calls" in text
    assert all(source.name in text for source in sources)


async def test_long_report_says_in_its_summary_what_was_not_read(store: SqliteStore) -> None:
    """It is the page that is sent: whoever reads it must not think that the scan was read."""
    remarks = ("left out: boiler certificate (scan).pdf", *(f"left out: picture {n}.png" for n in range(3)))
    sources = [Source(text="Forty stalls.", name="stalls.md", remarks=remarks)]
    record = await ended(store, lambda request: saying(request, SENTENCE * 400), sources=sources)
    text = text_of(summary(record))
    assert all(remark in text for remark in remarks)
    assert len(text) < MAX_CHARS


async def test_cut_answer_ends_with_a_sentence_and_no_heading(store: SqliteStore) -> None:
    parts = "\n\n".join(f"## Part {n}\n\n{SENTENCE * 4}" for n in range(40))
    text = text_of(summary(await ended(store, lambda request: saying(request, parts))))
    answer = text.partition("Answer")[2].partition("Shortened here")[0].strip()
    assert answer.endswith(SENTENCE.strip())
    assert "Part 5" in answer


async def test_long_question_is_cut_after_its_beginning(store: SqliteStore) -> None:
    text = text_of(summary(await ended(store, saying, task=SENTENCE * 300)))
    assert 1_000 < text.count(SENTENCE.strip()) * len(SENTENCE) < 3_000
    assert "L1N1 thinks of round-2/observe/L1N1." in text


async def test_summary_of_a_failed_run_says_why_there_is_no_answer(store: SqliteStore) -> None:
    def failing(request: ModelRequest) -> Scripted:
        raise Rejected("no such model")

    text = text_of(summary(await ended(store, failing)))
    assert text.index("Stopped: too few agents replied") < text.index("No answer")
    assert "rejected: no such model" in text
    assert "Shortened" not in text


async def test_summary_of_a_cancelled_run_says_on_what_its_answer_rests(store: SqliteStore) -> None:
    def cancelling(request: ModelRequest) -> Scripted:
        if "/observe/" in request.key:
            store.post("s", "cancel", by="Ada")
        return saying(request)

    text = text_of(summary(await ended(store, cancelling)))
    assert "Stopped: cancelled" in text
    assert "the answer rests on what existed by then" in text


async def test_report_that_is_saved_has_a_summary(store: SqliteStore, tmp_path: Path) -> None:
    record = await ended(store, saying)
    assert record.report is not None
    assert tmp_path / "summary.html" in record.report.save(tmp_path)
    assert "L1N1 thinks of round-2/observe/L1N1." in (tmp_path / "summary.html").read_text()
