"""What a journal takes: bytes beyond content, growth, and the time to go on from a long one or to run it again."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import chats
import consilience
import executors
import graphs
import steps
from consilience.domain.events import CallCompleted, CallEvent, ReplyRejected, SessionFinished, SessionStarted
from consilience.engine.faults import Crash
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from rows import EXPONENT, OURS, Results, Row, Series, exponent
from talk import tree_steps
from workload import TASK, Resumed, emergence, fixed, fresh, reply, resume, run, settle_memory

GROUP = "journal"
EVENTS = 10_000
MESSAGES = 200
PER_ROUND = 264
"""Events of a round with 100 leaves: 231 calls, and the objections published."""
RESTORED = 0.35
"""Max share of the CPU of a replay that a resume may take to its first call."""


@dataclass(frozen=True)
class Size:
    """A journal file with its write-ahead log merged in. `content`: bytes of every distinct text, `report` of the report's."""

    calls: int
    cpu: float
    file: int
    content: int = 0
    report: int = 0


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    if not graphs.installed():
        results.skip(graphs.MISSING)
    rounds = (2, 4, 8, 16) if quick else (2, 5, 10, 20, 40)
    asyncio.run(_size(2, directory))  # warms up
    sizes = [asyncio.run(_size(n, directory)) for n in rounds]
    others = [asyncio.run(_graph_size(n, directory)) for n in rounds] if graphs.installed() else []
    results.add(_growth(sizes, others, _others_bytes(results, rounds[-1], directory)))
    results.add(asyncio.run(_resumes(results, directory, 1 if quick else max(2, repeats // 2), quick)))
    results.add([asyncio.run(_replay(directory, repeats, 0.2 if quick else 1.0))])


async def _size(rounds: int, directory: Path) -> Size:
    path = fresh(directory)
    ran = await run(emergence(3, 3, rounds), path)
    _merge(path)
    content, report = _content(path, ran.session)
    return Size(ran.calls, ran.cpu, path.stat().st_size, content, report)


async def _graph_size(rounds: int, directory: Path) -> Size:
    path = fresh(directory)
    ran = await graphs.run_tree(3, 3, rounds, path)
    _merge(path)
    return Size(ran.calls, ran.cpu, path.stat().st_size)


def _others_bytes(results: Results, rounds: int, directory: Path) -> tuple[Series, ...]:
    """Bytes a call of what others keep of as long a run."""
    series: list[Series] = []
    if graphs.installed():
        path = fresh(directory)
        ran = asyncio.run(graphs.run_tasks(tree_steps(3, 3), rounds, path))
        _merge(path)
        series.append(Series(graphs.TASKS, (path.stat().st_size / ran.calls,)))
    if steps.installed():
        path = fresh(directory)
        ran = asyncio.run(steps.run_tree(3, 3, rounds, path))
        series.append(Series(steps.STEPS, (path.stat().st_size / ran.calls,)))
    else:
        results.skip(steps.MISSING)
    if chats.installed():
        chat = asyncio.run(chats.run(12, MESSAGES, save=True))
        series.append(Series(f"{chats.SAVED}, {MESSAGES} messages of 12 agents", (chat.saved / MESSAGES,)))
    else:
        results.skip(chats.MISSING)
    return tuple(series)


def _merge(path: Path) -> None:
    db = sqlite3.connect(path)
    try:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()


def _content(path: Path, session: str) -> tuple[int, int]:
    """Bytes of the distinct texts a session holds, and of its report among them: replies, words of prompts, templates, task."""
    store = SqliteStore(path)
    ids: set[str] = set()
    report = 0
    try:
        for event in store.read(session):
            if isinstance(event, SessionStarted):
                ids |= {event.task, *event.templates.values(), *(source.text for source in event.sources)}
            elif isinstance(event, SessionFinished):
                ids.add(event.report)
                report = len(store.text(event.report).encode())
            elif isinstance(event, CallEvent):
                ids |= {part[2:] for part in store.prompt(event.prompt) if part.startswith("t:")}
            if isinstance(event, CallCompleted | ReplyRejected):
                ids.add(event.text)
        return sum(len(store.text(id).encode()) for id in ids), report
    finally:
        store.close()


def _growth(sizes: list[Size], others: list[Size], kept: tuple[Series, ...]) -> list[Row]:
    calls = [float(size.calls) for size in sizes]
    last = sizes[-1]
    ours = OURS
    each, report = last.content / last.calls, last.report / last.calls
    span = f"a tree of 3×3, in {len(sizes)} sizes"

    def beside(figure: float) -> tuple[Series, ...]:
        return (Series(graphs.NODES, (figure,)),)

    return [
        Row(
            GROUP,
            f"file bytes per call beyond content, {last.calls:,} calls",
            "B",
            Series(ours, ((last.file - last.content) / last.calls,)),
            500,
            notes=(
                f"content is every distinct text once, {each:.0f} B a call; the report's own {report:.0f} B are among it and "
                f"repeat what others hold: without them {(last.file - last.content + last.report) / last.calls:.0f} B beyond",
            ),
        ),
        Row(
            GROUP,
            f"file bytes per call, {last.calls:,} calls",
            "B",
            Series(ours, (last.file / last.calls,)),
            None,
            (*(beside(others[-1].file / last.calls) if others else ()), *kept),
        ),
        Row(
            GROUP,
            f"growth of the file: {sizes[0].calls} to {last.calls:,} calls",
            EXPONENT,
            Series(ours, (exponent(calls, [float(size.file) for size in sizes]),)),
            1.1,
            beside(exponent(calls, [float(size.file) for size in others])) if others else (),
            (span,),
        ),
        Row(
            GROUP,
            f"growth of CPU: {sizes[0].calls} to {last.calls:,} calls",
            EXPONENT,
            Series(ours, (exponent(calls, [size.cpu for size in sizes]),)),
            1.1,
            beside(exponent(calls, [size.cpu for size in others])) if others else (),
            (span,),
        ),
    ]


class _BreaksOff(ScriptedModel):
    """Ends the run, as a kill does, in the call `last`, once the calls that are made beside it are committed."""

    def __init__(self, store: SqliteStore, last: str, beside: set[str]) -> None:
        super().__init__(reply)
        self._store, self._last, self._missing = store, last, set(beside)

    async def complete(self, request: ModelRequest) -> Completion:
        if request.key != self._last:
            return await super().complete(request)
        read = 0
        while self._missing:
            await asyncio.sleep(0.01)
            for event in self._store.read("s", after=read):
                read = event.seq
                if isinstance(event, CallCompleted):
                    self._missing.discard(event.key)
        raise Crash


async def _interrupted(rounds: int, path: Path) -> None:
    """Break off in the last call of the last round; the store goes with it, as with a killed process."""
    store = SqliteStore(path)
    beside = {f"round-{rounds}/lateral/L2N{n}" for n in range(1, 11)}
    model = _BreaksOff(store, f"round-{rounds}/observe/L1N1", beside)
    with suppress(Crash):
        await consilience.deliberate(TASK, emergence(10, 3, rounds), model=model, store=store, session="s")


async def _resumed(path: Path) -> Resumed:
    async def go_on(model: ScriptedModel) -> None:
        store = SqliteStore(path)
        try:
            await consilience.resume("s", store=store, model=model)
        finally:
            store.close()

    return await resume(go_on)


async def _resumes(results: Results, directory: Path, repeats: int, quick: bool) -> list[Row]:
    """CPU to go on with a run that was killed before its last call: opened, read, restored; the call; the end."""
    rounds = (2_000 if quick else EVENTS) // PER_ROUND
    last = f"round-{rounds}/observe/L1N1"
    ways: dict[str, Callable[[Path], Awaitable[Resumed]]] = {}
    if graphs.installed():
        ways[graphs.TASKS] = lambda path: graphs.resume_tasks(tree_steps(10, 3), rounds, last, path)
        ways[graphs.NODES] = lambda path: graphs.resume_tree(10, 3, rounds, last, path)
        ways[graphs.PHASES] = lambda path: graphs.resume_tree(10, 3, rounds, last, path, phases=True)
    if executors.installed():
        ways[executors.SUPERSTEPS] = lambda path: executors.resume_tree(10, 3, rounds, last, path)
    else:
        results.skip(executors.MISSING)
    took: dict[str, list[Resumed]] = {name: [] for name in (OURS, *ways)}
    replays: list[float] = []
    events = 0
    for n in range(repeats + 1):
        path = fresh(directory)
        await _interrupted(rounds if n else 2, path)
        ours = await _resumed(path)
        if n == 0:  # warms up
            continue
        took[OURS].append(ours)
        replayed, events = await _replayed("s", path)
        replays.append(replayed)
        for name, way in ways.items():
            took[name].append(await way(fresh(directory)))

    def series(name: str, of: Callable[[Resumed], float]) -> Series:
        return Series(name, tuple(of(resumed) for resumed in took[name]))

    def first(resumed: Resumed) -> float:
        return resumed.first

    def end(resumed: Resumed) -> float:
        return resumed.end

    executed = Series("its replay, which executes every round", tuple(replays), at_least=round(1 / RESTORED, 2))
    what = f"CPU of a resume, {events:,} events, to"
    return [
        Row(
            GROUP,
            f"{what} its first call",
            "s",
            series(OURS, first),
            beside=(executed, *(series(name, first) for name in ways)),
            notes=(f"emergence with 100 leaves, {rounds} rounds, killed before the last call of the last round",),
        ),
        Row(GROUP, f"{what} its end", "s", series(OURS, end), beside=tuple(series(name, end) for name in ways)),
    ]


async def _replayed(session: str, path: Path) -> tuple[float, int]:
    """CPU seconds of a replay, and events of the session."""
    store = SqliteStore(path)
    settle_memory()
    try:
        began = time.process_time()
        await consilience.replay(session, store=store)
        return time.process_time() - began, len(store.read(session))
    finally:
        store.close()


async def _replay(directory: Path, repeats: int, latency: float) -> Row:
    path = fresh(directory)
    ran = await run(emergence(3, 3, 2), path, fixed(latency))
    walls: list[float] = []
    cpu: list[float] = []
    for _ in range(repeats):
        store = SqliteStore(path)
        settle_memory()
        try:
            began, spent = time.perf_counter(), time.process_time()
            await consilience.replay(ran.session, store=store)
            walls.append(time.perf_counter() - began)
            cpu.append(time.process_time() - spent)
        finally:
            store.close()
    return Row(
        GROUP,
        f"replay against a run with calls of {latency:g} s",
        "× faster",
        Series(OURS, tuple(ran.wall / wall for wall in walls), more_is_better=True),
        1000 * latency,
        notes=(
            f"{ran.calls} calls, a tree of 3×3, 2 rounds: run {ran.wall:.2f} s, replay {statistics.median(walls) * 1000:.1f} ms, "
            f"of which {statistics.median(cpu) * 1000:.1f} ms are CPU; the target is 1000 × where calls take 1 s",
        ),
    )
