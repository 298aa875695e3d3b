"""Disagreements of `broadcast`: who reads them, what is decided about them, and what the report says; the answer's conclusion."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from consilience.domain.detail import Detail
from consilience.domain.errors import Rejected
from consilience.domain.events import CallCompleted, Noted
from consilience.domain.outcome import StopReason
from consilience.domain.panels import load_panel
from consilience.domain.report import FactsKept, Objection
from consilience.domain.sections import Bullets
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.broadcast import Broadcast
from consilience.reporting.markdown import headline, markdown
from consilience.reporting.record import read_record
from consilience.reporting.views import tree, view_of, view_text
from kit import runner
from kit.golden import Golden, lines_with, section
from protocols.test_broadcast import Extra, agents, recorded, shown
from protocols.test_broadcast_calls import go, rating

PAIR = Broadcast(children=2, max_iterations=1)
FIRST = "iteration-1/coordinate-1/L2N1/disagreement-1"
SECOND = "iteration-1/coordinate-1/L2N2/disagreement-1"


def disagreeing(**closing: object) -> Extra:
    """Both siblings disagree with each other; the root's synthesis also holds `closing`."""

    def extra(request: ModelRequest) -> dict[str, object]:
        if "/coordinate-1/" in request.key:
            other = "B" if request.agent == "L2N1" else "A"
            return {"disagreements": [{"to": other, "text": f"{request.agent} says otherwise"}]}
        if request.key == "synthesize/L1N1":
            return closing
        return {}

    return extra


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


def fates(objections: tuple[Objection, ...]) -> dict[str, tuple[str | None, str]]:
    return {objection.id: (objection.fate, objection.ruling) for objection in objections}


@pytest.mark.parametrize("alike", [True, False])
async def test_contributors_who_write_alike_and_never_revise_are_reported_as_one_view(alike: bool) -> None:
    def reply(request: ModelRequest) -> str:
        own = "" if alike else f" So says {request.agent} on {request.key}."
        text = "" if "/self_reflect/" in request.key else f"Keep the market where it is.{own}"
        return json.dumps({"rating": 8, "satisfied": True, "text": text})

    report, _ = await go(PAIR, ScriptedModel(reply))
    words = "the first texts of the 2 agents are alike (similarity 1.00), and no agent revised its text"
    assert any(warning.startswith(words) for warning in report.warnings) == alike


async def test_disagreement_and_its_target_are_quoted_to_evaluation_synthesis_and_reviews() -> None:
    report, record = await recorded(PAIR.model_copy(update={"strange_loops": 1}), agents(disagreeing(), 8))
    for reader in ("iteration-1/evaluate/L1N1", "synthesize/L1N1", "strange_loop-1/L1N1", "self_reflect/L1N1"):
        assert {FIRST, SECOND} <= shown(record, reader)
        labels = {quoted.message: quoted.label for quoted in record.readings[reader].quoted}
        assert (labels[FIRST], labels[SECOND]) == ("A.1", "B.1")
    _, model = await go(PAIR, agents(disagreeing(), 8))
    assert "against B: L2N1 says otherwise" in next(r.text for r in model.requests if r.key == "synthesize/L1N1")
    first = next(objection for objection in report.objections if objection.id == FIRST)
    assert (first.agent, first.to, first.text, first.read) == ("L2N1", "L2N2", "L2N1 says otherwise", True)


async def test_disagreement_not_decided_by_the_synthesis_is_dissent() -> None:
    report, _ = await go(PAIR, agents(disagreeing(), 8))
    assert fates(report.objections) == {FIRST: ("stands", ""), SECOND: ("stands", "")}
    assert [(d.agent, d.id) for d in report.dissent] == [("L2N1", FIRST), ("L2N2", SECOND)]


