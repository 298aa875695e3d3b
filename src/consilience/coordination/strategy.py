"""The base of convergence strategies: asking by tickets, collecting, recording verdicts, combining.

A strategy holds no state but its settings. What it knows of a session it reads from the workspace, so that any process can go on
where another ended. It waits for nothing but in `collect`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from consilience.coordination.convergence import (
    REVIEWER,
    ROLES,
    ConvergenceCheck,
    CoordinationFailure,
    LatestArtifact,
    Partial,
    ReviewerRole,
    compose,
)
from consilience.coordination.gates import BUILT_IN_GATES, Gate, gate, load_gate, load_plugin
from consilience.coordination.records import CustomHooks, GateStatus, RecordName, Ticket
from consilience.coordination.tickets import Result, post
from consilience.coordination.waiting import (
    AGENT_TIMEOUT_SECONDS,
    Seat,
    Timeouts,
    TimeoutStrategy,
    Waited,
    Waiter,
    find_tickets,
    seats_of,
    ticket_id,
    wait_for_results,
)
from consilience.coordination.workspace import Workspace, read_protocol
from consilience.domain.errors import SettingsError, UserError
from consilience.domain.validation import describe_invalid

HOOK_ENTRY_POINTS = "consilience.coordination_hooks"
SessionDir = str | PathLike[str]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class ConvergenceStrategy(ABC):
    """How a session of several agents is brought to an end. Subclasses of other packages need these three methods only."""

    @abstractmethod
    def initialize(self, session_dir: SessionDir, config: Mapping[str, object] | None = None) -> None:
        """Set up the convergence criteria of a workspace."""

    @abstractmethod
    def check_convergence(self, session_dir: SessionDir, iteration: int) -> bool:
        """Return whether the session has converged in this iteration. Running out of iterations is not convergence."""

    @abstractmethod
    def synthesize(self, session_dir: SessionDir) -> str:
        """Return the final output."""


class StrategySettings(BaseModel):
    """What all strategies of this package can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agents: tuple[RecordName, ...] = ()
    """Names of the agents that are asked."""
    topic: str = ""
    """Of every ticket."""
    instructions: str = ""
    """Of every ticket."""
    roles: dict[str, ReviewerRole] = {}
    """What each agent is asked for, by its name; red and blue have roles of their own."""
    quorum: int | None = Field(default=None, ge=1)
    """How many agents are enough; None is `quorum_percentage` of `protocol.json`, or all."""
    timeout: Seconds = AGENT_TIMEOUT_SECONDS
    timeout_strategy: TimeoutStrategy = "per_agent"
    partial: Partial = "accept"

    @model_validator(mode="after")
    def _check_agents(self) -> StrategySettings:
        if len(set(self.agents)) < len(self.agents):
            raise ValueError("agents must have different names")
        if self.quorum is not None and self.quorum > len(self.agents):
            raise ValueError(f"the quorum of {self.quorum} is more than the {len(self.agents)} agents")
        return self


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
        changed_ticket = self._call("pre_ticket_creation", (Ticket, type(None)), ticket)
        return changed_ticket if isinstance(changed_ticket, Ticket) else ticket

    def after_result(self, result: Result) -> None:
        self._call("post_agent_result", (object,), result)

    def evaluate_gate(self, gate_id: str, text: str) -> bool | None:
        """Return None without a hook, or for a gate that it does not know."""
        is_met = self._call("custom_gate_evaluator", (bool, type(None)), gate_id, text)
        return is_met if isinstance(is_met, bool) else None

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


