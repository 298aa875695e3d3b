"""The state of the graph of `emergence`: the fields of the seed's State, with its reducers, and three of ours."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict


class AgentState(TypedDict, total=False):
    """`responses` has one text for each round in which the agent had one; `converged` is informational."""

    responses: list[str]
    signals_received: list[str]
    converged: bool


def merge_dicts(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**old, **new}


def append_to_list(old: list[Any], new: list[Any]) -> list[Any]:
    return [*old, *new]


class EmergenceState(TypedDict, total=False):
    """`original_task` is the input. `round_history` gets a round when it has been checked.

    Ours: `session`, the id under which the run is recorded; `another_round`, by which the graph turns back; at the end `report`.
    """

    original_task: str
    agent_states: Annotated[dict[str, AgentState], merge_dicts]
    parent_signals: Annotated[dict[str, str], merge_dicts]
    current_round: int
    max_rounds: int
    convergence_threshold: float
    converged: bool
    final_response: str | None
    strange_loops: list[dict[str, Any]]
    round_history: Annotated[list[dict[str, Any]], append_to_list]
    session: str
    another_round: bool
    report: dict[str, Any]
