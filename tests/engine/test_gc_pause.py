"""The pause of the garbage collector while recorded calls are read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.domain.errors import UnknownName
from consilience.engine.faults import Crash, Fault
from consilience.engine.runner import CollectorPause, Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.runs import TASK
from kit.throwaways import NestedGathers


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_overlapping_gc_pauses_end_with_the_last() -> None:
    with CollectorPause() as first, CollectorPause() as second:
        first.release()
        first.release()
        assert not gc.isenabled()
        second.release()
        assert gc.isenabled()


def test_disabled_collector_stays_disabled() -> None:
    gc.disable()
    with CollectorPause():
        pass
    assert not gc.isenabled()


async def test_garbage_collection_of_a_resumed_session_is_enabled_from_its_first_new_call(tmp_path: Path) -> None:
    enabled: list[bool] = []

    def script(request: ModelRequest) -> str:
        enabled.append(gc.isenabled())
        return f"{request.agent} says {request.key}"

    path = tmp_path / "j.db"
    options = Options(faults=Fault("after_commit", nth=4).hit)
    model = ScriptedModel(script)
    with pytest.raises(Crash):
        await runner.start(TASK, NestedGathers(), models=model, store=SqliteStore(path), session="s", options=options)
    before = len(enabled)
    store = SqliteStore(path)
    await runner.resume("s", store=store, models=model)
    assert len(enabled) > before
    assert all(enabled)
    assert gc.isenabled()
    store.close()


async def test_garbage_collection_is_enabled_after_a_replay_or_its_failure(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    model = ScriptedModel(lambda request: f"{request.agent} says {request.key}")
    await runner.start(TASK, NestedGathers(), models=model, store=store, session="s")
    await runner.replay("s", store=store)
    assert gc.isenabled()

    with pytest.raises(UnknownName):
        await runner.replay("another", store=store)
    assert gc.isenabled()
    store.close()
