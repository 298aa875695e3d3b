"""The report of `broadcast`, how it and an unfinished session are shown, and the seed's export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from consilience.domain.agents import author_of, seat_names
from consilience.domain.events import Noted
from consilience.domain.notes import load_note
from consilience.domain.outcome import StopReason
from consilience.domain.positions import Ballot
from consilience.domain.report import Frozen, UnfinishedSession
from consilience.domain.sections import (
    AgentText,
    Bar,
    Bars,
    Block,
    Item,
    Paragraph,
    Presentation,
    SeatNote,
    Section,
    Table,
    View,
    extend_presentation,
)
from consilience.domain.wording import count
from consilience.protocols._common.presenting import (
    TreeReport,
    ballot_section,
    bullets,
    describe_unheard,
    empty_view,
    format_score,
    key_figures,
    objection_notes,
    objections_view,
    position_blocks,
    single_call_section,
    threshold_in,
    trajectory,
)
from consilience.protocols.broadcast.executions import (
    NOTES,
    Disagreement,
)
from consilience.protocols.broadcast.fold import Flag, Iteration, NoteFold
from consilience.protocols.broadcast.settings import Tag

ENDINGS: Mapping[StopReason, str] = {
    StopReason.CONVERGED: "all ratings reached the threshold, no evaluator objected, no critical flag is open",
    StopReason.EXHAUSTED_STEPS: "reached the iteration limit before every parent was satisfied",
    StopReason.INCONCLUSIVE: "the run does not count as satisfied",
}

THRESHOLD = "satisfaction_threshold"
SEATS_LEGEND = "the more colour, the better an agent rates what it wrote, from 0 to 1"


class BroadcastAgentState(Frozen):
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


class BroadcastReport(TreeReport):
    """Report of `broadcast`."""

    step: ClassVar[str] = "iteration"
    step_setting: ClassVar[str] = "max_iterations"
    asides: ClassVar[frozenset[str]] = frozenset({"ballot", "nudge", "judgement"})
    labels: ClassVar[Mapping[str, str]] = {
        "broadcast": "goal",
        "re_broadcast": "revised goal",
        "execute": "work of the contributors",
        "execute_children": "work below",
        "self_reflect": "self-rating",
        "coordinate": "reading one another",
        "evaluate": "evaluation",
        "strange_loop": "self-review",
        "synthesize": "synthesis",
    }
    glossary: ClassVar[Mapping[str, str]] = {
        "contributor": "an agent that does the whole task by itself, then reads what the others did",
        "flag": "a problem with the goal itself that a contributor reports; a critical one stops the run from counting as agreed",
        "rating": "how well the combined result fulfils the goal, from 0 to 1, by the agent's own judgement",
    }
    for_people: ClassVar[Mapping[str, str]] = {
        "": "Several people do the same task; letters name the others.",
        "execute": (
            'Do the whole task yourself. "goal", if it is quoted above, says what the result has to achieve; '
            '"you" is your last text, which you may change.\n\ntext: your result, complete.'
        ),
    }

    protocol: str = "broadcast"
    total_iterations: int = 0
    """The root's; `iterations` has those of all parents."""
    total_coordination_rounds: int = 0
    """Those of the root's children."""
    root_satisfaction: float | None = None
    signal_chain: tuple[str, ...] = ()
    """Every flag that was raised, each tag and node once."""
    iterations: tuple[Iteration, ...] = ()
    states: dict[str, BroadcastAgentState] = {}
    flags: tuple[Flag, ...] = ()
    past_disagreements: tuple[Disagreement, ...] = ()
    """Disagreements of earlier coordinations that their authors did not raise again."""
    ballots: tuple[Ballot, ...] = ()
    pool: dict[str, float] = {}
    """Share of each position over all ballots."""

    def presentation(self) -> Presentation:
        names = seat_names(self.agents)
        satisfaction = trajectory("Satisfaction of the agents below the root", (), self.check)
        received = objection_notes(self.objections, names)
        critical = {flag.tag for flag in self.flags if flag.critical}
        return extend_presentation(
            super().presentation(),
            ending=self._ending(),
            above_answer=position_blocks(self.position),
            sections=(
                ballot_section(self.ballots, self.pool),
                self._changes(names),
                self._past_disagreements(names),
                self._flags(names),
                self._missing(),
                single_call_section(self),
                self._ratings(names),
            ),
            figures=(*satisfaction, *key_figures(self.metrics, names={"flags": "Flags raised"})),
            views=(
                _iterations_view(self.iterations, self.flags, threshold_in(self.settings, THRESHOLD)),
                objections_view(self.objections, names),
            ),
            seats={
                agent: _seat_note(
                    state.satisfaction, {tag: tag in critical for tag in state.flags}, received.get(agent)
                )
                for agent, state in self.states.items()
            },
            seats_legend=SEATS_LEGEND,
            stance="position",
            asks_for_dissent=self._asked_for_dissent,
            unheard=describe_unheard(self, self._heard()),
        )

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        """Show goals, ratings, flags and satisfaction so far, from the notes."""
        fold = NoteFold(progress.started.topology.parents)
        for event in progress.events:
            if isinstance(event, Noted) and event.name in NOTES:
                fold.add(load_note(NOTES[event.name], event, progress.text))
        threshold = threshold_in(progress.started.settings, THRESHOLD)
        view = _iterations_view(tuple(fold.iterations.values()), fold.flags, threshold)
        names, objections = seat_names(progress.started.agents), fold.objections
        received = objection_notes(objections, names)
        return extend_presentation(
            super().progress(progress),
            stance="position",
            views=(view, objections_view(objections, names)),
            seats={
                agent: _seat_note(rating, fold.flags_of(agent), received.get(agent))
                for agent, rating in fold.ratings.items()
            },
            seats_legend=SEATS_LEGEND,
        )

    def _ending(self) -> str:
        """Return how the run stopped. A flag that stands is named although it is not critical."""
        ending = ENDINGS.get(self.stop_reason, "")
        standing = len({(flag.tag, flag.node, flag.text) for flag in self.flags if flag.stands and not flag.critical})
        if self.stop_reason is not StopReason.CONVERGED or not standing:
            return ending
        return f"{ending}, but {count(standing, 'other flag')} {'stands' if standing == 1 else 'stand'}"

    def _changes(self, names: Mapping[str, str]) -> Section:
        """Ballots are fields of other replies, so a change is located by the number of the agent's ballot."""
        items = []
        for change in self.position_changes:
            cause = "named no argument for it (conformity)"
            if not change.conformity:
                cause = f"because of what {author_of(change.cause or '', names)} wrote"
            move = f"{change.before} → {change.after} with its ballot {change.step + 1}"
            items.append(Item(text=f"{names.get(change.agent, change.agent)}: {move}, {cause}"))
        return Section(name="changes", part="differences", heading="Changes of position", blocks=bullets(items))

    def _flags(self, names: Mapping[str, str]) -> Section:
        """List the flags that are not among the objections."""
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
        """Show what the root finds missing in its own answer."""
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

    def _heard(self) -> set[str]:
        """Agents that cast a ballot, or gave a reply in its form in coordination."""
        replies: Counter[str] = Counter()
        for iteration in self.iterations:
            replies.update(dict.fromkeys(self.topology.children[iteration.node], iteration.coordination_rounds))
        lacking = (*(call.key for call in self.failed_calls), *self.prose_replies)
        replies.subtract(key.split("/")[-1] for key in lacking if "/coordinate-" in key)
        heard = {agent for agent, n in replies.items() if n > 0 and self.states[agent].response is not None}
        return heard | {ballot.agent for ballot in self.ballots}

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
        """Show each agent's rating, and the numbers of its executions, without those that a limit refused, and iterations."""
        calls = [call for call in self.failed_calls if call.kind.is_limit and call.phase and call.phase[0] == "execute"]
        refused = Counter(call.agent for call in calls)
        rows = [
            (
                names.get(agent, agent),
                str(max(state.executions - refused[agent], 0)),
                str(state.iterations) if self.topology.children[agent] else "–",
                format_score(state.satisfaction),
                "yes" if state.refined else "no",
            )
            for agent, state in self.states.items()
        ]
        heads = ("agent", "executions", "iterations in the last", "last rating", "text revised")
        table = (Table(heads=heads, rows=tuple(rows)),) if rows else ()
        return Section(name="ratings", part="trust", heading="Ratings and iterations", blocks=table)

    def mca_metadata(self) -> dict[str, object]:
        """Return the seed's `mca_metadata`."""
        return {
            "mode": "mca",
            "total_iterations": self.total_iterations,
            "total_coordination_rounds": self.total_coordination_rounds,
            "root_satisfaction": self.root_satisfaction,
            "signal_chain": list(self.signal_chain),
            "satisfaction_map": {agent: state.satisfaction for agent, state in self.states.items()},
        }

    def final_state(self) -> dict[str, object]:
        """Return the seed's `final_state.json`: the fields of its `State` at the root, and `mca_metadata`."""
        (root,) = self.topology.roots
        texts = {agent: state.text for agent, state in self.states.items()}
        children = {child: self.states[child] for child in self.topology.children[root] if child in self.states}
        goals = [iteration.broadcast for iteration in self.iterations if iteration.node == root and iteration.broadcast]
        return self.seed_state({child: state.text for child, state in children.items()}, texts) | {
            "mca_mode": True,
            "goal": goals[-1] if goals else self.task,
            "parent_context": "",
            "child_agent_responses": {
                child: {
                    "response": state.text,
                    "satisfaction": state.satisfaction,
                    "signals": list(state.flags),
                    "refined": state.refined,
                    "iterations": state.iterations,
                }
                for child, state in children.items()
            },
            "satisfaction": self.root_satisfaction,
            "signals": list(self.signal_chain),
            "iteration": self.total_iterations,
            "max_iterations": self.settings["max_iterations"],
            "mca_metadata": self.mca_metadata(),
        }


