"""Virtual time: the order of coroutines, the limits that end it, its pace, and the real time that a debate takes."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from consilience.domain.errors import ProtocolViolation
from consilience.domain.events import (
    CallCompleted,
    CallEvent,
    CallFailed,
    Event,
    MessagePublished,
    canonical_digest,
    place_key,
)
from consilience.domain.outcome import FailureKind, Limits, StopReason
from consilience.domain.report import Report
from consilience.engine.faults import Crash, Fault
from consilience.engine.prompt import Prompt
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import debating, well_formed
from kit.jumping import now
from kit.jumping import run as run_jumping
from kit.runs import TASK
from kit.throwaways import Body, Made, ToyDebate


async def play(body: Body, model: ScriptedModel | None = None, **arguments: object) -> Report:
    Made.body = staticmethod(body)  # type: ignore[assignment]
    store = arguments.pop("store", None) or SqliteStore(":memory:")
    model = model or ScriptedModel(lambda request: f"reply to {request.key}")
    return await runner.start(TASK, Made(), models=model, store=store, **arguments)  # type: ignore[arg-type]


# --- order


async def test_clock_wakes_coroutines_by_time_then_agent_then_scheduling_order() -> None:
    seen: list[tuple[int, str]] = []

    async def body(session: Session) -> None:
        clock = session.clock

        async def routine(name: str, *sleeps: int) -> None:
            for n, ms in enumerate(sleeps):
                await clock.sleep(ms)
                seen.append((clock.now, f"{name}{n}"))

        clock.spawn("A2", routine("b", 10, 10))
        clock.spawn("A1", routine("a", 20, 0))
        clock.spawn("A1", routine("c", 10, 5, 5))
        await clock.run()
        assert clock.now == 20
        clock.spawn("A1", routine("later", 1))
        await clock.run()

    await play(body)
    assert seen == [
        (10, "c0"), (10, "b0"), (15, "c1"), (20, "a0"), (20, "c2"), (20, "a1"), (20, "b1"), (21, "later0"),
    ]  # fmt: skip


async def test_phase_open_across_a_sleep_labels_only_calls_of_its_own_coroutine() -> None:
    phases: dict[str, object] = {}

    async def body(session: Session) -> None:
        async def member(agent: str, n: int) -> None:
            async with session.phase("speak", n):
                await session.clock.sleep(10 * n)
                await session.ask(agent, Prompt("x"), key=agent)
                await session.clock.sleep(10)

        for n, agent in enumerate(("A1", "A2", "A3"), 1):
            session.clock.spawn(agent, member(agent, n))
        await session.clock.run()

    def note(event: Event) -> None:
        if isinstance(event, CallCompleted):
            phases[event.key] = event.phase

    await play(body, options=Options(observer=note))
    assert phases == {"A1": ("speak", 1), "A2": ("speak", 2), "A3": ("speak", 3)}


async def test_coroutines_of_a_clock_spend_from_the_branch_that_runs_it() -> None:
    """Places follow virtual time, and a procedure that runs the clock pays for it."""
    places: dict[str, str] = {}

    async def body(session: Session) -> None:
        async def member(agent: str, ms: int) -> None:
            await session.clock.sleep(ms)
            await session.ask(agent, Prompt("x"), key=agent)

        async def stage() -> float:
            before = session.budget.left.calls
            for ms, agent in ((30, "A1"), (20, "A2"), (10, "A3")):
                session.clock.spawn(agent, member(agent, ms))
            await session.clock.run()
            return before - session.budget.left.calls

        (spent,) = await session.gather([session.subtask(stage(), calls=3)])
        assert spent == 3

    def note(event: Event) -> None:
        if isinstance(event, CallCompleted):
            places[event.key] = event.place

    await play(body, limits=Limits(calls=50), options=Options(observer=note))
    assert places == {"A3": "0.0.0", "A2": "0.0.1", "A1": "0.0.2"}


async def test_clock_with_an_invalid_coroutine_or_seat_is_refused() -> None:
    async def nothing() -> None:
        return None

    async def unknown_seat(session: Session) -> None:
        session.clock.spawn("moderator", nothing())

    async def outside(session: Session) -> None:
        await session.clock.sleep(1)

    async def from_a_branch(session: Session) -> None:
        async def member() -> None:
            await session.gather([session.subtask(session.clock.sleep(1), calls=0)])

        session.clock.spawn("A1", member())
        await session.clock.run()

    async def fraction(session: Session) -> None:
        session.clock.spawn("A1", session.clock.sleep(0.5))  # type: ignore[arg-type]
        await session.clock.run()

    async def twice(session: Session) -> None:
        session.clock.spawn("A1", session.clock.run())
        await session.clock.run()

    for body, words in (
        (unknown_seat, "'moderator' is not a seat"),
        (outside, "only a coroutine given to clock.spawn can sleep"),
        (from_a_branch, "only a coroutine of the clock may sleep"),
        (fraction, "whole milliseconds"),
        (twice, "already running"),
    ):
        with pytest.raises(ProtocolViolation, match=words):
            await play(body)


async def test_coroutines_that_never_run_are_a_violation() -> None:
    async def member() -> None:
        raise AssertionError

    async def body(session: Session) -> None:
        await session.clock.run()
        session.clock.spawn("A1", member())
        session.clock.spawn("A2", member())

    with pytest.raises(ProtocolViolation, match=r"2 of the coroutines .* never ran. Await session.clock.run\(\)"):
        await play(body)

    async def broken(session: Session) -> None:
        session.clock.spawn("A1", member())
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        await play(broken)


async def test_exception_in_a_clock_coroutine_ends_the_others_and_is_raised() -> None:
    ended: list[str] = []

    async def body(session: Session) -> None:
        async def member(agent: str) -> None:
            try:
                await session.clock.sleep(100)
            finally:
                ended.append(agent)

        async def broken() -> None:
            await session.clock.sleep(50)
            raise RuntimeError("boom")

        session.clock.spawn("A1", member("A1"))
        session.clock.spawn("A2", broken())
        await session.clock.run()

    with pytest.raises(RuntimeError, match="boom"):
        await play(body)
    assert ended == ["A1"]


@pytest.mark.parametrize("calls", [None, 5])
@pytest.mark.parametrize("kill", [1, 2, 3])
async def test_killed_run_closes_all_clock_coroutines(kill: int, calls: int | None) -> None:
    open_coroutines: set[str] = set()

    async def body(session: Session) -> None:
        async def member(agent: str) -> None:
            open_coroutines.add(agent)
            try:
                async with session.phase("speak", 1):
                    pending = session.start(session.ask(agent, Prompt("x"), key=agent))
                    await session.clock.sleep(100)
                    await pending
            finally:
                open_coroutines.remove(agent)

        for agent in session.agents:
            session.clock.spawn(agent.id, member(agent.id))
        await session.clock.run()

    fault = Fault("before_call", nth=kill)
    with pytest.raises(Crash):
        await play(body, limits=Limits(calls=calls), options=Options(faults=fault.hit))
    assert not open_coroutines


async def test_clock_stop_wakes_no_coroutine_and_warns_of_unread_replies_in_flight() -> None:
    woken: list[str] = []

    async def body(session: Session) -> None:
        async def speaker() -> None:
            async with session.phase("speak", 1):
                pending = session.start(session.ask("A1", Prompt("x"), key="said"))
            await session.clock.sleep(100)
            woken.append("A1")
            await pending

        async def stopper() -> None:
            await session.clock.sleep(50)
            session.clock.stop()
            woken.append("A2")
            await session.clock.sleep(0)
            woken.append("A2 again")

        session.clock.spawn("A1", speaker())
        session.clock.spawn("A2", stopper())
        await session.clock.run()

    report = await play(body)
    assert woken == ["A2"]
    assert report.ledger.actual.calls == 1
    assert "a result of speak 1 was not used" in report.warnings


# --- the toy debate


class Timed(ScriptedModel):
    """Takes a random time for each call, the same for every run with this seed."""

    def __init__(self, seed: int, mean: float = 0.05) -> None:
        super().__init__(lambda request: json.dumps({"text": f"{request.agent} read {len(request.text)}"}))
        self._seed, self._mean = seed, mean

    def seconds(self, key: str) -> float:
        return random.Random(f"{self._seed} {key}").lognormvariate(0, 0.7) * self._mean if self._seed else self._mean

    async def complete(self, request: ModelRequest):  # type: ignore[no-untyped-def]
        await asyncio.sleep(self.seconds(request.key))
        return await super().complete(request)


def longest_chain(events: list[Event], model: Timed) -> float:
    """Seconds of the longest chain: a call depends on every message published before its agent woke."""
    ends: dict[str, float] = {}
    published = 0.0
    for event in sorted((e for e in events if e.place), key=lambda e: place_key(e.place)):
        if isinstance(event, CallCompleted):
            ends[event.key] = published + model.seconds(event.key)
        elif isinstance(event, MessagePublished):
            published = max(published, ends[event.id.removesuffix("/said")])
    return max(ends.values())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_debate_duration_equals_its_longest_chain_of_calls(seed: int, tmp_path: Path) -> None:
    """12 agents, 200 messages, a clock that jumps to the next reply but waits for commits."""
    model, debate = Timed(seed), ToyDebate(turns=200)

    async def main() -> tuple[float, float, float]:
        store = SqliteStore(tmp_path / "journal.db")
        report = await runner.start(TASK, debate, models=model, store=store)
        events = list(store.read(report.session))
        store.close()
        return now(), longest_chain(events, model), sum(model.seconds(r.key) for r in model.requests)

    wall, chain, one_after_another = run_jumping(main())
    assert len(model.requests) == 201
    assert wall == pytest.approx(chain, rel=1e-6)
    assert wall < one_after_another / 2


async def debate(**arguments: object) -> tuple[Report, list[Event]]:
    store = SqliteStore(":memory:")
    model = ScriptedModel(well_formed(debating))
    report = await runner.start(TASK, ToyDebate(), models=model, store=store, **arguments)  # type: ignore[arg-type]
    return report, list(store.read(report.session))


async def test_first_refused_call_stops_the_clock_and_publishes_replies_in_flight() -> None:
    _, free = await debate()
    for calls in (2, 9, 17, 30):
        report, events = await debate(limits=Limits(calls=calls))
        completed = {e.key for e in events if isinstance(e, CallCompleted)}
        failed = [e for e in events if isinstance(e, CallFailed)]
        assert len(failed) == 1, "each refused call after the first was started beyond a known limit"
        assert "close" in completed
        assert report.stop_reason is StopReason.EXHAUSTED_BUDGET
        text = {e.id for e in events if isinstance(e, MessagePublished)}
        assert text == {f"{key}/said" for key in completed - {"close"} if not key.startswith("turn/A3/")}
        assert text < {e.id for e in free if isinstance(e, MessagePublished)}


def test_time_limit_stops_the_clock_and_the_session_replays() -> None:
    """The second turn of every agent hangs until deliberation is out of time."""
    slow = asyncio.Event()

    class Hanging(ScriptedModel):
        async def complete(self, request: ModelRequest):  # type: ignore[no-untyped-def]
            if request.key.endswith("/2"):
                await slow.wait()
            return await super().complete(request)

    async def main() -> tuple[Report, str]:
        models, limits = Hanging(debating), Limits(seconds=1000)
        report = await runner.start(TASK, ToyDebate(), models=models, store=store, limits=limits)
        return report, (await runner.replay(report.session, store=store)).digest()

    store = SqliteStore(":memory:")
    report, replayed = run_jumping(main())
    events = list(store.read(report.session))
    failed = [e for e in events if isinstance(e, CallFailed)]
    assert failed
    assert all(e.failure is FailureKind.TIME for e in failed)
    assert len(failed) <= 12, "an agent composes one message at a time, and none after the refusal"
    assert any(isinstance(e, CallCompleted) and e.key == "close" for e in events)
    assert report.stop_reason is StopReason.EXHAUSTED_TIME
    assert replayed == report.digest()


async def test_blocked_reply_is_in_no_prompt() -> None:
    model = ScriptedModel(debating)
    store = SqliteStore(":memory:")
    await runner.start(TASK, ToyDebate(), models=model, store=store)
    blocked = [e for e in store.read(store.sessions()[0]) if isinstance(e, CallEvent) and e.key.startswith("turn/A3")]
    assert blocked
    assert not [request.key for request in model.requests if ", blocked" in request.text]


# --- pace


def test_paced_clock_follows_real_time_and_a_late_reply_delays_all_later_wakes() -> None:
    wakes: list[tuple[int, float]] = []

    async def body(session: Session) -> None:
        async def member() -> None:
            for n in range(4):
                await session.clock.sleep(1000)
                wakes.append((session.clock.now, now()))
                if n == 1:
                    await session.ask("A1", Prompt("x"), key="slow")

        session.clock.spawn("A1", member())
        await session.clock.run()

    async def main() -> None:
        model = ScriptedModel(lambda request: "late", latency=5.0)
        report = await play(body, model, store=store, options=Options(pace=2.0))
        assert [at for _, at in wakes] == pytest.approx([2.0, 4.0, 9.0, 11.0])
        wakes.clear()
        began = now()
        await runner.replay(report.session, store=store, options=Options(pace=2.0))
        assert [at for _, at in wakes] == [began] * 4

    store = SqliteStore(":memory:")
    run_jumping(main())
    store.close()


def test_paced_clock_on_resume_does_not_wait_for_recorded_calls(tmp_path: Path) -> None:
    """Killed after its tenth call was recorded: the resumed debate goes through that part at once, and then at its pace."""
    published: list[float] = []

    def note(event: Event) -> None:
        if isinstance(event, MessagePublished):
            published.append(now())

    async def main() -> None:
        store = SqliteStore(tmp_path / "journal.db")
        fault = Fault("after_commit", nth=10)
        with pytest.raises(Crash):
            await runner.start(
                TASK, ToyDebate(), models=ScriptedModel(debating), store=store, session="s",
                options=Options(faults=fault.hit),
            )  # fmt: skip
        store = SqliteStore(tmp_path / "journal.db")
        recorded = len([e for e in store.read("s") if isinstance(e, MessagePublished)])
        began = now()
        options = Options(pace=1.0, observer=note)
        await runner.resume("s", store=store, models=ScriptedModel(debating), options=options)
        assert recorded
        assert published[0] - began < 8, "the recorded part lasts 10 virtual seconds and more"
        assert published[-1] - published[0] > 15, "the rest is paced"
        reference = SqliteStore(":memory:")
        await runner.start(TASK, ToyDebate(), models=ScriptedModel(debating), store=reference, session="s")
        assert canonical_digest(store.read("s")) == canonical_digest(reference.read("s"))

    run_jumping(main())


def test_paced_clock_ends_at_the_time_limit() -> None:
    async def body(session: Session) -> None:
        async def member() -> None:
            await session.clock.sleep(3_600_000)
            assert isinstance(await session.ask("A1", Prompt("x"), key="late"), Reply | Failure)

        session.clock.spawn("A1", member())
        await session.clock.run()

    async def main() -> float:
        await play(body, store=store, limits=Limits(seconds=100), options=Options(pace=1.0))
        return now()

    store = SqliteStore(":memory:")
    assert run_jumping(main()) <= 100
    store.close()