async def test_disagreement_named_in_against_is_refuted_and_not_dissent() -> None:
    closing = {"against": [{"text": "B errs: the price is known.", "ids": ["B", "B.1", "Z"]}], "followed": ["A.1"]}
    report, _ = await go(PAIR, agents(disagreeing(**closing), 8))
    assert fates(report.objections) == {FIRST: ("stands", ""), SECOND: ("refuted", "B errs: the price is known.")}
    assert [objection.ruled for objection in report.objections] == ["upheld", None]
    assert report.dissent == ()
    assert [(a.text, a.ids) for a in report.against] == [
        ("B errs: the price is known.", ("iteration-1/coordinate-1/L2N2", SECOND))
    ]


@pytest.mark.parametrize(
    ("closing", "line"),
    [
        ({}, "- **Open:** L2N1 says otherwise — *use (L2N1) → risks (L2N2)* risks (L2N2): L2N2 says otherwise"),
        (
            {"against": [{"text": "B errs.", "ids": ["B.1"]}], "followed": ["A.1"]},
            "- **Upheld in the answer:** L2N1 says otherwise — *use (L2N1) → risks (L2N2)* "
            "risks (L2N2): L2N2 says otherwise (refuted)",
        ),
    ],
)
async def test_disagreement_of_two_siblings_is_listed_once_with_both_sides(
    closing: dict[str, object], line: str
) -> None:
    report, _ = await go(PAIR, agents(disagreeing(**closing), 8))
    text = markdown(report)
    assert [entry for entry in text.splitlines() if "says otherwise" in entry] == [line]


async def test_several_disagreements_of_two_siblings_are_listed_each() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        if "/coordinate-1/L2N1" in request.key:
            return {"disagreements": [{"to": "B", "text": "It is too dear."}, {"to": "B", "text": "It comes late."}]}
        return disagreeing()(request)

    report, _ = await go(PAIR, agents(extra, 8))
    text = markdown(report)
    for words in ("It is too dear.", "It comes late.", "L2N2 says otherwise"):
        assert sum(words in entry and "Open:" in entry for entry in text.splitlines()) == 1


async def test_against_that_says_that_there_is_nothing_rejects_no_disagreement() -> None:
    closing = {"against": [{"text": "None.", "ids": ["B.1"]}], "followed": ["B.1"]}
    report, _ = await go(PAIR, agents(disagreeing(**closing), 8))
    assert [objection.ruled for objection in report.objections] == [None, "upheld"]
    assert fates(report.objections)[SECOND] != ("refuted", "None.")


async def test_self_reflection_decides_a_disagreement_left_open_by_the_synthesis() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        decides = {"against": [{"text": "It costs too much.", "ids": ["A.1"]}]}
        return decides if request.key == "self_reflect/L1N1" else disagreeing()(request)

    report, _ = await go(PAIR, agents(extra, 8))
    assert fates(report.objections)[FIRST] == ("refuted", "It costs too much.")
    assert [d.id for d in report.dissent] == [SECOND]


@pytest.mark.parametrize(
    ("disagreement", "kept"),
    [
        ({"to": "A", "text": "with myself"}, 0),
        ({"to": "Q", "text": "with nobody"}, 0),
        ({"to": "B", "text": " none. "}, 0),
        ({"to": "B", "text": "I have no disagreements with this text."}, 0),
        ({"to": "B", "text": "a point"}, 1),
    ],
)
async def test_void_disagreements_do_not_count_toward_the_cap(disagreement: dict[str, object], kept: int) -> None:
    """Those with oneself, with an unknown label and without words are left out before the cap. The report counts them."""
    real = [{"to": "B", "text": f"real point {n}"} for n in range(3)]

    def extra(request: ModelRequest) -> dict[str, object]:
        raised = {"disagreements": [disagreement, *real]}
        return raised if request.key == "iteration-1/coordinate-1/L2N1" else {}

    report, _ = await go(PAIR, agents(extra, 8))
    texts = [objection.text for objection in report.objections]
    expected = [*["a point"] * kept, *(f"real point {n}" for n in range(3))]
    assert texts == expected[:3]
    void = "left out: 1 disagreement that was empty or addressed no other agent's text"
    assert (void in report.warnings) == (not kept)
    assert ("left out: 1 disagreement beyond the maximum of a reply" in report.warnings) == bool(kept)


