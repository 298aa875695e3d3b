"""Engine CPU per call: a zero-latency scripted model, calls side by side, the durable journal on."""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path

import graphs
from rows import Results, Row, Series
from workload import OneGather, Ran, emergence, model_cpu, run

GROUP = "cost"
TARGET = 0.25
Runner = Callable[[Path], Awaitable[Ran]]


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    rounds = 2 if quick else 3
    beside: dict[str, Runner] = {}
    fan: dict[str, Runner] = {}
    if graphs.installed():
        beside = {
            "LangGraph, a node per call, SQLite checkpointer": lambda p: graphs.run_tree(10, 3, rounds, p),
            "LangGraph, a node per call, no checkpointer": lambda p: graphs.run_tree(10, 3, rounds, None),
            "LangGraph, a node per phase, SQLite checkpointer": lambda p: graphs.run_tree(
                10, 3, rounds, p, phases=True
            ),
        }
        fan = {
            "LangGraph, a node per call, SQLite checkpointer": lambda p: graphs.run_gather(100, p),
            "LangGraph, a node per call, no checkpointer": lambda p: graphs.run_gather(100, None),
        }
    else:
        results.skip(graphs.MISSING)
    tree = emergence(10, 3, rounds)
    results.add(
        [
            asyncio.run(
                _row(f"emergence, 100 leaves, {rounds} rounds", lambda p: run(tree, p), beside, directory, repeats)
            ),
            asyncio.run(_row("one gather of 100", lambda p: run(OneGather(), p), fan, directory, 3 * repeats)),
        ]
    )


async def _row(name: str, ours: Runner, beside: dict[str, Runner], directory: Path, repeats: int) -> Row:
    """Ours and the others in turn, so that each repeat compares what ran in the same seconds; the first one warms up."""
    found: dict[str, list[float]] = {"consilience": [], **{other: [] for other in beside}}
    writer: list[float] = []
    calls = 0
    for n in range(repeats + 1):
        for what, runner in {"consilience": ours, **beside}.items():
            path = directory / f"cost-{name[:3]}-{n}-{len(found[what])}-{abs(hash(what))}.db"
            gc.collect()
            ran = await runner(path)
            alone = await model_cpu(ran.requests)
            if n == 0:
                continue
            found[what].append((ran.cpu - alone) / ran.calls * 1000)
            if what == "consilience":
                calls = ran.calls
                writer.append(ran.writer / ran.calls * 1000)
    return Row(
        GROUP,
        f"CPU per call: {name}",
        "ms",
        Series("consilience", tuple(found["consilience"])),
        TARGET,
        tuple(Series(other, tuple(found[other])) for other in beside),
        (
            f"{calls} calls a run, its start and report included; {statistics.median(writer):.3f} ms of it in the writer thread",
        ),
    )
