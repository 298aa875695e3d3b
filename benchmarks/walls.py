"""Wall time over the longest chain of dependent calls: how much of the waiting is our own."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import consilience
import graphs
from chain import Chain
from consilience.domain.topology import tree
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from rows import OURS, Results, Row, Series
from workload import TASK, Latency, emergence, fixed, fresh, log_normal, reply, run

GROUP = "wall"
CHILDREN, DEPTH, ROUNDS = 3, 3, 2
BARE = "the same sleeps in bare asyncio: no engine, no journal"
TARGETS = {0.2: 1.05, 0.05: 1.08}
SESSIONS = 100
TICK = 0.005
MAX_LAG_MS = 30


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
    results.add([asyncio.run(_side_by_side(repeats, directory))])


async def _side_by_side(repeats: int, directory: Path) -> Row:
    """How late a timer of 5 ms rings on the loop while the sessions run: what any other work on that loop waits for.

    They begin one after the other within a second, and each has latencies of its own.
    """
    lags: list[float] = []
    worst = 0.0
    for _ in range(max(2, repeats // 2) + 1):  # the first one warms up
        store, late = SqliteStore(fresh(directory)), list[float]()
        watch = asyncio.create_task(_watch(late))
        try:
            await asyncio.gather(*(_one_of_many(n, store) for n in range(SESSIONS)))
        finally:
            watch.cancel()
            store.close()
        lags.append(1000 * statistics.quantiles(late, n=100)[-1])
        worst = max(worst, 1000 * max(late))
    return Row(
        GROUP,
        f"loop lag, 99th percentile: {SESSIONS} sessions side by side, median call 1 s",
        "ms",
        Series(OURS, tuple(lags[1:])),
        MAX_LAG_MS,
        notes=(
            f"a tree of 3×3, {ROUNDS} rounds each, on one loop and one journal; the longest lag was {worst:.0f} ms",
        ),
    )


async def _one_of_many(n: int, store: SqliteStore) -> None:
    await asyncio.sleep(n / SESSIONS)
    model = ScriptedModel(reply, log_normal(1.0, n))
    protocol = emergence(CHILDREN, DEPTH, ROUNDS)
    await consilience.deliberate(TASK, protocol, model=model, store=store, session=f"s{n}")


async def _watch(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK)
        late.append(time.perf_counter() - began - TICK)


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
