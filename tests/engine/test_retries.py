"""Retries, fallbacks and uncounted tokens under limits: what is sent is what is counted."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, ClassVar

import pytest

from consilience.domain.errors import Refused, Rejected, ServerError, Unreachable
from consilience.domain.events import CallCompleted, canonical_digest
from consilience.domain.outcome import Estimate, FailureKind, Limits, SpendingLimits, StopReason
from consilience.domain.report import Report
from consilience.engine.faults import Crash, Fault
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import register
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.work import Pending
from consilience.journal.sqlite import SqliteStore
from consilience.models.fallback import Fallback
from consilience.models.limiter import Limited, Pace, on_retry
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import Answer, Scripted, ScriptedModel
from consilience.protocols.baselines import Solo, Vote
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from kit import runner
from kit.cases import HOUSE, broadcasting, emergent, refining, well_formed
from kit.throwaways import Throwaway, close

TASK = "Is it so?"
QUICK = Pace(backoff_seconds=1e-4, max_backoff_seconds=1e-3)
agreeable = well_formed(emergent)


def limited(model: ScriptedModel, retries: int = 4) -> Limited:
    return Limited(model, deadline=5.0, retries=retries, pace=QUICK)


def failing(request: ModelRequest) -> Answer:
    return ServerError("busy")


def reply_without_counts(request: ModelRequest) -> Scripted:
    return Scripted(agreeable(request), tokens_in=0, tokens_out=0, cost=None)


@pytest.mark.parametrize("calls", [5, 10, 15, 20, 28])
@pytest.mark.parametrize("whose", ["session", "agent"])
async def test_retry_budget_of_an_attempt_is_not_refunded_by_the_next_attempt(calls: int, whose: str) -> None:
    """Every request of the root fails once with a server, then comes back empty, then is answered."""
    sent = Counter[str]()

    def reply(request: ModelRequest) -> Answer:
        sent[request.key] += 1
        if request.agent != "L1N1":
            return agreeable(request)
        if sent[request.key] == 1:
            return ServerError("500")
        return "" if request.attempt == 1 else agreeable(request)

    model = ScriptedModel(reply)
    limits = Limits(calls=calls) if whose == "session" else Limits(agents={"L1N1": SpendingLimits(calls=calls)})
    protocol = Emergence(children=1, max_rounds=1, strange_loops=10)
    report = await runner.start(TASK, protocol, models=limited(model), store=SqliteStore(":memory:"), limits=limits)
    counting = [request for request in model.requests if whose == "session" or request.agent == "L1N1"]
    assert len(counting) <= calls
    assert report.ledger.actual.requests == len(model.requests)


@pytest.mark.parametrize("calls", [None, 1000])
async def test_large_budget_funds_every_retry_and_the_fallback(calls: int | None) -> None:
    down, well = ScriptedModel(failing, name="down"), ScriptedModel(agreeable, name="well")
    models = Fallback([limited(down), limited(well)])
    protocol = Emergence(children=3, max_rounds=1)
    report = await runner.start(
        TASK, protocol, models=models, store=SqliteStore(":memory:"), limits=Limits(calls=calls)
    )
    assert report.stop_reason is StopReason.EXHAUSTED_STEPS
    assert report.ledger.actual.fallbacks == report.ledger.actual.calls == 7
    (warning,) = (warning for warning in report.incidents if warning.startswith("answered by a fallback model, "))
    assert sum(int(times or 1) for times in re.findall(r"L\dN\d(?: ×(\d))?", warning)) == 7
    assert len(down.requests) == 5 * 7


async def test_failure_whose_retry_a_limit_refused_is_reported_as_a_failure_of_the_server() -> None:
    down, well = ScriptedModel(failing, name="down"), ScriptedModel(lambda request: "yes", name="well")
    models = Fallback([limited(down), limited(well)])
    report = await runner.start(
        TASK, Vote(votes=3), models=models, store=SqliteStore(":memory:"), limits=Limits(calls=3)
    )
    assert (report.stop_reason, report.limit_reached, report.answer) == (StopReason.FAILED, None, None)
    assert {call.kind for call in report.failed_calls} == {FailureKind.SERVER}
    assert [missing.agent for missing in report.missing] == ["V1", "V2", "V3"]
    (warning,) = [w for w in report.warnings if "allowed no further attempt" in w]
    assert warning.startswith("3 calls failed")
    assert "busy" in warning


async def test_failure_without_a_limit_is_not_reported_as_a_limit() -> None:
    """Turned down for good, so that no further attempt was asked for."""

    def reply(request: ModelRequest) -> Answer:
        return Rejected("no such model") if request.agent == "V2" else "yes"

    report = await runner.start(
        TASK, Vote(votes=3), models=limited(ScriptedModel(reply)), store=SqliteStore(":memory:"), limits=Limits(calls=3)
    )
    assert [missing.agent for missing in report.missing] == ["V2"]
    assert report.stop_reason is not StopReason.EXHAUSTED_BUDGET


async def test_uncounted_tokens_are_estimated_and_limited() -> None:
    store = SqliteStore(":memory:")
    model = ScriptedModel(reply_without_counts, price=0.001)
    limits = Limits(tokens=5_000, cost=4.0)
    protocol = Emergence(children=4, max_rounds=20, threshold=1.0, reply_tokens=64)
    report = await runner.start(TASK, protocol, models=model, store=store, limits=limits, session="s")
    spent = report.ledger.actual
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert 0 < spent.tokens_in + spent.tokens_out <= 5_000
    assert spent.cost is not None
    assert 0 < spent.cost <= 4.0
    assert spent.estimated == len(model.requests)
    assert any("without a count of tokens" in warning for warning in report.warnings)
    assert all(event.estimated for event in store.read("s") if isinstance(event, CallCompleted))
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_run_of_uncounted_tokens_killed_and_resumed_keeps_its_limit(tmp_path) -> None:  # type: ignore[no-untyped-def]
    limits = Limits(tokens=5_000)
    protocol = Emergence(children=2, max_rounds=20, threshold=1.0, reply_tokens=64)
    whole, store = SqliteStore(":memory:"), SqliteStore(tmp_path / "journal.db")
    model = ScriptedModel(reply_without_counts)
    await runner.start(TASK, protocol, models=model, store=whole, limits=limits, session="s")
    options = Options(faults=Fault("after_commit", nth=9).hit)
    with pytest.raises(Crash):
        await runner.start(TASK, protocol, models=model, store=store, limits=limits, session="s", options=options)
    store = SqliteStore(tmp_path / "journal.db")
    await runner.resume("s", store=store, models=model)
    assert canonical_digest(store.read("s")) == canonical_digest(whole.read("s"))


async def test_counted_tokens_are_not_estimated() -> None:
    report = await runner.start(
        TASK, Emergence(children=2, max_rounds=1), models=ScriptedModel(agreeable), store=SqliteStore(":memory:")
    )
    assert report.ledger.actual.estimated == 0
    assert not any("count of tokens" in warning for warning in report.warnings)


SHAPES = [
    Emergence(children=2, depth=3, max_rounds=3, answer_pattern="yes|no"),
    Broadcast(children=2, depth=3, max_iterations=2, answer_pattern="yes|no"),
    Refinement(hierarchy=HOUSE, max_passes=2),
]


@pytest.mark.parametrize(
    ("protocol", "script"),
    list(zip(SHAPES, map(well_formed, (emergent, broadcasting, refining)), strict=True)),
    ids=lambda case: getattr(case, "name", ""),
)
async def test_run_with_any_budget_of_at_least_the_estimated_max_is_not_cut(protocol, script, sample) -> None:  # type: ignore[no-untyped-def]
    """Means for retries that a branch was lent are not handed on to those who keep them longer."""
    free = await runner.start(TASK, protocol, models=ScriptedModel(script), store=SqliteStore(":memory:"))
    need = protocol.estimate().max
    for calls in sample(range(need, need + 60), 8):
        bound = await runner.start(
            TASK, protocol, models=ScriptedModel(script), store=SqliteStore(":memory:"), limits=Limits(calls=calls)
        )
        assert (bound.stop_reason, bound.answer) == (free.stop_reason, free.answer), f"{calls} calls of {need}"


def refusing(request: ModelRequest) -> Answer:
    refusal = Refused("not that")
    refusal.completion = Completion("No.", "a", tokens_in=100, tokens_out=50, cost=0.25)
    return refusal


async def test_paid_refusal_is_counted_if_the_fallback_answers() -> None:
    well = ScriptedModel(lambda request: Scripted("yes", tokens_in=10, tokens_out=1, cost=0.5))
    models = Fallback([ScriptedModel(refusing), well])
    report = await runner.start(TASK, Vote(votes=2), models=models, store=SqliteStore(":memory:"))
    spent = report.ledger.actual
    assert (spent.tokens_in, spent.tokens_out, spent.cost, spent.fallbacks) == (220, 102, 1.5, 2)
    alone = Fallback([ScriptedModel(refusing), ScriptedModel(refusing)])
    failed = await runner.start(TASK, Vote(votes=1), models=alone, store=SqliteStore(":memory:"))
    assert (failed.ledger.actual.tokens_in, failed.ledger.actual.cost) == (200, 0.5)


@pytest.mark.parametrize("dear_first", [True, False])
async def test_money_limit_applies_to_a_chain_with_one_unknown_price(dear_first: bool) -> None:
    dear = ScriptedModel(lambda request: Scripted("yes", cost=10.0), name="dear", price=0.01)
    unknown = ScriptedModel(refusing, name="unknown", price=None)
    chain = Fallback([dear, unknown] if dear_first else [unknown, dear])
    report = await runner.start(
        TASK,
        Solo(),
        models=chain,
        store=SqliteStore(":memory:"),
        limits=Limits(cost=0.5),
        options=Options(allow_unpriced=True),
    )
    assert report.stop_reason == StopReason.EXHAUSTED_BUDGET
    assert dear.requests == unknown.requests == []


@pytest.mark.parametrize(("expected", "estimated"), [((0, 9), 1), ((9, 0), 1), ((9, 9), 0)])
async def test_partial_token_count_is_completed_by_an_estimate(expected: tuple[int, int], estimated: int) -> None:
    model = ScriptedModel(lambda request: Scripted("yes, it is so", tokens_in=expected[0], tokens_out=expected[1]))
    report = await runner.start(TASK, Solo(), models=model, store=SqliteStore(":memory:"))
    spent = report.ledger.actual
    assert spent.estimated == estimated
    assert spent.tokens_in >= 9 if expected[0] else spent.tokens_in > 20
    assert spent.tokens_out == (expected[1] or spent.tokens_out) > 0


async def test_refusal_without_a_token_count_is_estimated() -> None:
    def reply(request: ModelRequest) -> Answer:
        refusal = Refused("not that")
        refusal.completion = Completion("I will not.", "a", cost=None)
        return refusal

    report = await runner.start(TASK, Solo(), models=ScriptedModel(reply), store=SqliteStore(":memory:"))
    assert report.ledger.actual.tokens_in > 0
    assert report.ledger.actual.estimated == 1


@pytest.mark.parametrize(("votes", "alive"), [(25, 7), (50, 7), (100, 7)])
async def test_quorum_equal_to_the_share_of_replies_is_met(votes: int, alive: int) -> None:
    def reply(request: ModelRequest) -> Answer:
        return "yes" if int(request.agent[1:]) <= alive else Rejected("gone")

    async def play(quorum: float) -> StopReason:
        report = await runner.start(
            TASK, Vote(votes=votes), models=ScriptedModel(reply), store=SqliteStore(":memory:"), quorum=quorum
        )
        assert report.quorum_met is (report.stop_reason is StopReason.SETTLED)
        return report.stop_reason

    assert await play(alive / votes) is StopReason.SETTLED
    assert await play((alive + 1) / votes) is StopReason.FAILED


@register
class Loans(Throwaway):
    """Members start something that they do not wait for, then the first asks on and only then hears of it."""

    name: ClassVar[str] = "loans"

    def estimate(self) -> Estimate:
        return Estimate(min=2 * self.size + 1, max=2 * self.size + 1)

    async def run(self, session: Session) -> Report:
        ids = [agent.id for agent in session.agents]

        async def member(id: str) -> Pending[Any]:
            return session.start(session.ask(id, Prompt("go"), key=f"started/{id}"))

        started = await session.gather([session.subtask(member(id), calls=1) for id in ids])
        later = [await session.ask(id, Prompt("go on"), key=f"later/{id}") for id in ids]
        first = [await pending for pending in started]
        answer = await session.ask(ids[0], Prompt("close"), key="close", closing=True)
        return await close(session, first, later, answer)


@pytest.mark.parametrize("calls", range(7, 40))
async def test_borrowed_budget_is_not_passed_to_a_branch_that_outlives_the_loan(calls: int) -> None:
    model = ScriptedModel(lambda request: "yes")
    report = await runner.start(TASK, Loans(), models=model, store=SqliteStore(":memory:"), limits=Limits(calls=calls))
    assert (report.stop_reason, len(model.requests)) == (StopReason.SETTLED, 7)


async def test_each_repeated_request_is_shown() -> None:
    shown: list[str] = []
    token = on_retry.set(shown.append)
    try:
        await runner.start(TASK, Vote(votes=1), models=limited(ScriptedModel(failing)), store=SqliteStore(":memory:"))
    finally:
        on_retry.reset(token)
    assert [line.partition("; ")[2] for line in shown] == [
        f"asking again ({n} of at most 4 times)" for n in range(1, 5)
    ]


class TestUnreachable:
    """A first phase in which nobody could be reached ends the run: nothing more is sent."""

    @pytest.mark.parametrize(
        "protocol", [Emergence(children=2), Broadcast(), Refinement(), Vote()], ids=lambda p: p.name
    )
    async def test_run_sends_nothing_after_a_phase_in_which_nobody_was_reached(self, protocol: Any) -> None:
        model = ScriptedModel(lambda _: Unreachable("refused"))
        report = await runner.start(TASK, protocol, models=limited(model), store=SqliteStore(":memory:"))
        asked = {request.key for request in model.requests}
        phases = [call.phase for call in report.failed_calls if call.key in asked]
        assert len(set(phases)) == (1 if phases.count(phases[0]) > 1 else 2)  # one failed call is not enough
        assert len(model.requests) == 5 * len(asked)
        assert {call.kind for call in report.failed_calls} == {FailureKind.UNREACHABLE}
        assert report.ledger.actual.requests == len(model.requests)
        assert report.stop_reason is StopReason.FAILED
