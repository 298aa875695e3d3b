"""`solo` and `vote`: what they ask, who decides, and what the report says of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.errors import RateLimited, SettingsError
from consilience.domain.outcome import Limits, StopReason
from consilience.domain.panels import load_panel
from consilience.engine import similarity
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Solo, SoloReport, Vote, VoteReport
from consilience.reporting.markdown import markdown
from consilience.testing import Scripted, ScriptedModel
from kit import runner
from kit.golden import Golden, lines_with, section

TASK = "Should the ferry run at night?"


async def solo(protocol: Solo, reply: object, **more: object) -> tuple[SoloReport, ScriptedModel]:
    model = ScriptedModel(reply if callable(reply) else [reply])  # type: ignore[arg-type,list-item]
    more.setdefault("store", SqliteStore(":memory:"))
    report = await runner.start(TASK, protocol, models=model, **more)  # type: ignore[arg-type]
    assert isinstance(report, SoloReport)
    return report, model


async def vote(protocol: Vote, text: dict[str, object], **more: object) -> tuple[VoteReport, ScriptedModel]:
    def reply(request: ModelRequest) -> object:
        return text[request.agent]

    model = ScriptedModel(reply)  # type: ignore[arg-type]
    store = SqliteStore(":memory:")
    report = await runner.start(TASK, protocol, models=model, store=store, **more)  # type: ignore[arg-type]
    assert isinstance(report, VoteReport)
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()
    return report, model


async def test_solo_makes_one_call_and_answers_with_its_text(golden: Golden) -> None:
    report, model = await solo(Solo(answer_pattern="yes|no"), "People work late.\n\nAnswer: Yes")
    assert [r.key for r in model.requests] == ["answer/S1"]
    assert model.requests[0].schema is None
    assert "Answer: yes or no" in model.requests[0].text
    assert (report.answer, report.position) == ("People work late.\n\nAnswer: Yes", "Yes")
    assert report.stop_reason is StopReason.SETTLED
    assert report.ledger.actual.calls == 1
    assert report.weighed is None
    golden(markdown(report))


async def test_solo_with_an_answer_pattern_asks_for_the_answer_at_the_end(golden: Golden) -> None:
    report, model = await solo(Solo(answer_pattern=r"answer: (\d+)"), "Three times four is 12. Answer: 12")
    assert "end with a line that holds it alone, in the form: answer: (" in model.requests[0].text
    assert report.position == "12"
    report, _ = await solo(Solo(answer_pattern=r"answer: (\d+)"), "Twelve.")
    assert report.position is None
    golden(report.warnings)


async def test_structured_solo_reports_the_fields_of_a_deliberation(golden: Golden) -> None:
    body = {
        "options": ["Every night", "Weekends only", " "],
        "cruxes": ["Who would use it?"],
        "confidence": "fairly sure",
        "claims": ["Few ride on weekdays."],
        "against": ["It wakes the harbour."],
        "would_change": ["Fewer than ten riders"],
        "unknown": ["How many nurses cross", "none"],
        "text": "Weekends only.",
    }
    report, model = await solo(Solo(structured=True), json.dumps(body))
    assert list(model.requests[0].schema["properties"]) == list(body)  # type: ignore[index,call-overload]
    assert report.weighed is not None
    assert report.weighed.options == ("Every night", "Weekends only")
    assert [claim.text for claim in report.claims] == ["Few ride on weekdays."]
    assert [against.text for against in report.against] == ["It wakes the harbour."]
    assert (report.would_change, report.unknown) == (("Fewer than ten riders",), ("How many nurses cross",))
    assert (report.confidence.level, report.confidence.kind) == (0.7, "declared")
    golden(markdown(report))


def reviewer(*rounds: tuple[list[str], object], answer: object = "Run it.") -> Callable[[ModelRequest], object]:
    """A model that answers, and in review n states these issues and then gives this new version."""

    def reply(request: ModelRequest) -> object:
        if not request.key.startswith("review-"):
            return answer
        issues, version = rounds[int(request.key.split("/")[0].removeprefix("review-")) - 1]
        return json.dumps({"issues": issues}) if "/critique/" in request.key else version

    return reply


def version(text: str, *responses: tuple[int, str, str]) -> str:
    fates = [{"issue": issue, "fate": fate, "how": how} for issue, fate, how in responses]
    return json.dumps({"responses": fates, "text": text})


async def test_solo_reviews_criticise_and_rewrite_the_answer(golden: Golden) -> None:
    reply = reviewer(
        (["No cost is named.", "Why nightly?"], version("Run it: 40,000.", (1, "yielded", "cost added"))),
        (["The noise is left out."], version("Run it on weekends: 40,000.", (1, "refuted", "nobody lives there"))),
    )
    store = SqliteStore(":memory:")
    report, model = await solo(Solo(reviews=2), reply, store=store)
    asked = {request.key: request.text for request in model.requests}
    assert list(asked) == [
        "answer/S1",
        "review-1/critique/S1",
        "review-1/rewrite/S1",
        "review-2/critique/S1",
        "review-2/rewrite/S1",
    ]
    assert "Run it." in asked["review-1/critique/S1"]
    assert "1. No cost is named.\n2. Why nightly?" in asked["review-1/rewrite/S1"]
    assert "Run it: 40,000." in asked["review-2/critique/S1"]
    assert "No cost is named." not in asked["review-2/critique/S1"]
    assert (report.answer, report.stop_reason) == ("Run it on weekends: 40,000.", StopReason.SETTLED)
    assert [[(i.text, i.fate, i.how) for i in review.issues] for review in report.reviews] == [
        [("No cost is named.", "yielded", "cost added"), ("Why nightly?", "unanswered", "")],
        [("The noise is left out.", "refuted", "nobody lives there")],
    ]
    assert (report.reviews[0].before, report.reviews[0].after) == ("Run it.", "Run it: 40,000.")
    golden(markdown(report))
    assert report.dissent == ()
    assert report.objections == ()
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()


async def test_solo_review_without_issues_ends_the_reviews() -> None:
    report, model = await solo(
        Solo(reviews=3), reviewer(([" ", "None.", "No errors found in the answer.", "Nothing to add"], "unused"))
    )
    assert [r.key for r in model.requests] == ["answer/S1", "review-1/critique/S1"]
    assert (report.answer, [r.outcome for r in report.reviews]) == ("Run it.", ["nothing_found"])
    assert report.warnings == ()
    assert len(model.requests) == Solo(reviews=3).estimate().min


async def test_solo_review_that_fails_keeps_the_last_complete_answer(golden: Golden) -> None:
    def prose(request: ModelRequest) -> str:
        return "It looks fine to me." if request.key.startswith("review-") else "Run it."

    report, _ = await solo(Solo(reviews=2), prose)
    assert (report.answer, report.reviews[0].outcome, len(report.reviews)) == ("Run it.", "critique_failed", 1)
    golden(report.warnings)

    report, _ = await solo(Solo(reviews=2), reviewer((["No cost."], version(" "))))
    assert (report.answer, report.reviews[0].outcome) == ("Run it.", "rewrite_failed")
    assert [issue.fate for issue in report.reviews[0].issues] == ["unanswered"]

    cut = Scripted(version("Run it: 40"), finish_reason="length")
    report, _ = await solo(Solo(reviews=2), reviewer((["No cost."], cut)))
    assert (report.answer, report.answer_cut, report.reviews[0].outcome) == ("Run it.", False, "rewrite_cut")
    golden(report.warnings, "run 2")


DRAFT = " ".join(f"Reason {n}: the night ferry carries nurses and bakers home." for n in range(12))
RESTATED = "The question is whether the ferry should run at night."


async def test_solo_rewrite_that_loses_the_text_keeps_the_draft_and_prints_both(golden: Golden) -> None:
    reply = reviewer((["No cost."], version(RESTATED, (1, "yielded", "shortened"))), answer=DRAFT)
    report, model = await solo(Solo(reviews=2), reply)
    assert report.answer == DRAFT
    (review,) = report.reviews
    assert (review.outcome, review.after, review.discarded) == ("rewrite_lost_text", None, RESTATED)
    assert [issue.fate for issue in review.issues] == ["unanswered"], "the answer that stands changed nothing"
    golden(report.warnings)
    assert RESTATED in markdown(report)
    assert len(model.requests) == 3


async def test_solo_reviews_that_lose_the_draft_step_by_step_keep_a_third_of_it() -> None:
    half, quarter = (DRAFT[: len(DRAFT) // n] for n in (2, 4))
    report, _ = await solo(
        Solo(reviews=2), reviewer((["Long."], version(half)), (["Long."], version(quarter)), answer=DRAFT)
    )
    assert [review.outcome for review in report.reviews] == ["rewritten", "rewrite_lost_text"]
    assert report.answer == half


async def test_solo_rewrite_of_an_answer_that_was_cut_may_shorten_it() -> None:
    long, short = DRAFT[: len(DRAFT) // 2], DRAFT[: len(DRAFT) // 4]
    answers = reviewer(
        (["Endless."], version(long)), (["Long."], version(short)), answer=Scripted(DRAFT * 5, finish_reason="length")
    )
    report, _ = await solo(Solo(reviews=2), answers)
    assert report.answer == short, "a third of a complete version is kept; the cut one does not count"


@pytest.mark.parametrize(
    ("task", "pattern", "kept"),
    [
        (f"{TASK} Answer in one sentence.", "", False),
        (f"{TASK} Answer in at most 20 words.", "", False),
        (f"{TASK} Be brief.", "", False),
        (TASK, "yes|no", False),
        (f"{TASK} One ferry has 200 seats.", "", True),
    ],
)
async def test_solo_rewrite_of_a_task_that_sets_a_length_may_be_short(task: str, pattern: str, kept: bool) -> None:
    model = ScriptedModel(reviewer((["Too long."], version(RESTATED)), answer=DRAFT))
    report = await runner.start(
        task, Solo(reviews=1, answer_pattern=pattern), models=model, store=SqliteStore(":memory:")
    )
    assert report.answer == (DRAFT if kept else RESTATED)


async def test_solo_rewrite_of_less_than_half_prints_the_version_before() -> None:
    half = DRAFT[: int(len(DRAFT) * 0.45)]
    report, _ = await solo(Solo(reviews=1), reviewer((["Too long."], version(half)), answer=DRAFT))
    assert report.answer == half
    assert DRAFT in markdown(report)


async def test_solo_rewrite_with_unchanged_text_leaves_issues_unanswered(golden: Golden) -> None:
    same = version("Run  it.", (1, "yielded", "a cost is named now"), (2, "refuted", "it is nightly"))
    report, _ = await solo(Solo(reviews=1), reviewer((["No cost is named.", "Why nightly?"], same)))
    assert [issue.fate for issue in report.reviews[0].issues] == ["unanswered", "refuted"]
    golden(lines_with("2 issues", markdown(report)))


async def test_solo_rewrite_replaces_a_cut_answer() -> None:
    answer = Scripted("Run it, beca", finish_reason="length")
    report, _ = await solo(Solo(reviews=1), reviewer((["It breaks off."], version("Run it.")), answer=answer))
    assert (report.answer, report.answer_cut) == ("Run it.", False)


async def test_structured_solo_reviews_report_the_analysis_of_the_last_version() -> None:
    def structured(text: str, against: str) -> dict[str, object]:
        return {"options": [text], "confidence": "certain", "against": [against], "text": text}

    last = structured("Weekends only.", "The hospital.") | {"responses": []}
    reply = reviewer((["No cost."], json.dumps(last)), answer=json.dumps(structured("Run it.", "It is loud.")))
    report, model = await solo(Solo(reviews=1, structured=True), reply)
    assert report.answer == "Weekends only."
    assert [against.text for against in report.against] == ["The hospital."]
    assert report.weighed is not None
    assert report.weighed.options == ("Weekends only.",)
    assert next(iter(model.requests[-1].schema["properties"])) == "responses"  # type: ignore[index,call-overload]
    assert list(model.requests[-1].schema["properties"])[-1] == "text"  # type: ignore[index,call-overload]


@pytest.mark.parametrize("calls", range(1, 9))
async def test_solo_resized_for_calls_has_as_many_reviews_as_they_pay_for(calls: int) -> None:
    sized = Solo().resized_for_calls(calls)
    rounds = [(["No cost."], version(f"Version {n}.", (1, "yielded", "x"))) for n in range(1, 5)]
    report, model = await solo(sized, reviewer(*rounds), limits=Limits(calls=calls))
    assert len(model.requests) == sized.estimate().max == 1 + 2 * ((calls - 1) // 2)
    assert report.stop_reason is StopReason.SETTLED


async def test_solo_limit_during_reviews_keeps_the_answer_and_is_reported() -> None:
    rounds = [(["No cost."], version(f"Version {n}.")) for n in range(1, 4)]
    report, model = await solo(Solo(reviews=3), reviewer(*rounds), limits=Limits(calls=4))
    assert len(model.requests) <= 4
    assert (report.answer, report.stop_reason) == ("Version 1.", StopReason.EXHAUSTED_BUDGET)
    report, model = await solo(Solo(reviews=3), reviewer(*rounds), limits=Limits(steps=2))
    assert (report.answer, report.stop_reason, report.steps) == ("Version 1.", StopReason.EXHAUSTED_STEPS, 2)


async def test_solo_review_drops_issues_beyond_the_cap() -> None:
    issues = [f"Issue {n}." for n in range(1, 31)]
    report, model = await solo(Solo(reviews=1), reviewer((["", *issues], version("Run it."))))
    assert [issue.text for issue in report.reviews[0].issues] == issues[:6]
    assert "Issue 7." not in model.requests[-1].text


async def test_structured_solo_answered_in_prose_reports_the_missing_fields(golden: Golden) -> None:
    report, _ = await solo(Solo(structured=True), "Weekends only, since few would ride.")
    assert report.answer == "Weekends only, since few would ride."
    golden(report.warnings)
    assert report.confidence.level is None
    report, _ = await solo(Solo(structured=True), json.dumps({"options": ["Every night"], "text": "Weekends only."}))
    golden(report.warnings, "run 2")


async def test_solo_fails_without_a_reply_and_is_exhausted_by_a_limit() -> None:
    report, _ = await solo(Solo(), lambda request: RateLimited("busy"))
    assert (report.stop_reason, report.answer, report.quorum_met) == (StopReason.FAILED, None, False)
    report, model = await solo(Solo(), lambda request: "Yes.", limits=Limits(calls=0))
    assert (report.stop_reason, report.answer, model.requests) == (StopReason.EXHAUSTED_BUDGET, None, [])
    report, _ = await solo(Solo(), lambda request: "Yes.", limits=Limits(calls=1))
    assert (report.stop_reason, report.answer) == (StopReason.SETTLED, "Yes.")
    report, _ = await solo(Solo(), lambda request: "Yes.", limits=Limits(steps=0))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS


async def test_vote_answers_with_the_medoid_text_of_the_majority() -> None:
    report, model = await vote(
        Vote(votes=4, answer_pattern="yes|no"),
        {
            "V1": "The hospital needs it at night.\n\nAnswer: Yes",
            "V2": "The crew is too small. It would break.\n\nAnswer: No",
            "V3": "The hospital needs it badly at night.\n\nAnswer: Yes",
            "V4": "Tourists.\n\nAnswer: Yes",
        },
    )
    assert [r.key for r in model.requests] == [f"answer/V{n}" for n in range(1, 5)]
    assert all("V" not in r.text.replace("V1", "") or r.agent for r in model.requests)
    assert len({r.text for r in model.requests}) == 1, "independent answers to the very same prompt"
    assert len({r.seed for r in model.requests}) == 4, "drawn apart"
    assert (report.position, report.decided_by, report.tie) == ("Yes", "majority", False)
    assert report.tally == {"Yes": 3, "No": 1}
    assert (report.answer or "").startswith("The hospital needs it")
    assert (report.confidence.level, report.confidence.kind) == (0.75, "agreement")
    assert [(d.agent, d.position, d.text) for d in report.dissent] == [("V2", "No", "The crew is too small.")]
    assert "**Votes:** 3 for Yes · 1 for No" in markdown(report)


async def test_vote_with_a_tie_is_decided_by_the_medoid_with_a_warning(golden: Golden) -> None:
    report, _ = await vote(
        Vote(votes=4, answer_pattern="yes|no"),
        {
            "V1": "a b c d\nAnswer: yes",
            "V2": "x y z w\nAnswer: yes",
            "V3": "a b c d\nAnswer: no",
            "V4": "a b q r\nAnswer: no",
        },
    )
    assert report.tie
    assert report.position == "no"
    golden(report.warnings)


async def test_vote_with_a_tie_of_equally_similar_answers_names_the_first_as_what_decided(golden: Golden) -> None:
    report, _ = await vote(Vote(votes=2, answer_pattern="yes|no"), {"V1": "a b\nAnswer: no", "V2": "c d\nAnswer: yes"})
    assert (report.tie, report.position) == (True, "no")
    golden(markdown(report))


async def test_votes_for_none_of_the_choices_are_counted_as_such() -> None:
    rejected = "The VAN costs too much and the WALK is not safe. Ask for a bus.\n\nAnswer: none of these"
    report, model = await vote(Vote(votes=2, answer_pattern="VAN|WALK"), dict.fromkeys(("V1", "V2"), rejected))
    assert all("end with: Answer: none of these" in request.user for request in model.requests)
    assert (report.tally, report.position) == ({"none of these": 2}, "none of these")
    text = markdown(report)
    assert "**Position: none of these**" in text
    assert "Where they differed" not in text


async def test_vote_with_another_answer_than_the_choices_has_no_position() -> None:
    replies: dict[str, object] = {
        "V1": "A WALK needs six people.\n\nAnswer: a bus",
        "V2": "Answer: neither VAN nor WALK",
    }
    report, _ = await vote(Vote(votes=2, answer_pattern="VAN|WALK"), replies)
    assert (report.tally, report.position, report.stop_reason) == ({}, None, StopReason.INCONCLUSIVE)
    assert "no answer took a position" in markdown(report)


async def test_vote_takes_a_choice_with_a_point_literally() -> None:
    replies: dict[str, object] = {"V1": "Answer: 125", "V2": "Answer: 125", "V3": "Answer: 1.5"}
    report, _ = await vote(Vote(votes=3, answer_pattern="1.5|2.5"), replies)
    assert (report.tally, report.position) == ({"1.5": 1}, "1.5")


async def test_vote_counts_no_choice_that_an_answer_names_in_prose(golden: Golden) -> None:
    replies: dict[str, object] = {
        "V1": "Yes. Launch in June. There is no reason to wait.",
        "V2": "Answer: yes or no",
        "V3": "**Answer:**\n\nYes, there is no reason to wait.",
    }
    report, _ = await vote(Vote(votes=3, answer_pattern="yes|no"), replies)
    assert report.tally == {"Yes": 1}
    golden(report.warnings)
    counted, _ = await vote(
        Vote(votes=2, answer_pattern=r"\d+"), {"V1": "All 42 come, 3 of them late.", "V2": "So:\n42"}
    )
    assert counted.tally == {"42": 1}


async def test_vote_shows_answers_without_a_position(golden: Golden) -> None:
    replies: dict[str, object] = {
        "V1": "It depends on the wind.\n\nAnswer: A",
        "V2": "It depends on the wind.\n\nAnswer: A",
        "V3": "Neither can be had without the other.\n\nSo build both.\n\nAnswer: both of them",
        "V4": "I abstain.",
    }
    report, _ = await vote(Vote(votes=4, answer_pattern="Answer: ([AB])"), replies)
    golden(section(markdown(report), "Answers without a position"))
    report, _ = await vote(Vote(votes=4, answer_pattern="Answer: (C)"), replies)
    assert report.answer is not None
    golden(section(markdown(report), "Answers without a position"), "without that which is printed")


async def test_vote_with_equally_similar_answers_elects_the_first() -> None:
    """The float means of the first and the third differ, the means do not: both are 7/18."""
    texts = ["c b", "e c d g b f", "c", "a c"]
    report, _ = await vote(Vote(votes=4), {f"V{n}": text for n, text in enumerate(texts, 1)})
    assert report.answer == "c b"


async def test_vote_without_matching_answers_elects_the_medoid(golden: Golden) -> None:
    fields: dict[str, object] = {"V1": "the sea is cold tonight", "V2": "the sea is cold", "V3": "bread"}
    report, _ = await vote(Vote(votes=3), fields)
    assert (report.decided_by, report.position, report.tally) == ("medoid", None, {})
    assert report.answer in ("the sea is cold tonight", "the sea is cold")
    report, _ = await vote(Vote(votes=3, answer_pattern=r"\d+"), fields)
    assert report.decided_by == "medoid"
    golden(report.warnings)


async def test_vote_compares_each_pair_and_splits_each_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    split: Counter[str] = Counter()
    pairs = 0

    def tokens(text: str) -> frozenset[str]:
        split[text] += 1
        return frozenset(text.lower().split())

    def shared(left: frozenset[str], right: frozenset[str]) -> float:
        nonlocal pairs
        pairs += 1
        return len(left & right) / len(left | right)

    replies = {f"V{n}": f"vote {n} says {n % 3} and {n % 5}" for n in range(1, 13)}
    with monkeypatch.context() as counting:
        counting.setattr(similarity, "token_set", tokens)
        counting.setattr(similarity, "set_jaccard", shared)
        model = ScriptedModel(lambda request: replies[request.agent])
        report = await runner.start(TASK, Vote(votes=12), models=model, store=SqliteStore(":memory:"))
    assert isinstance(report, VoteReport)
    assert set(split) == set(replies.values())
    assert set(split.values()) == {1}
    assert pairs == 12 * 11 / 2
    for vote in report.votes:
        others = [similarity.jaccard(vote.text, other) for agent, other in replies.items() if agent != vote.agent]
        assert vote.similarity == math.fsum(others) / 11
    scores = [similarity.jaccard(a, b) for a, b in combinations(replies.values(), 2)]
    assert report.metrics["sibling_similarity/answer/1"] == math.fsum(scores) / 66


async def test_vote_names_missing_votes_and_fails_without_a_quorum(golden: Golden) -> None:
    fields: dict[str, object] = {
        "V1": "yes",
        "V2": RateLimited("busy"),
        "V3": RateLimited("busy"),
        "V4": RateLimited("busy"),
    }
    report, _ = await vote(Vote(votes=4, answer_pattern="yes|no"), fields)
    assert (report.stop_reason, report.answer) == (StopReason.FAILED, None)
    assert {m.agent for m in report.missing} == {"V2", "V3", "V4"}
    golden(markdown(report))
    report, _ = await vote(Vote(votes=4, answer_pattern="yes|no"), fields, quorum=0.25)
    assert (report.stop_reason, report.position) == (StopReason.SETTLED, "yes")
    assert report.degraded == "1 of 4 agents; no reply: answer 1 V2, V3, V4 (rate_limited)"
    assert report.confidence.level == 0.25, "a missing vote agrees with nobody"


@pytest.mark.parametrize("calls", [0, 1, 3, 4])
async def test_vote_with_a_call_limit_casts_as_many_votes(calls: int) -> None:
    replies: dict[str, object] = dict.fromkeys(("V1", "V2", "V3", "V4"), "yes")
    report, model = await vote(Vote(votes=4, answer_pattern="yes|no"), replies, limits=Limits(calls=calls))
    assert len(model.requests) == calls
    assert report.stop_reason is (StopReason.SETTLED if calls == 4 else StopReason.EXHAUSTED_BUDGET)
    assert report.tally == ({"yes": calls} if calls else {})


async def test_vote_with_a_panel_shows_voters_their_personas() -> None:
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
async def test_vote_tally_does_not_depend_on_the_order_of_seats(texts: list[str]) -> None:
    async def tally(order: list[str]) -> tuple[dict[str, int], bool]:
        replies: dict[str, object] = {f"V{n}": text for n, text in enumerate(order, 1)}
        report, _ = await vote(Vote(votes=len(order), answer_pattern="yes|no"), replies)
        return report.tally, report.tie

    assert (await tally(texts))[0] == (await tally(texts[::-1]))[0]
    assert (await tally(texts))[1] == (await tally(texts[::-1]))[1]


def test_invalid_answer_pattern_is_rejected() -> None:
    with pytest.raises(SettingsError, match="not a regular expression"):
        Vote(answer_pattern="(")
    with pytest.raises(SettingsError, match="votes"):
        Vote(votes=0)


async def test_vote_cost_is_the_sum_of_its_calls() -> None:
    replies: dict[str, object] = {f"V{n}": Scripted("yes", tokens_in=10, tokens_out=1, cost=0.5) for n in (1, 2, 3)}
    report, _ = await vote(Vote(votes=3, answer_pattern="yes|no"), replies)
    assert (report.ledger.actual.cost, report.ledger.actual.tokens_in, report.ledger.estimated.max) == (1.5, 30, 3)


async def test_reply_on_which_a_pattern_takes_for_ever_is_an_answer_without_a_match() -> None:
    slow = "Answer: " + "word " * 60 + "! Or so"
    report, model = await vote(
        Vote(votes=3, answer_pattern=r"Answer: ((?:\w+\s?)+)$"),
        {"V1": slow, "V2": "Answer: keep it", "V3": "Answer: keep it"},
    )
    assert len(model.requests) == 3
    assert [vote.position for vote in report.votes] == [None, "keep it", "keep it"]


def test_pattern_whose_counts_multiply_is_refused() -> None:
    with pytest.raises(SettingsError, match="counts multiply to more than 100,000"):
        Vote(answer_pattern="((a{1000}){1000}){1000}")


@pytest.mark.parametrize(
    ("pattern", "form"),
    [
        ("number", "of the form: Answer: NUMBER"),
        ("choice:3", "of the form: Answer: A or B or C"),
        ("yes/no", "of the form: Answer: yes or no."),
    ],
)
async def test_named_pattern_is_shown_to_agents_as_a_form(pattern: str, form: str) -> None:
    report, model = await vote(Vote(votes=1, answer_pattern=pattern), {"V1": "Answer: none"})
    assert form in model.requests[0].text
    assert report.settings["answer_pattern"] == pattern
