"""Operations on a workspace in real processes that are stopped or killed before any one of their system calls.

`python -m kit.stops stops|kills SCENARIO…` runs the scenarios at every call and prints how many places it tried of each.
A child is forked for each place, and stops or kills itself there. What is stopped goes on after another operation ran whole.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from consilience.coordination import (
    ClaimLost,
    Ticket,
    Workspace,
    acquire,
    claim,
    fail,
    post,
    renew,
    result,
    submit,
    sweep,
    withdraw,
)
from consilience.coordination.files import DRAFT_PREFIX
from consilience.coordination.history import HISTORY, record_name
from consilience.coordination.records import STATES

WRITING = ("link", "rename", "unlink", "mkdir", "write", "open")
READING = ("lstat", "listdir", "fstat")
NEVER = 10_000
EXPIRED = 1_000.0
"""A time at which claims made at 0 have expired."""

Value = dict[str, object]
Operation = Callable[[Workspace, Ticket], Value]


@dataclass(frozen=True)
class Scenario:
    """`first` is stopped or killed; `second` runs meanwhile. `claimed`: whether the ticket is claimed before, at the time 0."""

    first: Operation
    second: Operation
    claimed: bool = True


def do_post(workspace: Workspace, ticket: Ticket) -> Value:
    return {"state": post(workspace, Ticket(id="other", topic="x"), now=0).state}


def do_claim(workspace: Workspace, ticket: Ticket) -> Value:
    claimed = claim(workspace, ticket.id, "red", now=0)
    return {"claimed": claimed.claim_token if claimed else ""}


def do_submit(workspace: Workspace, ticket: Ticket) -> Value:
    return {"sha256": getattr(submit(workspace, ticket, "by the claimer", now=1).result, "sha256", "")}


def do_fail(workspace: Workspace, ticket: Ticket) -> Value:
    return {"state": fail(workspace, ticket, "no time", now=1).state}


def do_renew(workspace: Workspace, ticket: Ticket) -> Value:
    return {"claimed": renew(workspace, ticket, now=EXPIRED).claim_token}


def do_sweep(workspace: Workspace, ticket: Ticket) -> Value:
    return {"expired": list(sweep(workspace, now=EXPIRED).expired)}


def do_withdraw(workspace: Workspace, ticket: Ticket) -> Value:
    return {"state": withdraw(workspace, ticket.id, "quorum", now=1).state}


def do_take_over(workspace: Workspace, ticket: Ticket) -> Value:
    """The ticket expires, and another agent claims it and hands in its result."""
    sweep(workspace, now=EXPIRED)
    claimed = claim(workspace, ticket.id, "blue", now=EXPIRED)
    if claimed is None:
        return {}
    completed = submit(workspace, claimed, "by the other", now=EXPIRED)
    return {"claimed": claimed.claim_token, "sha256": getattr(completed.result, "sha256", "")}


def do_claim_again(workspace: Workspace, ticket: Ticket) -> Value:
    """The ticket expires, and another agent claims it and works on."""
    sweep(workspace, now=EXPIRED)
    claimed = claim(workspace, ticket.id, "blue", now=EXPIRED)
    return {"claimed": claimed.claim_token if claimed else ""}


def do_claim_other(workspace: Workspace, ticket: Ticket) -> Value:
    claimed = claim(workspace, ticket.id, "blue", now=0)
    return {"claimed": claimed.claim_token if claimed else ""}


def do_expire_twice(workspace: Workspace, ticket: Ticket) -> Value:
    """The ticket expires, another agent claims it, and that claim expires too."""
    sweep(workspace, now=EXPIRED)
    claimed = claim(workspace, ticket.id, "blue", now=EXPIRED)
    sweep(workspace, now=2 * EXPIRED)
    return {"claimed": claimed.claim_token if claimed else ""}


SCENARIOS = {
    "post-post": Scenario(do_post, do_post),
    "claim-claim": Scenario(do_claim, do_claim_other, claimed=False),
    "claim-withdraw": Scenario(do_claim, do_withdraw, claimed=False),
    "claim-take-over": Scenario(do_claim, do_take_over, claimed=False),
    "claim-expire-twice": Scenario(do_claim, do_expire_twice, claimed=False),
    "withdraw-claim": Scenario(do_withdraw, do_claim_other, claimed=False),
    "submit-take-over": Scenario(do_submit, do_take_over),
    "submit-claim-again": Scenario(do_submit, do_claim_again),
    "fail-claim-again": Scenario(do_fail, do_claim_again),
    "submit-expire-twice": Scenario(do_submit, do_expire_twice),
    "submit-withdraw": Scenario(do_submit, do_withdraw),
    "submit-submit": Scenario(do_submit, do_submit),
    "fail-take-over": Scenario(do_fail, do_take_over),
    "renew-take-over": Scenario(do_renew, do_take_over),
    "sweep-sweep": Scenario(do_sweep, do_sweep),
    "sweep-submit": Scenario(do_sweep, do_submit),
    "sweep-renew": Scenario(do_sweep, do_renew),
    "sweep-take-over": Scenario(do_sweep, do_take_over),
    "withdraw-submit": Scenario(do_withdraw, do_submit),
}


# --- running them


def stops(scenario: Scenario) -> int:
    """Stop `first` before each of its system calls, run `second`, let `first` go on; return how many places there were."""
    for place in range(NEVER):
        with prepared(scenario.claimed) as (workspace, ticket):
            pid, outcome = started(scenario.first, workspace, ticket, place, signal.SIGSTOP, WRITING + READING)
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return place
            other = attempted(scenario.second, workspace, ticket)
            os.kill(pid, signal.SIGCONT)
            os.waitpid(pid, 0)
            check(workspace, ticket, [json.loads(outcome()), other])
            check_shown(workspace)
            left = [name for _, _, names in os.walk(workspace.path) for name in names if name.startswith(DRAFT_PREFIX)]
            assert not left, left
    raise AssertionError("it never ended")


def kills(scenario: Scenario) -> int:
    """Kill `first` before each of its writing calls, or amid a write; then let others go on. Return how many places there were."""
    for place in range(NEVER):
        with prepared(scenario.claimed) as (workspace, ticket):
            pid, _ = started(scenario.first, workspace, ticket, place, signal.SIGKILL, WRITING)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSIGNALED(status):
                return place
            other = attempted(scenario.second, workspace, ticket)
            check(workspace, ticket, [other])
            later = 4e9  # drafts of the killed process are old by then
            sweep(workspace, now=later)
            check_shown(workspace)
            assert not [
                name for _, _, names in os.walk(workspace.path) for name in names if name.startswith(DRAFT_PREFIX)
            ]
            last = workspace.ticket(ticket.id)
            if not last.is_final:
                claimed = claim(workspace, ticket.id, "third", now=later)
                assert claimed is not None, last
                submit(workspace, claimed, "by the third", now=later)
            check(workspace, ticket, [])
            assert workspace.ticket(ticket.id).is_final
    raise AssertionError("it never ended")


class prepared:
    """A new workspace with one ticket, claimed by red at the time 0 if so wished."""

    def __init__(self, claimed: bool) -> None:
        self.claimed = claimed
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)

    def __enter__(self) -> tuple[Workspace, Ticket]:
        workspace = Workspace.create(Path(self.directory.name) / "w", agents=["red", "blue"], now=0)
        ticket = post(workspace, Ticket(id="t"), now=0)
        claimed = claim(workspace, "t", "red", now=0) if self.claimed else ticket
        assert claimed is not None
        return workspace, claimed

    def __exit__(self, *_: object) -> None:
        self.directory.cleanup()


def attempted(operation: Operation, workspace: Workspace, ticket: Ticket) -> Value:
    try:
        return operation(workspace, ticket)
    except ClaimLost:
        return {"lost": True}


def started(
    operation: Operation, workspace: Workspace, ticket: Ticket, place: int, number: int, calls: tuple[str, ...]
) -> tuple[int, Callable[[], str]]:
    """Fork a process for the operation that sends itself a signal before its call number `place`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)

        def outcome() -> str:
            with os.fdopen(reading) as pipe:
                return pipe.read()

        return pid, outcome
    try:
        os.close(reading)
        tell, exit_ = os.write, os._exit
        interrupt(place, number, calls)
        outcome_of = attempted(operation, workspace, ticket)
        tell(writing, json.dumps(outcome_of).encode())
        exit_(0)
    except BaseException as error:
        tell(writing, json.dumps({"error": repr(error)}).encode())
        os._exit(1)


