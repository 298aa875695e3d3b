"""`refinement`: the loop is closed. Who is shown which critique, what is kept, when it stops, which pass is the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import consilience
from consilience import Limits, Refinement, RefinementReport, Source, SpendingLimits, StopReason
from consilience.domain.detail import DetailChoice
from consilience.domain.events import CallCompleted, SessionStarted
from consilience.domain.hierarchies import load_hierarchy
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.cases import HOUSE, blog
from kit.golden import Golden

PARTS = ("intro", "body", "conclusion")
Script = Callable[[ModelRequest], Any]


def prose(agent: str, key: str, n: int = 5) -> str:
    return " ".join(f"{agent} says thing {i} in {key}." for i in range(1, n + 1))


def critique(
    request: ModelRequest,
    overall: float | Mapping[str, float] = 5,
    issues: Mapping[str, Sequence[str]] | None = None,
    **scores: float,
) -> str:
    """A critique of all that is asked about; without `issues` each part has one, and the whole none. Of marks by part, that of the
    whole is 10 by default. A draft is worse than whatever comes of it."""
    assert request.schema is not None
    if request.key.startswith("pass-0/"):
        overall, scores = 1, {}
    texts = {}
    for part in request.schema["required"]:  # type: ignore[attr-defined]
        mark = overall.get(part, 10) if isinstance(overall, Mapping) else overall
        vague = [] if part == "whole" else [f"{part} is vague ({request.key})"]
        case = vague if issues is None else list(issues.get(part, ()))
        marks = {"coherence": mark, "accuracy": mark, "depth": mark, "overall": mark, **scores}
        texts[part] = {**marks, "issues": case}
    return json.dumps(texts)


def script(judge: Script | None = None, sure: Mapping[str, str] | None = None) -> Script:
    """Everybody writes five sentences; the critic says what `judge` says."""

    def reply(request: ModelRequest) -> Any:
        if "/critique/" in request.key:
            return (judge or critique)(request)
        if request.returns is None:
            return prose(request.agent, request.key)
        confidence = (sure or {}).get(request.agent, "fairly sure")
        return json.dumps({"confidence": confidence, "text": prose(request.agent, request.key)})

    return reply


async def refine(
    settings: Mapping[str, Any] | None = None,
    reply: Script | None = None,
    *,
    detail: DetailChoice = "full",
    window: int | None = None,
    **fields: Any,
) -> tuple[RefinementReport, ScriptedModel]:
    model = ScriptedModel(reply or script(), context_window=window)
    options = Options(patience=0, detail=detail)
    report = await consilience.deliberate(
        "Write about loops.", blog(**settings or {}), model=model, options=options, **fields
    )
    assert isinstance(report, RefinementReport)
    return report, model


def asked(model: ScriptedModel, *parts: str) -> dict[str, ModelRequest]:
    """First attempts by key, of those whose key holds all of `parts`."""
    return {r.key: r for r in model.requests if r.attempt == 1 and all(part in r.key for part in parts)}


def pass_of(key: str) -> int:
    return int(key.removeprefix("pass-").partition("/")[0])


# --- the loop is closed


def rising(request: ModelRequest) -> str:
    """Every pass is better than the one before, and never good enough."""
    return critique(request, overall=4 + pass_of(request.key))


async def test_critique_is_quoted_in_the_next_pass_only_to_the_agents_concerned() -> None:
    store = SqliteStore(":memory:")
    report, model = await refine({"max_passes": 3, "threshold": 0.9}, script(rising), store=store)
    hierarchy = load_hierarchy("blog")
    for key, request in asked(model).items():
        if not key.startswith("pass-"):
            continue
        n, author = pass_of(key), key.split("/")[2]
        for part in PARTS:
            for m in (1, 2, 3):
                words = f"{part} is vague (pass-{m}/critique/critic)"
                judge = "/critique/" in key
                due = m == n - 1 and (author == part or judge) and "/integrate/" not in key
                assert (words in request.text) == due, f"{words!r} in {key}"
    readers = {
        event.agent
        for event in store.read(report.session)
        if isinstance(event, CallCompleted) and "q:critique:pass-1/critique/critic/body" in store.prompt(event.prompt)
    }
    assert readers == {"body", *hierarchy.children("body")}, "its own critique the critic is shown as its own"
    assert not [w for w in report.warnings if "read by no later call" in w]
    store.close()


KEYS_OF_BODY = ("pass-2/draft/body", "pass-2/specialist/body/researcher", "pass-2/revise/body")


async def test_prompts_of_authors_and_specialists_contain_the_criticised_whole() -> None:
    _, model = await refine({"max_passes": 2})
    for key in KEYS_OF_BODY:
        text = asked(model)[key].text
        assert prose("coordinator", "pass-1/integrate/coordinator") in text
        assert not [part for part in ("intro", "conclusion") if prose(part, f"pass-1/revise/{part}") in text]
    assert prose("body", "pass-1/revise/body") in asked(model)["pass-2/draft/body"].text


def failing(request: ModelRequest) -> Any:
    """Nobody puts the parts together."""
    return "" if "/integrate/" in request.key else script()(request)


@pytest.mark.parametrize(("detail", "reply"), [("brief", script()), ("full", failing)])
async def test_prompts_without_a_whole_or_in_brief_contain_the_other_parts(detail: DetailChoice, reply: Script) -> None:
    _, model = await refine({"max_passes": 2}, reply, detail=detail)
    for key in KEYS_OF_BODY:
        for part in ("intro", "conclusion"):
            assert prose(part, f"pass-1/revise/{part}") in asked(model)[key].text
    for key in KEYS_OF_BODY[:2]:
        assert prose("body", "pass-1/revise/body") in asked(model)[key].text
    for part in ("intro", "conclusion"):
        assert not [key for key, r in asked(model, "pass-1/", "body").items() if prose(part, "pass-1/")[:15] in r.text]


@pytest.mark.parametrize("pass_", [1, 2])
async def test_prompt_of_a_specialist_contains_the_intent(pass_: int) -> None:
    _, model = await refine({"max_passes": 2})
    for parent, child in load_hierarchy("blog").edges_to_leaves:
        request = asked(model)[f"pass-{pass_}/specialist/{parent}/{child}"]
        assert prose("coordinator", "intent/coordinator") in request.text


async def test_prompts_state_word_counts_of_texts_with_spaces() -> None:
    _, model = await refine({"max_passes": 2})
    for key in ("pass-1/revise/body", "pass-2/draft/body", "pass-1/specialist/body/researcher"):
        assert "(30 words)" in asked(model)[key].text
    assert "Together they have 90 words." in asked(model)["pass-1/integrate/coordinator"].text

    def unspaced(request: ModelRequest) -> Any:
        text = "故障の後には短い報告を書くべきである。次の人が同じ間違いをしないためである。"
        return (
            script()(request) if request.returns is None or "/critique/" in request.key else json.dumps({"text": text})
        )

    _, model = await refine({"max_passes": 2}, unspaced)
    assert not [key for key, r in asked(model).items() if " words)" in r.text or " words." in r.text]


async def test_schema_of_the_coordinator_excludes_critiques_from_claim_labels() -> None:
    issues = {"body": ["say more"], "whole": ["too long"]}
    _, model = await refine({"max_passes": 2}, script(lambda r: critique(r, issues=issues)))
    request = asked(model)["pass-2/integrate/coordinator"]
    assert "critique of the whole" in request.text
    assert '"body"' in json.dumps(request.schema)
    assert "critique" not in json.dumps(request.schema)


async def test_specialist_works_on_each_parents_draft_separately() -> None:
    """The seed's implementation let them work after the text they should have served."""
    _, model = await refine({"max_passes": 1, "filter": "never"})
    for parent, child in load_hierarchy("blog").edges_to_leaves:
        request = asked(model)[f"pass-1/specialist/{parent}/{child}"]
        assert prose(parent, f"pass-1/draft/{parent}") in request.text
        result = prose(child, f"pass-1/specialist/{parent}/{child}")
        readers = [key for key, r in asked(model).items() if result in r.text]
        assert readers == [f"pass-1/revise/{parent}"]


