"""Engine CPU per call: a zero-latency scripted model, calls side by side, the durable journal on."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import chats
import executors
import framework
import graphs
import steps
from rows import OURS, Results, Row, Series
from talk import gather_steps, tree_steps
from workload import InTurn, OneGather, Ran, emergence, fresh, model_cpu, run, settle_memory

GROUP = "cost"
CHAIN = 300
"""Calls, each shown what the one before said."""
AT_LEAST = {
    ("tree", graphs.NODES): 4.0,
    ("tree", graphs.TASKS): 3.0,
    ("gather", graphs.NODES): 4.0,
    ("chain", graphs.TASKS): 2.0,
}
"""How many times our CPU others should need."""
Runner = Callable[[Path], Awaitable[Ran]]


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    rounds = 2 if quick else 3
    messages = 100 if quick else 200
    peers: dict[str, dict[str, Runner]] = {"tree": {}, "gather": {}, "chain": {}, "chat": {}}
    if graphs.installed():
        peers["tree"] |= {
            graphs.NODES: lambda path: graphs.run_tree(10, 3, rounds, path),
            graphs.TASKS: lambda path: graphs.run_tasks(tree_steps(10, 3), rounds, path),
            graphs.PHASES: lambda path: graphs.run_tree(10, 3, rounds, path, phases=True),
            graphs.BARE: lambda path: graphs.run_tree(10, 3, rounds, None),
        }
        peers["gather"] |= {
            graphs.NODES: lambda path: graphs.run_gather(100, path),
            graphs.TASKS: lambda path: graphs.run_tasks(gather_steps(100), 1, path),
            graphs.BARE: lambda path: graphs.run_gather(100, None),
        }
        peers["chain"] |= {graphs.TASKS: lambda path: graphs.run_chain(CHAIN, path)}
    else:
        results.skip(graphs.MISSING)
    if executors.installed():
        peers["tree"][executors.SUPERSTEPS] = lambda path: executors.run_tree(10, 3, rounds, path)
        peers["gather"][executors.SUPERSTEPS] = lambda path: executors.run_gather(100, path)
        peers["gather"][executors.STEPS] = lambda path: executors.run_steps(gather_steps(100), 1, path)
    else:
        results.skip(executors.MISSING)
    if steps.installed():
        peers["gather"][steps.STEPS] = lambda path: steps.run_gather(100, path)
    else:
        results.skip(steps.MISSING)
    if framework.installed():
        peers["tree"][framework.RUNS] = lambda path: framework.run_tree(10, 3, rounds)
        peers["gather"][framework.RUNS] = lambda path: framework.run_gather(100)
    else:
        results.skip(framework.MISSING)
    if framework.installed() and steps.installed():
        peers["tree"][framework.DURABLE] = lambda path: framework.run_durable_tree(10, 3, rounds, path)
        peers["gather"][framework.DURABLE] = lambda path: framework.run_durable_gather(100, path)
    if chats.installed():
        peers["chat"][chats.CHAT] = lambda path: _chat(messages)
    else:
        results.skip(chats.MISSING)
    tree = emergence(10, 3, rounds)
    deep = asyncio.run(_measured(lambda path: run(tree, path), peers["tree"], directory, repeats))
    wide = asyncio.run(_measured(lambda path: run(OneGather(), path), peers["gather"], directory, 2 * repeats))
    single = InTurn(messages=CHAIN, shown=1)
    alone = asyncio.run(_measured(lambda path: run(single, path), peers["chain"], directory, repeats))
    long = asyncio.run(_measured(lambda path: run(InTurn(messages=messages), path), peers["chat"], directory, repeats))
    results.add(
        [
            _cpu(f"CPU per call: emergence, 100 leaves, {rounds} rounds", deep, "tree"),
            _cpu("CPU per call: one gather of 100", wide, "gather"),
            _wall("wall per call: one gather of 100", wide),
            _cpu(f"CPU per call: a chain of {CHAIN}", alone, "chain"),
            _wall(f"wall per call: a chain of {CHAIN}", alone),
            _cpu(f"CPU per call: 12 agents in turn, {messages} messages", long, "chat"),
        ]
    )


async def _chat(messages: int) -> Ran:
    return (await chats.run(12, messages)).ran


@dataclass
class Measured:
    """Milliseconds a call, by who ran it, repeat by repeat; `cold` is our very first run, `writer` our writer thread's share."""

    cpu: dict[str, list[float]]
    wall: dict[str, list[float]]
    calls: int = 0
    cold: float = 0.0
    writer: list[float] = field(default_factory=list)


async def _measured(ours: Runner, beside: dict[str, Runner], directory: Path, repeats: int) -> Measured:
    """Ours and the others in turn, so that each repeat compares what ran in the same seconds; the first one warms up."""
    everybody = {OURS: ours, **beside}
    times = Measured({name: [] for name in everybody}, {name: [] for name in everybody})
    for n in range(repeats + 1):
        for name, runner in everybody.items():
            settle_memory()
            ran = await runner(fresh(directory))
            own = (ran.cpu - await model_cpu(ran.requests)) / ran.calls * 1000
            if n == 0:
                times.cold = times.cold or own
                continue
            times.cpu[name].append(own)
            times.wall[name].append(ran.wall / ran.calls * 1000)
            if name == OURS:
                times.calls = ran.calls
                times.writer.append(ran.writer / ran.calls * 1000)
    return times


def _cpu(name: str, measured: Measured, load: str) -> Row:
    note = (
        f"{measured.calls} calls a run, its start and report included; {statistics.median(measured.writer):.3f} ms of it in the "
        f"writer thread; the first run in the process took {measured.cold:.3f} ms"
    )
    return _row(name, measured.cpu, load, (note,))


def _wall(name: str, measured: Measured) -> Row:
    """Only those who write: what keeps nothing waits for nothing."""
    return _row(name, {who: figures for who, figures in measured.wall.items() if "keeps nothing" not in who})


def _row(name: str, times: dict[str, list[float]], load: str = "", notes: tuple[str, ...] = ()) -> Row:
    beside = tuple(
        Series(who, tuple(figures), at_least=AT_LEAST.get((load, who))) for who, figures in times.items() if who != OURS
    )
    return Row(GROUP, name, "ms", Series(OURS, tuple(times[OURS])), beside=beside, notes=notes)
