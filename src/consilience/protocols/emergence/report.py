"""The report of `emergence`: from the record of a run, and the seed's two exports of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from consilience.domain.agents import Agent, author_of, seat_names
from consilience.domain.events import Noted
from consilience.domain.messages import is_no_finding
from consilience.domain.notes import load_note
from consilience.domain.outcome import StopReason
from consilience.domain.positions import Ballot, exact
from consilience.domain.report import Claim, Frozen, UnfinishedSession
from consilience.domain.sections import Block, Item, Paragraph, Presentation, Section, extend_presentation
from consilience.domain.topology import Topology
from consilience.engine.analysis import novelty
from consilience.engine.session import Session
from consilience.engine.similarity import set_jaccard, token_set
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import (
    NO_POSITION,
    BallotResult,
    ballot_fields,
    conclusion_fields,
    open_dissent,
    sibling_similarity,
    warn_alike,
    warn_failed_review,
)
from consilience.protocols._common.presenting import (
    OBJECTIONS_LEGEND,
    TreeReport,
    ballot_section,
    bullets,
    describe_unheard,
    held_positions,
    key_figures,
    objection_notes,
    objections_view,
    position_blocks,
    single_call_section,
    trajectory,
)
from consilience.protocols._common.remarks import ObjectionBook, ObjectionMet, ObjectionRaised, warn_left_out
from consilience.protocols._common.trees import ROOT
from consilience.protocols.emergence.turns import (
    EmergenceRun,
    RootRevision,
    Stance,
    declared_stance,
)

NEAR_THRESHOLD_MARGIN = 0.2
"""If no score came this close to the threshold, the threshold was out of reach."""


class AgentRound(Frozen):
    """One agent in one round."""

    role: str
    perspective: str = ""
    response: str | None = None
    """Its text before lateral talk; an observation, if the agent has children."""
    lateral_response: str | None = None
    """Its text after lateral talk."""
    revised: bool = False
    signal_sent: str | None = None
    signal_received: str | None = None
    similarity: float | None = None
    """Similarity of its text to its own of the round before. Informational, like `converged`."""
    converged: bool = False
    """Whether `similarity` reaches the threshold."""
    stance: Stance | None = None
    """What the agent declared about its answer: changed if any reply of the round says so; None without a declaration."""

    @property
    def final_text(self) -> str | None:
        """The text with which the agent leaves the round."""
        return self.lateral_response if self.lateral_response is not None else self.response


class Round(Frozen):
    round: int
    agents: dict[str, AgentRound]
    convergence_score: float | None = None


class AnswerChange(Frozen):
    """What the root declared about a text of its own that followed an earlier one."""

    key: str
    """Of the call: `round-2/observe/L1N1`, `finalize/1`."""
    stance: Stance | None = None
    """None if that text came without one."""
    changes: tuple[Claim, ...] = ()
    """What is new, and the messages that caused it."""


class Convergence(Frozen):
    """Whether and how the run became stable."""

    converged: bool
    rounds_used: int
    score_trajectory: tuple[float | None, ...] = ()
    """One entry per round from the second; None if the check has no single score."""


class EmergenceReport(TreeReport):
    """Report of `emergence`."""

    step_setting: ClassVar[str] = "max_rounds"
    asides: ClassVar[frozenset[str]] = frozenset({"ballot", "nudge", "judgement"})
    asks_for_dissent: ClassVar[bool] = True
    labels: ClassVar[Mapping[str, str]] = {
        "leaf_respond": "own answers",
        "lateral": "replies to one another",
        "lateral_leaves": "replies to one another",
        "observe": "synthesis",
        "observe_root": "synthesis",
        "signal": "questions",
        "signal_down": "questions",
        "check_convergence": "check",
        "finalize": "self-review",
    }
    glossary: ClassVar[Mapping[str, str]] = {
        "specialist": "an agent that answers alone first, then reads the others, objects and revises",
        "integrator": "the agent that reads all texts of the specialists and writes the answer",
        "upheld": "the integrator followed an objection that its target had not accepted",
        "refuted": "the agent at which an objection was aimed gave reasons against it",
    }
    for_people: ClassVar[Mapping[str, str]] = {
        "": "Several people answer the same task; letters name the others.",
        "leaf_respond": (
            "Answer the whole task from your own experience. The others answer at the same time; you read one another's "
            'answers afterwards. Take up a question of "parent", if one is quoted above.\n\n'
            "points: facts that must not be lost, if there are any.\ntext: your answer, and what would change your mind."
        ),
        "lateral": (
            "Read the others' answers beside your own. Change yours if an argument convinces you; that many agree is none.\n\n"
            "answers: for each objection to your answer, whether you give way (yielded) or not (refuted), and how.\n"
            "stance: whether your answer changed.\n"
            "objections: mistakes of others that would change the outcome, with the words that are wrong; none is fine.\n"
            "text: your answer as it stands now."
        ),
    }

    protocol: str = "emergence"
    rounds: tuple[Round, ...] = ()
    convergence: Convergence
    ballots: tuple[Ballot, ...] = ()
    pool: dict[str, float] = {}
    """Share of each position over all ballots."""
    decided_by: Literal["answer", "pool"] | None = None
    """What gave the position: the answer or, with `fallback="vote"`, the pool."""
    lateral_revision_rate: float | None = None
    revision_counts: dict[str, int] = {}
    answer_changes: tuple[AnswerChange, ...] = ()
    """One entry for every text of the root that followed an earlier one."""

    def presentation(self) -> Presentation:
        check = f" ({self.check.kind})" if self.check else ""
        declared = check == " (declared)"
        name = f"{'Agents that kept their answer' if declared else 'Stability from round to round'}{check}"
        scores = trajectory(name, self.convergence.score_trajectory, self.check)
        names = seat_names(self.agents)
        pooled = "(by the pooled ballots, not by this text)" if self.decided_by == "pool" else ""
        return extend_presentation(
            super().presentation(),
            above_answer=position_blocks(self.position, pooled),
            sections=(
                ballot_section(self.ballots, self.pool),
                self._answers_section(),
                single_call_section(self),
            ),
            figures=(*scores, *key_figures(self.metrics)),
            views=(objections_view(self.objections, names),),
            seats=objection_notes(self.objections, names),
            seats_legend=OBJECTIONS_LEGEND if self.objections else "",
            positions=held_positions(self.ballots, self.step),
            stance="position",
            unheard=describe_unheard(self, self._heard()),
        )

    def _heard(self) -> set[str]:
        """Agents that cast a ballot, or gave a reply in its form to a call in which they may object."""
        heard = {ballot.agent for ballot in self.ballots}
        for number in self.rounds:
            for agent, turn in number.agents.items():
                asked = (turn.lateral_response, "lateral"), (turn.response and self.topology.children[agent], "observe")
                keys = {f"round-{number.round}/{step}/{agent}" for reply, step in asked if reply}
                heard |= {agent} if keys - {*self.prose_replies} else set()
        return heard

    def _answers_section(self) -> Section:
        """Return changes of the answer from round to round, and which agents kept theirs."""
        names = seat_names(self.agents)
        changes = (change for change in self.answer_changes if change.stance or change.changes)
        blocks = (*bullets(_change_item(change, names) for change in changes), *self._stances(names))
        return Section(
            name="answers", part="differences", heading="Changes of the answer" if blocks else "", blocks=blocks
        )

    def _stances(self, names: Mapping[str, str]) -> Iterator[Block]:
        """Yield the leaves that declared a change, and those that never did."""
        declared: dict[str, list[int]] = {}
        for number in self.rounds:
            for agent, turn in number.agents.items():
                if turn.stance is not None and agent in self.topology.leaves:
                    declared.setdefault(agent, []).extend([number.round] if turn.stance == "changed" else [])
        changed = [
            f"{names[agent]} (round {', '.join(map(str, rounds))})" for agent, rounds in declared.items() if rounds
        ]
        constant_agents = [names[agent] for agent, rounds in declared.items() if not rounds]
        if changed:
            yield Paragraph(lead="Changed their answer:", text=", ".join(changed))
        if constant_agents:
            yield Paragraph(lead="Kept their answer:", text=", ".join(constant_agents))

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        """Show the objections so far, with their fates as far as they are decided."""
        notes = [event for event in progress.events if isinstance(event, Noted)]
        book = ObjectionBook()
        book.raised(load_note(ObjectionRaised, n, progress.text) for n in notes if n.name == "objection_raised")
        book.met([load_note(ObjectionMet, n, progress.text) for n in notes if n.name == "objection_met"])
        names = seat_names(progress.started.agents)
        objections = book.objections()
        return extend_presentation(
            super().progress(progress),
            stance="position",
            views=(objections_view(objections, names),),
            seats=objection_notes(objections, names),
            seats_legend=OBJECTIONS_LEGEND if objections else "",
        )

    def mca_report(self) -> dict[str, object]:
        """Return the seed's `mca_report.json`."""
        fields = {"role", "perspective", "response", "lateral_response", "revised", "signal_sent", "signal_received"}
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
                    "agents": {name: a.model_dump(mode="json", include=fields) for name, a in r.agents.items()},
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
            report["strange_loops"] = self.final_loops()
        return report

    def final_state(self) -> dict[str, object]:
        """Return the seed's `final_state.json`: its State fields at the end of the run."""
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
            "strange_loops": self.final_loops(),
            "round_history": [r.model_dump(mode="json") for r in self.rounds],
        }


