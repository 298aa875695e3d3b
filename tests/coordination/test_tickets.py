"""A ticket from its posting to its result, expiry or withdrawal. Times are passed, so no test waits."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from consilience.coordination import (
    ClaimLost,
    Ticket,
    Workspace,
    WorkspaceError,
    acquire,
    atomic_claim_ticket,
    claim,
    claim_next,
    fail,
    post,
    read_artifact,
    renew,
    result,
    submit,
    sweep,
    withdraw,
    write_artifact,
)
from consilience.coordination.files import MAX_ARTIFACT_BYTES
from consilience.domain.errors import UserError


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "w", agents=["red", "blue"], now=0)


def claimed(workspace: Workspace, ticket_id: str = "t", agent: str = "red", now: float = 0) -> Ticket:
    ticket = claim(workspace, ticket_id, agent, now=now)
    assert ticket is not None
    return ticket


def in_states(workspace: Workspace) -> dict[str, list[str]]:
    """What somebody sees who lists the directories of the states."""
    places = sorted((workspace.path / "tickets").iterdir())
    return {place.name: names for place in places if (names := sorted(os.listdir(place))) and place.name != "history"}


def test_posted_ticket_is_pending_with_its_session_and_defaults(workspace: Workspace) -> None:
    ticket = post(workspace, Ticket(id="t", topic="Is it sound?", assigned_to="red"), now=5)
    assert (ticket.state, ticket.session_id, ticket.created_at) == ("pending", workspace.session_id, 5)
    assert (ticket.ttl_seconds, ticket.max_requeues, ticket.requeue_count) == (300, 1, 0)
    assert workspace.ticket("t") == ticket
    assert in_states(workspace) == {"pending": ["t.json"]}
    assert os.listdir(workspace.path / "agents/red/inbox") == ["t.json"]


@pytest.mark.parametrize(
    ("kind", "seconds"), [("initial_analysis", 300), ("iteration", 180), ("synthesis", 600), ("meta", 300)]
)
def test_ticket_without_a_ttl_has_that_of_its_type(kind: str, seconds: float) -> None:
    assert Ticket.model_validate({"id": "t", "type": kind}).ttl_seconds == seconds
    assert Ticket.model_validate({"id": "t", "type": kind, "ttl_seconds": 7}).ttl_seconds == 7


def test_ticket_posted_twice_is_one_ticket(workspace: Workspace) -> None:
    ticket = Ticket(id="t", topic="x")
    post(workspace, ticket, now=0)
    held = claimed(workspace)
    assert post(workspace, ticket, now=9) == held
    with pytest.raises(WorkspaceError, match="another ticket has the id t"):
        post(workspace, Ticket(id="t", topic="y"))
    assert workspace.ticket("t") == held


def test_ticket_of_another_session_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    other = Workspace.create(tmp_path / "other")
    ticket = post(other, Ticket(id="t"))
    with pytest.raises(WorkspaceError, match=f"belongs to session {other.session_id}"):
        post(workspace, ticket)


def test_post_ignores_state_and_claim_of_the_given_ticket(workspace: Workspace) -> None:
    forged = Ticket(id="t", state="completed", claimed_by="red", claim_token="x", requeue_count=9, revision=4)
    ticket = post(workspace, forged, now=0)
    assert (ticket.state, ticket.claimed_by, ticket.claim_token) == ("pending", "", "")
    assert (ticket.requeue_count, ticket.revision) == (0, 1)


def test_ticket_keeps_unknown_keys(workspace: Workspace) -> None:
    post(workspace, Ticket.model_validate({"id": "t", "data": {"key": "k"}, "colour": "blue"}))
    completed = submit(workspace, claimed(workspace), "done")
    assert completed.data == {"key": "k"}
    assert completed.model_dump()["colour"] == "blue"


def test_claimed_ticket_is_active_and_refused_to_others(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    held = claimed(workspace, now=7)
    assert (held.state, held.claimed_by, held.claimed_at, held.expires_at) == ("active", "red", 7, 307)
    assert in_states(workspace) == {"active": ["t.json"]}
    assert claim(workspace, "t", "blue") is None
    assert claim(workspace, "t", "red") is None
    state = workspace.state_of("red")
    assert (state.status, state.current_ticket, state.last_heartbeat) == ("working", "t", 7)


def test_claim_of_a_ticket_assigned_to_another_agent_is_refused(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t", assigned_to="red"))
    with pytest.raises(WorkspaceError, match="assigned to red, not to blue"):
        claim(workspace, "t", "blue")
    with pytest.raises(WorkspaceError, match="no ticket u"):
        claim(workspace, "u", "blue")
    assert claim(workspace, "t", "red")


def test_atomic_claim_ticket_takes_an_id_agent_and_directory(workspace: Workspace) -> None:
    post(workspace, Ticket(id="ticket_1"))
    ticket = atomic_claim_ticket("ticket_1", "red", workspace.path)
    assert ticket is not None
    assert atomic_claim_ticket("ticket_1", "blue", str(workspace.path)) is None


def test_result_is_bound_to_ticket_and_iteration(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t", iteration=1))
    post(workspace, Ticket(id="u", iteration=2))
    completed = submit(
        workspace,
        claimed(workspace),
        "# First",
        summary="short",
        gates_passed=("specific_examples",),
        needs_iteration=True,
        iteration_reason="examples",
        now=9,
    )
    claimed(workspace, "u")
    handed_in = result(workspace, "t", 1)
    assert handed_in is not None
    assert (handed_in.text, handed_in.summary, handed_in.ticket) == ("# First", "short", completed)
    assert completed.result is not None
    assert (completed.result.submitted_by, completed.result.submitted_at) == ("red", 9)
    assert (completed.result.gates_passed, completed.result.needs_iteration) == (("specific_examples",), True)
    assert result(workspace, "t") == handed_in
    assert result(workspace, "t", 2) is None  # iteration 2 is not judged on iteration 1's file
    assert result(workspace, "u", 2) is None
    assert in_states(workspace) == {"active": ["u.json"], "completed": ["t.json"]}
    assert os.listdir(workspace.path / "agents/red/outbox") == ["t.json"]


def test_result_changed_after_submission_is_refused(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    completed = submit(workspace, claimed(workspace), "as handed in")
    assert completed.result is not None
    path = workspace.path / completed.result.artifact_path
    path.chmod(0o644)
    path.write_text("as changed!!")
    with pytest.raises(WorkspaceError, match="changed after it was handed in"):
        result(workspace, "t")
    path.unlink()
    with pytest.raises(WorkspaceError, match="missing"):
        result(workspace, "t")


def test_submit_twice_keeps_the_first_result(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    held = claimed(workspace)
    completed = submit(workspace, held, "done")
    assert submit(workspace, held, "done") == completed
    with pytest.raises(ClaimLost, match="completed with another result"):
        submit(workspace, held, "something else")
    assert result(workspace, "t").text == "done"  # type: ignore[union-attr]


def test_submit_without_a_claim_is_refused(workspace: Workspace) -> None:
    ticket = post(workspace, Ticket(id="t"))
    with pytest.raises(ClaimLost, match="it is pending"):
        submit(workspace, ticket, "never claimed")
    claimed(workspace)
    with pytest.raises(ClaimLost, match="red has claimed it since"):
        submit(workspace, ticket, "never claimed")


# --- expiry


def test_ticket_with_an_expired_claim_is_claimable_once_more_then_failed(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    first = claimed(workspace, now=0)
    assert sweep(workspace, now=300).expired == ()
    swept = sweep(workspace, now=301)
    assert (swept.expired, swept.requeued, swept.permanently_failed) == (("t",), ("t",), ())
    assert in_states(workspace) == {"pending": ["t.json"]}
    assert (workspace.state_of("red").status, workspace.state_of("red").last_heartbeat) == ("idle", 0)
    with pytest.raises(ClaimLost, match="it is pending"):
        submit(workspace, first, "late")
    second = claimed(workspace, agent="blue", now=400)
    with pytest.raises(ClaimLost, match="blue has claimed it since"):
        submit(workspace, first, "late")
    swept = sweep(workspace, now=701)
    assert (swept.expired, swept.requeued, swept.permanently_failed) == (("t",), (), ("t",))
    assert in_states(workspace) == {"permanently_failed": ["t.json"]}
    with pytest.raises(ClaimLost, match="it is permanently failed"):
        submit(workspace, second, "late")
    ticket = workspace.ticket("t")
    attempts = [(attempt.failed_at, attempt.agent, attempt.requeued) for attempt in ticket.failure_history]
    assert attempts == [(301, "red", True), (701, "blue", False)]
    assert ticket.failure_history[0].failure_reason == "no result from red within 300 s of its claim"
    assert ticket.requeue_count == 1
    assert claim(workspace, "t", "red") is None
    assert result(workspace, "t") is None


def test_submit_after_the_ttl_but_before_a_sweep_is_accepted(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    assert submit(workspace, claimed(workspace, now=0), "slow", now=9999).state == "completed"
    assert sweep(workspace, now=99999).expired == ()


def test_sweep_of_an_expired_claim_frees_its_locks(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    held = claimed(workspace, now=0)
    for name in ("index", "build"):
        assert acquire(workspace, name, "red", claim_token=held.claim_token, wait=0, clock=lambda: 200.0)
    assert acquire(workspace, "other", "red", wait=0, clock=lambda: 200.0)
    assert sweep(workspace, now=301).freed_locks == ("build", "index")
    assert acquire(workspace, "index", "blue", wait=0, clock=lambda: 302.0)
    assert acquire(workspace, "other", "blue", wait=0, clock=lambda: 302.0) is None


def test_renew_restarts_the_ttl_of_a_claim(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    held = claimed(workspace, now=0)
    renewed = renew(workspace, held, now=250)
    assert workspace.state_of("red").last_heartbeat == 250
    assert sweep(workspace, now=500).expired == ()
    assert submit(workspace, renewed, "done").state == "completed"
    with pytest.raises(ClaimLost):
        renew(workspace, held)


def test_claim_made_before_the_clock_was_set_back_still_expires(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    held = claimed(workspace, now=1_000_000)
    assert sweep(workspace, now=500).expired == ()
    assert sweep(workspace, now=800).expired == ()
    assert workspace.ticket("t").claim_token == held.claim_token
    assert sweep(workspace, now=801).expired == ("t",)


def test_sweep_by_a_slightly_different_clock_keeps_a_claim(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    held = claimed(workspace, now=1000)
    sweep(workspace, now=945)
    assert workspace.ticket("t") == held


@pytest.mark.parametrize("assignee", ["human", "human:anna"])
def test_ticket_of_a_person_does_not_expire(workspace: Workspace, assignee: str) -> None:
    post(workspace, Ticket(id="t", assigned_to=assignee))
    held = claimed(workspace, agent="anna", now=0)
    assert held.expires_at is None
    assert sweep(workspace, now=1e9).expired == ()
    assert submit(workspace, held, "at last").state == "completed"


def test_failed_ticket_is_offered_again(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t"))
    ticket = fail(workspace, claimed(workspace), "no such file", now=3)
    assert (ticket.state, ticket.requeue_count, ticket.claimed_by) == ("pending", 1, "")
    assert ticket.failure_history[0].failure_reason == "no such file"
    again = claimed(workspace, agent="blue")
    assert fail(workspace, again, "nor here").state == "permanently_failed"
    with pytest.raises(ClaimLost):
        fail(workspace, again, "twice")


def test_withdrawn_ticket_accepts_no_claim_or_result(workspace: Workspace) -> None:
    for name in ("waiting", "working", "done"):
        post(workspace, Ticket(id=name))
    held, done = claimed(workspace, "working"), claimed(workspace, "done", "blue")
    submit(workspace, done, "in time")
    for name in ("waiting", "working"):
        ticket = withdraw(workspace, name, "quorum")
        assert (ticket.state, ticket.withdrawn) == ("permanently_failed", "quorum")
        assert ticket.failure_history[-1].failure_reason == "withdrawn: quorum"
    assert withdraw(workspace, "done", "quorum").state == "completed"
    assert claim(workspace, "waiting", "red") is None
    with pytest.raises(ClaimLost, match="it was withdrawn: quorum"):
        submit(workspace, held, "too late")


def test_claim_next_takes_only_tickets_for_the_agent(workspace: Workspace) -> None:
    names = {"any": "", "blues": "blue", "older": "red", "hidden": "red", "newer": "red"}
    for at, (name, assignee) in enumerate(names.items()):
        post(workspace, Ticket(id=name, assigned_to=assignee))
        os.utime(workspace.path / f"tickets/pending/{name}.json", (at, at))
    for place in ("tickets/pending", "agents/red/inbox"):  # as if its poster had been killed before it showed it
        (workspace.path / place / "hidden.json").unlink()
    for place in ("tickets/pending", "agents/red/inbox"):
        (workspace.path / place / "aa.json").write_text("not a ticket")
    taken = [claim_next(workspace, "red") for _ in range(5)]
    assert [ticket.id if ticket else None for ticket in taken] == ["any", "older", "newer", "hidden", None]


def test_claim_next_takes_the_ticket_offered_first(workspace: Workspace) -> None:
    for at, name in enumerate(("b", "c", "a")):
        post(workspace, Ticket(id=name))
        os.utime(workspace.path / f"tickets/pending/{name}.json", (at, at))
    taken = [claim_next(workspace, "red") for _ in range(3)]
    assert [ticket.id if ticket else None for ticket in taken] == ["b", "c", "a"]


# --- artifacts


def test_artifact_is_written_with_a_checksum_file(workspace: Workspace) -> None:
    artifact = write_artifact(workspace, "notes", "text\n")
    assert (workspace.path / artifact.path).read_text() == "text\n"
    checked = subprocess.run(
        ["sha256sum", "-c", f"{Path(artifact.path).name}.sha256"], cwd=workspace.path / "artifacts", capture_output=True
    )
    assert checked.returncode == 0
    assert read_artifact(workspace, artifact.path) == b"text\n"
    assert write_artifact(workspace, "notes", "text\n") == artifact
    assert write_artifact(workspace, "notes", "other\n") != artifact


def test_artifact_from_a_large_file_is_stored_completely(workspace: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "report.bin"
    source.write_bytes(bytes(range(256)) * 20_000)
    post(workspace, Ticket(id="t"))
    completed = submit(workspace, claimed(workspace), source, suffix=".bin")
    assert completed.result is not None
    assert completed.result.bytes == 5_120_000
    assert result(workspace, "t").data == source.read_bytes()  # type: ignore[union-attr]


def test_artifact_without_its_checksum_is_refused(workspace: Workspace) -> None:
    artifact = write_artifact(workspace, "notes", "text")
    (workspace.path / f"{artifact.path}.sha256").unlink()
    with pytest.raises(WorkspaceError, match="has no checksum"):
        read_artifact(workspace, artifact.path)
    assert read_artifact(workspace, artifact.path, artifact.sha256) == b"text"


def test_artifact_that_is_too_large_is_refused_without_a_file(workspace: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(MAX_ARTIFACT_BYTES + 1)
    post(workspace, Ticket(id="t"))
    held = claimed(workspace)
    with pytest.raises(WorkspaceError, match="larger than 100,000,000 bytes"):
        submit(workspace, held, source)
    assert os.listdir(workspace.path / "artifacts") == []
    assert submit(workspace, held, "less").state == "completed"


@pytest.mark.parametrize(
    "path", ["artifacts/../secret", "../secret", "/etc/passwd", "artifacts/a/b", "artifacts/", "x"]
)
def test_artifact_outside_the_workspace_is_refused(workspace: Workspace, path: str) -> None:
    with pytest.raises(WorkspaceError, match="invalid path of an artifact"):
        read_artifact(workspace, path)


@pytest.mark.parametrize("stem", ["../x", "a/b", "", ".hidden", "x" * 201, "a\0b"])
def test_artifact_with_an_invalid_name_is_refused(workspace: Workspace, stem: str) -> None:
    with pytest.raises(WorkspaceError, match="invalid name of an artifact"):
        write_artifact(workspace, stem, "text")


# --- names


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../t", "a/b", "a\\b", "a~1", "-t", ".t", "a b", "a\n", "a\0b", "é", "x" * 101, "human:"]
)
def test_ticket_or_lock_with_an_invalid_id_is_refused(workspace: Workspace, name: str) -> None:
    with pytest.raises(ValidationError):
        Ticket(id=name)
    if name:
        with pytest.raises(ValidationError):
            Ticket(id="t", assigned_to=name)
    for use in (workspace.ticket, workspace.add_agent, workspace.state_of):
        with pytest.raises(UserError, match="invalid"):
            use(name)
    post(workspace, Ticket(id="t"))
    with pytest.raises(UserError, match="invalid"):
        claim(workspace, "t", name)
    with pytest.raises(UserError, match="invalid"):
        acquire(workspace, name, "red", wait=0)
    assert in_states(workspace) == {"pending": ["t.json"]}


def test_tickets_with_similar_ids_are_different(workspace: Workspace) -> None:
    names = ["t", "t.json", "t-1", "t.1", "T1", "t1", "t11"]
    for name in names:
        post(workspace, Ticket(id=name, topic=name))
    for name in names:
        submit(workspace, claimed(workspace, name), name)
    assert {ticket.id: ticket.topic for ticket in workspace.tickets("completed")} == {name: name for name in names}


def test_ticket_that_is_too_large_is_refused(workspace: Workspace) -> None:
    with pytest.raises(WorkspaceError, match="too large"):
        post(workspace, Ticket(id="t", instructions="x" * 8_000_000))
    assert workspace.tickets() == []


def test_ticket_records_are_complete_json(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t", topic="Zürich ☂"))
    submit(workspace, claimed(workspace), "done")
    shown = json.loads((workspace.path / "tickets/completed/t.json").read_text())
    assert (shown["topic"], shown["state"]) == ("Zürich ☂", "completed")
    assert {
        "id", "session_id", "type", "iteration", "assigned_to", "assigned_by", "topic", "specific_focus", "prior_context",
        "instructions", "convergence_gates", "state", "created_at", "ttl_seconds", "requeue_count", "max_requeues",
        "failure_history", "result",
    } <= shown.keys()  # fmt: skip


def test_submit_with_a_forged_claim_is_refused(workspace: Workspace) -> None:
    post(workspace, Ticket(id="t", instructions="Do it."), now=0)
    claimed = claim(workspace, "t", "red", now=0)
    assert claimed is not None
    for changes in ({"claimed_by": "blue"}, {"claim_token": "tökén"}):
        with pytest.raises(ClaimLost):
            submit(workspace, claimed.model_copy(update=changes), "mine", now=1)
    assert submit(workspace, claimed, "mine", now=1).claimed_by == "red"


def test_sweep_continues_after_a_ticket_without_room_for_a_record(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in ("big", "small"):
        post(workspace, Ticket(id=id, instructions="x" * (2000 if id == "big" else 10), max_requeues=0), now=0)
        assert claim(workspace, id, "red", now=0)
    size = max(path.stat().st_size for path in (workspace.path / "tickets/history").glob("big~*"))
    monkeypatch.setattr("consilience.coordination.history.MAX_RECORD_BYTES", size)
    swept = sweep(workspace, now=1000)
    assert (swept.permanently_failed, swept.damaged) == (("small",), ("big",))


def test_lone_surrogates_in_a_ticket_are_replaced(workspace: Workspace) -> None:
    posted = post(workspace, Ticket(id="t", instructions="do \udcff"), now=0)
    assert workspace.ticket("t").instructions == posted.instructions == "do ?"