async def test_integration_uses_revised_parts_and_the_critic_reads_whole_and_intent() -> None:
    report, model = await refine({"max_passes": 1})
    integrate, judge = (asked(model)[key].text for key in ("pass-1/integrate/coordinator", "pass-1/critique/critic"))
    for part in PARTS:
        assert prose(part, f"pass-1/revise/{part}") in integrate
        assert prose(part, f"pass-1/draft/{part}") not in integrate
        assert prose(part, f"pass-1/revise/{part}") not in judge
        assert load_hierarchy("blog").by_name[part].description in judge, "how the critic knows which part is which"
    assert prose("coordinator", "pass-1/integrate/coordinator") in judge
    assert prose("coordinator", "intent/coordinator") in judge
    assert report.answer == prose("coordinator", "pass-1/integrate/coordinator")
    assert report.coordinator_intent == prose("coordinator", "intent/coordinator")


async def test_part_without_issues_keeps_its_text_without_calls() -> None:
    def judge(request: ModelRequest) -> str:
        return critique(request, issues={"body": ["say more"]} if pass_of(request.key) == 1 else {})

    report, model = await refine({"max_passes": 3}, script(judge))
    again = {key for key in asked(model) if key.startswith("pass-2/")}
    assert again == {
        "pass-2/draft/body",
        "pass-2/specialist/body/researcher",
        "pass-2/specialist/body/fact_checker",
        "pass-2/revise/body",
        "pass-2/integrate/coordinator",
        "pass-2/critique/critic",
    }
    second = report.passes[1].sections
    assert second["intro"].text == report.passes[0].sections["intro"].text
    assert (second["intro"].written, second["intro"].change) == (False, 0.0)
    assert (second["body"].written, second["body"].change) == (True, 1.0)
    assert report.stop_reason is StopReason.STALLED, "nothing is left to mend, and it is not good enough"
    assert not report.quality_threshold_met


# --- deeper trees


async def test_criticised_part_asks_specialists_of_all_lower_layers_again() -> None:
    def judge(request: ModelRequest) -> str:
        return critique(request, issues={"one": ["one is thin"]} if pass_of(request.key) == 1 else {})

    _, model = await refine({"hierarchy": HOUSE, "max_passes": 2}, script(judge))
    again = [key for key in asked(model) if key.startswith("pass-2/")]
    assert sorted(again) == sorted(
        [
            "pass-2/draft/one",
            "pass-2/draft/deep",
            "pass-2/specialist/lead/adviser",
            "pass-2/specialist/one/checker",
            "pass-2/specialist/deep/checker",
            "pass-2/revise/deep",
            "pass-2/revise/one",
            "pass-2/integrate/lead",
            "pass-2/critique/critic",
        ]
    )
    seen = [key for key, r in asked(model, "pass-2/").items() if "one is thin" in r.text]
    assert sorted(seen) == sorted(key for key in again if not any(word in key for word in ("adviser", "integrate")))
    assert prose("deep", "pass-2/revise/deep") in asked(model)["pass-2/revise/one"].text


