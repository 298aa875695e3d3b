"""Real processes on one workspace: racing, killed at any instant, stopped and woken late."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from consilience.coordination import Ticket, Workspace, claim, post, result, sweep
from kit import stops
from kit.forks import PYTHONPATH, Fork

pytestmark = pytest.mark.processes

PROCESSES = 10

PRELUDE = """
import json, os, sys
from consilience.coordination import *
os.fsync = lambda descriptor: None  # nothing here cuts the power
agent, paths = sys.argv[1], sys.argv[2:]
print("ready", flush=True)
sys.stdin.readline()
"""
RACE = """
won = {path: {} for path in paths}
spaces = [Workspace.open(path) for path in paths]
ids = [ticket.id for ticket in spaces[0].tickets()]
for id in ids:
    for space, path in zip(spaces, paths):
        ticket = claim(space, id, agent)
        if ticket:
            won[path][id] = ticket.claim_token
            submit(space, ticket, f"{agent} did {id} of {space.session_id}")
print(json.dumps(won), flush=True)
"""
CLAIM = """
ticket = claim(Workspace.open(paths[0]), "t", agent, now=0)
print(ticket.claim_token if ticket else "", flush=True)
sys.stdin.readline()
try:
    print(submit(Workspace.open(paths[0]), ticket, f"by {agent}").state, flush=True)
except ClaimLost as error:
    print("lost", flush=True)
"""
WORK = """
space = Workspace.open(paths[0])
while ticket := claim_next(space, agent, now=0):
    print(ticket.id, flush=True)
    try:
        submit(space, ticket, "result of " + ticket.id)
    except ClaimLost:
        pass
    print(ticket.id, flush=True)
"""
LOCK = """
space = Workspace.open(paths[0])
for _ in range(20):
    with lock(space, "counter", agent, wait=1000):
        path = os.path.join(paths[0], "counter")
        count = int(open(path).read())
        open(path, "w").write(str(count + 1))
