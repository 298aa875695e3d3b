"""`protocol.json`: unknown keys, extensions and hooks; no other code is run than what its author made a hook."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from consilience.coordination import ProtocolFile, Workspace, WorkspaceError, read_protocol, select_convergence_strategy
from consilience.coordination.records import Extensions
from consilience.domain.errors import UnknownName, UserError
from kit.outside import FakeTime, work

MODULE = """
from consilience.coordination import hook

results = []

@hook
def focus(ticket):
    return ticket.model_copy(update={"topic": f"{ticket.topic} for {ticket.assigned_to}"})

@hook
def leave(ticket):
    return None

@hook
def keep(result):
    results.append(result.text)

@hook
def judge(gate_id, text):
    return {"short": len(text) < 10}.get(gate_id)

@hook
def fails(*arguments):
    raise RuntimeError("out of order")

@hook
def seven(*arguments):
    return 7

def plain(ticket):
    raise AssertionError("called")
"""


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hooks_for_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "hooks_for_test", raising=False)
    return "hooks_for_test"


def make(tmp_path: Path, **protocol: object) -> Workspace:
    return Workspace.create(tmp_path / "session", protocol=json.loads(json.dumps(protocol)))


def test_read_protocol_of_a_new_workspace_has_the_defaults(tmp_path: Path) -> None:
    assert read_protocol(make(tmp_path)) == ProtocolFile()


def test_read_protocol_keeps_and_ignores_unknown_keys(tmp_path: Path) -> None:
    protocol = {
        "version": "1.2",
        "coordination_pattern": "red_blue",
        "colour": "green",
        "custom_hooks": {"post_mortem": "os:abort"},
        "extensions": {"quorum_percentage": 80, "mood": [1, 2]},
    }
    workspace = make(tmp_path, **protocol)
    read = read_protocol(workspace)
    assert read.model_dump(exclude_unset=True) == protocol
    assert select_convergence_strategy("code").initialize(workspace.path) is None


@pytest.mark.parametrize(
    ("extensions", "what"),
    [
        ({"quorum_percentage": 0}, "quorum_percentage must be at least 1"),
        ({"quorum_percentage": 0.8}, "quorum_percentage must be at least 1"),
        ({"quorum_percentage": 101}, "quorum_percentage must be at most 100"),
        ({"timeout_multiplier": 0}, "timeout_multiplier must be greater than 0"),
        ({"priority_agents": "red"}, "priority_agents must be a list"),
    ],
)
def test_read_protocol_invalid_extension_is_named(tmp_path: Path, extensions: dict[str, object], what: str) -> None:
    with pytest.raises(WorkspaceError, match=what):
        read_protocol(make(tmp_path, extensions=extensions))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"custom_hooks": 3}'])
def test_read_protocol_torn_file_is_refused(tmp_path: Path, content: bytes) -> None:
    workspace = make(tmp_path)
    (workspace.path / "protocol.json").write_bytes(content)
    with pytest.raises(WorkspaceError, match="invalid file"):
        read_protocol(workspace)


@pytest.mark.parametrize(
    ("agents", "percentage", "configured", "quorum"),
    [
        (12, None, None, 12),
        (12, None, 10, 10),
        (12, 80, None, 10),
        (12, 80, 11, 11),
        (3, 50, None, 2),
        (3, 1, None, 1),
        (2, 100, None, 2),
    ],
)
def test_quorum_of_agents_combines_percentage_and_configured_quorum(
    agents: int, percentage: float | None, configured: int | None, quorum: int
) -> None:
    assert Extensions(quorum_percentage=percentage).quorum_of(agents, configured) == quorum


def test_timeout_multiplier_prolongs_waiting(tmp_path: Path) -> None:
    workspace = make(tmp_path, extensions={"timeout_multiplier": 2.5})
    time = FakeTime()
    strategy = select_convergence_strategy("code", {"timeout": 100}, clock=time.wall)
    strategy.initialize(workspace.path)
    strategy.post_tickets(workspace.path, 1)
    strategy.collect(workspace.path, 1, waiter=time.waiter)
    assert 250 <= time.now <= 251


def test_hooks_change_tickets_see_results_and_judge_gates(tmp_path: Path, hooks: str) -> None:
    names = {"pre_ticket_creation": "focus", "post_agent_result": "keep", "custom_gate_evaluator": "judge"}
    workspace = make(tmp_path, custom_hooks={kind: f"{hooks}:{name}" for kind, name in names.items()})
    strategy = select_convergence_strategy("code", {"topic": "Lock", "gates": ["short", "specific_examples"]})
    strategy.initialize(workspace.path)
    assert [ticket.topic for ticket in strategy.post_tickets(workspace.path, 1)] == ["Lock for red", "Lock for blue"]
    work(workspace, "red", "Short.")
    work(workspace, "blue", "Much too long.")
    strategy.collect(workspace.path, 1)
    assert sys.modules[hooks].results == ["Short.", "Much too long."]
    assert [verdict.missed_by for verdict in strategy.evaluate(workspace.path, 1).verdicts] == [
        ("blue",),
        ("red", "blue"),
    ]
    assert strategy.synthesize(workspace.path)


def test_hook_that_returns_none_keeps_the_ticket(tmp_path: Path, hooks: str) -> None:
    workspace = make(tmp_path, custom_hooks={"pre_ticket_creation": f"{hooks}:leave"})
    strategy = select_convergence_strategy("code", {"topic": "Lock"})
    strategy.initialize(workspace.path)
    assert strategy.post_tickets(workspace.path, 1)[0].topic == "Lock"


def test_gate_unknown_to_hook_and_package_is_refused(tmp_path: Path, hooks: str) -> None:
    workspace = make(tmp_path, custom_hooks={"custom_gate_evaluator": f"{hooks}:judge"})
    with pytest.raises(UnknownName, match="there is no gate 'long'"):
        select_convergence_strategy("code", {"gates": ["long"]}).initialize(workspace.path)


@pytest.mark.parametrize("name", ["os:system", "os:abort", "HOOKS:plain", "no_such_hook", "json:dumps"])
def test_hook_without_its_decorator_is_refused_before_any_ticket(tmp_path: Path, hooks: str, name: str) -> None:
    workspace = make(tmp_path, custom_hooks={"pre_ticket_creation": name.replace("HOOKS", hooks)})
    strategy = select_convergence_strategy("code")
    with pytest.raises(UnknownName):
        strategy.initialize(workspace.path)
    with pytest.raises(UnknownName):
        strategy.post_tickets(workspace.path, 1)
    assert workspace.tickets() == []


@pytest.mark.parametrize(
    ("name", "what"),
    [("fails", "hook pre_ticket_creation failed: RuntimeError: out of order"), ("seven", "returned 7")],
)
def test_hook_that_fails_or_returns_the_wrong_type_is_named(tmp_path: Path, hooks: str, name: str, what: str) -> None:
    workspace = make(tmp_path, custom_hooks={"pre_ticket_creation": f"{hooks}:{name}"})
    strategy = select_convergence_strategy("code")
    strategy.initialize(workspace.path)
    with pytest.raises(UserError, match=what):
        strategy.post_tickets(workspace.path, 1)