def _iterations_view(iterations: Sequence[Iteration], flags: Sequence[Flag], threshold: float | None) -> View:
    """Show every iteration of every parent: goal, ratings, flags, verdict, and what caused it."""
    heading = "Why a goal was broadcast again"
    if not iterations:
        return empty_view("iterations", heading, "Nothing was broadcast.")
    average = f", needed {threshold:.2f} on average" if threshold is not None else ""
    named = "Every broadcast of a parent, named by the iterations from the root's down"
    head = Paragraph(text=f"{named}; how its children rated themselves{average}.")
    flags_by_id = {flag.id: flag for flag in flags}
    rows, bars, items = [], [], []
    for iteration in iterations:
        name, flagged = f"{iteration.node} {'.'.join(map(str, iteration.path))}", _flagged(iteration, flags_by_id)
        ratings = " ".join(map(format_score, iteration.ratings.values())) or "–"
        rows.append((name, ratings, format_score(iteration.mean), str(len(iteration.flags)), iteration.verdict))
        bars.append(
            Bar(
                name=name,
                value=iteration.mean,
                dots=tuple(rating for rating in iteration.ratings.values() if rating is not None),
                note=f"{format_score(iteration.mean)} {iteration.verdict}",
                lines=(flagged,) if flagged else (),
            )
        )
        items += [Item(text=f"{name}: {line}") for line in _details(iteration, flags_by_id, flagged)]
    return View(
        name="iterations",
        heading=heading,
        blocks=(
            head,
            Table(heads=("iteration", "ratings", "mean", "flags", "verdict"), rows=tuple(rows)),
            *bullets(items),
        ),
        picture=Bars(
            title="mean rating of the children, iteration by iteration",
            rows=tuple(bars),
            threshold=threshold,
            legend=("bar: the mean · dots: each child's rating · dashed: what is needed",),
        ),
    )