@pytest.mark.parametrize(("detail", "kept"), [("full", 3), ("brief", 1)])
async def test_cap_on_disagreements_depends_on_the_detail(detail: Detail, kept: int) -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        raised = [{"to": "B", "text": f"point {n}"} for n in range(5)]
        return {"disagreements": raised} if request.key == "iteration-1/coordinate-1/L2N1" else {}

    report, _ = await go(PAIR, agents(extra, 8), detail=detail)
    assert len(report.objections) == kept


async def test_disagreements_of_the_last_coordination_count_and_earlier_ones_go_to_siblings() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        if request.key == "iteration-1/coordinate-1/L2N1":
            return {"disagreements": [{"to": "B", "text": "settled in the talk"}]}
        if request.key == "iteration-1/coordinate-2/L2N2":
            return {"disagreements": [{"to": "A", "text": "still open"}]}
        return {}

    report, record = await recorded(PAIR.model_copy(update={"coordination_rounds": 2}), agents(extra, 8))
    assert [objection.text for objection in report.objections] == ["still open"]
    for agent in ("L2N1", "L2N2"):
        assert FIRST in shown(record, f"iteration-1/coordinate-2/{agent}")
        assert FIRST not in shown(record, f"iteration-1/coordinate-1/{agent}")
    assert FIRST not in shown(record, "synthesize/L1N1")


async def test_disagreements_not_raised_again_are_listed_and_not_dissent() -> None:
    """In the second iteration nobody coordinates: everybody is content."""

    def extra(request: ModelRequest) -> dict[str, object]:
        first = request.key.startswith("iteration-1/")
        return disagreeing()(request) | {"rating": "fair" if first else "excellent"}

    report, _ = await go(Broadcast(children=2), agents(extra))
    assert report.stop_reason is StopReason.CONVERGED
    assert (report.objections, report.dissent) == ((), ())
    assert [(p.agent, p.to, p.text, p.path) for p in report.past_disagreements] == [
        ("L2N1", "L2N2", "L2N1 says otherwise", (1,)),
        ("L2N2", "L2N1", "L2N2 says otherwise", (1,)),
    ]
    text = markdown(report)
    assert "L2N1 says otherwise" in text.partition("Disagreements not raised again")[2]
    assert "none was declared" not in text


async def test_disagreement_raised_again_is_listed_once() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        raised = {"disagreements": [{"to": "B", "text": "the price is wrong"}]}
        return raised if "/coordinate-1/L2N1" in request.key else {}

    report, _ = await go(Broadcast(children=2), agents(extra, 5))
    assert report.total_iterations == 2
    assert [objection.text for objection in report.objections] == ["the price is wrong"]
    assert report.past_disagreements == ()


def deep(request: ModelRequest) -> dict[str, object]:
    """L3N1 disagrees with L3N2 and L3N3 with L3N4; the coordinators decide about them in `synthesize`."""
    if "/coordinate-1/L3N1" in request.key:
        return {"disagreements": [{"to": "A2", "text": "too dear"}]}
    if "/coordinate-1/L3N3" in request.key:
        return {"disagreements": [{"to": "B2", "text": "too late"}]}
    if request.key == "iteration-1/synthesize/L2N1":
        return {"against": [{"text": "It is cheap.", "ids": ["A1.1"]}]}
    return {}


async def test_coordinator_decides_disagreements_of_its_own_family_by_path_labels() -> None:
    protocol = Broadcast(children=2, depth=3, max_iterations=1)
    report, record = await recorded(protocol, agents(deep, 8))
    by_agent = {objection.agent: objection for objection in report.objections}
    assert (by_agent["L3N1"].fate, by_agent["L3N1"].ruling) == ("refuted", "It is cheap.")
    assert by_agent["L3N3"].fate == "stands"
    assert [d.agent for d in report.dissent] == ["L3N3"]
    labels = {quoted.label for quoted in record.readings["iteration-1/synthesize/L2N2"].quoted}
    assert labels == {"goal", "B1", "B2", "B1.1", "evaluation"}
    assert not [q for q in record.readings["synthesize/L1N1"].quoted if "L3N" in q.message], "its parent has read it"


