"""Convergence strategies: who is asked for what, and when a session has converged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from consilience.coordination.convergence import (
    RETRY_TTL_FACTOR,
    ConvergenceCheck,
    IterationOutcome,
    LatestArtifact,
    judge_gates,
    quality_of,
    quote_block,
    refinement,
    threshold_at,
)
from consilience.coordination.gates import BUILT_IN_GATES
from consilience.coordination.records import RecordName, Ticket
from consilience.coordination.strategy import (
    Seconds,
    SessionDir,
    StrategySettings,
    TicketStrategy,
    missing_seats,
    texts_of,
)
from consilience.coordination.waiting import (
    Seat,
    Timeouts,
    TimeoutStrategy,
    Waited,
    Waiter,
    required_after_timeout,
    seats_of,
)
from consilience.coordination.workspace import Workspace, read_protocol
from consilience.domain.errors import UnknownName, WorkspaceError

MAX_QUOTED_CHARS = 20_000
"""Max length of a prior artifact that a ticket quotes; of a longer one it names the file only."""
Threshold = Annotated[float, Field(ge=0, le=1)]


class UnknownStrategy(UnknownName, ValueError):
    """A name that is neither a strategy nor a kind of review."""


# --- adversarial review


class AdversarialSettings(StrategySettings):
    agents: tuple[RecordName, ...] = ("red", "blue")
    max_iterations: int = Field(default=3, ge=1, le=100)
    quality_threshold: Threshold | Annotated[tuple[Threshold, ...], Field(min_length=1)] = 0.8
    """Share of gates that must be met; several are a schedule, one for each iteration."""
    gates: tuple[str, ...] = tuple(BUILT_IN_GATES)
    """Built-in gates, entry points, or `module:function`."""


class AdversarialReview(TicketStrategy):
    """Red and blue review side by side, without reading each other first, and refine until both meet enough gates."""

    settings_type = AdversarialSettings
    settings: AdversarialSettings
    title = "Adversarial review"

    @property
    def max_iterations(self) -> int:
        return self.settings.max_iterations

    @property
    def gate_ids(self) -> tuple[str, ...]:
        return self.settings.gates

    def threshold(self, iteration: int) -> float:
        return threshold_at(self.settings.quality_threshold, iteration)

    def tickets(self, workspace: Workspace, iteration: int) -> list[Ticket]:
        if iteration == 1:
            return [self.ticket(agent) for agent in self.settings.agents]
        last_check = self.evaluation(workspace, iteration - 1)
        if last_check.outcome == "waiting":
            raise WorkspaceError(
                f"iteration {iteration - 1} is not finished: {last_check.reason}",
                where=str(workspace.path),
                do="Wait for its results, or withdraw its open tickets.",
            )
        return [self._refined(workspace, agent, last_check) for agent in self.settings.agents]

    def _refined(self, workspace: Workspace, agent: str, last_check: ConvergenceCheck) -> Ticket:
        iteration = last_check.iteration + 1
        own_first = sorted(self.settings.agents, key=lambda name: name != agent)
        quotations = [
            _quoted(contribution, is_own=contribution.agent == agent)
            for contribution in self.contributions(workspace, own_first, last_check.iteration)
        ]
        absent = [f"{name} handed in nothing; do not write for it." for name in last_check.missing if name != agent]
        fields: dict[str, object] = {}
        if agent in last_check.missing and self.settings.partial == "fail":
            late = seats_of(workspace, [agent], last_check.iteration)[agent].ticket
            fields["ttl_seconds"] = late.ttl_seconds * RETRY_TTL_FACTOR if late is not None else 0
        return self.ticket(
            agent,
            iteration,
            type="iteration",
            specific_focus=refinement(last_check, agent, self.role_of(agent)),
            prior_context="\n\n".join([*quotations, *absent]),
            **fields,
        )

    def evaluation(self, workspace: Workspace, iteration: int) -> ConvergenceCheck:
        seats = seats_of(workspace, self.settings.agents, iteration)
        texts, missing = texts_of(seats), missing_seats(seats)
        is_open = any(seat.is_open for seat in seats.values())
        is_quorum = len(texts) >= read_protocol(workspace).extensions.quorum_of(len(seats), self.settings.quorum)
        verdicts = judge_gates(self.gates(workspace), texts, absent=() if is_quorum else tuple(missing))
        quality = quality_of(verdicts)
        threshold = self.threshold(iteration)
        verdicts_met = sum(verdict.met for verdict in verdicts)
        reason = f"{verdicts_met} of {len(verdicts)} gates met, quality {quality:.2f}, threshold {threshold:.2f}"
        if missing:
            reason += f"; no result from {', '.join(missing)}"
        outcome: IterationOutcome
        if is_open:
            outcome = "waiting"
        elif is_quorum and quality >= threshold:
            outcome = "converged"
        elif not is_quorum and self.settings.partial == "use":
            outcome = "partial"
        else:
            outcome = "continue" if iteration < self.max_iterations else "exhausted"
        return ConvergenceCheck(
            iteration=iteration,
            verdicts=verdicts,
            present=tuple(texts),
            missing=missing,
            quality=quality,
            threshold=threshold,
            outcome=outcome,
            reason=reason,
        )


def _quoted(contribution: LatestArtifact, *, is_own: bool) -> str:
    whose = "Your" if is_own else f"{contribution.agent}'s"
    heading = f"{whose} artifact of iteration {contribution.iteration}, {contribution.path}:"
    if len(contribution.text) > MAX_QUOTED_CHARS:
        return f"{heading} {len(contribution.text):,} characters, in the file"
    return f"{heading}\n\n{quote_block(contribution.text)}"


# --- parallel decomposition


class ParallelSettings(StrategySettings):
    num_agents: int = Field(default=0, ge=0, le=1000)
    """How many readers; without `agents` they are named reader_1, reader_2, …"""
    timeout: Seconds = 300.0
    """For all readers together."""
    timeout_strategy: TimeoutStrategy = "total"

    @model_validator(mode="before")
    @classmethod
    def _name_agents(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        agents, number = data.get("agents"), data.get("num_agents")
        if not agents and isinstance(number, int):
            return {**data, "agents": tuple(f"reader_{index}" for index in range(1, min(number, 1000) + 1))}
        return {**data, "num_agents": len(agents)} if agents and not number else data

    @model_validator(mode="after")
    def _check_number(self) -> ParallelSettings:
        if not self.agents or len(self.agents) != self.num_agents:
            raise ValueError("num_agents must be the number of agents, at least 1")
        return self


class ParallelDecomposition(TicketStrategy):
    """Readers work side by side on parts of their own; a quorum of them is enough, after the timeout 80 % of it. No gates."""

    settings_type = ParallelSettings
    settings: ParallelSettings
    title = "Parallel review"

    def tickets(self, workspace: Workspace, iteration: int) -> list[Ticket]:
        return [self.ticket(agent) for agent in self.settings.agents]

    def new_timeouts(self, multiplier: float) -> Timeouts:
        timeout = self.settings.timeout * multiplier
        return Timeouts(timeout, self.settings.timeout_strategy, shared=timeout)

    def quorum_to_wait_for(self, workspace: Workspace, agents: Sequence[str]) -> int | None:
        return read_protocol(workspace).extensions.quorum_of(len(agents), self.settings.quorum)

    def evaluation(self, workspace: Workspace, iteration: int) -> ConvergenceCheck:
        extensions = read_protocol(workspace).extensions
        seats = seats_of(workspace, self.settings.agents, iteration)
        texts, missing = texts_of(seats), missing_seats(seats)
        quorum = extensions.quorum_of(len(seats), self.settings.quorum)
        posted = [seat.ticket.created_at for seat in seats.values() if seat.ticket is not None]
        timeout = self.settings.timeout * extensions.timeout_multiplier
        is_over = not any(seat.is_open for seat in seats.values()) or (
            bool(posted) and self.clock() - min(posted) >= timeout
        )
        is_quorum = len(texts) >= quorum and texts.keys() >= set(extensions.priority_agents) & seats.keys()
        is_enough = is_over and len(texts) >= required_after_timeout(quorum)
        reason = f"{len(texts)} of {len(seats)} handed in, quorum {quorum}"
        reason += ", 80 % of it after the timeout" if is_enough and len(texts) < quorum else ""
        return ConvergenceCheck(
            iteration=iteration,
            present=tuple(texts),
            missing=missing,
            quality=len(texts) / len(seats),
            threshold=quorum / len(seats),
            outcome="converged" if is_quorum or is_enough else "partial" if is_over else "waiting",
            reason=reason,
        )


# --- hierarchical


class HierarchicalSettings(StrategySettings):
    teams: dict[RecordName, tuple[RecordName, ...]] = Field(min_length=1)
    """Workers of each sub-lead, by its name."""

    @model_validator(mode="before")
    @classmethod
    def _name_agents(cls, data: object) -> object:
        teams = data.get("teams") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(teams, Mapping) or "agents" in data:
            return data
        workers = [worker for team in teams.values() if isinstance(team, list | tuple) for worker in team]
        return {**data, "agents": (*workers, *teams)}

    @model_validator(mode="after")
    def _check_teams(self) -> HierarchicalSettings:
        if not all(self.teams.values()):
            raise ValueError("every sub-lead needs at least one worker")
        workers = [worker for team in self.teams.values() for worker in team]
        if sorted(self.agents) != sorted([*workers, *self.teams]):
            raise ValueError("agents must be the sub-leads and their workers")
        if self.quorum is not None:
            raise ValueError("quorum is for one group of agents; teams take quorum_percentage of protocol.json")
        return self


class Hierarchical(TicketStrategy):
    """Workers review parts; each sub-lead combines the results of its workers; the caller is the main lead."""

    settings_type = HierarchicalSettings
    settings: HierarchicalSettings
    title = "Hierarchical review"

    @property
    def authors(self) -> Sequence[str]:
        return tuple(self.settings.teams)

    def tickets(self, workspace: Workspace, iteration: int) -> list[Ticket]:
        """Return the tickets of all workers, and of the sub-leads whose workers have ended."""
        tickets = [self.ticket(worker) for team in self.settings.teams.values() for worker in team]
        for lead, team in self.settings.teams.items():
            seats = seats_of(workspace, team, iteration)
            if any(seat.is_open for seat in seats.values()) or not texts_of(seats):
                continue
            quotations = [_quoted(part, is_own=False) for part in self.contributions(workspace, team, iteration)]
            absent = [
                f"{name} handed in nothing ({reason}); do not write for it."
                for name, reason in missing_seats(seats).items()
            ]
            focus = "Combine the results of your workers. Keep where they differ; add nothing that none of them wrote."
            context = "\n\n".join([*quotations, *absent])
            tickets.append(self.ticket(lead, type="synthesis", specific_focus=focus, prior_context=context))
        return tickets

    def collect(self, session_dir: SessionDir, iteration: int, *, waiter: Waiter | None = None) -> Waited:
        """Wait for the workers, post the tickets of the sub-leads, and wait for these."""
        workspace = Workspace.open(session_dir)
        workers = [worker for team in self.settings.teams.values() for worker in team]
        first = self.wait(workspace, workers, iteration, waiter)
        posted = {ticket.assigned_to for ticket in self.post_tickets(session_dir, iteration)}
        lead_results = self.wait(workspace, [lead for lead in self.settings.teams if lead in posted], iteration, waiter)
        return Waited(
            results=first.results | lead_results.results,
            missing=first.missing | lead_results.missing,
            timed_out=(*first.timed_out, *lead_results.timed_out),
            is_quorum=first.is_quorum and lead_results.is_quorum,
        )

    def evaluation(self, workspace: Workspace, iteration: int) -> ConvergenceCheck:
        extensions = read_protocol(workspace).extensions
        seats: dict[str, Seat] = {}
        short = []
        for lead, team in self.settings.teams.items():
            workers = seats_of(workspace, team, iteration)
            lead_seat = seats_of(workspace, [lead], iteration)[lead]
            if (
                not texts_of(workers)
                and not any(seat.is_open for seat in workers.values())
                and lead_seat.ticket is None
            ):
                lead_seat = Seat(reason="none of its workers handed in anything")
            if lead_seat.result is None or len(texts_of(workers)) < extensions.quorum_of(len(team)):
                short.append(lead)
            seats |= {**workers, lead: lead_seat}
        missing = missing_seats(seats)
        is_open = any(seats[lead].is_open for lead in self.settings.teams)
        leads = {lead: seats[lead] for lead in self.settings.teams}
        complete = len(leads) - len(short)
        return ConvergenceCheck(
            iteration=iteration,
            present=tuple(texts_of(seats)),
            missing=missing,
            quality=complete / len(leads),
            outcome="waiting" if is_open else "partial" if short else "converged",
            reason=f"{complete} of {len(leads)} teams complete" + (f", not {', '.join(short)}" if short else ""),
        )


# --- by name

STRATEGIES: Mapping[str, type[TicketStrategy]] = {
    "adversarial_review": AdversarialReview,
    "parallel_decomposition": ParallelDecomposition,
    "hierarchical": Hierarchical,
}
REVIEW_TYPES: Mapping[str, str] = {
    "skill": "adversarial_review",
    "skill_review": "adversarial_review",
    "code": "adversarial_review",
    "documentation": "parallel_decomposition",
    "parallel_analysis": "parallel_decomposition",
    "architecture": "hierarchical",
}


def select_convergence_strategy(
    name: str, config: Mapping[str, object] | None = None, *, clock: Callable[[], float] = time.time
) -> TicketStrategy:
    """Return a strategy by its name or by a kind of review.

    Raises `UnknownStrategy`, a `ValueError`, for an unknown name, and `SettingsError` for invalid settings.
    """
    strategy = STRATEGIES.get(REVIEW_TYPES.get(name, name))
    if strategy is None:
        raise UnknownStrategy(
            f"there is no strategy and no kind of review {name!r:.80}",
            do=f"Strategies: {', '.join(STRATEGIES)}. Kinds of review: {', '.join(REVIEW_TYPES)}.",
        )
    return strategy(config, clock=clock)
