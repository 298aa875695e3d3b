"""A node and its children: prompts and calls of `broadcast` except the closing ones, and what replies publish besides a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from consilience.domain.messages import Message, Synthesis
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Ask, Failure, Reply
from consilience.protocols._common.answers import describe_pattern
from consilience.protocols._common.conclusion import TextReply, publish_from, quoted, with_position
from consilience.protocols._common.remarks import LeftOut, is_restated, take
from consilience.protocols._common.trees import ROOT, peer_labels, siblings_and_parents
from consilience.protocols.broadcast.executions import (
    AgentExecution,
    BroadcastRun,
    Disagreed,
    Disagreement,
    FlagRaised,
    GoalBroadcast,
    IterationEnded,
    IterationResult,
    Path,
    Rated,
    Remarks,
    has_texts,
    key_at,
    last_evaluation,
    last_goal,
    latest_executions,
    satisfaction,
    shortfalls,
    standing_flags,
)
from consilience.protocols.broadcast.settings import (
    MAX_FLAGS,
    MAX_QUOTED_FLAGS,
    PERSPECTIVES,
    SEVERITY,
    BroadcastSettings,
    Coordination,
    CoordinatorSynthesis,
    Evaluation,
    Goal,
    RatedReply,
    Reflecting,
    Reflection,
    SealedCoordination,
    SealedReflection,
)


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
        evaluation = quoted(self.session, before.evaluation if before is not None else None, "evaluation")
        own_goal = quoted(self.session, before.broadcast if before is not None else None, "you")
        words = self.render(
            "broadcast",
            agent,
            goal=goal is not None,
            again=before is not None,
            previous=bool(own_goal),
            evaluation=bool(evaluation),
            flags=_labels(flags),
            missing=_labels(missing),
        )
        return session.ask(
            agent,
            Prompt(words, (*flags, *missing, *evaluation, *own_goal), self.goal_quotes(goal)),
            key=key_at(path, "broadcast", agent),
            returns=Goal,
            kind="broadcast",
            audience=session.topology.children[agent],
        )

    def execute(self, leaf: str, path: Path, goal: Reply[Goal] | None, before: TextReply | None) -> Ask[Synthesis]:
        """A leaf's text. In a later execution it is shown its previous text, which the new one replaces."""
        own_text = quoted(self.session, before, "you")
        words = self.render(
            "execute", leaf, people=len(self.session.topology.leaves), goal=goal is not None, again=bool(own_text)
        )
        return self.session.ask(
            leaf,
            Prompt(words, own_text, self.goal_quotes(goal)),
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
            returns=with_position(SealedReflection, self.settings.answer_pattern) if sealed else Reflection,
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
            returns=with_position(SealedCoordination, self.settings.answer_pattern) if sealed else Coordination,
            audience=siblings_and_parents(self.session.topology, run.agent),
        )

    def evaluate(
        self, agent: str, path: Path, goal: Reply[Goal] | None, runs: Sequence[AgentExecution]
    ) -> Ask[Evaluation]:
        """A parent judges its children's texts by the goal that it broadcast."""
        texts, remarks = self.text_quotes(runs), self.remark_quotes(runs)
        may_iterate = path[-1] < self.settings.max_iterations
        words = self.render(
            "evaluate", agent, goal=goal is not None, texts=_labels(texts), more=may_iterate, **self.remark_labels(runs)
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
        judged, own_text = (
            quoted(self.session, last_evaluation(iterations), "evaluation"),
            quoted(self.session, before, "you"),
        )
        words = self.render(
            "synthesize",
            agent,
            root=root,
            goal=goal is not None,
            again=bool(own_text),
            texts=_labels(texts),
            evaluation=bool(judged),
            pattern=describe_pattern(self.settings.answer_pattern) if root else "",
            **self.remark_labels(runs),
        )
        return Prompt(words, (*remarks, *judged, *own_text), (*self.goal_quotes(goal), *texts))

    def review_prompt(self, run: BroadcastRun, template: str, **values: str | bool) -> Prompt:
        """Show the root its answer and conclusion, the goal, the texts the answer rests on with their disagreements and flags, and
        the evaluation of these texts."""
        runs, goal = latest_executions(run.iterations), last_goal(run.iterations)
        judged = quoted(self.session, last_evaluation(run.iterations), "evaluation")
        declared = quoted(self.session, run.declared, "conclusion")
        shown = {"goal": goal is not None, "evaluation": bool(judged), "conclusion": bool(declared)}
        words = self.render(template, ROOT, **self.remark_labels(runs), **shown, **values)
        return Prompt(
            words,
            (*self.remark_quotes(runs), *judged, *quoted(self.session, run.closing, "you"), *declared),
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
        return quoted(self.session, goal, "goal")

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
        introduction = seat.introduction(PERSPECTIVES.get(seat.perspective))
        return self.session.render_template(template, seat=introduction, **values)


def _labels(quotes: Sequence[Quote]) -> tuple[str, ...]:
    return tuple(quote.label for quote in quotes)


@dataclass(frozen=True)
class Publisher:
    """Publishes remarks as messages for their readers, and records ratings and flags as notes."""

    session: Session
    settings: BroadcastSettings
    labels: Mapping[str, str]

    def publish(self, run: AgentExecution, reply: Reply[Any] | Failure) -> Remarks:
        """Publish and return the remarks of `run`'s next reply."""
        if isinstance(reply, Failure):
            return Remarks()
        value = reply.value
        assert isinstance(value, RatedReply)
        self.session.note("rating", Rated(agent=run.agent, path=run.path, call=reply.key, rating=value.rating))
        flags = self._flags(run, reply, value)
        disagreements, left_out = self._disagreements(run, reply, value)
        left_out["flag", "surplus"] += len(value.stated_flags[MAX_FLAGS:])
        return Remarks(flags, disagreements, self._missing(run, reply, value), +left_out)

    def _flags(self, run: AgentExecution, reply: Reply[Any], value: RatedReply) -> tuple[FlagRaised, ...]:
        """Publish flags for the parents up to the root. One raised before in nearly the same words already stands."""
        raised: list[FlagRaised] = []
        new: list[str] = []
        for entry in value.stated_flags[:MAX_FLAGS]:
            text = f"{entry.tag}: {entry.text.strip()}".rstrip(": ")
            earlier = [self.session.message(flag.id).text for flag in run.flags if flag.tag == entry.tag]
            if is_restated(text, earlier) or text in new:
                continue
            new.append(text)
            message = publish_from(self.session, reply, "flag", len(new), text, self._ancestors(run.agent))
            flag = FlagRaised(
                id=message.id,
                tag=entry.tag,
                severity=SEVERITY[entry.tag],
                critical=entry.tag in self.settings.critical_flags,
                node=run.agent,
                path=run.path,
                text=entry.text.strip(),
            )
            raised.append(flag)
            self.session.note("flag", flag)
        return tuple(raised)

    def _disagreements(
        self, run: AgentExecution, reply: Reply[Any], value: RatedReply
    ) -> tuple[tuple[Disagreement, ...], LeftOut]:
        """Publish disagreements for siblings and the parent."""
        if not isinstance(value, Coordination | SealedCoordination):
            return (), LeftOut()
        published: list[Disagreement] = []
        siblings = self.session.topology.siblings(run.agent)
        readers = (*siblings, *self.session.topology.parents[run.agent])
        targets = {self.labels[sibling]: sibling for sibling in siblings}
        entries, left_out = take(reply, "disagreement", value.disagreements, targets, self.session.caps.objections)
        for n, (entry, target) in enumerate(entries, 1):
            text = entry.text.strip()
            quoted = f"against {self.labels[target]}: {text}"
            message = publish_from(self.session, reply, "disagreement", n, quoted, readers)
            published.append(Disagreement(id=message.id, agent=run.agent, to=target, text=text, path=run.path))
        self.session.note("disagreements", Disagreed(agent=run.agent, entries=tuple(published)))
        return tuple(published), left_out

    def _missing(self, run: AgentExecution, reply: Reply[Any], value: RatedReply) -> Message | None:
        """Publish it for the parent, whose next broadcast it may cause."""
        parents = self.session.topology.parents.get(run.agent, ())
        if not isinstance(value, Reflecting) or not value.has_missing or not parents:
            return None
        return publish_from(self.session, reply, "missing", 1, value.missing.strip(), parents)

    def _ancestors(self, agent: str) -> tuple[str, ...]:
        """Return its parents up to the root."""
        ancestors: list[str] = []
        while parents := self.session.topology.parents.get(agent):
            (agent,) = parents
            ancestors.append(agent)
        return tuple(ancestors)


@dataclass(frozen=True)
class Family:
    """A node and its children: makes all calls except those that close the run.

    It is recursive and has no barriers: a parent continues when its own children are ready. Branches read what they were
    passed and return what they made.
    """

    session: Session
    settings: BroadcastSettings

    @cached_property
    def asks(self) -> Asks:
        return Asks(self.session, self.settings)

    @cached_property
    def publisher(self) -> Publisher:
        return Publisher(self.session, self.settings, self.asks.labels)

    async def iterate(
        self,
        agent: str,
        path: Path,
        goal: Reply[Goal] | None,
        before: IterationResult | None,
        earlier: Sequence[AgentExecution],
    ) -> IterationResult:
        """One iteration of a parent; `before` is the one that did not satisfy. `earlier` are the children's previous executions, of
        this or an earlier execution of the parent. If the broadcast fails, the children have the task alone."""
        session, settings, by_agent = self.session, self.settings, {run.agent: run for run in earlier}
        async with session.phase("re_broadcast" if before else "broadcast", path[0]):
            broadcast = await self.asks.broadcast(agent, path, goal, before)
        goal_reply = broadcast if isinstance(broadcast, Reply) else None
        if goal_reply is not None:
            session.note("goal", GoalBroadcast(node=agent, path=path, text=goal_reply.text))
        calls = settings.need(session.topology.levels[agent] + 1)
        async with session.phase("execute_children", path[0]):
            runs = await session.gather(
                [
                    session.subtask(self.execute(child, path, goal_reply, by_agent.get(child)), calls=calls)
                    for child in session.topology.children[agent]
                ]
            )
        rounds, runs = await self._coordinate(path, goal_reply, runs)
        runs = [run.after(by_agent.get(run.agent)) for run in runs]
        evaluation: Reply[Evaluation] | Failure | None = None
        if any(run.text for run in runs):
            async with session.phase("evaluate", path[0]):
                evaluation = await self.asks.evaluate(agent, path, goal_reply, runs)
        failures = [reply for reply in (broadcast, evaluation) if isinstance(reply, Failure)]
        judged = evaluation if isinstance(evaluation, Reply) else None
        threshold = settings.satisfaction_threshold
        unmet = shortfalls(runs, threshold, settings.critical_flags, judged, failures)
        result = IterationResult(
            agent,
            path,
            goal_reply,
            tuple(runs),
            rounds,
            satisfaction(runs, threshold, unmet),
            unmet,
            judged,
            tuple(failures),
            unquoted=max(len(standing_flags(runs)) - MAX_QUOTED_FLAGS, 0),
        )
        flags = tuple(quote.id for quote in self.asks.flag_quotes(runs))
        feedback = judged.text if judged else ""
        session.note("iteration", IterationEnded(**result.judgement, flags=flags, feedback=feedback))
        return result

    async def execute(
        self, agent: str, path: Path, goal: Reply[Goal] | None, before: AgentExecution | None
    ) -> AgentExecution:
        """One execution of a node below the root, with all below it; `before` is its previous one. Its author judges the text."""
        if self.session.topology.children[agent]:
            run = await self._run_family(agent, path, goal, before)
        else:
            async with self.session.phase("execute", path[0]):
                previous = before.last_text if before is not None else None
                run = AgentExecution(agent, path).responded(await self.asks.execute(agent, path, goal, previous))
        if run.text is None:
            return run
        async with self.session.phase("self_reflect", path[0]):
            reply = await self.asks.self_reflect(run, goal)
        task = self.session.task if goal is None else f"{self.session.task}\n{goal.text}"
        return run.reflected(reply, self.publisher.publish(run, reply), task)

    async def _run_family(
        self, agent: str, path: Path, goal: Reply[Goal] | None, before: AgentExecution | None
    ) -> AgentExecution:
        """Iterations of a coordinator until it is satisfied or stopped, and its synthesis of the last texts."""
        iterations: list[IterationResult] = []
        earlier = before.children if before is not None else ()
        for index in range(1, self.settings.max_iterations + 1):
            last = iterations[-1] if iterations else None
            iterations.append(await self.iterate(agent, (*path, index), goal, last, earlier))
            earlier = iterations[-1].children
            if iterations[-1].check.met or iterations[-1].limited:
                break
        run = AgentExecution(agent, path, iterations=tuple(iterations))
        if not has_texts(iterations):
            return run
        previous = before.last_text if before is not None else None
        async with self.session.phase("synthesize", path[0]):
            return run.responded(await self.asks.synthesize(agent, path, iterations, goal, previous))

    async def _coordinate(
        self, path: Path, goal: Reply[Goal] | None, runs: list[AgentExecution]
    ) -> tuple[int, list[AgentExecution]]:
        """Siblings read each other, until the rounds are used up or all are content. Returns the number of rounds held."""
        runs = list(runs)
        for index in range(1, self.settings.coordination_rounds + 1):
            speaking = [run for run in runs if run.text is not None]
            if len(speaking) < 2 or (self.settings.skip_when_satisfied and all(run.content for run in runs)):
                return index - 1, runs
            texts, disputed = self.asks.text_quotes(speaking), self.asks.disagreement_quotes(speaking)
            async with self.session.phase("coordinate", path[0]):
                replies = await self.session.gather(
                    [self.asks.coordinate(run, path, index, goal, texts, disputed) for run in speaking]
                )
            by_agent = dict(zip((run.agent for run in speaking), replies, strict=True))
            for n, run in enumerate(runs):
                if (reply := by_agent.get(run.agent)) is not None:
                    runs[n] = run.coordinated(reply, self.publisher.publish(run, reply))
        return self.settings.coordination_rounds, runs