async def test_disagreement_whose_parent_does_not_reply_is_unanswered() -> None:
    def reply(request: ModelRequest) -> object:
        gone = request.key == "iteration-1/synthesize/L2N2"
        return Rejected("gone") if gone else rating(8, **deep(request))(request)

    report, _ = await go(Broadcast(children=2, depth=3, max_iterations=1), ScriptedModel(reply))  # type: ignore[arg-type]
    by_agent = {objection.agent: objection for objection in report.objections}
    assert by_agent["L3N3"].fate == "unanswered"
    assert "L3N3" in {d.agent for d in report.dissent}


async def test_open_disagreements_are_dissent_in_the_headline_of_a_converged_run() -> None:
    report, _ = await go(PAIR, agents(disagreeing(), 8))
    assert report.stop_reason is StopReason.CONVERGED
    assert len(report.dissent) == 2


async def test_report_lists_disagreements_with_outcomes_or_says_none_was_declared(golden: Golden) -> None:
    closing = {"against": [{"text": "B errs: the price is known.", "ids": ["B.1"]}]}
    report, _ = await go(PAIR, agents(disagreeing(**closing), 8))
    assert markdown(report).count("B errs") == 1, "the ruling is printed once"
    golden(section(markdown(report), "Where they differed"))
    closing["against"].append({"text": "Prices may fall.", "ids": ["A"]})
    report, _ = await go(PAIR, agents(disagreeing(**closing), 8))
    golden(section(markdown(report), "What would overturn it"), "another argument")
    agreed, _ = await go(PAIR, agents(None, 8))
    golden(lines_with("Dissent:", markdown(agreed)), "agreed")
    unasked, _ = await go(PAIR.model_copy(update={"coordination_rounds": 0}), agents(None, 8))
    assert "Dissent:" not in markdown(unasked)


async def test_disagreement_that_the_answer_follows_is_upheld_and_not_conceded() -> None:
    """Its target was not asked about it."""
    report, _ = await go(PAIR, agents(disagreeing(followed=["A.1"]), 8))
    text = markdown(report)
    (row,) = [line for line in text.splitlines() if "says otherwise" in line]
    assert row.startswith("- **Open:** L2N2 says otherwise")
    assert row.endswith("L2N1 says otherwise (upheld)")
    assert "Conceded" not in text


async def test_report_with_decided_disagreements_says_that_none_is_open_and_not_that_none_was_declared(
    golden: Golden,
) -> None:
    report, _ = await go(PAIR, agents(disagreeing(followed=["A.1", "B.1"]), 8))
    text = markdown(report)
    assert "says otherwise" in text
    golden(lines_with("Dissent:", text))


@pytest.mark.parametrize("raised", [0, 1, 2])
async def test_headline_of_a_converged_run_names_flags_that_stand(raised: int, golden: Golden) -> None:
    flag = {"flags": [{"tag": "resource_request", "text": "the price"}]}

    def extra(request: ModelRequest) -> dict[str, object]:
        return flag if request.key in [f"iteration-1/self_reflect/L2N{n + 1}" for n in range(raised)] else {}

    report, _ = await go(PAIR, agents(extra, 8))
    assert report.stop_reason is StopReason.CONVERGED
    golden(headline(report))


async def test_flag_raised_in_every_iteration_is_listed_once_with_its_count() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        raised = {"flags": [{"tag": "resource_request", "text": "the price"}]}
        return raised if "/self_reflect/L2N1" in request.key else {}

    report, _ = await go(Broadcast(children=2, max_iterations=2), agents(extra, 5))
    lines = [line for line in markdown(report).splitlines() if "the price" in line]
    assert len(report.flags) == 2
    assert len(lines) == 1
    assert "raised 2 times; stands" in lines[0]