def _change_item(change: AnswerChange, names: Mapping[str, str]) -> Item:
    place, _, agent = change.key.partition("/")
    lead = f"Review {agent}:" if place == "finalize" else f"{place.replace('-', ' ').capitalize()}:"
    change_text = "; ".join(_change_with_authors(change_reason, names) for change_reason in change.changes)
    return Item(lead=lead, text=": ".join(filter(None, (change.stance, change_text))))


def _change_with_authors(change: Claim, names: Mapping[str, str]) -> str:
    authors = [author_of(id, names) for id in change.ids]
    return f"{change.text.rstrip('.')} (because of {', '.join(dict.fromkeys(authors))})" if authors else change.text


def agent_state(agent: str, rounds: Sequence[Round]) -> dict[str, object]:
    """Return the seed's AgentState of one agent after these rounds."""
    turns = [r.agents[agent] for r in rounds if agent in r.agents]
    return {
        "responses": [turn.final_text for turn in turns if turn.final_text is not None],
        "signals_received": [turn.signal_received for turn in turns if turn.signal_received],
        "converged": bool(rounds) and agent in rounds[-1].agents and turns[-1].converged,
    }


# --- from the record of a run


async def conclude(
    session: Session, run: EmergenceRun, stop: StopReason, positions: BallotResult, has_ballots: bool, threshold: float
) -> EmergenceReport:
    """Return the report. Dissent and objections follow from what agents declared, never from a model's judgement."""
    objections = run.book.objections(session.shown())
    answer_changes = tuple(_answer_changes(session, run))
    agents, topology, sources = session.agents, session.topology, [document.text for document in session.sources]
    rounds, metrics = await session.compute(
        lambda: (tuple(rounds_of(agents, threshold, run)), _metrics(topology, run, sources))
    )
    scores = tuple(r.convergence_score for r in rounds[1:])
    _warn(session, run, scores)
    warn_alike(session, metrics.get("sibling_similarity/leaf_respond/1"), _texts_of_leaves(session, run))
    if has_ballots and run.closing and positions.position is None:
        session.warn(NO_POSITION)
    turns = [turn for r in rounds for turn in r.agents.items()]
    laterals = sum(turn.lateral_response is not None for _, turn in turns)
    revised = Counter(agent for agent, turn in turns if turn.revised)
    rate = revised.total() / laterals if laterals else None
    failures = (failure for turns in run.rounds for turn in turns.values() for failure in turn.failures)
    is_unread = not laterals and any("/lateral/" in failure.key for failure in failures)
    unread = ("no agent read the texts of its siblings",) if is_unread else ()
    reasons = (*unread, *run.silences, *run.failed_reviews, *positions.unmet)
    is_cut = run.closing is not None and run.closing.cut
    return await session.close(
        EmergenceReport,
        run.closing,
        first=_first_results(session, run),
        stop_reason=stop,
        unmet=reasons,
        check=run.checks[-1] if run.checks else None,
        confidence=positions.confidence,
        steps=len(run.rounds),
        objections=objections,
        dissent=positions.dissent if has_ballots else open_dissent(objections),
        metrics=metrics
        | {
            "conformity": positions.conformity,
            "revision_rate": rate,
            "dropped_labels": session.dropped,
            "void_objections": run.left_out["objection", "void"],
        },
        answer_changes=answer_changes,
        rounds=rounds,
        convergence=Convergence(
            converged=stop is StopReason.CONVERGED and not (session.limit_hit or reasons or is_cut),
            rounds_used=len(run.rounds),
            score_trajectory=scores,
        ),
        decided_by=positions.decided_by,
        lateral_revision_rate=rate,
        revision_counts=dict(revised),
        strange_loops=tuple(run.loops),
        **conclusion_fields(session, run.closing),
        **ballot_fields(positions),
    )


