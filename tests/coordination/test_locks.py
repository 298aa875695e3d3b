"""Advisory locks. Clocks are passed, and no test waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from consilience.coordination import Ticket, Workspace, WorkspaceError, acquire, claim, lock, post, sweep
from consilience.coordination.locks import POLL_SECONDS, STALE_SECONDS, WAIT_SECONDS, Lock


class Clock:
    def __init__(self, at: float = 0.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "w", now=0)


def take(workspace: Workspace, agent: str, clock: Clock, wait: float = WAIT_SECONDS) -> Lock | None:
    return acquire(workspace, "l", agent, wait=wait, clock=clock, sleep=clock.sleep)


def test_waiter_gives_up_after_its_time_without_changing_the_lock(workspace: Workspace) -> None:
    clock = Clock()
    held = take(workspace, "red", clock)
    assert held is not None
    files = {name: (workspace.path / "locks" / name).read_bytes() for name in os.listdir(workspace.path / "locks")}
    assert take(workspace, "blue", clock) is None
    assert clock.at == pytest.approx(WAIT_SECONDS, abs=2 * POLL_SECONDS)
    assert files == {
        name: (workspace.path / "locks" / name).read_bytes() for name in os.listdir(workspace.path / "locks")
    }
    assert held.is_held()


def test_waiter_gets_a_lock_that_is_released(workspace: Workspace) -> None:
    clock = Clock()
    held = take(workspace, "red", clock)
    assert held is not None

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.at > 10:
            held.release()

    other = acquire(workspace, "l", "blue", clock=clock, sleep=sleep)
    assert other is not None
    assert clock.at == pytest.approx(10, abs=2 * POLL_SECONDS)
    held.release()
    assert other.is_held()
    assert not held.is_held()


def test_stale_lock_is_taken_and_its_late_holder_does_not_release_it(workspace: Workspace) -> None:
    clock = Clock()
    held = take(workspace, "red", clock)
    assert held is not None
    clock.at = STALE_SECONDS
    assert take(workspace, "blue", clock, wait=0) is None
    clock.at = STALE_SECONDS + 1
    other = take(workspace, "blue", clock, wait=0)
    assert other is not None
    held.release()
    assert other.is_held()
    assert take(workspace, "third", clock, wait=0) is None


def test_sweep_frees_stale_locks_only(workspace: Workspace) -> None:
    assert acquire(workspace, "old", "red", clock=lambda: 0.0)
    assert acquire(workspace, "new", "red", clock=lambda: 200.0)
    assert sweep(workspace, now=301).freed_locks == ("old",)
    assert sweep(workspace, now=301).freed_locks == ()


def test_lock_taken_before_the_clock_was_set_back_is_stale(workspace: Workspace) -> None:
    assert take(workspace, "red", Clock(1e6))
    assert take(workspace, "blue", Clock(0), wait=0)


def test_lock_and_claim_of_the_same_name_are_independent(workspace: Workspace) -> None:
    post(workspace, Ticket(id="l"))
    assert take(workspace, "red", Clock())
    assert claim(workspace, "l", "blue") is not None
    assert take(workspace, "third", Clock(), wait=0) is None


def test_lock_with_a_truncated_record_is_free(workspace: Workspace) -> None:
    assert take(workspace, "red", Clock())
    (path,) = (workspace.path / "locks").iterdir()
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:20])
    assert take(workspace, "blue", Clock(), wait=0)


def test_lock_at_the_max_record_number_cannot_be_acquired(workspace: Workspace) -> None:
    (workspace.path / f"locks/l~{'9' * 15}.json").write_text("{}")
    assert take(workspace, "red", Clock()) is None
    assert os.listdir(workspace.path / "locks") == [f"l~{'9' * 15}.json"]


def test_lock_used_often_keeps_few_records(workspace: Workspace) -> None:
    for _ in range(200):
        with lock(workspace, "l", "red"):
            pass
    assert len(os.listdir(workspace.path / "locks")) < 80
    refused = pytest.raises(WorkspaceError, match="lock l was held by another agent")
    with lock(workspace, "l", "red"), refused, lock(workspace, "l", "blue", wait=0):
        raise AssertionError("both hold it")
