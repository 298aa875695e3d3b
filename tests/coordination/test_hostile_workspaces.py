"""Tampered workspaces: no file outside is read or written, nothing hangs, other tickets continue."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from consilience.coordination import (
    Ticket,
    Workspace,
    WorkspaceError,
    acquire,
    claim,
    fail,
    post,
    read_protocol,
    result,
    submit,
    sweep,
    withdraw,
)
from consilience.coordination.files import MAX_RECORD_BYTES

SECRET = "a secret of the user"
Plant = Callable[[Path, Path], None]


def plant_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "secret.txt")


def plant_dangling_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "new.txt")


def plant_fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def plant_directory(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inner").write_text("kept")


def plant_device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def plant_huge_file(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_RECORD_BYTES * 1000)


def plant_torn_json(path: Path, outside: Path) -> None:
    path.write_text('{"id": "t", "state": "compl')


def plant_empty_file(path: Path, outside: Path) -> None:
    path.touch()


def plant_deep_json(path: Path, outside: Path) -> None:
    path.write_text("[" * 100_000)


def plant_binary(path: Path, outside: Path) -> None:
    path.write_bytes(bytes(range(256)))


PLANTS = [
    plant_link,
    plant_dangling_link,
    plant_fifo,
    plant_directory,
    plant_device,
    plant_huge_file,
    plant_torn_json,
    plant_empty_file,
    plant_deep_json,
    plant_binary,
]
every_plant = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (outside / "places").mkdir()
    return outside


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Workspace:
    workspace = Workspace.create(tmp_path / "w", agents=["red", "blue"], now=0)
    for name in ("t", "u"):
        post(workspace, Ticket(id=name), now=0)
    return workspace


def check_outside(outside: Path) -> None:
    assert sorted(os.listdir(outside)) == ["places", "secret.txt"]
    assert (outside / "secret.txt").read_text() == SECRET
    assert os.listdir(outside / "places") == []


def finish(workspace: Workspace, ticket_id: str) -> None:
    ticket = claim(workspace, ticket_id, "red", now=0)
    assert ticket is not None
    submit(workspace, ticket, f"of {ticket_id}")
    handed_in = result(workspace, ticket_id)
    assert handed_in is not None
    assert handed_in.text == f"of {ticket_id}"


@every_plant
def test_planted_next_record_changes_nothing(workspace: Workspace, outside: Path, plant: Plant) -> None:
    plant(workspace.path / "tickets/history/t~2.json", outside)
    assert [(ticket.id, ticket.state) for ticket in workspace.tickets()] == [("t", "pending"), ("u", "pending")]
    assert sweep(workspace, now=1).damaged == ()
    finish(workspace, "t")
    finish(workspace, "u")
    check_outside(outside)


@every_plant
def test_planted_first_record_is_reported_and_other_tickets_work(
    workspace: Workspace, outside: Path, plant: Plant
) -> None:
    plant(workspace.path / "tickets/history/x~1.json", outside)
    assert sweep(workspace, now=1).damaged == ("x",)
    for use in (
        lambda: claim(workspace, "x", "red"),
        lambda: withdraw(workspace, "x", ""),
        lambda: result(workspace, "x"),
    ):
        with pytest.raises(WorkspaceError, match="no record of ticket x is readable"):
            use()
    finish(workspace, "t")
    post(workspace, Ticket(id="x"))  # its id can be used nevertheless
    finish(workspace, "x")
    check_outside(outside)


@every_plant
@pytest.mark.parametrize("state", ["pending", "active", "completed"])
def test_planted_file_in_a_state_directory_is_unchanged(
    workspace: Workspace, outside: Path, plant: Plant, state: str
) -> None:
    planted = workspace.path / f"tickets/{state}/x.json"
    plant(planted, outside)
    before = os.lstat(planted)
    assert {ticket.id for ticket in workspace.tickets()} == {"t", "u"}
    sweep(workspace, now=1)
    post(workspace, Ticket(id="x"))
    finish(workspace, "x")
    sweep(workspace, now=1)
    after = os.lstat(planted)
    assert (before.st_ino, before.st_mode, before.st_size) == (after.st_ino, after.st_mode, after.st_size)
    check_outside(outside)


@every_plant
@pytest.mark.parametrize("name", ["convergence.json", "session_metadata.json", "protocol.json"])
def test_planted_session_file_is_refused(workspace: Workspace, outside: Path, plant: Plant, name: str) -> None:
    (workspace.path / name).unlink()
    plant(workspace.path / name, outside)
    read = {"convergence.json": workspace.convergence, "protocol.json": lambda: read_protocol(workspace)}.get(
        name, workspace.metadata
    )
    with pytest.raises(WorkspaceError) as raised:
        read()
    assert SECRET not in str(raised.value)
    assert name in str(raised.value)
    finish(workspace, "t")
    check_outside(outside)


@every_plant
def test_planted_session_id_is_refused(workspace: Workspace, outside: Path, plant: Plant) -> None:
    (workspace.path / "session_id.txt").unlink()
    plant(workspace.path / "session_id.txt", outside)
    for use in (lambda: Workspace.open(workspace.path), lambda: post(workspace, Ticket(id="v")), workspace.tickets):
        with pytest.raises(WorkspaceError) as raised:
            use()
        assert SECRET not in str(raised.value)
    check_outside(outside)


@every_plant
def test_planted_lock_does_not_block_other_locks(workspace: Workspace, outside: Path, plant: Plant) -> None:
    plant(workspace.path / "locks/l~1.json", outside)
    plant(workspace.path / "locks/claim.lock", outside)
    held = acquire(workspace, "l", "red", wait=0)
    assert held is not None
    sweep(workspace, now=1)
    held.release()
    assert (workspace.path / "locks/claim.lock").lstat()
    check_outside(outside)


@every_plant
def test_planted_agent_state_is_refused_or_replaced(workspace: Workspace, outside: Path, plant: Plant) -> None:
    (workspace.path / "agents/red/state.json").unlink()
    plant(workspace.path / "agents/red/state.json", outside)
    with pytest.raises(WorkspaceError):
        workspace.state_of("red")
    held = claim(workspace, "t", "red", now=0)
    assert workspace.ticket("t") == held
    sweep(workspace, now=1000)
    assert workspace.ticket("t").state == "pending"
    check_outside(outside)


@pytest.mark.parametrize(
    "place",
    ["tickets", "tickets/history", "tickets/pending", "tickets/active", "artifacts", "locks", "agents", "agents/red"],
)
def test_directory_replaced_by_a_link_is_not_entered(workspace: Workspace, outside: Path, place: str) -> None:
    moved = outside.parent / "moved"
    os.rename(workspace.path / place, moved)
    (workspace.path / place).symlink_to(outside / "places")
    errors = []
    for use in (
        workspace.tickets,
        workspace.agents,
        lambda: post(workspace, Ticket(id="v", assigned_to="red")),
        lambda: submit(workspace, claim(workspace, "t", "red", now=0) or Ticket(id="t"), "text"),
        lambda: fail(workspace, claim(workspace, "u", "blue", now=0) or Ticket(id="u"), "reason"),
        lambda: acquire(workspace, "l", "red", wait=0),
        lambda: sweep(workspace, now=1000),
    ):
        try:
            use()
        except WorkspaceError as error:
            errors.append(str(error))
    assert all("not a directory" in error or "no ticket" in error or "claim of ticket" in error for error in errors), (
        errors
    )
    check_outside(outside)


def test_hard_link_to_a_file_outside_is_not_written_through(workspace: Workspace, outside: Path) -> None:
    for place in ("convergence.json", "agents/red/state.json"):
        (workspace.path / place).unlink()
        os.link(outside / "secret.txt", workspace.path / place)
    os.link(outside / "secret.txt", workspace.path / "tickets/active/t.json")
    workspace.save_convergence(Workspace.create(outside.parent / "other").convergence())
    finish(workspace, "t")
    check_outside(outside)


def test_foreign_files_are_unchanged(workspace: Workspace) -> None:
    places = [
        "",
        "tickets",
        "tickets/history",
        "tickets/pending",
        "artifacts",
        "locks",
        "agents",
        "agents/red",
        "agents/red/inbox",
    ]
    names = [
        "README.md",
        ".hidden",
        ".draft-mine",
        "notes.json",
        "v~0.json",
        "v~01.json",
        "~1.json",
        "v~1.json.bak",
        "é~1.json",
    ]
    files = [workspace.path / place / name for place in places for name in names]
    for file in files:
        file.write_text("mine")
        os.utime(file, (0, 0))
    finish(workspace, "t")
    sweep(workspace, now=4e9)
    assert {file.read_text() for file in files} == {"mine"}
    assert {ticket.id for ticket in workspace.tickets()} == {"t", "u"}


def test_old_drafts_are_removed_and_new_ones_kept(workspace: Workspace) -> None:
    places = ["", "tickets/history", "artifacts", "locks", "agents/red"]
    drafts = [workspace.path / place / f".draft-{'0' * 32}" for place in places]
    for draft in drafts:
        draft.write_text("half")
        os.utime(draft, (1000, 1000))
    sweep(workspace, now=1000 + 3600)
    assert all(draft.exists() for draft in drafts)
    sweep(workspace, now=1000 + 3601)
    assert not any(draft.exists() for draft in drafts)


def test_truncated_record_counts_as_never_written(workspace: Workspace) -> None:
    """As a power failure may leave a claim, which is not synced, or an editor that writes in place."""
    held = claim(workspace, "t", "red", now=0)
    assert held is not None
    record = workspace.path / "tickets/history/t~2.json"
    record.chmod(0o644)
    record.write_bytes(b"")
    assert workspace.ticket("t").state == "pending"
    sweep(workspace, now=1)
    assert os.listdir(workspace.path / "tickets/active") == []
    with pytest.raises(WorkspaceError, match="it is pending"):
        submit(workspace, held, "text")
    finish(workspace, "t")


def test_missing_empty_directories_are_created_again(workspace: Workspace) -> None:
    for place in ("tickets/active", "tickets/completed", "artifacts", "locks"):
        (workspace.path / place).rmdir()
    finish(workspace, "t")
    assert acquire(workspace, "l", "red", wait=0)
    assert os.listdir(workspace.path / "tickets/completed") == ["t.json"]


def test_hard_link_made_despite_a_reported_error_counts_as_success(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may make a link, lose the reply, try again and report that the name is taken."""
    link = os.link

    def lost(source: str, target: str, **options: int) -> None:
        link(source, target, **options)  # type: ignore[arg-type]
        link(source, target, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", lost)
    held = claim(workspace, "t", "red")
    assert held is not None
    assert submit(workspace, held, "text").state == "completed"
    assert claim(workspace, "t", "blue") is None


def test_hard_link_made_first_by_another_process_loses_the_claim(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFTP has one error for every failure, which sshfs reports as EPERM."""
    link = os.link

    def vague(source: str, target: str, **options: int) -> None:
        try:
            link(source, target, **options)  # type: ignore[arg-type]
        except FileExistsError:
            raise PermissionError(1, "Operation not permitted") from None

    def slower(*_: object, **__: object) -> None:
        monkeypatch.setattr(os, "link", vague)
        assert claim(workspace, "t", "blue") is not None
        vague(*_, **__)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", slower)
    assert claim(workspace, "t", "red") is None
    assert workspace.ticket("t").claimed_by == "blue"


def test_file_system_with_new_inode_numbers_per_name_works(workspace: Workspace) -> None:
    """As SFTP does: what shows a ticket is known by its content, and goes when the ticket moves on."""
    shown = workspace.path / "tickets/pending/t.json"
    content = shown.read_bytes()
    shown.unlink()
    shown.write_bytes(content)
    finish(workspace, "t")
    assert os.listdir(workspace.path / "tickets/pending") == ["u.json"]
    assert os.listdir(workspace.path / "tickets/completed") == ["t.json"]


def test_file_system_without_hard_links_is_an_error(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(WorkspaceError, match="Keep the workspace on a file system with hard links"):
        claim(workspace, "t", "red")
    assert workspace.ticket("t").state == "pending"


def test_full_disk_leaves_the_ticket_unchanged(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    held = claim(workspace, "t", "red", now=0)
    assert held is not None

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for use in (
            lambda: submit(workspace, held, "text"),
            lambda: claim(workspace, "u", "blue"),
            lambda: sweep(workspace, now=1e9),
        ):
            with pytest.raises(WorkspaceError, match="No space left"):
                use()
    assert (workspace.ticket("t"), workspace.ticket("u").state) == (held, "pending")
    assert not [name for _, _, names in os.walk(workspace.path) for name in names if name.startswith(".draft")]
    assert submit(workspace, held, "text").state == "completed"


# --- size


def fill(workspace: Workspace, count: int) -> None:
    """Post tickets as `post` does, without syncing each."""
    with workspace.folder("tickets/history") as history, workspace.folder("tickets/pending") as pending:
        for number in range(count):
            ticket = Ticket(id=f"n{number}", session_id=workspace.session_id, created_at=number, revision=1)
            history.create(f"n{number}~1.json", ticket.model_dump_json().encode(), durable=False)
            history.link(f"n{number}~1.json", pending, f"n{number}.json")


def test_ten_thousand_tickets_take_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    few, many = (Workspace.create(tmp_path / name, now=0) for name in ("few", "many"))
    size = 10_000 if whole else 2_000
    fill(few, size // 10)
    fill(many, size)
    calls = 0

    def counted(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*args: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            return real(*args, **options)

        return call

    for name in ("open", "lstat", "listdir", "link", "unlink"):
        monkeypatch.setattr(os, name, counted(name))

    def cost(workspace: Workspace, use: Callable[[Workspace], object]) -> int:
        nonlocal calls
        calls = 0
        use(workspace)
        return calls

    assert len(many.tickets()) == size
    assert cost(many, Workspace.tickets) <= 10 * cost(few, Workspace.tickets)
    assert cost(many, lambda w: sweep(w, now=1)) <= 10 * cost(few, lambda w: sweep(w, now=1))
    same = cost(few, lambda w: claim(w, "n7", "red", now=0))
    assert cost(many, lambda w: claim(w, "n7", "red", now=0)) == same