def _answer_changes(session: Session, run: EmergenceRun) -> Iterator[AnswerChange]:
    for reply in (*run.texts, *run.reviews):
        if isinstance(reply.value, RootRevision):
            changes = [change for change in reply.value.changes if not is_no_finding(change.text)]
            yield AnswerChange(
                key=reply.key,
                stance=declared_stance(reply.value),
                changes=tuple(Claim(text=c.text.strip(), ids=session.named(reply, c.ids)) for c in changes),
            )


def _texts_of_leaves(session: Session, run: EmergenceRun) -> dict[str, set[str]]:
    """Return every text of each leaf that wrote one."""
    texts: dict[str, set[str]] = {}
    for turn in (turns[leaf] for turns in run.rounds for leaf in session.topology.leaves):
        for reply in filter(None, (turn.response, turn.lateral)):
            texts.setdefault(turn.agent, set()).add(reply.text)
    return texts


def _first_results(session: Session, run: EmergenceRun) -> list[Reply[object] | Failure]:
    """Return the reply or failure of each leaf in the first round."""
    turns = [run.rounds[0][leaf] for leaf in session.topology.leaves] if run.rounds else []
    return [turn.response or turn.failures[0] for turn in turns]


def rounds_of(agents: Sequence[Agent], threshold: float, run: EmergenceRun) -> Iterator[Round]:
    """Yield the rounds of a run in order."""
    words: dict[str, frozenset[str]] = {}
    for n, turns in enumerate(run.rounds, 1):
        earlier_words, words = words, {}
        sent = run.nudges[n] if n < len(run.nudges) else {}
        check = run.checks[n - 1] if n <= len(run.checks) else None
        rounds: dict[str, AgentRound] = {}
        for agent in agents:
            turn = turns.get(agent.id)
            if turn is None:
                continue
            similarity = None
            if turn.text is not None:
                words[agent.id] = token_set(turn.text.text)
                if turn.replied and agent.id in earlier_words:
                    similarity = set_jaccard(earlier_words[agent.id], words[agent.id])
            rounds[agent.id] = AgentRound(
                role=agent.role,
                perspective=agent.persona or agent.perspective,
                response=_text(turn.response) or _text(turn.before or (None if turn.failures else turn.text)),
                lateral_response=_text(turn.lateral),
                revised=turn.revised,
                signal_sent=_text(sent.get(agent.id)),
                signal_received=_text(turn.nudge),
                stance=turn.declared,
                similarity=similarity,
                converged=similarity is not None and similarity >= threshold,
            )
        yield Round(round=n, agents=rounds, convergence_score=check.score if check else None)


