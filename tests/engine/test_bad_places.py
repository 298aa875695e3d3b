"""Full disks, unwritable paths, clocks set back: a run ends with an error and resumes."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from pathlib import Path

import pytest

from consilience.domain.errors import StoreUnusable
from consilience.domain.events import CallFailed, SessionStarted, canonical_digest
from consilience.domain.outcome import FailureKind, Limits, StopReason
from consilience.engine import recorder
from consilience.engine.runner import Options
from consilience.journal import sqlite
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import CALLING, Case
from kit.processes import Ended, Processes, Run
from kit.runs import TASK, run, seated, to_the_end

every_case = pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def processes() -> Processes:
    return Processes()


@cache
def reference(name: str) -> tuple[str, str]:
    case = next(case for case in CALLING if case.name == name)
    return asyncio.run(run(case)).same


# --- a full disk

UNUSABLE = ("StoreUnusable", "CommitFailed")
"""Errors of opening and of writing a journal that has no room."""


def ended_calls(journal: Path) -> set[str]:
    store = SqliteStore(journal)
    events = store.read("s") if "s" in store.sessions() else []
    store.close()
    return {f"{e.key} {e.attempt}" for e in events if e.type in ("call_completed", "reply_rejected")}


@pytest.mark.matrix(keep=5)
@pytest.mark.parametrize("room", [40_000, 60_000, 90_000, 120_000, 160_000, 220_000])
@every_case
def test_full_disk_ends_the_run_and_resume_continues(
    case: Case, room: int, tmp_path: Path, processes: Processes
) -> None:
    """No file may grow beyond so many bytes, for root as for anybody; what SQLite is told is what a full disk tells it."""
    journal = tmp_path / "j.db"
    first = processes.one(case.name, journal, Run("start", most=room))
    if first.digest is not None:
        assert first.digest == reference(case.name)[1], "there was room enough"
        return
    check_full(first)
    done = ended_calls(journal)
    again = processes.one(case.name, journal, Run("resume", most=room))
    assert not done & set(again.asked), "completed calls are not repeated"
    if again.digest is None:
        check_full(again, begun=begun(journal))
    else:  # opening the journal had made room: what the log held went into the file
        assert again.digest == reference(case.name)[1]
    assert done <= ended_calls(journal)
    if not begun(journal):
        return
    done = ended_calls(journal)
    freed = processes.one(case.name, journal, Run("resume"))
    assert not done & set(freed.asked), "completed calls are not repeated"
    assert freed.digest == reference(case.name)[1]
    store = SqliteStore(journal)
    assert canonical_digest(store.read("s")) == reference(case.name)[0]
    store.close()


def check_full(ended: Ended, *, begun: bool = True) -> None:
    assert ended.error in UNUSABLE or (not begun and ended.error in ("UnknownSession", "SettingsError")), ended
    if ended.error in UNUSABLE:
        assert "the journal cannot be used: " in ended.said
        assert "Free space" in ended.said
        assert "CONSILIENCE_HOME" in ended.said


def begun(journal: Path) -> bool:
    store = SqliteStore(journal)
    events = store.read("s") if "s" in store.sessions() else []
    store.close()
    return bool(events) and isinstance(events[0], SessionStarted)


# --- places that cannot be written, by root either


def below_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "data" / "journal.db"


def path_in_proc(tmp_path: Path) -> Path:
    if not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    return Path("/proc/consilience/journal.db")


def a_directory(tmp_path: Path) -> Path:
    (tmp_path / "journal.db").mkdir()
    return tmp_path / "journal.db"


def skip_where_bits_mean_nothing(path: Path) -> None:
    if os.access(path, os.W_OK):
        pytest.skip("root may write anywhere; the places above cannot be written by root either")


def read_only_directory(tmp_path: Path) -> Path:
    (tmp_path / "shut").mkdir(mode=0o500)
    skip_where_bits_mean_nothing(tmp_path / "shut")
    return tmp_path / "shut" / "journal.db"


def read_only_file(tmp_path: Path) -> Path:
    SqliteStore(tmp_path / "journal.db").close()
    (tmp_path / "journal.db").chmod(0o400)
    skip_where_bits_mean_nothing(tmp_path / "journal.db")
    return tmp_path / "journal.db"


PLACES = [below_a_file, path_in_proc, a_directory, read_only_directory, read_only_file]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_unwritable_journal_is_refused_before_any_call(place, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = place(tmp_path)
    with pytest.raises(StoreUnusable) as refusal:
        SqliteStore(path, writing=True)
    assert str(path) in refusal.value.where
    assert "CONSILIENCE_HOME" in refusal.value.do


async def test_session_without_a_lease_makes_no_call(tmp_path: Path) -> None:
    case = CALLING[0]
    (tmp_path / "j.db.leases").write_text("in the way")
    store, model = SqliteStore(tmp_path / "j.db"), ScriptedModel(case.script)
    with pytest.raises(StoreUnusable, match="cannot be leased") as refusal:
        await runner.start(TASK, case.protocol, sources=case.sources, models=seated(case, model), store=store)
    assert str(tmp_path / "j.db.leases") in refusal.value.where
    assert model.requests == []
    store.close()


# --- clocks


class Clocks:
    """A wall clock and a steady one, moved by hand."""

    def __init__(self, wall: float) -> None:
        self.wall, self.steady = wall, 1000.0

    def time(self) -> float:
        return self.wall

    def time_ns(self) -> int:
        return int(self.wall * 1e9)

    def monotonic(self) -> float:
        return self.steady


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks(1_800_000_000.0)
    monkeypatch.setattr(recorder, "time", clocks)
    monkeypatch.setattr(sqlite, "time", clocks)
    monkeypatch.setattr(time, "time", clocks.time)
    monkeypatch.setattr(time, "time_ns", clocks.time_ns)
    return clocks


class Slow(ScriptedModel):
    """Every reply takes so many seconds by the steady clock, and sets the wall clock back a day. Dies at call `dies`."""

    def __init__(self, case: Case, clocks: Clocks, seconds: float, dies: int = 0) -> None:
        super().__init__(case.script)
        self._clocks, self._seconds, self._dies = clocks, seconds, dies

    async def complete(self, request: ModelRequest) -> Completion:
        completion = await super().complete(request)
        self._clocks.steady += self._seconds
        self._clocks.wall -= 86_400
        if self._dies and len(self.requests) == self._dies:
            raise RuntimeError("boom")
        return completion


@pytest.mark.parametrize("wall", [1_800_000_000.0, 86_400.0, -5_000_000.0], ids=["going back", "1970", "before 1970"])
@every_case
async def test_wall_clock_set_back_changes_no_result(case: Case, wall: float, tmp_path: Path, clocks: Clocks) -> None:
    expected = await run(case)
    clocks.wall = wall
    store = SqliteStore(tmp_path / "j.db")
    seats = seated(case, Slow(case, clocks, 1.0, dies=min(3, case.need)))
    options = Options(patience=0)
    begun = runner.start(
        TASK, case.protocol, sources=case.sources, models=seats, store=store, session="s", options=options
    )
    with pytest.raises(RuntimeError, match="boom"):
        await to_the_end(store, seats, begun)
    assert store.created("s") == pytest.approx(wall)
    clocks.wall -= 1e7
    seats = seated(case, Slow(case, clocks, 1.0))
    report = await to_the_end(store, seats, runner.resume("s", store=store, models=seats, options=options))
    assert (canonical_digest(store.read("s")), report.digest()) == expected.same
    assert report.ledger.actual.seconds >= min(3, case.need)
    await store.create("later").close()
    assert store.sessions() == ["s", "later"], "in the order they were begun, whatever the clock said"
    store.close()


async def test_time_limit_of_a_resumed_session_excludes_time_between_processes(tmp_path: Path, clocks: Clocks) -> None:
    """Each call is a second of everybody's time; between the two processes lies a year. The first holds the session for at most 15
    seconds: the fourth call dies, and what was sent beside it may still come in."""
    case = next(case for case in CALLING if case.name == "toy-debate")
    outcome = {}
    for limit in (1000, 20):
        store = SqliteStore(tmp_path / f"{limit}.db")
        limits, options = Limits(seconds=limit), Options(patience=0)
        with pytest.raises(RuntimeError, match="boom"):
            await runner.start(
                TASK,
                case.protocol,
                sources=case.sources,
                models=seated(case, Slow(case, clocks, 1.0, dies=4)),
                store=store,
                session="s",
                limits=limits,
                options=options,
            )
        clocks.steady += 31_536_000
        clocks.wall -= 31_536_000
        again = Slow(case, clocks, 1.0)
        report = await runner.resume("s", store=store, models=seated(case, again), options=options)
        refused = [e for e in store.read("s") if isinstance(e, CallFailed) and e.failure is FailureKind.TIME]
        outcome[limit] = (bool(refused), report.ledger.actual.seconds < 100, len(again.requests))
        store.close()
    assert outcome[1000][:2] == (False, True), "the year between does not count"
    assert outcome[20][:2] == (True, True), "what both processes held does"
    assert 1 <= outcome[20][2] < outcome[1000][2]
    assert report.stop_reason in (StopReason.EXHAUSTED_TIME, StopReason.EXHAUSTED_BUDGET)
