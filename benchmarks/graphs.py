"""The same tree and the same fan-out written straight in LangGraph, as its users do, for what runs beside ours.

A call is a node of its own, fanned out with `Send` and joined before the next phase, so that the checkpointer keeps every
finished call. `phases` instead makes one node of a phase, which gathers its calls inside: cheaper, and a crash loses the
phase. `tasks` are LangGraph's functional API, its closest form to ours: a workflow in plain Python whose calls are tasks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from consilience.models.scripted import ScriptedModel
from talk import Job, Plan, Steps, Talk, chain_job, gather_steps, in_phases, request, tree_steps, validated
from workload import Latency, Ran, Resumed, interrupt, reply, resume, timed

NODES = "LangGraph, a node per call, SQLite checkpointer"
PHASES = "LangGraph, a node per phase, SQLite checkpointer"
TASKS = "LangGraph functional API, a task per call, SQLite checkpointer"
BARE = "LangGraph, a node per call, no checkpointer: keeps nothing"
MISSING = "LangGraph is not installed (pip install --group bench); what runs beside ours is left out."


Work = Callable[[Job], Any]


def installed() -> bool:
    return find_spec("langgraph") is not None and find_spec("langgraph.checkpoint.sqlite") is not None


@asynccontextmanager
async def checkpointer(path: Path | None) -> AsyncIterator[Any]:
    """LangGraph's own SQLite checkpointer on a file, set up; None without a path."""
    if path is None:
        yield None
        return
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await saver.setup()
        yield saver


async def run_tree(
    children: int, depth: int, rounds: int, path: Path | None, latency: float | Latency = 0.0, *, phases: bool = False
) -> Ran:
    """Run the tree for so many rounds. Building and compiling the graph and opening the file are not counted."""
    model = ScriptedModel(reply, latency)
    async with checkpointer(path) as saver:
        graph = _phased(tree_steps(children, depth), rounds, _work(model), saver, split=not phases)
        return await _timed(graph, model, {"round": 0, "said": {}})


async def run_gather(size: int, path: Path | None) -> Ran:
    """One fan-out of `size` calls."""
    model = ScriptedModel(reply)
    async with checkpointer(path) as saver:
        graph = _phased(gather_steps(size), 1, _work(model), saver, split=True)
        return await _timed(graph, model, {"round": 0, "said": {}})


async def run_tasks(steps: Steps, rounds: int, path: Path) -> Ran:
    """The phases as a workflow of the functional API, gathered in plain Python."""

    return await _functional(lambda call: in_phases(steps, rounds, call), path)


async def run_chain(calls: int, path: Path) -> Ran:
    """Calls one after the other as tasks, each shown what the one before said."""

    async def flow(call: Work) -> None:
        texts: list[str] = []
        for n in range(calls):
            texts = [await call(chain_job(n, texts))]

    return await _functional(flow, path)


async def resume_tree(
    children: int, depth: int, rounds: int, last: str, path: Path, *, phases: bool = False
) -> Resumed:
    """Break off at the call `last`, and go on from the latest checkpoint. The graph is built anew, which is counted."""

    def built(model: ScriptedModel, saver: Any) -> Any:
        return _phased(tree_steps(children, depth), rounds, _work(model), saver, split=not phases)

    return await _resumed(built, {"round": 0, "said": {}}, last, path)


async def resume_tasks(steps: Steps, rounds: int, last: str, path: Path) -> Resumed:
    """The same for a workflow of the functional API, which is executed again with the results of its tasks."""

    def built(model: ScriptedModel, saver: Any) -> Any:
        return _workflow(lambda call: in_phases(steps, rounds, call), model, saver)

    return await _resumed(built, {}, last, path)


async def _resumed(built: Callable[[ScriptedModel, Any], Any], state: Any, last: str, path: Path) -> Resumed:
    async def run(model: ScriptedModel, state: Any) -> None:
        async with checkpointer(path) as saver:
            await built(model, saver).ainvoke(state, _config())

    await interrupt(last, lambda model: run(model, state))
    return await resume(lambda model: run(model, None))


async def run_side_by_side(
    steps: Steps, rounds: int, path: Path, models: Sequence[ScriptedModel], within: float
) -> None:
    """As many workflows of the functional API as there are models, on one checkpointer; they begin within so many seconds."""

    async def one(n: int, model: ScriptedModel, saver: Any) -> None:
        await asyncio.sleep(within * n / len(models))
        flow = _workflow(lambda call: in_phases(steps, rounds, call), model, saver)
        await flow.ainvoke({}, _config(f"s{n}"))

    async with checkpointer(path) as saver:
        await asyncio.gather(*(one(n, model, saver) for n, model in enumerate(models)))


async def _functional(flow: Callable[[Work], Awaitable[object]], path: Path) -> Ran:
    model = ScriptedModel(reply)
    async with checkpointer(path) as saver:
        return await _timed(_workflow(flow, model, saver), model, {})


def _workflow(flow: Callable[[Work], Awaitable[object]], model: ScriptedModel, saver: Any) -> Any:
    from langgraph.func import entrypoint, task

    @task
    async def call(job: Job) -> str:
        return validated(job, (await model.complete(request(job))).text)

    @entrypoint(checkpointer=saver)
    async def workflow(_: dict[str, Any]) -> None:
        await flow(call)

    return workflow


async def _timed(graph: Any, model: ScriptedModel, state: Any) -> Ran:
    return await timed(model, lambda: graph.ainvoke(state, _config()))


def _config(thread: str = "bench") -> dict[str, Any]:
    os.environ["LANGSMITH_TRACING"] = "false"
    return {"configurable": {"thread_id": thread}, "recursion_limit": 100_000}


def _phased(steps: Steps, rounds: int, work: Work, saver: Any, *, split: bool) -> Any:
    """Phases one after the other, round after round: each a fan-out of nodes, or, not `split`, a node that gathers.

    Before every phase stands one node that joins the phase before and plans this one. All are coroutines: what is not
    would be sent to a thread.
    """
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    builder: Any = StateGraph(Talk)
    joins = [f"before_{name}" for name, _ in steps]

    def gathering(plan: Plan) -> Callable[[Talk], Any]:
        async def node(state: Talk) -> dict[str, Any]:
            made = await asyncio.gather(*(work(job) for job in plan(state)))
            return {"said": {key: text for update in made for key, text in update["said"].items()}}

        return node

    def router(name: str, plan: Plan, after: str) -> Callable[[Talk], Any]:
        async def route(state: Talk) -> Any:
            if state["round"] > rounds:
                return END
            jobs = plan(state)
            if not jobs:
                return after
            return [Send(name, job) for job in jobs] if split else name

        return route

    for n, (name, plan) in enumerate(steps):
        after = joins[(n + 1) % len(steps)]
        builder.add_node(joins[n], _next_round if n == 0 else _nothing)
        builder.add_node(name, work if split else gathering(plan))
        builder.add_conditional_edges(joins[n], router(name, plan, after), [name, after, END])
        builder.add_edge(name, after)
    builder.add_edge(START, joins[0])
    return builder.compile(checkpointer=saver)


async def _next_round(state: Talk) -> dict[str, Any]:
    return {"round": state["round"] + 1}


async def _nothing(state: Talk) -> dict[str, Any]:
    return {}


def _work(model: ScriptedModel) -> Work:
    async def call(job: Job) -> dict[str, Any]:
        completion = await model.complete(request(job))
        return {"said": {job["key"]: validated(job, completion.text)}}

    return call
