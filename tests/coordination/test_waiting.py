"""Waiting for outside agents, on a clock that passes only by waiting, and for real processes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from consilience.coordination import (
    ClaimLost,
    Result,
    Ticket,
    Workspace,
    claim,
    fail,
    post,
    renew,
    select_convergence_strategy,
    submit,
)
from consilience.coordination.files import MAX_RECORD_BYTES, Folder
from consilience.coordination.waiting import (
    Timeouts,
    Waited,
    Waiter,
    required_after_timeout,
    wait_for_agent_result,
    wait_for_results,
)
from kit.forks import Fork
from kit.outside import FakeTime, take, work

BEGIN = 1_000_000.0


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "session", agents=("red", "blue"), now=BEGIN)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime(begun_at=BEGIN)


def offer(workspace: Workspace, *agents: str, iteration: int = 1, **fields: object) -> None:
    for agent in agents:
        ticket = {"id": f"{agent}_{iteration}", "assigned_to": agent, "iteration": iteration, **fields}
        post(workspace, Ticket.model_validate(ticket), now=BEGIN)


def wait(
    workspace: Workspace, time: FakeTime, agent: str = "red", timeout: float = 120, **options: int
) -> Result | None:
    return wait_for_agent_result(agent, workspace.path, timeout, waiter=time.waiter, **options)


# --- one agent


def test_wait_for_agent_result_returns_the_verified_result(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    time.at(30, lambda: work(workspace, "red", "Found.", now=time.wall()))
    found = wait(workspace, time)
    assert found is not None
    assert (found.text, found.ticket.id) == ("Found.", "red_1")
    assert 30 <= time.now <= 31


def test_wait_for_agent_result_already_submitted_returns_at_once(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    work(workspace, "red", "Found.")
    assert wait(workspace, time, timeout=0.001) is not None
    assert time.now == 0


def test_wait_for_agent_result_counts_the_timeout_from_the_claim(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    time.at(100, lambda: take(workspace, "red", now=time.wall()))
    time.at(215, lambda: submit(workspace, workspace.ticket("red_1"), "Late, but in time.", now=time.wall()))
    assert wait(workspace, time) is not None


@pytest.mark.parametrize(("claimed_at", "ends_at"), [(None, 120), (0, 120), (100, 220)])
def test_wait_for_agent_result_ends_after_the_timeout(
    workspace: Workspace, time: FakeTime, claimed_at: float | None, ends_at: float
) -> None:
    offer(workspace, "red")
    if claimed_at is not None:
        time.at(claimed_at, lambda: take(workspace, "red", now=time.wall()))
    assert wait(workspace, time) is None
    assert ends_at <= time.now <= ends_at + 1


def test_wait_for_agent_result_without_a_ticket_ends_after_the_timeout(workspace: Workspace, time: FakeTime) -> None:
    assert wait(workspace, time) is None
    assert 120 <= time.now <= 121


def test_wait_for_agent_result_finds_a_ticket_posted_while_waiting(workspace: Workspace, time: FakeTime) -> None:
    time.at(10, lambda: offer(workspace, "red"))
    time.at(20, lambda: work(workspace, "red", "Found.", now=time.wall()))
    assert wait(workspace, time) is not None


def test_wait_for_agent_result_after_the_timeout_keeps_the_claim(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    claimed = take(workspace, "red")
    before = workspace.ticket("red_1")
    assert wait(workspace, time) is None
    assert workspace.ticket("red_1") == before
    assert submit(workspace, claimed, "Later.").state == "completed"


def test_wait_for_agent_result_ends_when_the_ticket_failed_permanently(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red", max_requeues=0)
    time.at(5, lambda: fail(workspace, take(workspace, "red"), "no such file"))
    assert wait(workspace, time) is None
    assert time.now <= 7


def test_wait_for_agent_result_returns_the_last_or_the_requested_iteration(
    workspace: Workspace, time: FakeTime
) -> None:
    offer(workspace, "red")
    work(workspace, "red", "First.")
    offer(workspace, "red", iteration=2)
    assert wait(workspace, time) is None  # not the file of iteration 1
    first = wait(workspace, time, iteration=1)
    assert first is not None
    assert first.text == "First."


def test_wait_for_agent_result_sweeps_a_killed_agent_and_gets_another_result(
    workspace: Workspace, time: FakeTime
) -> None:
    offer(workspace, "red")
    take(workspace, "red", now=time.wall())
    seen: list[str] = []
    time.at(340, lambda: seen.append(workspace.ticket("red_1").state))
    time.at(350, lambda: work(workspace, "red", "From another process.", now=time.wall()))
    found = wait(workspace, time, timeout=400)
    assert found is not None
    assert seen == ["pending"]
    assert found.ticket.failure_history[0].failure_reason.startswith("no result from red within 300 s")


@pytest.mark.parametrize("jump", [-1_000_000.0, 10_000_000.0])
def test_wait_for_agent_result_ignores_jumps_of_the_wall_clock(
    workspace: Workspace, time: FakeTime, jump: float
) -> None:
    offer(workspace, "red")

    def set_clock() -> None:
        time.begun_at += jump

    time.at(10, set_clock)
    time.at(100, lambda: work(workspace, "red", "Found.", now=time.wall()))
    assert wait(workspace, time) is not None
    offer(workspace, "blue")
    begun = time.now
    assert wait(workspace, time, "blue") is None
    assert 120 <= time.now - begun <= 121


def test_wait_for_agent_result_polls_with_growing_pauses_up_to_a_second(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    pauses: list[float] = []
    waiter = time.waiter

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.pause(seconds)

    wait_for_agent_result("red", workspace.path, 600, waiter=type(waiter)(waiter.clock, pause, waiter.wall))
    assert len(pauses) < 700
    assert max(pauses) <= 1
    assert pauses[0] <= 0.05


def histories_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the id of a ticket whenever a record of it is read."""
    read: list[str] = []
    real = Folder.read

    def counted(folder: Folder, name: str, limit: int = MAX_RECORD_BYTES) -> bytes | None:
        if "~" in name:
            read.append(name.partition("~")[0])
        return real(folder, name, limit)

    monkeypatch.setattr(Folder, "read", counted)
    return read


