"""The same tree and the same fan-out as workflows of Microsoft's agent-framework, with its own file checkpoints.

A call is an executor of its own. One planner sends the jobs of a phase to as many workers, side by side, and joins them. A
checkpoint is written after each superstep, so a crash loses the calls of a phase. `STEPS` is its functional API, whose checkpoint
after every call has all replies so far.
"""

# Without `from __future__ import annotations`: an executor's types are read from the annotations of its handlers.

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from consilience.models.scripted import ScriptedModel
from talk import Job, Steps, Talk, gather_steps, in_phases, last_rounds, request, tree_steps, validated
from workload import Ran, Resumed, interrupt, reply, resume, timed

SUPERSTEPS = "agent-framework, an executor per call, a file checkpoint per phase"
STEPS = "agent-framework functional API, a step per call, file checkpoints"
MISSING = "agent-framework is not installed (pip install --group bench); its workflows are left out."
NAME = "bench"


def installed() -> bool:
    return find_spec("agent_framework") is not None


async def run_tree(children: int, depth: int, rounds: int, path: Path) -> Ran:
    """Building the workflow is not counted."""
    model = ScriptedModel(reply)
    workflow = _workflow(tree_steps(children, depth), rounds, model, path)
    return await timed(model, lambda: workflow.run("begin"))


async def run_gather(size: int, path: Path) -> Ran:
    model = ScriptedModel(reply)
    workflow = _workflow(gather_steps(size), 1, model, path)
    return await timed(model, lambda: workflow.run("begin"))


async def run_steps(steps: Steps, rounds: int, path: Path) -> Ran:
    """The phases as a workflow of the functional API, gathered in plain Python."""
    from agent_framework import FileCheckpointStorage, step, workflow

    model = ScriptedModel(reply)

    @step(replay_key=lambda job: str(job["key"]))
    async def call(job: Job) -> str:
        return validated(job, (await model.complete(request(job))).text)

    @workflow(name=NAME)
    async def flow(_: str) -> None:
        await in_phases(steps, rounds, call)

    built = flow.build(checkpoint_storage=FileCheckpointStorage(path))
    return await timed(model, lambda: built.run("begin"))


async def resume_tree(children: int, depth: int, rounds: int, last: str, path: Path) -> Resumed:
    """Break off at the call `last`, and go on from the latest checkpoint."""
    from agent_framework import FileCheckpointStorage

    steps = tree_steps(children, depth)
    await interrupt(last, lambda model: _workflow(steps, rounds, model, path).run("begin"))

    async def go_on(model: ScriptedModel) -> None:
        latest = await FileCheckpointStorage(path).get_latest(workflow_name=NAME)
        assert latest is not None
        await _workflow(steps, rounds, model, path).run(checkpoint_id=latest.checkpoint_id)

    return await resume(go_on)


def _workflow(steps: Steps, rounds: int, model: ScriptedModel, path: Path) -> Any:
    from agent_framework import FileCheckpointStorage, WorkflowBuilder

    planner_class, worker_class = _executors()
    planner = planner_class(steps, rounds)
    largest = max(len(plan(planner.talk | {"round": 2, "said": _Anything()})) for _, plan in steps)
    workers = [worker_class(f"W{n}", n, model) for n in range(largest)]
    storage = FileCheckpointStorage(path)
    builder = WorkflowBuilder(1_000_000, NAME, start_executor=planner, checkpoint_storage=storage)
    builder.add_multi_selection_edge_group(planner, workers, lambda jobs, ids: ids[: len(jobs)])
    for worker in workers:
        builder.add_edge(worker, planner)
    return builder.build()


class _Anything(dict[str, str]):
    """Has a text under every key."""

    def __missing__(self, key: str) -> str:
        return ""


@cache
def _executors() -> tuple[Any, Any]:
    from agent_framework import Executor, WorkflowContext, handler

    class Planner(Executor):
        """Plans a phase when the one before has been joined."""

        def __init__(self, steps: Steps, rounds: int) -> None:
            super().__init__("planner")
            self.steps, self.rounds = steps, rounds
            self.talk: Talk = {"round": 1, "said": {}}
            self.step, self.awaited = 0, 0

        @handler
        async def begin(self, _: str, ctx: WorkflowContext[list[Any]]) -> None:
            await self._next_phase(ctx)

        @handler
        async def join(self, said: dict[str, str], ctx: WorkflowContext[list[Any]]) -> None:
            self.talk["said"] = last_rounds(self.talk["said"], said)
            self.awaited -= 1
            if not self.awaited:
                await self._next_phase(ctx)

        async def _next_phase(self, ctx: Any) -> None:
            while self.talk["round"] <= self.rounds:
                if self.step == len(self.steps):
                    self.step, self.talk["round"] = 0, self.talk["round"] + 1
                    continue
                jobs = self.steps[self.step][1](self.talk)
                self.step += 1
                if jobs:
                    self.awaited = len(jobs)
                    await ctx.send_message(jobs)
                    return

        async def on_checkpoint_save(self) -> dict[str, Any]:
            return {"talk": self.talk, "step": self.step, "awaited": self.awaited}

        async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
            self.talk, self.step, self.awaited = state["talk"], state["step"], state["awaited"]

    class Worker(Executor):
        def __init__(self, id: str, number: int, model: ScriptedModel) -> None:
            super().__init__(id)
            self.number, self.model = number, model

        @handler
        async def work(self, jobs: list[Any], ctx: WorkflowContext[dict[str, str]]) -> None:
            job = jobs[self.number]
            completion = await self.model.complete(request(job))
            await ctx.send_message({job["key"]: validated(job, completion.text)})

    return Planner, Worker
