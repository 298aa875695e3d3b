"""How a strategy is carried out with tickets: asking, collecting, recording verdicts, combining.

A strategy is a value. What is known of a session is read from the workspace, so that any process can go on where another ended.
Nothing waits but `collect`.
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
    RETRY_TTL_FACTOR,
    REVIEWER,
    ROLES,
    ConvergenceCheck,
    CoordinationFailure,
    LatestArtifact,
    Partial,
    ReviewerRole,
    compose,
    judge_gates,
    judge_iteration,
    quote_block,
    refinement,
    threshold_at,
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
from consilience.domain.errors import SettingsError, UserError, WorkspaceError
from consilience.domain.validation import describe_invalid

HOOK_ENTRY_POINTS = "consilience.coordination_hooks"
SessionDir = str | PathLike[str]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
MAX_QUOTED_CHARS = 20_000
"""Max length of a prior artifact that a ticket quotes; of a longer one it names the file only."""


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


class Strategy(BaseModel):
    """Who is asked for what, and when that has converged."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    title: ClassVar[str] = "Results"
    """Of the synthesis."""
    ends_at_quorum: ClassVar[bool] = False
    """Whether an iteration ends with a quorum or when the timeout, which all share, is over, not only when nobody is at work."""

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
    def _check_agents(self) -> Strategy:
        if len(set(self.agents)) < len(self.agents):
            raise ValueError("agents must have different names")
        if self.quorum is not None and self.quorum > len(self.agents):
            raise ValueError(f"the quorum of {self.quorum} is more than the {len(self.agents)} agents")
        return self

    @property
    def iterations(self) -> int:
        return 1

    @property
    def gate_ids(self) -> tuple[str, ...] | None:
        """The gates that decide; None if the number of results decides."""
        return None

    @property
    def thresholds(self) -> float | tuple[float, ...]:
        """The share of gates to meet; several are a schedule."""
        return 1.0

    @property
    def by_lead(self) -> Mapping[str, tuple[str, ...]]:
        """The workers of each sub-lead, who is asked to combine their results once they have ended."""
        return {}

    def role_of(self, agent: str) -> ReviewerRole:
        return self.roles.get(agent) or ROLES.get(agent, REVIEWER)


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
    """A strategy carried out by asking its agents by tickets, one for each agent and iteration."""

    def __init__(
        self,
        kind: type[Strategy],
        config: Mapping[str, object] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises `SettingsError` for a config that `kind` refuses. `clock`: of the times in tickets."""
        self._kind, self._config, self.clock = kind, dict(config or {}), clock
        self._timeouts: Timeouts | None = None
        self.strategy = self._validated(self._config)

    def _validated(self, config: Mapping[str, object]) -> Strategy:
        try:
            return self._kind.model_validate(config)
        except ValidationError as error:
            problem = describe_invalid(error, model=self._kind)
            raise SettingsError(f"invalid settings of {self._kind.__name__}: {problem}") from None

    def initialize(self, session_dir: SessionDir, config: Mapping[str, object] | None = None) -> None:
        """Write the criteria to `convergence.json`; a session under way keeps its progress.

        Raises `SettingsError` for invalid settings, and `UnknownName` for an unknown gate or hook.
        """
        self.strategy = self._validated({**self._config, **(config or {})})
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
            "max_iterations": self.strategy.iterations,
            "quality_threshold": threshold_at(self.strategy.thresholds, recorded.current_iteration),
        }
        workspace.save_convergence(recorded.model_copy(update=criteria))

    # --- asking

    @property
    def workers(self) -> Sequence[str]:
        """Agents that are asked first."""
        return [agent for agent in self.strategy.agents if agent not in self.strategy.by_lead]

    @property
    def authors(self) -> Sequence[str]:
        """Agents whose artifacts the synthesis holds: the sub-leads, if there are any."""
        return tuple(self.strategy.by_lead) or self.strategy.agents

    def tickets(self, workspace: Workspace, iteration: int) -> list[Ticket]:
        """Return the tickets of an iteration that can be posted now: a sub-lead's only once its workers have ended."""
        by_lead, last_check = self.strategy.by_lead, None
        if iteration > 1:
            last_check = self.evaluation(workspace, iteration - 1)
            if last_check.outcome == "waiting":
                raise WorkspaceError(
                    f"iteration {iteration - 1} is not finished: {last_check.reason}",
                    where=str(workspace.path),
                    do="Wait for its results, or withdraw its open tickets.",
                )
        workers = [
            self._refined(workspace, agent, last_check) if last_check else self.ticket(agent) for agent in self.workers
        ]
        return [*workers, *filter(None, (self._combining(workspace, lead, iteration) for lead in by_lead))]

    def _combining(self, workspace: Workspace, lead: str, iteration: int) -> Ticket | None:
        """Return the ticket of a sub-lead; None while a worker is at work, or with nothing to combine."""
        team = self.strategy.by_lead[lead]
        seats = seats_of(workspace, team, iteration)
        if any(seat.is_open for seat in seats.values()) or not texts_of(seats):
            return None
        focus = "Combine the results of your workers. Keep where they differ; add nothing that none of them wrote."
        reasons = {name: f" ({reason})" for name, reason in missing_seats(seats).items()}
        context = self._context(workspace, team, iteration, reasons)
        return self.ticket(lead, iteration, type="synthesis", specific_focus=focus, prior_context=context)

    def _refined(self, workspace: Workspace, agent: str, last_check: ConvergenceCheck) -> Ticket:
        own_first = sorted(self.strategy.agents, key=lambda name: name != agent)
        others = {name: "" for name in last_check.missing if name != agent}
        fields: dict[str, object] = {}
        if agent in last_check.missing and self.strategy.partial == "fail":
            late = seats_of(workspace, [agent], last_check.iteration)[agent].ticket
            fields["ttl_seconds"] = late.ttl_seconds * RETRY_TTL_FACTOR if late is not None else 0
        return self.ticket(
            agent,
            last_check.iteration + 1,
            type="iteration",
            specific_focus=refinement(last_check, agent, self.strategy.role_of(agent)),
            prior_context=self._context(workspace, own_first, last_check.iteration, others, agent),
            **fields,
        )

    def _context(
        self, workspace: Workspace, agents: Sequence[str], iteration: int, absent: Mapping[str, str], reader: str = ""
    ) -> str:
        """Return the last artifacts of these agents as their reader is shown them, and who handed in nothing."""
        quotations = [
            _quoted(part, is_own=part.agent == reader) for part in self.contributions(workspace, agents, iteration)
        ]
        missing = [f"{name} handed in nothing{reason}; do not write for it." for name, reason in absent.items()]
        return "\n\n".join([*quotations, *missing])

    def post_tickets(self, session_dir: SessionDir, iteration: int) -> list[Ticket]:
        """Post the tickets of an iteration that can be posted now; return them as they are. May be repeated.

        Raises `SettingsError` beyond the last iteration.
        """
        if not 1 <= iteration <= (last := self.strategy.iterations):
            raise SettingsError(f"there is no iteration {iteration}: the session has {last}")
        workspace = Workspace.open(session_dir)
        protocol = read_protocol(workspace)
        hooks = Hooks(protocol.custom_hooks)
        tickets = self.tickets(workspace, iteration)
        tickets.sort(key=lambda ticket: ticket.assigned_to not in protocol.extensions.priority_agents)
        there = find_tickets(workspace, [ticket.assigned_to for ticket in tickets], iteration)
        posted = [
            there.get(ticket.assigned_to) or post(workspace, hooks.before_posting(ticket), now=self.clock())
            for ticket in tickets
        ]
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
                "topic": self.strategy.topic,
                "specific_focus": self.strategy.role_of(agent).focus,
                "instructions": self.strategy.instructions,
                "convergence_gates": self.strategy.gate_ids or (),
                **fields,
            }
        )

    def collect(self, session_dir: SessionDir, iteration: int, *, waiter: Waiter | None = None) -> Waited:
        """Wait for the agents of an iteration as the strategy and `protocol.json` say, and end the tickets of those that are late.

        Then do the same with the sub-leads. Afterwards no ticket of the iteration is open, except those of people.
        """
        workspace = Workspace.open(session_dir)
        waited = self._wait(workspace, self.workers, iteration, waiter)
        if self.strategy.by_lead:
            posted = {ticket.assigned_to for ticket in self.post_tickets(session_dir, iteration)}
            leads = self._wait(workspace, [lead for lead in self.authors if lead in posted], iteration, waiter)
            waited.results |= leads.results
            waited.missing |= leads.missing
            waited.timed_out += leads.timed_out
            waited.is_quorum &= leads.is_quorum
        return waited

    def _wait(self, workspace: Workspace, agents: Sequence[str], iteration: int, waiter: Waiter | None) -> Waited:
        strategy, protocol = self.strategy, read_protocol(workspace)
        extensions, is_shared = protocol.extensions, strategy.ends_at_quorum
        if self._timeouts is None:
            timeout = strategy.timeout * extensions.timeout_multiplier
            self._timeouts = Timeouts(timeout, strategy.timeout_strategy, shared=timeout if is_shared else None)
        waited = wait_for_results(
            workspace,
            agents,
            iteration=iteration,
            quorum=extensions.quorum_of(len(agents), strategy.quorum) if is_shared else None,
            priority=[agent for agent in extensions.priority_agents if agent in agents],
            timeouts=self._timeouts,
            on_timeout="withdraw" if strategy.partial == "use" else "requeue",
            waiter=waiter,
        )
        hooks = Hooks(protocol.custom_hooks)
        for result in waited.results.values():
            hooks.after_result(result)
        return waited

    # --- judging

    def evaluation(self, workspace: Workspace, iteration: int) -> ConvergenceCheck:
        """Judge an iteration by what lies in the workspace."""
        strategy, extensions = self.strategy, read_protocol(workspace).extensions
        seats = seats_of(workspace, strategy.agents, iteration)
        for lead, team in strategy.by_lead.items():
            if seats[lead].ticket is None and not any(seats[name].is_open or seats[name].result for name in team):
                seats[lead] = Seat(reason="none of its workers handed in anything")
        texts, missing = texts_of(seats), missing_seats(seats)
        teams = {
            lead: lead in texts and len(texts.keys() & set(team)) >= extensions.quorum_of(len(team))
            for lead, team in strategy.by_lead.items()
        }
        quorum = extensions.quorum_of(len(seats), strategy.quorum)
        is_quorum = len(texts) >= quorum
        is_over = not any(seats[agent].is_open for agent in self.authors)
        if strategy.ends_at_quorum and not is_over:
            posted = [seat.ticket.created_at for seat in seats.values() if seat.ticket is not None]
            timeout = strategy.timeout * extensions.timeout_multiplier
            is_complete = is_quorum and texts.keys() >= set(extensions.priority_agents) & seats.keys()
            is_over = is_complete or (bool(posted) and self.clock() - min(posted) >= timeout)
        is_gated = strategy.gate_ids is not None
        return judge_iteration(
            iteration,
            tuple(texts),
            missing,
            quorum=quorum,
            verdicts=judge_gates(self.gates(workspace), texts, () if is_quorum else tuple(missing))
            if is_gated
            else None,
            teams=teams or None,
            threshold=threshold_at(strategy.thresholds, iteration),
            is_over=is_over,
            is_last=iteration >= strategy.iterations,
            partial=strategy.partial,
        )

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
        iteration = min(max(workspace.convergence().current_iteration, 1), self.strategy.iterations)
        evaluation = self.evaluation(workspace, iteration)
        return compose(self.strategy.title, evaluation, self.contributions(workspace, self.authors, iteration))

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
        return {gate_id: self._gate(gate_id, hooks) for gate_id in self.strategy.gate_ids or ()}

    def _gate(self, gate_id: str, hooks: Hooks) -> Gate:
        if gate_id not in BUILT_IN_GATES and hooks.evaluate_gate(gate_id, "") is not None:
            return gate(f"what the session's own gate {gate_id} asks for")(
                lambda text: bool(hooks.evaluate_gate(gate_id, text))
            )
        return load_gate(gate_id)


def missing_seats(seats: Mapping[str, Seat]) -> dict[str, str]:
    return {agent: seat.reason or "no result yet" for agent, seat in seats.items() if seat.result is None}


def texts_of(seats: Mapping[str, Seat]) -> dict[str, str]:
    return {agent: seat.result.text for agent, seat in seats.items() if seat.result is not None}


def _quoted(contribution: LatestArtifact, *, is_own: bool) -> str:
    whose = "Your" if is_own else f"{contribution.agent}'s"
    heading = f"{whose} artifact of iteration {contribution.iteration}, {contribution.path}:"
    if len(contribution.text) > MAX_QUOTED_CHARS:
        return f"{heading} {len(contribution.text):,} characters, in the file"
    return f"{heading}\n\n{quote_block(contribution.text)}"
