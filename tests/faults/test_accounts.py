"""What sessions of one process share: concurrency and pauses of an account; fallback models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import consilience
from consilience import Emergence, EmergenceReport, SqliteStore, StopReason
from consilience.domain.errors import ProviderError, RateLimited, Refused, ServerError
from consilience.domain.events import CallCompleted, CallFailed
from consilience.domain.outcome import Limits
from consilience.models.fallback import Fallback
from consilience.models.limiter import Limited, Pace, limiter_for
from consilience.models.port import Completion, Model, ModelRequest
from faults.house import faulty_server
from models import misbehaving

TREE = Emergence(children=4, max_rounds=1)
CALLS = TREE.estimate().max
QUICK = Pace(initial_window=4, max_window=4, backoff_seconds=0.001, max_backoff_seconds=0.002, max_spacing_seconds=0.0)


@dataclass
class Watched:
    """A model whose answers take some turns of the loop; `fails` says of its n-th request, from 1, how it fails.

    `log` is shared by those of one account: the time of every dispatch, who asked, and how many were then in flight.
    """

    name: str
    log: list[tuple[float, str, int]]
    fails: Callable[[int], ProviderError | None] = lambda n: None
    account: str = "acme"
    answered: int = 0
    failed: list[float] = field(default_factory=list)
    flying: list[int] = field(default_factory=lambda: [0])

    async def complete(self, request: ModelRequest) -> Completion:
        self.flying[0] += 1
        self.log.append((time.monotonic(), self.name, self.flying[0]))
        failure = self.fails(len(self.log))
        try:
            for _ in range(20):
                await asyncio.sleep(0)
        finally:
            self.flying[0] -= 1
        if failure is not None:
            self.failed.append(time.monotonic())
            raise failure
        self.answered += 1
        return Completion('{"text": "Yes."}' if request.schema else "Yes?", self.name)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None


async def both(*models: Model) -> list[EmergenceReport]:
    """Deliberations side by side, each with a model of its own."""
    store = SqliteStore(":memory:")
    runs = [consilience.deliberate("Is it so?", TREE, model=model, store=store) for model in models]
    reports = await asyncio.gather(*runs)
    store.close()
    return [report for report in reports if isinstance(report, EmergenceReport)]


def two(fails: Callable[[int], ProviderError | None]) -> tuple[Watched, Watched]:
    log: list[tuple[float, str, int]] = []
    first = Watched("acme:one", log, fails)
    return first, Watched("acme:two", log, fails, flying=first.flying)


async def test_two_deliberations_share_the_concurrency_of_their_account() -> None:
    first, other = two(lambda n: None)
    reports = await both(*(Limited(model, deadline=60, retries=0, pace=QUICK) for model in (first, other)))
    assert [report.ledger.actual.requests for report in reports] == [CALLS, CALLS]
    assert max(flying for _, _, flying in first.log) == 4
    names = [name for _, name, _ in first.log]
    assert names != sorted(names), "they did not run side by side"
    assert limiter_for("acme").in_flight == 0


@pytest.mark.parametrize("answer", [RateLimited, ServerError])
async def test_pause_of_an_account_stops_both_deliberations_and_ends_gradually(
    answer: type[ProviderError],
) -> None:
    """The fifth request is told to wait: nothing leaves until then, then one goes ahead, and the others follow by ones."""
    wait = 0.15
    first, other = two(lambda n: answer("wait", retry_after=wait) if n == 5 else None)
    reports = await both(*(Limited(model, deadline=60, retries=2, pace=QUICK) for model in (first, other)))
    (only,) = first.failed + other.failed
    after = [(at, name, flying) for at, name, flying in first.log if at > only]
    assert min(at for at, _, _ in after) >= only + wait
    growth = [flying for _, _, flying in after]
    assert growth[0] == 1, "the first goes alone"
    assert all(n <= nth for nth, n in enumerate(growth, 1)), f"a stampede: {growth[:8]}"
    assert len(set(growth)) > 1, "and it grows again"
    assert {name for _, name, _ in after} == {"acme:one", "acme:two"}
    spent = [report.ledger.actual for report in reports]
    assert sum(s.requests for s in spent) == len(first.log) == 2 * CALLS + 1
    assert sorted(s.retries for s in spent) == [0, 1]
    assert all(report.answer == "Yes." and not report.missing for report in reports)


async def test_retry_after_is_respected_by_both_deliberations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over HTTP: the server sees no request for as long as it said."""
    wait = 0.2
    seen: list[float] = []
    paused_at: list[float] = []

    def bad(seat: str, n: int) -> Any:
        seen.append(time.monotonic())
        if len(seen) == 6:
            paused_at.append(time.monotonic())
            return misbehaving.error(429, Retry_After=str(wait))
        return None

    async with faulty_server(bad) as at:
        for name, value in at.environment.items():
            monkeypatch.setenv(name, str(value))
        limiter_for(at.account, Pace(initial_window=2, max_window=2, max_spacing_seconds=0.0))
        reports = await both("openai-chat:one", "openai-chat:two")  # type: ignore[arg-type]
    later = [moment for moment in seen if moment > paused_at[0]]
    assert sum(moment < paused_at[0] + wait for moment in later) <= 1, "at most what was on its way already"
    assert len(seen) == sum(report.ledger.actual.requests for report in reports) == 2 * CALLS + 1
    assert sum(report.ledger.actual.retries for report in reports) == 1
    assert all(report.answer for report in reports)