"""


@pytest.fixture(autouse=True)
def _nothing_cuts_the_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@contextmanager
def process(program: str, agent: str, *workspaces: Workspace) -> Iterator[Fork]:
    """A process that has imported everything and waits for a line."""
    command = [sys.executable, "-c", PRELUDE + program, agent, *(str(workspace.path) for workspace in workspaces)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with Fork(command, env=environment, stdin=PIPE, stdout=PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: Fork) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def tell(started: Fork) -> None:
    assert started.stdin is not None
    started.stdin.write("\n")
    started.stdin.flush()


def test_racing_processes_claim_each_ticket_once(tmp_path: Path, whole: bool) -> None:
    spaces = [Workspace.create(tmp_path / name) for name in ("one", "two")]
    ids = [f"t{number}" for number in range(1000 if whole else 60)]
    for space in spaces:
        for id in ids:
            post(space, Ticket(id=id))
    with ExitStack() as stack:
        racers = [stack.enter_context(process(RACE, f"agent{n}", *spaces)) for n in range(PROCESSES)]
        assert [line(racer) for racer in racers] == ["ready"] * PROCESSES
        for racer in racers:
            tell(racer)
        won = [json.loads(line(racer)) for racer in racers]
        assert [racer.wait() for racer in racers] == [0] * PROCESSES
    for space in spaces:
        winners = [(id, token, n) for n, tokens in enumerate(won) for id, token in tokens[str(space.path)].items()]
        assert sorted(id for id, _, _ in winners) == sorted(ids)  # each once, none lost
        for id, token, n in winners:
            ticket = space.ticket(id)
            assert (ticket.state, ticket.claim_token, ticket.revision) == ("completed", token, 3)
            found = result(space, id)
            assert found is not None
            assert found.text == f"agent{n} did {id} of {space.session_id}"
        stops.check_shown(space)
        assert sweep(space).damaged == ()
    assert sum(len(tokens) > 0 for racer in won for tokens in racer.values()) > PROCESSES  # they did race


def test_lock_admits_one_of_ten_processes_at_a_time(tmp_path: Path) -> None:
    space = Workspace.create(tmp_path / "w")
    (space.path / "counter").write_text("0")
    with ExitStack() as stack:
        counters = [stack.enter_context(process(LOCK, f"agent{n}", space)) for n in range(PROCESSES)]
        for counter in counters:
            assert line(counter) == "ready"
        for counter in counters:
            tell(counter)
        assert [counter.wait() for counter in counters] == [0] * PROCESSES
    assert (space.path / "counter").read_text() == str(20 * PROCESSES)


def test_ticket_of_killed_claimers_fails_permanently_after_its_attempts(tmp_path: Path) -> None:
    space = Workspace.create(tmp_path / "w")
    post(space, Ticket(id="t"))
    for attempt in range(2):
        with process(CLAIM, "red", space) as claimer:
            assert line(claimer) == "ready"
            tell(claimer)
            assert line(claimer) == space.ticket("t").claim_token
            claimer.kill()
            assert claimer.wait() == -signal.SIGKILL
        assert sweep(space, now=100).expired == ()
        assert claim(space, "t", "blue") is None
        assert sweep(space, now=301).requeued == (("t",) if attempt == 0 else ())
    ticket = space.ticket("t")
    assert (ticket.state, [attempt.agent for attempt in ticket.failure_history]) == (
        "permanently_failed",
        ["red", "red"],
    )
    assert result(space, "t") is None
    assert claim(space, "t", "blue") is None


@pytest.mark.parametrize("finished", [False, True])
def test_claimer_stopped_beyond_its_claim_submits_nothing(tmp_path: Path, finished: bool) -> None:
    space = Workspace.create(tmp_path / "w")
    post(space, Ticket(id="t"))
    with process(CLAIM, "red", space) as late, process(CLAIM, "blue", space) as other:
        for claimer in (late, other):
            assert line(claimer) == "ready"
        tell(late)
        line(late)
        late.send_signal(signal.SIGSTOP)
        assert sweep(space, now=301).requeued == ("t",)
        tell(other)
        assert line(other) == space.ticket("t").claim_token
        if finished:
            tell(other)
            assert line(other) == "completed"
        late.send_signal(signal.SIGCONT)
        tell(late)
        assert line(late) == "lost"
        if not finished:
            tell(other)
            assert line(other) == "completed"
    found = result(space, "t")
    assert found is not None
    assert (found.text, found.ticket.claimed_by) == ("by blue", "blue")


def test_workers_killed_at_random_lose_no_ticket(tmp_path: Path, whole: bool) -> None:
    """Claims are dated 0, so that each sweep ends those that are live, of processes that go on, as well."""
    space = Workspace.create(tmp_path / "w")
    ids = [f"t{number}" for number in range(400 if whole else 120)]
    for id in ids:
        post(space, Ticket(id=id, max_requeues=1000))
    dice = random.Random(0)
    kills = 0
    while any(not ticket.is_final for ticket in space.tickets()):
        with ExitStack() as stack:
            workers = [stack.enter_context(process(WORK, f"agent{n}", space)) for n in range(3)]
            for worker in workers:
                assert line(worker) == "ready"
            for worker in workers:
                tell(worker)
            for worker in workers:
                for _ in range(dice.randrange(40)):
                    line(worker)
                sweep(space, now=1000)
                worker.kill()
                kills += worker.wait() == -signal.SIGKILL
        sweep(space, now=1000)
        stops.check_shown(space)
    assert kills
    for id in ids:
        found = result(space, id)
        assert found is not None
        assert found.text == f"result of {id}"


def run_stops(how: str, scenario: str) -> int:
    """In a small process, since it forks for each call."""
    command = [sys.executable, "-m", "kit.stops", how, scenario]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return int(json.loads(ended.stdout)[scenario])


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("scenario", [*stops.SCENARIOS, "lock"])
def test_process_stopped_at_any_system_call_and_woken_late_corrupts_nothing(scenario: str) -> None:
    assert run_stops("stops", scenario) > 20


@pytest.mark.matrix(keep=4)
@pytest.mark.parametrize("scenario", stops.SCENARIOS)
def test_process_killed_at_any_system_call_loses_no_ticket(scenario: str) -> None:
    assert run_stops("kills", scenario) > 3
