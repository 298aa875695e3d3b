"""The decision brief: the worst news first, the same figures on every face, and every line followed to its events."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import consilience
from consilience import Source
from consilience.domain.events import CallCompleted, CallFailed, MessagePublished
from consilience.domain.sections import AgentText, Block, Bullets, Details, Paragraph, QuoteBlock, Subheading, Table
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate import Debate, DebateReport
from consilience.protocols.debate.records import Coalition, CommonGround, Contradiction, Dependency
from consilience.protocols.debate.stipulated import CruxTest, FlipRecord, PlaceboTest, StipulatedBallot
from consilience.reporting.html import page
from consilience.reporting.markdown import _render
from consilience.reporting.record import read_record
from consilience.testing import ScriptedModel
from kit.debating import Answer, Debaters, moves_of, number_of, side_of

TASK = "Should we move the orders to queues?"
FACT = "The ferry is red."
Changes = Mapping[str, Callable[[ModelRequest], Answer]]


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


def own_falsifier(request: ModelRequest) -> Answer:
    return {"metric": f"orders lost in year {number_of(request.agent)}"}


def turn(request: ModelRequest) -> Answer:
    """Evidence, its challenge and a concession where they are open."""
    for move in ("CHALLENGE_EVIDENCE", "PROVIDE_EVIDENCE", "CONCEDE"):
        if move in moves_of(request) and len(request.text) % 3:
            return {"move": move, "conceded": "the peak is short", "text": f'"9,400 a second" [S1:1] {request.key}'}
    return {}


def persuaded(request: ModelRequest) -> Answer:
    """The third agent changes its mind without an argument."""
    return {"p1": "NO"} if request.agent == "D3" else {}


RICH: Changes = {"commit": own_falsifier, "turn": turn, "final": persuaded, "named": lambda request: {"q1": 0}}


async def debate(changes: Changes | None = None, *, store: SqliteStore | None = None, **settings: Any) -> DebateReport:
    report = await consilience.deliberate(
        TASK,
        Debate(**{"debaters": 4, "as_is": True, **settings}),
        model=ScriptedModel(Debaters(changes)),
        sources=[Source("The load test sustained 9,400 a second.")],
        store=store,
    )
    assert isinstance(report, DebateReport)
    return report


# --- every line rests on events


def lines(blocks: tuple[Block, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every line of a section with the calls and messages on which it rests. Headings are no lines."""
    for block in blocks:
        match block:
            case Paragraph() | QuoteBlock():
                yield block.text or str(getattr(block, "lead", "")), block.refs
            case Bullets():
                yield from ((f"{item.lead} {item.text}", item.refs) for item in block.items)
            case Table():
                assert len(block.refs) == len(block.rows), block.heads
                yield from ((" | ".join(row), refs) for row, refs in zip(block.rows, block.refs, strict=True))
            case Details():
                yield from lines(block.blocks)
            case Subheading() | AgentText():
                pass
            case _:
                raise AssertionError(f"a brief has no {block.kind}")


def brief_lines(report: DebateReport) -> list[tuple[str, tuple[str, ...]]]:
    shown = report.presentation()
    sections = [section.blocks for section in shown.sections if section.name != "transcript"]
    return [line for blocks in (shown.above_answer, shown.below_answer, *sections) for line in lines(blocks)]


@pytest.mark.parametrize("changes", [None, RICH], ids=["plain", "rich"])
async def test_every_line_of_a_brief_refers_to_events_of_its_session(
    store: SqliteStore, changes: Changes | None
) -> None:
    report = await debate(changes, store=store)
    events = store.read(report.session)
    known = {event.key for event in events if isinstance(event, CallCompleted | CallFailed)}
    known |= {event.id for event in events if isinstance(event, MessagePublished)}
    walked = brief_lines(report)
    assert len(walked) > 25
    assert [line for line, refs in walked if not refs] == []
    assert {ref for _, refs in walked for ref in refs} <= known


async def test_lines_on_the_page_of_a_session_link_to_its_transcript(store: SqliteStore) -> None:
    report = await debate(RICH, store=store)
    html = page(read_record(store, report.session))
    links = re.findall(r'<span class="refs">(.*?)</span>', html)
    targets = [anchor for link in links for anchor in re.findall(r'href="#([^"]+)"', link)]
    assert len(links) >= len(brief_lines(report))
    assert set(targets) <= set(re.findall(r'<article id="([^"]+)"', html))
    assert "\ue000" not in html
    verdict = next(line for line in html.splitlines() if "SPLIT" in line or "UNANIMOUS" in line)
    assert verdict.count("↗") == 4


