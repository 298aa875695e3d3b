"""When an iteration has converged: gates over the texts of all agents, quality, thresholds, refinements, partial results.

One judge serves the tickets of a workspace and the reviewers of `review`. Nothing here reads a file, a clock or a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.coordination.gates import Gate, gate_misses
from consilience.coordination.records import Record
from consilience.domain.errors import ConsilienceError, SettingsError

Partial = Literal["fail", "accept", "use"]
"""What is done if an agent is missing. `fail`: the iteration fails and its tickets are posted again with a longer TTL. `accept`: go
on and name the missing agent. `use`: end with what is there at the first timeout."""
RETRY_TTL_FACTOR = 1.5
IterationOutcome = Literal["waiting", "continue", "converged", "exhausted", "partial"]
StrategyName = Literal["adversarial_review", "parallel_decomposition", "hierarchical"]
REVIEW_TYPES: Mapping[str, StrategyName] = {
    "skill": "adversarial_review",
    "skill_review": "adversarial_review",
    "code": "adversarial_review",
    "documentation": "parallel_decomposition",
    "parallel_analysis": "parallel_decomposition",
    "architecture": "hierarchical",
}
"""The strategy of each kind of review."""


class CoordinationFailure(ConsilienceError):
    """No agent handed in anything, so there is nothing to evaluate or to combine."""


class GateVerdict(Record):
    """A gate after an iteration. It is met if every agent meets it."""

    id: str
    description: str = ""
    add: str = ""
    """What an agent that missed it is asked to do."""
    missed_by: tuple[str, ...] = ()

    @property
    def met(self) -> bool:
        return not self.missed_by


class ConvergenceCheck(Record):
    """The result of one iteration."""

    iteration: int
    verdicts: tuple[GateVerdict, ...] = ()
    present: tuple[str, ...] = ()
    """Agents with a result of this iteration."""
    missing: dict[str, str] = {}
    """Agents without a result of this iteration, each with the reason."""
    quality: float = 0.0
    threshold: float = 1.0
    outcome: IterationOutcome
    """`waiting`: tickets of this iteration are open. `exhausted`: it was the last iteration and did not converge. `partial`: it
    ended early with what was there."""
    reason: str
    """Of the outcome, as a clause."""

    @property
    def converged(self) -> bool:
        return self.outcome == "converged"

    def missed_by(self, agent: str) -> list[GateVerdict]:
        return [verdict for verdict in self.verdicts if agent in verdict.missed_by]


class ReviewerRole(Record):
    """What a kind of reviewer is asked for."""

    focus: str
    """What it looks for, as a sentence."""
    deepen: str
    """What it is asked to add if its artifact met every gate, as a sentence."""


ROLES: Mapping[str, ReviewerRole] = {
    "red": ReviewerRole(
        focus="Find what breaks: errors, risks, unstated assumptions, missing cases.",
        deepen="Test the other side's proposals: say under which conditions each of them fails.",
    ),
    "blue": ReviewerRole(
        focus="Say what to build: sound solutions, how they are implemented, how they are verified.",
        deepen="Expand on implementation details, and answer the other side's findings one by one.",
    ),
}
REVIEWER = ReviewerRole(
    focus="Review your part thoroughly.", deepen="Go deeper where the reviews differ, and say which of them is right."
)


def judge_gates(
    gates: Mapping[str, Gate], texts: Mapping[str, str], absent: tuple[str, ...] = ()
) -> tuple[GateVerdict, ...]:
    """Return the verdict on each gate, by id, over the artifacts by agent. `absent` agents miss every gate."""
    return tuple(
        GateVerdict(
            id=gate_id,
            description=gate.description,
            add=gate.add,
            missed_by=(*gate_misses(gate_id, gate, texts), *absent),
        )
        for gate_id, gate in gates.items()
    )


def quality_of(verdicts: Sequence[GateVerdict]) -> float:
    """Return the share of gates that are met; 1.0 without gates."""
    return sum(verdict.met for verdict in verdicts) / len(verdicts) if verdicts else 1.0


def threshold_at(schedule: float | Sequence[float], iteration: int) -> float:
    """Return the quality threshold of an iteration, from 1. The last entry of a schedule holds for all later iterations."""
    if isinstance(schedule, int | float):
        return schedule
    return schedule[min(max(iteration, 1), len(schedule)) - 1]


def required_after_timeout(quorum: int) -> int:
    """Return how many results are enough after the timeout: 80 % of the quorum, rounded up."""
    return -(-quorum * 4 // 5)


def judge_iteration(
    iteration: int,
    present: Sequence[str],
    missing: Mapping[str, str],
    *,
    quorum: int,
    verdicts: Sequence[GateVerdict] | None = None,
    teams: Mapping[str, bool] | None = None,
    threshold: float = 1.0,
    is_over: bool = True,
    is_last: bool = True,
    partial: Partial = "accept",
) -> ConvergenceCheck:
    """Return the result of an iteration: of its gates if there are `verdicts`, else of its `teams`, by whether each is complete,
    else of the number of agents present, of whom 80 % of the quorum are enough. `is_over`: nobody is waited for any more.
    """
    is_quorum, is_cut = len(present) >= quorum, True
    if verdicts is not None:
        quality, met = quality_of(verdicts), sum(verdict.met for verdict in verdicts)
        is_enough, is_cut = is_quorum and quality >= threshold, partial == "use" and not is_quorum
        reason = f"{met} of {len(verdicts)} gates met, quality {quality:.2f}, threshold {threshold:.2f}"
        reason += f"; no result from {', '.join(missing)}" if missing else ""
    elif teams is not None:
        short = [team for team, is_complete in teams.items() if not is_complete]
        complete = len(teams) - len(short)
        quality, is_enough = complete / len(teams), not short
        reason = f"{complete} of {len(teams)} teams complete"
        reason += f", not {', '.join(short)}" if short else ""
    else:
        agents = len(present) + len(missing)
        quality, threshold = len(present) / agents, quorum / agents
        is_enough = is_over and len(present) >= required_after_timeout(quorum)
        reason = f"{len(present)} of {agents} handed in, quorum {quorum}"
        reason += ", 80 % of it after the timeout" if is_enough and not is_quorum else ""
    short_outcome: IterationOutcome = "partial" if is_cut else "exhausted" if is_last else "continue"
    return ConvergenceCheck(
        iteration=iteration,
        verdicts=tuple(verdicts or ()),
        present=tuple(present),
        missing=dict(missing),
        quality=quality,
        threshold=threshold,
        outcome="waiting" if not is_over else "converged" if is_enough else short_outcome,
        reason=reason,
    )


def refinement(evaluation: ConvergenceCheck, agent: str, role: ReviewerRole | None = None) -> str:
    """Return what an agent is asked to add after an iteration: the gates that its own artifact missed, or how to go deeper."""
    role = role or ROLES.get(agent, REVIEWER)
    if agent in evaluation.missing:
        return f"Iteration {evaluation.iteration} has no artifact of yours ({evaluation.missing[agent]}). {role.focus}"
    missed = evaluation.missed_by(agent)
    if not missed:
        return f"Your artifact of iteration {evaluation.iteration} met every gate. {role.deepen}"
    lines = [f"- {verdict.id}: it needs {verdict.description}. {verdict.add}" for verdict in missed]
    return "\n".join([f"Your artifact of iteration {evaluation.iteration} missed:", *lines])


@dataclass(frozen=True, slots=True)
class PartialConvergence:
    """What is to be done with the results that are there."""

    results: Mapping[str, object]
    """By agent; only those that are there."""
    missing: tuple[str, ...]
    partial: Partial
    proceed: bool
    """Whether to go on with `results`; otherwise the iteration fails and is repeated."""
    requeue: bool
    """Whether the tickets of missing agents are offered again."""
    ttl_factor: float
    """Factor of the TTL of tickets that are offered again."""

    @property
    def note(self) -> str:
        """A sentence for the reader of a synthesis; "" if no agent is missing."""
        if not self.missing:
            return ""
        names = ", ".join(self.missing)
        return f"No result from {names}; this covers {', '.join(self.results)} only, and nothing stands in for {names}."


def evaluate_partial_convergence(
    red_result: object | None, blue_result: object | None, *, partial: Partial = "accept"
) -> PartialConvergence:
    """Return what is to be done with the results of two agents, of which one may be missing (None or empty).

    Raises `CoordinationFailure` if both are.
    """
    return evaluate_partial({"red": red_result, "blue": blue_result}, partial)


def evaluate_partial(results: Mapping[str, object | None], partial: Partial = "accept") -> PartialConvergence:
    """The same for any number of agents, by name."""
    if partial not in ("fail", "accept", "use"):
        raise SettingsError(f"partial must be 'fail', 'accept' or 'use', not {partial!r:.60}")
    results_present = {agent: result for agent, result in results.items() if result}
    missing = tuple(agent for agent in results if agent not in results_present)
    if not results_present:
        raise CoordinationFailure(f"no result from any agent: {', '.join(missing) or 'none was asked'}")
    return PartialConvergence(
        results=results_present,
        missing=missing,
        partial=partial,
        proceed=not missing or partial != "fail",
        requeue=bool(missing) and partial != "use",
        ttl_factor=RETRY_TTL_FACTOR if missing and partial == "fail" else 1.0,
    )


@dataclass(frozen=True, slots=True)
class LatestArtifact:
    """An agent's latest artifact."""

    agent: str
    iteration: int
    text: str
    path: str
    """Of the file, relative to the workspace."""


