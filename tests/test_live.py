"""Watching a deliberation from Python: events, the report, stopping; the log and the spans of a run."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import consilience
from consilience.domain.errors import RateLimited, SettingsError, UserError
from consilience.engine import telemetry
from consilience.models.port import ModelRequest
from consilience.testing import ScriptedModel
from kit.cases import emergent

TREE = consilience.Emergence(children=2, max_rounds=2)
SECRET = "plum-wintermute-4410"


@pytest.fixture
def store() -> consilience.SqliteStore:
    return consilience.SqliteStore(":memory:")


async def test_live_yields_events_during_the_run_then_the_report(store: consilience.SqliteStore) -> None:
    released = asyncio.Event()
    order: list[str] = []

    class Waits(ScriptedModel):
        async def complete(self, request: ModelRequest):  # type: ignore[no-untyped-def]
            if "lateral" in request.key:
                await released.wait()
            return await super().complete(request)

    async with consilience.live("Is it so?", TREE, model=Waits(emergent), store=store) as session:
        async for event in session.events():
            order.append(event.type)
            if event.type == "call_started" and "lateral" in event.key:  # type: ignore[attr-defined]
                released.set()
        report = await session.report()
    assert report.session == session.id
    recorded = [event.type for event in store.read(session.id)]
    assert [kind for kind in order if kind != "call_started"] == recorded
    assert (order[0], order[-1]) == ("session_started", "session_finished")


async def test_live_with_several_readers_gives_each_every_event(store: consilience.SqliteStore) -> None:
    async with consilience.live("Is it so?", TREE, model=ScriptedModel(emergent), store=store) as session:

        async def read() -> list[str]:
            return [event.type async for event in session.events()]

        first, second = await asyncio.gather(read(), read())
        late = await read()
    assert first == second == late


async def test_live_left_early_stops_the_run_which_resumes(store: consilience.SqliteStore) -> None:
    model = ScriptedModel(emergent)
    async with consilience.live("Is it so?", TREE, model=model, store=store) as session:
        async for event in session.events():
            if event.type == "call_completed":
                break
    asked = len(model.requests)
    await asyncio.sleep(0)
    assert len(model.requests) == asked
    assert "session_finished" not in {event.type for event in store.read(session.id)}
    with pytest.raises(UserError, match=f"has no report.*consilience.resume\\('{session.id}'\\)"):
        await session.report()
    report = await consilience.resume(session.id, model=model, store=store)
    whole = await consilience.deliberate("Is it so?", TREE, model=ScriptedModel(emergent), store=store)
    assert report.digest() == whole.digest()


async def test_live_never_entered_records_nothing(store: consilience.SqliteStore) -> None:
    model = ScriptedModel(emergent)
    with warnings.catch_warnings(record=True) as error:
        warnings.simplefilter("always")
        consilience.live("Is it so?", TREE, model=model, store=store)
        gc.collect()
    assert [str(warning.message) for warning in error] == []
    assert (model.requests, store.sessions()) == ([], [])


async def test_live_report_before_the_block_is_an_error(store: consilience.SqliteStore) -> None:
    session = consilience.live("Is it so?", TREE, model=ScriptedModel(emergent), store=store)
    with pytest.raises(UserError, match="has not begun"):
        await session.report()
    with pytest.raises(UserError, match=r"has not begun.* async with consilience\.live"):
        [event async for event in session.events()]
    async with session:
        assert (await session.report()).answer


async def test_live_user_error_ends_events_and_is_raised_by_report(store: consilience.SqliteStore) -> None:
    async with consilience.live(" ", TREE, model=ScriptedModel([]), store=store) as session:
        assert [event async for event in session.events()] == []
        with pytest.raises(SettingsError, match="the task is empty"):
            await session.report()


async def test_log_records_events_without_texts(
    store: consilience.SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(request: ModelRequest) -> object:
        if request.key == "round-1/lateral/L2N1":
            return RateLimited(f"{SECRET} is busy")
        return emergent(request).replace(" on ", f" {SECRET} on ")

    with caplog.at_level(logging.DEBUG, logger="consilience"):
        report = await consilience.deliberate(f"Is it {SECRET}?", TREE, model=ScriptedModel(reply), store=store)  # type: ignore[arg-type]
    records = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "consilience"]
    assert records[0] == ("INFO", f"session {report.session} begins: emergence with 3 agents")
    assert records[-1] == ("INFO", f"session {report.session} ends: {report.stop_reason.value}")
    assert ("WARNING", f"session {report.session}: round-1/lateral/L2N1 failed: rate_limited") in records
    assert sum("completed" in text for _, text in records) == report.ledger.actual.calls - 1
    assert SECRET not in caplog.text


def test_log_without_a_handler_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    telemetry.LOGGER.error("nothing should come of this")
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracer", lambda: provider.get_tracer("consilience"))
    monkeypatch.setattr(telemetry, "is_traced", lambda: True)
    return exporter


async def test_spans_nest_calls_in_phases_in_a_session(
    store: consilience.SqliteStore, spans: InMemorySpanExporter
) -> None:
    def reply(request: ModelRequest) -> object:
        return RateLimited("busy") if request.key == "round-1/lateral/L2N1" else emergent(request)

    report = await consilience.deliberate("Is it so?", TREE, model=ScriptedModel(reply), store=store)  # type: ignore[arg-type]
    done = spans.get_finished_spans()
    by_id = {span.context.span_id: span for span in done if span.context}
    (session,) = [span for span in done if span.name == "session emergence"]
    assert session.parent is None
    assert session.attributes is not None
    assert session.attributes["consilience.stop_reason"] == report.stop_reason.value
    calls = [span for span in done if span.name.startswith("call ")]
    assert len(calls) == report.ledger.actual.requests
    for span in calls:
        assert span.attributes is not None
        assert span.parent is not None
        phase = by_id[span.parent.span_id]
        assert phase.attributes is not None
        assert "consilience.phase" in phase.attributes
        assert not any(str(value).startswith("{") for value in span.attributes.values()), "no texts"
    failed = [span for span in calls if not span.status.is_ok]
    assert [span.attributes["consilience.key"] for span in failed if span.attributes] == ["round-1/lateral/L2N1"]
    spans.clear()
    await consilience.replay(report.session, store=store)
    assert not [span for span in spans.get_finished_spans() if span.name.startswith("call ")], "nothing was sent"
