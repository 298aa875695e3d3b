"""The prompts of `broadcast`, and its calls except the closing ones: what each is shown and asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from consilience.domain.messages import Message, Synthesis
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Reply
from consilience.protocols._common.answers import describe_pattern
from consilience.protocols._common.tree_run import TextReply
from consilience.protocols._common.trees import ROOT, peer_labels, siblings_and_parents
from consilience.protocols.broadcast.executions import (
    AgentExecution,
    BroadcastRun,
    FlagRaised,
    IterationResult,
    last_evaluation,
    last_goal,
    latest_executions,
    standing_flags,
)
from consilience.protocols.broadcast.replies import (
    Coordination,
    CoordinatorSynthesis,
    Evaluation,
    Goal,
    Reflection,
    SealedCoordination,
    SealedReflection,
)
from consilience.protocols.broadcast.settings import MAX_QUOTED_FLAGS, PERSPECTIVES, BroadcastSettings

Path = tuple[int, ...]
"""Iterations from the root's down."""


def key_at(path: Path, step: str, agent: str) -> str:
    """Return `iteration-2/1/execute/L3N1` for a step in the root's second iteration and in its parent's first."""
    return f"iteration-{'/'.join(map(str, path))}/{step}/{agent}"


@dataclass(frozen=True)
class Asks:
    """Builds calls; `Family` makes them."""

    session: Session
    settings: BroadcastSettings

    def broadcast(self, agent: str, path: Path, goal: Reply[Goal] | None, before: IterationResult | None) -> Ask[Goal]:
        """A parent states what is to be achieved and assigns nothing. A later broadcast is shown what caused it."""
        session = self.session
        children = before.children if before is not None else ()
        flags, missing = self.flag_quotes(children), self.missing_quotes(children)
        evaluation = self._quote(before.evaluation if before is not None else None, "evaluation")
        own = self._quote(before.broadcast if before is not None else None, "you")
        words = self.render(
            "broadcast",
            agent,
            goal=goal is not None,
            again=before is not None,
            previous=bool(own),
            evaluation=bool(evaluation),
            flags=_labels(flags),
            missing=_labels(missing),
        )
        return session.ask(
            agent,
            Prompt(words, (*flags, *missing, *evaluation, *own), self.goal_quotes(goal)),
            key=key_at(path, "broadcast", agent),
            returns=Goal,
            kind="broadcast",
            audience=session.topology.children[agent],
        )

    def execute(self, leaf: str, path: Path, goal: Reply[Goal] | None, before: TextReply | None) -> Ask[Synthesis]:
        """A leaf's text. In a later execution it is shown its previous text, which the new one replaces."""
        own = self._quote(before, "you")
        words = self.render(
            "execute", leaf, people=len(self.session.topology.leaves), goal=goal is not None, again=bool(own)
        )
        return self.session.ask(
            leaf,
            Prompt(words, own, self.goal_quotes(goal)),
            key=key_at(path, "execute", leaf),
            returns=Synthesis,
            audience=siblings_and_parents(self.session.topology, leaf),
        )

    def self_reflect(self, run: AgentExecution, goal: Reply[Goal] | None) -> Ask[Any]:
        """The author judges its own text."""
        assert run.text is not None
        sealed = self._casts_ballot(run)
        words = self.render("self_reflect", run.agent, root=False, goal=goal is not None, ballot=sealed)
        return self.session.ask(
            run.agent,
            Prompt(words, (self.session.quote(run.text, "you"),), self.goal_quotes(goal)),
            key=key_at(run.path, "self_reflect", run.agent),
            returns=SealedReflection if sealed else Reflection,
            audience=siblings_and_parents(self.session.topology, run.agent),
        )

    def _casts_ballot(self, run: AgentExecution) -> bool:
        """Return whether a leaf casts a ballot in its reflection: the opening ballot, and later ones if no coordination follows."""
        talks = self.settings.coordination_rounds > 0 and bool(self.session.topology.siblings(run.agent))
        return self.settings.ballots and not run.iterations and (set(run.path) == {1} or not talks)

    def coordinate(
        self,
        run: AgentExecution,
        path: Path,
        n: int,
        goal: Reply[Goal] | None,
        shared: Sequence[Quote],
        disputed: Sequence[Quote],
    ) -> Ask[Any]:
        """A child reads its siblings' texts and revises its own. `shared` are all their texts, the same list for each of them;
        `disputed` are their disagreements of the round before."""
        sealed = self.settings.ballots and not run.iterations
        raised = [
            self.session.quote(self.session.message(flag.id), f"{self.labels[run.agent]}.flag{n}")
            for n, flag in enumerate(run.flags, 1)
        ]
        words = self.render(
            "coordinate",
            run.agent,
            label=self.labels[run.agent],
            goal=goal is not None,
            disagreements=_labels(disputed),
            raised=_labels(raised),
            ballot=sealed,
        )
        return self.session.ask(
            run.agent,
            Prompt(words, tuple(raised), (*self.goal_quotes(goal), *shared, *disputed)),
            key=key_at(path, f"coordinate-{n}", run.agent),
            returns=SealedCoordination if sealed else Coordination,
            audience=siblings_and_parents(self.session.topology, run.agent),
        )

    def evaluate(
        self, agent: str, path: Path, goal: Reply[Goal] | None, runs: Sequence[AgentExecution]
    ) -> Ask[Evaluation]:
        """A parent judges its children's texts by the goal that it broadcast."""
        texts, remarks = self.text_quotes(runs), self.remark_quotes(runs)
        more = path[-1] < self.settings.max_iterations
        words = self.render(
            "evaluate", agent, goal=goal is not None, texts=_labels(texts), more=more, **self.remark_labels(runs)
        )
        return self.session.ask(
            agent,
            Prompt(words, tuple(remarks), (*self.goal_quotes(goal), *texts)),
            key=key_at(path, "evaluate", agent),
            returns=Evaluation,
            kind="judgement",
        )

    def synthesize(
        self,
        agent: str,
        path: Path,
        iterations: Sequence[IterationResult],
        goal: Reply[Goal] | None,
        before: TextReply | None,
    ) -> Ask[CoordinatorSynthesis]:
        """A coordinator combines its children's texts, for the goal that its own parent broadcast."""
        return self.session.ask(
            agent,
            self.synthesis_prompt(agent, iterations, root=False, goal=goal, before=before),
            key=key_at(path, "synthesize", agent),
            returns=CoordinatorSynthesis,
            audience=siblings_and_parents(self.session.topology, agent),
        )

    def synthesis_prompt(
        self,
        agent: str,
        iterations: Sequence[IterationResult],
        *,
        root: bool,
        goal: Reply[Goal] | None = None,
        before: TextReply | None = None,
    ) -> Prompt:
        """Show the children's latest texts, flags and disagreements, and the evaluation of these texts.

        `goal` is what the synthesis is rated by: a coordinator's is its parent's, the root's is its own.
        """
        runs = latest_executions(iterations)
        texts, remarks = self.text_quotes(runs), self.remark_quotes(runs)
        judged, own = self._quote(last_evaluation(iterations), "evaluation"), self._quote(before, "you")
        words = self.render(
            "synthesize",
            agent,
            root=root,
            goal=goal is not None,
            again=bool(own),
            texts=_labels(texts),
            evaluation=bool(judged),
            pattern=describe_pattern(self.settings.answer_pattern) if root else "",
            **self.remark_labels(runs),
        )
        return Prompt(words, (*remarks, *judged, *own), (*self.goal_quotes(goal), *texts))

    def review_prompt(self, run: BroadcastRun, template: str, **values: str | bool) -> Prompt:
        """Show the root its answer and conclusion, the goal, the texts the answer rests on with their disagreements and flags, and
        the evaluation of these texts."""
        runs, goal = latest_executions(run.iterations), last_goal(run.iterations)
        judged = self._quote(last_evaluation(run.iterations), "evaluation")
        declared = self._quote(run.declared, "conclusion")
        shown = {"goal": goal is not None, "evaluation": bool(judged), "conclusion": bool(declared)}
        words = self.render(template, ROOT, **self.remark_labels(runs), **shown, **values)
        return Prompt(
            words,
            (*self.remark_quotes(runs), *judged, *self._quote(run.closing, "you"), *declared),
            (*self.goal_quotes(goal), *self.text_quotes(runs)),
        )

    # --- quotations and labels

    @cached_property
    def labels(self) -> dict[str, str]:
        """One label per agent for the whole session."""
        return peer_labels(self.session.topology, self.settings.anonymous_peers)

    def text_quotes(self, runs: Sequence[AgentExecution]) -> list[Quote]:
        return [self.session.quote(run.text, self.labels[run.agent]) for run in runs if run.text is not None]

    def goal_quotes(self, goal: Reply[Goal] | None) -> tuple[Quote, ...]:
        return self._quote(goal, "goal")

    def _quote(self, reply: TextReply | Message | None, label: str) -> tuple[Quote, ...]:
        return (self.session.quote(reply, label),) if reply is not None else ()

    def missing_quotes(self, runs: Sequence[AgentExecution]) -> list[Quote]:
        """Quote what children found missing in their own texts."""
        return [
            self.session.quote(run.missing, f"{self.labels[run.agent]}.missing")
            for run in runs
            if run.missing is not None
        ]

    def disagreement_quotes(self, runs: Sequence[AgentExecution]) -> list[Quote]:
        return [
            self.session.quote(self.session.message(disagreement.id), f"{self.labels[run.agent]}.{n}")
            for run in runs
            for n, disagreement in enumerate(run.disagreements, 1)
        ]

    def flag_quotes(self, runs: Sequence[AgentExecution]) -> list[Quote]:
        """Quote the flags that stand at these agents and below, numbered under their author's label. Of too many, critical
        flags come first."""
        numbered: list[tuple[FlagRaised, str]] = []
        count: Counter[str] = Counter()
        for flag in standing_flags(runs):
            count[flag.node] += 1
            numbered.append((flag, f"{self.labels[flag.node]}.flag{count[flag.node]}"))
        first = sorted(numbered, key=lambda entry: not entry[0].critical)[:MAX_QUOTED_FLAGS]
        return [self.session.quote(self.session.message(entry[0].id), entry[1]) for entry in numbered if entry in first]

    def remark_quotes(self, runs: Sequence[AgentExecution]) -> list[Quote]:
        """Quote the disagreements and flags that parents are shown with the texts."""
        return [*self.disagreement_quotes(runs), *self.flag_quotes(runs)]

    def remark_labels(self, runs: Sequence[AgentExecution]) -> dict[str, Hashable]:
        return {
            "disagreements": _labels(self.disagreement_quotes(runs)),
            "flags": _labels(self.flag_quotes(runs)),
        }

    def render(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        values = {"pattern": describe_pattern(self.settings.answer_pattern), **values}
        return self.session.words(template, seat=seat.introduction(PERSPECTIVES.get(seat.perspective)), **values)


def _labels(quotes: Sequence[Quote]) -> tuple[str, ...]:
    return tuple(quote.label for quote in quotes)
