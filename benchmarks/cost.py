"""Engine CPU per call: a zero-latency scripted model, calls side by side, the durable journal on."""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path

import graphs
from rows import Results, Row, Series
from workload import OneGather, Ran, emergence, fresh, model_cpu, run

GROUP = "cost"
TARGET = 0.25
Runner = Callable[[Path], Awaitable[Ran]]


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    rounds = 2 if quick else 3
    beside: dict[str, Runner] = {}
    fan: dict[str, Runner] = {}
    if graphs.installed():
        beside = {
            graphs.NODES: lambda path: graphs.run_tree(10, 3, rounds, path),
            graphs.PHASES: lambda path: graphs.run_tree(10, 3, rounds, path, phases=True),
            graphs.BARE: lambda path: graphs.run_tree(10, 3, rounds, None),
        }
        fan = {
            graphs.NODES: lambda path: graphs.run_gather(100, path),
            graphs.BARE: lambda path: graphs.run_gather(100, None),
        }
    else:
        results.skip(graphs.MISSING)
    tree = emergence(10, 3, rounds)
    deep = asyncio.run(
        _row(f"emergence, 100 leaves, {rounds} rounds", lambda path: run(tree, path), beside, directory, repeats)
    )
    wide = asyncio.run(_row("one gather of 100", lambda path: run(OneGather(), path), fan, directory, 3 * repeats))
    results.add([deep, wide])


async def _row(name: str, ours: Runner, beside: dict[str, Runner], directory: Path, repeats: int) -> Row:
    """Ours and the others in turn, so that each repeat compares what ran in the same seconds; the first one warms up."""
    found: dict[str, list[float]] = {"consilience": [], **{other: [] for other in beside}}
    cold: dict[str, float] = {}
    writer: list[float] = []
    calls = 0
    for n in range(repeats + 1):
        for what, runner in {"consilience": ours, **beside}.items():
            gc.collect()
            ran = await runner(fresh(directory))
            own = (ran.cpu - await model_cpu(ran.requests)) / ran.calls * 1000
            if n == 0:
                cold.setdefault(what, own)
                continue
            found[what].append(own)
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
            f"{calls} calls a run, its start and report included; {statistics.median(writer):.3f} ms of it in the writer "
            f"thread; the first run in the process took {cold['consilience']:.3f} ms",
        ),
    )
