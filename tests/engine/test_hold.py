"""Running a session phase by phase: held calls are not made, and the result equals that of one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.domain.errors import SessionHeld, SessionWaiting
from consilience.domain.events import SessionParked
from consilience.domain.outcome import Limits
from consilience.engine.activity import Phase
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.emergence import Emergence
from consilience.testing import ScriptedModel
from kit import runner
from kit.cases import CASES, Case, emergent
from kit.runs import TASK, ShakenRun, Shuffled, run, seated


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "j.db")
    yield store
    store.close()


async def run_phase_by_phase(case: Case, store: SqliteStore, calls: int | None) -> tuple[ShakenRun, int]:
    """Every process may make the calls of one more phase, the first that the one before was held at."""
    model = Shuffled(case.script, 1)
    seats = seated(case, model)
    released: set[Phase | None] = set()
    options = Options(patience=0, hold=lambda phase: phase not in released)
    begun = runner.start(
        TASK,
        case.protocol,
        sources=case.sources,
        models=seats,
        store=store,
        limits=Limits(calls=calls),
        session="s",
        options=options,
    )
    while True:
        try:
            report = await begun
        except SessionHeld as held:
            released.add(held.held[min(held.held)])
        except SessionWaiting as parked:
            for key in parked.awaited:
                store.post("s", "answer", key, f"from outside, on {key}")
        else:
            asked = [(request.key, request.attempt) for request in model.requests]
            return ShakenRun(report, store.read("s"), asked=asked), len(released)
        begun = runner.resume("s", store=store, models=seats, options=options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("share", [None, 0.4])
async def test_run_held_phase_by_phase_gives_the_same_report(
    case: Case, share: float | None, store: SqliteStore
) -> None:
    calls = None if share is None else round(case.need * share)
    whole = await run(case, calls=calls)
    made, phases = await run_phase_by_phase(case, store, calls)
    assert made.same == whole.same
    assert sorted(made.asked) == sorted(whole.asked), "and nothing is asked twice"
    assert phases >= 1
    assert (await runner.replay("s", store=store)).digest() == whole.report.digest()


async def test_held_call_records_nothing(store: SqliteStore) -> None:
    """Else a call that is lost later would be taken for one that somebody outside was asked."""
    model = ScriptedModel(emergent)
    options = Options(hold=lambda phase: phase is not None and phase[0] == "lateral_leaves")
    with pytest.raises(SessionHeld, match=r"before round-1/lateral/L2N1, round-1/lateral/L2N2; resume") as held:
        await runner.start(
            TASK, Emergence(children=2, max_rounds=1), models=model, store=store, session="s", options=options
        )
    assert held.value.held["round-1/lateral/L2N1"] == ("lateral_leaves", 1)
    assert store.flights("s") == []
    assert store.holder("s") is None
    events = store.read("s")
    assert not [event for event in events if isinstance(event, SessionParked)]
    assert not [event for event in events if "lateral" in getattr(event, "key", "")]