def test_wait_for_agent_result_reads_no_other_ticket(
    workspace: Workspace, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(workspace, "red", *(f"reader{n}" for n in range(30)))
    read = histories_read(monkeypatch)
    assert wait(workspace, time, iteration=1) is None
    assert time.now >= 120
    assert set(read) == {"red_1"}


def test_wait_for_agent_result_without_a_ticket_reads_each_other_ticket_once(
    workspace: Workspace, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(workspace, *(f"reader{n}" for n in range(30)))
    read = histories_read(monkeypatch)
    time.at(90, lambda: post(workspace, Ticket(id="any"), now=BEGIN))
    time.at(100, lambda: claim(workspace, "any", "red", now=time.wall()))
    time.at(110, lambda: submit(workspace, workspace.ticket("any"), "Found.", now=time.wall()))
    found = wait(workspace, time)
    assert found is not None
    assert found.text == "Found."
    assert max(Counter(id for id in read if id != "any").values()) == 1


# --- several agents


def wait_all(workspace: Workspace, time: FakeTime, *agents: str, **options: object) -> Waited:
    wait: Callable[..., Waited] = wait_for_results
    return wait(workspace, agents, waiter=time.waiter, **options)


def test_wait_for_results_per_agent_counts_each_agent_from_its_claim(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red", "blue")
    time.at(60, lambda: take(workspace, "red", now=time.wall()))
    time.at(110, lambda: take(workspace, "blue", now=time.wall()))
    time.at(229, lambda: submit(workspace, workspace.ticket("blue_1"), "Blue.", now=time.wall()))
    waited = wait_all(workspace, time, "red", "blue")
    assert list(waited.results) == ["blue"]
    assert waited.missing == {"red": "no result within 120 s of its claim"}
    assert (waited.timed_out, waited.is_quorum) == (("red",), False)


def test_wait_for_results_total_shares_one_timeout(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red", "blue")
    time.at(100, lambda: take(workspace, "blue", now=time.wall()))
    waited = wait_all(workspace, time, "red", "blue", timeouts=Timeouts(60, "total"))
    assert waited.missing == dict.fromkeys(("red", "blue"), "no result within 120 s")
    assert 120 <= time.now <= 121


def test_wait_for_results_adaptive_gives_a_late_agent_more_time(workspace: Workspace, time: FakeTime) -> None:
    timeouts = Timeouts(100, "adaptive")
    for iteration, limit in ((1, 100), (2, 150), (3, 225)):
        offer(workspace, "red", "blue", iteration=iteration)
        work(workspace, "blue", "Blue.", iteration)
        begun = time.now
        wait_all(workspace, time, "red", "blue", iteration=iteration, timeouts=timeouts)
        assert limit <= time.now - begun <= limit + 1
    assert timeouts.limit("blue") == 100


def test_timeouts_total_has_one_limit_for_all_agents() -> None:
    assert Timeouts(60, "total").shared(["red", "blue"]) == 120
    assert Timeouts(60, "total", shared=90).shared(["red", "blue"]) == 90
    assert Timeouts(60, "per_agent", shared=90).shared(["red", "blue"]) is None


@pytest.mark.parametrize("strategy", ["per_agent", "total"])
def test_timeouts_not_adaptive_do_not_grow(strategy: Any) -> None:
    timeouts = Timeouts(100, strategy)
    timeouts.record_timeout("red")
    assert timeouts.limit("red") == 100


@pytest.mark.parametrize(
    ("quorum", "required"), [(1, 1), (2, 2), (4, 4), (5, 4), (10, 8), (11, 9), (12, 10), (100, 80)]
)
def test_required_after_timeout_is_80_percent_rounded_up(quorum: int, required: int) -> None:
    assert required_after_timeout(quorum) == required


@pytest.mark.parametrize(("handed_in", "is_quorum"), [(8, True), (7, False)])
def test_wait_for_results_80_percent_of_the_quorum_is_enough_after_the_timeout(
    workspace: Workspace, time: FakeTime, handed_in: int, is_quorum: bool
) -> None:
    agents = [f"reader_{number}" for number in range(1, 13)]
    offer(workspace, *agents)
    for agent in agents[:handed_in]:
        work(workspace, agent, agent)
    waited = wait_all(workspace, time, *agents, quorum=10, timeouts=Timeouts(300, "total", shared=300))
    assert (waited.is_quorum, list(waited.missing)) == (is_quorum, agents[handed_in:])
    assert 300 <= time.now <= 301


def test_wait_for_results_quorum_ends_the_wait_and_withdraws_the_rest(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "a", "b", "c")
    late = take(workspace, "c")
    work(workspace, "a", "A.")
    time.at(10, lambda: work(workspace, "b", "B.", now=time.wall()))
    waited = wait_all(workspace, time, "a", "b", "c", quorum=2, on_timeout="requeue")
    assert time.now < 12
    assert (sorted(waited.results), waited.is_quorum, waited.timed_out) == (["a", "b"], True, ())
    assert waited.missing == {"c": "the other results are a quorum"}
    with pytest.raises(ClaimLost, match="it was withdrawn: the other results are a quorum"):
        submit(workspace, late, "C.")


def test_wait_for_results_quorum_needs_the_priority_agents(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "a", "b", "c")
    work(workspace, "a", "A.")
    work(workspace, "b", "B.")
    time.at(50, lambda: work(workspace, "c", "C.", now=time.wall()))
    waited = wait_all(workspace, time, "a", "b", "c", quorum=2, priority=["c"])
    assert sorted(waited.results) == ["a", "b", "c"]
    assert 50 <= time.now <= 51


def test_wait_for_results_requeues_a_late_claim_for_another_agent(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    late = take(workspace, "red")
    time.at(150, lambda: work(workspace, "red", "From another process.", now=time.wall()))
    waited = wait_all(workspace, time, "red", on_timeout="requeue")
    assert waited.results["red"].text == "From another process."
    assert (waited.timed_out, waited.missing) == (("red",), {})
    with pytest.raises(ClaimLost):
        submit(workspace, late, "Too late.")


def test_wait_for_results_late_twice_fails_the_ticket_permanently(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    take(workspace, "red")
    time.at(150, lambda: take(workspace, "red", now=time.wall()))
    waited = wait_all(workspace, time, "red", on_timeout="requeue")
    assert waited.missing == {"red": "no result within 120 s of its claim"}
    assert workspace.ticket("red_1").state == "permanently_failed"
    assert 270 <= time.now <= 273


def test_wait_for_results_ends_if_no_agent_claims_the_requeued_ticket(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    take(workspace, "red")
    waited = wait_all(workspace, time, "red", on_timeout="requeue")
    assert waited.missing == {"red": "no result within 120 s"}
    assert workspace.ticket("red_1").withdrawn
    assert 240 <= time.now <= 243


def test_wait_for_results_with_withdraw_ends_at_the_first_timeout(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    take(workspace, "red")
    waited = wait_all(workspace, time, "red", on_timeout="withdraw")
    assert list(waited.missing) == ["red"]
    assert workspace.ticket("red_1").state == "permanently_failed"
    assert 120 <= time.now <= 121


@pytest.mark.parametrize("on_timeout", ["requeue", "withdraw"])
def test_wait_for_results_keeps_the_ticket_of_a_person_open(
    workspace: Workspace, time: FakeTime, on_timeout: str
) -> None:
    post(workspace, Ticket(id="anna_1", assigned_to="human:anna"), now=BEGIN)
    waited = wait_all(workspace, time, "anna", on_timeout=on_timeout)
    assert list(waited.missing) == ["anna"]
    assert workspace.ticket("anna_1").state == "pending"


def test_wait_for_results_counts_a_result_at_the_timeout(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    claimed = take(workspace, "red")
    time.at(120, lambda: submit(workspace, claimed, "Just.", now=time.wall()))
    waited = wait_all(workspace, time, "red", on_timeout="withdraw")
    assert waited.results["red"].text == "Just."


def test_wait_for_results_counts_a_result_submitted_just_before_the_withdrawal(
    workspace: Workspace, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consilience.coordination import waiting

    offer(workspace, "red")
    claimed = take(workspace, "red")
    withdraw = waiting.withdraw

    def submit_first(*arguments: Any) -> Ticket:
        submit(workspace, claimed, "Just.")
        return withdraw(*arguments)

    monkeypatch.setattr(waiting, "withdraw", submit_first)
    waited = wait_all(workspace, time, "red", on_timeout="withdraw")
    assert waited.results["red"].text == "Just."
    assert waited.missing == {}


def test_wait_for_results_renewed_claim_does_not_prolong_the_wait(workspace: Workspace, time: FakeTime) -> None:
    offer(workspace, "red")
    claimed = take(workspace, "red")
    for seconds in range(10, 300, 10):
        time.at(seconds, lambda: renew(workspace, claimed, now=time.wall()))
    assert wait(workspace, time) is None
    assert time.now <= 121


# --- real processes

READER = """
import sys
from consilience.coordination import ClaimLost, Workspace, atomic_claim_ticket, submit
directory, agent = sys.argv[1:]
claimed = atomic_claim_ticket(f"{agent}_1", agent, directory)
print("claimed", flush=True)
sys.stdin.readline()
try:
    submit(Workspace.open(directory), claimed, f"Read by {agent}.")
    print("submitted", flush=True)
except ClaimLost as error:
    print("refused", error, flush=True)
"""


@pytest.fixture
def readers(workspace: Workspace) -> Iterator[dict[str, Fork]]:
    """Twelve processes that have each claimed the ticket of a reader, and hand in when they are told to."""
    names = [f"reader_{number}" for number in range(1, 13)]
    offer(workspace, *names)
    processes = {
        name: Fork([sys.executable, "-c", READER, str(workspace.path), name], stdin=PIPE, stdout=PIPE, text=True)
        for name in names
    }
    try:
        for process in processes.values():
            assert process.stdout
            assert process.stdout.readline() == "claimed\n"
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def tell(process: Fork) -> str:
    """Let a reader hand in; return what it says."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


@pytest.mark.processes
def test_wait_for_results_of_twelve_readers_ends_at_a_quorum_of_ten(
    workspace: Workspace, readers: dict[str, Fork]
) -> None:
    waiting = list(readers)
    strategy = select_convergence_strategy("parallel_decomposition", {"num_agents": 12, "quorum": 10})
    strategy.initialize(workspace.path)

    def pause(seconds: float) -> None:
        assert tell(readers[waiting.pop(0)]) == "submitted\n"

    readers["reader_1"].kill()  # after its claim
    waiting.remove("reader_1")
    waited = strategy.collect(workspace.path, 1, waiter=Waiter(clock=lambda: 0.0, pause=pause))
    assert sorted(waited.results) == sorted(f"reader_{number}" for number in range(2, 12))
    assert sorted(waited.missing) == ["reader_1", "reader_12"]
    assert {found.text for found in waited.results.values()} == {f"Read by reader_{n}." for n in range(2, 12)}
    assert tell(readers["reader_12"]).startswith("refused the claim of ticket reader_12_1")
    assert strategy.check_convergence(workspace.path, 1)
    text = strategy.synthesize(workspace.path)
    assert "10 of 12 handed in, quorum 10" in text
    assert "- reader_12, iteration 1: withdrawn: the other results are a quorum" in text
    assert "Read by reader_1." not in text