async def test_lines_of_a_saved_report_link_to_its_messages(tmp_path: Path) -> None:
    report = await debate(RICH)
    saved = next(path for path in report.save(tmp_path) if path.name == "report.html").read_text()
    targets = set(re.findall(r'<span class="refs">.*?href="#([^"]+)"', saved))
    places = re.findall(r'<p id="([^"]+)"', saved)
    assert len(places) == len(set(places)) == len(report.messages)
    assert targets
    assert targets <= set(places)
    assert "\ue000" not in saved


async def test_report_names_each_seat_in_one_way() -> None:
    cited = {"claims": [{"text": "It loses orders.", "ids": ["A4"]}], "against": [{"text": "It pays.", "ids": ["B5"]}]}
    report = await debate({**RICH, "closing": lambda request: {"p1": "NO", **cited}})
    text = report.markdown()
    assert "It loses orders. — *" in text
    for agent in report.letters:
        assert not re.search(rf"\({agent}\)", text)


async def test_last_line_of_a_brief_splits_the_calls_and_names_the_tell_command(store: SqliteStore) -> None:
    report = await debate(RICH, store=store)
    kinds = Counter(event.key.split("/")[0] for event in store.read(report.session) if isinstance(event, CallCompleted))
    single = kinds["single"] + kinds["named"]
    debate_calls = kinds.total() - kinds["test"] - single
    last = report.markdown().strip().splitlines()[-1]
    assert f"{kinds.total()} calls (debate {debate_calls}, tests {kinds['test']}, single call {single})" in last
    assert f'new fact: `consilience tell {report.session} "…"`' in last


async def test_agent_text_with_link_markers_does_not_forge_a_link(store: SqliteStore) -> None:
    report = await debate({"final": lambda request: {"reason": "\ue0000\ue001 \ue000999999999999\ue001"}}, store=store)
    html = page(read_record(store, report.session))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(re.findall(r'id="([^"]+)"', html))


# --- the same figures on every face