async def test_report_counts_executions_and_broadcasts_of_each_agent() -> None:
    report, _ = await go(Broadcast(children=2, depth=3, max_iterations=2), agents(None, 5))
    rows = {line.split("|")[1].strip(): line for line in markdown(report).splitlines() if "0.50 | yes" in line}
    cells = {name: [cell.strip() for cell in row.split("|")[2:4]] for name, row in rows.items()}
    assert [cells[name] for name in cells if "L3N4" in name] == [["4", "–"]]
    assert [cells[name] for name in cells if "L2N1" in name] == [["2", "2"]]


# --- the evaluation, the goal, the previous text


@pytest.mark.parametrize("expected", [True, None])
async def test_evaluation_is_quoted_to_the_synthesis_of_a_satisfied_parent(expected: bool | None) -> None:
    protocol = Broadcast(children=2, depth=3)
    report, record = await recorded(protocol, agents(lambda r: {"satisfied": expected}, 8))
    assert all(iteration.satisfied for iteration in report.iterations)
    assert "iteration-1/1/evaluate/L2N1" in shown(record, "iteration-1/synthesize/L2N1")
    assert "iteration-1/evaluate/L1N1" in shown(record, "synthesize/L1N1")


async def test_goal_is_quoted_in_every_prompt_except_the_broadcast_of_the_root() -> None:
    _, record = await recorded(Broadcast(children=2, depth=3, max_iterations=2, strange_loops=1), agents())
    for key, reading in record.readings.items():
        stated = [quoted.message for quoted in reading.quoted if quoted.label == "goal"]
        assert len(stated) == (key not in ("iteration-1/broadcast/L1N1", "iteration-2/broadcast/L1N1")), key
        if key in ("synthesize/L1N1", "strange_loop-1/L1N1", "self_reflect/L1N1"):
            assert stated == ["iteration-2/broadcast/L1N1"]


async def test_failed_second_broadcast_keeps_the_first_goal_for_the_root() -> None:
    def reply(request: ModelRequest) -> object:
        return Rejected("gone") if request.key == "iteration-2/broadcast/L1N1" else rating(5)(request)

    _, record = await recorded(Broadcast(children=2), ScriptedModel(reply))
    assert "iteration-1/broadcast/L1N1" in shown(record, "self_reflect/L1N1")


async def test_persona_is_in_every_prompt_of_its_agent() -> None:
    panel = load_panel("markets")
    _, model = await go(Broadcast(children=2, max_iterations=2), panel=panel)
    own = [request for request in model.requests if request.agent == "L2N2"]
    assert {request.key.split("/")[-2] for request in own} == {"execute", "self_reflect", "coordinate-1"}
    assert all(panel.personas[1].description in request.text for request in own)


async def test_label_fields_of_a_schema_allow_only_labels_of_their_kind() -> None:
    """A disagreement is with a sibling's text, and only disagreements can be followed; goals and flags are neither."""
    protocol = PAIR.model_copy(update={"coordination_rounds": 2, "answer_pattern": "yes|no", "strange_loops": 1})
    _, model = await go(protocol, agents(everything, 5))
    schemas: dict[str, Any] = {request.key: request.schema for request in model.requests}
    for n in (1, 2):
        talk = schemas[f"iteration-1/coordinate-{n}/L2N2"]
        assert talk["$defs"]["DisagreementReply"]["properties"]["to"]["enum"] == ["A"]
        cause = talk["properties"]["cause"]["anyOf"]
        assert {"type": "string", "enum": ["A"]} in cause
    for key in ("synthesize/L1N1", "strange_loop-1/L1N1"):
        assert schemas[key]["properties"]["followed"]["items"]["enum"] == ["A.1", "B.1"]


async def test_schema_without_disagreements_has_no_followed_field() -> None:
    _, model = await go(PAIR, agents(None, 8))
    schema: Any = next(request.schema for request in model.requests if request.key == "synthesize/L1N1")
    assert "followed" not in schema["properties"]


