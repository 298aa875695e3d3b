"""Wall time over the longest chain of dependent calls: how much of the waiting is our own."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import consilience
import graphs
from chain import Chain
from consilience.domain.topology import tree
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from rows import OURS, Results, Row, Series
from talk import tree_steps
from workload import TASK, Latency, emergence, fixed, fresh, log_normal, reply, run, settle_memory

GROUP = "wall"
CHILDREN, DEPTH, ROUNDS = 3, 3, 2
BARE = "the same sleeps in bare asyncio: no engine, no journal"
TARGETS = {0.2: 1.05, 0.05: 1.08}
SESSIONS = 300
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
    results.add(
        [
            asyncio.run(
                _side_by_side(
                    1 if quick else max(2, repeats // 2), 60 if quick else SESSIONS, 0.1 if quick else 1.0, directory
                )
            )
        ]
    )


async def _side_by_side(repeats: int, sessions: int, median: float, directory: Path) -> Row:
    """How late a timer of 5 ms rings on the loop while the sessions run: what any other work on that loop waits for.

    They begin one after the other within a second, and each has latencies of its own.
    """
    lags: dict[str, list[float]] = {OURS: []}
    worst: dict[str, float] = {}
    ways: dict[str, Callable[[Path, list[ScriptedModel]], Awaitable[object]]] = {OURS: _ours_side_by_side}
    if graphs.installed():
        ways[graphs.TASKS] = _tasks_side_by_side
    for n in range(repeats + 1):
        for name, way in ways.items():
            if n == 0:
                await way(fresh(directory), _drawn(5, 0.01))  # warms up
                continue
            settle_memory()
            late: list[float] = []
            watch = asyncio.create_task(_watch(late))
            try:
                await way(fresh(directory), _drawn(sessions, median))
            finally:
                watch.cancel()
            lags.setdefault(name, []).append(1000 * statistics.quantiles(late, n=100)[-1])
            worst[name] = max(worst.get(name, 0.0), 1000 * max(late))
    longest = ", ".join(f"{name}: {lag:.0f} ms" for name, lag in worst.items())
    return Row(
        GROUP,
        f"loop lag, 99th percentile: {sessions} sessions side by side, median call {median:g} s",
        "ms",
        Series(OURS, tuple(lags.pop(OURS))),
        MAX_LAG_MS,
        tuple(Series(name, tuple(figures), at_least=1) for name, figures in lags.items()),
        (f"a tree of 3×3, {ROUNDS} rounds each, on one loop and one file; longest lag: {longest}",),
    )


def _drawn(sessions: int, median: float) -> list[ScriptedModel]:
    return [ScriptedModel(reply, log_normal(median, n)) for n in range(sessions)]


async def _ours_side_by_side(path: Path, models: list[ScriptedModel]) -> None:
    store = SqliteStore(path)

    async def one(n: int, model: ScriptedModel) -> None:
        await asyncio.sleep(n / len(models))
        await consilience.deliberate(
            TASK, emergence(CHILDREN, DEPTH, ROUNDS), model=model, store=store, session=f"s{n}"
        )

    try:
        await asyncio.gather(*(one(n, model) for n, model in enumerate(models)))
    finally:
        store.close()


async def _tasks_side_by_side(path: Path, models: list[ScriptedModel]) -> None:
    await graphs.run_side_by_side(tree_steps(CHILDREN, DEPTH), ROUNDS, path, models, 1.0)


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
