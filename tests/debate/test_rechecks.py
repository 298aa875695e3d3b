"""Answers of final ballots that are asked again: who is asked what, what counts, and what the report makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import consilience
from consilience import Debate, DebateReport, Limits
from consilience.models.port import ModelRequest
from consilience.protocols.debate.ballots import holdouts
from consilience.protocols.debate.moves import MAX_RECHECKS, Side
from consilience.testing import ScriptedModel
from kit.debating import Debaters, labels, properties
from kit.golden import Golden, lines_with

Answer = dict[str, object]
Change = Callable[[ModelRequest], Answer]
TASK = "Should we move the orders to queues?"

pytestmark = pytest.mark.usefixtures("home")


def debate(
    changes: dict[str, Change] | None = None,
    *,
    model: ScriptedModel | None = None,
    limits: Limits | None = None,
    **settings: object,
) -> DebateReport:
    protocol = Debate(**{"debaters": 3, "as_is": True, "test_cruxes": 1, **settings})  # type: ignore[arg-type]
    report = consilience.run_sync(TASK, protocol, model=model or ScriptedModel(Debaters(changes)), limits=limits)
    assert isinstance(report, DebateReport)
    return report


def only(agent: str, answer: Answer) -> Change:
    return lambda request: dict(answer) if request.agent == agent else {}


def slips(again: str) -> dict[str, Change]:
    """D1, who answers yes, votes no on the crux; `again` is what it says when it is asked again."""
    return {"final": only("D1", {"q1": "NO"}), "recheck": only("D1", {"q1": again, "reason": "I misread it"})}


def asked_again(model: ScriptedModel) -> list[ModelRequest]:
    return [request for request in model.requests if request.key.startswith("recheck/")]


def final_side(report: DebateReport, agent: str) -> Side:
    (ballot,) = [b for b in report.ballots if b.step == 1 and b.agent == agent]
    return ballot.questions["thread-1"]


def test_recheck_is_not_made_if_ballots_match_declarations() -> None:
    model = ScriptedModel(Debaters())
    report = debate(model=model)
    assert asked_again(model) == []
    assert report.rechecks == ()
    assert "asked again" not in report.markdown()


def test_recheck_of_a_ballot_against_its_declaration_quotes_only_its_own_agent() -> None:
    sealed: Change = lambda request: {"reason": f"sealed reason of {request.agent}"}  # noqa: E731
    changes = slips("YES")
    model = ScriptedModel(Debaters({**changes, "final": lambda r: sealed(r) | changes["final"](r)}))
    debate(model=model)

    (request,) = asked_again(model)
    assert request.key == "recheck/1/D1"
    assert sorted(properties(request)) == ["q1", "reason"]
    (line,) = re.findall(r"^q1: .*$", request.text, re.MULTILINE)
    committed = re.search(r"YES in ([A-Z]\d+)", line)
    assert committed is not None
    assert committed[1] in labels(request)
    assert line.endswith("YES in private after the evidence, NO in your final ballot.")
    assert "sealed reason of D1" in request.text
    assert "sealed reason of D2" not in request.text


@pytest.mark.parametrize(("again", "counts"), [("YES", "YES"), ("NO", "NO"), ("UNCERTAIN", "UNCERTAIN")])
def test_recheck_answer_counts_if_the_agent_gave_it_before(again: str, counts: str) -> None:
    report = debate(slips(again))
    assert final_side(report, "D1") == counts
    (check,) = report.rechecks
    assert (check.agent, check.question, check.why) == ("D1", "thread-1", "differs")
    assert (*check.before.values(), check.ballot, check.again, check.counts) == ("YES", "YES", "NO", again, counts)
    assert check.reason == "I misread it"


@pytest.mark.parametrize("again", ["YES", "UNCERTAIN"])
def test_report_lists_rechecks_and_the_answers_that_count(again: str, golden: Golden) -> None:
    golden(lines_with("asked again", debate(slips(again)).markdown()))


def test_closing_call_and_tests_use_the_rechecked_answers() -> None:
    model = ScriptedModel(Debaters(slips("YES")))
    report = debate(model=model)
    closing = next(request for request in model.requests if request.key == "closing")
    assert f"- {report.letters['D1']}: q1 YES (ballot: NO)" in closing.text.splitlines()
    answers = {
        r.agent: "you answered: q1 YES (ballot: NO)." in r.text for r in model.requests if r.key.startswith("test/")
    }
    assert answers == {"D1": True, "D2": False, "D3": False}


def test_recheck_without_a_reply_keeps_the_ballot_and_is_reported(golden: Golden) -> None:
    script = Debaters(slips("YES"))
    report = debate(model=ScriptedModel(lambda r: "nonsense" if r.key.startswith("recheck/") else script(r)))
    assert final_side(report, "D1") == "NO"
    (check,) = report.rechecks
    assert (check.again, check.counts) == (None, "NO")
    golden(lines_with("asked again", report.markdown()))


def test_recheck_of_a_changed_position_is_skipped_if_the_ballot_names_a_cause() -> None:
    moved = ScriptedModel(Debaters({"final": only("D1", {"p1": "NO", "cause": None})}))
    report = debate(model=moved)
    assert [sorted(properties(request)) for request in asked_again(moved)] == [["p1", "reason"]]
    assert [change.agent for change in report.position_changes] == ["D1"]

    def moved_by_another(request: ModelRequest) -> Answer:
        others = [label for label in labels(request) if label[0] not in "MB"]
        return {"p1": "YES", "cause": others[-1]} if request.agent == "D2" else {}

    explained = ScriptedModel(Debaters({"final": moved_by_another}))
    report = debate(model=explained)
    assert asked_again(explained) == []
    assert [(change.agent, change.conformity) for change in report.position_changes] == [("D2", False)]


def test_recheck_refused_by_a_limit_keeps_the_ballots() -> None:
    whole = ScriptedModel(Debaters(slips("YES")))
    debate(model=whole)
    place = next(n for n, request in enumerate(whole.requests) if request.key.startswith("recheck/"))
    counts: set[Side] = set()
    for calls in range(place - 2, place + 4):
        report = debate(slips("YES"), limits=Limits(calls=calls))
        for check in report.rechecks:
            counts.add(check.counts)
            assert check.counts == (check.again or check.ballot)
        assert {check.agent for check in report.rechecks} <= {b.agent for b in report.ballots if b.step == 1}
    assert "NO" in counts or not counts


def test_rechecks_are_at_most_two_per_agent_and_within_the_estimate() -> None:
    seats = 4
    every: dict[str, Change] = {"final": lambda r: {"p1": "UNCERTAIN", "q1": "UNCERTAIN"}}
    model = ScriptedModel(Debaters(every))
    report = debate(model=model, debaters=seats)
    assert {request.agent for request in asked_again(model)} == {"D1", "D2", "D3", "D4"}
    assert len(asked_again(model)) <= MAX_RECHECKS * seats
    assert report.ledger.actual.calls <= Debate(debaters=seats, as_is=True, test_cruxes=1).estimate().max


# near a consensus


def all_yes_but(agent: str, again: str) -> dict[str, Change]:
    """Four agents who answer everything alike, but one of them the task."""

    def answer(request: ModelRequest) -> Answer:
        fields: Answer = {name: "YES" for name in properties(request) if name[0] in "pq"} | {"side": "YES"}
        return fields | ({"p1": "NO"} if request.agent == agent else {})

    kinds = ("opening", "final", "commit", "flip")
    return {**dict.fromkeys(kinds, answer), "recheck": only(agent, {"p1": again, "reason": "on record"})}


def test_lone_answer_against_a_consensus_is_confirmed_and_reported() -> None:
    model = ScriptedModel(Debaters(all_yes_but("D2", "NO")))
    report = debate(model=model, debaters=4)
    (request,) = asked_again(model)
    assert (request.key, sorted(properties(request))) == ("recheck/2/D2", ["p1", "reason"])
    (check,) = report.rechecks
    assert (check.why, check.counts) == ("holds out", "NO")
    assert report.regime == "partial"
    assert "on record" in report.markdown()


@pytest.mark.parametrize("again", ["YES", "UNCERTAIN"])
def test_ballots_that_were_split_when_cast_are_never_a_consensus(again: str, golden: Golden) -> None:
    report = debate(all_yes_but("D2", again), debaters=4)
    assert report.regime == "partial"
    assert [(d.agent, d.text, d.position) for d in report.dissent] == [("D2", "on record", "NO when cast")]
    golden(f"{lines_with('when (its ballots were )?cast', report.markdown())}\n\n{report.regime_description}")


def test_ballot_on_a_new_fact_is_not_counted_as_the_ballot_before_it_was_cast() -> None:
    report = debate(all_yes_but("D2", "UNCERTAIN"), debaters=4, new_facts=("The peak is over.",))
    assert report.told
    assert "when cast" not in report.markdown().partition("## ")[0]


def test_lone_answer_not_confirmed_counts_as_undecided(golden: Golden) -> None:
    report = debate(all_yes_but("D2", "YES"), debaters=4)
    assert [b.positions[0] for b in report.ballots if b.step == 1] == ["YES", "UNCERTAIN", "YES", "YES"]
    golden(lines_with("asked to confirm", report.markdown()))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"p1": "YYYY"}, {}),
        ({"p1": "YYYN"}, {"D4": "p1"}),
        ({"p1": "YYN"}, {}),  # a third is no lone answer
        ({"p1": "YYYN", "q1": "NYYY"}, {"D4": "p1", "D1": "q1"}),
        ({"p1": "YYNN"}, {}),
        ({"p1": "YN"}, {}),
        ({"p1": "YYYYNN"}, {}),
        ({"p1": "YYYYYNN"}, {"D6": "p1", "D7": "p1"}),
        ({"p1": "YYYN", "q1": "YYYN"}, {}),  # no slip: D4 holds out twice
        ({"p1": "YYYN", "q1": "YYNN"}, {}),  # another question is split
        ({"p1": "Y??N", "q1": "YYYY"}, {}),
        ({"p1": "YY?N"}, {"D4": "p1"}),
    ],
)
def test_holdouts_are_agents_whose_lone_answer_prevents_a_consensus(
    rows: dict[str, str], expected: dict[str, str]
) -> None:
    sides: dict[str, Side] = {"Y": "YES", "N": "NO", "?": "UNCERTAIN"}
    answers = {name: {f"D{n}": sides[mark] for n, mark in enumerate(row, 1)} for name, row in rows.items()}
    assert holdouts(answers) == expected