def faces(report: DebateReport) -> dict[str, str]:
    """The report as Markdown, as a page without markup, and on a terminal of 80 columns, each in one line."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    _render(report.markdown(), terminal)
    words = {
        "markdown": re.sub(r"[\\*]", "", report.markdown()),
        "html": unescape(re.sub(r"<[^>]+>", " ", report.html())),
        "terminal": re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()),
    }
    return {name: " ".join(text.split()) for name, text in words.items()}


def figures(data: dict[str, Any]) -> list[str]:
    """What a reader must find on every face, from the JSON report alone."""
    finals = [ballot for ballot in data["ballots"] if ballot["step"] == 1]
    sides = [ballot["positions"][0] for ballot in finals]
    names = {"YES": "yes", "NO": "no", "UNCERTAIN": "undecided"}
    verdict = " · ".join(f"{sides.count(side)} {name}" for side, name in names.items() if side in sides)
    arguments = [verdict, f"{len(finals)} of {len(data['letters'])} agents", data["added"]]
    crux = data["threads"][0]["crux"]
    score = [crux["score"][name] for name in ("score", "coverage", "polarity", "impact")]
    arguments.append("{:.2f} = {:.2f} × {:.2f} × {:.2f}".format(*score))
    records = data["flip_records"]["thread-1"]
    declared, observed = (sum(record[name] is True for record in records) for name in ("declared", "observed"))
    arguments.append(f"Declared to depend on it: {declared} of {len(records)}")
    arguments.append(f"when told so, {observed} of {len(records)} changed position")
    arguments.append(f"{crux['score']['score']:.2f} as declared, {crux['observed_score']['score']:.2f} when told so")
    quoted = data["quotations"]
    arguments.append(
        f"{sum(q['verified'] for q in quoted)} verified, {sum(not q['verified'] for q in quoted)} not found"
    )
    arguments.append(
        f"Changes without a named argument: {sum(change['conformity'] for change in data['position_changes'])}."
    )
    single, spent = data["single_call"], data["ledger"]["actual"]
    arguments.append(f"{single['tokens_in'] + single['tokens_out']:,}")
    tests = sum(len(test["ballots"]) for test in [*data["tests"], data["placebo"]])
    arguments.append(f"{spent['calls']} calls (debate {spent['calls'] - tests - 2}, tests {tests}, single call 2)")
    arguments.append(f"{spent['tokens_in']:,} tokens read")
    placebo = [record["placebo"] for record in records]
    arguments.append(f"is {data['placebo']['fact'].rstrip('.').rpartition(' ')[2]}): {sum(placebo)} of {len(placebo)}")
    return arguments


async def test_all_renderings_of_a_report_have_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = await debate(RICH)
    wanted = figures(json.loads(report.model_dump_json()))
    for name, text in faces(report).items():
        assert [figure for figure in wanted if figure not in text] == [], name


# --- worst news first


def above_answer(report: DebateReport) -> str:
    return report.markdown().split("## ", 2)[1]


def ballots(sides: Mapping[str, str]) -> dict[str, StipulatedBallot]:
    return {
        agent: StipulatedBallot.model_validate({"positions": (side,), "confidence": 1}) for agent, side in sides.items()
    }


async def tested(**records: Any) -> DebateReport:
    """A debate of four, two on each side, with what tests showed put into its report."""
    report = await debate({"commit": own_falsifier, "closing": lambda request: {"p1": "NO"}}, test_cruxes=0)
    return report.model_copy(update=records)


async def test_declared_flips_not_observed_in_tests_are_printed_above_the_answer() -> None:
    records = tuple(
        FlipRecord(agent=f"D{n}", declared=True, observed=n < 4, as_declared=n < 4, placebo=n == 2) for n in range(1, 5)
    )
    report = await tested(
        flip_records={"thread-1": records},
        placebo=PlaceboTest(fact=FACT, ballots=ballots({"D1": "YES", "D2": "YES", "D3": "YES", "D4": "NO"})),
    )
    head = above_answer(report)
    assert (
        "4 agents had said that the answer to crux 1 would change their minds. When told so, those affected (D) kept"
        in head
    )
    assert "1 of 4 agents changed position when told something that decides nothing." in head
    crux = report.markdown().split("### Crux 1.")[1].split("### ")[0]
    assert "Declared to depend on it: 4 of 4; when told so, 3 of 4 changed position; " in crux
    assert "; told something that decides nothing instead (The ferry is red): 1 of 4." in crux
    assert crux.count("flipped ✔") == 3
    assert "did not flip ✘" in crux
    assert "flipped ✔; moved when told something that decides nothing, too" in crux


async def test_brief_with_tests_takes_what_would_turn_the_answer_from_them() -> None:
    majority = await debate(
        {"final": lambda request: {"p1": "NO"}, "closing": lambda request: {"p1": "NO"}}, test_cruxes=0
    )
    fields = {"D1": "YES", "D2": "YES", "D3": "YES", "D4": "NO"}
    turned = CruxTest(thread="thread-1", stipulated="YES", ballots=ballots(fields))
    kept = CruxTest(thread="thread-1", stipulated="NO", ballots=ballots(dict.fromkeys(fields, "NO")))
    head = above_answer(majority.model_copy(update={"tests": (turned, kept)}))
    assert "**Becomes yes if** the answer to crux 1 is yes. When told so: 3 yes · 1 no." in head
    assert "crux 1 is no" not in head
    still = above_answer(majority.model_copy(update={"tests": (kept,)}))
    assert "No tested answer to a crux turns the majority." in still


async def test_tests_without_a_reply_are_not_counted_as_0_of_0() -> None:
    records = tuple(FlipRecord(agent=f"D{n}", declared=True, observed=None) for n in range(1, 5))
    crux = (await tested(flip_records={"thread-1": records})).markdown().split("### Crux 1.")[1].split("### ")[0]
    assert "Declared to depend on it: 4 of 4; no agent was told its answer." in crux


async def test_brief_without_tests_takes_what_would_turn_the_answer_from_declarations_marked_untested() -> None:
    report = await debate(
        {
            "final": lambda request: {"p1": "NO"},
            "closing": lambda request: {"p1": "NO"},
            "flip": lambda request: {"gives_up_if": "YES" if side_of(request.agent) == "NO" else "NO"},
        },
        test_cruxes=0,
    )
    assert "(not tested)" not in above_answer(report)  # two of four are no majority
    no = {name: lambda request: {"p1": "NO"} for name in ("final", "closing")}
    hanging = await debate({**no, "flip": lambda request: {"side": "NO", "gives_up_if": "YES"}}, test_cruxes=0)
    head = above_answer(hanging)
    assert "**Becomes yes if** the answer to crux 1 is yes. By their own word, " in head
    assert "would then give up what they argue for (not tested)." in head


async def test_brief_prints_the_first_step_beside_the_decision() -> None:
    first = "A load test of two weeks, about $9,000."
    report = await debate({"closing": lambda request: {"p1": "NO", "first_step": first}})
    assert re.search(rf"\*\*If you must decide today:\*\* no[^\n]*\. First: {re.escape(first)}", report.markdown())


async def test_brief_names_agents_that_share_a_model_below_the_headline() -> None:
    head = above_answer(await debate())
    assert re.search(r"\*\*Independence:\*\* All 4 agents run on \S+, so they are not 4 independent voices", head)
    assert head.index("SPLIT") < head.index("Independence")


async def test_brief_counts_position_changes_without_a_named_argument() -> None:
    report = await debate({"final": persuaded})
    assert "1 agent changed position without naming an argument." in above_answer(report)
    assert "**Changes without a named argument:** 1." in report.markdown()


# --- objections


async def test_every_challenge_has_a_fate_and_unanswered_ones_are_printed_completely() -> None:
    report = await debate(RICH)
    challenges = [m for m in report.messages if m.move in ("CHALLENGE", "CHALLENGE_EVIDENCE") and m.reply_to]
    assert challenges
    by_id = {message.id: message for message in report.messages}
    foreign = [m.id for m in challenges if by_id[m.reply_to or ""].agent != m.agent]
    assert [objection.id for objection in report.objections] == foreign
    for objection in report.objections:
        replies = [m for m in report.messages if m.reply_to == objection.id and m.agent == objection.to]
        assert (objection.fate == "unanswered") == (not replies)
    text = report.markdown()
    open_ones = [objection for objection in report.objections if objection.fate == "unanswered"]
    assert text.count("Open objection, never answered:") == len(open_ones) > 0
    assert f"{len(open_ones)} objection" in above_answer(report)


# --- what the other records say


async def test_records_across_cruxes_are_shown_with_their_crux_numbers() -> None:
    report = await debate({"commit": own_falsifier}, debaters=6)
    thread = report.threads[0]
    assert thread.crux is not None
    other = thread.crux.model_copy(update={"thread": "thread-2", "question": "Would it pay?"})
    second_thread = thread.model_copy(update={"id": "thread-2", "crux": other})
    report = report.model_copy(update={"threads": (thread, second_thread)})
    first, second = "thread-1", "thread-2"
    message = report.messages[1]
    report = report.model_copy(
        update={
            "common_ground": (CommonGround(statement="Kafka ends in March.", kind="factual", sources=(message.id,)),),
            "coalitions": (
                Coalition(
                    label="Queue camp",
                    members=("D1", "D3"),
                    positions={first: "YES"},
                    cohesion=0.9,
                    shared_beliefs=("It is fast.",),
                ),
            ),
            "coalition_finding": "preliminary: two cruxes",
            "dependencies": (
                Dependency(
                    source=first,
                    target=second,
                    kind="ENTAILS",
                    confidence=0.9,
                    sketch="Because it follows directly.",
                    same_model=True,
                ),
            ),
            "contradictions": (Contradiction(source=first, target=second, agents=("D2",)),),
            "roots": {first: (second,)},
            "next_questions": ("Who pays for the load test?",),
        }
    )
    text = report.markdown()
    assert f"### All 6 agents confirmed\n\n- Kafka ends in March. \\[{message.label}\\] — (factual)" in text
    together = text.split("### Who stands together")[1].split("### ")[0]
    assert "**Queue camp:**" in together
    assert "crux 1 yes; cohesion 0.90; “It is fast.”" in together
    assert "Preliminary: two cruxes." in together
    depends = text.split("### What depends on what")[1].split("## ")[0]
    assert "**Settle crux 1 first:** crux 2 follows from it." in depends
    assert (
        "a yes entails a yes (0.90; confirmed by the same model, which is no check): Because it follows directly."
        in depends
    )
    assert "critic of change (B) on cruxes 1 and 2." in depends
    assert "Who pays for the load test?" in text.split("### What to ask next")[1]
    assert [line for line, refs in brief_lines(report) if not refs] == []


# --- widths


async def test_report_on_a_terminal_of_80_columns_has_no_wider_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = await debate(RICH)
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    _render(report.markdown(), terminal)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, shown.splitlines())) <= 80
