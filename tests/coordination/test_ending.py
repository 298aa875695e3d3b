"""Shutdown, archive and garbage collection."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from consilience.coordination import (
    ClaimLost,
    Ticket,
    Workspace,
    WorkspaceError,
    acquire,
    claim,
    post,
    submit,
    withdraw,
)
from consilience.coordination.ending import (
    acknowledge,
    acknowledgements,
    collect_garbage,
    request_shutdown,
    shutdown,
    shutdown_signal,
)
from kit.outside import FakeTime, take, work

BEGIN = 1_000_000.0
HOUR = 3600.0


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "session", agents=("red", "blue"), now=BEGIN)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime(begun_at=BEGIN)


# --- shutdown


def test_shutdown_counts_an_earlier_acknowledgement(workspace: Workspace, time: FakeTime) -> None:
    early = acknowledge(workspace, "red", "done before anybody asked", now=BEGIN)
    time.at(5, lambda: acknowledge(workspace, "blue", now=time.wall()))
    ended = shutdown(workspace, keep=True, waiter=time.waiter)
    assert acknowledgements(workspace)["red"] == early
    assert (ended.acknowledged, ended.missing) == (("blue", "red"), ())
    assert time.now < 6


def test_acknowledge_twice_keeps_the_first(workspace: Workspace) -> None:
    first = acknowledge(workspace, "red", "first", now=BEGIN)
    assert acknowledge(workspace, "red", "second", now=BEGIN + 9) == first
    request_shutdown(workspace, "why", now=BEGIN + 10)
    assert acknowledgements(workspace) == {"red": first}


def test_request_shutdown_twice_keeps_the_first_signal(workspace: Workspace) -> None:
    assert shutdown_signal(workspace) is None
    first = request_shutdown(workspace, "converged", now=BEGIN)
    assert request_shutdown(workspace, "again", now=BEGIN + 1) == first
    seen = shutdown_signal(Workspace.open(workspace.path))
    assert seen is not None
    assert seen.reason == "converged"


def test_shutdown_waits_30_seconds_and_names_missing_agents(workspace: Workspace, time: FakeTime) -> None:
    acknowledge(workspace, "red", now=BEGIN)
    ended = shutdown(workspace, waiter=time.waiter)
    assert ended.missing == ("blue",)
    assert 30 <= time.now <= 30.5


def test_shutdown_withdraws_pending_tickets_at_once_and_claimed_ones_after_the_wait(
    workspace: Workspace, time: FakeTime
) -> None:
    for agent in ("red", "blue", "late"):
        post(workspace, Ticket(id=f"{agent}_1", assigned_to=agent), now=BEGIN)
    red, late = take(workspace, "red"), take(workspace, "late")
    states: list[str] = []
    time.at(5, lambda: states.append(workspace.ticket("blue_1").state))
    time.at(6, lambda: submit(workspace, red, "In time.", now=time.wall()))
    ended = shutdown(workspace, "converged", keep=True, waiter=time.waiter)
    assert states == ["permanently_failed"]
    assert ended.withdrawn == ("blue_1", "late_1")
    assert workspace.ticket("red_1").state == "completed"
    assert workspace.ticket("late_1").withdrawn == "the session has ended: converged"
    with pytest.raises(ClaimLost):
        submit(workspace, late, "Too late.")


def test_shutdown_archives_the_complete_workspace_under_a_new_name(tmp_path: Path, time: FakeTime) -> None:
    archives = []
    for text in ("First.", "Second."):
        workspace = Workspace.create(tmp_path / "session", agents=("red",), now=BEGIN)
        post(workspace, Ticket(id="red_1", assigned_to="red"), now=BEGIN)
        work(workspace, "red", text)
        acknowledge(workspace, "red", now=BEGIN)
        ended = shutdown(workspace, waiter=time.waiter)
        assert ended.archive is not None
        assert not workspace.path.exists()
        archives.append(ended.archive)
    assert [path.name for path in archives] == ["archive_session", "archive_session-2"]
    texts = [(path / "artifacts").glob("*.md") for path in archives]
    assert [next(files).read_text() for files in texts] == ["First.", "Second."]
    assert Workspace.open(archives[0]).ticket("red_1").state == "completed"


def test_late_agent_of_an_archived_workspace_is_refused(workspace: Workspace, time: FakeTime) -> None:
    post(workspace, Ticket(id="red_1", assigned_to="red"), now=BEGIN)
    claimed = take(workspace, "red")
    shutdown(workspace, waiter=time.waiter)
    with pytest.raises(WorkspaceError):
        submit(workspace, claimed, "Too late.")
    assert not workspace.path.exists()


@pytest.mark.parametrize("content", ["", "{", "null"])
def test_acknowledgement_that_is_unreadable_counts_as_missing(
    workspace: Workspace, time: FakeTime, content: str
) -> None:
    (workspace.path / "agents" / "red" / "ack.json").write_text(content)
    assert acknowledgements(workspace) == {}
    assert shutdown(workspace, keep=True, waiter=time.waiter).missing == ("blue", "red")


def test_acknowledgement_that_is_a_fifo_or_link_does_not_block(
    workspace: Workspace, tmp_path: Path, time: FakeTime
) -> None:
    os.mkfifo(workspace.path / "agents" / "red" / "ack.json")
    (tmp_path / "secret").write_text('{"agent": "blue", "acknowledged_at": 1}')
    (workspace.path / "agents" / "blue" / "ack.json").symlink_to(tmp_path / "secret")
    assert acknowledgements(workspace) == {}
    assert shutdown(workspace, keep=True, waiter=time.waiter).missing == ("blue", "red")


# --- garbage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of workspaces."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def age(path: Path, at: float) -> None:
    """Let everything beneath a directory have changed last at that time."""
    for place in [*path.rglob("*"), path]:
        os.utime(place, (at, at), follow_symlinks=False)


def test_collect_garbage_abandons_an_idle_workspace_and_deletes_it_a_day_later(root: Path) -> None:
    workspace = Workspace.create(root / "session", agents=("red",), now=BEGIN)
    age(workspace.path, BEGIN)
    assert collect_garbage(root, now=BEGIN + 1800).kept == {"session": "in use"}
    aside = collect_garbage(root, now=BEGIN + 1801)
    assert aside.abandoned == {"session": "abandoned_session"}
    begun = BEGIN + 1801
    assert collect_garbage(root, now=begun + 24 * HOUR).kept == {"abandoned_session": "abandoned"}
    assert collect_garbage(root, now=begun + 24 * HOUR + 1).deleted == ("abandoned_session",)
    assert list(root.iterdir()) == []


def test_collect_garbage_abandons_a_workspace_without_session_id_at_once(root: Path) -> None:
    workspace = Workspace.create(root / "session")
    (workspace.path / "session_id.txt").unlink()
    assert collect_garbage(root).abandoned == {"session": "abandoned_session"}


def test_collect_garbage_keeps_a_workspace_with_a_live_claim(root: Path) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    post(workspace, Ticket(id="t", ttl_seconds=3 * HOUR), now=BEGIN)
    post(workspace, Ticket(id="pending"), now=BEGIN)
    claim(workspace, "t", "red", now=BEGIN)
    age(workspace.path, BEGIN)
    assert collect_garbage(root, now=BEGIN + 3 * HOUR).kept == {"session": "ticket t is claimed"}
    assert "session" in collect_garbage(root, now=BEGIN + 3 * HOUR + 1).abandoned


@pytest.mark.parametrize("assignee", ["human", "human:anna"])
def test_collect_garbage_keeps_a_workspace_with_a_ticket_of_a_person(root: Path, assignee: str) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    post(workspace, Ticket(id="t", assigned_to=assignee), now=BEGIN)
    age(workspace.path, BEGIN)
    assert collect_garbage(root, now=BEGIN + 1000 * HOUR).kept == {"session": "ticket t is a person's"}
    withdraw(workspace, "t", "no more", now=BEGIN)
    age(workspace.path, BEGIN)
    assert "session" in collect_garbage(root, now=BEGIN + 1000 * HOUR).abandoned


def test_collect_garbage_keeps_a_workspace_that_a_deliberation_waits_for(root: Path) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    post(workspace, Ticket.model_validate({"id": "t", "data": {"session": "r1", "key": "vote/V1"}}), now=BEGIN)
    age(workspace.path, BEGIN)
    kept = collect_garbage(root, now=BEGIN + 1000 * HOUR).kept
    assert kept == {"session": "a deliberation waits for ticket t"}


def test_collect_garbage_keeps_a_workspace_in_use_that_is_named_abandoned(root: Path) -> None:
    workspace = Workspace.create(root / "abandoned_house", now=BEGIN)
    post(workspace, Ticket(id="t", assigned_to="human"), now=BEGIN)
    age(workspace.path, BEGIN)
    collect_garbage(root, now=BEGIN + HOUR)
    collected = collect_garbage(root, now=BEGIN + 48 * HOUR)
    assert (collected.deleted, collected.kept) == ((), {"abandoned_house": "ticket t is a person's"})


def test_collect_garbage_keeps_a_workspace_with_a_held_lock(root: Path) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    acquire(workspace, "plan", "red", clock=lambda: BEGIN + HOUR)
    age(workspace.path, BEGIN)
    assert collect_garbage(root, now=BEGIN + HOUR + 10).kept == {"session": "a lock is held"}
    assert "session" in collect_garbage(root, now=BEGIN + HOUR + 301).abandoned


@pytest.mark.parametrize("act", ["heartbeat", "post", "artifact", "convergence"])
def test_collect_garbage_keeps_a_workspace_after_any_activity(root: Path, act: str) -> None:
    workspace = Workspace.create(root / "session", agents=("red",), now=BEGIN)
    post(workspace, Ticket(id="red_1", assigned_to="red"), now=BEGIN)
    age(workspace.path, BEGIN)
    acts = {
        "heartbeat": lambda: workspace.save_state(workspace.state_of("red")),
        "post": lambda: post(workspace, Ticket(id="other"), now=BEGIN),
        "artifact": lambda: work(workspace, "red", "Text."),
        "convergence": lambda: workspace.save_convergence(workspace.convergence()),
    }
    acts[act]()
    now = (
        workspace.path.stat().st_mtime if act == "convergence" else os.path.getmtime(workspace.path / "agents" / "red")
    )
    if act == "post":
        now = os.path.getmtime(workspace.path / "tickets" / "pending")
    assert now > BEGIN
    assert collect_garbage(root, now=now + 1800).kept == {"session": "in use"}


def test_collect_garbage_keeps_archives(root: Path, time: FakeTime) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    shutdown(workspace, waiter=time.waiter)
    age(root / "archive_session", BEGIN)
    assert collect_garbage(root, now=BEGIN + 1000 * HOUR).kept == {"archive_session": "an archive"}


def test_collect_garbage_keeps_directories_that_are_not_workspaces(tmp_path: Path, root: Path) -> None:
    (root / "photos").mkdir()
    (root / "photos" / "1.jpg").write_text("a photo")
    (root / "project" / "tickets").mkdir(parents=True)
    (root / "project" / "setup.py").write_text("")
    (root / "abandoned_church").mkdir()
    (root / "abandoned_church" / "1.jpg").write_text("another photo")
    (root / "build" / "artifacts").mkdir(parents=True)
    (root / "build" / "artifacts" / "program").write_text("built")
    (root / "helpdesk" / "tickets" / "pending").mkdir(parents=True)
    (root / "other_tool").mkdir()
    (root / "other_tool" / "session_id.txt").write_text("7")
    (root / "empty").mkdir()
    (root / "notes.txt").write_text("a note")
    mixed = Workspace.create(root / "mixed", now=BEGIN)
    (mixed.path / "thesis.tex").write_text("important")
    outside = Workspace.create(tmp_path / "outside", now=BEGIN)
    (root / "link").symlink_to(outside.path)
    age(root, BEGIN)
    age(outside.path, BEGIN)
    before = sorted(root.rglob("*"))
    collected = collect_garbage(root, now=BEGIN + 1000 * HOUR)
    assert (collected.abandoned, collected.deleted) == ({}, ())
    assert collected.kept["mixed"] == "not only a workspace: thesis.tex"
    assert sorted(root.rglob("*")) == before


def test_collect_garbage_deletes_nothing_behind_links(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("important")
    workspace = Workspace.create(root / "session", now=BEGIN)
    (workspace.path / "artifacts" / "link").symlink_to(outside)
    (workspace.path / "agents" / "red").symlink_to(outside)
    os.mkfifo(workspace.path / "locks" / "fifo")
    age(workspace.path, BEGIN)
    collect_garbage(root, now=BEGIN + HOUR)
    assert collect_garbage(root, now=BEGIN + 48 * HOUR).deleted == ("abandoned_session",)
    assert (outside / "file").read_text() == "important"
    assert sorted(os.listdir(outside)) == ["file"]


def test_collect_garbage_abandons_a_second_workspace_of_a_name_under_a_new_name(root: Path) -> None:
    for number in (1, 2):
        workspace = Workspace.create(root / "session", now=BEGIN)
        age(workspace.path, BEGIN)
        name = f"abandoned_session{'-2' if number == 2 else ''}"
        assert collect_garbage(root, now=BEGIN + HOUR).abandoned == {"session": name}


def test_collect_garbage_keeps_a_workspace_abandoned_again_for_another_day(root: Path) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    age(workspace.path, BEGIN)
    collect_garbage(root, now=BEGIN + HOUR)
    (root / "abandoned_session").rename(workspace.path)
    age(workspace.path, BEGIN + 100 * HOUR)
    assert "session" in collect_garbage(root, now=BEGIN + 101 * HOUR).abandoned
    assert collect_garbage(root, now=BEGIN + 102 * HOUR).kept == {"abandoned_session": "abandoned"}


def test_collect_garbage_with_the_clock_set_back_removes_nothing(root: Path) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    age(workspace.path, BEGIN)
    collect_garbage(root, now=BEGIN + HOUR)
    Workspace.create(root / "other", now=BEGIN)
    age(root / "other", BEGIN)
    collected = collect_garbage(root, now=1.0)
    assert collected.kept == {"abandoned_session": "abandoned", "other": "in use"}


def test_collect_garbage_marks_an_abandoned_workspace_left_unmarked_by_a_killed_process(root: Path) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    age(workspace.path, BEGIN)
    workspace.path.rename(root / "abandoned_session")
    now = BEGIN + 1000 * HOUR
    assert collect_garbage(root, now=now).kept == {"abandoned_session": "abandoned"}
    assert collect_garbage(root, now=now + 25 * HOUR).deleted == ("abandoned_session",)


def test_collect_garbage_abandons_a_draft_of_a_workspace_after_an_hour(root: Path) -> None:
    workspace = Workspace.create(root / "session", now=BEGIN)
    draft = root / f".session.draft-{'0' * 32}"
    workspace.path.rename(draft)
    (draft / "session_id.txt").unlink()
    age(draft, BEGIN)
    assert collect_garbage(root, now=BEGIN + 60).kept == {draft.name: "in use"}
    assert collect_garbage(root, now=BEGIN + HOUR).abandoned == {draft.name: "abandoned_session"}


@pytest.mark.parametrize("damage", ["session_id", "tickets", "record"])
def test_collect_garbage_continues_after_a_damaged_workspace(root: Path, damage: str) -> None:
    workspace = Workspace.create(root / "a", now=BEGIN)
    other = Workspace.create(root / "b", now=BEGIN)
    post(workspace, Ticket(id="t"), now=BEGIN)
    if damage == "session_id":
        (workspace.path / "session_id.txt").write_text("../../etc")
    elif damage == "tickets":
        (workspace.path / "tickets").rename(root / "gone")
        (workspace.path / "tickets").write_text("")
    else:
        next((workspace.path / "tickets" / "history").iterdir()).write_text("{")
    for made in (workspace, other):
        age(made.path, BEGIN)
    collected = collect_garbage(root, now=BEGIN + HOUR)
    assert collected.abandoned["b"] == "abandoned_b"
