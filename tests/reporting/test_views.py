"""Views of finished and unfinished sessions of any topology, as text and as pictures."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from consilience.domain.events import (
    AnswerReceived,
    CallCompleted,
    CallFailed,
    CheckRecorded,
    Event,
    MessagePublished,
    SessionParked,
)
from consilience.domain.outcome import Check, FailureKind
from consilience.domain.sections import Graph, Matrix
from consilience.domain.topology import Topology, complete, hierarchy, independent, star, tree
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.emergence import Emergence
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.terminal import cells, fitted, wrapped
from consilience.reporting.views import COMMON, reads, view_markdown, view_of, view_svg, view_text
from consilience.reporting.views.drawing import pixels
from consilience.testing import ScriptedModel, ServerError
from kit import runner
from kit.cases import CASES
from reporting.sessions import HOSTILE, by_hand, call, ran, saying, turns

DEBATE = next(case for case in CASES if case.name == "debate")
SVG = "{http://www.w3.org/2000/svg}"


# --- who took part


def test_tree_draws_lateral_edges_and_agent_states(recorded: SessionRecord) -> None:
    assert view_text("tree", recorded) == (
        "4 agents, tree, all on local:qwen2.5-coder-1.5b\n"
        "\n"
        "  integrator (L1N1): 3 replies\n"
        "      analytical (L2N1): 4 replies\n"
        "      creative (L2N2): 4 replies\n"
        "      critical (L2N3): 4 replies\n"
        "\n"
        "  read each other: L2N1 – L2N2 – L2N3\n"
    )
    drawn = ElementTree.fromstring(view_svg("tree", recorded))
    lines = Counter(line.attrib["class"] for line in drawn.iterfind(f"{SVG}polyline"))
    assert lines == {"cv-line": 3, "cv-side": 2}


def test_agent_with_two_parents_is_drawn_once() -> None:
    shape = hierarchy({"Chair": ["Law", "Tech"], "Law": ["Clerk"], "Tech": ["Clerk", "Coder"]})
    lines = view_text("tree", by_hand(shape)).splitlines()
    assert sum("Clerk" in line for line in lines) == 1
    assert "          Clerk (seat) (also below Tech): not asked yet, 0 replies" in lines
    drawn = ElementTree.fromstring(view_svg("tree", by_hand(shape)))
    assert len(drawn.findall(f"{SVG}polyline")) == 5, "an edge for every parent"
    assert "\n    - **Clerk (seat) (also below Tech):** not" in view_markdown("tree", by_hand(shape))


def test_deep_tree_keeps_its_width() -> None:
    chain = hierarchy({f"a{n}": [f"a{n + 1}"] for n in range(40)})
    assert max(map(cells, view_text("tree", by_hand(chain), 40).splitlines())) <= 40


@pytest.mark.parametrize(
    ("event", "expected", "tone"),
    [
        (
            CallFailed(key="a/A1", agent="A1", failure=FailureKind.SERVER),
            "failed: server, 0 replies, 1 call without a reply",
            "bad",
        ),
        (
            CallFailed(key="a/A1", agent="A1", failure=FailureKind.BUDGET),
            "cut short by budget, 0 replies, 1 call without a reply",
            "quiet",
        ),
        (SessionParked(awaited=("ask/A1",)), "awaited, 0 replies", "wait"),
        (AnswerReceived(key="ask/A1", text="t"), "answered, 0 replies", "wait"),
        (CallCompleted(key="a/A1", agent="A1", text="x"), "1 reply", "plain"),
    ],
)
def test_seat_state_is_shown(event: Event, expected: str, tone: str) -> None:
    record = by_hand(complete(2), [event])
    assert f"\n  seat (A1): {expected}\n" in view_text("tree", record)
    picture = view_of("tree", record).picture
    assert isinstance(picture, Graph)
    assert picture.panels[0].nodes[0].tone == tone


def test_tree_view_draws_lines_between_up_to_twelve_peers() -> None:
    def lines(n: int) -> int:
        return len(ElementTree.fromstring(view_svg("tree", by_hand(complete(n)))).findall(f"{SVG}polyline"))

    assert lines(6) == 15
    assert lines(400) == 0, "a frame instead of 79 800 lines"


def boxes(record: SessionRecord) -> list[tuple[float, float, float, float]]:
    rectangles = ElementTree.fromstring(view_svg("tree", record)).iterfind(f"{SVG}rect[@rx='6']")
    return [tuple(float(box.attrib[side]) for side in ("x", "y", "width", "height")) for box in rectangles]  # type: ignore[misc]


@pytest.mark.parametrize(
    "shape",
    [
        *(complete(n) for n in (1, 2, 3, 5, 8, 12, 13, 30)),
        tree(3, 3),
        tree(5, 3),
        star("Lead", ["a", "b", "c"]),
        hierarchy({"a": ["b", "c"], "b": ["d"], "c": ["d", "e"], "f": ["e"]}),
    ],
    ids=lambda shape: f"{shape.kind}-{len(shape.agents)}",
)
def test_no_box_covers_another(shape: Topology) -> None:
    placed = boxes(by_hand(shape))
    assert len(placed) == len(shape.agents)
    for n, (x, y, width, height) in enumerate(placed):
        assert x >= 0
        assert y >= 0
        for other_x, other_y, *_ in placed[n + 1 :]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height


# --- what was said


def named(key: str, phase: tuple[str, int], text: str, place: str, kind: str = "reply") -> CallCompleted:
    """A reply of the agent that the key ends in, in a phase that the key does not number."""
    return CallCompleted(key=key, agent=key.rpartition("/")[2], phase=phase, text=text, place=place, kind=kind)


def test_evolution_shows_the_change_of_each_turn(store: SqliteStore) -> None:
    record = by_hand(
        complete(2),
        [
            call("talk-1/A1", "one two three", "0"),
            call("talk-1/A2", "alpha", "1"),
            call("talk-2/A1", "one two four", "2"),
            call("talk-2/A2", "alpha", "3"),
        ],
    )
    assert turns(record) == {
        ("seat (A1)", "talk 1"): ("● first words", "one two three"),
        ("seat (A1)", "talk 2"): ("▲ changed, 50 % of words kept", "one two four"),
        ("seat (A2)", "talk 1"): ("● first words", "alpha"),
        ("seat (A2)", "talk 2"): ("= same words", "alpha"),
    }


def test_evolution_omits_a_common_beginning() -> None:
    opening = "I keep my answer, which is what it was before, and for all the reasons that I gave. "
    record = by_hand(
        complete(1),
        [
            call("talk-1/A1", f"{opening}Rents rise.", "0"),
            call("talk-2/A1", f"{opening}Rents fall.", "1"),
            call("talk-3/A1", opening.strip(), "2"),
        ],
    )
    excerpts = [lines[-1] for lines in turns(record).values()]
    assert excerpts == [f"{opening}Rents rise.", "… Rents fall.", opening.strip()]


def test_evolution_skips_replies_without_text() -> None:
    division = '{"parts": [{"title": "one"}]}'
    events = [
        named("split/L1N1", ("split", 1), division, "0", kind="split"),
        named("execute/L2N1", ("execute", 2), '{"rents": 3}', "1"),
        named("execute/L2N2", ("execute", 2), "rents rise", "2"),
        named("synthesize/L1N1", ("synthesize", 1), "rents rise", "3"),
    ]
    text = view_text("evolution", by_hand(tree(2, 2), events), 60)
    assert text == (
        "seat (L1N1)\n\n  synthesize [first words] rents rise\n\n"
        "seat (L2N1)\n\n  execute [first words] rents: 3\n\n"
        "seat (L2N2)\n\n  execute [first words] rents rise\n"
    ), "and JSON is never shown as speech"
    events.append(named("pass-1/whole/L1N1", ("whole", 1), "rents fall", "4", kind="whole"))
    events.append(named("pass-2/whole/L1N1", ("whole", 2), "rents fall", "5", kind="whole"))
    root = [lines[0] for (agent, _), lines in turns(by_hand(tree(2, 2), events)).items() if agent == "seat (L1N1)"]
    assert root == ["● first words", "● first words", "= same words"]


def test_steps_counted_by_level_are_labelled_by_level() -> None:
    events = [
        named("synthesize/L2N1", ("synthesize", 2), "rents rise", "0"),
        named("synthesize/L1N1", ("synthesize", 1), "rents rise", "1"),
    ]
    text = view_text("evolution", by_hand(tree(2, 3), events))
    assert re.findall(r"^  (.+) \[", text, re.MULTILINE) == ["synthesize, level 1", "synthesize, level 2"]


async def test_evolution_marks_changed_positions(store: SqliteStore) -> None:
    record = await ran(store, Emergence(children=3, max_rounds=2, answer_pattern="yes|no"))
    marks = {step: lines[:2] for (agent, step), lines in turns(record).items() if agent == record.names["L2N2"]}
    assert [lines[-1] for lines in marks.values()] == ["position: no", "position: no", "◆ moved to: yes"]
    assert marks["round 1"][0] == "● first words, revised"
    assert "; moved to: yes]" in view_text("evolution", record, 120)


async def test_failed_turn_is_shown_in_its_step(store: SqliteStore) -> None:
    def reply(request: ModelRequest) -> object:
        return ServerError("down") if request.agent == "L2N2" and "round-2" in request.key else saying(request)

    record = await ran(store, reply=reply)
    assert turns(record)[record.names["L2N2"], "round 2"] == ("✕ no reply: server",)
    assert "  round 2 [no reply: server]\n" in view_text("evolution", record, 100)


async def test_self_reviews_come_after_the_rounds(store: SqliteStore) -> None:
    record = await ran(store, Emergence(max_rounds=2, strange_loops=1))
    assert {step: None for _, step in turns(record)} == dict.fromkeys(("round 1", "round 2", "finalize 1"))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_evolution_lists_what_was_said(recorded: SessionRecord, width: int) -> None:
    text = view_text("evolution", recorded, width)
    assert "batch jobs" in " ".join(text.split())
    assert max(map(cells, text.splitlines())) <= width
    assert "round 1 [first words, revised] I keep my answer" in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("name", ["tree", "evolution", "convergence", "reads"])
def test_text_view_keeps_its_width(name: str, width: int) -> None:
    names = ["Lead", "plain_writer", "methodologist", "evidence", "critic", "chronicler"]
    flags = ", ".join(f"needs_reframing ({name})" for name in names)
    events: list[Event] = [call(f"talk-1/{name}", flags, str(n)) for n, name in enumerate(names)]
    shown = [f"q:A:talk-1/{name}" for name in names]
    events.append(call("talk-2/Lead", flags, "9", *shown))
    events.append(
        CheckRecorded(index=2, check=Check(met=False, kind="satisfaction", score=0.7, threshold=0.85, detail=flags))
    )
    views = dict.fromkeys(names[1:], "Somebody who reads it as the members would, all of them")
    text = view_text(name, by_hand(star("Lead", names[1:]), events, views=views), width)
    assert max(map(cells, text.splitlines())) <= width
    if name == "convergence":
        assert flags in " ".join(text.split()), "none of it is cut away"


# --- how close it came


def checks(*items: Check) -> SessionRecord:
    return by_hand(complete(2), [CheckRecorded(index=n, check=check) for n, check in enumerate(items, 2)])


def test_scores_of_different_kinds_have_separate_scales() -> None:
    def together(n: int, met: bool) -> Check:
        parts = (
            Check(met=met, kind="jaccard", score=0.2 * n, threshold=0.85),
            Check(met=met, kind="judge", score=2.0 * n, threshold=8),
        )
        return Check(met=met, kind="all", parts=parts)

    record = checks(together(1, False), together(4, True))
    assert "jaccard (scale 0 to 1)" in view_text("convergence", record)
    assert "judge (scale 0 to 8)" in view_text("convergence", record)
    drawn = ElementTree.fromstring(view_svg("convergence", record))
    assert len(drawn.findall(f"{SVG}polyline[@class='cv-curve']")) == 2
    assert len(drawn.findall(f"{SVG}polyline[@class='cv-needed']")) == 2
    assert "after round 2 ██████·" in view_text("convergence", record)
    assert "0.20, needed 0.85: not met" in view_text("convergence", record)
    assert "together after round 3: met" in view_text("convergence", record)


def test_check_without_a_score_has_no_axes() -> None:
    record = checks(Check(met=False, kind="judge", threshold=0.8, detail="no judgement: server"))
    assert view_text("convergence", record) == (
        "judge (scale 0 to 1)\n\n  after round 2 no score, needed 0.8: not met\n    no judgement: server\n"
    )
    assert "polyline" not in view_svg("convergence", record)


def test_convergence_points_rise_with_the_score() -> None:
    record = checks(*(Check(met=s > 0.8, kind="jaccard", score=s, threshold=0.8) for s in (0.1, 0.5, 0.9)))
    (curve,) = ElementTree.fromstring(view_svg("convergence", record)).iterfind(f"{SVG}polyline[@class='cv-curve']")
    heights = [float(point.split(",")[1]) for point in curve.attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2])


# --- who read whom


def read_counts(record: SessionRecord) -> dict[tuple[str, str], float | None]:
    picture = reads.view(record).picture
    assert isinstance(picture, Matrix)
    return {(cell.row, cell.column): cell.value for cell in picture.cells}


async def test_reads_view_counts_quoted_messages(store: SqliteStore) -> None:
    """Counted from the text of the prompts as sent, which names its authors where peers are not anonymous."""
    sent: list[ModelRequest] = []

    def reply(request: ModelRequest) -> object:
        sent.append(request)
        return saying(request)

    record = await ran(store, Emergence(children=4, max_rounds=2, anonymous_peers=False), reply=reply)
    expected: Counter[tuple[str, str]] = Counter()
    for request in sent:
        for label in re.findall(r"<quote [0-9a-f]+ from (.+)>", request.text):
            author = {"you": request.agent, "parent": "L1N1"}.get(label, label.partition(".")[0])
            expected[request.agent, author] += 1
    assert expected
    assert read_counts(record) == {(record.names[a], record.names[b]): n for (a, b), n in expected.items()}
    shown = [int(n.replace(",", "")) for n in re.findall(r": ([\d,]+) messages? shown", view_text("reads", record))]
    assert sum(shown) == expected.total()
    assert "leaf_respond 1" not in view_svg("reads", record), "nobody had read anybody"


def test_reads_view_counts_documents_objections_and_unknown_authors() -> None:
    record = by_hand(
        complete(2),
        [
            call("talk-1/A1", "one", "0", "k:t", "s:S1"),
            MessagePublished(id="talk-1/A1/objection-1", sender="A1", kind="objection", text="no", place="1"),
            call(
                "talk-1/A2",
                "two",
                "2",
                "k:t",
                "s:S1",
                "q:A:talk-1/A1",
                "q:A.1:talk-1/A1/objection-1",
                "q:B:lost",
                "t:x",
            ),
            call("talk-2/A1", "three", "3", "q:you:talk-1/A1"),
        ],
    )
    one, two = "seat (A1)", "seat (A2)"
    assert read_counts(record) == {
        (one, one): 1, (one, "S1"): 1, (two, one): 2, (two, "S1"): 1, (two, reads.UNKNOWN): 1,
    }  # fmt: skip
    text = view_text("reads", record)
    assert "seat (A2) read seat (A1) ×2, S1, unknown author" in text
    assert "seat (A1) read its own" in text
    tips = [tip.text for tip in ElementTree.fromstring(view_svg("reads", record)).iterfind(f"{SVG}rect/{SVG}title")]
    assert "seat (A2) was shown 2 messages of seat (A1): talk 1 ×2" in tips
    assert "seat (A1) was shown 1 message of its own: talk 2 ×1" in tips


def test_reads_view_separates_documents_from_agents() -> None:
    record = by_hand(independent(["S1"]), [call("answer-1/S1", "one", "0", "k:t", "s:S1")])
    assert read_counts(record) == {("seat (S1)", "document S1"): 1}
    for text in (view_text("reads", record), view_svg("reads", record)):
        assert "document S1" in text
        assert "own:" not in text
        assert "read its own" not in text


async def test_tree_view_leaves_out_service_seats_without_a_call_and_names_who_reads_whom(store: SqliteStore) -> None:
    await runner.start("Why?", DEBATE.protocol, models=ScriptedModel(DEBATE.script), store=store, session="s")
    record = read_record(store, "s")
    assert not record.agents["moderator"].voice
    for shown in (view_text("tree", record), view_svg("tree", record)):
        assert "crystallizer" in shown
        assert "moderator" not in shown
    voices = ", ".join(record.names[id] for id, agent in record.agents.items() if agent.voice)
    assert f"read each other: {voices}" in view_svg("tree", record)


def test_reads_view_is_exported_as_a_table() -> None:
    record = by_hand(complete(2), [call("talk-1/A1", "one", "0"), call("talk-2/A2", "two", "1", "q:A:talk-1/A1")])
    assert "| seat (A2) | 1 |" in view_markdown("reads", record)


def test_convergence_view_is_exported_as_a_list() -> None:
    record = checks(Check(met=False, kind="jaccard", score=0.5, threshold=0.8, detail="far apart"))
    written = view_markdown("convergence", record)
    assert "### jaccard (scale 0 to 1)\n\n- **after round 2** " in written
    assert "0.50, needed 0.8: not met\n  - far apart" in written


def test_reads_view_ignores_refused_calls() -> None:
    refused = CallFailed(key="talk-2/A2", agent="A2", failure=FailureKind.BUDGET, prompt="q:A:talk-1/A1", place="1")
    record = by_hand(complete(2), [call("talk-1/A1", "one", "0"), refused])
    assert view_text("reads", record) == "No agent has read a message of another.\n"


# --- all of them


def hostile() -> SessionRecord:
    """Agents whose names, points of view and words try to break out."""
    shape = hierarchy({"<b>&": ['"]-->', "c"]})
    events = [
        call('talk-1/"]-->', HOSTILE, "0"),
        call("talk-1/c", HOSTILE, "1", 'q:A:talk-1/"]-->'),
        CheckRecorded(index=2, check=Check(met=False, kind="<i>&]]>", score=0.5, threshold=0.8, detail=HOSTILE)),
        CallFailed(key="talk-2/c", agent="c", failure=FailureKind.SERVER, detail=HOSTILE, place="2"),
    ]
    return by_hand(shape, events, task=HOSTILE, views={"c": HOSTILE})


NOTHING = SessionRecord("rnothing", [], text=str, prompt=lambda id: ())


@pytest.mark.parametrize("name", [*COMMON, "figures"])
@pytest.mark.parametrize("case", ["recorded", "hostile", "nothing", "only begun"])
def test_every_picture_has_title_and_description(name: str, case: str, recorded: SessionRecord) -> None:
    record = {"recorded": recorded, "hostile": hostile(), "nothing": NOTHING, "only begun": by_hand(tree(2, 2))}[case]
    written = view_svg(name, record)
    drawn = ElementTree.fromstring(written)
    assert drawn.tag == f"{SVG}svg"
    titled = {element.attrib["id"]: element.text for element in drawn if element.tag in (f"{SVG}title", f"{SVG}desc")}
    assert drawn.attrib["aria-labelledby"].split() == list(titled)
    assert all(titled.values())
    assert drawn.attrib["role"] == "img"
    allowed = {"svg", "title", "desc", "style", "rect", "polyline", "circle", "text"}
    assert {element.tag.removeprefix(SVG) for element in drawn.iter()} <= allowed
    assert "prefers-color-scheme:dark" in written
    assert not re.search(r"(?:href|src|url\()", re.sub(r">[^<]*<", "><", written))
    assert not re.search("[\x00-\x08\x1b\u202e]", written + view_text(name, record))


def test_picture_contains_all_its_elements() -> None:
    for name in (*COMMON, "figures"):
        drawn = ElementTree.fromstring(view_svg(name, hostile()))
        width, height = float(drawn.attrib["width"]), float(drawn.attrib["height"])
        for box in drawn.iterfind(f"{SVG}rect[@x]"):
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width
            assert float(box.attrib["y"]) + float(box.attrib["height"]) <= height


@pytest.mark.parametrize(
    ("words", "book", "bold"),
    [
        ("Großschönau hat es 2019 vorgemacht &", 261, 296),
        ("What the council minuted WWW mmm", 253, 282),
    ],
)
def test_picture_width_fits_the_widest_font(words: str, book: float, bold: float) -> None:
    """Widths are those of DejaVu Sans at 13 px, measured with cairo."""
    assert book <= pixels(words) <= 1.1 * book
    assert bold <= pixels(words, "cv-strong") <= 1.1 * bold


def test_text_stays_inside_its_box() -> None:
    text = (
        "Die Gemeinde Großschönau hat es 2019 vorgemacht & it worked <b>WELL</b>. MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM 日本"
    )
    drawn = ElementTree.fromstring(view_svg("evolution", by_hand(complete(1), [call("talk-1/A1", text, "0")])))
    (box,) = drawn.iterfind(f"{SVG}rect[@x]")
    left, width = float(box.attrib["x"]), float(box.attrib["width"])
    inside = [words for words in drawn.iterfind(f"{SVG}text") if float(words.attrib["x"]) == left + 10]
    assert "".join(words.text or "" for words in inside[2:]).replace(" ", "") == text.replace(" ", "")
    for words in inside:
        assert 10 + pixels(words.text or "", words.attrib.get("class", "")) <= width - 10


def columns(drawn: ElementTree.Element, names: list[str]) -> list[tuple[float, float]]:
    """From where to where headings in the middle of their columns reach."""
    headings = [words for words in drawn.iterfind(f"{SVG}text[@text-anchor='middle']") if words.text in names]
    widths = [pixels(words.text or "", words.attrib["class"]) / 2 for words in headings]
    return [
        (float(w.attrib["x"]) - half, float(w.attrib["x"]) + half) for w, half in zip(headings, widths, strict=True)
    ]


def test_reads_view_column_headings_do_not_overlap() -> None:
    names = ["Lead", "plain_writer", "methodologist", "c"]
    shape = star("Lead", names[1:])
    calls = [call(f"talk-1/{name}", name, str(n)) for n, name in enumerate(names)]
    shown = call("talk-2/Lead", "all", "9", *(f"q:A:talk-1/{name}" for name in names))
    headings = [f"{name} (seat)" for name in names]
    reached = columns(ElementTree.fromstring(view_svg("reads", by_hand(shape, [*calls, shown]))), headings)
    assert len(reached) == len(names)
    assert all(end < start for (_, end), (start, _) in pairwise(reached))


def test_wide_letters_count_twice() -> None:
    assert (cells("ab"), cells("日本"), fitted("日本語", 5), fitted("abc", 3)) == (2, 4, "日本…", "abc")
    assert wrapped("the quick brown fox jumps", 10, 2) == ["the quick", "brown fox…"]
    assert wrapped("日本語日本語", 4, 9) == ["日本", "語日", "本語"]
    assert wrapped("", 5, 2) == []