def quote_block(text: str) -> str:
    """Return `text` as a quotation in Markdown, which nothing in it can end."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())


def compose(title: str, evaluation: ConvergenceCheck, contributions: Sequence[LatestArtifact]) -> str:
    """Return a Markdown document of the verdicts and every artifact, quoted whole. Missing agents are named, and no text
    stands in for them. Raises `CoordinationFailure` without any artifact.
    """
    if not contributions:
        raise CoordinationFailure(f"no result from any agent: {', '.join(evaluation.missing) or 'none was asked'}")
    lines = [f"# {title}", "", f"Outcome: {evaluation.outcome}, {evaluation.reason}."]
    if evaluation.verdicts:
        lines += ["", "| gate | met | missed by |", "|---|---|---|"]
        lines += [
            f"| {verdict.id} | {'yes' if verdict.met else 'no'} | {', '.join(verdict.missed_by)} |"
            for verdict in evaluation.verdicts
        ]
    if evaluation.missing:
        lines += ["", "## Missing agents", ""]
        lines += [
            f"- {agent}, iteration {evaluation.iteration}: {' '.join(reason.split()):.200}"
            for agent, reason in evaluation.missing.items()
        ]
    for contribution in contributions:
        lines += [
            "",
            f"## {contribution.agent}, iteration {contribution.iteration}",
            "",
            quote_block(contribution.text),
        ]
    return "\n".join(lines) + "\n"
