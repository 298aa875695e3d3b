"""Real processes, really killed (SIGKILL) at named fault points, while they resume, and again and again."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import socket
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from consilience.domain.errors import SettingsError
from consilience.domain.events import canonical_digest
from consilience.engine.faults import POINTS, crash, parse_fault
from consilience.engine.protocol import ENTRY_POINT_GROUP, find_protocol, protocol_names
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import CALLING, CASES, Case
from kit.histories import History, kill_at_random, reference
from kit.processes import Processes, Run
from kit.runs import TASK, seated, to_the_end

pytestmark = pytest.mark.processes

every_case = pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def processes() -> Processes:
    return Processes()


def test_every_installed_protocol_has_a_case() -> None:
    """A protocol joins these tests by a line in `kit.cases`."""
    shaken = {type(case.protocol) for case in CASES}
    installed = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    assert "emergence" in installed <= set(protocol_names())
    missing = sorted(name for name in installed if find_protocol(name) not in shaken)
    assert not missing, f"add a case to tests/kit/cases.py for: {', '.join(missing)}"


KILLED = list(itertools.product(CALLING, POINTS, (1, 2, 5)))


@pytest.mark.matrix(keep=8)
@pytest.mark.parametrize(("case", "point", "nth"), KILLED, ids=lambda value: getattr(value, "name", str(value)))
def test_process_killed_at_a_fault_point_loses_no_recorded_event(
    case: Case, point: str, nth: int, tmp_path: Path, processes: Processes
) -> None:
    history = History(case, tmp_path / "j.db")
    history.add(processes.one(case.name, history.journal, Run("start", f"{point}#{nth}")))
    assert history.ended[0].killed or history.ended[0].digest
    history.add(processes.one(case.name, history.journal, Run()))
    history.check_the_end()


TWO_KILLS = [
    (case, first, POINTS[(n + m + 3 * turn) % len(POINTS)], counts)
    for (n, case), (m, first), (turn, counts) in itertools.product(
        enumerate(CALLING), enumerate(POINTS), enumerate([(1, 1), (2, 1), (5, 3)])
    )
]
"""Every case with every first point and with every second one, and every first point with every second one."""


@pytest.mark.matrix(keep=14)
@pytest.mark.parametrize(
    ("case", "first", "second", "counts"), TWO_KILLS, ids=lambda value: getattr(value, "name", str(value))
)
def test_process_killed_again_during_resume_loses_no_recorded_event(
    case: Case, first: str, second: str, counts: tuple[int, int], tmp_path: Path, processes: Processes
) -> None:
    history = History(case, tmp_path / "j.db")
    history.add(processes.one(case.name, history.journal, Run("start", f"{first}#{counts[0]}")))
    history.add(processes.one(case.name, history.journal, Run("resume", f"{second}#{counts[1]}")))
    history.add(processes.one(case.name, history.journal, Run()))
    history.check_the_end()


@every_case
def test_process_killed_after_every_commit_ends_with_the_same_report(
    case: Case, tmp_path: Path, processes: Processes, whole: bool
) -> None:
    """After every third one where there are many: each process reads again all that the ones before it have left."""
    stride = 1 if whole or case.need < 20 else 3
    history = History(case, tmp_path / "j.db")
    history.add(processes.one(case.name, history.journal, Run("start", "after_commit")))
    while history.ended[-1].killed:
        before = len(history.recorded)
        history.add(processes.one(case.name, history.journal, Run("resume", f"after_commit#{stride}")))
        assert len(history.recorded) > before or not history.ended[-1].killed, "no progress from one death to the next"
    events = history.check_the_end()
    # the last reply may share its commit with the report: whoever is killed after that leaves nothing to resume
    assert sum(event.type == "session_resumed" for event in events) >= len(history.ended) - 2
    levels = 1 if case.protocol.topology().kind == "independent" else 3
    assert len(history.ended) > levels, "calls side by side may be committed together, but not all of them are"


@every_case
def test_process_that_resumes_a_finished_session_returns_its_report_without_calls(
    case: Case, tmp_path: Path, processes: Processes
) -> None:
    history = History(case, tmp_path / "j.db")
    history.add(processes.one(case.name, history.journal, Run("start")))
    events = history.check_the_end()
    for _ in range(2):
        history.add(processes.one(case.name, history.journal, Run("resume")))
        assert history.ended[-1].asked == []
        assert history.check_the_end() == events, "nothing is added to its journal"


# --- two at a time


@pytest.mark.matrix(keep=4, whole=60)
@pytest.mark.parametrize("seed", range(600))
def test_process_killed_at_random_beside_a_reader_loses_no_recorded_event(
    seed: int, tmp_path: Path, processes: Processes
) -> None:
    """`python tests/kit/histories.py --minutes 20` does it for as long as one likes."""
    kill_at_random(seed, tmp_path, processes)


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize(
    ("case", "nth"), list(itertools.product(CALLING, range(1, 7))), ids=lambda v: getattr(v, "name", str(v))
)
def test_concurrent_resumes_let_one_process_run(case: Case, nth: int, tmp_path: Path, processes: Processes) -> None:
    journal = tmp_path / "j.db"
    first = processes.one(case.name, journal, Run("start", f"after_commit#{nth}"))
    assert first.killed or first.digest
    ended = processes.step(case.name, journal, Run(), Run(), Run())
    winners = [process for process in ended if process.digest is not None]
    assert winners
    assert {winner.digest for winner in winners} == {reference(case.name)[1]}
    for loser in ended:
        if loser not in winners:
            assert loser.error == "SessionBusy"
            holder = re.search(rf"is being run by process (\d+) on {re.escape(socket.gethostname())}\.", loser.said)
            assert holder, loser.said
            assert int(holder[1]) in {winner.pid for winner in winners}
    assert max(Counter(ended[0].asked).values(), default=1) == 1, "nothing was asked by two of them"
    store = SqliteStore(journal)
    assert canonical_digest(store.read("s")) == reference(case.name)[0]
    store.close()


class Held(ScriptedModel):
    """Answers when it is let go."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.script)
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def complete(self, request: ModelRequest) -> Completion:
        self.asked.set()
        await self.free.wait()
        return await super().complete(request)


