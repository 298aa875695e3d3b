"""The algorithm of `broadcast`, as the seed describes it:

broadcast → execute_children → coordinate → evaluate → { re_broadcast → broadcast | synthesize → self_reflect }

for every parent, and execute → self_reflect for every leaf. `Family` holds what all parents have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from pydantic import BaseModel

from consilience.domain.outcome import StopReason
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply, exhaustion
from consilience.protocols._common.trees import ROOT
from consilience.protocols.broadcast.asks import Asks, Path
from consilience.protocols.broadcast.executions import (
    NOTES,
    AgentExecution,
    BroadcastRun,
    GoalBroadcast,
    IterationEnded,
    IterationResult,
    first_executions,
    has_texts,
    last_goal,
    satisfaction,
    shortfalls,
    standing_flags,
)
from consilience.protocols.broadcast.outcome import conclude
from consilience.protocols.broadcast.remarks import Publisher
from consilience.protocols.broadcast.replies import Evaluation, Goal, RootReflection, RootSynthesis
from consilience.protocols.broadcast.report import BroadcastReport
from consilience.protocols.broadcast.settings import MAX_QUOTED_FLAGS, BroadcastSettings


class Broadcast(BroadcastSettings):
    """Tree of integrator, coordinators and contributors; every parent broadcasts until its children satisfy it."""

    # 1 counted flags kept over a silence twice, measured what is new by the leaves alone, and took "no issues" for missing;
    # 2 converged over an evaluator's no, failed calls, unsatisfied parents beneath the root, and the root's own rating and flags;
    # 3 kept the evaluation from a synthesis that satisfied, showed re-executed seats nothing of theirs, and coordinated by remarks
    version: ClassVar[int] = 4
    notes: ClassVar[Mapping[str, type[BaseModel]]] = NOTES
    report: ClassVar[type[BroadcastReport]] = BroadcastReport
    closing: ClassVar[bool] = True

    async def run(self, session: Session) -> BroadcastReport:
        run, family = BroadcastRun(), Family(session, self)
        limit = self.max_iterations if session.limits.steps is None else min(self.max_iterations, session.limits.steps)
        stop = StopReason.EXHAUSTED_STEPS
        for index in range(1, limit + 1):
            before = run.iterations[-1] if run.iterations else None
            iteration = await family.iterate(ROOT, (index,), None, before, before.children if before else ())
            run.iterations.append(iteration)
            if not _is_quorum(session, run.iterations[0]):
                return await conclude(session, self, run, StopReason.FAILED)
            run.check = iteration.check
            session.record_check(iteration.check, index)
            if iteration.limited:
                break
            if iteration.check.met:
                stop = StopReason.CONVERGED
                break
        if run.iterations:
            await self._synthesize(family, run)
            for n in range(1, self.strange_loops + 1 if run.closing else 1):
                await self._strange_loop(family, run, n)
            await self._self_reflect(family, run)
            if run.closing is None:
                stop = StopReason.FAILED
            elif run.unsatisfied:
                stop = StopReason.EXHAUSTED_STEPS
            stop = exhaustion(run.all_failures) or stop
        return await conclude(session, self, run, stop)

    async def _synthesize(self, family: Family, run: BroadcastRun) -> None:
        """The root combines its children's texts. This call and `self_reflect` may draw on the reserve."""
        goal = last_goal(run.iterations)
        async with family.session.phase("synthesize", len(run.iterations)):
            reply = await family.session.ask(
                ROOT,
                family.asks.synthesis_prompt(ROOT, run.iterations, root=True, goal=goal),
                key=f"synthesize/{ROOT}",
                returns=RootSynthesis,
                closing=True,
            )
        if isinstance(reply, Failure):
            run.failures.append(reply)
        else:
            run.closing = run.synthesis = reply
            run.declared = family.publisher.publish_conclusion(reply)

    async def _strange_loop(self, family: Family, run: BroadcastRun, n: int) -> None:
        """The root reviews its answer. Domain instructions appear in the last review only."""
        domain = self.domain_instructions if n == self.strange_loops else ""
        async with family.session.phase("strange_loop", n):
            reply = await family.session.ask(
                ROOT,
                family.asks.review_prompt(run, "strange_loop", domain=domain),
                key=f"strange_loop-{n}/{ROOT}",
                returns=RootSynthesis,
            )
        run.add_review(reply, domain=bool(domain))
        if isinstance(reply, Reply):
            run.declared = family.publisher.publish_conclusion(reply) or run.declared

    async def _self_reflect(self, family: Family, run: BroadcastRun) -> None:
        """The root judges its answer. If it gives a revised text, that is the answer."""
        if run.closing is None:
            return
        async with family.session.phase("self_reflect", len(run.iterations)):
            reply = await family.session.ask(
                ROOT,
                family.asks.review_prompt(run, "self_reflect", root=True, ballot=False),
                key=f"self_reflect/{ROOT}",
                returns=RootReflection,
                closing=True,
            )
        if isinstance(reply, Failure):
            run.failures.append(reply)
        execution = AgentExecution(ROOT, (), run.synthesis, text=run.closing)
        run.root = execution.reflected(reply, family.publisher.publish(execution, reply))
        run.closing = run.root.text


def _is_quorum(session: Session, first: IterationResult) -> bool:
    """Return whether enough leaves answered when they were first asked."""
    leaves = first_executions(first, session.topology.leaves)
    return session.quorum([(execution.response, execution.failures) for execution in leaves])


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
        stated = broadcast if isinstance(broadcast, Reply) else None
        if stated is not None:
            session.note("goal", GoalBroadcast(node=agent, path=path, text=stated.text))
        calls = settings.need(session.topology.levels[agent] + 1)
        async with session.phase("execute_children", path[0]):
            runs = await session.gather(
                [
                    session.procedure(self.execute(child, path, stated, by_agent.get(child)), calls=calls)
                    for child in session.topology.children[agent]
                ]
            )
        rounds, runs = await self._coordinate(path, stated, runs)
        runs = [run.after(by_agent.get(run.agent)) for run in runs]
        evaluation: Reply[Evaluation] | Failure | None = None
        if any(run.text for run in runs):
            async with session.phase("evaluate", path[0]):
                evaluation = await self.asks.evaluate(agent, path, stated, runs)
        failures = [reply for reply in (broadcast, evaluation) if isinstance(reply, Failure)]
        judged = evaluation if isinstance(evaluation, Reply) else None
        threshold = settings.satisfaction_threshold
        unmet = shortfalls(runs, threshold, settings.critical_flags, judged, failures)
        result = IterationResult(
            agent,
            path,
            stated,
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
        return run.reflected(reply, self.publisher.publish(run, reply))

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
                if run.agent in by_agent:
                    reply = by_agent[run.agent]
                    runs[n] = run.coordinated(reply, self.publisher.publish(run, reply))
        return self.settings.coordination_rounds, runs
