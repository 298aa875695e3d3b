"""The whole way with the smallest real model: fetched where it is missing, loaded, asked, stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.town import TASK, recorded
from consilience import EmergenceReport
from consilience.cli.execution import exit_code
from consilience.domain.events import CallCompleted, CallLost, ReplyRejected
from consilience.domain.paths import journal_path
from consilience.journal.sqlite import SqliteStore

pytestmark = pytest.mark.local_model

COMMAND = (sys.executable, "-m", "consilience")
RUN = (
    "emergence",
    TASK,
    "--model",
    "local:smollm2-135m",
    "--children",
    "2",
    "--max-rounds",
    "1",
    "--reply-tokens",
    "48",
)
PATIENCE = 600.0


def children_of(pid: int) -> list[int]:
    """Processes whose parent that is; Linux only."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            children.append(int(stat.parent.name))
    return children


def test_run_on_the_local_model_resumes_and_replays() -> None:
    done = subprocess.run([*COMMAND, *RUN, "--json"], capture_output=True, text=True, timeout=PATIENCE)
    assert "\nloading local:smollm2-135m\n" in done.stderr
    report = EmergenceReport.model_validate_json(done.stdout)
    assert done.returncode == exit_code(report), "whether so small a model finds an answer is left open"
    assert report.ledger.actual.cost == 0.0
    assert {agent.model for agent in report.agents} == {"local:smollm2-135m"}
    replayed = subprocess.run([*COMMAND, "replay", "last", "--json"], capture_output=True, text=True, timeout=PATIENCE)
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["calls"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_ctrl_c_leaves_no_process_behind() -> None:
    process = subprocess.Popen(
        [*COMMAND, *RUN, "--reply-tokens", "4000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in iter(process.stderr.readline, b""):
        if line.strip().endswith(b" begins"):
            break
    (child,) = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not Path(f"/proc/{child}").exists()
    (session,) = recorded()
    shown = subprocess.run([*COMMAND, "show", session], capture_output=True, text=True, timeout=PATIENCE)
    assert "**Not finished: the run was interrupted**" in shown.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_killed_run_on_the_local_model_resumes_without_repeating_calls() -> None:
    def ended(line: str) -> bool:
        return line.startswith("round ") and " · " in line

    process = subprocess.Popen([*COMMAND, *RUN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.extend([line] if ended(line) else [])
        if len(lines) == 2:
            break
    process.kill()
    process.communicate(timeout=PATIENCE)
    (session,) = recorded()
    store = SqliteStore(journal_path())
    before = [e for e in store.read(session) if isinstance(e, CallCompleted | ReplyRejected)]
    lost = len(store.flights(session))
    store.close()
    resumed = subprocess.run([*COMMAND, "resume", session], capture_output=True, text=True, timeout=PATIENCE)
    assert resumed.returncode in (0, 1, 3), resumed.stderr
    calls = [line.partition(" s, ")[0].rpartition(" ")[0] for line in lines]
    asked_now = [line.partition(" s, ")[0].rpartition(" ")[0] for line in resumed.stderr.splitlines() if ended(line)]
    assert not set(calls) & set(asked_now)
    store = SqliteStore(journal_path())
    after = store.read(session)
    store.close()
    assert [e for e in after if isinstance(e, CallCompleted | ReplyRejected)][: len(before)] == before
    keys = [(e.key, e.attempt) for e in after if isinstance(e, CallCompleted | ReplyRejected)]
    assert len(keys) == len(set(keys))
    assert sum(isinstance(e, CallLost) for e in after) == lost
