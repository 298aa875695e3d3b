"""Provider faults over HTTP: a local server, the real client library, the whole run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

import consilience
from consilience import Emergence, EmergenceReport, SqliteStore, StopReason
from consilience.cli.execution import exit_code
from consilience.domain.events import CallCompleted, CallFailed, ReplyRejected
from consilience.domain.outcome import FailureKind, Limits
from consilience.models.limiter import Pace, limiter_for
from consilience.models.registry import resolve
from consilience.reporting.markdown import markdown
from faults.house import BAD, Bad, FaultyServer, faulty_server
from models.misbehaving import KEY, Answer, completion, error

TREE = Emergence(children=3, max_rounds=1)
SEATS = [agent.id for agent in TREE.agents(None)]
QUICK = Pace(initial_window=8, max_window=8, backoff_seconds=0.001, max_backoff_seconds=0.002, max_spacing_seconds=0.0)


def of(bad: Bad, *seats: str) -> Callable[[str, int], Answer | None]:
    return lambda seat, n: bad.answer(n) if seat in seats else None


async def deliberate(
    at: FaultyServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    hanging: Collection[str] = (),
    retries: int = 2,
    pace: Pace = QUICK,
    **options: Any,
) -> tuple[EmergenceReport, SqliteStore]:
    """On the faulty server, with a limiter that does not wait long and little patience with the seats that hang.

    The report is replayed and resumed, without a request, before it is given back.
    """
    for name, value in at.environment.items():
        monkeypatch.setenv(name, str(value))
    limiter = limiter_for(at.account, pace)
    models = {
        seat: resolve(f"openai-chat:{seat}", deadline=1 if seat in hanging else 60, retries=retries) for seat in SEATS
    }
    store = SqliteStore(":memory:")
    report = await consilience.deliberate("Is it so?", TREE, model=models, store=store, **options)
    assert isinstance(report, EmergenceReport)
    sent = sum(at.asked.values())
    assert (await consilience.replay(report.session, store=store)).digest() == report.digest()
    assert await consilience.resume(report.session, store=store, model="none is needed") == report
    assert sum(at.asked.values()) == sent
    for model in models.values():
        await model.close()
    assert limiter_for(at.account) is limiter
    assert (limiter.in_flight, limiter.waiting) == (0, 0)
    return report, store


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
async def test_failed_seat_is_reported_with_its_reason(bad: Bad, monkeypatch: pytest.MonkeyPatch) -> None:
    async with faulty_server(of(bad, "L2N2")) as at:
        report, store = await deliberate(at, monkeypatch, hanging=["L2N2"] if bad.name == "hang" else ())
    assert (report.stop_reason, exit_code(report)) == (StopReason.EXHAUSTED_STEPS, 0)
    assert report.answer == "L1N1 thinks: yes."
    spent = report.ledger.actual
    assert spent.requests == sum(at.asked.values())
    ended = [e for e in store.read(report.session) if isinstance(e, CallCompleted | CallFailed | ReplyRejected)]
    assert sum(e.requests for e in ended) == spent.requests
    if bad.kind is None:
        assert (report.missing, report.degraded) == ((), None)
        assert report.cut_replies
    else:
        assert report.degraded == f"2 of 3 agents; no reply: leaf_respond 1 L2N2 ({bad.kind.value})"
        (missing,) = report.missing
        assert missing.agent == "L2N2"
        assert missing.reason.startswith(f"{bad.kind.value}: ")
        assert at.asked["L2N2"] == bad.requests
        again = bad.requests - 1
        unreadable = bad.kind is FailureKind.MALFORMED
        assert (spent.retries, spent.repairs) == ((0, again) if unreadable else (again, 0))
        assert missing.since == "round-1/leaf_respond/L2N2"
    everything = report.model_dump_json() + markdown(report) + "".join(e.model_dump_json() for e in ended)
    assert KEY not in everything
    store.close()


@pytest.mark.matrix(keep=5)
@pytest.mark.parametrize("bad", [b for b in BAD if b.kind], ids=lambda bad: bad.name)
async def test_failure_of_the_root_or_of_all_seats_keeps_recorded_replies(
    bad: Bad, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bad.kind is not None
    async with faulty_server(of(bad, "L1N1")) as at:
        report, store = await deliberate(at, monkeypatch, hanging=["L1N1"] if bad.name == "hang" else ())
        store.close()
    assert (report.stop_reason, report.answer, exit_code(report)) == (StopReason.FAILED, None, 1)
    assert report.rounds[0].agents["L2N3"].lateral_response == "L2N3 thinks: yes."
    assert [m.agent for m in report.missing] == ["L1N1"]
    async with faulty_server(of(bad, *SEATS)) as at:
        report, store = await deliberate(at, monkeypatch, hanging=SEATS if bad.name == "hang" else ())
        store.close()
    assert (report.stop_reason, report.quorum_met, exit_code(report)) == (StopReason.FAILED, False, 1)
    assert report.degraded == f"0 of 3 agents; no reply: leaf_respond 1 L2N1, L2N2, L2N3 ({bad.kind.value})"


async def test_server_that_recovers_costs_only_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault once, then sense: every call is answered, and each further sending is counted once and as a retry."""
    passing = {"L2N1": error(429, Retry_After="0"), "L2N2": error(500), "L2N3": Answer(body=b"{", cut=1)}
    async with faulty_server(lambda seat, n: passing.get(seat) if n == 1 else None) as at:
        report, store = await deliberate(at, monkeypatch)
    assert (report.missing, report.degraded) == ((), None)
    spent = report.ledger.actual
    assert (spent.calls, spent.requests, spent.retries, spent.repairs) == (7, 10, 3, 0)
    requests = {e.key: e.requests for e in store.read(report.session) if isinstance(e, CallCompleted)}
    assert requests.pop("round-1/leaf_respond/L2N1") == requests.pop("round-1/leaf_respond/L2N2") == 2
    assert requests.pop("round-1/leaf_respond/L2N3") == 2
    assert set(requests.values()) == {1}
    assert "7 of 7 estimated; 3 retries" in report.html()
    store.close()


