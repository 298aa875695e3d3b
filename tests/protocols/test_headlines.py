"""Headlines: what must never be reported as converged or satisfied, in stop reason, sentence, confidence or `--require`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from consilience import Broadcast, Decompose, Emergence, Limits, Refinement, Report, Solo, StopReason, replay, run_sync
from consilience.cli.errors import EXIT_FAILED, EXIT_OK, EXIT_REQUIREMENT_NOT_MET
from consilience.cli.execution import apply_conditions, exit_code
from consilience.cli.options import DeliveryRequest
from consilience.domain.outcome import SpendingLimits
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.reporting.export import as_html
from consilience.reporting.formatting import describe_phase_of
from consilience.reporting.html import fragment
from consilience.reporting.markdown import headline, markdown
from consilience.reporting.record import AnyReport, read_record
from consilience.reporting.report_sections import figures_line
from consilience.testing import Scripted, ScriptedModel
from kit.golden import Golden, lines_with
from protocols.headlines import (
    CASES,
    PAIR,
    TEXT,
    TRIO,
    VOTING,
    Answer,
    Case,
    Spoil,
    agreeable,
    cut,
    fails,
    nothing,
)

MARK = "cut off at the token limit"

GOOD: Mapping[str, Protocol] = {case.protocol.name: case.protocol for case in CASES} | {
    "emergence": TRIO,
    "broadcast": PAIR,
    "broadcast with ballots": VOTING,
    "emergence with ballots": Emergence(children=3, max_rounds=2, answer_pattern="yes|no"),
    "refinement": TEXT,
}


def go(protocol: Protocol, spoil: Spoil, limits: Limits | None = None) -> tuple[Report, set[str]]:
    """The report, and the keys of the calls that the script failed."""
    failed: set[str] = set()

    def reply(request: ModelRequest) -> Answer:
        answer = spoil(request)
        if isinstance(answer, Exception):
            failed.add(request.key)
        return agreeable(request) if answer is None else answer

    options = Options(patience=0)
    model = ScriptedModel(reply)
    return run_sync("Is it so?", protocol, model=model, limits=limits, options=options), failed


def required(report: Report, reason: StopReason) -> int:
    """The exit code of a run with `--require REASON`."""
    return apply_conditions(report, DeliveryRequest(require=[reason]), exit_code(report))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_incident_prevents_convergence_and_is_reported(case: Case, golden: Golden) -> None:
    report, failed = go(case.protocol, case.spoil, case.limits)
    line = headline(report)
    assert report.stop_reason is case.stop
    golden((line, f"degraded: {report.degraded}"))
    assert report.confidence.level == case.level
    assert (report.answer is not None) == case.answered
    assert required(report, StopReason.CONVERGED) == (EXIT_REQUIREMENT_NOT_MET if case.answered else EXIT_FAILED)
    assert required(report, case.stop) == (EXIT_OK if case.answered else EXIT_FAILED)
    assert failed <= {call.key for call in report.failed_calls}
    check_traced(report)
    check_marked(report, cut=case.cut)
    convergence = getattr(report, "convergence", None)
    assert convergence is None or not convergence.converged


def test_headline_counts_failed_calls_without_naming_them(golden: Golden) -> None:
    report, _ = go(Emergence(children=5, max_rounds=2), fails("round-2/l", agents=("L2N1", "L2N2", "L2N3")))
    golden(headline(report), "several")
    report, _ = go(TRIO, fails("round-1/leaf_respond", agents=("L2N2",)))
    golden(headline(report), "one")


def test_run_in_plain_text_is_degraded_and_claims_no_silent_consent(golden: Golden) -> None:
    report, _ = go(TRIO, lambda request: "blub blub }{ 42")
    assert report.typed_replies == len(report.prose_replies) == report.ledger.actual.calls - 1  # the nudge has no form
    golden(markdown(report))


def test_run_without_any_stance_reports_no_change_of_an_answer() -> None:
    report, _ = go(TRIO, lambda request: json.dumps({"text": "Yes."}) if request.schema else None)
    assert report.stop_reason is not StopReason.CONVERGED
    assert {turn.stance for round in report.rounds for turn in round.agents.values()} == {None}
    assert [change.stance for change in report.answer_changes] == [None]
    assert "Changes of the answer" not in markdown(report)


def test_single_reply_in_plain_text_is_counted_with_its_agent_and_degrades_nothing(golden: Golden) -> None:
    report, _ = go(TRIO, lambda request: "Yes." if request.key == "round-1/leaf_respond/L2N2" else None)
    assert report.prose_replies == ("round-1/leaf_respond/L2N2",)
    assert report.degraded is None
    golden(lines_with("requested form|of its form", markdown(report)))


@pytest.mark.parametrize(
    ("protocol", "calls"),
    [(TRIO, 5), (Broadcast(children=2, skip_when_satisfied=False), 7)],
    ids=["emergence", "broadcast"],
)
def test_no_dissent_is_stated_with_the_agents_that_a_limit_kept_silent(
    protocol: Protocol, calls: int, golden: Golden
) -> None:
    golden(lines_with("Dissent:", markdown(go(protocol, nothing, Limits(calls=calls))[0])))
    golden(lines_with("Dissent:", markdown(go(protocol, nothing)[0])), "without a limit")


@pytest.mark.parametrize("calls", [6, 7, 9])
def test_answer_before_a_limit_is_marked_whichever_budget_paid_for_it(calls: int, golden: Golden) -> None:
    report, _ = go(Emergence(children=2, max_rounds=2), nothing, Limits(calls=calls))
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    golden(lines_with("limit", markdown(report).partition("## Basis")[0].partition("## How far")[0]))


def test_answer_without_a_quorum_is_called_one_agents_text(golden: Golden) -> None:
    golden(headline(go(TRIO, nothing, Limits(calls=1))[0]), "one text")
    golden(headline(go(Emergence(children=3, max_rounds=2), nothing, Limits(calls=2))[0]), "two texts")


def check_traced(report: Report) -> None:
    """Every failed call is in `degraded` and, with its reason, in the printed report."""
    listed = (
        markdown(report).partition("# Calls without a reply\n\n")[2].partition("\n\n")[0].replace("\\", "").splitlines()
    )
    assert (report.degraded is None) == (not report.failed_calls)
    for call in report.failed_calls:
        assert call.phase is not None
        where = describe_phase_of(call.key, call.phase, report.labels)
        assert f"{call.phase[0]} {call.phase[1]} " in (report.degraded or "")
        assert call.agent in (report.degraded or "")
        assert f"({call.kind.value})" in (report.degraded or "")
        assert any(
            line.startswith(f"- {where}: ") and call.agent in line and call.kind.value in line for line in listed
        )


def check_marked(report: Report, *, cut: bool) -> None:
    """A cut answer is marked in every format, and no other answer is."""
    assert report.answer_cut == cut
    assert report.model_dump(mode="json")["answer_cut"] == cut
    assert (MARK in markdown(report).partition("## Answer")[2].partition("\n## ")[0]) == cut
    assert (MARK in fragment(report)) == cut
    assert markdown(AnyReport.model_validate_json(report.model_dump_json())) == markdown(report)


@pytest.mark.parametrize("protocol", GOOD.values(), ids=GOOD)
def test_run_without_failures_has_a_headline_without_incidents(protocol: Protocol) -> None:
    """Else the table above would prove nothing."""
    report, _ = go(protocol, nothing)
    converging = isinstance(protocol, Emergence | Broadcast | Refinement)
    assert report.stop_reason is (StopReason.CONVERGED if converging else StopReason.SETTLED)
    assert required(report, report.stop_reason) == EXIT_OK
    assert (report.unmet, report.degraded, report.failed_calls, report.answer_cut) == ((), None, (), False)
    assert " · " not in headline(report).removesuffix("**")


def test_cut_text_other_than_the_answer_does_not_prevent_convergence() -> None:
    """The first root text is cut, the last one is not."""
    report, _ = go(TRIO, cut("round-1/"))
    assert report.stop_reason is StopReason.CONVERGED
    check_marked(report, cut=False)
    report, _ = go(Emergence(max_rounds=2, strange_loops=1), cut("/observe/"))
    assert report.stop_reason is StopReason.CONVERGED, "its review was not cut"


def test_seat_dead_from_the_start_does_not_prevent_convergence_of_a_quorum() -> None:
    report, _ = go(TRIO, fails("round-", agents=("L2N2",)))
    assert report.stop_reason is StopReason.CONVERGED
    assert report.degraded == "2 of 3 agents; no reply: leaf_respond 1 L2N2 (rejected); leaf_respond 2 L2N2 (rejected)"


def test_seat_that_replies_again_lets_the_run_converge() -> None:
    report, _ = go(Emergence(children=3, max_rounds=4), fails("round-2/", agents=("L2N2",)))
    assert (report.stop_reason, report.steps) == (StopReason.CONVERGED, 3)
    assert report.degraded is not None


@pytest.mark.parametrize(
    ("protocol", "spoil"), [(TRIO, fails("/lateral/")), (TEXT, fails("/specialist/"))], ids=["emergence", "refinement"]
)
def test_silent_seat_prevents_convergence_above_the_threshold(protocol: Protocol, spoil: Spoil) -> None:
    report, _ = go(protocol, spoil)
    assert report.check is not None
    assert report.check.score is not None
    assert report.check.threshold is not None
    assert report.check.score >= report.check.threshold
    assert not report.check.met


LIMITS: Mapping[str, Limits] = {
    "calls": Limits(calls=3),
    "tokens": Limits(tokens=4_000),
    "cost": Limits(cost=0.02),
    "time": Limits(seconds=0),
    "calls of one agent": Limits(agents={"L2N1": SpendingLimits(calls=1)}),
    "steps": Limits(steps=1),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_headline_of_a_run_ended_by_a_limit_names_the_limit(limit: str, golden: Golden) -> None:
    """In every format the same words, and after a replay."""
    model = ScriptedModel(lambda request: Scripted(agreeable(request), tokens_in=100, tokens_out=50, cost=0.01))
    store = SqliteStore(":memory:")
    report = run_sync("Is it so?", TRIO, model=model, limits=LIMITS[limit], options=Options(patience=0), store=store)
    line = headline(report)
    golden(line)
    words = line.strip("*").partition(" · ")[0].replace("\\", "").removeprefix("Stopped: ")
    assert words in fragment(report)
    assert words in as_html(read_record(store, report.session))
    assert words.partition(" (")[0].partition(", with")[0] in figures_line(report, report.presentation())
    assert headline(asyncio.run(replay(report.session, store=store))) == line


@pytest.mark.parametrize(
    ("protocol", "limits", "true", "false"),
    [
        (Solo(reviews=1), Limits(calls=1), "The answer was not reviewed.", "reviewed its own answer"),
        (Decompose(), Limits(calls=1), "L1N1 assigned no parts.", "had the whole task"),
        (TRIO, Limits(calls=4), "no agent read the texts of its siblings", "silent in round"),
        (Broadcast(children=2), Limits(calls=1), "| 0 |", "L2N1 unrated; no"),
        (Refinement(), Limits(calls=5), "×2", "unused"),
    ],
    ids=lambda value: value.name if isinstance(value, Protocol) else "",
)
def test_report_of_a_run_cut_off_by_a_limit_says_nothing_of_calls_that_were_never_made(
    protocol: Protocol, limits: Limits, true: str, false: str
) -> None:
    report, _ = go(protocol, nothing, limits)
    assert true in markdown(report)
    assert false not in markdown(report)