@every_case
async def test_second_process_is_refused_with_the_name_of_the_holder(
    case: Case, tmp_path: Path, processes: Processes
) -> None:
    journal = tmp_path / "j.db"
    store, model = SqliteStore(journal), Held(case)
    seats = seated(case, model)
    begun = runner.start(
        TASK, case.protocol, sources=case.sources, models=seats, store=store, session="s", options=Options(patience=0)
    )
    running = asyncio.create_task(to_the_end(store, seats, begun))
    await model.asked.wait()
    second = await asyncio.to_thread(processes.one, case.name, journal, Run("resume"))
    assert (second.error, second.asked) == ("SessionBusy", [])
    assert f"session s is being run by process {os.getpid()} on {socket.gethostname()}." in second.said
    model.free.set()
    report = await running
    assert (canonical_digest(store.read("s")), report.digest()) == await asyncio.to_thread(reference, case.name)
    assert not [
        event for event in store.read("s") if event.type in ("session_resumed", "call_lost") and not case.outside
    ]
    store.close()


def test_fault_variable_names_point_phase_index_and_count() -> None:
    fault = parse_fault("after_commit@leaf_respond/2#3", crash)
    assert (fault.point, fault.phase, fault.index, fault.nth) == ("after_commit", "leaf_respond", 2, 3)
    assert parse_fault("before_finish").nth == 1
    for wrong in ("nowhere", "after_commit#", "after_commit@x/y", ""):
        with pytest.raises(SettingsError, match="fault point"):
            parse_fault(wrong)