def _text(reply: Reply[object] | None) -> str | None:
    return None if reply is None else reply.text


def _metrics(topology: Topology, run: EmergenceRun, sources: Sequence[str]) -> dict[str, float | int | None]:
    """Compute the figures that compare texts."""
    below = [turn for turns in run.rounds for turn in turns.values() if turn.agent != ROOT]
    inputs = [reply.text for turn in below for reply in (turn.response, turn.lateral) if reply is not None]
    inputs += [objection.text for turn in below for objection in turn.objections]
    first = run.rounds[0].values() if run.rounds else ()
    points = [point for turn in first if turn.agent in topology.leaves for point in turn.points]
    answer = run.closing.text if run.closing else ""
    metrics: dict[str, float | int | None] = {"novelty": novelty(answer, [*inputs, *sources, *points])}
    for n, turns in enumerate(run.rounds, 1):
        leaves = [turns[leaf] for leaf in topology.leaves]
        families = [topology.parents[leaf][0] for leaf in topology.leaves]
        for phase, replies in (
            ("leaf_respond", [turn.response for turn in leaves]),
            ("lateral_leaves", [turn.lateral for turn in leaves]),
        ):
            metrics[f"sibling_similarity/{phase}/{n}"] = sibling_similarity(families, replies)
    return metrics


def _warn(session: Session, run: EmergenceRun, scores: Sequence[float | None]) -> None:
    measured = [score for score in scores if score is not None]
    check = next((check for check in reversed(run.checks) if check is not None), None)
    threshold = check.threshold if check is not None and check.kind in ("jaccard", "embedding") else None
    if measured and threshold is not None and exact(max(measured)) < exact(threshold) - exact(NEAR_THRESHOLD_MARGIN):
        session.warn(
            f"no similarity came within {NEAR_THRESHOLD_MARGIN} of the threshold {threshold}: "
            f"the largest was {max(measured):.2f}; text similarity alone would hardly have stopped this run"
        )
    copies = [n for n, (a, b) in enumerate(pairwise(run.texts), 2) if a.text.split() == b.text.split()]
    if copies:
        session.warn(
            f"in round {', '.join(map(str, copies))} the root repeated its last text word for word, "
            "so a stable text means little"
        )
    warn_left_out(session, run.left_out)
    last = run.rounds[-1].get(ROOT) if run.rounds else None
    if run.closing is not None and last is not None and last.response is None and not session.limit_hit:
        session.warn("the last closing call got no reply; the answer is that of an earlier round")
    warn_failed_review(session, run)