async def test_disagreement_with_the_goal_is_dropped() -> None:
    """Models without a grammar may name any label that they were shown."""

    def extra(request: ModelRequest) -> dict[str, object]:
        talks = "/coordinate-1/" in request.key
        return {"disagreements": [{"to": "goal", "text": "The goal is wrong."}]} if talks else {}

    report, _ = await go(PAIR, agents(extra, 8))
    assert report.objections == ()


async def test_flagged_contradiction_stands_even_if_followed_names_its_label() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        if request.key == "iteration-1/coordinate-1/L2N1":
            return {"flags": [{"tag": "contradiction_detected", "text": "the years differ"}]}
        return {"followed": ["A.flag1"]} if request.key == "synthesize/L1N1" else {}

    report, _ = await go(PAIR, agents(extra, 8))
    assert [(objection.fate, objection.how) for objection in report.objections] == [("stands", "")]


# --- what the answer declares


CONCLUSION: dict[str, Any] = {
    "claims": [{"text": "Tin is dear.", "ids": ["A"]}],
    "against": [{"text": "Wait: prices may fall.", "ids": ["B"]}],
    "would_change": ["A cheaper seller"],
    "unknown": ["The price in May"],
}


def concluding(reflection: dict[str, object]) -> Extra:
    return lambda r: {"synthesize/L1N1": CONCLUSION, "self_reflect/L1N1": reflection}.get(r.key, {})


async def test_self_reflection_without_a_conclusion_keeps_that_of_the_synthesis() -> None:
    report, _ = await go(PAIR, agents(concluding({"text": "Buy tin."}), 8))
    assert [claim.text for claim in report.claims] == ["Tin is dear."]
    assert report.claims[0].ids == ("iteration-1/coordinate-1/L2N1",)
    assert [a.text for a in report.against] == ["Wait: prices may fall."]
    assert (report.would_change, report.unknown) == (("A cheaper seller",), ("The price in May",))


async def test_self_reflection_with_a_conclusion_replaces_all_its_fields() -> None:
    revised = {"claims": [{"text": "Zinc is cheap.", "ids": ["B"]}], "would_change": ["A dearer seller"]}
    report, _ = await go(PAIR, agents(concluding(revised), 8))
    assert [claim.text for claim in report.claims] == ["Zinc is cheap."]
    assert (report.against, report.would_change, report.unknown) == ((), ("A dearer seller",), ())


async def test_self_reflection_of_the_root_quotes_evaluation_and_conclusion() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        later = {"claims": [{"text": "Zinc is cheap.", "ids": ["B"]}]}
        return {"synthesize/L1N1": CONCLUSION, "strange_loop-1/L1N1": later}.get(request.key, {})

    _, model = await go(PAIR.model_copy(update={"strange_loops": 1}), agents(extra, 8))
    asked = {request.key: request.text for request in model.requests}
    for key in ("strange_loop-1/L1N1", "self_reflect/L1N1"):
        assert "from evaluation>\niteration-1/evaluate/L1N1 says L1N1" in asked[key]
    declared = (
        "from conclusion>\nclaims:\n- Tin is dear. [A]\nagainst:\n- Wait: prices may fall. [B]\n"
        "would_change:\n- A cheaper seller\nunknown:\n- The price in May\n</quote"
    )
    assert declared in asked["strange_loop-1/L1N1"]
    assert "from conclusion>\nclaims:\n- Zinc is cheap. [B]\n</quote" in asked["self_reflect/L1N1"]


async def test_self_reflection_of_a_root_without_a_conclusion_quotes_none() -> None:
    _, record = await recorded(PAIR, agents(None, 8))
    labels = {quoted.label for quoted in record.readings["self_reflect/L1N1"].quoted}
    assert labels == {"goal", "A", "B", "evaluation", "you"}


