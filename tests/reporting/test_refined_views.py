"""What the views of passes say and draw: the passes, what flowed, how far the roles are from each other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import html5lib
import pytest

from consilience.domain.errors import SettingsError
from consilience.domain.events import Noted, SessionFinished
from consilience.domain.hierarchies import Hierarchy, distance, load_hierarchy, shipped_hierarchies
from consilience.domain.outcome import Limits
from consilience.domain.sections import Diff, Graph, Matrix, Table, View
from consilience.domain.topology import hierarchy
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.refinement import Refinement
from consilience.protocols.refinement.report import RefinementReport
from consilience.protocols.refinement.report_data import HandedDownText
from consilience.protocols.refinement.views import distances_view, flow_rows
from consilience.reporting.export import as_markdown
from consilience.reporting.html import page
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.terminal import cells
from consilience.reporting.terminal import view_text as stored_text
from consilience.reporting.views import COMMON, view_of, view_svg, view_text, views_of
from consilience.reporting.views.charts import DARKEST, draw
from consilience.reporting.views.drawing import layered
from consilience.testing import ScriptedModel, ServerError
from kit import runner
from kit.cases import blog
from kit.golden import Golden
from reporting.refinements import ISSUES, editing, refined
from reporting.sessions import HOSTILE, by_hand, ran, turns

SVG = "{http://www.w3.org/2000/svg}"
OURS = ("passes", "flow", "distances")

FLAT = Hierarchy.model_validate(
    {
        "name": "flat",
        "description": "Two who write, and nobody who helps.",
        "roles": [
            {"name": "lead", "description": "You put it together.", "children": ["a", "b"]},
            {"name": "a", "description": "You write a."},
            {"name": "b", "description": "You write b."},
        ],
    }
)


def silent(request: ModelRequest) -> Any:
    return "I like it." if request.agent == "critic" else editing(request)


def without_body(request: ModelRequest) -> Any:
    return ServerError("down") if request.key == "pass-2/revise/body" else editing(request)


CASES: dict[str, dict[str, Any]] = {
    "three passes": {},
    "four layers": {"protocol": Refinement(hierarchy="research-summary")},
    "nobody helps": {"protocol": Refinement(hierarchy=FLAT, filter="never", max_passes=2)},
    "cut off at once": {"limits": Limits(calls=0)},
    "cut off early": {"limits": Limits(calls=9)},
    "cut off late": {"limits": Limits(calls=20)},
    "no passes": {"limits": Limits(steps=0)},
    "no critic to be understood": {"reply": silent},
    "no filter": {"protocol": blog(filter="never", max_passes=2)},
    "a draft": {"protocol": blog(draft="# Old\n\nIt was short. It was bad.\n\n```\ncode\n```\n", max_passes=2)},
    "heuristic": {"protocol": blog(critic="heuristic", confidence="self", threshold=0.9)},
    "by length": {"protocol": blog(confidence="length", threshold=0.99, max_passes=2)},
    "an author fails": {"reply": without_body, "protocol": blog(max_passes=2)},
    "hostile": {"reply": lambda request: editing(request, HOSTILE), "protocol": blog(max_passes=2)},
}


def tampered(record: SessionRecord, **fields: Any) -> SessionRecord:
    """The same session with other things in its report, as another version may have written them, and no readable presentation."""
    assert record.report is not None
    body = {**record.report.model_dump(mode="json"), **fields}
    (finished,) = [event for event in record.events if isinstance(event, SessionFinished)]
    return SessionRecord(
        session=record.session,
        events=[
            e.model_copy(update={"presentation": ""}) if isinstance(e, SessionFinished) else e for e in record.events
        ],
        text=lambda id: json.dumps(body) if id == finished.report else record.text(id) if id else "unreadable",
        prompt=record.prompt,
    )


def unfinished(record: SessionRecord) -> SessionRecord:
    return replace(record, events=[event for event in record.events if not isinstance(event, SessionFinished)])


def rows(text: str, first: str) -> list[str]:
    """Lines that begin so, their columns set apart by one space."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip().startswith(first)]


