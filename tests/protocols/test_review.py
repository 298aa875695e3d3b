"""`review`: the seed's example, who is asked what, and how runs end."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from consilience.deliberation import Deliberation
from consilience.domain.detail import Detail
from consilience.domain.errors import Rejected, SettingsError, UnknownName
from consilience.domain.events import CallCompleted
from consilience.domain.findings import decided_by, place_of, topic_of
from consilience.domain.messages import Source
from consilience.domain.outcome import StopReason
from consilience.domain.sections import Table
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.review import Review, ReviewReport
from consilience.protocols.review.presenting import VERBS
from consilience.protocols.review.strategies import TEXT_DUTIES
from consilience.reporting.markdown import markdown
from consilience.reporting.partial_report import partial_markdown
from consilience.reporting.record import SessionRecord, read_record
from kit import runner
from kit.cases import CASES
from kit.golden import Golden, lines_with
from kit.reviewing import CODE, DIFF, SOURCES, UNCLOSED, Script, closing, finding, judgement, review, script


async def go(
    protocol: Review, reply: Script, *, sources: Any = SOURCES, window: int | None = None, **options: Any
) -> tuple[ReviewReport, ScriptedModel]:
    """A run, which must replay and stay within its estimate."""
    model = ScriptedModel(reply, context_window=window)
    store = SqliteStore(":memory:")
    try:
        report = await runner.start("Review it.", protocol, models=model, store=store, sources=sources, **options)
        assert isinstance(report, ReviewReport)
        assert (await runner.replay(report.session, store=store)).digest() == report.digest()
        assert len({request.key for request in model.requests}) <= report.ledger.estimated.max
        return report, model
    finally:
        store.close()


def keys(model: ScriptedModel) -> list[str]:
    return sorted({request.key for request in model.requests})


def request_of(model: ScriptedModel, key: str) -> ModelRequest:
    return next(request for request in model.requests if request.key == key)


# --- the seed's example

VAGUE = "# Review\n\n## Scope\n\nAll.\n\n## Risks\n\nSome.\n\n## Advice\n\nIt should be fixed."
CONCRETE = f"{VAGUE}\n\nExample: `values[1]` for `values[0]`."


async def test_review_iterates_until_both_sides_meet_every_gate() -> None:
    by = {"red@1": review(text=VAGUE), "red@2": review(text=CONCRETE), "blue": review(text=CONCRETE)}
    report, model = await go(Review(review_type="skill"), script(by))
    first, second = report.evaluations
    assert [(v.id, v.missed_by) for v in first.verdicts] == [
        ("comprehensive_coverage", ()),
        ("specific_examples", ("red",)),
        ("actionable_recommendations", ()),
    ]
    assert round(first.quality, 2) == 0.67
    assert first.threshold == 0.8
    assert first.outcome == "continue"
    assert second.quality == 1.0
    assert report.stop_reason is StopReason.CONVERGED
    assert keys(model) == ["review-1/part-1/blue", "review-1/part-1/red", "review-2/part-1/blue", "review-2/part-1/red"]
    red, blue = (request_of(model, f"review-2/part-1/{side}").text for side in ("red", "blue"))
    assert "Add a concrete example for each finding" in red
    assert "specific_examples" not in blue
    assert "Expand on implementation details" in blue
    assert "from you>" in red
    assert CONCRETE not in red, "red was shown what blue wrote"


# --- what is asked


@pytest.mark.parametrize(
    ("settings", "stop", "iterations"),
    [({}, "settled", 1), ({"max_iterations": 3}, "converged", 3), ({"quality_threshold": 0.5}, "converged", 3)],
)
async def test_clean_target_ends_at_once_without_judging_or_closing(
    settings: dict[str, Any], stop: str, iterations: int
) -> None:
    report, model = await go(Review(**settings).with_detail("full"), script({}))
    assert keys(model) == ["review-1/part-1/blue", "review-1/part-1/red"]
    assert report.stop_reason.value == stop
    assert report.settings["max_iterations"] == iterations
    assert report.answer == "No findings in 1 file."
    assert report.findings == ()


async def test_finding_of_one_side_is_judged_by_the_other_and_finding_of_both_by_none() -> None:
    both = finding()
    by = {"red": review([both]), "blue": review([both, UNCLOSED])}
    report, model = await go(Review(), script(by, judgement("refute")))
    assert keys(model) == ["closing", "judge/part-1/red", "review-1/part-1/blue", "review-1/part-1/red"]
    assert {f.category: f.status for f in report.findings} == {"bounds": "confirmed", "resources": "disputed"}
    assert report.answer == "Fix first.py:2 first."
    assert [entry.agent for entry in report.dissent] == ["red"]


MANY = Source("".join(f"value_{n} = {n} / 0\n" for n in range(1, 41)), "many.py")


def forty(request: ModelRequest) -> str:
    return review([finding(f"value_{n} = {n} / 0", n, category=f"division {n}") for n in range(1, 41)])(request)


async def test_forty_findings_of_one_reply_are_judged_quoted_to_the_lead_and_listed(golden: Golden) -> None:
    report, model = await go(Review(), script({"red": forty}), sources=[MANY])
    assert len(report.findings) == 40
    assert {finding.status for finding in report.findings} == {"confirmed"}
    assert len(re.findall(r" from F\d+>", request_of(model, "closing").text)) == 40
    assert report.dropped == ()
    golden(report.warnings)


@pytest.mark.parametrize(
    ("detail", "settings", "room"),
    [
        ("full", {}, 45),
        ("full", {"part_tokens": 24_000}, 88),
        ("full", {"reply_tokens": 4_096}, 22),
        ("brief", {}, 3),
    ],
)
async def test_max_findings_follow_from_reply_size_and_part_size(
    detail: Detail, settings: dict[str, Any], room: int
) -> None:
    _, model = await go(Review(**settings).with_detail(detail), script({}), detail=detail)
    request = request_of(model, "review-1/part-1/red")
    assert request.schema is not None
    assert request.schema["properties"]["findings"]["maxItems"] == room
    assert f" {room}" in request.text.partition("findings:")[2].partition("\n")[0]


async def test_small_window_leaves_room_for_document_and_findings() -> None:
    _, model = await go(Review(), script({}), sources=[Source(CODE * 400, "long.py")], window=16_384)
    request = request_of(model, "review-1/part-1/red")
    assert request.max_tokens == 4_096
    assert 5_000 < len(request.text) / 3.5 < 16_384 - 2 * 4_096


async def test_reply_with_the_max_number_of_findings_is_a_warning() -> None:
    by = {"red": review([finding()] * 5), "blue": review([finding()] * 4)}
    report, _ = await go(Review(reply_tokens=900), script(by))
    assert [w.partition(",")[0] for w in report.warnings if "may be more" in w] == [
        "red reported as many findings on part 1 as its reply has room for"
    ]


async def test_findings_before_the_cut_of_a_reply_are_kept_without_a_ballot(golden: Golden) -> None:
    def cut(request: ModelRequest) -> str:
        whole = review([finding(), UNCLOSED, finding("values", 1, category="names")])(request)
        return whole[: whole.index("'values' is")]

    report, model = await go(Review(max_iterations=1), script({"red": cut}))
    assert [(f.by, f.category) for f in report.findings] == [(("red",), "bounds"), (("red",), "resources")]
    assert [ballot.agent for ballot in report.ballots] == ["blue"]
    assert [request.attempt for request in model.requests if request.key == "review-1/part-1/red"] == [1]
    golden(report.warnings)


async def test_complete_reply_without_a_vote_is_repaired() -> None:
    def forgetful(request: ModelRequest) -> str:
        whole = json.loads(review([finding(), UNCLOSED])(request))
        return json.dumps({name: value for name, value in whole.items() if name != "vote" or request.attempt > 1})

    report, _ = await go(Review(max_iterations=1), script({"red": forgetful}))
    assert {ballot.agent for ballot in report.ballots} == {"red", "blue"}


async def test_judge_may_confirm_a_defect_with_another_consequence(golden: Golden) -> None:
    report, _ = await go(Review(), script({"red": review([finding()])}, judgement("amend")))
    (only,) = report.findings
    assert (only.status, report.dissent) == ("confirmed", ())
    golden(lines_with("consequence:", markdown(report)))
    for exported in (report.sarif(), report.github_comments()):
        assert only.judgements[0].reason in json.dumps(exported)


async def test_prompts_name_one_form_of_quotation() -> None:
    _, model = await go(Review(), script({"red": review([finding()])}))
    assert {key.partition("/")[0] for key in keys(model)} == {"review-1", "judge", "closing"}
    assert not [request.key for request in model.requests if "[S1:2]" in request.text]


async def test_closing_text_that_cites_an_unknown_finding_drops_it_with_a_warning(golden: Golden) -> None:
    report, _ = await go(Review(), script({"red": review([finding()])}))
    (claim,) = report.claims
    assert claim.ids == ("review-1/part-1/red/finding-1",)
    golden(report.warnings)


async def test_false_quotation_is_asked_about_again_and_then_dropped() -> None:
    by = {"red": review([finding("return values[7]")])}
    report, model = await go(Review(max_iterations=2), script(by))
    again = request_of(model, "review-2/part-1/red").text
    assert "return values[7]" in again
    assert "findings_quoted" in again
    assert "review-2/part-1/blue" not in keys(model)
    assert report.findings == ()
    assert [entry.reason for entry in report.dropped] == ["false quotation"]
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS


async def test_code_is_reviewed_once_without_gates_by_default() -> None:
    by = {"red": review([finding("return values[7]")]), "blue": review([finding()], read=[])}
    report, model = await go(Review(), script(by))
    assert keys(model) == ["closing", "judge/part-1/red", "review-1/part-1/blue", "review-1/part-1/red"]
    assert (report.stop_reason, report.evaluations, report.check) == (StopReason.SETTLED, (), None)
    assert (Review().estimate().min, Review().estimate().max) == (2, 5)
    assert Review(review_type="skill").estimate().max == Review(gates=("files_covered",)).estimate().max == 9


async def test_document_without_a_remark_is_asked_about_again() -> None:
    by = {"blue@1": review(read=[]), "blue@2": review()}
    report, model = await go(Review(max_iterations=3), script(by))
    assert "S1 (first.py) is not in `read`" in request_of(model, "review-2/part-1/blue").text
    assert [evaluation.quality for evaluation in report.evaluations] == [pytest.approx(2 / 3), 1.0]
    assert report.files[0].remarks == (("red", "read line by line"), ("blue", "read line by line"))


async def test_threshold_schedule_is_laxer_first() -> None:
    by = {"blue": review([finding(recommendation="")])}
    report, _ = await go(Review(quality_threshold=(0.9, 0.6)), script(by))
    assert [evaluation.outcome for evaluation in report.evaluations] == ["continue", "converged"]


# --- final ballots


def judging(vote: str | None, cause: str | None = None) -> Script:
    """Judges that confirm every finding and vote again."""

    def reply(request: ModelRequest) -> str:
        body = json.loads(judgement()(request))
        ballot = {"vote": vote, "cause": cause, "confidence": 0.9, "reason": "The bound is wrong."}
        return json.dumps({**body, **(ballot if vote else {})})

    return reply


async def test_judge_casts_its_final_ballot_beside_its_own_vote_only(golden: Golden) -> None:
    by = {
        "red": review([finding()], vote="reject", reason="Red's reason."),
        "blue": review(vote="approve", reason="Sound."),
    }
    report, model = await go(Review(), script(by, judging("reject", "F1")))
    asked = request_of(model, "judge/part-1/blue")
    assert "from you>\napprove. Sound." in asked.text
    assert "Red's reason" not in asked.text, "a judge was shown another ballot"
    assert {(ballot.agent, ballot.vote) for ballot in report.ballots} == {("red", "reject"), ("blue", "reject")}
    assert [(ballot.agent, ballot.vote) for ballot in report.first_ballots] == [("blue", "approve")]
    assert report.verdict is not None
    assert (report.verdict.by, report.verdict.split) == (("red", "blue"), ())
    (change,) = report.position_changes
    assert (change.agent, change.before, change.after, change.cause) == (
        "blue", "approve", "reject", "review-1/part-1/red/finding-1",
    )  # fmt: skip
    assert "The bound is wrong." in request_of(model, "closing").text
    golden(markdown(report))


async def test_changed_vote_that_names_no_finding_counts_as_conformity() -> None:
    by = {"red": review([finding()], vote="reject"), "blue": review(vote="approve")}
    report, _ = await go(Review(), script(by, judging("changes")))
    assert [(change.conformity, change.cause) for change in report.position_changes] == [(True, None)]
    assert report.verdict is not None
    assert (report.verdict.vote, report.verdict.split) == ("reject", (1,))


async def test_judge_without_a_final_ballot_keeps_its_first_one() -> None:
    by = {"red": review([finding()], vote="reject"), "blue": review(vote="approve")}
    report, model = await go(Review(), script(by, judging(None)))
    assert [(ballot.agent, ballot.vote) for ballot in report.ballots] == [("red", "reject"), ("blue", "approve")]
    assert report.first_ballots == report.position_changes == ()
    assert {request.attempt for request in model.requests} == {1}


async def test_sub_lead_that_reviewed_nothing_casts_no_ballot() -> None:
    protocol = Review(review_type="architecture", reviewers=2)
    report, model = await go(protocol, script({"R1": review([finding()], vote="reject")}, judging("approve")))
    assert {ballot.agent for ballot in report.ballots} == {"R1", "R2"}
    schema = request_of(model, "judge/part-1/S1").schema
    assert schema is not None
    assert "vote" not in schema["properties"]


async def test_authors_of_a_merged_finding_do_not_count_as_confirming_it(golden: Golden) -> None:
    by = {"red": review([finding()]), "blue": review([finding("def first(values):", 1, category="logic")])}
    report, _ = await go(Review(), script(by, close=closing(duplicates=[["F1", "F2"]])))
    golden(lines_with("found ", markdown(report)))


async def test_labels_in_the_words_of_judges_and_lead_become_places() -> None:
    """The report numbers findings by severity, agents read them by place: a label would name another finding."""
    minor, major = finding(severity="minor"), {**UNCLOSED, "severity": "critical"}

    def reply(request: ModelRequest) -> str:
        verdicts = [{"finding": label, "reason": f"As in {label}.", "verdict": "confirm"} for label in ("F1", "F2")]
        return json.dumps(
            {"verdicts": verdicts, "vote": "reject", "cause": "F2", "confidence": 0.9, "reason": "F2 decides."}
        )

    close = closing("Fix `F2` before F1.", [])
    report, _ = await go(Review(), script({"red": review([minor, major])}, reply, close))
    assert [(f.id, f.first_line, f.judgements[0].reason) for f in report.findings] == [
        ("F1", 6, "As in first.py:6."),
        ("F2", 2, "As in first.py:2."),
    ]
    assert report.answer == "Fix `first.py:6` before first.py:2."
    assert {ballot.reason for ballot in report.ballots if ballot.is_final} == {"first.py:6 decides."}


async def test_word_of_the_documents_that_looks_like_a_label_stays() -> None:
    sources = [Source(CODE + "# the F1 score\n", "first.py")]
    close = closing("The F1 score is wrong.", [])
    report, _ = await go(Review(), script({"red": review([finding()])}, close=close), sources=sources)
    assert report.answer == "The F1 score is wrong."


async def test_consequence_that_says_nothing_is_left_out() -> None:
    report, _ = await go(Review(), script({"red": review([finding(consequence="None.", recommendation="n/a")])}))
    (only,) = report.findings
    assert (only.consequence, only.recommendation) == ("", "")
    assert "Why it matters" not in markdown(report)


async def test_votes_that_changed_on_several_parts_are_named_together(golden: Golden) -> None:
    sources = [Source(CODE, f"file_{n}.py") for n in range(2)]
    found = {f"review-1/part-{n}/red": review([finding(document=f"S{n}")]) for n in (1, 2)}
    by = {"red": lambda request: found[request.key](request)}
    report, _ = await go(Review(part_tokens=100), script(by, judging("changes")), sources=sources)
    golden(lines_with("on parts 1 and 2", markdown(report)))
    assert [change.after for change in report.position_changes] == ["changes on part 1", "changes on part 2"]


# --- who is missing


def silent(agent: str) -> dict[str, Script]:
    return {agent: lambda request: Rejected("no key")}


@pytest.mark.parametrize(("partial", "asked"), [("fail", 4), ("accept", 2), ("use", 1)])
async def test_missing_side_is_named_and_nothing_is_invented_for_it(partial: Any, asked: int) -> None:
    by = {**silent("blue"), "red": review([finding()])}
    report, model = await go(Review(partial=partial, max_iterations=2), script(by))
    assert len([key for key in keys(model) if key.endswith("/blue") and key.startswith("review")]) == asked
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert any("no review by blue" in reason for reason in report.unmet)
    assert report.evaluations[-1].missing.keys() == {"blue"}
    assert report.evaluations[-1].outcome == ("partial" if partial == "use" else "exhausted")
    assert {agent for entry in report.findings for agent in entry.by} == {"red"}
    assert [ballot.agent for ballot in report.ballots] == ["red"]
    assert "There is no review by blue" in request_of(model, "closing").text


@pytest.mark.parametrize(("partial", "asked", "stop"), [("fail", 3, "exhausted_steps"), ("accept", 1, "settled")])
async def test_reader_that_is_missing_leaves_its_part_unread(partial: Any, asked: int, stop: str) -> None:
    sources = [Source(CODE, f"file_{n}.py") for n in range(2)]
    protocol = Review(review_type="documentation", reviewers=2, part_tokens=100, partial=partial, max_requeues=2)
    report, model = await go(protocol, script(silent("R2")), sources=sources)
    assert sum(request.agent == "R2" for request in model.requests) == asked
    assert report.stop_reason.value == stop
    assert report.unmet == ("no review by R2 (rejected: no key)", "1 of 2 parts not reviewed")
    assert not report.complete


async def test_reviewer_without_a_second_review_is_not_said_to_have_given_none() -> None:
    by = {"red": review([finding(), finding("return values[7]")]), **silent("red@2")}
    report, model = await go(Review(max_iterations=2), script(by))
    assert report.unmet == ("no further review by red (rejected: no key)",)
    assert report.complete
    assert "There is no review by" not in request_of(model, "closing").text


async def test_side_without_a_review_ends_the_run_short_of_reviews_and_not_of_gates(golden: Golden) -> None:
    report, _ = await go(Review(), script(silent("blue")))
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    golden(markdown(report))


async def test_reader_that_missed_one_of_its_parts_is_named_with_that_part(golden: Golden) -> None:
    sources = [Source(CODE, f"file_{n}.py") for n in range(4)]
    protocol = Review(review_type="documentation", reviewers=2, part_tokens=100)
    by = {"R1": lambda request: Rejected("busy") if "/part-3/" in request.key else review()(request)}
    report, _ = await go(protocol, script(by), sources=sources)
    golden(markdown(report))


async def test_review_without_a_text_by_the_lead_counts_its_findings_once_and_warns_of_duplicates(
    golden: Golden,
) -> None:
    by = {"R1": review([finding()]), "R2": review([finding("def first(values):", line=1)])}
    report, _ = await go(Review(review_type="documentation", reviewers=2), script(by, close=lambda _: Rejected("busy")))
    text = markdown(report)
    assert text.count("2 major") == 1
    golden(text)


async def test_side_that_replies_in_the_second_iteration_converges() -> None:
    by = {"blue@1": lambda request: Rejected("busy"), "blue@2": review()}
    report, model = await go(Review(max_iterations=2), script(by))
    assert report.stop_reason is StopReason.CONVERGED
    assert "review-2/part-1/red" not in keys(model)
    assert report.unmet == ()


async def test_review_without_any_reply_fails_with_a_warning(golden: Golden) -> None:
    report, _ = await go(Review(max_iterations=1), script({**silent("red"), **silent("blue")}))
    assert report.stop_reason is StopReason.FAILED
    assert report.answer is None
    golden(report.warnings)


# --- settings


def test_unknown_strategy_type_or_gate_is_refused() -> None:
    for settings in ({"strategy": "purple"}, {"review_type": "poem"}):
        with pytest.raises(ValueError, match="settings of review"):
            Review(**settings)
    with pytest.raises(UnknownName, match="no_such_gate"):
        Review(gates=("no_such_gate",))
    with pytest.raises(SettingsError, match="strategy adversarial_review only, not with hierarchical"):
        Review(gates=("files_covered",), review_type="architecture")
    for settings in ({"max_iterations": 3}, {"quality_threshold": 0.9}):
        (name,) = settings
        with pytest.raises(SettingsError, match=f"{name} applies to the strategy adversarial_review only"):
            Review(**settings, review_type="documentation")
    assert Review(gates=("files_covered",), review_type="architecture", strategy="adversarial_review").gates


async def test_nothing_to_review_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(SettingsError, match="nothing to review"):
        await go(Review(), script({}), sources=())


# --- parts


async def test_hundred_files_fit_a_small_window() -> None:
    sources = [Source(CODE * (1 + n % 7 * 20), f"file_{n}.py") for n in range(100)]
    protocol = Review(reply_tokens=500)
    report, model = await go(protocol, script({"red": review([finding()])}), sources=sources, window=4_000)
    assert max(len(request.text.encode()) for request in model.requests) / 3.5 + 500 < 4_000
    assert {name.file for name in report.files} == {source.name for source in sources}
    assert all(part.readers == ("red", "blue") for part in report.parts)


async def test_parts_are_divided_among_readers() -> None:
    sources = [Source(CODE, f"file_{n}.py") for n in range(3)]
    protocol = Review(review_type="documentation", reviewers=2, part_tokens=100)
    report, model = await go(protocol, script({"R1": review([finding(document="S3")])}), sources=sources)
    assert keys(model) == ["closing", "review-1/part-1/R1", "review-1/part-2/R2", "review-1/part-3/R1"]
    assert report.stop_reason is StopReason.SETTLED
    assert [part.readers for part in report.parts] == [("R1",), ("R2",), ("R1",)]


async def test_readers_of_one_part_get_different_questions() -> None:
    _, model = await go(Review(review_type="documentation", reviewers=3), script({}))
    assert len({request.text.rpartition("</quote")[2][:160] for request in model.requests}) == 3


@pytest.mark.parametrize("kind", ["documentation", "skill", "architecture"])
async def test_report_shows_the_question_of_each_reader(kind: Any) -> None:
    report, model = await go(Review(review_type=kind, reviewers=2), script({}))
    shown = markdown(report).partition("What was read")[2]
    assert len(report.questions) == 2
    for agent, question in report.questions.items():
        assert f"- **Question of {agent}:** {question}" in shown
        asked = next(request.text for request in model.requests if request.agent == agent)
        assert question in asked or agent in ("red", "blue")


async def test_report_of_a_single_reader_shows_no_question() -> None:
    report, _ = await go(Review(review_type="documentation", reviewers=1), script({}))
    assert report.questions == {}
    assert "Question of" not in markdown(report)


@pytest.mark.parametrize("reviewers", [2, 3, 4, 5])
async def test_no_question_about_a_part_is_left_out_with_few_readers(reviewers: int) -> None:
    _, model = await go(Review(review_type="documentation", reviewers=reviewers), script({}))
    asked = [request.text for request in model.requests if request.key.startswith("review-1/")]
    assert len(asked) == reviewers
    for question in TEXT_DUTIES.values():
        assert sum(question in text for text in asked) >= 1, question
    assert all("within your question" in text for text in asked)


async def test_sub_leads_judge_the_findings_of_their_workers() -> None:
    by = {"R1": review([finding()]), "R6": review([UNCLOSED])}
    report, model = await go(Review(review_type="architecture", reviewers=6), script(by))
    assert [key for key in keys(model) if key.startswith("judge")] == ["judge/part-1/S1", "judge/part-1/S2"]
    assert {entry.status for entry in report.findings} == {"confirmed"}


async def test_fork_with_another_document_reviews_it_too() -> None:
    store, model = SqliteStore(":memory:"), ScriptedModel(script({}))
    parent = await runner.start("Review it.", Review(), models=model, store=store, sources=SOURCES, session="p")
    asked = len(model.requests)
    added = [Source("It is so.\n", "notes.md")]
    report = await runner.fork("p", store=store, models=model, session="f", at=0, sources=added)
    assert isinstance(report, ReviewReport)
    assert [part.documents for part in report.parts] == [("S1", "S2")]
    assert len(model.requests) == 2 * asked
    assert parent.settings["parts"] == [["S1"]]
    assert unfinished(store, "f").documents == report.documents
    store.close()


def unfinished(store: SqliteStore, session: str) -> SessionRecord:
    """The session as it was before its last event."""
    record = read_record(store, session)
    return replace(record, events=record.events[:-1])


async def test_unfinished_review_names_what_it_does_not_read() -> None:
    store, model = SqliteStore(":memory:"), ScriptedModel(script({}))
    protocol = Review(left_out=("binary: logo.png",))
    await runner.start("Review it.", protocol, models=model, store=store, sources=SOURCES, session="s")
    assert "- **Left out:** binary: logo.png" in partial_markdown(unfinished(store, "s"))
    store.close()


async def test_unfinished_review_shows_findings_by_file_with_their_votes_and_gates_as_its_report_does() -> None:
    store = SqliteStore(":memory:")
    case = next(case for case in CASES if case.name == "review")
    models = ScriptedModel(case.script)
    report = await runner.start("Go on.", case.protocol, models=models, store=store, sources=case.sources, session="s")
    assert isinstance(report, ReviewReport)
    record = read_record(store, "s")
    views = {view.name: view for view in unfinished(store, "s").presentation.views}
    (table,) = views["findings"].blocks
    assert isinstance(table, Table)
    assert {row[1:] for row in table.rows} == {
        (f.severity, topic_of(f), place_of(f), decided_by(f)) for f in report.findings
    }
    assert views["gates"] == next(view for view in record.presentation.views if view.name == "gates")
    shown = partial_markdown(unfinished(store, "s")).partition("## Replies so far")[0]
    for listed in report.findings:
        assert f"### {listed.file}" in shown
        assert listed.quotation in shown
        assert all(f"{j.agent} {VERBS[j.verdict]}:" in shown for j in listed.judgements)
    assert any(listed.judgements for listed in report.findings)
    store.close()


async def test_running_review_shows_a_reply_at_once_and_no_sealed_ballot() -> None:
    store = SqliteStore(":memory:")
    models = ScriptedModel(script({"red": review([finding()], vote="reject", reason="It will not do.")}))
    await runner.start("Review it.", Review(), models=models, store=store, sources=SOURCES, session="s")
    record = read_record(store, "s")
    first = next(n for n, e in enumerate(record.events, 1) if isinstance(e, CallCompleted) and e.agent == "red")
    so_far = replace(record, events=record.events[:first])
    (column,) = so_far.presentation.columns
    assert {"red: 1 finding", "blue: not yet"} & set(column.lines)
    assert column.has("review-1/part-1/blue")
    shown = partial_markdown(so_far).partition("## Replies so far")[0]
    assert "1 finding; other reviewers judge them when the reviews are in." in shown
    assert "reject" not in shown
    assert "It will not do." not in shown
    store.close()


async def test_run_or_resume_with_the_same_documents_makes_no_call() -> None:
    store, model = SqliteStore(":memory:"), ScriptedModel(script({}), context_window=6_000)
    deliberation = Deliberation(Review(), model=model, store=store, sources=SOURCES)
    first = await deliberation.run_or_resume("s", "Review it.")
    asked = len(model.requests)
    assert (await deliberation.run_or_resume("s", "Review it.")).digest() == first.digest()
    assert len(model.requests) == asked
    store.close()


# --- diffs

NEW = "def last(values):\n    return values[-1]\n"
ADDED = (
    f"--- /dev/null\n+++ b/last.py\n@@ -0,0 +1,2 @@\n{''.join(f'+{line}' for line in NEW.splitlines(keepends=True))}"
)
CHANGES = (Source(f"{DIFF}{ADDED}", "diff main..HEAD"), Source(CODE, "first.py"), Source(NEW, "last.py"))


async def test_prompt_for_a_diff_names_the_changes_and_shows_a_new_file_once() -> None:
    report, model = await go(Review(), script({}), sources=CHANGES)
    asked = request_of(model, "review-1/part-1/red").text
    assert "- S2 first.py, changed lines: 2" in asked
    assert "- S3 last.py, a new file" in asked
    assert "S1 is a unified diff" in asked
    assert [part.documents for part in report.parts] == [("S1:1-6", "S2", "S3")]
    assert [read.file for read in report.files] == ["first.py", "last.py"]
    assert report.hunks[0].file == "first.py"


async def test_finding_on_a_removed_line_is_kept_and_on_unchanged_lines_dropped() -> None:
    removed = finding("return values[0]", 5, "S1")
    report, _ = await go(Review(), script({"red": review([removed, UNCLOSED | {"document": "S2"}])}), sources=CHANGES)
    assert [(entry.file, entry.side, entry.first_line) for entry in report.findings] == [("first.py", "old", 2)]
    assert [entry.reason for entry in report.dropped] == ["unchanged lines"]


CALLERS = "def total(items, percent):\n    return sum(items) * (1 + percent / 100)\n\n\nbill = total([1], 0.19)\n"
PERCENT = """--- a/shop.py
+++ b/shop.py
@@ -1,2 +1,2 @@
-def total(items, tax):
-    return sum(items) * (1 + tax)
+def total(items, percent):
+    return sum(items) * (1 + percent / 100)
"""
SHOP = (Source(PERCENT, "diff HEAD"), Source(CALLERS, "shop.py"))
BILL = finding("bill = total([1], 0.19)", 5, "S2", severity="critical", cause="def total(items, percent):")


async def test_caller_that_the_change_breaks_is_a_finding_with_its_cause(golden: Golden) -> None:
    report, model = await go(Review(), script({"red": review([BILL]), "blue": review([BILL])}), sources=SHOP)
    (entry,) = report.findings
    assert (entry.first_line, entry.changed, entry.status) == (5, False, "confirmed")
    assert "F1" in report.failing("minor")
    golden(lines_with("shop.py:1", markdown(report)))
    asked = request_of(model, "review-1/part-1/red")
    assert "cause" in asked.schema["$defs"]["ChangeFindingReply"]["properties"]  # type: ignore[index]
    assert "- cause:" in asked.text
    assert "shop.py:1\ndef total(items, percent):" in request_of(model, "closing").text


@pytest.mark.parametrize("detail", ["full", "brief"])
async def test_review_of_no_diff_asks_for_no_cause(detail: Detail) -> None:
    _, model = await go(Review().with_detail(detail), script({}), detail=detail)
    asked = request_of(model, "review-1/part-1/red")
    assert "cause" not in json.dumps(asked.schema)
    assert "- cause:" not in asked.text


async def test_false_cause_is_asked_about_again_and_an_old_defect_shown_in_the_report(golden: Golden) -> None:
    by = {"red": review([BILL | {"cause": "def sum(items):"}])}
    report, model = await go(Review(max_iterations=2), script(by), sources=SHOP)
    again = request_of(model, "review-2/part-1/red").text
    assert "no changed line shown has these words, which S2:5 names as its cause: 'def sum(items):'" in again
    assert report.findings == ()
    golden(markdown(report))


async def test_lead_knows_the_ballots_and_the_report_has_verdict_and_split() -> None:
    by = {"red": review([finding()], "reject", reason="The index is wrong everywhere."), "blue": review()}
    report, model = await go(Review(), script(by))
    asked = request_of(model, "closing").text
    assert "red reject, blue approve" in asked
    assert re.search(r"from vote of red>\n(?:.*\n)?.*The index is wrong everywhere", asked)
    assert report.model_dump(mode="json")["verdict"] == {"vote": "reject", "by": ["red"], "split": [1]}
    assert [(d.agent, d.position, d.text) for d in report.dissent] == [
        ("blue", "approve", "votes approve, not reject: so")
    ]
    assert "The index is wrong everywhere" not in request_of(model, "judge/part-1/blue").text


async def test_rejection_without_a_finding_is_no_clean_review(golden: Golden) -> None:
    by = {agent: review([], "reject", reason=f"{agent} cannot follow it.") for agent in ("red", "blue")}
    report, _ = await go(Review(), script(by))
    golden(report.answer or "")
    golden((report.failing("reject"), report.failing("minor")), "what fails")
    assert report.sarif()["runs"][0]["properties"]["verdict"] == "reject"  # type: ignore[index]


async def test_part_of_a_large_changed_file_contains_only_lines_near_its_changes() -> None:
    before = [f"line_{n} = {n}\n" for n in range(1, 601)]
    after = [line.replace("= 300", "= 301") for line in before]
    diff = "".join(difflib.unified_diff(before, after, "a/big.py", "b/big.py"))
    sources = (Source(diff, "diff main..HEAD"), Source("".join(after), "big.py"))
    report, _ = await go(Review(part_tokens=1_000), script({}), sources=sources)
    (part,) = report.parts
    assert part.documents == ("S1", "S2:260-340")
    assert part.tokens < 1_000


async def test_sub_lead_judges_a_finding_on_the_part_of_its_own_worker() -> None:
    """The head of the function is shown beside the hunks of every part; R1 and R2 have different sub-leads."""
    before = ["def run(self):\n", *(f"    line_{n} = {n}\n" for n in range(2, 200))]
    after = [line.replace("= ", "= -") if n in (60, 70, 90, 100) else line for n, line in enumerate(before, 1)]
    diff = "".join(difflib.unified_diff(before, after, "a/big.py", "b/big.py"))
    sources = (Source(diff, "diff main..HEAD"), Source("".join(after), "big.py"))
    reply = review([finding("def run(self):", 1, "S2")])
    protocol = Review(review_type="architecture", reviewers=5, part_tokens=260, changed_lines_only=False)
    report, model = await go(protocol, script({"R1": reply, "R2": reply}), sources=sources)
    assert len(report.parts) > 1
    assert all("S2:1-1" in part.documents for part in report.parts)
    assert [entry.by for entry in report.findings] == [("R1", "R2")]
    assert [key for key in keys(model) if key.startswith("judge")] == ["judge/part-1/S1", "judge/part-2/S2"]
