"""`protocol.json`: how a session is coordinated, its hooks and its extensions. Unknown keys are kept and ignored."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from consilience.coordination.plugins import load_plugin
from consilience.coordination.records import Record, Ticket
from consilience.coordination.tickets import Result
from consilience.coordination.workspace import PROTOCOL, Workspace
from consilience.domain.errors import UserError

HOOK_ENTRY_POINTS = "consilience.coordination_hooks"


class CustomHooks(Record):
    """Functions of the lead's process: each an entry point, or `module:function`, decorated with `hook`; "" for none."""

    pre_ticket_creation: str = ""
    """Takes a ticket before it is posted; returns the one to post, or None to post it as it is."""
    post_agent_result: str = ""
    """Takes each result that the lead collects."""
    custom_gate_evaluator: str = ""
    """Takes the id of a gate and a text; returns whether the text meets it, or None for a gate that it does not know."""


class Extensions(Record):
    """Settings that change how the lead waits."""

    quorum_percentage: float | None = Field(default=None, ge=1, le=100)
    """Share of the agents, in percent, whose results are enough; None leaves it to the strategy."""
    priority_agents: tuple[str, ...] = ()
    """Agents whose results a quorum needs until the timeout, and whose tickets are posted first."""
    timeout_multiplier: float = Field(default=1.0, gt=0, le=1000)
    """Factor of every timeout."""


class ProtocolFile(Record):
    """Content of `protocol.json`."""

    version: int | str = 1
    coordination_pattern: str = ""
    convergence_strategy: str = ""
    """Name for `select_convergence_strategy`; "" leaves it to the lead."""
    custom_hooks: CustomHooks = CustomHooks()
    extensions: Extensions = Extensions()


def read_protocol(workspace: Workspace) -> ProtocolFile:
    """Return the content of `protocol.json`. Raises `WorkspaceError` if it is missing or invalid."""
    return workspace.read("", PROTOCOL, ProtocolFile)


def quorum_of(agents: int, extensions: Extensions, configured: int | None = None) -> int:
    """Return how many of so many agents are a quorum: the configured number, else `quorum_percentage` rounded up, else all."""
    if configured is not None:
        return min(configured, agents)
    percentage = 100 if extensions.quorum_percentage is None else extensions.quorum_percentage
    return math.ceil(agents * percentage / 100)


@dataclass(frozen=True)
class Hook:
    """A function that `protocol.json` may name."""

    function: Callable[..., object]


def hook(function: Callable[..., object]) -> Hook:
    """Mark a function as one that `protocol.json` may name. No other function is called, whatever the file holds."""
    return Hook(function)


class Hooks:
    """The hooks of a session, loaded. Each method raises `UserError` if its hook fails or returns something else than it may."""

    def __init__(self, names: CustomHooks = CustomHooks()) -> None:  # noqa: B008 (frozen)
        """Raises `UnknownName` for a hook that cannot be loaded."""
        named = {kind: getattr(names, kind) for kind in CustomHooks.model_fields}
        self._hooks = {kind: load_plugin(name, HOOK_ENTRY_POINTS, Hook) for kind, name in named.items() if name}

    def before_posting(self, ticket: Ticket) -> Ticket:
        """Return the ticket to post."""
        changed = self._call("pre_ticket_creation", (Ticket, type(None)), ticket)
        return changed if isinstance(changed, Ticket) else ticket

    def after_result(self, result: Result) -> None:
        self._call("post_agent_result", (object,), result)

    def evaluate_gate(self, gate_id: str, text: str) -> bool | None:
        """Return None without a hook, or for a gate that it does not know."""
        met = self._call("custom_gate_evaluator", (bool, type(None)), gate_id, text)
        return met if isinstance(met, bool) else None

    def _call(self, kind: str, allowed: tuple[type, ...], *arguments: object) -> object:
        if kind not in self._hooks:
            return None
        try:
            returned = self._hooks[kind].function(*arguments)
        except Exception as error:
            raise UserError(f"the hook {kind} failed: {type(error).__name__}: {error}", do="Fix the hook.") from error
        if not isinstance(returned, allowed):
            raise UserError(f"the hook {kind} returned {returned!r:.80}", do="Fix the hook.")
        return returned