@pytest.mark.parametrize("criticised", ["b", "c"])
async def test_specialist_of_coordinator_and_author_works_for_each_separately(criticised: str) -> None:
    shared = {
        "name": "shared",
        "description": "x helps the author of b, and advises on the whole as y does.",
        "roles": [
            {"name": "lead", "description": "You lead.", "children": ["b", "c", "x", "y"]},
            {"name": "b", "description": "You write b.", "children": ["x"]},
            {"name": "c", "description": "You write c.", "children": ["z"]},
            *({"name": name, "description": f"You help as {name}."} for name in "xyz"),
        ],
    }
    issues = {criticised: [f"{criticised} is thin"]}
    _, model = await refine(
        {"hierarchy": shared, "max_passes": 2, "filter": "never"}, script(lambda r: critique(r, issues=issues))
    )
    helper = {"b": "x", "c": "z"}[criticised]
    assert set(asked(model, "pass-2/specialist/")) == {
        "pass-2/specialist/lead/x",
        "pass-2/specialist/lead/y",
        f"pass-2/specialist/{criticised}/{helper}",
    }
    assert {key for key, r in asked(model, "pass-2/").items() if f"{criticised} is thin" in r.text} == {
        f"pass-2/draft/{criticised}",
        f"pass-2/specialist/{criticised}/{helper}",
        f"pass-2/revise/{criticised}",
        "pass-2/critique/critic",
    }
    advice = asked(model)["pass-2/specialist/lead/x"]
    assert prose("lead", "pass-1/integrate/lead") in advice.text
    assert "version before" not in advice.text
    for name in "xy":
        assert prose(name, f"pass-2/specialist/lead/{name}") in asked(model)["pass-2/integrate/lead"].text
        assert prose(name, f"pass-1/specialist/lead/{name}") not in asked(model)["pass-2/integrate/lead"].text


async def test_run_with_a_hierarchy_of_two_layers_has_specialists_as_authors() -> None:
    """Without authors in between the coordinator's specialists write the parts."""
    flat = {
        "name": "flat",
        "description": "d",
        "roles": [
            {"name": "chief", "description": "You lead.", "children": ["left", "right"]},
            {"name": "left", "description": "You write left."},
            {"name": "right", "description": "You write right."},
        ],
    }
    report, model = await refine({"hierarchy": flat, "max_passes": 2, "filter": "never"})
    assert report.ledger.actual.calls == 1 + 2 * (2 + 2) == Refinement(hierarchy=flat, max_passes=2).estimate().max
    assert "left is vague (pass-1/critique/critic)" in asked(model)["pass-2/specialist/chief/left"].text
    assert prose("left", "pass-1/specialist/chief/left") in asked(model)["pass-2/specialist/chief/left"].text
    assert "right is vague" not in asked(model)["pass-2/specialist/chief/left"].text
    assert set(report.passes[1].sections) == {"left", "right"}


async def test_part_that_works_for_another_part_is_shown_the_critique_of_both() -> None:
    roles = {"lead": ["one", "two"], "two": ["one", "helper"], "one": ["helper"], "helper": []}
    shared = {
        "name": "shared",
        "description": "d",
        "roles": [
            {"name": name, "description": f"You are {name}.", "children": below} for name, below in roles.items()
        ],
    }

    def faulty(*parts: str) -> Script:
        return lambda request: critique(request, issues={part: [f"{part} is vague"] for part in parts})

    _, model = await refine({"hierarchy": shared, "max_passes": 2, "filter": "never"}, script(faulty("one", "two")))
    prompts = asked(model)
    assert {"one is vague", "two is vague"} <= set(re.findall(r"\w+ is vague", prompts["pass-2/draft/one"].text))
    assert "one is vague" not in prompts["pass-2/draft/two"].text
    _, model = await refine({"hierarchy": shared, "max_passes": 2, "filter": "never"}, script(faulty("two")))
    assert "two is vague" in asked(model)["pass-2/draft/one"].text
    _, model = await refine({"hierarchy": shared, "max_passes": 2, "filter": "never"}, script(faulty("one")))
    assert "pass-2/draft/two" not in asked(model)


# --- stopping


async def test_pass_that_meets_the_threshold_ends_the_run() -> None:
    report, model = await refine({"threshold": 0.8}, script(lambda r: critique(r, overall=8)))
    assert report.stop_reason is StopReason.CONVERGED
    assert report.quality_threshold_met
    assert report.confidence.level == pytest.approx(0.8)
    assert report.confidence.kind == "quality by critic"
    assert {pass_of(key) for key in asked(model, "pass-")} == {1}
    assert [o.to for o in report.objections] == list(PARTS), "issues stand, approved or not"
    assert not any(o.read for o in report.objections)


async def test_run_that_exhausts_its_passes_does_not_meet_the_threshold() -> None:
    report, _ = await refine({"max_passes": 2}, script(lambda r: critique(r, overall=7.9)))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert not report.quality_threshold_met
    assert report.revision_requested
    assert report.check is not None
    assert (report.check.met, report.check.kind, report.check.threshold) == (False, "critic", 0.8)


async def test_answer_is_the_best_pass_not_the_last(golden: Golden) -> None:
    marks = {1: 4, 2: 7, 3: 5}
    report, _ = await refine({"max_passes": 3}, script(lambda r: critique(r, overall=marks[pass_of(r.key)])))
    assert [record.quality for record in report.passes] == [pytest.approx(x) for x in (0.4, 0.7, 0.5)]
    assert report.best_pass == 2
    assert report.answer == prose("coordinator", "pass-2/integrate/coordinator")
    golden(report.warnings)
    assert {(o.id.partition("/")[0], o.fate) for o in report.objections} == {
        ("pass-1", "yielded"),
        ("pass-2", "stands"),
    }
    assert {dissent.id for dissent in report.dissent} == {o.id for o in report.objections if o.fate == "stands"}


async def test_best_of_equal_passes_has_the_fewest_issues() -> None:
    def judge(request: ModelRequest) -> str:
        n = pass_of(request.key)
        return critique(request, issues={1: {"body": ["a", "b"]}, 2: {"body": ["a"]}, 3: {"intro": ["c"]}}[n])

    report, _ = await refine({"max_passes": 3}, script(judge))
    assert report.best_pass == 2