def interrupt(place: int, number: int, calls: tuple[str, ...]) -> None:
    """Let this process send itself the signal before the call of that number; a write is interrupted amid its data."""
    seen = 0

    def watched(name: str) -> Callable[..., object]:
        real: Callable[..., object] = getattr(os, name)

        def call(*args: object, **options: object) -> object:
            nonlocal seen
            is_reading = name == "open" and not int(args[1]) & os.O_CREAT  # type: ignore[call-overload]
            if is_reading and calls == WRITING:
                return real(*args, **options)
            seen += 1
            if seen == place + 1:
                if name == "write" and number == signal.SIGKILL:
                    data = bytes(args[1])  # type: ignore[call-overload]
                    real(args[0], data[: len(data) // 2])
                os.kill(os.getpid(), number)
            return real(*args, **options)

        return call

    for name in calls:
        setattr(os, name, watched(name))


# --- what must hold


def records(workspace: Workspace, ticket_id: str) -> Iterator[Ticket]:
    number = 1
    while (path := workspace.path / HISTORY / record_name(ticket_id, number)).exists():
        yield Ticket.model_validate_json(path.read_bytes())
        number += 1


FOLLOWING = {
    "pending": {"active", "permanently_failed"},
    "active": {"active", "completed", "failed", "permanently_failed"},
    "failed": {"pending", "permanently_failed"},
    "completed": set(),
    "permanently_failed": set(),
}


def check(workspace: Workspace, ticket: Ticket, outcomes: list[Value]) -> None:
    """The history is whole, every claim that was granted is in it once, and what was accepted is the result."""
    assert not [outcome for outcome in outcomes if "error" in outcome], outcomes
    history = list(records(workspace, ticket.id))
    assert history[0].state == "pending"
    assert [record.revision for record in history] == list(range(1, len(history) + 1))
    for before, after in pairwise(history):
        assert after.state in FOLLOWING[before.state], (before, after)
        if after.state == before.state == "active":
            assert after.claim_token == before.claim_token
        assert after.failure_history[: len(before.failure_history)] == before.failure_history
        if after.result is not None:
            assert after.result.submitted_by == before.claimed_by, "another agent's claim was used"
    assert sum(record.state == "completed" for record in history) <= 1
    last = workspace.ticket(ticket.id)
    assert last == history[-1]
    granted = [record.claim_token for record in history if record.state == "active"]
    returned = [str(outcome["claimed"]) for outcome in outcomes if outcome.get("claimed")]
    assert set(returned) <= set(granted), (returned, granted)
    attempts = [record.claim_token for record in history if record.state == "pending"]
    assert len(set(granted)) <= len(attempts), "an attempt was claimed twice"
    accepted = {str(outcome["sha256"]) for outcome in outcomes if outcome.get("sha256")}
    assert len(accepted) <= 1, "two results were accepted"
    if accepted:
        assert last.state == "completed"
        assert last.result is not None
        assert accepted == {last.result.sha256}
    if last.state == "completed":
        assert result(workspace, ticket.id, last.iteration) is not None


def check_shown(workspace: Workspace) -> None:
    """The directories of the states show each ticket where it is, by its last record."""
    expected = {(ticket.state, f"{ticket.id}.json"): ticket for ticket in workspace.tickets()}
    shown = {(state, path.name): path for state in STATES for path in (workspace.path / "tickets" / state).iterdir()}
    assert shown.keys() == expected.keys(), (sorted(shown), sorted(expected))
    for place, path in shown.items():
        assert Ticket.model_validate_json(path.read_bytes()) == expected[place]


# --- locks


def lock_stops() -> int:
    """Stop a process that takes a stale lock from its holder at each call, let two others take and free it, go on."""
    for place in range(NEVER):
        with tempfile.TemporaryDirectory() as directory:
            workspace = Workspace.create(Path(directory) / "w", now=0)
            ticket = post(workspace, Ticket(id="t"))
            stale = acquire(workspace, "l", "red", wait=0, clock=lambda: 0.0)
            assert stale is not None

            def first(workspace: Workspace, ticket: Ticket) -> Value:
                held = acquire(workspace, "l", "blue", wait=0, clock=lambda: EXPIRED)
                return {"held": held is not None and held.is_held()}

            pid, outcome = started(first, workspace, ticket, place, signal.SIGSTOP, WRITING + READING)
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return place
            third = acquire(workspace, "l", "third", wait=0, clock=lambda: EXPIRED)
            stale.release()  # it woke up late, and frees nothing that is another's
            os.kill(pid, signal.SIGCONT)
            os.waitpid(pid, 0)
            blue_holds = json.loads(outcome())["held"]
            assert blue_holds != (third is not None and third.is_held()), place
    raise AssertionError("it never ended")


def main(how: str, names: list[str]) -> None:
    os.fsync = lambda descriptor: None  # nothing here cuts the power
    tried = {}
    for name in names:
        if name == "lock":
            tried[name] = lock_stops()
        else:
            tried[name] = (stops if how == "stops" else kills)(SCENARIOS[name])
    print(json.dumps(tried))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
