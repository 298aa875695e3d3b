"""The calls of `broadcast` below the closing ones: what each is shown and asked. Labels are paths in the tree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from consilience.domain.messages import Message, Synthesis
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Reply
from consilience.protocols._common.answers import form
from consilience.protocols._common.trees import path_labels
from consilience.protocols.broadcast.executions import Execution, IterationResult, TextReply, last_evaluation, latest
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


def at(path: Path, rest: str) -> str:
    """`iteration-2/1/execute/L3N1`: in the root's second iteration, in its parent's first."""
    return f"iteration-{'/'.join(map(str, path))}/{rest}" if path else rest


@dataclass(frozen=True)
class Asks:
    """Describes calls; whoever awaits them makes them."""

    session: Session
    settings: BroadcastSettings

    def broadcast(self, agent: str, path: Path, goal: Reply[Goal] | None, before: IterationResult | None) -> Ask[Goal]:
        """States what is to be achieved and assigns nothing. A later one is shown what caused it."""
        session = self.session
        shared = self.goal_quotes(goal)
        flags: list[Quote] = []
        missing: list[Quote] = []
        feedback: list[Quote] = []
        own: list[Quote] = []
        if before is not None:
            flags = self.flag_quotes(before.children)
            missing = self.missing_quotes(before.children)
            feedback = [session.quote(before.evaluation, "evaluation")] if before.evaluation is not None else []
            own = [session.quote(before.broadcast, "you")] if before.broadcast is not None else []
        words = self.words(
            "broadcast",
            agent,
            goal=bool(shared),
            again=before is not None,
            previous=bool(own),
            evaluation=bool(feedback),
            flags=_labels(flags),
            missing=_labels(missing),
        )
        return session.ask(
            agent,
            Prompt(words, (*flags, *missing, *feedback, *own), shared),
            key=at(path, f"broadcast/{agent}"),
            returns=Goal,
            kind="broadcast",
            audience=session.topology.children[agent],
        )

    def execute(self, leaf: str, path: Path, goal: Reply[Goal] | None, before: TextReply | None) -> Ask[Synthesis]:
        """A leaf's text. Executed again, it is shown its previous one, which the new one replaces."""
        own = self.own_quotes(before)
        words = self.words(
            "execute", leaf, people=len(self.session.topology.leaves), goal=goal is not None, again=bool(own)
        )
        return self.session.ask(
            leaf,
            Prompt(words, own, self.goal_quotes(goal)),
            key=at(path, f"execute/{leaf}"),
            returns=Synthesis,
            audience=self._near(leaf),
        )

    def self_reflect(self, run: Execution, goal: Reply[Goal] | None) -> Ask[Any]:
        """The author judges its own text."""
        assert run.text is not None
        sealed = self._votes_alone(run)
        words = self.words("self_reflect", run.agent, root=False, goal=goal is not None, ballot=sealed)
        return self.session.ask(
            run.agent,
            Prompt(words, (self.session.quote(run.text, "you"),), self.goal_quotes(goal)),
            key=at(run.path, f"self_reflect/{run.agent}"),
            returns=SealedReflection if sealed else Reflection,
            audience=self._near(run.agent),
        )

    def _votes_alone(self, run: Execution) -> bool:
        """Whether a ballot rides in its reflection: the opening one, and where no talk follows in which it could be cast."""
        talks = self.settings.coordination_rounds > 0 and bool(self.session.topology.siblings(run.agent))
        return self.settings.ballots and not run.iterations and (set(run.path) == {1} or not talks)

    def coordinate(
        self,
        run: Execution,
        path: Path,
        n: int,
        goal: Reply[Goal] | None,
        shared: Sequence[Quote],
        disputed: Sequence[Quote],
    ) -> Ask[Any]:
        """One call by the child itself, which is also shown its own flags. `shared` are its own and all siblings' texts, the same
        list for all of them; `disputed` are their disagreements of the round before."""
        sealed = self.settings.ballots and not run.iterations
        raised = [
            self.session.quote(flag.message, f"{self.labels[run.agent]}.flag{n}") for n, flag in enumerate(run.flags, 1)
        ]
        words = self.words(
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
            key=at(path, f"coordinate-{n}/{run.agent}"),
            returns=SealedCoordination if sealed else Coordination,
            audience=self._near(run.agent),
        )

    def evaluate(self, agent: str, path: Path, goal: Reply[Goal] | None, runs: Sequence[Execution]) -> Ask[Evaluation]:
        """The parent's judgement of its children's texts, by the goal that it broadcast."""
        texts, remarks = self.text_quotes(runs), self.remark_quotes(runs)
        more = path[-1] < self.settings.max_iterations
        words = self.words(
            "evaluate", agent, goal=goal is not None, texts=_labels(texts), more=more, **self.remark_labels(runs)
        )
        return self.session.ask(
            agent,
            Prompt(words, tuple(remarks), (*self.goal_quotes(goal), *texts)),
            key=at(path, f"evaluate/{agent}"),
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
        """What a coordinator makes of its children's texts, for the goal that it was given."""
        return self.session.ask(
            agent,
            self.synthesis_prompt(agent, iterations, root=False, goal=goal, before=before),
            key=at(path, f"synthesize/{agent}"),
            returns=CoordinatorSynthesis,
            audience=self._near(agent),
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
        """The children's latest texts, what they flagged and disagree about, and always the evaluation of these texts.

        `goal` is what the synthesis is rated by: a coordinator's is its parent's, the root's is its own.
        """
        runs = latest(iterations)
        texts, remarks = self.text_quotes(runs), self.remark_quotes(runs)
        judged, own = self.evaluation_quotes(iterations), self.own_quotes(before)
        words = self.words(
            "synthesize",
            agent,
            root=root,
            goal=goal is not None,
            again=bool(own),
            texts=_labels(texts),
            evaluation=bool(judged),
            pattern=form(self.settings.answer_pattern) if root else "",
            **self.remark_labels(runs),
        )
        return Prompt(words, (*remarks, *judged, *own), (*self.goal_quotes(goal), *texts))

    # --- quotations and labels

    @cached_property
    def labels(self) -> dict[str, str]:
        """One label per agent for the whole session; names where peers are not anonymous."""
        labels = path_labels(self.session.topology)
        return labels if self.settings.anonymous_peers else {agent: agent for agent in labels}

    def text_quotes(self, runs: Sequence[Execution]) -> list[Quote]:
        return [self.session.quote(run.text, self.labels[run.agent]) for run in runs if run.text is not None]

    def goal_quotes(self, goal: Reply[Goal] | None) -> tuple[Quote, ...]:
        return (self.session.quote(goal, "goal"),) if goal is not None else ()

    def evaluation_quotes(self, iterations: Sequence[IterationResult]) -> tuple[Quote, ...]:
        evaluation = last_evaluation(iterations)
        return (self.session.quote(evaluation, "evaluation"),) if evaluation is not None else ()

    def own_quotes(self, before: TextReply | None) -> tuple[Quote, ...]:
        return (self.session.quote(before, "you"),) if before is not None else ()

    def missing_quotes(self, runs: Sequence[Execution]) -> list[Quote]:
        """What children found missing in their own texts."""
        return [
            self.session.quote(run.missing, f"{self.labels[run.agent]}.missing")
            for run in runs
            if run.missing is not None
        ]

    def disagreement_quotes(self, runs: Sequence[Execution]) -> list[Quote]:
        return [
            self.session.quote(disagreement.message, f"{self.labels[run.agent]}.{n}")
            for run in runs
            for n, disagreement in enumerate(run.disagreements, 1)
        ]

    def flag_quotes(self, runs: Sequence[Execution]) -> list[Quote]:
        """The flags that stand beneath, numbered under their author's label; if there are too many, critical ones first."""
        numbered: list[tuple[Message, str, bool]] = []
        count: dict[str, int] = {}
        for flag in (flag for run in runs for flag in run.standing):
            count[flag.node] = count.get(flag.node, 0) + 1
            label = f"{self.labels[flag.node]}.flag{count[flag.node]}"
            numbered.append((flag.message, label, flag.tag in self.settings.critical_flags))
        first = sorted(numbered, key=lambda flag: not flag[2])[:MAX_QUOTED_FLAGS]
        return [
            self.session.quote(message, label)
            for message, label, critical in numbered
            if (message, label, critical) in first
        ]

    def remark_quotes(self, runs: Sequence[Execution]) -> list[Quote]:
        """Disagreements and flags, as parents are shown them beside the texts."""
        return [*self.disagreement_quotes(runs), *self.flag_quotes(runs)]

    def remark_labels(self, runs: Sequence[Execution]) -> dict[str, Hashable]:
        return {
            "disagreements": _labels(self.disagreement_quotes(runs)),
            "flags": _labels(self.flag_quotes(runs)),
        }

    def words(self, template: str, agent: str, **values: Hashable) -> str:
        seat = self.session.agent(agent)
        given: dict[str, Hashable] = {"pattern": form(self.settings.answer_pattern), **values}
        return self.session.words(template, seat=seat.introduction(PERSPECTIVES.get(seat.perspective)), **given)

    def _near(self, agent: str) -> tuple[str, ...]:
        return (*self.session.topology.siblings(agent), *self.session.topology.parents[agent])


def _labels(quotes: Sequence[Quote]) -> tuple[str, ...]:
    return tuple(quote.label for quote in quotes)
