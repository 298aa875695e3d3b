"""What a reader of a debate's report sees: ballots before the answer, cruxes, movements, dissent, what failed, how far to trust."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import consilience
from consilience import Limits
from consilience.domain.errors import SettingsError
from consilience.domain.sections import Paragraph
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate import Debate, DebateReport
from consilience.reporting.html import page
from consilience.reporting.record import read_record
from consilience.reporting.terminal import view_text
from consilience.reporting.views import view_text as session_view
from consilience.testing import ScriptedModel
from kit.debating import SIDES, Answer, Debaters, moves_of, number_of
from kit.golden import Golden, lines_with, section

TASK = "Should we move the orders to queues?"
SEED_KEYS = {
    "topic",
    "duration",
    "totalMessages",
    "stopReason",
    "endedBy",
    "confidence",
    "topClaims",
    "threads",
    "commonGround",
    "coalitions",
    "regime",
    "regimeDescription",
    "irreducibleCruxes",
    "primaryCrux",
    "primaryCruxReason",
    "cost",
    "systemMetrics",
}


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


async def debate(
    changes: Mapping[str, Callable[[ModelRequest], Answer]] | None = None,
    *,
    limits: Limits | None = None,
    **settings: Any,
) -> DebateReport:
    settings.setdefault("debaters", 3)
    settings.setdefault("as_is", True)
    model = ScriptedModel(Debaters(changes))
    report = await consilience.deliberate(TASK, Debate(**settings), model=model, limits=limits)
    assert isinstance(report, DebateReport)
    return report


def above_answer(text: str) -> str:
    """The part of a Markdown report between the heading of the answer and the next heading."""
    return text.split("## ", 2)[1]


def everybody(side: str) -> Callable[[ModelRequest], Answer]:
    return lambda request: dict.fromkeys(("p1", "p2", "p3", "q1", "q2", "q3", "side"), side)


# --- ballots and answer


async def test_split_ballots_are_printed_before_the_answer_in_every_format(golden: Golden) -> None:
    report = await debate()
    for face in (report.markdown(), unescape(report.html())):
        assert face.index("SPLIT") < face.index("Closing: crystallizer in closing")
    golden(above_answer(report.markdown()))


async def test_answer_without_a_side_is_reported_and_the_minority_is_dissent(golden: Golden) -> None:
    golden(section((await debate()).markdown(), "Dissent"))


async def test_answer_against_most_ballots_is_reported_above_it(golden: Golden) -> None:
    golden(above_answer((await debate({"closing": lambda request: {"p1": "NO"}})).markdown()))


async def test_answer_with_most_ballots_is_reported_above_it(golden: Golden) -> None:
    golden(above_answer((await debate({"closing": lambda request: {"p1": "YES"}})).markdown()))


async def test_only_firm_ballot_is_not_called_all_firm_ballots(golden: Golden) -> None:
    def final(request: ModelRequest) -> Answer:
        return dict.fromkeys(("p1", "q1"), "YES" if request.agent == "D1" else "UNCERTAIN")

    golden(above_answer((await debate({"final": final, "closing": lambda request: {"p1": "YES"}})).markdown()))


async def test_one_sided_ballots_with_undecided_ones_are_not_unanimous(golden: Golden) -> None:
    """Nor an agreement: one agent agrees with nothing."""

    def final(request: ModelRequest) -> Answer:
        return dict.fromkeys(("p1", "q1"), "UNCERTAIN" if request.agent == "D3" else "YES")

    golden(above_answer((await debate({"final": final})).markdown()))


async def test_unanimous_final_ballots_are_reported_without_dissent(golden: Golden) -> None:
    report = await debate({"final": everybody("YES"), "closing": lambda request: {"p1": "YES"}})
    text = report.markdown()
    golden(above_answer(text))
    golden(lines_with("secret final ballot is against", text), "dissent")
    assert report.dissent == ()


async def test_each_proposition_has_its_own_ballot_count(golden: Golden) -> None:
    golden(above_answer((await debate(as_is=False, option=("queues", "batches"))).markdown()))


async def test_task_without_dispute_is_reported_first(golden: Golden) -> None:
    def framing(request: ModelRequest) -> Answer:
        return {"form": "not disputable", "propositions": [], "reason": "It asks for a sum."}

    golden(above_answer((await debate({"framing": framing}, as_is=False)).markdown()))


# --- what limited the debate comes first


async def test_missing_ballot_is_reported_with_its_agent_before_the_count(golden: Golden) -> None:
    report = await debate({"final": lambda request: {"p1": "?"} if request.agent == "D2" else {}})
    golden(above_answer(report.markdown()))


async def test_limit_on_messages_is_reported_before_the_count_with_open_threads(golden: Golden) -> None:
    """Once: the line about the threads names the limit."""
    golden(above_answer((await debate(max_messages=5)).markdown()))


async def test_limit_on_virtual_time_is_reported_before_the_count(golden: Golden) -> None:
    golden(above_answer((await debate(max_duration=40)).markdown()))


async def test_way_on_names_the_setting_of_the_limit_that_ended_the_debate() -> None:
    for setting, value in (("max_duration", 40), ("max_messages", 5)):
        assert set(re.findall(r"--set (\w+)=N`", (await debate(**{setting: value})).markdown())) == {setting}


async def test_unknown_reference_is_reported_once() -> None:
    def unknown(request: ModelRequest) -> Answer:
        return {"cause": "Z9"} if request.agent == "D1" else {}

    report = await debate(
        {"closing": lambda request: {"claims": [{"text": "It holds.", "ids": ["Z9"]}]}, "final": unknown}
    )
    assert len([warning for warning in report.warnings if "reference" in warning]) == 1, report.warnings


async def test_limit_on_calls_is_reported(golden: Golden) -> None:
    golden(above_answer((await debate(limits=Limits(calls=16))).markdown()), "within the turns")
    golden(above_answer((await debate(limits=Limits(calls=4))).markdown()), "before a final ballot")


async def test_limit_reached_after_the_threads_is_not_reported_to_cut_the_debate_short(golden: Golden) -> None:
    calls = (await debate(test_cruxes=0)).ledger.actual.calls
    golden(above_answer((await debate(limits=Limits(calls=calls))).markdown()))


async def test_debate_without_a_quorum_of_opening_ballots_is_reported_with_its_reason(golden: Golden) -> None:
    golden(above_answer((await debate({"opening": lambda r: {"p1": "?"} if r.agent != "D3" else {}})).markdown()))


async def test_transcript_that_ends_with_the_moderator_says_what_came_of_it(golden: Golden) -> None:
    report = await debate()
    last = report.messages[-1]
    assert last.by_moderator
    transcript = next(s for s in report.presentation().sections if s.name == "transcript")
    remark = transcript.blocks[-1]
    assert isinstance(remark, Paragraph)
    assert last.label in remark.text
    golden(remark.text)


# --- cruxes


async def test_crux_section_has_positions_falsifiers_and_best_statements(golden: Golden) -> None:
    golden(section((await debate()).markdown(), "Crux 1."))


async def test_crux_without_a_test_has_the_column_of_what_was_declared(golden: Golden) -> None:
    golden(section((await debate(test_cruxes=0)).markdown(), "Crux 1.").partition("**Best")[0])


async def test_best_statement_for_a_side_is_the_commitment_of_an_agent_that_left_it(golden: Golden) -> None:
    """Not the concession with which it left. The concession is counted, and that it changed a top claim."""

    def turn(request: ModelRequest) -> Answer:
        if request.agent != "D2" or "CONCEDE" not in moves_of(request):
            return {}
        text, side = "Granted: queues lose nothing.", "YES"
        return {"move": "CONCEDE", "conceded": "it is long", "new_side": side, "top_claim": side, "text": text}

    def commit(request: ModelRequest) -> Answer:
        return {"text": "Peaks are long.", "confidence": "unsure"} if request.agent == "D2" else {}

    def final(request: ModelRequest) -> Answer:
        return {"p1": "YES", "q1": "YES"} if request.agent == "D2" else {}

    text = (await debate({"turn": turn, "commit": commit, "final": final})).markdown()
    golden(text.partition("**Best statement for no:**")[2].partition("**")[0], "best statement for no")
    golden(lines_with("concession", text), "concessions")


async def test_first_step_is_printed_without_final_ballots(golden: Golden) -> None:
    first = "Count the orders of a peak hour from the logs: half a day."
    report = await debate({"closing": lambda request: {"first_step": first}}, limits=Limits(calls=4))
    assert not report.final
    golden(lines_with("First:|opening ballots", report.markdown()))


async def test_crux_section_counts_no_commitment_as_a_ballot(golden: Golden) -> None:
    text = (await debate({"final": lambda request: {"p1": "?"} if request.agent == "D2" else {}})).markdown()
    golden(lines_with("ballots on it", text))
    cut = (await debate({"final": lambda request: {"p1": "?"}}, limits=Limits(calls=20))).markdown()
    golden(lines_with("last said on it", cut), "without ballots")


async def test_steelman_that_a_limit_left_ungraded_is_not_reported_as_rejected(golden: Golden) -> None:
    golden(lines_with("put the case of", (await debate(max_messages=10)).markdown()))


async def test_steelman_that_a_limit_left_without_another_try_is_not_reported_as_never_accepted(golden: Golden) -> None:
    grades = {"grade": lambda request: {"grade": "INCOMPLETE", "corrections": "the peak"}}
    golden(lines_with("put the case of", (await debate(grades, max_messages=12)).markdown()))


async def test_crux_section_counts_ballots_of_uncommitted_agents() -> None:
    def commit(request: ModelRequest) -> Answer:
        side = {"side": "?"} if request.agent == "D5" else {}
        return {"metric": f"orders lost as {request.agent} counts", **side}

    def opening(request: ModelRequest) -> Answer:
        return {"p1": "YES" if request.agent in ("D1", "D3") else "NO", "p2": "YES" if request.agent == "D2" else "NO"}

    asks = {"commit": commit, "opening": opening}
    report = await debate(asks, debaters=5, as_is=False, option=("queues", "batches"))
    partly = [thread.crux for thread in report.threads if thread.crux and len(thread.crux.positions) < 5]
    assert partly
    text = report.markdown()
    cast = sum("final ballots on it: 3 yes · 2 no" in line for line in text.splitlines())
    assert cast == sum(thread.crux is not None for thread in report.threads)


async def test_crux_section_explains_the_score_by_three_factors(golden: Golden) -> None:
    report = await debate()
    score = report.threads[0].crux.score if report.threads[0].crux else None
    assert score is not None
    line = lines_with("Crux score", report.markdown())
    assert f"{score.score:.2f} = {score.coverage:.2f} × {score.polarity:.2f} × {score.impact:.2f}" in line
    golden(line)


async def test_crux_section_explains_why_a_crux_is_not_validated(golden: Golden) -> None:
    text = (await debate({"crystallize": lambda request: {"criteria": ["an audit"]}})).markdown()
    golden(lines_with("validated crux", text))


async def test_unlocked_question_is_reported_with_what_its_lock_lacked(golden: Golden) -> None:
    wrong = {"grade": "WRONG", "corrections": "That is not what I hold; I hold that the peak decides."}
    golden(lines_with("no validated crux", (await debate({"grade": lambda request: dict(wrong)})).markdown()))


async def test_validated_crux_of_an_unfinished_thread_is_reported_once(golden: Golden) -> None:
    def commit(request: ModelRequest) -> Answer:
        return {"metric": f"orders lost by {request.agent}"}

    text = (await debate({"commit": commit}, max_messages=21)).markdown()
    golden(lines_with("A validated crux", text))
    assert "Unresolved threads" not in text


async def test_phases_and_keys_of_calls_have_words(store: SqliteStore) -> None:
    await consilience.deliberate(
        TASK, Debate(debaters=3, as_is=True), model=ScriptedModel(Debaters()), store=store, session="s"
    )
    record = read_record(store, "s")
    places = {record.place(call.key, call.agent) for call in record.calls}
    assert {"message, turn 1", "test of a crux · thread 1 · told yes", "common ground"} <= places
    assert not [place for place in places if re.search(r"[A-Z_]{2}|\bnamed\b|synthes", place)]


async def test_steelman_with_a_retry_is_shown_with_its_correction(golden: Golden) -> None:
    graded: list[str] = []

    def grade(request: ModelRequest) -> Answer:
        graded.append(request.agent)
        if graded.count("D2") == 1 and request.agent == "D2":
            return {"grade": "INCOMPLETE", "corrections": "You leave out the nightly batch."}
        return {"grade": "ACCURATE"}

    golden(lines_with("put the case of", (await debate({"grade": grade}, debaters=2)).markdown()))


# --- movements


async def test_position_change_is_shown_with_a_quotation_of_its_cause(golden: Golden) -> None:
    def final(request: ModelRequest) -> Answer:
        return {"p1": "NO", "cause": "B17"} if request.agent == "D1" else {}

    report = await debate({"final": final})
    caused = next(m for m in report.messages if m.label == "B17")
    change = lines_with("yes → no", report.markdown())
    assert caused.text in change
    golden(change)


async def test_position_change_without_a_cause_is_marked(golden: Golden) -> None:
    report = await debate({"final": lambda request: {"p1": "NO"} if request.agent == "D1" else {}})
    golden(lines_with("yes → no", report.markdown()))


async def test_sealed_ballot_that_differs_from_the_public_position_is_shown(golden: Golden) -> None:
    """One line: a change that is asked about again is told once."""
    report = await debate({"final": lambda request: {"q1": "UNCERTAIN"} if request.agent == "D2" else {}})
    golden(lines_with(r"critic of change \(B\) on crux 1:", report.markdown()))


async def test_report_without_position_changes_states_it(golden: Golden) -> None:
    golden(lines_with("between its two ballots", (await debate()).markdown()))


# --- what failed


async def test_failed_lock_is_reported_with_the_missing_criterion(golden: Golden) -> None:
    text = (await debate({"commit": everybody("YES")})).markdown()
    golden(section(text, "Unresolved threads"))
    golden(lines_with("Agreement on a question:|Lock 1 of", text), "how far to trust it")


async def test_stale_thread_is_listed_with_its_reason() -> None:
    def turn(request: ModelRequest) -> Answer:
        return {"move": "CLAIM", "question": ""}

    def nothing(request: ModelRequest) -> Answer:
        return {"question": "", "second": ""}

    report = await debate({"turn": turn, "reframe": nothing})
    stale = [thread for thread in report.threads if thread.status == "STALE"]
    assert stale
    never = report.markdown().split("### Unresolved threads")[1].split("\n## ")[0]
    assert f"went stale: {stale[0].closed_by}" in never


async def test_trust_section_names_steelmen_attention_and_evidence(golden: Golden) -> None:
    def turn(request: ModelRequest) -> Answer:
        moves = request.schema["properties"]["move"] if request.schema else {}
        return {"move": "PROVIDE_EVIDENCE"} if "PROVIDE_EVIDENCE" in json.dumps(moves) else {}

    report = await debate({"turn": turn})
    assert [m for m in report.messages if m.move == "PROVIDE_EVIDENCE"]
    golden(section(report.markdown(), "How far to trust it"))


# --- views and exports


async def test_views_and_transcript_name_messages_by_label() -> None:
    report = await debate()
    views = {view.name: view_text(view, 100) for view in report.presentation().views}
    assert list(views) == ["cruxes", "stance", "threads"], "of one thread, a timeline would show nothing more"
    for message in report.messages:
        assert f"{message.label} " in views["threads"]
        assert message.text in unescape(report.html())


async def test_timeline_is_a_view_of_several_threads() -> None:
    def opening(request: ModelRequest) -> Answer:
        return {f"p{n}": SIDES[(number_of(request.agent) + n) % 2] for n in (1, 2)}

    framing = {"propositions": ["Is part 1 of the plan right?", "Is part 2 of the plan right?"]}
    report = await debate({"opening": opening, "framing": lambda request: framing}, as_is=False)
    assert len(report.threads) > 1
    views = {view.name: view_text(view, 100) for view in report.presentation().views}
    assert list(views) == ["cruxes", "stance", "threads", "timeline", "crux-map"]
    assert "crux lock" in views["timeline"]


async def test_empty_views_are_named_nowhere_and_not_on_the_page(store: SqliteStore) -> None:
    def framing(request: ModelRequest) -> Answer:
        return {"form": "not disputable", "propositions": [], "reason": "It asks for a sum."}

    model = ScriptedModel(Debaters({"framing": framing}))
    report = await consilience.deliberate(TASK, Debate(debaters=3), model=model, store=store, session="s")
    record = read_record(store, "s")
    assert "No crux has been found." in session_view("cruxes", record)
    with pytest.raises(SettingsError) as error:
        session_view("nothing", record)
    listed = report.markdown().split("other views:")[1]
    for names in (listed, str(error.value)):
        assert not {"cruxes", "threads", "timeline"} & set(re.findall(r"\w+", names))
    assert 'id="threads"' not in page(record)


async def test_what_messages_declare_is_shown_wherever_they_are() -> None:
    def turn(request: ModelRequest) -> Answer:
        moves = moves_of(request)
        if "REFRAME" in moves and request.agent == "D2":
            return {"move": "REFRAME", "question": "Do queues cost more staff than they save?"}
        if "CONCEDE" in moves and request.agent == "D3":
            return {"move": "CONCEDE", "conceded": "the peak lasts an hour"}
        return {}

    report = await debate({"turn": turn, "grade": lambda request: {"grade": "ACCURATE", "text": "Yes."}})
    threads = next(view_text(view, 400) for view in report.presentation().views if view.name == "threads")
    declared = {
        "REFRAME": "Question: Do queues cost more staff than they save?",
        "PROPOSE_CRUX": "Question: Would queues lose orders at the peak?",
        "CONCEDE": "Concedes: the peak lasts an hour",
        "COMMIT_POSITION": "Would change its mind if: orders lost in a year: more than 12, by 2027-12-31.",
        "STEELMAN": "Would change its mind if: their falsifier",
    }
    assert set(declared) < {message.move for message in report.messages}
    page = unescape(report.html())
    for message in report.messages:
        line = next(line for line in threads.splitlines() if line.strip().startswith(f"{message.label} "))
        assert declared.get(message.move, "") in line
        assert all(part in page for part in (message.text, *message.parts))
        assert message.move != "GRADE_STEELMAN" or "grades a steelman (accurate)" in line


async def test_saved_report_contains_the_documented_final_json(tmp_path: Path) -> None:
    report = await debate()
    report.save(tmp_path)
    data = json.loads((tmp_path / "debate.json").read_text(encoding="utf-8"))
    assert set(data) == SEED_KEYS
    crux = data["threads"][0]["crux"]
    assert set(crux["positions"]) == {"D1", "D2", "D3"}
    assert crux["counterfactual"]["D1"]["wouldFlip"] is True
    assert crux["dcg"]["score"] == report.threads[0].crux.score.score  # type: ignore[union-attr]
    assert crux["steelmanPairs"][0] == {"from": "D1", "to": "D2", "grade": "ACCURATE", "attempts": 1}
    assert data["threads"][0]["stages"]["cruxLock"]["lockAttempts"] == 1
    snake = json.loads((tmp_path / "final_state.json").read_text(encoding="utf-8"))
    assert snake["system_metrics"]["steelman_attempts"] == data["systemMetrics"]["steelmanAttempts"] == 4
