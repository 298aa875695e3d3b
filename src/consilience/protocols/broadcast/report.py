"""The report of `broadcast`, and the seed's export of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from consilience.domain.agents import seat_names
from consilience.domain.outcome import StopReason
from consilience.domain.positions import Ballot
from consilience.domain.report import Frozen, Report, StrangeLoop, UnfinishedSession
from consilience.domain.sections import AgentText, Block, Item, Paragraph, Presentation, SeatNote, Section, Table
from consilience.protocols._common.presenting import (
    ballot_section,
    bullets,
    figures_of,
    position_blocks,
    single_call_section,
    trajectory,
    two_places,
)
from consilience.protocols.broadcast.replies import Tag
from consilience.protocols.broadcast.views import SEATS_LEGEND, Flag, Iteration, fold, iterations_view, seat_note

ENDINGS: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "all ratings reached the threshold, no evaluator objected, no critical flag is open",
    StopReason.EXHAUSTED_STEPS: "reached the iteration limit before every parent was satisfied",
    StopReason.INCONCLUSIVE: "the run does not count as satisfied",
}


class AgentState(Frozen):
    """An agent in its last execution that gave a text."""

    role: str
    response: str | None = None
    """Its text before any revision."""
    text: str | None = None
    """The text that went up."""
    refined: bool = False
    """Whether these differ."""
    missing: str = ""
    """What its self-reflection found missing."""
    iterations: int = 1
    """Iterations that it made as a parent; 1 for a leaf."""
    executions: int = 0
    """How often it was executed."""
    satisfaction: float | None = None
    """Its last rating, 0 to 1; None if it gave none that could be read."""
    flags: tuple[Tag, ...] = ()


class PastDisagreement(Frozen):
    """A disagreement of an earlier coordination that its author did not raise again."""

    id: str
    agent: str
    to: str
    text: str
    path: tuple[int, ...]
    """The iterations it was raised in, the root's first."""


