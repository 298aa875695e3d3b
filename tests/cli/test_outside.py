"""Shell scripts of other processes, a person and a model deliberate together. Real processes, which are killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cli.test_process import PATIENCE, PROGRAM
from cli.town import MODEL, recorded
from consilience.coordination import Workspace, claim, submit
from kit import forks
from kit.forks import PYTHONPATH
from kit.outsiders import expire

pytestmark = pytest.mark.processes

TASK = "Should the market be daily?"
PARK_AT_ONCE = "from consilience.cli import execution as runs\nruns.PATIENCE_SECONDS = 0.0\nmain()\n"
"""In place of the last line of the program: it parks as soon as nobody holds a ticket."""
CLAIM_SCRIPT = (
    'cd "$1" && agent=$2 && shift 2 && "$@" workspace claim . --agent "$agent" --wait 300 >"../$agent-$$.ticket"'
)
"""Directory of the workspace, name of the agent, command."""
HAND_IN = '"$@" workspace submit . - --claim "$(sed -n "1s/^claim: //p" "../$agent-$$.ticket")"'
ANSWER = f"while ({CLAIM_SCRIPT} && echo 'Yes, says a script. The answer is yes.' | {HAND_IN}); do :; done"
KILLED = f"{CLAIM_SCRIPT} && kill -KILL $$"
STOPPED = f"{CLAIM_SCRIPT} && kill -STOP $$ && echo 'Much too late.' | {HAND_IN}"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command with a scripted model behind one name."""
    for name, value in (("PYTHONPATH", PYTHONPATH), ("COLUMNS", "100"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    path = tmp_path / "consilience_with_a_town.py"
    path.write_text(PROGRAM.format(latency="0.0").replace("main()\n", PARK_AT_ONCE))
    return [sys.executable, str(path)]


@pytest.fixture
def patient(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "patient")


@pytest.fixture
def hasty(tmp_path: Path) -> Workspace:
    """One whose claims expire after 3 seconds."""
    return Workspace.create(tmp_path / "hasty", protocol={"extensions": {"timeout_multiplier": 0.01}})


Start = Callable[[str, Workspace, str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a script, which is killed at the end with all that it has started."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, workspace: Workspace, agent: str) -> subprocess.Popen[str]:
        command = ["sh", "-c", script, "sh", str(workspace.path), agent, sys.executable, "-m", "consilience"]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(program: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)


def seats(patient: Workspace, hasty: Workspace, script: str, person: str, lost: str) -> list[str]:
    named = (f"{script}=workspace:{patient.path}#script", f"{person}=human", f"{lost}=workspace:{hasty.path}#lost")
    return ["--model", MODEL, *(part for name in named for part in ("--agent", name))]


def progress(program: list[str], session: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run(program, "show", session, "--json").stdout)
    return shown


def test_vote_with_an_outside_agent_killed_twice_ends_without_it(
    program: list[str], patient: Workspace, hasty: Workspace, start: Start
) -> None:
    vote = ("vote", TASK, "--votes", "4", "--answer-pattern", "yes|no", *seats(patient, hasty, "V2", "V3", "V4"))
    begun = run(program, *vote)
    assert begun.returncode == 5, begun.stderr
    (session,) = recorded()
    shown = progress(program, session)
    assert shown["awaited"] == ["answer/V2", "answer/V3", "answer/V4"]
    assert {ticket.id for ticket in (*patient.tickets(), *hasty.tickets())} == set(shown["tickets"].values())
    start(ANSWER, patient, "script")
    for deaths in (1, 2):
        assert start(KILLED, hasty, "lost").wait(PATIENCE) == -signal.SIGKILL
        resumed = run(program, "resume", session)  # waits for the claim to expire before it parks
        assert resumed.returncode == 5, resumed.stderr
        (held,) = hasty.tickets()
        assert held.state == ("pending" if deaths == 1 else "permanently_failed")
        assert [attempt.agent for attempt in held.failure_history] == ["lost"] * deaths
    assert run(program, "sessions", "answer", session, "answer/V3", "The answer is no.").returncode == 0
    done = run(program, "resume", session, "--json")
    while done.returncode == 5:  # the script is still at it
        done = run(program, "resume", session, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {vote["agent"] for vote in report["votes"]} == {"V1", "V2", "V3"}
    assert [(seat["agent"], seat["since"]) for seat in report["missing"]] == [("V4", "answer/V4")]
    assert (report["position"], report["replied"]) == ("yes", 3)
    assert "3 of 4 agents" in run(program, "show", session).stdout
    assert run(program, "replay", session).returncode == 0


def test_emergence_with_an_outside_agent_stopped_and_replaced_repeats_no_call(
    program: list[str], patient: Workspace, tmp_path: Path, start: Start
) -> None:
    """The stopped one wakes up when another has answered its ticket, and is refused."""
    wait_for_agents(program)
    other = Workspace.create(tmp_path / "other")
    late = start(STOPPED, other, "lost")
    rounds = ("emergence", TASK, "--children", "3", "--max-rounds", "1")
    command = [*program, *rounds, *seats(patient, other, "L2N1", "L2N2", "L2N3")]
    begun = forks.Fork(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status = os.waitpid(late.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    expire(other)
    start(ANSWER, patient, "script")
    start(ANSWER, other, "lost")
    code, parks = begun.wait(2 * PATIENCE), 0
    (session,) = recorded()
    while code == 5:  # only the person is awaited
        parks += 1
        assert parks < 8, "no progress"
        state = progress(program, session)
        for key in set(state["awaited"]) - state["tickets"].keys():
            assert run(program, "sessions", "answer", session, key, "Yes, says a person.").returncode == 0
        resumed = run(program, "resume", session, "--json")
        code = resumed.returncode
    assert code == 0, resumed.stderr
    report = json.loads(resumed.stdout)
    assert (report["replied"], report["missing"]) == (3, [])
    again = "tickets offered again after a claim that brought no answer: L2N3 on round-1/leaf_respond/L2N3"
    assert again in report["incidents"]
    late.send_signal(signal.SIGCONT)
    _, refused = late.communicate(timeout=PATIENCE)
    assert late.returncode == 2
    assert "has ended" in refused
    tickets = [*patient.tickets(), *other.tickets()]
    assert all(ticket.state == "completed" for ticket in tickets)
    asked = [(str(ticket.data["key"]), ticket.iteration) for ticket in tickets]
    assert len(asked) == len(set(asked)), "nothing was asked twice"
    assert run(program, "replay", session).returncode == 0


def wait_for_agents(program: list[str]) -> None:
    """Let the program stay up while agents are awaited who are only on their way."""
    path = Path(program[1])
    path.write_text(path.read_text().replace("PATIENCE_SECONDS = 0.0", "PATIENCE_SECONDS = 3600.0"))


def test_killed_session_finds_its_tickets_on_resume(program: list[str], patient: Workspace, start: Start) -> None:
    """Killed when both tickets are out; one is answered before it is resumed, one by a script after that."""
    wait_for_agents(program)
    vote = ("vote", TASK, "--votes", "2", "--model", f"workspace:{patient.path}")
    process = forks.Fork([*program, *vote], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(patient.tickets()) < 2:
        pass
    (session,) = recorded()
    first, second = patient.tickets()
    while process.poll() is None and not {f"`{first.id}`", f"`{second.id}`"} <= set(
        run(program, "show", session).stdout.split()
    ):
        pass
    assert process.poll() is None
    process.kill()
    process.wait()
    claimed = claim(patient, first.id, "ann")
    assert claimed is not None
    submit(patient, claimed, "The answer is yes.")
    start(ANSWER, patient, "bob")
    done = run(program, "resume", session, "--json")
    assert done.returncode == 0, done.stderr
    assert "in flight" not in done.stderr, "a ticket is not lost with the process that posted it"
    assert [ticket.id for ticket in patient.tickets()] == [first.id, second.id]
    assert json.loads(done.stdout)["ledger"]["actual"]["lost"] == 0


@pytest.mark.parametrize("arguments", [("--dry-run",), ()])
def test_missing_workspace_is_refused_before_a_session_begins(
    program: list[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    refused = run(program, "vote", TASK, "--model", MODEL, "--agent", f"V1=workspace:{tmp_path}/nowhere", *arguments)
    assert refused.returncode == 2
    assert f"Make it: consilience workspace new {tmp_path}/nowhere" in " ".join(refused.stderr.split())
    assert recorded() == []
