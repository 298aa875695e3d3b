"""Strategies as values: who is asked for what, in which stages and iterations, and what must be met."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import Field, model_validator

from consilience.coordination.convergence import REVIEW_TYPES
from consilience.coordination.gates import BUILT_IN_GATES
from consilience.coordination.records import RecordName
from consilience.coordination.strategy import Seconds, Strategy, TicketStrategy
from consilience.coordination.waiting import TimeoutStrategy
from consilience.domain.errors import UnknownName

Threshold = Annotated[float, Field(ge=0, le=1)]


class UnknownStrategy(UnknownName, ValueError):
    """A name that is neither a strategy nor a kind of review."""


class AdversarialReview(Strategy):
    """Red and blue review side by side, without reading each other first, and refine until both meet enough gates."""

    title = "Adversarial review"

    agents: tuple[RecordName, ...] = ("red", "blue")
    max_iterations: int = Field(default=3, ge=1, le=100)
    quality_threshold: Threshold | Annotated[tuple[Threshold, ...], Field(min_length=1)] = 0.8
    """Share of gates that must be met; several are a schedule, one for each iteration."""
    gates: tuple[str, ...] = tuple(BUILT_IN_GATES)
    """Built-in gates, entry points, or `module:function`."""

    @property
    def iterations(self) -> int:
        return self.max_iterations

    @property
    def gate_ids(self) -> tuple[str, ...]:
        return self.gates

    @property
    def thresholds(self) -> float | tuple[float, ...]:
        return self.quality_threshold


class ParallelDecomposition(Strategy):
    """Readers work side by side on parts of their own; a quorum of them is enough, after the timeout 80 % of it. No gates."""

    title = "Parallel review"
    ends_at_quorum = True

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
    def _check_number(self) -> ParallelDecomposition:
        if not self.agents or len(self.agents) != self.num_agents:
            raise ValueError("num_agents must be the number of agents, at least 1")
        return self


class Hierarchical(Strategy):
    """Workers review parts; each sub-lead combines the results of its workers; the caller is the main lead."""

    title = "Hierarchical review"

    teams: dict[RecordName, tuple[RecordName, ...]] = Field(min_length=1)
    """Workers of each sub-lead, by its name."""

    @model_validator(mode="before")
    @classmethod
    def _name_agents(cls, data: object) -> object:
        teams = data.get("teams") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(teams, Mapping) or "agents" in data:
            return data
        by_team = [name for lead, team in teams.items() if isinstance(team, list | tuple) for name in (*team, lead)]
        return {**data, "agents": tuple(by_team)}

    @model_validator(mode="after")
    def _check_teams(self) -> Hierarchical:
        if not all(self.teams.values()):
            raise ValueError("every sub-lead needs at least one worker")
        workers = [worker for team in self.teams.values() for worker in team]
        if sorted(self.agents) != sorted([*workers, *self.teams]):
            raise ValueError("agents must be the sub-leads and their workers")
        if self.quorum is not None:
            raise ValueError("quorum is for one group of agents; teams take quorum_percentage of protocol.json")
        return self

    @property
    def by_lead(self) -> Mapping[str, tuple[str, ...]]:
        return self.teams


STRATEGIES: Mapping[str, type[Strategy]] = {
    "adversarial_review": AdversarialReview,
    "parallel_decomposition": ParallelDecomposition,
    "hierarchical": Hierarchical,
}


def select_convergence_strategy(
    name: str, config: Mapping[str, object] | None = None, *, clock: Callable[[], float] = time.time
) -> TicketStrategy:
    """Return a strategy by its name or by a kind of review, as it is carried out with tickets.

    Raises `UnknownStrategy`, a `ValueError`, for an unknown name, and `SettingsError` for invalid settings.
    """
    kind = STRATEGIES.get(REVIEW_TYPES.get(name, name))
    if kind is None:
        raise UnknownStrategy(
            f"there is no strategy and no kind of review {name!r:.80}",
            do=f"Strategies: {', '.join(STRATEGIES)}. Kinds of review: {', '.join(REVIEW_TYPES)}.",
        )
    return TicketStrategy(kind, config, clock=clock)
