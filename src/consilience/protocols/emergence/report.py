"""The report of `emergence`, and the seed's two exports of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from consilience.domain.positions import Ballot
from consilience.domain.report import Frozen, Report, StrangeLoop


class AgentRound(Frozen):
    """One agent in one round. `response` is its text before lateral talk (an observation for internal nodes), `lateral_response`
    the text after; `similarity` compares its text with its own of the round before, `converged` by the threshold: informational."""

    role: str
    perspective: str = ""
    response: str | None = None
    lateral_response: str | None = None
    revised: bool = False
    signal_sent: str | None = None
    signal_received: str | None = None
    similarity: float | None = None
    converged: bool = False


class Round(Frozen):
    round: int
    agents: dict[str, AgentRound]
    convergence_score: float | None = None


class Convergence(Frozen):
    """`score_trajectory` has one entry per round from the second, None where the check has no single score."""

    converged: bool
    rounds_used: int
    score_trajectory: tuple[float | None, ...] = ()


class EmergenceReport(Report):
    """`position` is the extracted answer where an `answer_pattern` was set, `pool` the share of every position over all
    ballots, `decided_by` whether the answer or, with `fallback="vote"`, the pool gave the position."""

    protocol: Literal["emergence"] = "emergence"
    rounds: tuple[Round, ...] = ()
    convergence: Convergence
    strange_loops: tuple[StrangeLoop, ...] = ()
    ballots: tuple[Ballot, ...] = ()
    pool: dict[str, float] = {}
    position: str | None = None
    decided_by: Literal["answer", "pool"] | None = None
    lateral_revision_rate: float | None = None
    revision_counts: dict[str, int] = {}

    def mca_report(self) -> dict[str, object]:
        """The seed's `mca_report.json`."""
        wanted = {"role", "perspective", "response", "lateral_response", "revised", "signal_sent", "signal_received"}
        report: dict[str, object] = {
            "task": self.task,
            "config": {
                "child_per_parent": self.settings["children"],
                "depth": self.settings["depth"],
                "model": ", ".join(dict.fromkeys(agent.model for agent in self.agents)),
                "max_rounds": self.settings["max_rounds"],
                "convergence_threshold": self.settings["threshold"],
                "enable_downward_signals": self.settings["signals"],
                "perspectives": list(
                    dict.fromkeys(a.persona or a.perspective for a in self.agents if a.role == "specialist")
                ),
            },
            "rounds": [
                {
                    "round": r.round,
                    "agents": {name: a.model_dump(mode="json", include=wanted) for name, a in r.agents.items()},
                    "convergence_score": r.convergence_score,
                }
                for r in self.rounds
            ],
            "convergence": self.convergence.model_dump(mode="json"),
            "summary_metrics": {
                "total_llm_calls": self.ledger.actual.calls,
                "lateral_revision_rate": self.lateral_revision_rate,
                "per_agent_revision_counts": self.revision_counts,
            },
            "final_response": self.answer,
        }
        if self.strange_loops:
            report["strange_loops"] = self._loops()
        return report

    def final_state(self) -> dict[str, object]:
        """The seed's `final_state.json`: its State fields at the end of the run."""
        last = self.rounds[-1].agents if self.rounds else {}
        return {
            "original_task": self.task,
            "agent_states": {agent.id: agent_state(agent.id, self.rounds) for agent in self.agents},
            "parent_signals": {name: a.signal_sent for name, a in last.items() if a.signal_sent}
            or {name: a.signal_sent for r in self.rounds for name, a in r.agents.items() if a.signal_sent},
            "current_round": self.convergence.rounds_used,
            "max_rounds": self.settings["max_rounds"],
            "convergence_threshold": self.settings["threshold"],
            "converged": self.convergence.converged,
            "final_response": self.answer,
            "strange_loops": self._loops(),
            "round_history": [r.model_dump(mode="json") for r in self.rounds],
        }

    def _loops(self) -> list[dict[str, object]]:
        return [loop.model_dump(mode="json") for loop in self.strange_loops]


def agent_state(agent: str, rounds: Sequence[Round]) -> dict[str, object]:
    """The seed's AgentState of one agent after these rounds."""
    turns = [r.agents[agent] for r in rounds if agent in r.agents]
    return {
        "responses": [text for turn in turns if (text := final_text(turn)) is not None],
        "signals_received": [turn.signal_received for turn in turns if turn.signal_received],
        "converged": bool(rounds) and agent in rounds[-1].agents and turns[-1].converged,
    }


def final_text(turn: AgentRound | None) -> str | None:
    """The text an agent leaves a round with."""
    if turn is None:
        return None
    return turn.lateral_response if turn.lateral_response is not None else turn.response
