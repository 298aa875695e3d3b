"""What a journal takes: bytes beyond content, growth, and the time to go on from a long one or to run it again."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import graphs
from consilience.engine import runner
from consilience.engine.faults import Crash, Fault
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from rows import Results, Row, Series, exponent
from workload import TASK, emergence, fixed, reply, run

GROUP = "journal"
EVENTS = 10_000


@dataclass(frozen=True)
class Size:
    """A journal file after its log was merged in. `content` are the bytes of distinct texts, `report` the report's among them."""

    calls: int
    cpu: float
    file: int
    content: int
    report: int


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    if not graphs.installed():
        results.skip(graphs.MISSING)
    rounds = (2, 4, 8, 16) if quick else (2, 5, 10, 20, 40, 80)
    sizes = [asyncio.run(_size(n, directory)) for n in rounds]
    graph = [asyncio.run(_graph_size(n, directory)) for n in rounds] if graphs.installed() else []
    results.add(_growth(sizes, graph))
    results.add([asyncio.run(_resume(directory, max(2, repeats // 2), 2_000 if quick else EVENTS))])
    results.add([asyncio.run(_replay(directory, repeats, 0.2 if quick else 1.0))])


async def _size(rounds: int, directory: Path) -> Size:
    path = directory / f"size-{rounds}.db"
    ran = await run(emergence(3, 3, rounds), path)
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        lengths = [row[0] for row in db.execute("SELECT LENGTH(CAST(body AS BLOB)) FROM texts")]
    finally:
        db.close()
    report = max(lengths)  # nothing else holds every text once more
    return Size(ran.calls, ran.cpu, path.stat().st_size, sum(lengths), report)


async def _graph_size(rounds: int, directory: Path) -> Size:
    path = directory / f"size-{rounds}.graph.db"
    ran = await graphs.run_tree(3, 3, rounds, path)
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()
    return Size(ran.calls, ran.cpu, path.stat().st_size, 0, 0)


def _growth(sizes: list[Size], graph: list[Size]) -> list[Row]:
    calls = [float(size.calls) for size in sizes]
    last = sizes[-1]
    beyond = Series("consilience", tuple((s.file - s.content) / s.calls for s in sizes[-3:]))
    whole = Series("consilience", (last.file / last.calls,))
    theirs = (Series(f"{_GRAPH} file", (graph[-1].file / graph[-1].calls,)),) if graph else ()
    grown = Series("consilience", (exponent(calls, [float(s.file) for s in sizes]),))
    their_growth = (Series(f"{_GRAPH} file", (exponent(calls, [float(s.file) for s in graph]),)),) if graph else ()
    cpu = Series("consilience", (exponent(calls[1:], [s.cpu for s in sizes[1:]]),))
    their_cpu = (Series(_GRAPH, (exponent(calls[1:], [s.cpu for s in graph[1:]]),)),) if graph else ()
    span = f"{sizes[0].calls} to {last.calls} calls of a tree of 3×3 in {len(sizes)} sizes"
    report = last.report / last.calls
    return [
        Row(
            GROUP,
            "bytes per call beyond content",
            "B",
            beyond,
            500,
            notes=(
                f"the three largest runs; content is every distinct text once, {last.content / last.calls:.0f} B a call, "
                f"the report's {report:.0f} B among it",
            ),
        ),
        Row(GROUP, f"file bytes per call at {last.calls} calls", "B", whole, None, theirs),
        Row(GROUP, "growth of the file, exponent over calls", "", grown, 1.1, their_growth, (span,)),
        Row(GROUP, "growth of CPU, exponent over calls", "", cpu, 1.1, their_cpu),
    ]


_GRAPH = "LangGraph, a node per call, SQLite checkpointer"


async def _resume(directory: Path, repeats: int, events: int) -> Row:
    """Killed before its report was committed, and gone on with: read, matched, run to the end."""
    per_round = 300  # events of a round of 100 leaves, published objections included
    protocol = emergence(10, 3, max(2, events // per_round))
    walls: list[float] = []
    count = 0
    for n in range(repeats):
        path = directory / f"resume-{n}.db"
        store = SqliteStore(path)
        options = Options(faults=Fault("before_finish").hit)
        with suppress(Crash):  # the store goes with it, as with a killed process
            await runner.start(TASK, protocol, models=ScriptedModel(reply), store=store, session="s", options=options)
        model = ScriptedModel(reply)
        began = time.perf_counter()
        store = SqliteStore(path)
        try:
            await runner.resume("s", store=store, models=model)
            walls.append(time.perf_counter() - began)
            count = len(store.read("s"))
        finally:
            store.close()
        if model.requests:
            raise RuntimeError(f"the resumed run asked for {len(model.requests)} calls that were recorded")
    return Row(
        GROUP, f"resume of a journal of {count:,} events", "s", Series("consilience", tuple(walls)), count / EVENTS,
        notes=("emergence with 100 leaves; the target is 1 s for 10,000 events",),
    )  # fmt: skip


async def _replay(directory: Path, repeats: int, latency: float) -> Row:
    path = directory / "replay.db"
    ran = await run(emergence(3, 3, 2), path, fixed(latency))
    walls: list[float] = []
    for _ in range(repeats):
        store = SqliteStore(path)
        try:
            began = time.perf_counter()
            await runner.replay(ran.session, store=store)
            walls.append(time.perf_counter() - began)
        finally:
            store.close()
    faster = Series("consilience", tuple(ran.wall / wall for wall in walls), more_is_better=True)
    return Row(
        GROUP,
        "replay against the run",
        "× faster",
        faster,
        1000 * latency,
        notes=(
            f"{ran.calls} calls of {latency:g} s, tree 3×3, 2 rounds: run {ran.wall:.2f} s, replay "
            f"{statistics.median(walls) * 1000:.1f} ms; the target is 1000 × at calls of 1 s",
        ),
    )
