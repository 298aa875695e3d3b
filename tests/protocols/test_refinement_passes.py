"""`refinement` from pass to pass: what is judged, what costs no call, which pass the next one starts from, and the draft."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from consilience import Refinement, StopReason, UserError, replay
from consilience.domain.hierarchies import load_hierarchy
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from protocols.test_refinement import PARTS, asked, critique, pass_of, prose, refine, script

DRAFT = "The old text says why loops matter. It ends with a warning."


def marking(marks: Mapping[int, float], issues: Mapping[int, Mapping[str, Sequence[str]]] | None = None) -> Any:
    """A critic who gives everything in a pass one mark; where `issues` says nothing of a pass, each part has one."""

    def judge(request: ModelRequest) -> str:
        n = pass_of(request.key)
        named = None if issues is None or n not in issues else issues[n]
        if n == 0:
            mark = marks.get(0, 1)
            issue = list((named or {}).get("whole", ()))
            return json.dumps(
                {"whole": {**dict.fromkeys(("coherence", "accuracy", "depth", "overall"), mark), "issues": issue}}
            )
        return critique(request, overall=marks[n], issues=named)

    return judge


# --- the whole is judged


async def test_whole_below_the_threshold_does_not_meet_it_despite_good_parts() -> None:
    marks = {**dict.fromkeys(PARTS, 9.0), "whole": 7.9}
    report, _ = await refine({"max_passes": 1}, script(lambda r: critique(r, marks, {})))
    assert report.passes[0].quality == pytest.approx(0.9)
    assert report.passes[0].whole is not None
    assert report.passes[0].whole.overall == pytest.approx(0.79)
    assert not report.quality_threshold_met
    assert report.stop_reason is StopReason.STALLED


async def test_issues_of_the_whole_are_quoted_to_working_authors_and_the_coordinator() -> None:
    issues = {1: {"whole": ["two parts disagree"], "body": ["body is thin"]}}
    _, model = await refine({"max_passes": 2}, script(marking({1: 5, 2: 6}, issues)))
    read = {key for key, r in asked(model, "pass-2/").items() if "two parts disagree" in r.text}
    assert read == {
        "pass-2/draft/body",
        "pass-2/specialist/body/researcher",
        "pass-2/specialist/body/fact_checker",
        "pass-2/revise/body",
        "pass-2/integrate/coordinator",
        "pass-2/critique/critic",
    }
    integrate = asked(model)["pass-2/integrate/coordinator"].text
    assert prose("coordinator", "pass-1/integrate/coordinator") in integrate, "it starts from its last whole"
    assert '"body"' in integrate


async def test_whole_with_issues_but_no_part_issues_is_integrated_again() -> None:
    issues = {1: {"whole": ["it repeats itself"]}, 2: {}}
    report, model = await refine({"max_passes": 3}, script(marking({1: 5, 2: 6}, issues)))
    assert set(asked(model, "pass-2/")) == {"pass-2/integrate/coordinator", "pass-2/critique/critic"}
    assert "it repeats itself" in asked(model)["pass-2/integrate/coordinator"].text
    assert report.best_pass == 2
    assert report.stop_reason is StopReason.STALLED
    assert [(o.to, o.fate) for o in report.objections] == [("coordinator", "yielded")]


async def test_max_tokens_of_critic_and_coordinator_grow_with_the_number_of_parts() -> None:
    parts = [f"part{n}" for n in range(7)]
    roles: list[dict[str, Any]] = [{"name": "lead", "description": "You lead.", "children": parts}]
    roles += [{"name": part, "description": f"You write {part}."} for part in parts]
    settings = {"hierarchy": {"name": "flat", "description": "d", "roles": roles}, "max_passes": 1, "reply_tokens": 500}
    _, model = await refine(settings)
    assert asked(model)["pass-1/critique/critic"].max_tokens == 3 * 500
    assert asked(model)["pass-1/integrate/lead"].max_tokens == 7 * 500
    assert asked(model)["pass-1/specialist/lead/part0"].max_tokens == 500


# --- what costs no call


async def test_unchanged_draft_of_a_pass_asks_no_specialist_and_no_critic() -> None:
    def reply(request: ModelRequest) -> Any:
        if request.key == "pass-2/draft/body":
            return json.dumps({"text": prose("body", "pass-1/revise/body") + "\n"})
        return script(marking({1: 5}, {1: {"body": ["body is thin"]}}))(request)

    report, model = await refine({"max_passes": 3}, reply)
    assert set(asked(model, "pass-2/")) == {"pass-2/draft/body"}
    assert not asked(model, "pass-3/")
    assert report.stop_reason is StopReason.STALLED
    assert report.best_pass == 1
    assert report.passes[1].unchanged
    assert not report.passes[1].sections["body"].written
    (revision,) = report.revisions
    assert (revision.role, revision.into, revision.written) == ("body", 2, False)
    assert [(o.text, o.fate) for o in report.objections] == [("body is thin", "stands")]


async def test_unchanged_part_among_changed_ones_asks_none_of_its_specialists() -> None:
    def reply(request: ModelRequest) -> Any:
        if request.key == "pass-2/draft/body":
            return json.dumps({"text": prose("body", "pass-1/revise/body")})
        return script(marking({1: 5, 2: 6}))(request)

    _, model = await refine({"max_passes": 2}, reply)
    assert set(asked(model, "pass-2/", "body")) == {"pass-2/draft/body"}
    assert "pass-2/revise/intro" in asked(model)
    assert prose("body", "pass-1/revise/body") in asked(model)["pass-2/integrate/coordinator"].text


# --- every pass starts from the best one


async def test_pass_after_a_worse_one_starts_from_the_best_with_the_issues_of_both() -> None:
    issues = {
        1: {"body": ["body is thin"]},
        2: {"body": ["body is long"], "intro": ["intro is dull"], "whole": ["it falls apart"]},
    }
    report, model = await refine({"max_passes": 3}, script(marking({1: 6, 2: 4, 3: 7}, issues)))
    again = asked(model, "pass-3/")
    assert not [key for key in again if "/intro" in key], "the best pass's intro has no issue"
    draft = again["pass-3/draft/body"].text
    assert prose("body", "pass-1/revise/body") in draft
    assert prose("body", "pass-2/revise/body") not in draft
    for words in ("body is thin", "body is long", "it falls apart"):
        assert words in draft
    assert "intro is dull" not in draft
    assert draft.index("body is thin") < draft.index("body is long"), "the critique, then that of the worse pass"
    assert prose("coordinator", "pass-1/integrate/coordinator") in again["pass-3/integrate/coordinator"].text
    assert [record.base for record in report.passes] == [0, 1, 1]
    assert report.best_pass == 3
    assert {(o.id.split("/")[0], o.fate) for o in report.objections} == {
        ("pass-1", "yielded"),
        ("pass-3", "unanswered"),
    }
    assert [(r.role, r.into, r.discarded) for r in report.revisions] == [("body", 2, True), ("body", 3, False)]


async def test_critique_handed_back_in_several_passes_is_published_once() -> None:
    report, model = await refine({"max_passes": 4}, script(marking({1: 6, 2: 4, 3: 5, 4: 3})))
    for n in (2, 3, 4):
        assert "body is vague (pass-1/critique/critic)" in asked(model)[f"pass-{n}/draft/body"].text
    assert "body is vague (pass-3/critique/critic)" in asked(model)["pass-4/draft/body"].text
    assert "body is vague (pass-2/critique/critic)" not in asked(model)["pass-4/draft/body"].text
    assert report.best_pass == 1
    assert {o.fate for o in report.dissent and report.objections} == {"stands"}


# --- the draft


async def test_given_draft_is_judged_and_its_issues_are_quoted_in_the_first_pass() -> None:
    issues = {0: {"whole": ["the warning comes too late"]}, 1: {"body": ["body is thin"]}, 2: {}}
    report, model = await refine({"draft": DRAFT, "max_passes": 2}, script(marking({0: 5, 1: 6, 2: 7}, issues)))
    draft = asked(model)["pass-0/critique/critic"]
    assert DRAFT in draft.text
    assert draft.schema is not None
    assert draft.schema["required"] == ["whole"]
    readers = {key for key, r in asked(model).items() if "the warning comes too late" in r.text}
    authors = {f"pass-1/{step}/{part}" for step in ("draft", "revise") for part in PARTS}
    assert readers == {*authors, "intent/coordinator", "pass-1/integrate/coordinator", "pass-1/critique/critic"}
    seen = {key for key, r in asked(model).items() if DRAFT in r.text}
    assert {"pass-1/integrate/coordinator", "pass-1/revise/body", "pass-2/draft/body", "pass-1/critique/critic"} <= seen
    first_pass = report.passes[0]
    assert (first_pass.index, first_pass.document, first_pass.whole_issues) == (
        0,
        DRAFT,
        ("the warning comes too late",),
    )
    assert report.best_pass == 2
    assert report.steps == 2
    assert "the draft" in report.presentation().model_dump_json()


@pytest.mark.parametrize(("mark", "best"), [(6.0, 0), (5.9, 0), (6.1, 1)])
async def test_given_draft_is_the_answer_unless_a_pass_scores_higher(mark: float, best: int) -> None:
    issues = {0: {"whole": ["the warning comes too late"]}, 1: {}}
    store = SqliteStore(":memory:")
    report, _ = await refine({"draft": DRAFT, "max_passes": 1}, script(marking({0: 6, 1: mark}, issues)), store=store)
    assert report.best_pass == best
    assert (report.answer == DRAFT) == (best == 0)
    warned = "the answer is the draft: no pass had a better mark for the whole text" in report.warnings
    assert warned == (best == 0)
    assert [(o.text, o.fate) for o in report.objections] == [
        ("the warning comes too late", "stands" if best == 0 else "yielded")
    ]
    assert report.confidence.level == pytest.approx((6 if best == 0 else mark) / 10)
    assert (await replay(report.session, store=store)).digest() == report.digest()
    store.close()


async def test_given_draft_without_a_judgement_is_not_the_best_pass() -> None:
    def judge(request: ModelRequest) -> Any:
        return "no" if request.key.startswith("pass-0/") else critique(request, overall=2, issues={})

    report, _ = await refine({"draft": DRAFT, "max_passes": 1}, script(judge))
    assert report.best_pass == 1
    assert any("no judgement of the draft" in warning for warning in report.warnings)


async def test_given_draft_sets_the_target_length_and_a_shorter_answer_is_a_warning() -> None:
    long = " ".join(f"Sentence {n} of the old text says a thing." for n in range(40))
    report, model = await refine({"draft": long, "max_passes": 1})
    assert (
        "about as long as the draft (360 words), unless the task calls for another length"
        in asked(model)["intent/coordinator"].text
    )
    words = len(prose("coordinator", "pass-1/integrate/coordinator").split())
    assert f"the text has {words} words, {words / 360:.0%} of the draft, which has 360" in report.warnings
    asked_for, model = await refine({"draft": long, "length": words, "max_passes": 1})
    assert f"the whole is about {words} words." in asked(model)["intent/coordinator"].text
    assert not [warning for warning in asked_for.warnings if warning.startswith("the text has")]


# --- what is filtered


def long_winded(request: ModelRequest) -> Any:
    if request.key.startswith("pass-1/draft"):
        return json.dumps({"text": prose(request.agent, request.key, 200)})
    return script()(request)


async def test_filter_auto_shortens_only_for_a_specialist_short_of_context_window() -> None:
    wide, model = await refine({"max_passes": 1}, long_winded, window=1_000_000)
    assert all(first.share == 1 for first in wide.handed_down)
    unknown, _ = await refine({"max_passes": 1}, long_winded)
    assert all(first.share == 1 for first in unknown.handed_down)
    narrow, _ = await refine({"max_passes": 1}, long_winded, window=4_000)
    cut = {(first.parent, first.child) for first in narrow.handed_down if first.share < 1}
    assert cut == set(load_hierarchy("blog").edges_to_leaves)
    half, model = await refine({"max_passes": 1, "reply_tokens": 2_600}, long_winded, window=6_600)
    to_stylist = (h for h in half.handed_down if (h.parent, h.child) == ("conclusion", "stylist"))
    (first,) = (h for h in to_stylist if h.what == "draft")
    text = asked(model)["pass-1/specialist/conclusion/stylist"].text
    assert f"[{200 - first.kept} sentences left out]" in text
    assert f"says thing {first.kept} in" in text
    assert f"says thing {first.kept + 1} in" not in text
    assert "conclusion → stylist" in half.presentation().model_dump_json()


# --- what became of earlier issues


def reviewing(standing: Mapping[int, Sequence[int]], new: Mapping[int, Sequence[str]]) -> Any:
    """A critic of `body` alone, who says by pass which of its earlier issues still hold, and what it finds besides."""

    def judge(request: ModelRequest) -> str:
        n = pass_of(request.key)
        output = json.loads(critique(request, overall=4 + n, issues={"body": new.get(n, ())}))
        output["body"]["standing"] = list(standing.get(n, ()))
        return json.dumps(output)

    return judge


async def test_issue_found_again_is_handed_back_and_issue_not_found_is_yielded() -> None:
    new = {1: ["body is thin", "body is dull"], 2: ["body is long"]}
    report, model = await refine({"max_passes": 3}, script(reviewing({2: [2, 9], 3: [1]}, new)))
    second, third = (asked(model)[f"pass-{n}/critique/critic"] for n in (2, 3))
    assert "1. body is thin" in second.text
    assert '"standing"' in json.dumps(second.schema)
    assert '"standing"' not in json.dumps(asked(model)["pass-1/critique/critic"].schema)
    again = asked(model)["pass-3/draft/body"].text
    assert "1. body is dull" in again
    assert "2. body is long" in again
    assert "body is thin" not in again
    assert "body is thin" not in third.text
    assert [(objection.text, objection.fate) for objection in report.objections] == [
        ("body is thin", "yielded"),
        ("body is long", "yielded"),
        ("body is dull", "unanswered"),
    ]
    assert [dissent.text for dissent in report.dissent] == ["body is dull"]


async def test_brief_critic_is_not_asked_about_earlier_issues() -> None:
    new = {1: ["body is thin"]}
    report, model = await refine({"max_passes": 2}, script(reviewing({2: [1]}, new)), detail="brief")
    assert "body is thin" not in asked(model)["pass-2/critique/critic"].text
    assert [(objection.text, objection.fate) for objection in report.objections] == [("body is thin", "yielded")]


# --- a session that is still running


async def test_judged_passes_are_recorded_before_the_run_ends() -> None:
    from consilience.domain.events import Noted
    from consilience.domain.report import UnfinishedSession
    from consilience.protocols.refinement import RefinementReport

    store = SqliteStore(":memory:")
    issues = {0: {"whole": ["the warning comes too late"]}, 1: {"body": ["body is thin"]}, 2: {}}
    report, _ = await refine(
        {"draft": DRAFT, "max_passes": 2}, script(marking({0: 5, 1: 6, 2: 7}, issues)), store=store
    )
    events = list(store.read(report.session))
    notes = [n for n, event in enumerate(events) if isinstance(event, Noted) and event.name == "pass"]
    assert len(notes) == 3
    half = events[: notes[1] + 1]
    view = RefinementReport.progress(UnfinishedSession(half[0], half, store.text)).model_dump_json()  # type: ignore[arg-type]
    assert "body is thin" in view
    assert "0.60" in view
    assert "0.70" not in view
    store.close()


def test_role_named_whole_is_refused() -> None:
    roles = [
        {"name": "lead", "description": "You lead.", "children": ["whole"]},
        {"name": "whole", "description": "You write."},
    ]
    with pytest.raises(UserError, match="'whole' is the label of another text in prompts"):
        Refinement(hierarchy={"name": "x", "description": "d", "roles": roles})
