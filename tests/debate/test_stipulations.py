"""Tested cruxes and told facts at the public surface: who was asked what, who moved, and what the report makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import consilience
from consilience import Debate, DebateReport, Limits
from consilience.domain.outcome import SpendingLimits, StopReason
from consilience.models.port import ModelRequest
from consilience.protocols.debate.stipulations import PLACEBO
from consilience.testing import ScriptedModel
from kit.debating import CONTROL, Debaters, side_of

Answer = dict[str, object]
TASK = "Should we move the orders to queues?"

pytestmark = pytest.mark.usefixtures("home")


def debate(
    changes: dict[str, Callable[[ModelRequest], Answer]] | None = None,
    *,
    model: ScriptedModel | None = None,
    limits: Limits | None = None,
    **settings: object,
) -> DebateReport:
    protocol = Debate(**{"debaters": 3, "as_is": True, **settings})  # type: ignore[arg-type]
    report = consilience.run_sync(TASK, protocol, model=model or ScriptedModel(Debaters(changes)), limits=limits)
    assert isinstance(report, DebateReport)
    return report


def stipulated_asks(model: ScriptedModel) -> list[ModelRequest]:
    return [request for request in model.requests if request.key.startswith("test/")]


def stubborn(agent: str) -> dict[str, Callable[[ModelRequest], Answer]]:
    """An agent that declares a flip, and does not flip when it is tested."""
    return {"test": lambda request: {"p1": side_of(agent)} if request.agent == agent else {}}


def test_tests_ask_every_voter_both_answers_of_each_crux_and_the_placebo() -> None:
    model = ScriptedModel(Debaters())
    report = debate(model=model)

    (thread,) = report.threads
    asked = stipulated_asks(model)
    assert thread.crux is not None
    assert {request.key for request in asked} == {
        f"test/{name}/{agent}" for name in ("thread-1/YES", "thread-1/NO", "placebo") for agent in ("D1", "D2", "D3")
    }
    for request in asked:
        placebo = request.key.startswith("test/placebo")
        question = CONTROL if placebo else thread.crux.question
        (stipulated,) = re.findall(r'^The answer to "(.*)" is (?:YES|NO)\.$', request.text, re.MULTILINE)
        assert stipulated == question
    assert [(test.thread, test.stipulated, set(test.ballots)) for test in report.tests] == [
        ("thread-1", side, {"D1", "D2", "D3"}) for side in ("YES", "NO")
    ]


def test_test_prompt_quotes_only_the_final_ballot_of_its_own_agent() -> None:
    model = ScriptedModel(Debaters({"final": lambda request: {"reason": f"sealed reason of {request.agent}"}}))
    debate(model=model)
    for request in stipulated_asks(model):
        seen = {agent for agent in ("D1", "D2", "D3") if f"sealed reason of {agent}" in request.text}
        assert seen == {request.agent}


def test_report_has_observed_and_declared_flips_and_scores() -> None:
    report = debate(stubborn("D3"))

    (records,) = report.flip_records.values()
    assert [(r.agent, r.declared, r.observed, r.placebo) for r in records] == [
        ("D1", True, True, False),
        ("D2", True, True, False),
        ("D3", True, False, False),
    ]
    crux = report.threads[0].crux
    assert crux is not None
    assert crux.observed_score is not None
    assert (crux.score.coverage, crux.observed_score.coverage) == (1.0, pytest.approx(2 / 3))
    assert crux.observed_score.score == pytest.approx(2 / 3 * crux.score.polarity * 0.95)


def test_crux_without_observed_flips_is_invalidated_with_the_reason() -> None:
    def own_falsifier(request: ModelRequest) -> Answer:
        return {"metric": f"orders lost in year {request.agent}"}

    declared = debate({"commit": own_falsifier})
    crux = declared.threads[0].crux
    assert crux is not None
    assert crux.validated
    assert declared.primary_crux == "thread-1"
    assert "(when told so: " in declared.primary_crux_reason

    tested = debate({"commit": own_falsifier, "test": lambda request: {"p1": side_of(request.agent)}})
    crux = tested.threads[0].crux
    assert crux is not None
    assert crux.score.coverage == 1
    assert [(flaw.kind, flaw.n) for flaw in crux.validation_failures] == [("hanging_tested", 0)]
    assert tested.primary_crux is None
    assert "0 of its agents change position over it when tested, two are needed" in tested.markdown()


def test_flips_of_agents_moved_by_the_placebo_do_not_count() -> None:
    report = debate(
        {
            "commit": lambda request: {"metric": f"orders lost in year {request.agent}"},
            "flip": lambda request: {"gives_up_if": "neither"},
            "test": lambda request: {"p1": "UNCERTAIN"},
        }
    )
    crux = report.threads[0].crux
    assert crux is not None
    assert [(flaw.kind, flaw.n) for flaw in crux.validation_failures] == [("hanging_tested", 0)]


def test_undeclared_flip_is_observed() -> None:
    report = debate({"flip": lambda request: {"gives_up_if": "neither"}})
    (records,) = report.flip_records.values()
    assert {(record.declared, record.observed) for record in records} == {(False, True)}


def test_undecided_agent_that_flips_for_the_answer_that_it_had_not_named_did_not_do_as_declared() -> None:
    def undecided(request: ModelRequest) -> Answer:
        return {"side": "UNCERTAIN", "gives_up_if": "YES"} if request.agent == "D3" else {}

    def tested(request: ModelRequest) -> Answer:
        held = side_of(request.agent)
        return {"p1": "UNCERTAIN" if request.agent == "D3" and "/NO/" in request.key else held}

    def ballot(request: ModelRequest) -> Answer:
        return {"q1": "UNCERTAIN"} if request.agent == "D3" else {}

    report = debate({"commit": undecided, "flip": undecided, "test": tested, "final": ballot})
    (records,) = report.flip_records.values()
    record = next(record for record in records if record.agent == "D3")
    assert (record.declared, record.observed, record.as_declared) == (True, True, False)
    text = report.markdown()
    assert "flipped ✘" in next(line for line in text.splitlines() if line.startswith("| what is known (C)"))
    assert (
        "what is known (C) changed position when told an answer to crux 1 that, as declared, changes nothing." in text
    )


def test_move_toward_the_own_answer_is_not_a_flip() -> None:
    def moves_with_its_own_answer(request: ModelRequest) -> Answer:
        held = side_of(request.agent)
        return {"p1": "UNCERTAIN" if f"/{held}/" in request.key else held}

    report = debate({"test": moves_with_its_own_answer})
    (records,) = report.flip_records.values()
    assert {record.observed for record in records} == {False}


def test_move_for_the_placebo_is_recorded_as_a_placebo_flip() -> None:
    report = debate({"test": lambda request: {"p1": "UNCERTAIN"} if "placebo" in request.key else {}})
    assert report.placebo is not None
    assert report.placebo.fact == f'The answer to "{CONTROL}" is YES.', "what all assume already"
    (records,) = report.flip_records.values()
    assert {record.placebo for record in records} == {True}


def test_placebo_prompt_equals_a_crux_prompt_except_for_the_question() -> None:
    model = ScriptedModel(Debaters())
    debate(model=model)
    shown = {
        (request.system, re.sub(r'The answer to ".*" is (YES|NO)', "The answer", request.user))
        for request in stipulated_asks(model)
        if request.agent == "D1"
    }
    assert len(shown) == 1


def test_placebo_is_a_statement_that_all_final_ballots_confirmed() -> None:
    def common(request: ModelRequest) -> Answer:
        written = (("The peak is short.", "Is the peak short?"), ("It costs less.", "Does it cost less?"))
        return {"common": [{"statement": s, "question": q, "kind": "factual", "sources": []} for s, q in written]}

    def final(request: ModelRequest) -> Answer:
        return {"c1": "UNCERTAIN" if request.agent == "D2" else "YES"}

    report = debate({"synthesize": common, "final": final})
    assert [ground.statement for ground in report.common_ground] == ["It costs less."]
    assert report.placebo is not None
    assert report.placebo.fact == 'The answer to "Does it cost less?" is YES.'


def test_agent_without_a_claim_is_not_measured_by_what_it_had_declared() -> None:
    def undecided(request: ModelRequest) -> Answer:
        return {"p1": "UNCERTAIN", "q1": "UNCERTAIN"} if request.agent == "D3" else {}

    def told(request: ModelRequest) -> Answer:
        sides = {"thread-1/YES": "NO", "thread-1/NO": "YES", "placebo": "UNCERTAIN"}
        return {"p1": sides[request.key.split("/", 1)[1].removesuffix("/D3")]} if request.agent == "D3" else {}

    ballots = {"opening": undecided, "final": undecided, "test": told}
    report = debate({**ballots, "commit": lambda request: {"gives_up_if": "NO"}})
    (records,) = report.flip_records.values()
    assert next((r.observed, r.as_declared) for r in records if r.agent == "D3") == (True, None)
    text = report.markdown()
    assert "as declared, changes nothing" not in text
    assert "| flipped (told yes: now no; told no: now yes) |" in text


@pytest.mark.parametrize("control", ["", "Would queues lose orders at the peak?", TASK])
def test_placebo_missing_or_equal_to_a_debated_question_is_the_default(control: str) -> None:
    report = debate({"crystallize": lambda request: {"control": control}})
    assert report.placebo is not None
    assert PLACEBO in report.placebo.fact


def test_test_cruxes_zero_makes_no_test_call() -> None:
    model = ScriptedModel(Debaters())
    report = debate(model=model, test_cruxes=0)
    assert model.requests[-1].key == "named"
    assert (report.tests, report.placebo, report.flip_records) == ((), None, {})


def test_brief_detail_tests_one_crux_unless_set() -> None:
    assert Debate().with_detail("brief").test_cruxes == 1
    assert Debate(test_cruxes=2).with_detail("brief").test_cruxes == 2
    assert Debate().with_detail("full").test_cruxes == 2


def test_failed_test_ballot_leaves_its_flip_unknown_and_is_counted() -> None:
    model = ScriptedModel(lambda request: "nonsense" if request.key == "test/thread-1/NO/D1" else Debaters()(request))
    report = debate(model=model)
    (records,) = report.flip_records.values()
    assert {record.agent: record.observed for record in records} == {"D1": None, "D2": True, "D3": True}
    assert any("ballots of tested cruxes that are missing: 1 of 9" in warning for warning in report.warnings)
    assert report.stop_reason is StopReason.SETTLED


def test_limit_during_tests_leaves_flips_unknown_and_is_not_why_the_debate_stopped() -> None:
    whole = debate()
    calls = whole.ledger.actual.calls
    for fewer in (1, 4, 8):
        report = debate(limits=Limits(calls=calls - fewer))
        cast = sum(len(test.ballots) for test in report.tests) + len(report.placebo.ballots if report.placebo else ())
        assert report.answer is not None
        assert cast < 9
        assert any("ballots of tested cruxes that are missing" in warning for warning in report.warnings)
        assert report.stop_reason is StopReason.SETTLED
        for record in report.flip_records.get("thread-1", ()):
            sides = {t.stipulated for t in report.tests if record.agent in t.ballots} - {side_of(record.agent)}
            assert (record.observed is None) == (not sides)


def test_limit_before_the_tests_skips_them_with_a_warning() -> None:
    report = debate(limits=Limits(agents={"D3": SpendingLimits(calls=8)}))
    assert [ballot.agent for ballot in report.ballots if ballot.step == 1] == ["D1", "D2"]
    assert report.tests == ()
    assert "no crux was tested: a limit had run out" in report.warnings


def test_report_shows_declared_observed_and_placebo_flips_of_each_agent() -> None:
    text = debate(stubborn("D3")).markdown().split("### Crux 1.")[1].split("### ")[0]
    assert (
        "Declared to depend on it: 3 of 3; when told so, 2 of 3 changed position; told something that decides nothing instead"
        in text
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert next(row for row in rows if "(A" in row).endswith("flipped ✔ (told no: now no) |")
    assert next(row for row in rows if "(B" in row).endswith("flipped ✔ (told yes: now yes) |")
    assert [row.endswith("did not flip ✘ |") for row in rows if "(C" in row] == [True]
    assert CONTROL in text