def failing(name: str, error: ProviderError, account: str) -> Watched:
    return Watched(name, [], lambda n: error, account)


@pytest.mark.parametrize(
    ("error", "retries", "sent"),
    [
        (ServerError("500"), 1, 2),
        (RateLimited("429", retry_after=0), 2, 3),
        (Refused("no"), 3, 1),
    ],
    ids=["a failing server", "429", "a refusal"],
)
async def test_fallback_answers_and_counts_every_request_once(error: ProviderError, retries: int, sent: int) -> None:
    first, second = failing("acme:one", error, "acme"), Watched("other:two", [], account="other")
    limited = [Limited(model, deadline=60, retries=retries, pace=QUICK) for model in (first, second)]
    store = SqliteStore(":memory:")
    report = await consilience.deliberate("Is it so?", TREE, model=Fallback(limited), store=store)
    assert (report.answer, report.missing, report.degraded) == ("Yes.", (), None)
    assert {agent.model for agent in report.agents} == {"acme:one"}, "asked under the first one's name"
    assert (len(first.log), second.answered) == (sent * CALLS, CALLS)
    spent = report.ledger.actual
    assert (spent.calls, spent.requests, spent.repairs) == (CALLS, (sent + 1) * CALLS, 0)
    assert (spent.retries, spent.fallbacks) == ((sent - 1) * CALLS, CALLS), "each sending counted once, and apart"
    ended = [event for event in store.read(report.session) if isinstance(event, CallCompleted)]
    assert {(event.volatile["model"], event.requests) for event in ended} == {("other:two", sent + 1)}
    assert f"{CALLS} answered by a fallback model" in report.html()
    assert (await consilience.replay(report.session, store=store)).digest() == report.digest()
    store.close()


async def test_failed_fallback_reports_both_reasons() -> None:
    chain = Fallback(
        [
            Limited(failing("acme:one", ServerError("one is down"), "acme"), deadline=60, retries=1, pace=QUICK),
            Limited(failing("other:two", Refused("two will not"), "other"), deadline=60, retries=1, pace=QUICK),
        ]
    )
    store = SqliteStore(":memory:")
    report = await consilience.deliberate("Is it so?", TREE, model=chain, store=store)
    assert report.stop_reason is StopReason.FAILED
    assert report.degraded == "0 of 4 agents; no reply: leaf_respond 1 L2N1, L2N2, L2N3, L2N4 (refused)"
    assert {m.reason for m in report.missing} == {"refused: two will not; before that, one is down"}
    failed = [event for event in store.read(report.session) if isinstance(event, CallFailed)]
    assert [event.requests for event in failed] == [3] * 4
    assert (report.ledger.actual.requests, report.ledger.actual.retries) == (12, 8)
    store.close()


async def test_fallback_from_a_paused_account_spends_one_call_each() -> None:
    """Where the first may not be asked for an hour, all that a budget allows is sent to the second."""
    first = Watched("acme:one", [], lambda n: RateLimited("later", retry_after=3600))
    second = Watched("other:two", [], account="other")
    chain = Fallback([Limited(model, deadline=60, retries=2, pace=QUICK) for model in (first, second)])
    with pytest.raises(RateLimited):
        await chain.links[0].complete(ModelRequest(agent="a", key="k", system="", user="?"))
    store = SqliteStore(":memory:")
    report = await consilience.deliberate("Is it so?", TREE, model=chain, store=store, limits=Limits(calls=CALLS))
    assert (report.stop_reason, report.answer, report.missing) == (StopReason.EXHAUSTED_STEPS, "Yes.", ())
    assert (len(first.log), second.answered) == (1, CALLS)
    assert (report.ledger.actual.requests, report.ledger.actual.retries) == (CALLS, 0)
    store.close()