@pytest.mark.parametrize(
    ("marks", "issues", "best"),
    [
        ({1: (4, 4, 6), 2: (4, 4.5, 5.5)}, {1: 1, 2: 1}, 1),
        ({1: (4, 4.5, 5.5), 2: (4, 4, 6)}, {1: 2, 2: 1}, 2),
        ({1: (4, 5, 7.5), 2: (4.5, 5.5, 6.5), 3: (4.5, 5.5, 6.51)}, {1: 1, 2: 1, 3: 3}, 3),
    ],
)
async def test_passes_with_equal_sums_of_scores_are_equal_despite_rounding(
    marks: Mapping[int, tuple[float, ...]], issues: Mapping[int, int], best: int
) -> None:
    """Although the float means of these differ."""

    def judge(request: ModelRequest) -> str:
        n = pass_of(request.key)
        return critique(
            request, dict(zip(PARTS, marks[n], strict=True)), {"body": [f"issue {m}" for m in range(issues[n])]}
        )

    report, _ = await refine({"max_passes": len(marks)}, script(judge))
    assert report.best_pass == best


@pytest.mark.parametrize(("third", "met"), [(9.1, True), (9.09, False)])
async def test_mean_score_equal_to_the_threshold_meets_it(third: float, met: bool) -> None:
    marks = dict(zip(PARTS, (7.1, 7.8, third), strict=True))
    report, _ = await refine({"max_passes": 1}, script(lambda r: critique(r, marks, {})))
    assert report.quality_threshold_met is met
    assert report.passes[0].sections["body"].scores is not None
    assert report.passes[0].sections["body"].scores.overall == 0.78


async def test_critic_with_contradictory_scores_counts_by_overall_with_a_warning() -> None:
    report, _ = await refine({}, script(lambda r: critique(r, overall=9, coherence=1, accuracy=2, depth=1)))
    assert report.stop_reason is StopReason.CONVERGED
    assert sum("contradicts its other scores" in warning for warning in report.warnings) == 4


@pytest.mark.parametrize(
    "nonsense",
    ["Great text!", "{}", '{"intro": {"overall": 8}}', "[]", '{"intro": 11, "body": 11, "conclusion": 11}', "x" * 5000],
)
async def test_critic_with_unreadable_replies_leaves_the_run_inconclusive(nonsense: str) -> None:
    report, model = await refine({}, script(lambda r: nonsense))
    assert report.stop_reason is StopReason.INCONCLUSIVE
    assert not report.quality_threshold_met
    assert report.confidence.level is None
    assert report.answer == prose("coordinator", "pass-1/integrate/coordinator")
    assert len([r for r in model.requests if "/critique/" in r.key]) == 2, "asked once more, then given up"
    assert any("no judgement of pass 1" in warning for warning in report.warnings)


async def test_critic_that_fails_in_a_later_pass_leaves_the_best_judged_pass(golden: Golden) -> None:
    report, _ = await refine({}, script(lambda r: critique(r, overall=6) if pass_of(r.key) == 1 else "no"))
    assert report.stop_reason is StopReason.INCONCLUSIVE
    assert report.best_pass == 1
    golden(report.warnings)
    assert set(report.coordinator_critique) == {*PARTS, "whole"}, "what was said last is what could be read"


async def test_issue_without_content_is_not_counted() -> None:
    """Small models write "None." where nothing is wrong."""
    report, _ = await refine(
        {},
        script(lambda r: critique(r, issues={"intro": ["None.", "no issues"], "body": [" ", "Nothing is missing."]})),
    )
    assert report.stop_reason is StopReason.STALLED
    assert report.objections == ()


@pytest.mark.parametrize("remark", ["None found.", "No issues found.", "Nothing to mend."])
async def test_critic_that_states_in_every_list_that_there_is_nothing_raises_no_issue(remark: str) -> None:
    report, _ = await refine({}, script(lambda r: critique(r, issues={part: [remark] for part in (*PARTS, "whole")})))
    assert (report.objections, report.dissent) == ((), ())
    assert report.steps == 1