# --- passes


async def test_passes_view_has_a_row_per_pass_with_scores(store: SqliteStore, golden: Golden) -> None:
    golden(view_text("passes", await refined(store)))


@pytest.mark.parametrize(
    ("shown", "case"),
    [
        ("met", {"reply": lambda request: editing(request, quality=(5, 9))}),
        ("cut, not judged", {"limits": Limits(calls=20)}),
        ("a draft to compare with", CASES["a draft"]),
        ("a critic without scores", CASES["heuristic"]),
        ("length alone, not judged", {"protocol": blog(confidence="length"), "reply": silent}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_passes_view_of(shown: str, case: dict[str, Any], store: SqliteStore, golden: Golden) -> None:
    golden(view_text("passes", await refined(store, **case)))


async def test_quality_parts_are_shown_with_critic_scores(store: SqliteStore) -> None:
    record = await refined(store, **CASES["by length"])
    text = view_text("passes", record)
    assert rows(text, "part ")[0] == "part length overall coherence accuracy depth issues text"
    assert rows(text, "body ")[0] == "body 0.58 0.50 0.60 0.50 0.40 1 written"
    assert "body: length 0.58, overall 0.50, coherence" in " ".join(view_text("passes", record, 50).split())
    drawn = ElementTree.fromstring(view_svg("passes", record))
    bars = [float(bar.attrib["width"]) for bar in drawn.iterfind(f"{SVG}rect[@class='cv-dot']")]
    whole = max(float(box.attrib["width"]) for box in drawn.iterfind(f"{SVG}rect[@rx='2']"))
    assert [round(bar / whole, 2) for bar in bars[:4]] == [0.61, 0.59, 0.58, 0.66], "one kind"
    words = [element.text for element in drawn.iterfind(f"{SVG}text")]
    assert words.count("critic: overall 0.50") == 2
    assert "bars from 0 to 1: length · dashed: what is needed · grey: kept as it was" in words


async def test_picture_has_a_bar_per_score_in_proportion(store: SqliteStore) -> None:
    drawn = ElementTree.fromstring(view_svg("passes", await refined(store)))
    bars = [float(bar.attrib["width"]) for bar in drawn.iterfind(f"{SVG}rect[@class='cv-dot']")]
    assert len(bars) == 3 + 9
    whole = max(float(box.attrib["width"]) for box in drawn.iterfind(f"{SVG}rect[@rx='2']"))
    assert [round(bar / whole, 2) for bar in bars] == [
        *(0.47, 0.4, 0.5, 0.5),
        *(0.77, 0.7, 0.8, 0.8),
        *(0.57, 0.5, 0.6, 0.6),
    ]
    words = [text.text for text in drawn.iterfind(f"{SVG}text")]
    assert "pass 2, the answer" in words
    assert words.count("0 issues · kept") == 2
    assert len(drawn.findall(f"{SVG}polyline[@class='cv-needed']")) == 3


# --- flow


async def test_weights_shown_are_those_of_the_report(store: SqliteStore) -> None:
    for name in ("three passes", "four layers", "an author fails", "cut off early"):
        record = await refined(store, **CASES[name], session=name.replace(" ", "-"))
        assert record.report is not None
        report = RefinementReport.model_validate(record.report.model_dump())
        best = [contribution for contribution in report.contributions if contribution.step == report.best_pass]
        assert {(contribution.parent, contribution.child): contribution.weight for contribution in best} == {
            (parent, child): weight
            for parent, contribution in report.aggregated_children.items()
            for child, weight in contribution.weights.items()
        }
        drawn = [text.text for text in ElementTree.fromstring(view_svg("flow", record)).iterfind(f"{SVG}text")]
        for best_contribution in best:
            assert f"↑ {best_contribution.weight:.2f}" in drawn


async def test_flow_view_is_rendered_as_text(store: SqliteStore) -> None:
    text = view_text("flow", await refined(store, blog(filter="always")))
    intro, second, third = rows(text, "coordinator → intro")
    assert intro == second == third == "coordinator → intro intent 5 of 7, 71 % 0.24 83 % certain 0.40"
    assert rows(text, "body → fact_checker")[::2] == [
        "body → fact_checker intent 6 of 7, 86 % 0.01 99 % unsure 0.36",
        "body → fact_checker – (unsure) 0.36",
    ]
    narrow = view_text("flow", await refined(store, blog(filter="always"), session="narrow"), 60)
    line = "coordinator → intro: down intent, shown 5 of 7, 71 %, distance 0.24, strength 83 %, up certain, weight 0.40"
    assert line in " ".join(narrow.split())


async def test_prose_reply_declares_lowest_and_failed_revision_keeps_confidence(
    store: SqliteStore,
) -> None:
    def reply(request: ModelRequest) -> Any:
        return "Plain advice." if request.agent == "stylist" else without_body(request)

    record = await refined(store, blog(max_passes=2), reply=reply)
    assert record.report is not None
    report = RefinementReport.model_validate(record.report.model_dump())
    up = {
        (contribution.step, contribution.parent, contribution.child): contribution
        for contribution in report.contributions
    }
    assert (up[1, "conclusion", "stylist"].declared, up[1, "conclusion", "stylist"].weight) == ("unsure", 1.0)
    declared = up[2, "coordinator", "body"]
    assert declared.declared == "fairly sure"
    assert declared.weight == pytest.approx(0.7 / (0.95 + 0.7 + 0.7))


async def test_flow_draws_every_edge_with_share_and_weight(store: SqliteStore) -> None:
    protocol = Refinement(hierarchy="research-summary", max_passes=2)
    edges = sum(len(role.children) for role in protocol.hierarchy.roles)
    drawn = ElementTree.fromstring(view_svg("flow", await refined(store, protocol)))
    assert len(drawn.findall(f"{SVG}polyline")) == 2 * edges
    words = [text.text or "" for text in drawn.iterfind(f"{SVG}text")]
    assert sum(bool(re.fullmatch(r"↓ \d+ %", word)) for word in words) == 2 * edges
    assert sum(bool(re.fullmatch(r"↑ [01]\.\d\d", word)) for word in words) == 2 * edges
    assert "critic" not in words, "nothing is handed down to it"
    assert words.count("methodologist") == 2


def test_strength_of_a_cut_text_is_below_100_percent() -> None:
    down = HandedDownText(
        step=1, parent="a", child="b", what="draft", kept=3, sentences=4, distance=0.002, strength=0.9986
    )
    (row,) = flow_rows(("a", "b"), [down], None)
    assert row == ("a → b", "draft", "3 of 4, 75 %", "<0.01", "99.8 %", "–", "–")


async def test_flow_without_filter_has_no_distances(store: SqliteStore) -> None:
    text = view_text("flow", await refined(store, **CASES["no filter"]))
    assert rows(text, "coordinator → intro")[0] == "coordinator → intro intent 7 of 7, 100 % – 100 % certain 0.40"


# --- distances


async def test_distance_matrix_matches_vectors_and_marks_edges(store: SqliteStore) -> None:
    record = await refined(store, blog(max_passes=1))
    roles = blog().hierarchy.by_name
    picture = next(view.picture for view in record.presentation.views if view.name == "distances")
    assert isinstance(picture, Matrix)
    valued = [cell for cell in picture.cells if cell.value is not None]
    assert len(valued) == len(roles) * (len(roles) - 1)
    for cell in valued:
        assert cell.value == pytest.approx(distance(roles[cell.row].vector, roles[cell.column].vector))
    text = view_text("distances", record)
    assert rows(text, "stylist")[-1] == "stylist 0.30 0.00* 0.14 0.02* 0.20 0.22 ·"


async def test_distances_are_shown_before_the_run_ends(store: SqliteStore) -> None:
    record = await refined(store, blog(max_passes=1))
    assert view_text("distances", unfinished(record)) == view_text("distances", record)


async def test_matrix_colour_grows_with_distance(store: SqliteStore) -> None:
    drawn = ElementTree.fromstring(view_svg("distances", await refined(store, blog(max_passes=1))))
    shaded = drawn.findall(f"{SVG}rect[@class='cv-shade']")
    assert len(shaded) == 7 * 6
    pairs = [(float(cell[0].text.rpartition(" ")[2]), float(cell.attrib["fill-opacity"])) for cell in shaded]  # type: ignore[union-attr]
    assert [shade for _, shade in sorted(pairs)] == sorted(shade for _, shade in pairs)
    assert max(shade for _, shade in pairs) == DARKEST, "a number must be legible on it"
    numbers = [text.text for text in drawn.iterfind(f"{SVG}text") if re.fullmatch(r"\d\.\d\d", text.text or "")]
    assert len(numbers) == 7 * 6
    assert len(drawn.findall(f"{SVG}rect[@class='cv-frame']")) == 2 * 8, "eight edges, on both sides"


async def test_distance_view_without_vectors_explains(store: SqliteStore) -> None:
    text = "The roles have no vectors, and the filter was not set to always, so no distances were measured.\n"
    record = await refined(store, **CASES["nobody helps"])
    assert view_text("distances", record).split() == text.split()
    assert view_text("distances", unfinished(record)).split() == text.split()


async def test_vectors_are_compared_without_filter(store: SqliteStore) -> None:
    record = await refined(store, **CASES["no filter"])
    filtered = await refined(store, blog(max_passes=1), session="filtered")
    assert (
        view_text("distances", record) == view_text("distances", filtered) == view_text("distances", unfinished(record))
    )


async def test_distance_view_after_encoder_failure_explains(store: SqliteStore) -> None:
    record = tampered(await refined(store, blog(max_passes=1, filter="always")), distances={})
    assert view_text("distances", record) == (
        "No distances were measured, so everything that was handed down was shown whole.\n"
    )


async def test_narrow_matrix_becomes_a_list(store: SqliteStore) -> None:
    text = view_text("distances", await refined(store, blog(max_passes=1)), 60)
    assert re.search(r"^  body: .*fact_checker\s+0\.01\*", text.replace("\n    ", " "), re.MULTILINE)
    assert max(map(cells, text.splitlines())) <= 60


async def test_page_shows_the_table_beside_a_picture_as_a_table(store: SqliteStore) -> None:
    record = await refined(store, blog(max_passes=1))
    (view,) = [view for view in record.presentation.views if view.name == "distances"]
    (table,) = [block for block in view.blocks if isinstance(block, Table)]
    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page(record))
    (section,) = [element for element in document.iter() if element.get("id") == "distances"]
    cells = ["".join(cell.itertext()) for body in section.iter("tbody") for cell in body.iter("td")]
    assert cells == [cell for row in table.rows for cell in row]
    assert not list(section.iter("pre"))
    assert all("".join(head.itertext()) for head in section.iter("th")), "a heading without words is none"


def test_rows_of_a_drawn_matrix_have_their_whole_names() -> None:
    claim = "Riders need an hour to reach the market"
    matrix = Matrix(title="Who holds what", columns=("L1N1",), rows=(claim,), cells=())
    assert claim in draw(View(name="claims", heading="Claims", blocks=(), picture=matrix)).svg()


def test_more_roles_than_a_matrix_holds_are_listed_by_edge() -> None:
    names = [f"r{n:02}" for n in range(20)]
    rows = {a: dict.fromkeys(names, 0.25) for a in names}
    text = stored_text(distances_view({}, rows, {"r01": ("r00",)}), 80)
    assert text.splitlines()[-1] == "  r00 → r01: 0.25"


# --- who has them


async def test_refinement_view_of_another_protocol_lists_its_views(store: SqliteStore) -> None:
    record = await ran(store)
    names = list(views_of(record))
    assert names[:5] == [*COMMON, "figures"]
    assert not set(names) & set(OURS)
    for show in (view_text, view_svg):
        with pytest.raises(SettingsError, match="a session of emergence has no view 'passes'") as refusal:
            show("passes", record)
        assert f"Its views: {', '.join(names)}." in str(refusal.value)
    document = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page(record))
    ids = {element.get("id") for element in document.iter()}
    assert "reads" in ids
    assert not ids & set(OURS)


async def test_unfinished_session_has_the_passes_and_the_flow_of_its_report(store: SqliteStore) -> None:
    record = await refined(store)
    assert list(views_of(unfinished(record))) == [*COMMON, "figures", *OURS]
    for name in ("passes", "flow"):
        shown, so_far = view_of(name, record), view_of(name, unfinished(record))
        assert so_far.picture is not None
        assert [b for b in so_far.blocks if isinstance(b, Diff)] == [b for b in shown.blocks if isinstance(b, Diff)]
        texts = (
            view_text(name, record).replace(" (the answer)", "").replace("the answer", ""),
            view_text(name, unfinished(record)),
        )
        finished, running = ([word for word in text.split() if set(word) != {"─"}] for text in texts)
        assert running == finished


async def test_flow_of_a_pass_goes_down_and_then_up(store: SqliteStore) -> None:
    record = await refined(store)
    labels = []
    for n in range(1, len(record.events)):
        picture = view_of("flow", replace(record, events=record.events[:n])).picture
        if isinstance(picture, Graph) and len(picture.panels) == 1:
            edges = picture.panels[0].edges
            labels.append((sum(bool(e.near_source) for e in edges), sum(bool(e.near_target) for e in edges)))
    down, up = zip(*labels, strict=True)
    assert list(down) == sorted(down)
    assert len(set(down)) > 2, "text after text"
    assert set(up) == {0, max(up)}, "at the end of the pass"
    assert list(up) == sorted(up)


async def test_parts_of_a_running_refinement_name_their_issues(store: SqliteStore) -> None:
    record = await refined(store)
    ends = [n for n, event in enumerate(record.events, 1) if isinstance(event, Noted) and event.name == "pass"]
    before, after = (replace(record, events=record.events[:n]).presentation.columns for n in (ends[0] - 1, ends[0]))
    assert [column.badge for column in before] == ["not written yet"] * 3
    assert [column.heading for column in after] == [column.heading for column in before]
    assert after[0].lines == ("2 issues", *ISSUES)
    assert after[0].badge == "after pass 1: written"
    assert after[0].bar is not None
    assert after[0].has("pass-2/draft/intro")


async def test_distances_of_an_unfinished_session_without_vectors_are_a_sentence(store: SqliteStore) -> None:
    roles = Refinement(hierarchy=FLAT, filter="never")
    await runner.start("t", roles, models=ScriptedModel(editing), store=store, session="flat", limits=Limits(steps=1))
    flat = unfinished(read_record(store, "flat"))
    settings = flat.state.started.settings if flat.state.started else {}
    settings["filter"] = "always"
    assert view_text("distances", flat) == (
        "The roles have no vectors; their distances stand in the report, and this session has none yet.\n"
    )


@pytest.mark.parametrize("case", CASES)
async def test_every_view_is_valid_svg(store: SqliteStore, case: str) -> None:
    record = await refined(store, **CASES[case])
    for name in (*COMMON, "figures", *OURS):
        check_view(name, record)


def check_view(name: str, record: SessionRecord) -> None:
    written = view_svg(name, record)
    drawn = ElementTree.fromstring(written)
    titled = {element.attrib["id"]: element.text for element in drawn if element.tag in (f"{SVG}title", f"{SVG}desc")}
    assert drawn.attrib["aria-labelledby"].split() == list(titled)
    assert all(titled.values())
    width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
    for box in drawn.iterfind(f"{SVG}rect[@x]"):
        assert float(box.attrib["x"]) >= 0
        assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
        assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height
    for width in (40, 80, 120):
        text = view_text(name, record, width)
        assert text.endswith("\n")
        assert not re.search("[\x00-\x08\x1b\u202e]", text)
        if name in OURS:
            assert max(map(cells, text.splitlines())) <= width, text
    view = view_of(name, record)
    assert View.model_validate_json(view.model_dump_json()) == view


@pytest.mark.parametrize("case", CASES)
async def test_page_contains_views_and_no_script(store: SqliteStore, case: str) -> None:
    root = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(
        page(await refined(store, **CASES[case]))
    )
    sections = {element.get("id"): element for element in root.iter("section")}
    shown = [name for name in OURS if name in sections]
    assert shown or case in ("cut off at once", "no passes")
    for section in (sections[name] for name in shown):
        assert f"{SVG}svg" in {element.tag for element in section.iter()}
        assert "".join(next(section.iter("details")).itertext()).removeprefix("As text").strip()
    assert not {"script", "img"} & {element.tag for element in root.iter()}
    settings = "".join(next(e for e in root.iter() if e.get("id") == "settings").itertext())
    assert re.search(r"^hierarchy: [a-z-]+$", settings, re.MULTILINE), "its name, not all that is in it"


async def test_malformed_fields_of_a_report_are_skipped(store: SqliteStore) -> None:
    record = await refined(store, blog(max_passes=2))
    odd: list[dict[str, Any]] = [
        {"passes": [{"index": "one"}, {"index": 1, "sections": {"intro": 3, "body": {"scores": {"overall": "x"}}}}, None]},
        {"passes": "many", "handed_down": {"step": 1}, "distances": [1, 2], "aggregated_children": [], "best_pass": 7},
        {"handed_down": [{"step": 1, "parent": "x", "child": "y", "kept": 2, "sentences": 0}, {"step": 1, "parent": 4}]},
        {"distances": {"intro": {"body": 4e300, "intro": None}, "body": {}}, "aggregated_children": {"intro": {"weights": 1}}},
        {"distances": {"</svg>": {"<b>": -2.0}}, "passes": [{"index": 1, "sections": {"</svg>\x1b": {"issues": ["]]>"]}}}]},
    ]  # fmt: skip
    for case in odd:
        shown = tampered(record, **case)
        assert "## Answer" in as_markdown(shown)
        for name in views_of(shown):
            assert view_text(name, shown)
            ElementTree.fromstring(view_svg(name, shown))


# --- the other views


async def test_specialist_of_two_authors_has_no_revision_in_evolution(store: SqliteStore) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent == "researcher":
            return json.dumps({"text": f"A fact for {request.key}."})
        return editing(request)

    record = await refined(store, blog(max_passes=1), reply=reply)
    drawn = {agent: lines[0] for (agent, _), lines in turns(record).items()}
    assert drawn[record.names["researcher"]] == "● first words"
    assert drawn[record.names["intro"]] == "● first words, revised"
    assert "critic" not in drawn, "it says nothing of the matter"


async def test_check_is_labelled_by_pass(store: SqliteStore) -> None:
    record = await refined(store)
    text, drawn = view_text("convergence", record), view_svg("convergence", record)
    assert "after pass 2" in text
    assert ">critic, pass by pass<" in drawn
    assert not re.search(r"\bround\b", text + drawn)
    cut = await refined(store, limits=Limits(calls=9), session="cut")
    assert view_text("convergence", cut) == "No check was made.\n"


async def test_seat_label_equal_to_its_id_is_not_repeated(store: SqliteStore) -> None:
    record = await refined(store, blog(max_passes=1))
    text = view_text("tree", record)
    assert "\n  coordinator: 2 replies\n" in text
    assert "\n      critic: 1 reply\n" in text
    assert "\n          stylist (specialist) (also below conclusion): 2 replies\n" in text
    drawn = ElementTree.fromstring(view_svg("tree", record))
    words = [text.text for text in drawn.iterfind(f"{SVG}text")]
    assert words.count("coordinator") == words.count("critic") == 1
    assert record.names["critic"] == "critic"
    assert record.names["body"] == "body (author)"


# --- where the nodes of a hierarchy stand


def test_layers_avoid_crossings_and_boxes() -> None:
    shape = hierarchy({"lead": ["a", "b", "c"], "a": ["z"], "b": ["y"], "c": ["x"], "x": ["w"], "lead2": ["w"]})
    edges = [(parent, child) for child in shape.agents for parent in shape.parents.get(child, ())]
    layers = layered(shape.levels, edges)
    order = sorted(("x", "y", "z"), key=layers.across.__getitem__)
    assert order == [{"a": "z", "b": "y", "c": "x"}[name] for name in sorted("abc", key=layers.across.__getitem__)]
    assert [level for _, level in layers.routes["lead2", "w"]] == [2, 3]
    for level in set(shape.levels.values()):
        stand = [layers.across[id] for id in shape.agents if shape.levels[id] == level]
        stand += [x for route in layers.routes.values() for x, row in route if row == level]
        stand.sort()
        assert all(right - left >= 1 - 1e-9 for left, right in pairwise(stand))


@pytest.mark.parametrize("name", shipped_hierarchies())
def test_shipped_hierarchies_have_no_crossing(name: str) -> None:
    shape = load_hierarchy(name).shape
    edges = [(parent, child) for child in shape.agents for parent in shape.parents.get(child, ())]
    layers = layered(shape.levels, edges)
    ends: list[tuple[float, float, int]] = []
    for parent, child in edges:
        inner = [x for x, _ in layers.routes[parent, child]]
        places = [layers.across[parent], *inner, layers.across[child]]
        ends += [(x0, x1, shape.levels[parent] + n) for n, (x0, x1) in enumerate(pairwise(places))]
    for n, (x0, x1, level) in enumerate(ends):
        for y0, y1, other in ends[n + 1 :]:
            assert level != other or (x0 - y0) * (x1 - y1) >= 0


def test_edges_do_not_run_through_boxes() -> None:
    shape = hierarchy({"lead": ["a", "b"], "a": ["x"], "b": ["y"], "x": ["y"]})
    drawn = ElementTree.fromstring(view_svg("tree", by_hand(shape)))
    boxes = [tuple(float(box.attrib[side]) for side in ("x", "y", "width", "height"))
             for box in drawn.iterfind(f"{SVG}rect[@rx='6']")]  # fmt: skip
    for line in drawn.iterfind(f"{SVG}polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for (x0, y0), (x1, y1) in pairwise(points):
            for part in range(1, 20):
                x, y = x0 + (x1 - x0) * part / 20, y0 + (y1 - y0) * part / 20
                assert not any(left < x < left + w and top < y < top + h for left, top, w, h in boxes)


def test_a_session_of_a_protocol_that_is_not_installed_has_the_common_views() -> None:
    record = by_hand(hierarchy({"a": ["b"]}))
    assert list(views_of(record)) == [*COMMON, "figures"]


async def test_passes_view_breaks_no_word(store: SqliteStore) -> None:
    record = await refined(store, blog(max_passes=2))
    for width in (40, 60, 66, 80, 100):
        text = view_text("passes", record, width)
        assert max(map(cells, text.splitlines())) <= width
        words = re.findall(r"\w+", text)
        for word in ("quality", "issues", "overall", "coherence", "accuracy", "depth", "conclusion"):
            assert word in words, width
