"""What is shown of a `broadcast`: the tree with ratings and flags, and why a goal was broadcast again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from adversaries.nasty import TEXTS
from consilience.engine import runner
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence
from consilience.reporting.markdown import AnyReport, markdown
from consilience.reporting.record import Record, record_of
from consilience.reporting.views import lacking, view_svg, view_text
from kit.cases import CASES, plain

SVG = "{http://www.w3.org/2000/svg}"
BROADCAST = next(case for case in CASES if case.name == "broadcast")


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


@pytest.fixture
async def record(store: SqliteStore) -> Record:
    await runner.start(
        "Is it so?", BROADCAST.protocol, models=ScriptedModel(BROADCAST.script), store=store, session="s"
    )
    return record_of(store, "s")


async def test_the_tree_says_how_satisfied_everybody_is_and_what_they_flagged(record: Record) -> None:
    assert record.report is not None
    states = record.report.model_dump()["states"]
    lines = {line.strip("├─└│ ").split()[0]: line for line in view_text("tree", record).splitlines() if " · " in line}
    assert lines.keys() == states.keys()
    for id, state in states.items():
        rating = state["satisfaction"]
        assert ("no rating" if rating is None else f"satisfied {rating:.2f}") in lines[id]
        assert all(flag in lines[id] for flag in state["flags"])
    drawn = ElementTree.fromstring(view_svg("tree", record))
    shades = [box.attrib["fill-opacity"] for box in drawn.iterfind(f"{SVG}rect[@class='cv-shade']")]
    rated = [state["satisfaction"] for state in states.values() if state["satisfaction"] is not None]
    assert sorted(map(float, shades)) == pytest.approx(sorted(0.55 * rating for rating in rated), abs=0.006)


async def test_every_iteration_has_a_row_with_its_verdict_and_what_caused_it(record: Record) -> None:
    assert record.report is not None
    given = record.report.model_dump()["iterations"]
    assert len(given) > 1, "the case broadcasts again"
    text = view_text("iterations", record)
    for one in given:
        name = f"{one['node']} {'.'.join(map(str, one['path']))}"
        (row,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert ("not satisfied" in row) is not one["satisfied"]
        assert ("said otherwise" in row) is (one["said_satisfied"] not in (None, one["satisfied"]))
    again = [line for line in text.splitlines() if "broadcast again because of" in line]
    assert len(again) == sum(bool(one["caused_by"]) for one in given)
    assert "(L2N" in text, "flags are named by tag and node"
    drawn = ElementTree.fromstring(view_svg("iterations", record))
    assert len(drawn.findall(f"{SVG}rect[@class='cv-cell']")) == sum(one["mean"] is not None for one in given)
    assert drawn.find(f"{SVG}title") is not None


async def test_critical_flags_come_first_and_all_are_counted(record: Record) -> None:
    assert record.report is not None
    data = record.report.model_dump()
    (seat,) = [id for id in data["states"] if id == "L2N1"]
    tags = ["resource_request", "needs_reframing", "goal_mismatch"]
    raised = [
        {"id": f"f{n}", "tag": tag, "node": seat, "critical": tag != "resource_request"}
        for n, tag in enumerate([*tags[:1] * 6, *tags])
    ]
    data["flags"] = raised
    data["states"][seat] |= {"satisfaction": 0.8, "flags": tags}
    data["iterations"] = [{**data["iterations"][0], "flags": [flag["id"] for flag in raised]}]
    shown = replace(record)
    shown.__dict__["report"] = AnyReport.model_validate(data)
    first = "needs_reframing (L2N1), goal_mismatch (L2N1), resource_request (L2N1), resource_request"
    assert f"9 flags, 2 critical: {first}" in " ".join(view_text("iterations", shown).split())
    assert "satisfied 0.80; flags: needs_reframing, goal_mismatch, resource_request" in view_text("tree", shown, 160)
    drawn = {view: ElementTree.fromstring(view_svg(view, shown)) for view in ("iterations", "tree")}
    said = {view: [words.text for words in svg.iterfind(f"{SVG}text")] for view, svg in drawn.items()}
    assert "satisfied 0.80; 3 tags" in said["tree"]
    assert any(words and words.startswith("critical: needs_reframing") for words in said["tree"])
    assert " ".join(filter(None, said["iterations"])).count("resource_request (L2N1)") == 7, "none is cut away"


async def test_the_report_speaks_of_iterations_and_satisfaction(record: Record) -> None:
    assert record.report is not None
    text = markdown(record.report)
    assert "| Iterations | 2 of at most 2 |" in text
    assert "Satisfaction of those below the root" in text
    assert "stable" not in text.partition("## How far")[0]


async def test_other_sessions_have_no_iterations(store: SqliteStore) -> None:
    await runner.start("Is it so?", Emergence(max_rounds=1), models=ScriptedModel(plain), store=store, session="e")
    assert lacking("iterations", record_of(store, "e")) == "a session of emergence has no iterations"
    assert "satisfied" not in view_text("tree", record_of(store, "e"))


@pytest.mark.parametrize("name", TEXTS)
async def test_odd_reports_are_shown_all_the_same(record: Record, name: str) -> None:
    assert record.report is not None
    odd = TEXTS[name].encode("utf-8", "replace").decode()
    row = {"node": odd, "path": "x", "ratings": {odd: odd, "a": None}, "mean": odd, "flags": [odd, 3], "feedback": odd}
    state = {"satisfaction": odd, "flags": [odd]}
    given = {"iterations": [row, 7, {}], "states": {odd: state, "L1N1": state, "L2N1": 4}, "flags": [{"id": 3}, odd]}
    report = AnyReport.model_validate({**record.report.model_dump(), **given})
    shown = replace(record)
    shown.__dict__["report"] = report
    for view in ("tree", "iterations"):
        assert "\x1b" not in view_text(view, shown)
        ElementTree.fromstring(view_svg(view, shown))