async def test_retries_are_bounded_by_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on calls bounds what the server sees, and the chair is still heard."""
    async with faulty_server(lambda seat, n: error(500) if seat == "L2N1" else None) as at:
        report, store = await deliberate(at, monkeypatch, retries=50, limits=Limits(calls=8))
        store.close()
    assert sum(at.asked.values()) == report.ledger.actual.requests <= 8
    assert report.answer == "L1N1 thinks: yes."


async def test_pause_longer_than_the_deadline_fails_the_account_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits an hour; the others are turned away without a request, and told so."""
    async with faulty_server(lambda seat, n: error(429, Retry_After="3600") if seat == "L2N1" else None) as at:
        report, store = await deliberate(
            at, monkeypatch, pace=Pace(initial_window=1, max_window=1, max_spacing_seconds=0.0)
        )
        store.close()
    assert at.asked == {"L2N1": 1}
    assert report.degraded == "0 of 3 agents; no reply: leaf_respond 1 L2N1, L2N2, L2N3 (rate_limited)"
    assert (report.ledger.actual.calls, report.ledger.actual.requests) == (3, 1)
    assert "asks to wait 3600 s" in report.missing[-1].reason


async def test_control_characters_in_an_error_do_not_reach_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with faulty_server(lambda seat, n: error(400, "\x1b[2J\x9b31m # gone | x") if seat == "L2N1" else None) as at:
        report, store = await deliberate(at, monkeypatch)
        store.close()
    text = markdown(report)
    assert not set(text) & {"\x1b", "\x9b"}
    assert r"\# gone \| x" in text


async def test_refusal_detail_contains_the_text_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with faulty_server(lambda seat, n: completion(None, refusal="Not that.") if seat == "L2N1" else None) as at:
        report, store = await deliberate(at, monkeypatch)
        store.close()
    assert report.missing[0].reason.endswith("the model refused to answer. Not that.")
