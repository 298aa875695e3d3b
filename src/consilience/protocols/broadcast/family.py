"""A node and its children: goal down, texts side by side, coordination among siblings, evaluation, and again if not satisfied.

The natural form is recursive and has no barriers: a parent goes on when its own children are ready. Branches read what
they were passed and return what they made (`executions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols.broadcast.asks import Asks, Path
from consilience.protocols.broadcast.executions import Execution, IterationResult, heard, satisfaction, shortfalls
from consilience.protocols.broadcast.notes import GoalBroadcast, IterationEnded
from consilience.protocols.broadcast.remarks import Publisher
from consilience.protocols.broadcast.replies import Goal
from consilience.protocols.broadcast.settings import MAX_QUOTED_FLAGS, BroadcastSettings


@dataclass(frozen=True)
class Family:
    """Makes all calls but those that close the run."""

    session: Session
    settings: BroadcastSettings

    @cached_property
    def asks(self) -> Asks:
        return Asks(self.session, self.settings)

    @cached_property
    def publisher(self) -> Publisher:
        return Publisher(self.session, self.settings, self.asks.labels)

    async def execute(self, agent: str, path: Path, goal: Reply[Goal] | None, before: Execution | None) -> Execution:
        """One execution of a node below the root, with all that is beneath it; `before` is the one before."""
        children = self.session.topology.children[agent]
        run = await (self._integrate if children else self._contribute)(agent, path, goal, before)
        return await self._self_reflect(run, goal) if run.text is not None else run

    async def _contribute(
        self, agent: str, path: Path, goal: Reply[Goal] | None, before: Execution | None
    ) -> Execution:
        previous = before.last_text if before is not None else None
        async with self.session.phase("execute", path[0]):
            return Execution(agent, path).responded(await self.asks.execute(agent, path, goal, previous))

    async def _integrate(self, agent: str, path: Path, goal: Reply[Goal] | None, before: Execution | None) -> Execution:
        """Iterations until satisfied or at an end, and the synthesis of the last texts."""
        iterations: list[IterationResult] = []
        earlier = before.beneath if before is not None else ()
        for index in range(1, self.settings.max_iterations + 1):
            last = iterations[-1] if iterations else None
            iterations.append(await self.iterate(agent, (*path, index), goal, last, earlier))
            earlier = iterations[-1].children
            if iterations[-1].check.met or iterations[-1].limited:
                break
        run = Execution(agent, path, iterations=tuple(iterations))
        if not heard(iterations):
            return run
        previous = before.last_text if before is not None else None
        async with self.session.phase("synthesize", path[0]):
            return run.responded(await self.asks.synthesize(agent, path, iterations, goal, previous))

    async def iterate(
        self,
        agent: str,
        path: Path,
        goal: Reply[Goal] | None,
        before: IterationResult | None,
        earlier: Sequence[Execution],
    ) -> IterationResult:
        """One iteration, `before` the one that did not satisfy and `earlier` the children's executions before, which may belong to
        another execution of their parent. If the broadcast fails, the children have the task alone."""
        session, settings, known = self.session, self.settings, {run.agent: run for run in earlier}
        failures: list[Failure] = []
        async with session.phase("re_broadcast" if before else "broadcast", path[0]):
            stated = _taken(await self.asks.broadcast(agent, path, goal, before), failures)
        if stated is not None:
            session.note("goal", GoalBroadcast(node=agent, path=path, text=stated.text))
        level = session.topology.levels[agent] + 1
        async with session.phase("execute_children", path[0]):
            runs = await session.gather(
                [
                    session.procedure(self.execute(child, path, stated, known.get(child)), calls=settings.need(level))
                    for child in session.topology.children[agent]
                ]
            )
        rounds, runs = await self._coordinate(path, stated, runs)
        runs = [run.after(known.get(run.agent)) for run in runs]
        evaluation = None
        if any(run.text for run in runs):
            async with session.phase("evaluate", path[0]):
                evaluation = _taken(await self.asks.evaluate(agent, path, stated, runs), failures)
        threshold = settings.satisfaction_threshold
        unmet = shortfalls(runs, threshold, settings.critical_flags, evaluation, failures)
        result = IterationResult(
            agent,
            path,
            stated,
            tuple(runs),
            rounds,
            satisfaction(runs, threshold, unmet),
            unmet,
            evaluation,
            tuple(failures),
            unquoted=max(sum(len(run.standing) for run in runs) - MAX_QUOTED_FLAGS, 0),
        )
        self._note(result)
        return result

    async def _coordinate(
        self, path: Path, goal: Reply[Goal] | None, runs: list[Execution]
    ) -> tuple[int, list[Execution]]:
        """Rounds in which siblings read each other, until there are no more or all are content; how many were held."""
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
            came = dict(zip((run.agent for run in speaking), replies, strict=True))
            for n, run in enumerate(runs):
                if run.agent in came:
                    reply = came[run.agent]
                    runs[n] = run.coordinated(reply, self.publisher.publish(run, reply))
        return self.settings.coordination_rounds, runs

    async def _self_reflect(self, run: Execution, goal: Reply[Goal] | None) -> Execution:
        """The author judges its own text; a revised text, if it gives one, goes up instead."""
        async with self.session.phase("self_reflect", run.path[0]):
            reply = await self.asks.self_reflect(run, goal)
        return run.reflected(reply, self.publisher.publish(run, reply))

    def _note(self, result: IterationResult) -> None:
        evaluation = result.evaluation
        self.session.note(
            "iteration",
            IterationEnded(
                node=result.agent,
                path=result.path,
                ratings={child.agent: child.rating for child in result.children},
                mean=result.check.score,
                coordination_rounds=result.rounds,
                flags=tuple(quote.id for quote in self.asks.flag_quotes(result.children)),
                feedback=evaluation.text if evaluation else "",
                said_satisfied=evaluation.value.satisfied if evaluation else None,
                satisfied=result.check.met,
                unmet="; ".join(result.unmet),
            ),
        )


def _taken(reply: Any, failures: list[Failure]) -> Any:
    """The reply; None if it failed, and the failure kept."""
    if isinstance(reply, Failure):
        failures.append(reply)
        return None
    return reply