async def test_facts_of_first_texts_kept_in_the_answer_are_counted() -> None:
    def extra(request: ModelRequest) -> dict[str, object]:
        if request.key.startswith("iteration-1/execute/"):
            return {"text": "The bridge of 1912 is closed, as the mayor Lund says."}
        closing = "synthesize/L1N1", "self_reflect/L1N1"
        return {"text": "It was built in 1912."} if request.key in closing else {}

    def reply(request: ModelRequest) -> str:
        return json.dumps({"rating": 8, "satisfied": True, "text": "It is shut."} | extra(request))

    report, _ = await go(PAIR, ScriptedModel(reply))
    assert report.facts == FactsKept(kept=1, total=2, lost=("Lund",))


# --- prompts


def everything(request: ModelRequest) -> dict[str, object]:
    """Every seat has something to flag and to disagree about."""
    raised: dict[str, object] = {"flags": [{"tag": "resource_request", "text": f"lacking in {request.key}"}]}
    if "/coordinate-" in request.key:
        labels = re.findall(r"from ([A-Z]\d?)>", request.text)
        raised["disagreements"] = [{"to": label, "text": f"not {label}"} for label in labels]
    return raised


@pytest.mark.parametrize("detail", ["full", "brief"])
@pytest.mark.parametrize("pattern", ["", "yes|no"])
@pytest.mark.parametrize("children", [1, 2])
async def test_prompt_describes_every_schema_field_on_its_own_line(detail: Detail, pattern: str, children: int) -> None:
    protocol = Broadcast(children=children, depth=3, coordination_rounds=2, strange_loops=1, answer_pattern=pattern)
    _, model = await go(protocol, agents(everything, 5), detail=detail)
    for request in model.requests:
        asked = request.text.rpartition("</quote")[2]
        assert isinstance(request.schema, dict)
        for name in request.schema["properties"]:  # type: ignore[attr-defined]
            described = re.search(rf"^(\w+, )*{name}(, \w+)*: ", asked, re.MULTILINE) or f'"{name}"' in asked
            assert described, (request.key, name)
        assert not re.search(r"\S(rating|flags|claims|against|satisfied|text): ", asked), request.key


async def test_prompts_demand_no_first_word_and_full_ones_no_sentence_count() -> None:
    for detail in ("full", "brief"):
        _, model = await go(Broadcast(children=2, depth=3, strange_loops=1), agents(everything, 5), detail=detail)
        words = " ".join(request.text.rpartition("</quote")[2] + request.system for request in model.requests)
        assert not re.search(r"\bYes or No\b|first word", words)
        assert detail == "brief" or not re.search(r"(two|three|four) (short )?sentences|at most \w+ words", words)


async def test_tree_of_a_running_broadcast_shows_disagreements_at_the_agents_that_received_them(
    store: SqliteStore,
) -> None:
    await runner.start("Is it so?", PAIR, models=agents(disagreeing(), 8), store=store, session="s")
    record = read_record(store, "s")
    started = next(
        n for n, e in enumerate(record.events, 1) if isinstance(e, CallCompleted) and e.key == "synthesize/L1N1"
    )
    before = replace(record, events=record.events[: started - 1])
    received = "1 objection to its text: open"
    for shown_record, words in ((before, received), (record, received)):
        items = [
            item.text for block in tree.view(shown_record).blocks if isinstance(block, Bullets) for item in block.items
        ]
        assert sum(words in item for item in items) == 2, items
    text = view_text("objections", before)
    assert "L2N1 says otherwise" in text
    assert "L2N2 says otherwise" in text


async def test_tree_of_a_running_broadcast_drops_a_disagreement_that_was_not_raised_again(store: SqliteStore) -> None:
    def once(request: ModelRequest) -> dict[str, object]:
        return disagreeing()(request) if request.key.startswith("iteration-1/") else {}

    protocol = Broadcast(children=2, max_iterations=2)
    await runner.start("Is it so?", protocol, models=agents(once, 3), store=store, session="s")
    record = read_record(store, "s")
    ends = [n for n, e in enumerate(record.events, 1) if isinstance(e, Noted) and e.name == "disagreements"]
    assert len(ends) == 4
    views = [view_of("objections", replace(record, events=record.events[:n])) for n in (ends[1], ends[3])]
    assert [view.is_empty for view in views] == [False, True]
