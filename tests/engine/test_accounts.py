"""What an owner may spend a day and run at the same time, under many sessions, retries, thinking and kills."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from consilience import Emergence, Options, SqliteStore, StopReason, Vote
from consilience.domain.errors import OverAllowance, RateLimited, ServerError, SessionWaiting, SettingsError
from consilience.domain.events import CallCompleted, Ended
from consilience.engine.faults import Crash, Fault
from consilience.journal.accounts import Allowance
from consilience.journal.sqlite_accounts import SqliteAccounts
from consilience.models.port import ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel
from kit import runner
from kit.runs import TASK

DAY = 24 * 3600
PRICE = 0.001
"""US dollars a token."""


def bounded(cost: float | None = None, running: int | None = None, **fields: object) -> Options:
    return Options(accounts=SqliteAccounts(lambda owner: Allowance(cost, running), **fields))  # type: ignore[arg-type]


def spent(store: SqliteStore, owner: str = "ada") -> float:
    """What the recorded calls of an owner cost."""
    mine = store.of(owner)
    return sum(e.cost or 0 for s in mine.sessions() for e in mine.read(s) if isinstance(e, Ended) and not e.inherited)


class Priced(ScriptedModel):
    """Uses every token that it may, with some failures at the provider and some malformed replies."""

    def __init__(self, seed: int = 0, *, troubled: bool = True, **fields: object) -> None:
        self._draw = random.Random(seed)
        self._troubled = troubled
        super().__init__(self._say, price=PRICE, **fields)  # type: ignore[arg-type]

    def _say(self, request: ModelRequest) -> Scripted:
        if self._troubled and self._draw.random() < 0.2:
            raise self._draw.choice([ServerError("down"), RateLimited("slow", retry_after=0.001)])
        read, written = len(request.text) // 8, request.max_tokens + request.thinking_tokens
        return Scripted("yes", tokens_in=read, tokens_out=written, cost=PRICE * (read + written))


async def test_bound_of_a_day_holds_under_a_hundred_sessions_at_once(tmp_path: Path) -> None:
    store, bound = SqliteStore(tmp_path / "j.db"), 200.0
    mine, options = store.of("ada"), bounded(bound)

    async def one(n: int) -> StopReason:
        model = Priced(n, latency=lambda request: random.Random(f"{n}{request.key}").random() / 50)
        report = await runner.start(
            f"{TASK} {n}", Vote(votes=3), models=model, store=mine, session=f"s{n}", options=options
        )
        return report.stop_reason

    stops = await asyncio.gather(*(one(n) for n in range(100)))
    assert StopReason.EXHAUSTED_BUDGET in stops
    assert 0.5 * bound < spent(store) <= bound  # what is reserved at once may be refused to others, and not be spent
    other = await runner.start(
        TASK, Vote(votes=1), models=Priced(troubled=False), store=store.of("bob"), options=options
    )
    assert other.stop_reason is StopReason.SETTLED, "bob's day is his own"
    store.close()


async def test_refusal_says_whose_money_it_is_and_replays(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    report = await runner.start(
        TASK, Vote(votes=3), models=Priced(troubled=False), store=store.of("ada"), session="s", options=bounded(0.5)
    )
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert {call.detail for call in report.failed_calls} == {"refused, since ada may spend no more today"}
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    store.close()


@pytest.mark.parametrize(
    "bound", [{"cost": -0.01}, {"cost": float("nan")}, {"cost": float("inf")}, {"running": -1}, {"running": 10**20}]
)
def test_bound_that_cannot_be_counted_is_refused(bound: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"must be at (least|most) .*Where: Allowance\(…\)"):
        Allowance(**bound)


async def test_new_day_of_utc_has_its_own_money(tmp_path: Path) -> None:
    store, now = SqliteStore(tmp_path / "j.db"), [DAY - 1.0]
    options = bounded(7.0, now=lambda: now[0])

    async def ask(session: str) -> StopReason:
        model = Priced(troubled=False)
        report = await runner.start(
            TASK, Vote(votes=1), models=model, store=store.of("ada"), session=session, options=options
        )
        return report.stop_reason

    assert [await ask("a"), await ask("b")] == [StopReason.SETTLED, StopReason.EXHAUSTED_BUDGET]
    now[0] += 2
    assert await ask("c") is StopReason.SETTLED
    store.close()


@pytest.mark.parametrize("point", ["before_call", "after_reply", "after_commit"])
async def test_bound_holds_where_a_run_is_killed_and_resumed(point: str, tmp_path: Path) -> None:
    """A call in flight at a kill may be charged, so it counts at its greatest cost."""
    path, bound, charged = tmp_path / "j.db", 30.0, []

    class Charging(Priced):
        def _say(self, request: ModelRequest) -> Scripted:
            reply = super()._say(request)
            charged.append(reply.cost or 0)
            return reply

    for nth in (2, 1, 3):
        store = SqliteStore(path)
        options = bounded(bound)
        options = Options(accounts=options.accounts, faults=Fault(point, nth=nth).hit)
        try:
            if "s" in store.sessions():
                await runner.resume("s", store=store.of("ada"), models=Charging(troubled=False), options=options)
            else:
                await runner.start(
                    TASK,
                    Emergence(children=3, max_rounds=2),
                    models=Charging(troubled=False),
                    store=store.of("ada"),
                    session="s",
                    options=options,
                )
        except Crash:
            continue
        store.close()
    store = SqliteStore(path)
    report = await runner.resume("s", store=store.of("ada"), models=Charging(troubled=False), options=bounded(bound))
    assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
    assert sum(charged) <= bound
    store.close()


async def test_running_sessions_of_an_owner_are_bounded(tmp_path: Path) -> None:
    store, options = SqliteStore(tmp_path / "j.db"), bounded(running=2)
    held = {n: asyncio.Event() for n in range(2)}

    async def reply(n: int) -> None:
        await held[n].wait()

    class Held(ScriptedModel):
        def __init__(self, n: int) -> None:
            super().__init__(lambda request: "yes")
            self.n, self.asked = n, asyncio.Event()

        async def complete(self, request: ModelRequest) -> object:  # type: ignore[override]
            self.asked.set()
            await held[self.n].wait()
            return await super().complete(request)

    models = [Held(n) for n in range(2)]
    runs = [
        asyncio.create_task(
            runner.start(
                TASK, Vote(votes=1), models=model, store=store.of("ada"), session=f"s{model.n}", options=options
            )
        )
        for model in models
    ]
    for model in models:
        await asyncio.wait_for(model.asked.wait(), 20)
    plain = ScriptedModel(lambda request: "yes")
    with pytest.raises(OverAllowance, match="as many sessions as allowed: 2"):
        await runner.start(TASK, Vote(votes=1), models=plain, store=store.of("ada"), session="s2", options=options)
    assert (
        await runner.start(TASK, Vote(votes=1), models=plain, store=store.of("bob"), options=options)
    ).answer == "yes"
    held[0].set()
    await runs[0]
    assert (await runner.resume("s2", store=store.of("ada"), models=plain, options=options)).answer == "yes"
    held[1].set()
    await runs[1]
    store.close()


async def test_parked_and_killed_sessions_do_not_count_as_running(tmp_path: Path) -> None:
    path, options = tmp_path / "j.db", bounded(running=1)
    store = SqliteStore(path)
    with pytest.raises(SessionWaiting):
        await runner.start(
            TASK, Vote(votes=1), models="human", store=store.of("ada"), session="parked", options=options
        )
    crashing = Options(accounts=options.accounts, faults=Fault("before_call").hit)
    plain = ScriptedModel(lambda request: "yes")
    with pytest.raises(Crash):
        await runner.start(TASK, Vote(votes=1), models=plain, store=store.of("ada"), session="killed", options=crashing)
    store = SqliteStore(path)
    assert (
        await runner.start(TASK, Vote(votes=1), models=plain, store=store.of("ada"), options=options)
    ).answer == "yes"
    store.close()


async def test_model_of_unknown_price_is_refused_to_an_owner_with_bounded_money(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    unpriced = ScriptedModel(lambda request: "yes", price=None)
    with pytest.raises(SettingsError, match="price is not known"):
        await runner.start(TASK, Vote(votes=1), models=unpriced, store=store.of("ada"), options=bounded(1.0))
    assert (
        await runner.start(TASK, Vote(votes=1), models=unpriced, store=store.of("ada"), options=bounded(running=1))
    ).answer
    store.close()


async def test_owners_share_no_cached_reply(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    asked = []
    for owner in ("ada", "bob", "ada"):
        model = ScriptedModel(lambda request: "yes")
        await runner.start(TASK, Vote(votes=2), models=model, store=store.of(owner), options=Options(cache=True))
        asked.append(len(model.requests))
    assert asked == [2, 2, 0]
    assert all(isinstance(e, CallCompleted) for s in store.sessions() for e in store.read(s) if isinstance(e, Ended))
    store.close()
