"""Wall time over the longest chain of dependent calls: how much of the waiting is our own."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import graphs
from chain import Chain
from consilience.domain.topology import tree
from consilience.journal.sqlite import SqliteStore
from rows import OURS, Results, Row, Series
from workload import Latency, emergence, fixed, fresh, log_normal, run

GROUP = "wall"
CHILDREN, DEPTH, ROUNDS = 3, 3, 2
BARE = "the same sleeps in bare asyncio: no engine, no journal"
TARGETS = {0.2: 1.05, 0.05: 1.10}


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    if not graphs.installed():
        results.skip(graphs.MISSING)
    for seconds in (0.05,) if quick else (0.2, 0.05):
        same = [fixed(seconds)] * max(2, repeats // 2)
        drawn = [log_normal(seconds, seed) for seed in range(repeats)]
        ms = f"{seconds * 1000:g} ms"
        results.add(
            [
                asyncio.run(_row(f"fixed {ms}", seconds, same, directory)),
                asyncio.run(_row(f"log-normal, median {ms}", seconds, drawn, directory)),
            ]
        )


async def _row(name: str, seconds: float, latencies: list[Latency], directory: Path) -> Row:
    """Each repeat with latencies of its own; one run before, without any, warms up."""
    ours: list[float] = []
    beside: dict[str, list[float]] = {BARE: [], graphs.NODES: []}
    chains: list[float] = []
    walls: list[float] = []
    calls = 0
    await run(emergence(CHILDREN, DEPTH, ROUNDS), fresh(directory))
    for latency in latencies:
        path = fresh(directory)
        ran = await run(emergence(CHILDREN, DEPTH, ROUNDS), path, latency)
        took = {request.key: latency(request) for request in ran.requests}
        chain = _longest(took, path, ran.session)
        calls = ran.calls
        walls.append(ran.wall)
        chains.append(chain)
        ours.append(ran.wall / chain)
        beside[BARE].append(await _bare(took) / chain)
        if graphs.installed():
            other = await graphs.run_tree(CHILDREN, DEPTH, ROUNDS, fresh(directory), latency)
            beside[graphs.NODES].append(other.wall / chain)
    return Row(
        GROUP,
        f"wall ÷ longest chain: {name}",
        "×",
        Series(OURS, tuple(ours)),
        TARGETS[seconds],
        tuple(Series(what, tuple(figures)) for what, figures in beside.items() if figures),
        (
            f"{calls} calls, a tree of 3×3, {ROUNDS} rounds: longest chain {statistics.median(chains):.3f} s, "
            f"wall {statistics.median(walls):.3f} s",
        ),
    )


def _longest(took: dict[str, float], path: Path, session: str) -> float:
    """The chain from the scripted latencies themselves: what a timer oversleeps is counted against us."""
    chain = Chain(tree(CHILDREN, DEPTH))
    store = SqliteStore(path)
    try:
        chain.check(store, session)
    finally:
        store.close()
    return chain.longest(took, took.__getitem__)


async def _bare(took: dict[str, float]) -> float:
    began = time.perf_counter()
    await Chain(tree(CHILDREN, DEPTH)).sleep_through(took, took.__getitem__)
    return time.perf_counter() - began
