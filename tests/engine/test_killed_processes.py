"""Real processes, really killed (SIGKILL) at named fault points, and resumed by others."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import kit.child
from consilience.domain.errors import SettingsError
from consilience.engine.faults import POINTS, crash, from_spec
from consilience.journal.canonical import canonical_digest
from consilience.journal.sqlite import SqliteStore
from kit.cases import CASES, Case
from kit.runs import run

TESTS = Path(kit.child.__file__).parent.parent


def child(case: Case, journal: Path, log: Path, how: str, fault: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    if fault:
        environment["CONSILIENCE_FAULT"] = fault
    command = [sys.executable, kit.child.__file__, case.name, str(journal), str(log), how]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


# An agent with tools is killed between its steps in tests/agents/test_tools.py: here, what is asked is counted by call.
MATRIX = list(itertools.product([case for case in CASES if case.tools is None], POINTS, (1, 2, 5)))


@pytest.mark.matrix(keep=8)
@pytest.mark.parametrize(("case", "point", "nth"), MATRIX, ids=lambda value: getattr(value, "name", str(value)))
async def test_a_killed_process_loses_nothing_that_was_recorded(
    case: Case, point: str, nth: int, tmp_path: Path
) -> None:
    journal, log = tmp_path / "j.db", tmp_path / "log"
    first = child(case, journal, log, "start", f"{point}#{nth}")
    store = SqliteStore(journal)
    done = {(e.key, e.attempt) for e in store.read("s") if e.type in ("call_completed", "reply_rejected")}
    flights = store.flights("s")
    in_flight = {flight.key for flight in flights}
    store.close()
    asked_before = Counter(log.read_text().splitlines()) if log.exists() else Counter()
    second = child(case, journal, log, "resume")
    assert second.returncode == 0, second.stderr
    asked = Counter(log.read_text().splitlines())
    if first.returncode == -signal.SIGKILL:
        assert not [key for key, attempt in done if asked[f"{key} {attempt}"] > 1], "a completed call was asked again"
        again = {line.partition(" ")[0] for line in asked_before if asked[line] > 1}
        assert again <= in_flight, "only a call in flight may be paid for twice, and it is noted as such"
    else:
        assert first.returncode == 0, first.stderr
    reference = await run(case)
    store = SqliteStore(journal)
    assert canonical_digest(store.read("s")) == reference.journal
    assert second.stdout.strip() == reference.report.digest()
    lost = sum(e.type == "call_lost" for e in store.read("s"))
    assert lost == sum(flight.agent != case.outside for flight in flights), (
        "who answers from outside is awaited, not lost"
    )
    store.close()


def test_a_fault_is_spelt_with_point_phase_index_and_count() -> None:
    fault = from_spec("after_commit@leaf_respond/2#3", crash)
    assert (fault.point, fault.phase, fault.index, fault.nth) == ("after_commit", "leaf_respond", 2, 3)
    assert from_spec("before_finish").nth == 1
    for wrong in ("nowhere", "after_commit#", "after_commit@x/y", ""):
        with pytest.raises(SettingsError, match="fault point"):
            from_spec(wrong)
