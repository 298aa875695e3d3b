"""What is shown of a `broadcast`: the tree with ratings and flags, and why a goal was broadcast again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from adversaries.nasty import TEXTS
from consilience.domain.errors import SettingsError
from consilience.domain.events import Noted, SessionFinished
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence
from consilience.reporting.markdown import markdown
from consilience.reporting.record import AnyReport, SessionRecord, read_record
from consilience.reporting.views import view_svg, view_text, views_of
from consilience.reporting.views.charts import DARKEST
from kit import runner
from kit.cases import CASES, plain

SVG = "{http://www.w3.org/2000/svg}"
BROADCAST = next(case for case in CASES if case.name == "broadcast")


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


@pytest.fixture
async def record(store: SqliteStore) -> SessionRecord:
    await runner.start(
        "Is it so?", BROADCAST.protocol, models=ScriptedModel(BROADCAST.script), store=store, session="s"
    )
    return read_record(store, "s")


def with_report(record: SessionRecord, data: dict[str, object]) -> SessionRecord:
    """The same session with another report, shown as the protocol's code makes it."""
    shown = replace(record)
    shown.__dict__["report"] = report = AnyReport.model_validate(data)
    shown.__dict__["_shown"] = report.presentation(), ""
    return shown


async def test_tree_shows_ratings_and_flags(record: SessionRecord) -> None:
    assert record.report is not None
    states = record.report.model_dump()["states"]
    lines = {
        line.partition("(")[2].partition(")")[0]: line
        for line in view_text("tree", record).splitlines()
        if " · " in line
    }
    assert lines.keys() == states.keys()
    for id, state in states.items():
        rating = state["satisfaction"]
        assert ("no rating" if rating is None else f"satisfied {rating:.2f}") in lines[id]
        assert all(flag in lines[id] for flag in state["flags"])
    drawn = ElementTree.fromstring(view_svg("tree", record))
    shades = [box.attrib["fill-opacity"] for box in drawn.iterfind(f"{SVG}rect[@class='cv-shade']")]
    rated = [state["satisfaction"] for state in states.values() if state["satisfaction"] is not None]
    assert sorted(map(float, shades)) == pytest.approx(sorted(DARKEST * rating for rating in rated), abs=0.006)