async def test_labels_of_claims_that_were_not_shown_are_dropped_counted_and_named(golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        if "/integrate/" not in request.key:
            return script()(request)
        text = " ".join(prose(part, request.key) for part in PARTS)
        return json.dumps({"text": text, "claims": [{"text": "Loops end.", "ids": ["nobody", "body"]}]})

    report, _ = await refine({"max_passes": 1}, reply)
    (claim,) = report.claims
    assert len(claim.ids) == 1
    assert report.metrics["dropped_labels"] == 1
    golden(report.warnings)


async def test_issues_beyond_the_cap_are_dropped_and_counted(golden: Golden) -> None:
    def judge(request: ModelRequest) -> str:
        return critique(request, issues={"body": [f"issue {n}" for n in range(40)]})

    report, model = await refine({"max_passes": 2}, script(judge))
    assert len(report.passes[0].sections["body"].issues) == 6
    assert "issue 6" not in asked(model)["pass-2/draft/body"].text
    golden(report.warnings)


async def test_limit_on_steps_bounds_the_passes() -> None:
    report, model = await refine({"max_passes": 3}, limits=Limits(steps=1))
    assert {pass_of(key) for key in asked(model, "pass-")} == {1}
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    nothing, model = await refine({}, limits=Limits(steps=0))
    assert (nothing.answer, model.requests) == (None, [])


# --- the scorers


async def test_confidence_length_measures_parts_by_length() -> None:
    report, _ = await refine({"confidence": "length", "max_passes": 1})
    for section in report.passes[0].sections.values():
        assert section.confidence == min(len(section.text) / 500, 1)
        assert section.scores is not None
        assert section.scores.overall == 0.5
    assert report.check is not None
    assert report.check.kind == "length"


@pytest.mark.parametrize("level", ["unsure", "fairly sure", "certain"])
async def test_aggregated_confidence_of_equal_values_never_exceeds_them(level: str) -> None:
    hierarchy = load_hierarchy("blog")
    report, _ = await refine({"max_passes": 1}, script(sure=dict.fromkeys(hierarchy.by_name, level)))
    assert report.metrics["aggregated_minus_best"] == pytest.approx(0.0)
    assert (report.metrics["aggregated_minus_best"] or 0.0) <= 0.0
    for child in report.aggregated_children.values():
        assert child.weighted_confidence <= child.best_individual


async def test_confidence_self_uses_what_authors_declare() -> None:
    sure = {"intro": "certain", "body": "unsure", "conclusion": "certain"}
    report, _ = await refine({"confidence": "self", "max_passes": 1}, script(sure=sure))
    assert {n: s.confidence for n, s in report.passes[0].sections.items()} == {
        "intro": 0.95,
        "body": 0.4,
        "conclusion": 0.95,
    }
    assert report.passes[0].quality == pytest.approx((0.95 + 0.4 + 0.95) / 3)
    coordinator = report.aggregated_children["coordinator"]
    assert coordinator.weighted_confidence == pytest.approx((2 * 0.95**2 + 0.4**2) / (2 * 0.95 + 0.4))
    assert coordinator.best_individual == 0.95
    assert report.aggregated_children["intro"].sources == ("researcher", "stylist")


async def test_issue_that_repeats_the_criticised_text_is_a_warning(golden: Golden) -> None:
    def judge(request: ModelRequest) -> str:
        n = request.key.split("/")[0]
        where = "draft" if n == "pass-1" else "revise"
        whole = {part: prose(part, f"{n}/{where}/{part}") for part in PARTS}
        quoted = f"intro says thing 3 in {n}/{where}/intro."
        return critique(request, 4, {"intro": [quoted], "body": [whole["body"].upper()]})

    report, model = await refine({"max_passes": 2}, script(judge))
    assert sorted(asked(model, "pass-2/revise/")) == ["pass-2/revise/body", "pass-2/revise/intro"]
    golden(report.warnings)


async def test_heuristic_critic_applies_the_rules_of_the_seed_without_calls() -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent == "intro":
            return json.dumps({"text": "Short."})
        return json.dumps({"confidence": "certain", "text": "A long sentence indeed, as one would wish. " * 9})

    report, model = await refine({"critic": "heuristic", "confidence": "length", "max_passes": 2}, reply)
    assert not asked(model, "/critique/")
    assert "critic" not in {agent.id for agent in report.agents}
    sections = report.passes[0].sections
    assert sections["intro"].issues == ("too short", "low confidence")
    assert sections["body"].issues == ()
    assert "1. too short\n2. low confidence" in asked(model)["pass-2/draft/intro"].text
    assert report.ledger.actual.calls <= report.ledger.estimated.max == 1 + 2 * 12


def test_heuristic_critic_with_confidence_critic_is_rejected() -> None:
    with pytest.raises(consilience.UserError, match="choose confidence 'length' or 'self'"):
        Refinement(critic="heuristic")


# --- what goes down


async def test_filter_always_shortens_texts_by_distance_and_reports_shares() -> None:
    report, model = await refine({"max_passes": 1, "filter": "always"})
    hierarchy = load_hierarchy("blog")
    assert {(h.parent, h.child) for h in report.handed_down} == {
        (parent, child) for parent in hierarchy.shape.agents for child in hierarchy.children(parent)
    }
    for handed in report.handed_down:
        assert handed.kept == (
            handed.sentences if handed.sentences <= 3 else max(1, int(handed.sentences * handed.strength + 1e-9))
        )
    intent = "coordinator says thing {} in intent/coordinator."
    text = asked(model)["pass-1/draft/intro"].text
    assert intent.format(4) in text
    assert intent.format(5) not in text, "strength 0.83 keeps 4 of 5"
    assert "\n[1 sentence left out]\n" in text
    assert report.distances["intro"]["stylist"] == report.distances["stylist"]["intro"]
    assert report.metrics["share_kept"] == pytest.approx(sum(h.share for h in report.handed_down) / 13)


async def test_filter_never_hands_down_complete_texts() -> None:
    report, model = await refine({"max_passes": 1, "filter": "never"})
    assert "coordinator says thing 5 in intent" in asked(model)["pass-1/draft/intro"].text
    assert all(text.share == 1 and text.distance is None for text in report.handed_down)
    assert report.metrics["distance_share_correlation"] is None
    filtered, _ = await refine({"max_passes": 1, "filter": "always"})
    assert report.distances == filtered.distances != {}, "the hierarchy has vectors, so they are told all the same"


async def test_filter_never_without_vectors_makes_no_embedding_request() -> None:
    bare = {**HOUSE, "roles": [{k: v for k, v in role.items() if k != "vector"} for role in HOUSE["roles"]]}  # type: ignore[attr-defined]
    encoder = Words()
    report, _ = await refine({"hierarchy": bare, "max_passes": 1, "filter": "never"}, encoder=encoder)
    assert report.distances == {}
    assert encoder.encoded == 0


async def test_filter_on_short_texts_gives_no_warning_about_distances() -> None:
    def said(times: int) -> Script:
        usual = script()

        def reply(request: ModelRequest) -> Any:
            if "/critique/" in request.key:
                return usual(request)
            text = " ".join(f"{request.agent} says thing {n}." for n in range(times))
            return text if request.returns is None else json.dumps({"confidence": "certain", "text": text})

        return reply

    near = {**HOUSE, "roles": [{**role, "vector": [1.0, 0.0]} for role in HOUSE["roles"]]}  # type: ignore[attr-defined]
    for times, warned in ((3, False), (4, True)):
        report, _ = await refine({"hierarchy": near, "max_passes": 1, "filter": "always"}, said(times))
        assert report.metrics["share_kept"] == 1.0
        assert any("filtering by distance has little effect" in warning for warning in report.warnings) == warned


async def test_filter_never_shortens_a_critique() -> None:
    issues = [f"Mend this. And that. And more of {n}. And so on. And on." for n in range(3)]
    _, model = await refine({"max_passes": 2}, script(lambda r: critique(r, issues={"intro": issues})))
    for key in ("pass-2/draft/intro", "pass-2/specialist/intro/researcher", "pass-2/revise/intro"):
        assert all(issue in asked(model)[key].text for issue in issues)


class Words:
    """An encoder that counts three words."""

    name = "words"

    def __init__(self) -> None:
        self.encoded = 0

    async def encode(self, texts: Sequence[str]) -> list[list[float]]:
        self.encoded += len(texts)
        return [[1.0 + text.lower().count(word) for word in ("you", "write", "check")] for text in texts]


async def test_roles_without_vectors_are_compared_by_embedded_descriptions() -> None:
    bare = {**HOUSE, "roles": [{k: v for k, v in role.items() if k != "vector"} for role in HOUSE["roles"]]}  # type: ignore[attr-defined]
    with pytest.raises(consilience.UserError, match="filter to auto or never"):
        await refine({"hierarchy": bare, "filter": "always"})
    store = SqliteStore(":memory:")
    report, _ = await refine({"hierarchy": bare, "max_passes": 1, "filter": "always"}, encoder=Words(), store=store)
    assert report.distances["one"]["two"] == 0.0
    assert 0 < report.distances["one"]["checker"] < 0.5
    assert (await consilience.replay(report.session, store=store)).digest() == report.digest()
    store.close()


# --- a draft, documents, wishes


async def test_run_with_draft_starts_from_it_and_keeps_its_code() -> None:
    draft = "---\ntitle: Loops\n---\n# Loops\n\nThey go round.\n\n```python\nwhile True: pass\n```\n"

    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            return json.dumps(
                {"text": "# Loops\n\nThey go round and round.\n\n[[code-1]]\n\nBeware of them, all of you."}
            )
        if "/critique/" in request.key:
            return critique(request, overall=9)
        return json.dumps({"text": "They go round and round, forever."}) if request.returns else "For beginners."

    report, model = await refine({"draft": draft}, reply)
    for part in PARTS:
        text = asked(model)[f"pass-1/draft/{part}"].text
        assert "They go round." in text
        assert "[[code-1]]" in text
        assert "while True" not in text
        assert "title: Loops" not in text
    assert report.answer is not None
    assert report.answer.startswith("---\ntitle: Loops\n---\n# Loops")
    assert "```python\nwhile True: pass\n```" in report.answer
    assert [record.index for record in report.passes] == [0, 1]
    assert "-They go round." in report.passes[1].diff
    assert "+They go round and round." in report.passes[1].diff
    assert report.document() == f"{report.answer.rstrip()}\n"


async def test_lost_protected_block_is_restored_with_a_warning(golden: Golden) -> None:
    draft = "They go round.\n\n```\nwhile True: pass\n```\n\nThe end."
    report, _ = await refine({"draft": draft, "max_passes": 1})
    assert report.answer is not None
    assert report.answer.count("while True: pass") == 1
    golden(report.warnings)


async def test_protected_blocks_are_included_in_diffs_and_figures() -> None:
    code = "```py\n" + "\n".join(f"x{n} = {n}." for n in range(60)) + "\n```"
    draft = f"---\ntitle: Loops\n---\nThey go round. Look:\n{code}\nThe end."

    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            texts = [prose(part, f"pass-1/revise/{part}") for part in PARTS]
            return json.dumps({"text": "They go round.\n\n" + "\n\n".join(texts)})
        return script()(request)

    report, _ = await refine({"draft": draft, "max_passes": 2}, reply)
    assert report.answer is not None
    assert report.metrics["words"] == len(report.answer.split()) > 240
    _, first, second = report.passes
    assert first.document == second.document == report.answer
    changed = [line for line in first.diff.splitlines() if line[0] in "+-"]
    assert changed[:2] == ["-Look:", "-The end."]
    assert len(changed) == 2 + 15
    assert not any("x1" in line or "[[" in line or "title" in line for line in changed)
    assert first.change == pytest.approx(1 - 2 * 2 / (4 + 17)), "the code is one sentence that stays"
    assert (second.diff, second.change) == ("", 0.0)


async def test_documents_are_shown_to_their_readers_and_quotations_of_all_agents_verified() -> None:
    source = Source(text="Loops were named in 1843.\nBy Ada.", name="history")

    def reply(request: ModelRequest) -> Any:
        if ("/specialist/" in request.key and request.agent == "researcher") or "/revise/body" in request.key:
            return json.dumps({"text": 'It is old: "named in 1843" [S1:1]. They say "in 1850" [S1:1]. ' + request.key})
        return script()(request)

    report, model = await refine({"max_passes": 1}, reply, sources=[source])
    readers = {r.agent for r in model.requests if "1| Loops were named" in r.text}
    assert readers == {"researcher", "fact_checker", "critic"}
    judged = {(q.agent, q.words): q.verified for q in report.quotations}
    assert judged[("researcher", "named in 1843")]
    assert judged[("body", "named in 1843")], "an author may repeat what a researcher quoted"
    assert not judged[("body", "in 1850")]


async def test_default_hierarchy_is_document_and_is_recorded_completely() -> None:
    store = SqliteStore(":memory:")
    source = Source(text="Loops were named in 1843.", name="history")
    model = ScriptedModel(script(), context_window=None)
    report = await consilience.deliberate(
        "Write.", Refinement(max_passes=1), model=model, sources=[source], store=store, options=Options(detail="full")
    )
    readers = {r.agent for r in model.requests if "1| Loops were named" in r.text}
    assert readers == {"coordinator", "opening", "body", "exceptions", "checker", "gap_finder", "critic"}
    started = store.read(report.session)[0]
    assert isinstance(started, SessionStarted)
    recorded = started.settings["hierarchy"]
    assert recorded == load_hierarchy("document").model_dump(mode="json"), "a later default must not change it"
    store.close()


async def test_prompts_state_the_target_length_and_tone() -> None:
    _, model = await refine({"length": 600, "tone": "dry wit", "max_passes": 1})
    intent = asked(model)["intent/coordinator"].text
    assert "the whole is about 600 words." in intent
    for part in PARTS:
        assert load_hierarchy("blog").by_name[part].description in intent
        assert "200 words" not in asked(model)[f"pass-1/draft/{part}"].text, "parts have no equal shares"
    assert "about 600 words" in asked(model)["pass-1/integrate/coordinator"].text
    for key in ("pass-1/draft/intro", "pass-1/revise/body", "pass-1/integrate/coordinator", "pass-1/critique/critic"):
        assert "dry wit" in asked(model)[key].text


# --- what is told


async def test_revision_records_critique_change_and_scores_before_and_after() -> None:
    def judge(request: ModelRequest) -> str:
        marks = {"intro": 5.0, "body": 4.0 + pass_of(request.key), "conclusion": 5.0}
        return critique(request, overall=marks, issues={"body": ["say more"]} if pass_of(request.key) == 1 else {})

    report, _ = await refine({"max_passes": 2}, script(judge))
    (revision,) = report.revisions
    assert (revision.step, revision.role, revision.issues) == (1, "body", ("say more",))
    assert revision.removed[0] == "body says thing 1 in pass-1/revise/body."
    assert revision.added[0] == "body says thing 1 in pass-2/revise/body."
    assert (revision.before, revision.after) == (pytest.approx(0.5), pytest.approx(0.6))
    assert report.coordinator_critique["body"].endswith("overall 6 of 10")


async def test_critic_drift_measures_score_changes_of_unchanged_parts() -> None:
    def judge(request: ModelRequest) -> str:
        marks = {"intro": 5.0 + pass_of(request.key), "body": 5.0, "conclusion": 5.0}
        return critique(request, overall=marks, issues={"body": ["more"]})

    report, _ = await refine({"max_passes": 2}, script(judge))
    assert report.metrics["critic_drift"] == pytest.approx(0.05)


# --- what goes wrong


async def test_integrated_text_too_short_is_repaired_once_then_replaced_by_its_parts(golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            return json.dumps({"text": "the whole text"})
        return script(lambda r: critique(r, overall=9))(request)

    report, model = await refine({"max_passes": 1}, reply)
    again = [r for r in model.requests if "/integrate/" in r.key]
    assert len(again) == 2
    assert "it has 3 words, the parts have" in again[1].text
    assert report.answer == "\n\n".join(prose(part, f"pass-1/revise/{part}") for part in PARTS)
    assert report.closing is None
    golden(report.warnings)
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS, "nobody has read this text as a whole"


async def test_integrated_text_too_long_is_repaired(golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            end = " And on it goes, in words that nobody wrote." * (60 if request.attempt == 1 else 0)
            return json.dumps({"text": " ".join(prose(part, "x") for part in PARTS) + end})
        return script(lambda r: critique(r, overall=9))(request)

    report, model = await refine({}, reply)
    (_, again) = [r for r in model.requests if "/integrate/" in r.key]
    assert "add nothing of your own" in again.text
    assert report.answer is not None
    assert "And on it goes" not in report.answer
    golden(report.warnings)


async def test_novelty_ignores_sentences_of_any_agent_and_beyond_parts_those_of_parts(golden: Golden) -> None:
    advised = {**HOUSE, "roles": [{k: v for k, v in role.items() if k != "vector"} for role in HOUSE["roles"]]}  # type: ignore[attr-defined]

    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            texts = [
                prose("one", "pass-1/revise/one"),
                prose("adviser", "pass-1/specialist/lead/adviser"),
                "A line of the old text stood here. The readers are those who loop all day.",
                "Of this sentence nobody has ever thought. Nor has anyone heard about that one yet.",
            ]
            return json.dumps({"text": "\n\n".join(texts)})
        if request.key.startswith("intent"):
            return "The readers are those who loop all day."
        return script(lambda r: critique(r, overall=9))(request)

    report, _ = await refine(
        {"hierarchy": advised, "filter": "never", "draft": "A line of the old text stood here."}, reply
    )
    assert report.metrics["novelty"] == pytest.approx(2 / 14)
    assert report.metrics["beyond_parts"] == pytest.approx(9 / 14)
    golden(report.warnings)


async def test_novelty_ignores_a_heading_of_known_words() -> None:
    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            return json.dumps({"title": "Loops", "text": "## Readers\n\nThe readers are those who loop all day."})
        if "/revise/" in request.key:
            return json.dumps({"confidence": "certain", "text": "Loops\n\nReaders"})
        if request.key.startswith("intent"):
            return "The readers are those who loop all day."
        return script(lambda r: critique(r, overall=9))(request)

    report, _ = await refine({"max_passes": 1}, reply, detail="brief")
    assert report.answer == "# Loops\n\n## Readers\n\nThe readers are those who loop all day."
    assert report.metrics["novelty"] == 0.0
    assert report.metrics["beyond_parts"] == pytest.approx(1 / 3)


async def test_novelty_ignores_sentences_of_an_earlier_pass() -> None:
    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            return json.dumps({"text": "The coordinator says the same in every pass. " * 3})
        return script(lambda r: critique(r, overall=3 + pass_of(r.key)))(request)

    first, _ = await refine({"max_passes": 1}, reply)
    second, _ = await refine({"max_passes": 2}, reply)
    assert (first.best_pass, first.metrics["novelty"]) == (1, 1.0)
    assert (second.best_pass, second.metrics["novelty"]) == (2, 0.0)
    assert second.metrics["beyond_parts"] == 1.0


async def test_sentence_repeated_in_the_answer_is_a_warning(golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        if "/integrate/" in request.key:
            return json.dumps({"text": "A beginning. " + "They go round. " * 9})
        return script(lambda r: critique(r, overall=9))(request)

    report, _ = await refine({}, reply)
    golden(report.warnings)


async def test_missing_author_leaves_a_named_gap_that_never_meets_the_threshold(golden: Golden) -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent == "conclusion":
            return "{}"
        return script(lambda r: critique(r, overall=10, issues={}))(request)

    report, model = await refine({"max_passes": 2}, reply)
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.degraded == "2 of 3 agents; no reply: draft 1 conclusion (malformed); draft 2 conclusion (malformed)"
    assert not report.quality_threshold_met
    assert "conclusion" not in report.passes[0].sections
    golden(report.warnings)
    assert set(asked(model, "pass-2/", "draft")) == {"pass-2/draft/conclusion"}, "only the hole is tried again"
    assert not asked(model, "specialist/conclusion")


async def test_revision_requested_is_true_once_a_critique_was_handed_back() -> None:
    def reply(request: ModelRequest) -> Any:
        if request.agent == "body":
            return "{}"
        first = request.key.startswith("pass-1/")
        return script(lambda r: critique(r, issues={"intro": ["intro is thin"]} if first else {}))(request)

    report, model = await refine({"max_passes": 3}, reply)
    assert "intro is thin" in asked(model)["pass-2/draft/intro"].text
    assert len(report.passes) == 3, "the hole is tried again, though nothing is criticised any more"
    assert report.revision_requested


async def test_revision_requested_is_false_if_no_critique_was_handed_back() -> None:
    report, _ = await refine({"max_passes": 1})
    assert report.objections
    assert not report.revision_requested


async def test_run_without_quorum_of_authors_fails() -> None:
    report, _ = await refine(reply=lambda r: "{}" if r.agent in ("intro", "body") else script()(r))
    assert report.stop_reason is StopReason.FAILED
    assert report.answer is None


async def test_failed_specialist_is_missing_and_its_part_keeps_the_draft() -> None:
    report, model = await refine({"max_passes": 1}, lambda r: "{}" if r.agent == "stylist" else script()(r))
    assert "pass-1/revise/conclusion" not in asked(model), "nobody helped, so there is nothing to take over"
    assert "pass-1/revise/intro" in asked(model)
    assert report.passes[0].sections["conclusion"].text == prose("conclusion", "pass-1/draft/conclusion")
    assert [m.agent for m in report.missing] == ["stylist"]


async def test_failed_intent_call_leaves_authors_with_the_task_only() -> None:
    report, model = await refine({"max_passes": 1}, lambda r: "" if r.key.startswith("intent") else script()(r))
    assert report.coordinator_intent is None
    assert "Write about loops." in asked(model)["pass-1/draft/intro"].text
    assert '"intent" is' not in asked(model)["pass-1/draft/intro"].text
    assert report.answer is not None


@pytest.mark.parametrize(("calls", "text"), [(2, "pass-1"), (14, "pass-1"), (20, "pass-1"), (27, "pass-2")])
async def test_budget_exhausted_within_a_pass_keeps_the_best_judged_pass(calls: int, text: str) -> None:
    report, _ = await refine(
        {"max_passes": 3}, script(lambda r: critique(r, overall=3 + pass_of(r.key))), limits=Limits(calls=calls)
    )
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert report.answer == prose("coordinator", f"{text}/integrate/coordinator")
    assert report.ledger.actual.calls <= calls


@pytest.mark.parametrize(("calls", "passes"), [(0, 0), (14, 1), (15, 1), (18, 2), (27, 2), (31, 3)])
async def test_pass_without_any_text_is_not_counted(calls: int, passes: int) -> None:
    report, model = await refine(
        {"max_passes": 3}, script(lambda r: critique(r, overall=3 + pass_of(r.key))), limits=Limits(calls=calls)
    )
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert {pass_of(key) for key in asked(model, "pass-")} == set(range(1, passes + 1))
    assert report.steps == len(report.passes) == passes
    assert {text.step for text in report.handed_down} <= set(range(1, passes + 1))
    assert report.revision_requested == (passes > 1)
    warned = [warning for warning in report.warnings if warning.startswith("the answer is pass")]
    assert warned == {
        18: ["the answer is pass 1 of 2: no later one was judged"],
        31: ["the answer is pass 2 of 3: no later one was judged"],
    }.get(calls, [])


async def test_pass_in_which_every_call_failed_is_counted() -> None:
    report, _ = await refine({"max_passes": 2}, lambda r: "{}" if r.key.startswith("pass-2/") else script()(r))
    assert report.steps == len(report.passes) == 2
    assert report.revision_requested


async def test_pass_without_integration_does_not_replace_an_earlier_judged_whole() -> None:
    def judge(request: ModelRequest) -> str:
        return critique(request, overall=4 if pass_of(request.key) == 1 else 9)

    limits = Limits(phases={"integrate": SpendingLimits(calls=1)})
    report, _ = await refine({"max_passes": 3}, script(judge), limits=limits)
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert [record.quality for record in report.passes] == [pytest.approx(0.4), None]
    assert report.best_pass == 1
    assert report.answer == prose("coordinator", "pass-1/integrate/coordinator")


async def test_budget_not_spent_by_drafts_is_left_for_later_passes() -> None:
    free, model = await refine({"max_passes": 3})
    again, bound = await refine({"max_passes": 3}, limits=Limits(tokens=300_000))
    assert again.stop_reason is free.stop_reason
    assert len(bound.requests) == len(model.requests) == 40


async def test_author_with_many_parents_stays_within_max_quoted_replies() -> None:
    """The greatest size is set aside for every call, so no prompt may quote more texts than it allows for."""
    names = [f"m{n}" for n in range(12)]
    roles = [{"name": "lead", "description": "You lead.", "children": ["a"]}]
    for name, below in zip(["a", *names], [*names, "n"], strict=True):
        roles.append({"name": name, "description": "You write.", "children": [*([below] if below != "n" else []), "n"]})  # type: ignore[list-item]
    roles += [{"name": "n", "description": "You write.", "children": ["s"]}, {"name": "s", "description": "You help."}]  # type: ignore[list-item]
    settings = {"hierarchy": {"name": "n", "description": "d", "roles": roles}, "max_passes": 2, "filter": "never"}
    _, model = await refine(settings)
    most = max(request.text.count("<quote ") for request in model.requests)
    assert most > 12
    assert most <= blog(**settings).max_quoted_replies


async def test_panel_gives_authors_their_personas() -> None:
    report, model = await refine({"max_passes": 1}, panel="writing")
    seats = {agent.id: agent.persona for agent in report.agents}
    assert all(seats[part] for part in PARTS)
    assert not seats["researcher"]
    assert f"Your role: {seats['body']}." in asked(model)["pass-1/draft/body"].text
