"""A limit on wall time binds the whole run: real servers and programs that never end, and real seconds.

Runs that must end at the same limit run side by side, so that a limit of a second is waited for once. Where a busy machine has
not begun by the limit what the limit is to end, the test is made again with a longer one.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic_ai import Agent
from pydantic_ai.direct import model_request  # noqa: F401  its import takes a second, which is no part of a run
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from consilience.domain.errors import ServerError
from consilience.domain.events import CallCompleted, CallFailed, TextsEmbedded
from consilience.domain.outcome import FailureKind, LimitOwner, Limits, SpendingLimits, StopReason
from consilience.domain.report import Report
from consilience.engine import execution, recorder
from consilience.engine.activity import Phase
from consilience.engine.faults import Crash
from consilience.engine.ledger import deliberation_seconds
from consilience.engine.ports import Person
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.engine.seats import Models
from consilience.journal.sqlite import SqliteStore
from consilience.models.embeddings import ProviderEncoder
from consilience.models.fallback import Fallback
from consilience.models.limiter import Limited, Limiter, Pace
from consilience.models.port import Completion, ModelRequest
from consilience.models.registry import resolve
from consilience.models.scripted import ScriptedModel
from consilience.models.tool_agent import ToolAgent
from consilience.protocols.emergence import Emergence
from kit import runner
from kit.cases import CASES, Case, emergent, well_formed
from kit.runs import seated
from kit.throwaways import NestedGathers
from models.misbehaving import Answer, error, misbehaving

TASK = "Is it so?"
LIMIT = 1.0
MAX_OVERRUN_SECONDS = 30.0  # what hangs here does so for a minute and longer
TREE = Emergence(children=3, max_rounds=2, reply_tokens=64)
STUB = "openai-chat:stub"

agreeable = well_formed(emergent)


class Played:
    """A run in a journal of its own, and how long it took. It was replayed and gave the same report."""

    def __init__(self, report: Report, store: SqliteStore, seconds: float) -> None:
        self.report, self.store, self.seconds = report, store, seconds
        self.failures = [event for event in store.read("s") if isinstance(event, CallFailed)]
        self.ended = [event for event in self.failures if event.failure is FailureKind.TIME and not event.unsent]
        self.charged = [event.key for event in self.ended if event.possibly_charged]

    def warned(self, words: str) -> str:
        return next((warning for warning in self.report.warnings if words in warning), "")


async def play(models: Models, protocol: Protocol = TREE, limits: Limits | None = None, **more: object) -> Played:
    store = SqliteStore(":memory:")
    limits = limits or Limits(seconds=LIMIT)
    began = time.monotonic()
    report = await runner.start(TASK, protocol, models=models, store=store, session="s", limits=limits, **more)  # type: ignore[arg-type]
    seconds = time.monotonic() - began
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    return Played(report, store, seconds)


class TooBusy(Exception):
    """What the limit is to end had not begun when it came."""


async def with_growing_limits(test: Callable[[float], Awaitable[None]]) -> None:
    """Make the test with a limit that lets its runs begin. What it asserts must hold with every limit."""
    for limit in (LIMIT, 3 * LIMIT):
        with suppress(TooBusy):
            return await test(limit)
    return await test(9 * LIMIT)


async def side_by_side(runs: Mapping[str, Awaitable[Played]], limit: float = LIMIT) -> dict[str, Played]:
    """All of them end in time, with a report that says why."""
    played = dict(zip(runs, await asyncio.gather(*runs.values()), strict=True))
    late = {name: run.seconds for name, run in played.items() if not limit <= run.seconds < limit + MAX_OVERRUN_SECONDS}
    assert not late
    reasons = {name: run.report.stop_reason for name, run in played.items()}
    assert set(reasons.values()) == {StopReason.EXHAUSTED_TIME}, reasons
    return played


# --- providers


SILENT = {"hangs": Answer(hang=True), "drips": Answer(body=b" " * 100_000, drip=0.02)}
BUSY = {"429, long pause": error(429, Retry_After="100"), "503, long pause": error(503, Retry_After="100")}
REPEATED = {"429": error(429), "429, no pause": error(429, Retry_After="0")}
"""After these a request is sent again before the limit, and may be in flight at it."""


async def test_run_with_a_misbehaving_provider_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    unseen: dict[str, int] = {}

    async def on(name: str, answer: Answer, limit: float) -> Played:
        async with misbehaving(answer) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            model = resolve(STUB)
            played = await play(model, limits=Limits(seconds=limit))
            await model.close()
            unseen[name] = played.report.ledger.actual.requests - len(server.seen)
            assert 0 <= unseen[name] <= len(played.charged), "each request counts, answered or not"
            return played

    async def against(answers: Mapping[str, Answer], limit: float) -> dict[str, Played]:
        played = await side_by_side({name: on(name, answer, limit) for name, answer in answers.items()}, limit)
        for name, run in played.items():
            assert run.report.ledger.actual.timed_out == len(run.charged)
            assert run.report.answer is None
            assert run.warned("no closing reply within the time limit"), name
            listed = run.warned("ended by the time limit, possibly") + run.warned("ended by the time limit, no request")
            assert all(event.key in listed for event in run.ended), name
            assert bool(run.warned("possibly charged: ")) is bool(run.charged), name
        return played

    async def test(limit: float) -> None:
        played = await against(SILENT | BUSY, limit)
        if any(unseen[name] for name in played) or any(played[name].charged for name in BUSY):
            raise TooBusy("a request had not reached the server, or its answer the client")
        if not all(played[name].charged for name in SILENT):
            raise TooBusy("nothing was asked before the time limit")

    await asyncio.gather(against(REPEATED, LIMIT), with_growing_limits(test))


async def test_run_with_a_hanging_fallback_or_queue_ends_at_the_time_limit() -> None:
    async def test(limit: float) -> None:
        never = ScriptedModel(agreeable, latency=60.0, name="never")
        busy = ScriptedModel(lambda request: ServerError("down"), name="busy")
        chain = Fallback(
            [
                Limited(busy, Limiter("busy"), deadline=60, retries=0),
                Limited(never, Limiter("never"), deadline=60, retries=0),
            ]
        )
        limited = Limited(
            ScriptedModel(agreeable, latency=60.0, name="one"),
            Limiter("one", Pace(initial_window=1, max_window=1)),
            deadline=60,
            retries=0,
        )
        limits = Limits(seconds=limit)
        played = await side_by_side(
            {"fallback": play(chain, limits=limits), "queue": play(limited, limits=limits)}, limit
        )
        waiting = [event for event in played["queue"].ended if not event.requests]
        assert {e.key for e in played["queue"].ended} - set(played["queue"].charged) == {e.key for e in waiting}
        if [event.requests for event in played["fallback"].ended] != [2] * 4:
            raise TooBusy("the second model had not been asked")
        assert played["fallback"].report.ledger.actual.timed_out == 4
        if len(waiting) != 2:
            raise TooBusy("nothing was asked, or a leaf that waited for the slot got it in its last moment")
        assert played["queue"].warned("2 calls ended by the time limit, no request in flight: ")

    await with_growing_limits(test)


async def test_hanging_encoder_ends_with_the_deliberation_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    async with misbehaving(Answer(hang=True)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        encoder = ProviderEncoder("openai:text-embedding-3-small")
        protocol = Emergence(children=2, max_rounds=3, reply_tokens=64, similarity="embedding")
        played = await play(ScriptedModel(agreeable), protocol, encoder=encoder)
        assert server.seen
    assert deliberation_seconds(LIMIT) <= played.seconds < LIMIT + MAX_OVERRUN_SECONDS
    assert played.report.stop_reason is StopReason.EXHAUSTED_TIME
    assert played.report.answer is not None
    assert played.warned("texts could not be compared by embedding: ended by the time limit")
    (embedded, *_) = [event for event in played.store.read("s") if isinstance(event, TextsEmbedded)]
    assert embedded.error


# --- programs and agents with tools


HANGING = "import os, time; open({path!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(60)"
PROGRAMS = {
    "hangs": HANGING,
    "ignores SIGTERM": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + HANGING,
    "leaves a child that holds its pipes": (
        "import subprocess, sys; "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(5)'], start_new_session=True); " + HANGING
    ),
}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_program_seat_is_killed_at_the_time_limit(tmp_path: Path) -> None:
    async def of(path: Path, code: str, limit: float) -> Played:
        model = resolve(f"exec:{shlex.quote(sys.executable)} -c {shlex.quote(code.format(path=str(path)))}")
        played = await play(model, limits=Limits(seconds=limit))
        assert not [pid for pid in started(path) if alive(pid)], path.name
        assert played.charged, path.name
        return played

    def started(path: Path) -> list[int]:
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    async def test(limit: float) -> None:
        paths = {name: tmp_path / f"{name}, {limit:g} s" for name in PROGRAMS}
        await side_by_side({name: of(paths[name], code, limit) for name, code in PROGRAMS.items()}, limit)
        if not all(map(started, paths.values())):
            raise TooBusy("a program had not started")

    await with_growing_limits(test)


async def test_tool_agents_end_at_the_time_limit() -> None:
    protocol = NestedGathers()

    async def wait() -> str:
        await asyncio.get_running_loop().create_future()
        return "nothing"

    async def test(limit: float) -> None:
        release = threading.Event()
        working: set[object] = set()

        def block() -> str:
            release.wait(60)
            return "nothing"

        async def refuse_to_end() -> str:
            working.add(asyncio.current_task())
            while not release.is_set():
                try:
                    await asyncio.sleep(0.02)
                except asyncio.CancelledError:
                    continue
            return "at last"

        try:
            async with misbehaving(Answer(hang=True)) as server:
                provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
                agents = {tool.__name__: Agent(TestModel(), tools=[tool]) for tool in (wait, block, refuse_to_end)}
                agents["model"] = Agent(OpenAIChatModel("stub", provider=provider))
                limits = Limits(seconds=limit)
                runs = {name: play(agent_in_each_seat(agent), protocol, limits) for name, agent in agents.items()}
                played = await side_by_side(runs, limit)
                events = len(played["refuse_to_end"].store.read("s"))
                release.set()
                await asyncio.gather(*(task for task in asyncio.all_tasks() if task in working), return_exceptions=True)
                assert len(played["refuse_to_end"].store.read("s")) == events, "what still runs records nothing"
        finally:
            release.set()
        begun = {name: [event for event in run.ended if event.requests] for name, run in played.items()}
        for name, ended in begun.items():
            assert all(event.possibly_charged is (name == "model") for event in ended), name
            assert {event.requests for event in ended} <= {1}, name
        if not all(begun.values()):
            raise TooBusy("an agent had asked nothing")

    def agent_in_each_seat(agent: Agent[None, str]) -> Models:
        return {seat.id: ToolAgent(agent, name="a") for seat in protocol.agents(None)}

    await with_growing_limits(test)


async def test_tool_agent_ended_before_its_first_request_is_charged_nothing() -> None:
    async def instructions() -> str:
        await asyncio.get_running_loop().create_future()
        return "Be brief."

    protocol = NestedGathers()
    agent = ToolAgent(Agent(TestModel(), instructions=instructions), name="a")
    played = await play(dict.fromkeys((seat.id for seat in protocol.agents(None)), agent), protocol)
    assert played.ended
    assert not played.charged
    spent = played.report.ledger.actual
    assert (spent.requests, spent.timed_out) == (0, 0)


# --- protocols


class Hanging(ScriptedModel):
    """Answers by the script `after` times, then never."""

    def __init__(self, script: Callable[[ModelRequest], object], after: int) -> None:
        super().__init__(script)  # type: ignore[arg-type]
        self._after = after

    async def complete(self, request: ModelRequest) -> Completion:
        completion = await super().complete(request)
        if len(self.requests) > self._after:
            await asyncio.get_running_loop().create_future()
        return completion


async def test_every_protocol_with_a_hanging_model_ends_with_a_report() -> None:
    async def of(case: Case, after: int, limit: float) -> None:
        model = Hanging(case.script, after)
        played = await play(seated(case, model), case.protocol, Limits(seconds=limit), sources=case.sources)
        where = f"{case.name}, hanging after {after}"
        assert played.seconds < limit + MAX_OVERRUN_SECONDS, where
        assert played.report.stop_reason is StopReason.EXHAUSTED_TIME, where
        if len(model.requests) <= after:
            raise TooBusy(where)
        assert played.charged, where
        assert all(key in played.warned("possibly charged") for key in played.charged), where
        assert played.report.ledger.actual.requests == len(model.requests), where

    async def test(limit: float) -> None:
        cases = [case for case in CASES if case.outside is None]
        ends = [(case, after) for case in cases for after in {0, min(3, case.protocol.estimate().min - 1)}]
        await asyncio.gather(*(of(case, after, limit) for case, after in ends))

    await with_growing_limits(test)


async def test_closing_call_gets_the_time_that_deliberation_leaves() -> None:
    model = ScriptedModel(agreeable, latency=lambda request: 0.05 if request.agent == "L1N1" else 60.0)
    played = await play(model, limits=Limits(seconds=2 * LIMIT))
    report = played.report
    assert report.stop_reason is StopReason.EXHAUSTED_TIME
    assert report.answer is not None
    assert report.closing == "reserve"
    assert deliberation_seconds(2 * LIMIT) + 0.05 <= played.seconds < 2 * LIMIT + MAX_OVERRUN_SECONDS
    assert {event.agent for event in played.ended} == {"L2N1", "L2N2", "L2N3"}
    assert report.ledger.actual.timed_out == 3
    assert report.degraded == "0 of 3 agents; no reply: leaf_respond 1 L2N1, L2N2, L2N3 (time)"
    assert not played.warned("no closing reply")


def test_deliberation_seconds_are_four_fifths_or_a_minute_less_than_the_limit() -> None:
    assert [deliberation_seconds(limit) for limit in (0, 10, 120, 300, 3600)] == [0, 8, 96, 240, 3540]


async def test_reply_received_at_the_time_limit_is_kept() -> None:
    """The loop is busy from the third request until after the limit. All three replies are there when it looks again."""

    class Busy(ScriptedModel):
        async def complete(self, request: ModelRequest) -> Completion:
            reply = await super().complete(request)
            if len(self.requests) == 3:
                time.sleep(LIMIT)  # noqa: ASYNC251
                ready.set()
            await ready.wait()
            return reply

    ready = asyncio.Event()
    played = await play(Busy(agreeable))
    replies = {event.agent for event in played.store.read("s") if isinstance(event, CallCompleted)}
    assert replies == {"L2N1", "L2N2", "L2N3"}
    assert not played.ended
    assert played.report.stop_reason is StopReason.EXHAUSTED_TIME


async def test_run_with_zero_seconds_sends_no_request() -> None:
    model = ScriptedModel(agreeable)
    played = await play(model, limits=Limits(seconds=0))
    assert not model.requests
    assert played.report.stop_reason is StopReason.EXHAUSTED_TIME
    assert played.report.answer is None
    assert {event.failure for event in played.failures} == {FailureKind.TIME}
    assert played.warned("no closing reply within the time limit")


async def test_malformed_closing_reply_is_repaired_within_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def reply(request: ModelRequest) -> object:
        clock[0] = 90.0
        return agreeable(request) if request.agent != "L1N1" or request.attempt == 2 else ""

    model = ScriptedModel(reply)  # type: ignore[arg-type]
    played = await play(model, limits=Limits(seconds=100))
    assert [(r.agent, r.attempt) for r in model.requests if r.agent == "L1N1"] == [("L1N1", 1), ("L1N1", 2)]
    assert played.report.answer is not None
    assert played.report.stop_reason is StopReason.EXHAUSTED_TIME


# --- limits of agents and phases, people


async def test_agent_time_limit_ends_its_call_and_others_continue() -> None:
    model = ScriptedModel(agreeable, latency=lambda request: 60.0 if request.agent == "L2N1" else 0.0)
    played = await play(model, limits=Limits(agents={"L2N1": SpendingLimits(seconds=0.2)}))
    assert played.seconds < 0.2 + MAX_OVERRUN_SECONDS
    assert {event.limit for event in played.failures} == {LimitOwner(kind="agent", name="L2N1")}
    assert [event.possibly_charged for event in played.ended] == [True]
    assert sum(request.agent == "L2N1" for request in model.requests) == 1
    assert played.report.answer is not None
    assert played.report.stop_reason is StopReason.EXHAUSTED_TIME
    assert played.warned("1 call ended by the time limit of agent L2N1, possibly charged: ")


async def test_phase_time_limit_ends_its_calls() -> None:
    model = ScriptedModel(agreeable, latency=lambda request: 60.0 if "/lateral/" in request.key else 0.0)
    played = await play(model, limits=Limits(phases={"lateral_leaves": SpendingLimits(seconds=0.2)}))
    assert played.seconds < 0.2 + MAX_OVERRUN_SECONDS
    assert {event.phase[0] for event in played.ended if event.phase} == {"lateral_leaves"}
    assert {event.limit for event in played.ended} == {LimitOwner(kind="phase", name="lateral_leaves")}
    assert played.report.answer is not None


async def test_time_limit_does_not_end_a_question_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def think(request: ModelRequest) -> str:
        """Until long after the limit."""
        asked.set()
        await asyncio.sleep(0.5)
        return "I thought for long."

    people: Models = {"L1N1": ScriptedModel(agreeable), **{id: Person(f"human:{id}", think) for id in ("L2N1", "L2N2")}}
    protocol = Emergence(children=2, max_rounds=1, reply_tokens=64)
    played = await play(people, protocol, Limits(seconds=0.4), options=Options(patience=None))
    assert asked.is_set()
    assert not played.failures
    assert played.report.stop_reason is not StopReason.EXHAUSTED_TIME


# --- resuming


@pytest.mark.parametrize("point", ["after_commit", "after_reply"])
async def test_resume_does_not_repeat_a_call_ended_by_the_time_limit(tmp_path: Path, point: str) -> None:
    """Killed after a commit of their ends, or once only the first is durable. The next process refuses the rest and makes the
    closing call. Ends at the same time share a commit, also with the note of the closing call, which is then lost.
    """
    path = tmp_path / "j.db"
    model = ScriptedModel(agreeable, latency=lambda request: 0.0 if request.agent == "L1N1" else 60.0)
    killed = SqliteStore(path)
    hits: list[str] = []

    def hit(at: str, phase: Phase | None) -> None:
        if at != point:
            return
        hits.append(at)
        if at == "after_reply":
            if len(hits) == 1:
                return
            killed._writer.flush()  # of the first
        raise Crash

    with pytest.raises(Crash):
        await runner.start(
            TASK, TREE, models=model, store=killed, session="s", limits=Limits(seconds=LIMIT), options=Options(faults=hit)
        )  # fmt: skip
    store = SqliteStore(path)
    before = [event for event in store.read("s") if isinstance(event, CallFailed)]
    flights = [flight.agent for flight in store.flights("s")]
    assert len(before) == 1 if point == "after_reply" else before
    assert all(event.possibly_charged for event in before)
    assert sorted({"L1N1", *flights, *(event.agent for event in before)}) == ["L1N1", "L2N1", "L2N2", "L2N3"]
    again = ScriptedModel(agreeable)
    report = await runner.resume("s", store=store, models=again)
    assert [request.agent for request in again.requests] == ["L1N1"], "the closing call"
    assert report.answer is not None
    spent = report.ledger.actual
    assert (spent.timed_out, spent.lost) == (len(before), len(flights))
    assert spent.requests == len(before) + 1
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    store.close()


async def test_time_limit_after_a_kill_counts_time_without_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the journal, made while all calls hang, is what a kill leaves."""
    monkeypatch.setattr(execution, "NOTE_INTERVAL_SECONDS", 0.05)
    path, copy = tmp_path / "j.db", tmp_path / "copy.db"
    store = SqliteStore(path)
    hanging = ScriptedModel(agreeable, latency=60.0)
    run = asyncio.create_task(
        runner.start(TASK, TREE, models=hanging, store=store, session="s", limits=Limits(seconds=1.25))
    )
    with closing(sqlite3.connect(path)) as seen, closing(sqlite3.connect(copy)) as left:
        async with asyncio.timeout(30):
            while not seen.execute("SELECT 1 FROM held WHERE seconds >= 0.7").fetchone():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        seen.backup(left)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    store.close()
    store = SqliteStore(copy)
    report = await runner.resume("s", store=store, models=hanging)
    ended = [event for event in store.read("s") if isinstance(event, CallFailed) and not event.unsent]
    took = [float(event.volatile["s"] or 0) for event in ended if event.agent != "L1N1"]
    assert len(took) == 3
    assert max(took) < 0.8, "of the second that deliberation has in all, 0.7 were used"
    assert report.stop_reason is StopReason.EXHAUSTED_TIME
    assert report.ledger.actual.lost == 3
    assert report.ledger.actual.seconds < 1.25 + MAX_OVERRUN_SECONDS
    store.close()


async def test_interrupted_run_stores_the_time_used(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    model = Hanging(agreeable, after=2)
    run = asyncio.create_task(
        runner.start(TASK, TREE, models=model, store=store, session="s", limits=Limits(seconds=60))
    )
    began = time.monotonic()
    async with asyncio.timeout(30):
        while len(model.requests) < 3 or time.monotonic() - began < 0.2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    journal = store.open("s")
    assert journal.seconds() >= 0.15
    await journal.close()
    store.close()
