"""Cancelling a session: at any instant, from this process and another, it ends once, with a report, and replays."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sqlite3
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from consilience import Emergence, Limits, Solo, SqliteStore, StopReason, Vote
from consilience.domain.errors import SessionWaiting
from consilience.domain.events import CallFailed, CallLost, CancelRequested, Ended, Event, SessionFinished
from consilience.domain.outcome import FailureKind
from consilience.domain.report import Report
from consilience.engine.ports import Person
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.journal.store import WITH_ANSWER
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.models.tool_agent import ToolAgent
from consilience.protocols.debate import Debate
from kit import runner
from kit.cases import CASES
from kit.runs import TASK, seated

PROMPTLY = 2.0
"""Seconds within which a cancelled session has ended."""


class Hanging(ScriptedModel):
    """Replies to so many requests, and never to those after."""

    def __init__(self, replies: int) -> None:
        super().__init__(lambda request: f"said {request.key}")
        self.left = replies
        self.hung = asyncio.Event()
        self.ended: list[str] = []
        """Keys of the requests that were ended while they hung."""

    async def complete(self, request: ModelRequest) -> Completion:
        self.left -= 1
        if self.left >= 0:
            return await super().complete(request)
        self.hung.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended.append(request.key)
        raise AssertionError


async def cancelled_when(
    hung: asyncio.Event,
    store: SqliteStore,
    run: asyncio.Task[Report],
    *,
    text: str = "",
    post: Callable[[], None] | None = None,
) -> Report:
    """Cancel the session `s` once a call hangs, and return its report, which must be there promptly."""
    await asyncio.wait_for(hung.wait(), 20)
    (post or (lambda: store.post("s", "cancel", text=text, by="Ada")))()
    async with asyncio.timeout(20):
        return await run


def begun(protocol: Protocol, model: object, store: SqliteStore, **fields: object) -> asyncio.Task[Report]:
    return asyncio.create_task(runner.start(TASK, protocol, models=model, store=store, session="s", **fields))  # type: ignore[arg-type]


async def test_cancel_ends_calls_in_flight_and_makes_no_further_one(tmp_path: Path) -> None:
    store, model = SqliteStore(tmp_path / "j.db"), Hanging(replies=2)
    report = await cancelled_when(model.hung, store, begun(Emergence(children=4), model, store))
    assert (report.stop_reason, report.answer, report.session) == (StopReason.CANCELLED, None, "s")
    assert sorted(model.ended) == sorted(call.key for call in report.failed_calls if call.detail.endswith("in flight"))
    assert {call.kind for call in report.failed_calls} == {FailureKind.CANCELLED}
    assert report.ledger.actual.timed_out == len(model.ended)
    events = store.read("s")
    cancel = next(event for event in events if isinstance(event, CancelRequested))
    assert (cancel.by, cancel.answer) == ("Ada", False)
    assert all(isinstance(e, CallFailed) for e in events if isinstance(e, Ended) and e.seq > cancel.seq)
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    assert store.mail("s") == []
    store.close()


async def test_cancel_from_another_store_of_the_file_is_taken(tmp_path: Path) -> None:
    store, model, other = SqliteStore(tmp_path / "j.db"), Hanging(replies=0), SqliteStore(tmp_path / "j.db")
    report = await cancelled_when(
        model.hung, store, begun(Vote(votes=3), model, store), post=lambda: other.post("s", "cancel")
    )
    assert report.stop_reason is StopReason.CANCELLED
    other.close()
    store.close()


@pytest.mark.parametrize("ended_at", ["call_started", "call_awaited"])
async def test_run_that_ends_while_a_question_is_put_to_a_person_leaves_no_coroutine(
    tmp_path: Path, ended_at: str
) -> None:
    store, runs = SqliteStore(tmp_path / "j.db"), list[asyncio.Task[Report]]()

    async def ask(request: ModelRequest) -> str:
        raise AssertionError("the run has ended")

    def end(event: Event) -> None:
        if event.type == ended_at:
            runs[0].cancel()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        runs.append(begun(Vote(votes=1), Person("human", ask), store, options=Options(observer=end)))
        with pytest.raises(asyncio.CancelledError):
            await runs[0]
        gc.collect()
    assert [str(warning.message) for warning in warned] == []
    store.close()


async def test_cancel_with_answer_makes_the_closing_call(tmp_path: Path) -> None:
    store, model = SqliteStore(tmp_path / "j.db"), Hanging(replies=2)

    def post() -> None:
        model.left = 99
        store.post("s", "cancel", text=WITH_ANSWER)

    report = await cancelled_when(model.hung, store, begun(Emergence(children=3), model, store), post=post)
    assert (report.stop_reason, report.answer is None) == (StopReason.CANCELLED, False)
    cancelled = next(e.seq for e in store.read("s") if isinstance(e, CancelRequested))
    replied = [
        e.key for e in store.read("s") if isinstance(e, Ended) and not isinstance(e, CallFailed) and e.seq > cancelled
    ]
    assert len(replied) == 1
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    store.close()


class Provider:
    """An HTTP server that answers no request, or each with `head`."""

    def __init__(self, head: bytes = b"") -> None:
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        """The other side has closed a connection whose request was not answered."""
        self._head = head

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if self._head:
            writer.write(self._head)
        self.asked.set()
        while await reader.read(65536):
            pass
        self.closed.set()
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1#m"


async def test_cancel_closes_the_connections_of_calls_in_flight(tmp_path: Path) -> None:
    store, provider = SqliteStore(tmp_path / "j.db"), Provider()
    async with provider.listening() as model:
        report = await cancelled_when(provider.asked, store, begun(Vote(votes=2), model, store))
        assert report.stop_reason is StopReason.CANCELLED
        await asyncio.wait_for(provider.closed.wait(), 10)
    store.close()


async def test_cancel_during_the_pause_of_a_rate_limit_ends_the_run(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 30\r\nContent-Length: 2\r\n\r\n{}"
    store, provider = SqliteStore(tmp_path / "j.db"), Provider(refusal)
    async with provider.listening() as model:
        report = await cancelled_when(provider.asked, store, begun(Vote(votes=2), model, store))
    assert report.stop_reason is StopReason.CANCELLED
    assert {call.kind for call in report.failed_calls} == {FailureKind.CANCELLED}
    store.close()


async def test_cancel_ends_the_process_of_a_program(tmp_path: Path) -> None:
    store, pipe = SqliteStore(tmp_path / "j.db"), tmp_path / "pid"
    os.mkfifo(pipe)
    run = begun(Solo(), f"exec:sh -c 'echo $$ > {pipe}; exec sleep 600'", store)
    process = Path("/proc", (await asyncio.to_thread(pipe.read_text)).strip())
    assert await asyncio.to_thread(process.exists)
    store.post("s", "cancel")
    assert (await run).stop_reason is StopReason.CANCELLED
    assert not await asyncio.to_thread(process.exists)
    store.close()


async def test_cancel_while_a_tool_runs_ends_the_session_and_replays(tmp_path: Path) -> None:
    store, working, ended = SqliteStore(tmp_path / "j.db"), asyncio.Event(), asyncio.Event()
    agent: Agent[None, str] = Agent(TestModel(), name="searcher")

    @agent.tool_plain
    async def search(words: str) -> str:
        working.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()
        raise AssertionError(words)

    report = await cancelled_when(working, store, begun(Solo(), ToolAgent(agent), store))
    assert (report.stop_reason, report.answer) == (StopReason.CANCELLED, None)
    assert report.ledger.actual.calls == 1, "its first step"
    async with asyncio.timeout(PROMPTLY):
        await ended.wait()
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    store.close()


async def test_cancel_under_a_time_limit_ends_calls_as_cancelled(tmp_path: Path) -> None:
    store, model = SqliteStore(tmp_path / "j.db"), Hanging(replies=1)
    run = begun(Vote(votes=3), model, store, limits=Limits(seconds=600, calls=50))
    report = await cancelled_when(model.hung, store, run)
    assert {call.kind for call in report.failed_calls} == {FailureKind.CANCELLED}
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    store.close()


async def test_cancel_while_a_person_is_asked_ends_the_session_without_parking(tmp_path: Path) -> None:
    store, model = SqliteStore(tmp_path / "j.db"), ScriptedModel(lambda request: "yes")
    asked = asyncio.Event()

    def observe(event: Event) -> None:
        if event.type == "call_awaited":
            asked.set()

    seats = {"V1": model, "V2": "human"}
    run = begun(Vote(votes=2), seats, store, options=Options(patience=None, observer=observe))
    try:
        report = await cancelled_when(asked, store, run)
    except SessionWaiting:  # nobody sits at a terminal here, so it may be parked first
        report = await runner.resume("s", store=store)
    assert report.stop_reason is StopReason.CANCELLED
    store.close()


async def test_cancel_of_a_parked_session_ends_it_at_the_next_resume_without_models(tmp_path: Path) -> None:
    store, model = SqliteStore(tmp_path / "j.db"), ScriptedModel(lambda request: "yes")
    with pytest.raises(SessionWaiting):
        await runner.start(TASK, Vote(votes=2), models={"V1": model, "V2": "human"}, store=store, session="s")
    store.post("s", "cancel")
    report = await runner.resume("s", store=store)
    assert report.stop_reason is StopReason.CANCELLED
    assert [call.agent for call in report.failed_calls] == ["V2"]
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    store.close()


async def test_cancel_cuts_the_waiting_of_a_run_with_a_pace(tmp_path: Path) -> None:
    store, said = SqliteStore(tmp_path / "j.db"), asyncio.Event()

    def observe(event: Event) -> None:
        if isinstance(event, Ended):
            said.set()

    case = next(case for case in CASES if isinstance(case.protocol, Debate))
    run = begun(case.protocol, ScriptedModel(case.script), store, options=Options(pace=1000, observer=observe))
    report = await cancelled_when(said, store, run)
    assert report.stop_reason is StopReason.CANCELLED
    store.close()


@pytest.mark.parametrize("case", [case for case in CASES if not case.outside], ids=lambda case: case.name)
async def test_session_cancelled_at_a_random_instant_ends_once_and_replays(case, tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    """A cancel at any committed event, of calls that arrive in any order."""
    whole = SqliteStore(":memory:")
    await runner.start(
        TASK,
        case.protocol,
        models=seated(case, ScriptedModel(case.script)),
        store=whole,
        session="s",
        sources=case.sources,
    )
    events = len(whole.read("s"))
    whole.close()
    for instant in sample(range(1, events), 6):
        store, draw = SqliteStore(":memory:"), random.Random(instant)

        def observe(event: Event, *, store: SqliteStore = store, instant: int = instant) -> None:
            if event.seq == instant:
                store.post("s", "cancel", by=str(instant))

        report = await runner.start(
            TASK,
            case.protocol,
            models=seated(case, ScriptedModel(case.script, latency=lambda request, draw=draw: draw.random() / 100)),
            store=store,
            session="s",
            sources=case.sources,
            options=Options(observer=observe),
        )
        recorded = store.read("s")
        assert sum(isinstance(event, SessionFinished) for event in recorded) == 1
        cancelled = any(isinstance(e, CallFailed) and e.failure is FailureKind.CANCELLED for e in recorded)
        assert (report.stop_reason is StopReason.CANCELLED) == cancelled, instant
        assert (await runner.replay("s", store=store)).digest() == report.digest(), instant
        store.close()


async def test_cancel_of_a_killed_session_reports_its_calls_in_flight(tmp_path: Path) -> None:
    """A copy of the journal, made while calls hang, is what a kill leaves."""
    store, model = SqliteStore(tmp_path / "j.db"), Hanging(replies=1)
    run = begun(Vote(votes=3), model, store)
    await asyncio.wait_for(model.hung.wait(), 20)
    with closing(sqlite3.connect(tmp_path / "j.db")) as seen, closing(sqlite3.connect(tmp_path / "copy.db")) as left:
        seen.backup(left)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    store.close()
    store = SqliteStore(tmp_path / "copy.db")
    store.post("s", "cancel")
    report = await runner.resume("s", store=store)
    lost = [event.key for event in store.read("s") if isinstance(event, CallLost)]
    assert (report.stop_reason, report.ledger.actual.lost, len(lost)) == (StopReason.CANCELLED, len(lost), len(lost))
    assert lost
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    store.close()