def _details(iteration: Iteration, flags: Mapping[str, Flag], flagged: str) -> Iterator[str]:
    """Yield what caused an iteration, its goal, its flags, why it does not satisfy, and the evaluation."""
    if iteration.caused_by:
        yield f"broadcast again because of {', '.join(_named(iteration.caused_by, flags))}"
    if iteration.broadcast:
        yield f"goal: {iteration.broadcast}"
    if flagged:
        yield flagged
    if iteration.unmet:
        yield f"not satisfied: {iteration.unmet}"
    if iteration.feedback:
        yield f"evaluation: {iteration.feedback}"


def _flagged(iteration: Iteration, flags: Mapping[str, Flag]) -> str:
    """Return the number of flags and their names, the critical ones first."""
    if not iteration.flags:
        return ""
    critical = sum(flags[id].critical for id in iteration.flags if id in flags)
    critical_note = f", {critical} critical" if critical else ""
    return f"{count(len(iteration.flags), 'flag')}{critical_note}: {', '.join(_named(iteration.flags, flags))}"


def _named(ids: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """Return flags by tag and node, other messages by id."""
    ordered = sorted(ids, key=lambda id: not (id in flags and flags[id].critical))
    return [flags[id].link if id in flags else id for id in ordered]


def _seat_note(rating: float | None, flags: Mapping[Tag, bool], received: SeatNote | None) -> SeatNote:
    """Return an agent's rating, its flags, each tag with whether it is critical, and the objections that it `received`."""
    tags = sorted(flags, key=lambda tag: not flags[tag])
    rated = "no rating" if rating is None else f"satisfied {rating:.2f}"
    critical = [tag for tag in tags if flags[tag]]
    flagged = f"flags: {', '.join(tags)}" if tags else ""
    tagged = count(len(tags), "tag") if tags else ""
    short = (format_score(rating), received.short) if received else (rated, tagged)
    return SeatNote(
        text="; ".join(filter(None, (rated, flagged, received.text if received else ""))),
        short="; ".join(filter(None, short)),
        shade=rating,
        alert=f"critical: {', '.join(critical)}" if critical else "",
    )
