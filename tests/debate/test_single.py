"""The single call beside a debate: made within the run, apart from it, and compared by typed fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import unescape
from typing import Any

import consilience
from consilience import Limits, Options, Report, Source, StopReason
from consilience.domain.outcome import SpendingLimits
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate import Debate, DebateReport
from consilience.testing import ScriptedModel
from kit import runner
from kit.debating import Answer, Debaters, number_of
from kit.golden import Golden, lines_with, section


def common_prefix(texts: list[str]) -> str:
    shortest = min(texts, key=len)
    return next(shortest[:n] for n in range(len(shortest), -1, -1) if all(t.startswith(shortest[:n]) for t in texts))


TASK = "Should we move the orders to queues?"
REFUSED = Limits(phases={"single": SpendingLimits(calls=0)})


async def run(
    changes: Mapping[str, Callable[[ModelRequest], Answer]] | None = None, **options: Any
) -> tuple[DebateReport, list[ModelRequest]]:
    limits = options.pop("limits", None)
    model = ScriptedModel(Debaters(changes))
    settings = {"debaters": 3, "as_is": True, **options}
    report = await consilience.deliberate(TASK, Debate(**settings), model=model, limits=limits)
    assert isinstance(report, DebateReport)
    return report, model.requests


def compared(report: Report) -> str:
    return section(report.markdown(), "Compared with one call")


def two_falsifiers(request: ModelRequest) -> Answer:
    """Commitments that make a validated crux: each agent names a finding of its own."""
    return {"metric": f"orders lost in year {number_of(request.agent)}"}


async def test_single_call_and_debate_do_not_quote_each_other() -> None:
    _, requests = await run()
    alone = [request for request in requests if request.key == "single"]
    assert [request.agent for request in alone] == ["single_call"]
    assert "<message" not in alone[0].text
    assert "claims YES" not in alone[0].text
    shown_to = [request.key for request in requests if "Is the old system too slow?" in request.text]
    assert shown_to == ["named"]
    assert not [request.key for request in requests if "Alone:" in request.text]


async def test_report_has_positions_cruxes_and_cost_of_the_single_call() -> None:
    report, requests = await run()
    single = report.single_call
    assert single is not None
    assert (single.positions, single.confidence) == (("NO",), 0.7)
    assert single.cruxes == ("Would queues lose orders at the peak?", "Is the old system too slow?")
    assert single.named == {"thread-1": 1}
    assert single.tokens_in > 0
    assert single.tokens_in + single.tokens_out < report.ledger.actual.tokens_in + report.ledger.actual.tokens_out
    assert report.ledger.actual.calls == len(requests)


async def test_single_call_is_compared_with_the_debate_in_every_format(golden: Golden) -> None:
    report, requests = await run()
    for face in (report.markdown(), unescape(report.html())):
        section = face.split("Compared with one call")[1]
        assert report.added in section
        assert f"{len(requests) - 2}" in section
        assert "Alone: single_call in single" in section
    golden(compared(report))


async def test_fork_that_inherits_calls_reports_no_tokens_that_it_did_not_count(golden: Golden) -> None:
    store, model = SqliteStore(":memory:"), ScriptedModel(Debaters())
    await runner.start(TASK, Debate(debaters=3, as_is=True), models=model, store=store, session="p")
    fork = await runner.fork("p", store=store, models=model, session="f", at="end")
    assert fork.ledger.actual.inherited > 0
    golden(lines_with(r"^\| (tokens|cost|calls) ", compared(fork)))


async def test_single_call_with_a_reused_reply_is_not_reported_as_free_of_tokens(golden: Golden) -> None:
    store, protocol = SqliteStore(":memory:"), Debate(debaters=3, as_is=True)
    await runner.start(TASK, protocol, models=ScriptedModel(Debaters()), store=store, options=Options(cache=True))
    again = await runner.start(TASK, protocol, models=ScriptedModel([]), store=store, options=Options(cache=True))
    golden(lines_with(r"^\| tokens ", compared(again)))


async def test_crux_not_named_by_the_single_call_is_reported_as_added(golden: Golden) -> None:
    report, _ = await run({"commit": two_falsifiers, "named": lambda request: {"q1": 0}})
    crux = report.threads[0].crux
    assert crux is not None
    assert crux.validated
    assert report.single_call is not None
    assert report.single_call.named == {"thread-1": None}
    golden(compared(report))


async def test_related_question_of_the_single_call_counts_neither_as_named_nor_missed(golden: Golden) -> None:
    report, _ = await run({"commit": two_falsifiers, "named": lambda request: {"q1": 2, "same1": False}})
    single = report.single_call
    assert single is not None
    assert (single.named, single.touched) == ({"thread-1": None}, {"thread-1": 2})
    golden(compared(report))


async def test_prompts_explain_the_moves_to_debaters_only() -> None:
    _, requests = await run()
    kinds = {request.key.partition("/")[0] for request in requests}
    readers = {request.key.partition("/")[0] for request in requests if "- PROPOSE_CRUX: " in request.text}
    assert readers == {"turn", "commit", "steelman", "grade", "flip"}
    assert {"opening", "crystallize", "final", "test", "closing", "named", "single"} <= kinds - readers
    assert len({request.system for request in requests}) == 1
    assert not re.search("debate|participant|moderator", next(r.text for r in requests if r.key == "single").lower())


async def test_prompt_text_shared_by_all_calls_precedes_text_shared_by_debaters() -> None:
    _, requests = await run()
    turns = [request for request in requests if request.key.startswith(("turn/", "commit/"))]
    openings = [request for request in requests if request.key.startswith("opening/")]
    common = common_prefix([request.user for request in (*turns, *openings)])
    rules = common_prefix([request.user for request in turns])
    assert common.strip().endswith(TASK)
    assert "- PROPOSE_CRUX: " in rules.removeprefix(common)
    assert all(len(common) in request.shared for request in turns)


async def test_debate_that_added_nothing_to_the_single_call_reports_it(golden: Golden) -> None:
    def no(request: ModelRequest) -> Answer:
        return {"p1": "NO"}

    golden((await run({"opening": no, "final": no, "closing": no}))[0].added)


async def test_single_call_without_the_documents_of_the_debaters_is_no_measure_of_the_debate(golden: Golden) -> None:
    """It cannot decide what only the private documents settle. The report says what it read, and draws nothing from it."""

    def no(request: ModelRequest) -> Answer:
        return {"p1": "NO"}

    model = ScriptedModel(
        Debaters({"opening": no, "final": no, "closing": no, "single": lambda request: {"p1": "YES"}})
    )
    sources = [Source("Queues lost orders.", agents=("D1",)), Source("Queues cost 3 euros.")]
    for label, shown in (("one of them private", sources), ("open to all", sources[1:])):
        report = await consilience.deliberate(TASK, Debate(debaters=3, as_is=True), model=model, sources=shown)
        assert isinstance(report, DebateReport)
        golden(lines_with("One call on the same task", report.markdown()), label)


async def test_answer_against_the_single_call_is_not_reported_as_better(golden: Golden) -> None:
    golden((await run({"closing": lambda request: {"p1": "YES"}}))[0].added)


async def test_refused_single_call_does_not_change_the_debate_and_is_reported(golden: Golden) -> None:
    whole, _ = await run()
    report, requests = await run(limits=REFUSED)
    assert not [request for request in requests if request.key in ("single", "named")]
    assert report.stop_reason is whole.stop_reason is StopReason.SETTLED
    assert [ballot.positions for ballot in report.ballots] == [ballot.positions for ballot in whole.ballots]
    assert (report.single_call, report.added) == (None, "")
    golden(lines_with("single call has no reply", report.markdown()))


async def test_failed_comparison_with_the_single_call_claims_neither_hit_nor_miss(golden: Golden) -> None:
    report, _ = await run({"named": lambda request: {"q1": 9}})
    assert report.single_call is not None
    assert report.single_call.named == {}
    golden(compared(report))


async def test_single_call_disabled_is_neither_made_nor_estimated() -> None:
    report, requests = await run(single_call=False)
    assert not [request for request in requests if request.key in ("single", "named")]
    assert "Compared with one call" not in report.markdown()
    asked, spared = (Debate(single_call=on).estimate() for on in (True, False))
    assert asked.max - spared.max == 2


async def test_limit_on_calls_keeps_the_opening_ballots_before_the_single_call() -> None:
    for calls in range(4, 20):
        report, requests = await run(limits=Limits(calls=calls))
        opened = [request for request in requests if request.key.startswith("opening/")]
        assert len(opened) == 3
        assert report.answer is not None
        assert len(requests) <= calls