async def test_iteration_rows_show_verdict_and_cause(record: SessionRecord) -> None:
    assert record.report is not None
    iterations = record.report.model_dump()["iterations"]
    assert len(iterations) > 1, "the case broadcasts again"
    text = view_text("iterations", record)
    for iteration in iterations:
        name = f"{iteration['node']} {'.'.join(map(str, iteration['path']))}"
        (row,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert ("not satisfied" in row) is not iteration["satisfied"]
        assert ("said otherwise" in row) is (iteration["said_satisfied"] not in (None, iteration["satisfied"]))
    again = [line for line in text.splitlines() if "broadcast again because of" in line]
    assert len(again) == sum(bool(iteration["caused_by"]) for iteration in iterations)
    assert "(L2N" in text, "flags are named by tag and node"
    drawn = ElementTree.fromstring(view_svg("iterations", record))
    assert len(drawn.findall(f"{SVG}rect[@class='cv-cell']")) == sum(
        iteration["mean"] is not None for iteration in iterations
    )
    assert drawn.find(f"{SVG}title") is not None


async def test_critical_flags_come_first_with_a_total(record: SessionRecord) -> None:
    assert record.report is not None
    data = record.report.model_dump()
    (seat,) = [id for id in data["states"] if id == "L2N1"]
    tags = ["resource_request", "needs_reframing", "goal_mismatch"]
    raised = [
        {
            "id": f"f{n}",
            "tag": tag,
            "node": seat,
            "critical": tag != "resource_request",
            "severity": "warning",
            "text": "",
        }
        for n, tag in enumerate([*tags[:1] * 6, *tags])
    ]
    data["flags"] = raised
    data["states"][seat] |= {"satisfaction": 0.8, "flags": tags}
    data["iterations"] = [{**data["iterations"][0], "flags": [flag["id"] for flag in raised]}]
    shown = with_report(record, data)
    first = "needs_reframing (L2N1), goal_mismatch (L2N1), resource_request (L2N1), resource_request"
    assert f"9 flags, 2 critical: {first}" in " ".join(view_text("iterations", shown).split())
    assert "satisfied 0.80; flags: needs_reframing, goal_mismatch, resource_request" in view_text("tree", shown, 160)
    drawn = {view: ElementTree.fromstring(view_svg(view, shown)) for view in ("iterations", "tree")}
    texts = {view: [words.text for words in svg.iterfind(f"{SVG}text")] for view, svg in drawn.items()}
    assert "satisfied 0.80; 3 tags" in texts["tree"]
    assert any(words and words.startswith("critical: needs_reframing") for words in texts["tree"])
    assert " ".join(filter(None, texts["iterations"])).count("resource_request (L2N1)") == 7, "none is cut away"


async def test_report_of_broadcast_counts_iterations_and_satisfaction(record: SessionRecord) -> None:
    assert record.report is not None
    text = markdown(record.report)
    assert "stable" not in text.partition("## How far")[0]
    figures = view_text("figures", record)
    assert "Iterations: 2 of at most 2" in figures
    assert "Satisfaction of the agents below the root" in figures


async def test_other_protocols_have_no_iterations_view(store: SqliteStore) -> None:
    await runner.start("Is it so?", Emergence(max_rounds=1), models=ScriptedModel(plain), store=store, session="e")
    shown = read_record(store, "e")
    assert "iterations" not in views_of(shown)
    with pytest.raises(SettingsError, match="a session of emergence has no view 'iterations'") as refusal:
        view_text("iterations", shown)
    assert "tree, evolution, convergence, reads" in str(refusal.value)
    assert "satisfied" not in view_text("tree", shown)


async def test_running_session_shows_goals_ratings_and_flags(record: SessionRecord) -> None:
    events = [event for event in record.events if not isinstance(event, SessionFinished)]
    running = replace(record, events=events)
    whole = view_text("iterations", running)
    finished = view_text("iterations", record).splitlines()
    rows = [line for line in whole.splitlines() if line.startswith("L1N1 ") and "satisfied" in line]
    assert rows == [line for line in finished if line.startswith("L1N1 ") and "satisfied" in line]
    assert "goal: L1N1 on iteration-1/broadcast/L1N1" in whole
    assert "satisfied 0.80" in view_text("tree", running)
    assert "flags: " in view_text("tree", running)


async def test_unjudged_iteration_is_shown_as_running(record: SessionRecord) -> None:
    """The session as it was when the first leaf had rated its text."""
    events = []
    for event in record.events:
        events.append(event)
        if isinstance(event, Noted) and event.name == "rating":
            break
    text = view_text("iterations", replace(record, events=events))
    (row,) = [line for line in text.splitlines() if line.startswith("L1N1 1 ")]
    assert "running" in row
    assert "0.50" in row
    assert "goal: L1N1 on iteration-1/broadcast/L1N1" in text


@pytest.mark.parametrize("name", TEXTS)
async def test_hostile_texts_are_shown_as_text(record: SessionRecord, name: str) -> None:
    assert record.report is not None
    odd = TEXTS[name].encode("utf-8", "replace").decode()
    data = record.report.model_dump()
    data["iterations"] = [
        {**iteration, "feedback": odd, "caused_by": [odd], "flags": [odd]} for iteration in data["iterations"]
    ]
    data["flags"] = [{**flag, "text": odd} for flag in data["flags"]]
    shown = with_report(record, data)
    for view in ("tree", "iterations"):
        assert "\x1b" not in view_text(view, shown)
        ElementTree.fromstring(view_svg(view, shown))
