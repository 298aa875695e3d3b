"""The ledger: started calls have means for their retries, settled money is used again, and arrival decides nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consilience import Broadcast, Decompose, Emergence, Limits, Refinement, Vote
from consilience.domain.events import canonical_digest
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.report import Report
from consilience.engine import recorder
from consilience.engine.faults import Crash, Fault
from consilience.engine.ledger import BranchBudget
from consilience.engine.prompt import Opening, Prompt
from consilience.engine.protocol import Protocol, register
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.sizes import CallSizes, Usage
from consilience.engine.work import Failure, Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from engine.test_token_limits import replies
from kit import runner
from kit.throwaways import Throwaway, close

TASK = "Is it so?"


@register
class ClockedTalk(Throwaway):
    """Seats that start their calls one after another in virtual time. The talk may go on for longer than it does: it ends after
    `turns` calls, and `bound` is the estimate."""

    name: ClassVar[str] = "clocked-talk"
    turns: int = 12
    bound: int = 12

    def estimate(self) -> Estimate:
        return Estimate(min=1, max=self.bound + 1)

    async def run(self, session: Session) -> Report:
        replies: list[Reply[str] | Failure] = []
        started = 0

        async def take_part(agent: str) -> None:
            nonlocal started
            while started < self.turns:
                started += 1
                n = started
                pending = session.start(session.ask(agent, Prompt(f"turn {n}"), key=f"turn/{n}"))
                await session.clock.sleep(session.rng("think", agent, n).randrange(1000, 20_000))
                replies.append(await pending)
                await session.clock.sleep(500)

        for agent in session.topology.agents:
            session.clock.spawn(agent, take_part(agent))
        await session.clock.run()
        answer = await session.ask("A1", Prompt("close"), key="close", closing=True)
        return await close(session, replies[: self.size], replies, answer)


async def run_talk(
    protocol: Protocol, malformed: frozenset[int], calls: int | None, **options: int
) -> tuple[Report, list[tuple[str, int]]]:
    def reply(request: ModelRequest) -> str:
        turn = request.key.rpartition("/")[2]
        return "" if request.attempt == 1 and turn.isdecimal() and int(turn) in malformed else f"said {request.key}"

    model = ScriptedModel(reply)
    report = await runner.start(
        TASK,
        protocol,
        models=model,
        store=SqliteStore(":memory:"),
        limits=Limits(calls=calls),
        options=Options(**options),  # type: ignore[arg-type]
    )
    return report, sorted((request.key, request.attempt) for request in model.requests)


@given(
    turns=st.integers(1, 14),
    unused=st.integers(0, 30),
    seats=st.integers(1, 5),
    malformed=st.frozensets(st.integers(1, 14)),
)
@example(turns=64, unused=72, seats=6, malformed=frozenset({5, 14, 23, 32, 41, 50, 59}))
@settings(max_examples=60)
async def test_clocked_run_limited_to_twice_its_requests_gives_the_same_report(
    turns: int, unused: int, seats: int, malformed: frozenset[int]
) -> None:
    protocol = ClockedTalk(turns=turns, bound=turns + unused, size=seats)
    free, asked = await run_talk(protocol, malformed, None)
    bound, limited = await run_talk(protocol, malformed, 2 * len(asked))
    assert limited == asked
    assert bound.stop_reason is free.stop_reason is StopReason.SETTLED
    assert bound.digest() == free.digest()


async def test_clocked_run_of_71_requests_limited_to_100_repairs_every_malformed_reply() -> None:
    protocol = ClockedTalk(turns=63, bound=96, size=6)
    malformed = frozenset(range(9, 64, 9))
    _, free = await run_talk(protocol, malformed, None)
    assert len(free) == 71
    report, asked = await run_talk(protocol, malformed, 100)
    assert asked == free
    assert report.ledger.actual.repairs == 7
    assert report.stop_reason is StopReason.SETTLED


@pytest.mark.parametrize("turns", [1, 2, 7, 20])
@pytest.mark.parametrize("seats", [1, 4, 7])
async def test_clocked_run_limited_to_its_max_calls_gives_the_same_report(turns: int, seats: int) -> None:
    """What a call in flight holds for a retry is waited for by a first attempt that finds nothing else."""
    protocol = ClockedTalk(turns=turns, bound=turns, size=seats)
    free, asked = await run_talk(protocol, frozenset(), None)
    bound, limited = await run_talk(protocol, frozenset(), turns + 1)
    assert limited == asked
    assert bound.digest() == free.digest()


async def test_started_call_has_budget_for_every_allowed_repair() -> None:
    class Stubborn(ScriptedModel):
        async def complete(self, request: ModelRequest) -> Completion:
            done = await super().complete(request)
            return Completion("" if request.attempt < 4 and request.key == "turn/1" else "yes", done.model, cost=0.0)

    protocol = ClockedTalk(turns=2, bound=40, size=2)
    model = Stubborn(lambda request: "yes")
    report = await runner.start(
        TASK,
        protocol,
        models=model,
        store=SqliteStore(":memory:"),
        limits=Limits(calls=10),
        options=Options(repairs=3),
    )
    assert [request.attempt for request in model.requests if request.key == "turn/1"] == [1, 2, 3, 4]
    assert report.stop_reason is StopReason.SETTLED


def test_retry_with_a_doubled_thinking_allowance_is_funded_at_the_doubled_size() -> None:
    protocol = Emergence()
    opening = Opening("", TASK)
    sizes = CallSizes(opening, protocol, protocol.agents(None), thinking_tokens={"L2N1": 4096})
    demand = sizes.ask("L2N1", 100, 500)
    assert demand.need == Usage(1, 100 + 500 + 4096, 0)
    assert demand.retry == Usage(1, 100 + 500 + 2 * 4096, 0)
    (branch,) = BranchBudget(Usage(10, 1_000_000, 0)).split([demand], pending=sizes.subtask(9).need)
    assert branch.left == demand.need + demand.retry


# --- settled money is used again


PHASED = [
    Emergence(children=3, max_rounds=3),
    Emergence(children=3, depth=3, max_rounds=2),
    Broadcast(children=3, depth=3, max_iterations=2),
    Broadcast(children=3, max_iterations=3),
    Decompose(children=3, depth=3),
    Refinement(max_passes=2, reply_tokens=1024),
    Vote(votes=9),
]


async def run_on_tokens(
    protocol: Protocol, tokens: int | None, order: int | None = None, share: float = 0.2
) -> tuple[Report, str, int]:
    store = SqliteStore(":memory:")
    dice = random.Random(order)
    model = ScriptedModel(replies(share), latency=(lambda _: dice.random() / 500) if order is not None else 0.0)
    report = await runner.start(TASK, protocol, models=model, store=store, limits=Limits(tokens=tokens), session="s")
    spent = report.ledger.actual.tokens_in + report.ledger.actual.tokens_out
    digest = canonical_digest(store.read("s"))
    store.close()
    return report, digest, spent


@pytest.mark.parametrize("share", [0.2, 0.6])
@pytest.mark.parametrize("protocol", PHASED, ids=lambda protocol: f"{protocol.name}-{len(protocol.topology().agents)}")
async def test_run_limited_to_three_times_its_tokens_makes_every_call(protocol: Protocol, share: float) -> None:
    free, _, used = await run_on_tokens(protocol, None, share=share)
    bound, _, spent = await run_on_tokens(protocol, 3 * used, share=share)
    assert bound.stop_reason is free.stop_reason
    assert bound.ledger.actual.calls == free.ledger.actual.calls
    assert spent <= 3 * used


@pytest.mark.parametrize("protocol", PHASED, ids=lambda protocol: f"{protocol.name}-{len(protocol.topology().agents)}")
async def test_run_short_of_tokens_gives_the_same_journal_in_any_order_of_replies(protocol: Protocol) -> None:
    _, _, used = await run_on_tokens(protocol, None)
    for tokens in (int(used * 0.5), int(used * 0.9), int(used * 1.3)):
        journals = {(await run_on_tokens(protocol, tokens, order))[1] for order in (None, 1, 2, 3)}
        assert len(journals) == 1, tokens


@pytest.mark.parametrize("nth", [1, 3, 6])
@pytest.mark.parametrize("protocol", PHASED[1:6:2], ids=lambda protocol: protocol.name)
async def test_run_short_of_tokens_killed_and_resumed_gives_the_same_report(
    protocol: Protocol, nth: int, tmp_path: Any
) -> None:
    _, _, used = await run_on_tokens(protocol, None)
    limits = Limits(tokens=int(used * 1.1))
    report, digest, _ = await run_on_tokens(protocol, limits.tokens)
    store, model = SqliteStore(tmp_path / "journal.db"), ScriptedModel(replies(0.2))
    options = Options(faults=Fault("after_commit", nth=nth).hit)
    with pytest.raises(Crash):
        await runner.start(TASK, protocol, models=model, store=store, limits=limits, session="s", options=options)
    store = SqliteStore(tmp_path / "journal.db")
    resumed = await runner.resume("s", store=store, models=model)
    assert resumed.digest() == report.digest()
    assert canonical_digest(store.read("s")) == digest
    store.close()


# --- no reserve without a closing call


async def test_vote_reserves_no_time_for_a_closing_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def late(request: ModelRequest) -> str:
        clock[0] = 9.0
        return "" if request.attempt == 1 else "yes"

    store, model = SqliteStore(":memory:"), ScriptedModel(late)
    report = await runner.start(TASK, Vote(votes=2), models=model, store=store, limits=Limits(seconds=10))
    assert report.stop_reason is StopReason.SETTLED
    assert [request.attempt for request in model.requests] == [1, 1, 2, 2]


async def test_vote_reserves_no_calls_for_a_closing_call() -> None:
    model = ScriptedModel(lambda request: "yes")
    report = await runner.start(
        TASK, Vote(votes=5), models=model, store=SqliteStore(":memory:"), limits=Limits(calls=3)
    )
    assert [request.agent for request in model.requests] == ["V1", "V2", "V3"]
    assert not report.ledger.reserve_drawn


# --- defects


@register
class Defective(Throwaway):
    """A started branch ends in a defect while the main branch waits for funds that it holds."""

    name: ClassVar[str] = "defective"

    def estimate(self) -> Estimate:
        return Estimate(min=3, max=3)

    async def run(self, session: Session) -> Report:
        async def defect() -> None:
            await session.ask("A1", Prompt("x"), key="first")
            raise ZeroDivisionError("in a started branch")

        session.start(session.subtask(defect(), calls=2))
        answer = await session.ask("A1", Prompt("y"), key="second")
        return await close(session, [answer], (), answer)


async def test_exception_in_a_started_branch_is_raised_while_other_branches_wait_for_its_budget() -> None:
    model = ScriptedModel(lambda request: "yes")
    with pytest.raises(ZeroDivisionError):
        await runner.start(TASK, Defective(), models=model, store=SqliteStore(":memory:"), limits=Limits(calls=3))
