"""The same tree and the same fan-out written straight in LangGraph, as its users do, for what runs beside ours.

A call is a node of its own, fanned out with `Send` and joined before the next phase, so that the checkpointer keeps every
finished call. `phases` instead makes one node of a phase, which gathers its calls inside: cheaper, and a crash loses the
phase. Prompts are plain string formatting, replies are validated by the same pydantic types; nothing else of ours is in it.
"""

from __future__ import annotations

import asyncio
import operator
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypedDict

from consilience.domain.topology import Topology, tree
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence.replies import LeafReply, PeerReply, RootReply
from workload import TASK, Latency, Ran, reply

ROOT = "L1N1"
NODES = "LangGraph, a node per call, SQLite checkpointer"
PHASES = "LangGraph, a node per phase, SQLite checkpointer"
BARE = "LangGraph, a node per call, no checkpointer: keeps nothing"
MISSING = "LangGraph is not installed (pip install --group bench); what runs beside ours is left out."


class Job(TypedDict):
    """One call: everything its prompt is made of, since a fanned-out node sees nothing else."""

    key: str
    agent: str
    texts: list[str]


class Talk(TypedDict):
    round: int
    said: Annotated[dict[str, str], operator.or_]


Work = Callable[[Job], Any]
Plan = Callable[[Talk], list[Job]]


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
    shape = tree(children, depth)
    model = ScriptedModel(reply, latency)
    async with checkpointer(path) as saver:
        graph = _phased(_steps(shape), rounds, _work(model), saver, split=not phases)
        return await _timed(graph, model, {"round": 0, "said": {}}, saver)


async def run_gather(size: int, path: Path | None) -> Ran:
    """One fan-out of `size` calls."""
    model = ScriptedModel(reply)

    def plan(state: Talk) -> list[Job]:
        return [Job(key=f"answer/A{i}", agent=f"A{i}", texts=[]) for i in range(1, size + 1)]

    async with checkpointer(path) as saver:
        graph = _phased([("answer", plan)], 1, _work(model), saver, split=True)
        return await _timed(graph, model, {"round": 0, "said": {}}, saver)


async def _timed(graph: Any, model: ScriptedModel, state: Talk, saver: Any) -> Ran:
    os.environ["LANGSMITH_TRACING"] = "false"
    config = {"configurable": {"thread_id": "bench"}, "recursion_limit": 100_000}
    wall, cpu = time.perf_counter(), time.process_time()
    await graph.ainvoke(state, config)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Ran(cpu, wall, 0.0, tuple(model.requests), "bench")


def _phased(steps: Sequence[tuple[str, Plan]], rounds: int, work: Work, saver: Any, *, split: bool) -> Any:
    """Phases one after the other, round after round: each a fan-out of nodes, or, not `split`, a node that gathers.

    Before every phase stands one node that joins the phase before and plans this one.
    """
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    builder: Any = StateGraph(Talk)
    joins = [f"before_{name}" for name, _ in steps]

    def gathering(plan: Plan) -> Callable[[Talk], Any]:
        async def node(state: Talk) -> dict[str, Any]:
            made = await asyncio.gather(*(work(job) for job in plan(state)))
            return {"said": {key: text for one in made for key, text in one["said"].items()}}

        return node

    def router(name: str, plan: Plan, after: str) -> Callable[[Talk], Any]:
        def route(state: Talk) -> Any:
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


def _next_round(state: Talk) -> dict[str, Any]:
    return {"round": state["round"] + 1}


def _nothing(state: Talk) -> dict[str, Any]:
    return {}


def _work(model: ScriptedModel) -> Work:
    async def call(job: Job) -> dict[str, Any]:
        quoted = "\n\n".join(f"<quote>\n{text}\n</quote>" for text in job["texts"])
        returns = _returns(job["key"])
        request = ModelRequest(
            agent=job["agent"],
            key=job["key"],
            system="Several people think about the same task, each from their own point of view.",
            user=f"# Task\n{TASK}\n\n{quoted}\n\nYou are {job['agent']}. Answer in two or three sentences.",
            returns=returns,
        )
        completion = await model.complete(request)
        text = returns.model_validate_json(completion.text).text if returns else completion.text
        return {"said": {job["key"]: text}}

    return call


def _returns(key: str) -> type[LeafReply] | type[PeerReply] | type[RootReply] | None:
    if "/leaf_respond/" in key:
        return LeafReply
    if key.endswith(f"/observe/{ROOT}"):
        return RootReply
    return PeerReply if "/lateral/" in key or "/observe/" in key else None


def _steps(shape: Topology) -> list[tuple[str, Plan]]:
    """Nudges, leaves, their lateral talk, then observation and lateral talk of every level up to the root."""
    by_level: dict[int, list[str]] = {}
    for agent in shape.agents:
        by_level.setdefault(shape.levels[agent], []).append(agent)
    deepest = max(by_level)
    steps: list[tuple[str, Plan]] = [
        ("leaf_respond", lambda s: [_leaf(shape, s, leaf) for leaf in shape.leaves]),
        ("lateral_leaves", lambda s: [_lateral(shape, s, leaf) for leaf in shape.leaves]),
    ]
    for level in range(deepest - 1, 0, -1):
        here = by_level[level]
        steps.append((f"observe_L{level}", lambda s, here=here: [_observe(shape, s, node) for node in here]))
        if len(here) > 1:
            steps.append((f"lateral_L{level}", lambda s, here=here: [_lateral(shape, s, node) for node in here]))
    inner = [agent for agent in shape.agents if shape.children[agent]]
    return [("signal_down", lambda s: [_signal(shape, s, n) for n in inner] if s["round"] > 1 else []), *steps]


def _leaf(shape: Topology, state: Talk, leaf: str) -> Job:
    key = f"round-{state['round']}/leaf_respond/{leaf}"
    (parent,) = shape.parents[leaf]
    before = [f"round-{state['round'] - 1}/{what}" for what in (f"lateral/{leaf}", f"signal/{parent}")]
    return Job(key=key, agent=leaf, texts=[state["said"][k] for k in before if k in state["said"]])


def _lateral(shape: Topology, state: Talk, agent: str) -> Job:
    first = "observe" if shape.children[agent] else "leaf_respond"
    peers = sorted((agent, *shape.siblings(agent)))
    texts = [state["said"][f"round-{state['round']}/{first}/{peer}"] for peer in peers]
    return Job(key=f"round-{state['round']}/lateral/{agent}", agent=agent, texts=texts)


def _observe(shape: Topology, state: Talk, node: str) -> Job:
    n = state["round"]
    keys = [f"round-{n}/lateral/{child}" for child in shape.children[node]]
    before = f"round-{n - 1}/observe/{node}"
    nudges = [f"round-{n - 1}/signal/{parent}" for parent in shape.parents.get(node, ())]
    texts = [state["said"][k] for k in (*keys, before, *nudges) if k in state["said"]]
    return Job(key=f"round-{n}/observe/{node}", agent=node, texts=texts)


def _signal(shape: Topology, state: Talk, node: str) -> Job:
    n = state["round"] - 1
    own = f"round-{n}/observe/{node}"
    keys = [own, *(f"round-{n}/lateral/{child}" for child in shape.children[node])]
    return Job(key=f"round-{n}/signal/{node}", agent=node, texts=[state["said"][k] for k in keys])
