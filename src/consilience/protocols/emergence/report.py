"""The report of `emergence`, and the seed's two exports of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from consilience.domain.agents import seat_names
from consilience.domain.events import Noted, load_note
from consilience.domain.positions import Ballot
from consilience.domain.report import Claim, Frozen, Objection, Report, StrangeLoop, UnfinishedSession
from consilience.domain.sections import Block, Item, Paragraph, Presentation, Section, Table, View
from consilience.protocols._common.presenting import (
    ballot_section,
    bullets,
    figures_of,
    held_positions,
    position_blocks,
    single_call_section,
    trajectory,
)
from consilience.protocols.emergence.objections import ObjectionMet, ObjectionRaised, outcomes


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
    stance: Literal["kept", "changed"] | None = None
    """What the agent declared about its answer: changed if any reply of the round says so; None where it declared nothing."""


class Round(Frozen):
    round: int
    agents: dict[str, AgentRound]
    convergence_score: float | None = None


class AnswerChange(Frozen):
    """What the root declared about a text of its own that followed an earlier one."""

    key: str
    """Of the call: `round-2/observe/L1N1`, `finalize/1`."""
    stance: Literal["kept", "changed"]
    changes: tuple[Claim, ...] = ()
    """What is new, and the messages that caused it."""


class Convergence(Frozen):
    """`score_trajectory` has one entry per round from the second, None where the check has no single score."""

    converged: bool
    rounds_used: int
    score_trajectory: tuple[float | None, ...] = ()


class EmergenceReport(Report):
    """`position` is the extracted answer where an `answer_pattern` was set, `pool` the share of every position over all
    ballots, `decided_by` whether the answer or, with `fallback="vote"`, the pool gave the position."""

    asides: ClassVar[frozenset[str]] = frozenset({"ballot", "nudge", "judgement"})
    asks_for_dissent: ClassVar[bool] = True

    protocol: str = "emergence"
    rounds: tuple[Round, ...] = ()
    convergence: Convergence
    strange_loops: tuple[StrangeLoop, ...] = ()
    ballots: tuple[Ballot, ...] = ()
    pool: dict[str, float] = {}
    position: str | None = None
    decided_by: Literal["answer", "pool"] | None = None
    lateral_revision_rate: float | None = None
    revision_counts: dict[str, int] = {}
    answer_changes: tuple[AnswerChange, ...] = ()
    """One entry for every text of the root that followed an earlier one."""

    def presentation(self) -> Presentation:
        check = f" ({self.check.kind})" if self.check else ""
        pooled = "(by the pooled ballots, not by this text)" if self.decided_by == "pool" else ""
        name = (
            f"Agents that kept their answer{check}"
            if check == " (declared)"
            else f"Stability from round to round{check}"
        )
        scores = trajectory(name, self.convergence.score_trajectory, self.check)
        most = self.settings.get("max_rounds")
        return (
            super()
            .presentation()
            .model_copy(
                update={
                    "max_steps": most if isinstance(most, int) else None,
                    "above_answer": position_blocks(self.position, pooled),
                    "sections": (
                        ballot_section(self.ballots, self.pool),
                        self._answers_section(),
                        single_call_section(self),
                    ),
                    "figures": (*scores, *figures_of(self.metrics)),
                    "views": (_objections_view(self.objections, seat_names(self.agents)),),
                    "positions": held_positions(self.ballots, self.step),
                    "stance": "position",
                }
            )
        )

    def _answers_section(self) -> Section:
        """Changes of the answer from round to round, and which agents kept theirs."""
        names = seat_names(self.agents)
        blocks = (*bullets(_changed(change, names) for change in self.answer_changes), *self._stances(names))
        return Section(
            name="answers", part="differences", heading="Changes of the answer" if blocks else "", blocks=blocks
        )

    def _stances(self, names: Mapping[str, str]) -> Iterator[Block]:
        """Leaves by whether they ever declared a change."""
        declared: dict[str, list[int]] = {}
        for number in self.rounds:
            for agent, turn in number.agents.items():
                if turn.stance is not None and agent in self.topology.leaves:
                    declared.setdefault(agent, []).extend([number.round] if turn.stance == "changed" else [])
        changed = [
            f"{names[agent]} (round {', '.join(map(str, rounds))})" for agent, rounds in declared.items() if rounds
        ]
        kept = [names[agent] for agent, rounds in declared.items() if not rounds]
        if changed:
            yield Paragraph(lead="Changed their answer:", text=", ".join(changed))
        if kept:
            yield Paragraph(lead="Kept their answer:", text=", ".join(kept))

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        """Objections so far, with their fate as far as it is decided."""
        notes = [event for event in progress.events if isinstance(event, Noted)]
        raised = [load_note(ObjectionRaised, n, progress.text) for n in notes if n.name == "objection_raised"]
        met = [load_note(ObjectionMet, n, progress.text) for n in notes if n.name == "objection_met"]
        names = seat_names(progress.started.agents)
        view = _objections_view(outcomes(raised, met), names)
        return super().progress(progress).model_copy(update={"stance": "position", "views": (view,)})

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


def _changed(change: AnswerChange, names: Mapping[str, str]) -> Item:
    place, number = (
        change.key.split("/")[:2] if change.key.startswith("finalize") else (change.key.partition("/")[0], "")
    )
    lead = f"Review {number}:" if number else f"{place.replace('-', ' ').capitalize()}:"
    what = "; ".join(_because(one, names) for one in change.changes)
    return Item(lead=lead, text=f"{change.stance}{f': {what}' if what else ''}")


def _because(change: Claim, names: Mapping[str, str]) -> str:
    authors = [next((names[part] for part in reversed(id.split("/")) if part in names), id) for id in change.ids]
    return f"{change.text.rstrip('.')} (because of {', '.join(dict.fromkeys(authors))})" if authors else change.text


def _objections_view(objections: Sequence[Objection], names: Mapping[str, str]) -> View:
    rows = tuple(_row(one, names) for one in objections)
    empty = Paragraph(text="No agent has raised an objection.")
    table = Table(heads=("objection", "raised by → against", "outcome"), rows=rows, left=3)
    return View(name="objections", heading="Objections and their fate", blocks=(table,) if rows else (empty,))


def _row(objection: Objection, names: Mapping[str, str]) -> tuple[str, str, str]:
    met = f"{objection.outcome}: {objection.how}" if objection.how else objection.outcome
    ruling = ": ".join(filter(None, [objection.ruled, objection.ruling])) if objection.fate != "yielded" else ""
    who = f"{names.get(objection.agent, objection.agent)} → {names.get(objection.to, objection.to)}"
    return objection.text, who, f"{met} · Ruling: {ruling}" if ruling else met


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
