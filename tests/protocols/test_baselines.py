"""`solo` and `vote`: what they ask, who decides, and what the report says of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.errors import RateLimited, SettingsError
from consilience.domain.outcome import Limits, StopReason
from consilience.domain.panels import load_panel
from consilience.engine import runner, similarity
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Solo, SoloReport, Vote, VoteReport
from consilience.reporting.markdown import markdown
from consilience.testing import Scripted, ScriptedModel

TASK = "Should the ferry run at night?"


async def solo(protocol: Solo, reply: object, **more: object) -> tuple[SoloReport, ScriptedModel]:
    model = ScriptedModel(reply if callable(reply) else [reply])  # type: ignore[arg-type,list-item]
    report = await runner.start(TASK, protocol, models=model, store=SqliteStore(":memory:"), **more)  # type: ignore[arg-type]
    assert isinstance(report, SoloReport)
    return report, model


async def vote(protocol: Vote, said: dict[str, object], **more: object) -> tuple[VoteReport, ScriptedModel]:
    def reply(request: ModelRequest) -> object:
        return said[request.agent]

    model = ScriptedModel(reply)  # type: ignore[arg-type]
    store = SqliteStore(":memory:")
    report = await runner.start(TASK, protocol, models=model, store=store, **more)  # type: ignore[arg-type]
    assert isinstance(report, VoteReport)
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()
    return report, model


async def test_solo_is_one_call_and_its_text_is_the_answer() -> None:
    report, model = await solo(Solo(answer_pattern="yes|no"), "Yes. People work late.")
    assert [r.key for r in model.requests] == ["answer/S1"]
    assert model.requests[0].schema is None
    assert "The first word is yes or no." in model.requests[0].text
    assert (report.answer, report.position) == ("Yes. People work late.", "yes")
    assert report.stop_reason is StopReason.SETTLED
    assert report.ledger.actual.calls == 1
    assert report.weighed is None
    assert "nobody read or doubted" in markdown(report)
    assert "**Dissent:**" not in markdown(report)


async def test_an_expression_is_put_at_the_end_of_the_reasons() -> None:
    report, model = await solo(Solo(answer_pattern=r"answer: (\d+)"), "Three times four is 12. Answer: 12")
    assert "Then end with the answer, in the form: answer: (" in model.requests[0].text
    assert report.position == "12"
    report, _ = await solo(Solo(answer_pattern=r"answer: (\d+)"), "Twelve.")
    assert report.position is None
    assert "the answer holds nothing that the answer_pattern looks for" in report.warnings


async def test_structured_solo_is_asked_for_what_a_deliberation_gives() -> None:
    body = {
        "options": ["Every night", "Weekends only", " "],
        "cruxes": ["Who would use it?"],
        "would_change": ["Fewer than ten riders"],
        "against": "It wakes the harbour.",
        "confidence": "fairly sure",
        "text": "Weekends only.",
    }
    report, model = await solo(Solo(structured=True), json.dumps(body))
    assert list(model.requests[0].schema["properties"]) == list(body)  # type: ignore[index,call-overload]
    assert report.weighed is not None
    assert report.weighed.options == ("Every night", "Weekends only")
    assert report.weighed.against == "It wakes the harbour."
    assert (report.confidence.level, report.confidence.kind) == (0.7, "declared")
    text = markdown(report)
    assert "One model's own account" in text
    assert "Against its answer: It wakes the harbour." in text


async def test_structured_solo_that_is_answered_in_words_says_what_is_missing() -> None:
    report, _ = await solo(Solo(structured=True), "Weekends only, since few would ride.")
    assert report.answer == "Weekends only, since few would ride."
    assert any("came in words alone" in warning for warning in report.warnings)
    assert report.confidence.level is None
    report, _ = await solo(Solo(structured=True), json.dumps({"options": ["Every night"], "text": "Weekends only."}))
    assert not any("words alone" in warning for warning in report.warnings)


async def test_a_dead_model_fails_solo_and_a_limit_exhausts_it() -> None:
    report, _ = await solo(Solo(), lambda request: RateLimited("busy"))
    assert (report.stop_reason, report.answer, report.quorum_met) == (StopReason.FAILED, None, False)
    report, model = await solo(Solo(), lambda request: "Yes.", limits=Limits(calls=0))
    assert (report.stop_reason, report.answer, model.requests) == (StopReason.EXHAUSTED_BUDGET, None, [])
    report, _ = await solo(Solo(), lambda request: "Yes.", limits=Limits(calls=1))
    assert (report.stop_reason, report.answer) == (StopReason.SETTLED, "Yes.")
    report, _ = await solo(Solo(), lambda request: "Yes.", limits=Limits(steps=0))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS


async def test_the_majority_decides_and_its_most_typical_text_answers() -> None:
    report, model = await vote(
        Vote(votes=4, answer_pattern="yes|no"),
        {
            "V1": "Yes, the hospital needs it at night.",
            "V2": "No, the crew is too small. It would break.",
            "V3": "Yes, the hospital needs it badly at night.",
            "V4": "Yes, tourists.",
        },
    )
    assert [r.key for r in model.requests] == [f"answer/V{n}" for n in range(1, 5)]
    assert all("V" not in r.text.replace("V1", "") or r.agent for r in model.requests)
    assert len({r.text for r in model.requests}) == 1, "independent answers to the very same prompt"
    assert len({r.seed for r in model.requests}) == 4, "drawn apart"
    assert (report.position, report.decided_by, report.tie) == ("yes", "majority", False)
    assert report.tally == {"yes": 3, "no": 1}
    assert report.answer in ("Yes, the hospital needs it at night.", "Yes, the hospital needs it badly at night.")
    assert (report.confidence.level, report.confidence.kind) == (0.75, "agreement")
    assert [(d.agent, d.position, d.text) for d in report.dissent] == [("V2", "no", "No, the crew is too small.")]
    assert "**Votes:** 3 for yes · 1 for no" in markdown(report)


async def test_a_tie_is_said_and_decided_by_the_text_most_like_all() -> None:
    report, _ = await vote(
        Vote(votes=4, answer_pattern="yes|no"),
        {"V1": "yes a b c d", "V2": "yes x y z w", "V3": "no a b c d", "V4": "no a b q r"},
    )
    assert report.tie
    assert report.position == "no"
    assert any("2 answers have 2 votes each" in w for w in report.warnings)


async def test_without_extractable_answers_the_medoid_answers() -> None:
    said: dict[str, object] = {"V1": "the sea is cold tonight", "V2": "the sea is cold", "V3": "bread"}
    report, _ = await vote(Vote(votes=3), said)
    assert (report.decided_by, report.position, report.tally) == ("medoid", None, {})
    assert report.answer in ("the sea is cold tonight", "the sea is cold")
    report, _ = await vote(Vote(votes=3, answer_pattern=r"\d+"), said)
    assert report.decided_by == "medoid"
    assert any("3 of 3 answers hold nothing that the answer_pattern looks for" in w for w in report.warnings)


async def test_votes_are_compared_pair_by_pair_and_each_is_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    split: Counter[str] = Counter()
    pairs = 0

    def tokens(text: str) -> frozenset[str]:
        split[text] += 1
        return frozenset(text.lower().split())

    def shared(left: frozenset[str], right: frozenset[str]) -> float:
        nonlocal pairs
        pairs += 1
        return len(left & right) / len(left | right)

    said = {f"V{n}": f"vote {n} says {n % 3} and {n % 5}" for n in range(1, 13)}
    with monkeypatch.context() as counting:
        counting.setattr(similarity, "tokens", tokens)
        counting.setattr(similarity, "shared", shared)
        model = ScriptedModel(lambda request: said[request.agent])
        report = await runner.start(TASK, Vote(votes=12), models=model, store=SqliteStore(":memory:"))
    assert isinstance(report, VoteReport)
    assert set(split) == set(said.values())
    assert set(split.values()) == {1}
    assert pairs == 12 * 11 / 2
    for vote in report.votes:
        others = [similarity.jaccard(vote.text, other) for agent, other in said.items() if agent != vote.agent]
        assert vote.similarity == math.fsum(others) / 11
    scores = [similarity.jaccard(a, b) for a, b in combinations(said.values(), 2)]
    assert report.metrics["sibling_similarity/answer/1"] == math.fsum(scores) / 66


async def test_missing_votes_are_named_and_a_quorum_is_needed() -> None:
    said: dict[str, object] = {
        "V1": "yes",
        "V2": RateLimited("busy"),
        "V3": RateLimited("busy"),
        "V4": RateLimited("busy"),
    }
    report, _ = await vote(Vote(votes=4, answer_pattern="yes|no"), said)
    assert (report.stop_reason, report.answer) == (StopReason.FAILED, None)
    assert {m.agent for m in report.missing} == {"V2", "V3", "V4"}
    report, _ = await vote(Vote(votes=4, answer_pattern="yes|no"), said, quorum=0.25)
    assert (report.stop_reason, report.position) == (StopReason.SETTLED, "yes")
    assert report.degraded == "1 of 4 agents (3 rate_limited)"


@pytest.mark.parametrize("calls", [0, 1, 3, 4])
async def test_a_budget_buys_as_many_votes_as_it_has_calls(calls: int) -> None:
    said: dict[str, object] = dict.fromkeys(("V1", "V2", "V3", "V4"), "yes")
    report, model = await vote(Vote(votes=4, answer_pattern="yes|no"), said, limits=Limits(calls=calls))
    assert len(model.requests) == calls
    assert report.stop_reason is (StopReason.SETTLED if calls == 4 else StopReason.EXHAUSTED_BUDGET)
    assert report.tally == ({"yes": calls} if calls else {})


async def test_a_panel_gives_voters_its_points_of_view() -> None:
    panel = load_panel("engineering")
    report, model = await vote(Vote(votes=2), {"V1": "a b", "V2": "a c"}, panel=panel)
    assert [agent.persona for agent in report.agents] == [p.name for p in panel.personas[:2]]
    assert panel.personas[0].name in model.requests[0].text
    assert panel.personas[1].name not in model.requests[0].text


@given(
    st.lists(
        st.sampled_from(["yes because of a", "no because of b", "yes", "perhaps", "no no"]), min_size=1, max_size=6
    )
)
async def test_who_sits_where_changes_no_tally(texts: list[str]) -> None:
    async def tally(order: list[str]) -> tuple[dict[str, int], bool]:
        said: dict[str, object] = {f"V{n}": text for n, text in enumerate(order, 1)}
        report, _ = await vote(Vote(votes=len(order), answer_pattern="yes|no"), said)
        return report.tally, report.tie

    assert (await tally(texts))[0] == (await tally(texts[::-1]))[0]
    assert (await tally(texts))[1] == (await tally(texts[::-1]))[1]


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="no regular expression"):
        Vote(answer_pattern="(")
    with pytest.raises(SettingsError, match="votes"):
        Vote(votes=0)


async def test_votes_cost_what_their_calls_cost() -> None:
    said: dict[str, object] = {f"V{n}": Scripted("yes", tokens_in=10, tokens_out=1, cost=0.5) for n in (1, 2, 3)}
    report, _ = await vote(Vote(votes=3, answer_pattern="yes|no"), said)
    assert (report.ledger.actual.cost, report.ledger.actual.tokens_in, report.ledger.estimated.max) == (1.5, 30, 3)
