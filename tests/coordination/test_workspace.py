"""Workspaces: making, finding, opening, moving, and two of them side by side."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from consilience.coordination import (
    ConvergenceRecord,
    GateStatus,
    Ticket,
    Workspace,
    WorkspaceError,
    claim,
    parse_session_from_prompt,
    post,
    result,
    submit,
    sweep,
)


def test_new_workspace_has_the_documented_files(tmp_path: Path) -> None:
    config = {"max_iterations": 2, "quality_threshold": 0.6, "gates": ["specific_examples"]}
    workspace = Workspace.create(tmp_path / "w", review_type="skill", agents=["red"], config=config, now=7)
    entries = {str(path.relative_to(workspace.path)) for path in workspace.path.rglob("*")}
    places = {
        f"tickets/{state}" for state in ("pending", "active", "completed", "failed", "permanently_failed", "history")
    }
    boxes = {f"agents/red/{name}" for name in ("inbox", "outbox", "state.json")}
    files = {"session_id.txt", "session_metadata.json", "convergence.json", "protocol.json"}
    assert entries == {"tickets", "agents", "agents/red", "locks", "artifacts"} | places | boxes | files
    assert (workspace.path / "session_id.txt").read_text() == workspace.session_id + "\n"
    assert (workspace.metadata().created_at, workspace.metadata().agents) == (7, ("red",))
    convergence = workspace.convergence()
    assert (convergence.session_id, convergence.review_type) == (workspace.session_id, "skill")
    assert (convergence.max_iterations, convergence.quality_threshold) == (2, 0.6)
    assert convergence.convergence_gates == (GateStatus(id="specific_examples"),)
    assert workspace.agents() == ["red"]
    assert set(os.listdir(tmp_path)) == {"w", "home"}
    assert workspace.path.stat().st_mode & 0o077 == 0


def test_workspace_opened_again_has_the_same_session(tmp_path: Path) -> None:
    made = Workspace.create(tmp_path / "w")
    opened = Workspace.open(tmp_path / "w")
    assert (opened.path, opened.session_id) == (made.path, made.session_id)
    opened.save_convergence(opened.convergence().model_copy(update={"current_iteration": 2}))
    assert made.convergence().current_iteration == 2
    path = made.path / "convergence.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "blue"}))
    made.save_convergence(made.convergence())
    assert json.loads(path.read_text())["colour"] == "blue"


def test_workspace_in_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    Workspace.create(tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("empty", "full", "file", "file/below"):
        with pytest.raises(WorkspaceError, match="cannot be made"):
            Workspace.create(tmp_path / name)
    assert set(os.listdir(tmp_path)) == {"empty", "file", "full", "home"}
    assert os.listdir(tmp_path / "full") == ["notes.txt"]


def test_directory_without_a_session_id_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="not a workspace"):
        Workspace.open(tmp_path)
    with pytest.raises(WorkspaceError, match="No such file"):
        Workspace.open(tmp_path / "missing")
    (tmp_path / "session_id.txt").write_text("../../etc\n")
    with pytest.raises(WorkspaceError, match="invalid session id"):
        Workspace.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="not a directory"):
        Workspace.open(tmp_path / "file")


@pytest.mark.parametrize("name", ["plain", "with space", "with [brackets] inside", "[x]", "two  spaces", "Zürich ☂"])
def test_parse_session_from_prompt_returns_the_path_of_the_marker(tmp_path: Path, name: str) -> None:
    workspace = Workspace.create(tmp_path / name)
    for prompt in ("{} Review it.", "Review [1] it {} and [2].", "{}\n[SESSION] {}", "a{}]"):
        text = prompt.replace("{}", workspace.marker)
        assert parse_session_from_prompt(text) == workspace.path


@pytest.mark.parametrize(
    "prompt",
    ["", "no marker", "[SESSION_DIR:]", "[SESSION_DIR:relative/path]", "[SESSION_DIR:~/w]", "[SESSION_DIR:/a", "[session_dir:/a]",
     "[SESSION_DIR:/a\0b]", "[SESSION_DIR:/a] [SESSION_DIR:/b]", "[SESSION_DIR:\n/a]"],
)  # fmt: skip
def test_prompt_without_one_absolute_path_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match="the prompt names"):
        parse_session_from_prompt(prompt)


@pytest.mark.parametrize("name", ["open[", "close]", "line\nbreak"])
def test_workspace_path_unsuitable_for_a_prompt_is_refused(tmp_path: Path, name: str) -> None:
    workspace = Workspace.create(tmp_path / name)
    with pytest.raises(WorkspaceError, match="a prompt cannot name this path"):
        _ = workspace.marker


def test_workspaces_with_the_same_ids_are_independent(tmp_path: Path) -> None:
    first, two = (Workspace.create(tmp_path / name, agents=["red"]) for name in ("one", "two"))
    for workspace in (first, two):
        post(workspace, Ticket(id="t", topic=workspace.session_id))
    held = claim(first, "t", "red", now=0)
    assert held is not None
    assert two.ticket("t").state == "pending"
    other = claim(two, "t", "red", now=0)
    assert other is not None
    with pytest.raises(WorkspaceError, match="red has claimed it since"):
        submit(two, held, "of one")
    submit(first, held, "of one")
    assert result(two, "t") is None
    sweep(first, now=1e9)
    assert two.ticket("t") == other
    for name in os.listdir(first.path / "tickets/history"):  # files of one, copied into the other, are not its tickets
        (two.path / f"tickets/history/{name.replace('t~', 'u~')}").write_bytes(
            (first.path / f"tickets/history/{name}").read_bytes()
        )
    assert [ticket.id for ticket in two.tickets()] == ["t"]
    assert sweep(two, now=0).damaged == ("u",)


def test_workspace_replaced_by_another_is_not_written(tmp_path: Path) -> None:
    old = Workspace.create(tmp_path / "w")
    post(old, Ticket(id="t"))
    held = claim(old, "t", "red")
    assert held is not None
    os.rename(tmp_path / "w", tmp_path / "archived")
    for use in (lambda: post(old, Ticket(id="u")), lambda: submit(old, held, "x"), lambda: sweep(old), old.tickets):
        with pytest.raises(WorkspaceError, match="No such file"):
            use()
    new = Workspace.create(tmp_path / "w")
    for use in (lambda: post(old, Ticket(id="u")), lambda: submit(old, held, "x"), lambda: sweep(old), old.tickets):
        with pytest.raises(WorkspaceError, match="another workspace"):
            use()
    assert new.tickets() == []


def test_invalid_workspace_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="quality_threshold"):
        Workspace.create(tmp_path / "w", config={"quality_threshold": "high"})
    assert os.listdir(tmp_path) == ["home"]
    workspace = Workspace.create(tmp_path / "w", convergence=ConvergenceRecord(max_iterations=9))
    assert workspace.convergence().max_iterations == 9
