"""`--effort` and `--duties`: who reads which part, how many calls that takes, and what the report says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consilience.domain.errors import Rejected, SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, StopReason
from consilience.domain.tokens import estimate_tokens
from consilience.engine.drafts import Drafts
from consilience.engine.prompt import Opening
from consilience.engine.sources import number_documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.review import Review, ReviewReport
from consilience.protocols.review.presenting import overall_vote
from consilience.reporting.markdown import markdown
from kit import runner
from kit.reviewing import CODE, SOURCES, UNCLOSED, Script, finding, judgement, review, script

TWO_FILES = [Source(CODE, f"file_{n}.py") for n in (1, 2)]
CODE_DUTIES = ["contracts", "data", "concurrency", "security", "tests"]


async def go(
    protocol: Review, reply: Script, sources: Any = SOURCES, **options: Any
) -> tuple[ReviewReport, dict[str, ModelRequest]]:
    """A run, which must replay and stay within its estimate; and its requests by key."""
    model = ScriptedModel(reply)
    store = SqliteStore(":memory:")
    try:
        report = await runner.start("Review it.", protocol, models=model, store=store, sources=sources, **options)
        assert isinstance(report, ReviewReport)
        assert (await runner.replay(report.session, store=store)).digest() == report.digest()
        requests = {request.key: request for request in model.requests}
        assert report.ledger.estimated.min <= len(requests) <= report.ledger.estimated.max or options
        return report, requests
    finally:
        store.close()


def silent(request: ModelRequest) -> Rejected:
    return Rejected("no key")


# --- quick


async def test_quick_review_of_sound_code_is_one_call_and_claims_no_agreement() -> None:
    report, requests = await go(Review(effort="quick"), script({}))
    assert list(requests) == ["review-1/part-1/red"]
    assert report.stop_reason is StopReason.SETTLED
    assert overall_vote(report) == "APPROVE: red, the only reviewer."
    assert report.complete
    text = markdown(report)
    assert "**Read in full:** 1 file in 1 part, by red." in text
    assert "Single agent; no other agent reviewed the answer." in text
    assert "blue" not in text
    assert "independent" not in text


async def test_quick_review_reads_twice_only_what_the_first_reviewer_reported_on() -> None:
    def red(request: ModelRequest) -> str:
        found = [finding(document="S2")] if "/part-2/" in request.key else []
        return review(found, vote="changes" if found else "approve")(request)

    by = {"red": red, "blue": review([finding(document="S2")], vote="changes")}
    report, requests = await go(Review(effort="quick", part_tokens=100), script(by), TWO_FILES)
    assert sorted(requests) == ["review-1/part-1/red", "review-1/part-2/blue", "review-1/part-2/red"]
    (listed,) = report.findings
    assert (listed.by, listed.status, listed.found_apart) == (("blue", "red"), "confirmed", True)
    assert overall_vote(report) == "CHANGES: red and blue. Part 1 had one reviewer."
    assert report.answer == "A quick review: no agent judged this finding."
    assert report.complete


async def test_quick_reviewers_get_the_same_prompt() -> None:
    _, requests = await go(Review(effort="quick"), script({"red": review([finding()])}))
    red, blue = requests["review-1/part-1/red"], requests["review-1/part-1/blue"]
    assert red.text == blue.text
    assert "You are red" not in red.text


@pytest.mark.parametrize("red", [silent, review(vote="changes")], ids=["no reply", "no approval"])
async def test_quick_review_asks_the_second_reviewer_if_the_first_does_not_approve(red: Script) -> None:
    report, requests = await go(Review(effort="quick"), script({"red": red}))
    assert {"review-1/part-1/red", "review-1/part-1/blue"} == requests.keys()
    headline = overall_vote(report)
    if red is silent:
        assert headline == "APPROVE: blue alone. No ballot from red."
        assert not report.complete
        assert report.answer == "No findings in 1 file. No review by red: this covers the others only."
    else:
        assert headline.startswith("CHANGES: red changes, blue approve. The reviewers are split")
        assert [(entry.agent, entry.position) for entry in report.dissent] == [("blue", "approve")]


@pytest.mark.parametrize(
    ("rule", "is_named"),
    [
        ("Changes of `src/pay/` need two readers.", True),
        ("Look twice at src/pay/card.py, it moves money.", True),
        ("Any `*.py` is read twice.", True),
        ("Files in src/pay/** are critical.", True),
        ("`card.py` is old.", True),
        ("Use `src/payment/` for new code; see https://example.com/src/pay/card.py.", False),
        ("Python and/or Node.js, card games excluded.", False),
        ("", False),
    ],
)
async def test_quick_review_reads_a_file_twice_that_a_rule_names(rule: str, is_named: bool) -> None:
    sources = [Source(CODE, "src/pay/card.py"), *([Source(rule, "REVIEW.md", purpose="rules")] if rule else [])]
    _, requests = await go(Review(effort="quick"), script({}), sources)
    assert ("review-1/part-1/blue" in requests) is is_named


async def test_quick_review_keeps_no_reserve_for_a_lead() -> None:
    report, requests = await go(Review(effort="quick"), script({"red": review([finding()])}), limits=Limits(calls=2))
    assert len(requests) == 2
    assert report.stop_reason is StopReason.SETTLED


@pytest.mark.parametrize("kind", ["code", "skill", "documentation", "parallel_analysis", "architecture"])
async def test_quick_review_of_any_type_is_at_most_two_calls_a_part(kind: Any) -> None:
    report, requests = await go(Review(effort="quick", review_type=kind), script({"red": review([finding()])}))
    assert len(requests) == 2
    assert report.evaluations == ()


# --- duties


async def test_thorough_review_has_a_reviewer_for_each_duty_and_each_judges_another() -> None:
    by = {"data": review([finding()]), "tests": review([finding(), UNCLOSED])}
    report, requests = await go(Review(effort="thorough"), script(by, judgement("refute")))
    readings = [key for key in requests if key.startswith("review")]
    assert [key.rpartition("/")[2] for key in readings] == CODE_DUTIES
    assert len({request.text for key, request in requests.items() if key in readings}) == 5
    assert "You are red" not in requests[readings[0]].text
    assert {"judge/part-1/concurrency", "judge/part-1/contracts", "closing"} == requests.keys() - set(readings)
    assert {f.category: [j.agent for j in f.judgements] for f in report.findings} == {
        "bounds": ["concurrency", "contracts"],
        "resources": ["contracts"],
    }
    assert list(report.questions) == CODE_DUTIES


async def test_named_duties_take_the_place_of_red_and_blue() -> None:
    by = {"security": review([finding()])}
    _, requests = await go(Review(duties=("security", "tests")), script(by))
    assert list(requests) == ["review-1/part-1/security", "review-1/part-1/tests", "judge/part-1/tests", "closing"]


async def test_duties_of_a_document_are_those_of_texts() -> None:
    _, requests = await go(Review(effort="thorough", review_type="documentation"), script({}))
    assert [key.rpartition("/")[2] for key in requests] == ["facts", "use", "contradictions", "gaps"]


@pytest.mark.parametrize(
    "settings",
    [
        {"duties": ("style", "tests")},
        {"duties": ("tests",)},
        {"duties": ("tests", "tests")},
        {"duties": ("tests", "data"), "strategy": "hierarchical"},
        {"effort": "thorough", "strategy": "parallel_decomposition"},
        {"effort": "quick", "duties": ("tests", "data")},
        {"effort": "quick", "max_iterations": 2},
        {"effort": "quick", "gates": ("files_covered",)},
        {"effort": "quick", "quality_threshold": 0.5},
    ],
    ids=str,
)
def test_settings_without_effect_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Review(**settings)


# --- calls, as the documentation has them


@pytest.mark.parametrize(
    ("settings", "parts", "calls"),
    [
        ({"effort": "quick"}, 1, (1, 2)),
        ({}, 1, (2, 5)),
        ({"effort": "thorough"}, 1, (5, 11)),
        ({"effort": "quick"}, 2, (2, 4)),
        ({}, 2, (4, 9)),
        ({"effort": "thorough"}, 2, (10, 21)),
    ],
)
def test_estimate_of_each_effort(settings: dict[str, Any], parts: int, calls: tuple[int, int]) -> None:
    estimate = Review(**settings, parts=tuple((f"S{n}",) for n in range(1, parts + 1))).estimate()
    assert (estimate.min, estimate.max) == calls


# --- limits


async def test_quick_review_that_a_limit_cuts_short_names_the_parts_that_nobody_read() -> None:
    report, requests = await go(Review(effort="quick", part_tokens=100), script({}), TWO_FILES, limits=Limits(calls=1))
    assert list(requests) == ["review-1/part-1/red"]
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert [part.readers for part in report.parts] == [("red",), ()]
    text = markdown(report)
    assert "**Incomplete:** no agent reviewed part 2." in text
    assert "this is no sign of quality" in text


# --- what is counted before a run is what is sent


@pytest.mark.parametrize(
    "settings", [{}, {"effort": "quick"}, {"effort": "thorough"}, {"review_type": "documentation"}]
)
async def test_planned_prompts_are_as_long_as_those_that_are_sent(settings: dict[str, Any]) -> None:
    protocol = Review(**settings, part_tokens=100)
    documents = number_documents(TWO_FILES)
    planned = protocol.with_detail("full").with_documents(documents, None)
    templates = planned.load_templates()
    opening = Opening(templates.render(INSTRUCTIONS, documents=True), "Review it.", documents)
    calls = planned.planned_calls(
        Drafts(opening, {agent.id: agent for agent in planned.agents(None)}, templates, "full")
    )
    assert calls is not None
    _, requests = await go(protocol, script({}), TWO_FILES)
    sent = [
        estimate_tokens(r.system) + estimate_tokens(r.user) + 16 + estimate_tokens(json.dumps(r.schema))
        for r in requests.values()
    ]
    assert sorted(call.tokens_in for call in calls.least) == sorted(sent)