class TicketStrategy(ConvergenceStrategy):
    """A strategy that asks its agents by tickets, one for each agent and iteration."""

    settings_type: ClassVar[type[StrategySettings]] = StrategySettings
    title: ClassVar[str] = "Results"

    def __init__(self, config: Mapping[str, object] | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Raises `SettingsError` for invalid settings. `clock`: of the times in tickets."""
        self._config = dict(config or {})
        self.clock = clock
        self._timeouts: Timeouts | None = None
        self.settings = self._validated(self._config)

    def _validated(self, config: Mapping[str, object]) -> StrategySettings:
        try:
            return self.settings_type.model_validate(config)
        except ValidationError as error:
            problem = describe_invalid(error, model=self.settings_type)
            raise SettingsError(f"invalid settings of {type(self).__name__}: {problem}") from None

    @property
    def max_iterations(self) -> int:
        return 1

    @property
    def gate_ids(self) -> tuple[str, ...]:
        return ()

    def initialize(self, session_dir: SessionDir, config: Mapping[str, object] | None = None) -> None:
        """Write the criteria to `convergence.json`; a session under way keeps its progress.

        Raises `SettingsError` for invalid settings, and `UnknownName` for an unknown gate or hook.
        """
        self.settings = self._validated({**self._config, **(config or {})})
        workspace = Workspace.open(session_dir)
        gates = tuple(
            GateStatus(id=gate_id, description=gate.description) for gate_id, gate in self.gates(workspace).items()
        )
        recorded = workspace.convergence()
        is_under_way = [gate.id for gate in recorded.convergence_gates] == [
            gate.id for gate in gates
        ] and recorded.current_iteration > 1
        if not is_under_way:
            recorded = recorded.model_copy(
                update={"convergence_gates": gates, "current_iteration": 1, "converged": False, "current_quality": 0.0}
            )
        criteria = {
            "max_iterations": self.max_iterations,
            "quality_threshold": self.threshold(recorded.current_iteration),
        }
        workspace.save_convergence(recorded.model_copy(update=criteria))

    # --- asking

    @abstractmethod
    def tickets(self, workspace: Workspace, iteration: int) -> list[Ticket]:
        """Return the tickets of an iteration that can be posted now."""

    def post_tickets(self, session_dir: SessionDir, iteration: int) -> list[Ticket]:
        """Post the tickets of an iteration that can be posted now; return them as they are. May be repeated.

        Raises `SettingsError` beyond the last iteration.
        """
        if not 1 <= iteration <= self.max_iterations:
            raise SettingsError(f"there is no iteration {iteration}: the session has {self.max_iterations}")
        workspace = Workspace.open(session_dir)
        protocol = read_protocol(workspace)
        hooks = Hooks(protocol.custom_hooks)
        tickets = self.tickets(workspace, iteration)
        tickets.sort(key=lambda ticket: ticket.assigned_to not in protocol.extensions.priority_agents)
        there = find_tickets(workspace, [ticket.assigned_to for ticket in tickets], iteration)
        posted = []
        for ticket in tickets:
            posted.append(
                there.get(ticket.assigned_to) or post(workspace, hooks.before_posting(ticket), now=self.clock())
            )
        convergence = workspace.convergence()
        if convergence.current_iteration != iteration:
            workspace.save_convergence(convergence.model_copy(update={"current_iteration": iteration}))
        return posted

    def ticket(self, agent: str, iteration: int = 1, **fields: object) -> Ticket:
        """Return a ticket for an agent with the fields that all tickets of this strategy have."""
        return Ticket.model_validate(
            {
                "id": ticket_id(agent, iteration),
                "iteration": iteration,
                "assigned_to": agent,
                "assigned_by": "lead",
                "topic": self.settings.topic,
                "specific_focus": self.role_of(agent).focus,
                "instructions": self.settings.instructions,
                "convergence_gates": self.gate_ids,
                **fields,
            }
        )

    def role_of(self, agent: str) -> ReviewerRole:
        return self.settings.roles.get(agent) or ROLES.get(agent, REVIEWER)

    def collect(self, session_dir: SessionDir, iteration: int, *, waiter: Waiter | None = None) -> Waited:
        """Wait for the agents of an iteration as the settings and `protocol.json` say, and end the tickets of those that are late.

        Afterwards no ticket of the iteration is open, except those of people.
        """
        return self.wait(Workspace.open(session_dir), self.settings.agents, iteration, waiter)

    def wait(self, workspace: Workspace, agents: Sequence[str], iteration: int, waiter: Waiter | None) -> Waited:
        protocol = read_protocol(workspace)
        if self._timeouts is None:
            self._timeouts = self.new_timeouts(protocol.extensions.timeout_multiplier)
        waited = wait_for_results(
            workspace,
            agents,
            iteration=iteration,
            quorum=self.quorum_to_wait_for(workspace, agents),
            priority=[agent for agent in protocol.extensions.priority_agents if agent in agents],
            timeouts=self._timeouts,
            on_timeout="withdraw" if self.settings.partial == "use" else "requeue",
            waiter=waiter,
        )
        hooks = Hooks(protocol.custom_hooks)
        for result in waited.results.values():
            hooks.after_result(result)
        return waited

    def new_timeouts(self, multiplier: float) -> Timeouts:
        return Timeouts(self.settings.timeout * multiplier, self.settings.timeout_strategy)

    def quorum_to_wait_for(self, workspace: Workspace, agents: Sequence[str]) -> int | None:
        """Return None to wait for every agent."""
        return None

    # --- judging

    @abstractmethod
    def evaluation(self, workspace: Workspace, iteration: int) -> ConvergenceCheck:
        """Judge an iteration by what lies in the workspace."""

    def evaluate(self, session_dir: SessionDir, iteration: int) -> ConvergenceCheck:
        """Judge an iteration and record the verdict in `convergence.json`.

        Raises `CoordinationFailure` if no agent handed in anything and none can any more.
        """
        workspace = Workspace.open(session_dir)
        evaluation = self.evaluation(workspace, iteration)
        if evaluation.outcome != "waiting":
            judged = tuple(
                GateStatus(id=verdict.id, description=verdict.description, met=verdict.met)
                for verdict in evaluation.verdicts
            )
            changes = {
                "current_iteration": iteration,
                "convergence_gates": judged,
                "quality_threshold": evaluation.threshold,
                "current_quality": evaluation.quality,
                "converged": evaluation.converged,
                "convergence_reason": evaluation.reason,
            }
            workspace.save_convergence(workspace.convergence().model_copy(update=changes))
            if not set(self.authors) & set(evaluation.present):
                reasons = "; ".join(f"{agent}: {reason}" for agent, reason in evaluation.missing.items())
                raise CoordinationFailure(f"no result from any agent in iteration {iteration}: {reasons}")
        return evaluation

    def check_convergence(self, session_dir: SessionDir, iteration: int) -> bool:
        """Return whether the session has converged in this iteration, and record the verdict in `convergence.json`.

        Only results of this iteration count. Raises `CoordinationFailure` if no agent handed in anything and none can any more.
        """
        return self.evaluate(session_dir, iteration).converged

    def synthesize(self, session_dir: SessionDir) -> str:
        """Return a Markdown document of the verdicts and each agent's last artifact, quoted whole; missing agents are named.

        Nothing is added to what the agents wrote. Raises `CoordinationFailure` without any artifact.
        """
        workspace = Workspace.open(session_dir)
        iteration = min(max(workspace.convergence().current_iteration, 1), self.max_iterations)
        evaluation = self.evaluation(workspace, iteration)
        return compose(self.title, evaluation, self.contributions(workspace, self.authors, iteration))

    @property
    def authors(self) -> Sequence[str]:
        """Agents whose artifacts the synthesis holds."""
        return self.settings.agents

    def contributions(self, workspace: Workspace, agents: Sequence[str], iteration: int) -> list[LatestArtifact]:
        """Return each agent's last artifact up to an iteration."""
        latest: dict[str, LatestArtifact] = {}
        for number in range(iteration, 0, -1):
            rest = [agent for agent in agents if agent not in latest]
            for agent, seat in seats_of(workspace, rest, number).items() if rest else ():
                if (result := seat.result) is not None and (record := result.ticket.result) is not None:
                    latest[agent] = LatestArtifact(agent, number, result.text, record.artifact_path)
        return [latest[agent] for agent in agents if agent in latest]

    def gates(self, workspace: Workspace) -> dict[str, Gate]:
        """Return the gates by id. Raises `UnknownName`."""
        hooks = Hooks(read_protocol(workspace).custom_hooks)
        return {gate_id: self._gate(gate_id, hooks) for gate_id in self.gate_ids}

    def _gate(self, gate_id: str, hooks: Hooks) -> Gate:
        if gate_id not in BUILT_IN_GATES and hooks.evaluate_gate(gate_id, "") is not None:
            return gate(f"what the session's own gate {gate_id} asks for")(
                lambda text: bool(hooks.evaluate_gate(gate_id, text))
            )
        return load_gate(gate_id)

    def threshold(self, iteration: int) -> float:
        return 1.0


def missing_seats(seats: Mapping[str, Seat]) -> dict[str, str]:
    return {agent: seat.reason or "no result yet" for agent, seat in seats.items() if seat.result is None}


def texts_of(seats: Mapping[str, Seat]) -> dict[str, str]:
    return {agent: seat.result.text for agent, seat in seats.items() if seat.result is not None}
