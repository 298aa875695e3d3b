"""The phases that a protocol declares, against which limits are checked before a run."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from consilience.domain.events import Ended
from consilience.journal.sqlite import SqliteStore
from kit.cases import CASES, Case
from kit.runs import run


@pytest.mark.parametrize("case", [c for c in CASES if c.protocol.phase_names], ids=lambda case: case.name)
async def test_every_call_is_made_in_a_declared_phase(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    outcome = await run(case, path=path)
    events = SqliteStore(path).read(outcome.report.session)
    phases = {event.phase[0] for event in events if isinstance(event, Ended) and event.phase}
    undeclared = [name for name in phases if not any(fnmatchcase(name, known) for known in case.protocol.phase_names)]
    assert undeclared == []