class BroadcastReport(Report):
    """Report of `broadcast`."""

    step: ClassVar[str] = "iteration"
    asides: ClassVar[frozenset[str]] = frozenset({"ballot", "nudge", "judgement"})

    protocol: str = "broadcast"
    total_iterations: int = 0
    """The root's; `iterations` has those of all parents."""
    total_coordination_rounds: int = 0
    """Those of the root's children."""
    root_satisfaction: float | None = None
    signal_chain: tuple[str, ...] = ()
    """Every flag that was raised, each tag and node once."""
    iterations: tuple[Iteration, ...] = ()
    states: dict[str, AgentState] = {}
    flags: tuple[Flag, ...] = ()
    past_disagreements: tuple[PastDisagreement, ...] = ()
    strange_loops: tuple[StrangeLoop, ...] = ()
    ballots: tuple[Ballot, ...] = ()
    pool: dict[str, float] = {}
    """Share of each position over all ballots."""
    position: str | None = None
    """The extracted answer, if an `answer_pattern` was set."""

    def presentation(self) -> Presentation:
        names = seat_names(self.agents)
        most = self.settings.get("max_iterations")
        what = "Satisfaction of the agents below the root"
        return (
            super()
            .presentation()
            .model_copy(
                update={
                    "max_steps": most if isinstance(most, int) else None,
                    "ending": ENDINGS.get(self.stop_reason, ""),
                    "above_answer": position_blocks(self.position),
                    "sections": (
                        ballot_section(self.ballots, self.pool),
                        self._changes(names),
                        self._past_disagreements(names),
                        self._flags(names),
                        self._missing(),
                        single_call_section(self),
                        self._ratings(names),
                    ),
                    "figures": (
                        *trajectory(what, (), self.check),
                        *figures_of(self.metrics, names={"flags": "Flags raised"}),
                    ),
                    "views": (
                        iterations_view(self.iterations, self.flags, self.settings.get("satisfaction_threshold")),
                    ),
                    "seats": {agent: self._seat(state) for agent, state in self.states.items()},
                    "seats_legend": SEATS_LEGEND,
                    "stance": "position",
                    "asks_for_dissent": self._asked_for_dissent,
                }
            )
        )

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        """Goals, ratings, flags and satisfaction so far, from the notes."""
        noted = fold(progress)
        needed = progress.started.settings.get("satisfaction_threshold")
        view = iterations_view(noted.iterations, noted.flags, needed)
        seats = {agent: seat_note(rating, noted.flags_of(agent)) for agent, rating in noted.ratings.items()}
        update = {"stance": "position", "views": (view,), "seats": seats, "seats_legend": SEATS_LEGEND}
        return super().progress(progress).model_copy(update=update)

    def _changes(self, names: Mapping[str, str]) -> Section:
        """Ballots ride in what an agent is asked anyway, and are its own, numbered."""
        items = []
        for change in self.position_changes:
            why = "named no argument for it (conformity)"
            if not change.conformity:
                author = next(
                    (names[part] for part in reversed((change.cause or "").split("/")) if part in names), change.cause
                )
                why = f"because of what {author} wrote"
            moved = f"{change.before} → {change.after} with its ballot {change.step + 1}"
            items.append(Item(text=f"{names.get(change.agent, change.agent)}: {moved}, {why}"))
        return Section(name="changes", part="differences", heading="Changes of position", blocks=bullets(items))

    def _flags(self, names: Mapping[str, str]) -> Section:
        """What agents flagged on the way, apart from what stands among the objections."""
        objected = {objection.id for objection in self.objections}
        raised: dict[tuple[str, str, str], list[Flag]] = {}
        for flag in self.flags:
            if flag.id not in objected:
                raised.setdefault((flag.tag, flag.node, flag.text), []).append(flag)
        items = []
        for (tag, node, text), flags in raised.items():
            words = f": “{text}”" if text else ""
            notes = [
                f"raised {len(flags)} times" if len(flags) > 1 else "",
                "stands" if any(flag.stands for flag in flags) else "not raised again",
                "" if node in self.topology.roots or any(flag.read for flag in flags) else "no agent read it",
            ]
            items.append(
                Item(
                    text=f"{tag} ({flags[0].severity}) from {names.get(node, node)}{words}",
                    note="; ".join(filter(None, notes)),
                )
            )
        return Section(name="flags", part="differences", heading="Flags", blocks=bullets(items))

    def _missing(self) -> Section:
        """What the root says its own answer lacks."""
        lacks = self.states[self.topology.roots[0]].missing if self.states else ""
        lead = "Missing in the answer, by its author:"
        blocks: tuple[Block, ...] = (Paragraph(lead=lead, text=lacks),) if lacks else ()
        if "\n" in lacks:  # a list stays one
            blocks = (Paragraph(lead=lead, text=""), AgentText(text=lacks))
        return Section(name="lacking", part="unknown", blocks=blocks)

    @property
    def _asked_for_dissent(self) -> bool:
        """Whether siblings coordinated and none ever disagreed, or agents cast ballots."""
        coordinated = any(iteration.coordination_rounds for iteration in self.iterations)
        return bool(self.ballots) or (coordinated and not self.past_disagreements)

    def _past_disagreements(self, names: Mapping[str, str]) -> Section:
        items = [
            Item(
                text=past.text,
                note=f"{names.get(past.agent, past.agent)} → {names.get(past.to, past.to)}, "
                f"iteration {'.'.join(map(str, past.path))}",
            )
            for past in self.past_disagreements
        ]
        heading = "Disagreements not raised again"
        return Section(name="past-disagreements", part="differences", heading=heading, blocks=bullets(items))

    def _ratings(self, names: Mapping[str, str]) -> Section:
        """Ratings, and how often each agent was asked and broadcast."""
        rows = [
            (
                names.get(agent, agent),
                str(state.executions),
                str(state.iterations) if self.topology.children[agent] else "–",
                two_places(state.satisfaction),
                "yes" if state.refined else "no",
            )
            for agent, state in self.states.items()
        ]
        heads = ("agent", "executions", "iterations in the last", "last rating", "text revised")
        table = (Table(heads=heads, rows=tuple(rows)),) if rows else ()
        return Section(name="ratings", part="trust", heading="Ratings and iterations", blocks=table)

    def _seat(self, state: AgentState) -> SeatNote:
        critical = {flag.tag for flag in self.flags if flag.critical}
        return seat_note(state.satisfaction, {tag: tag in critical for tag in state.flags})

    def mca_metadata(self) -> dict[str, object]:
        """As the seed prints it."""
        return {
            "mode": "mca",
            "total_iterations": self.total_iterations,
            "total_coordination_rounds": self.total_coordination_rounds,
            "root_satisfaction": self.root_satisfaction,
            "signal_chain": list(self.signal_chain),
            "satisfaction_map": {agent: state.satisfaction for agent, state in self.states.items()},
        }

    def final_state(self) -> dict[str, object]:
        """The seed's `final_state.json`."""
        (root,) = self.topology.roots
        return {
            "task": self.task,
            "final_response": self.answer,
            "strange_loops": [loop.model_dump(mode="json") for loop in self.strange_loops],
            "child_responses": {
                child: self.states[child].text for child in self.topology.children[root] if child in self.states
            },
            "mca_metadata": self.mca_metadata(),
        }
