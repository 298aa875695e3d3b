"""A debate: its CPU, its waiting, the growth and reuse of its prompts, and its size beside the seed's own table."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import chats
from consilience.domain.events import CallCompleted, Event, MessagePublished, Noted, place_key
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate import Debate, DebateReport
from consilience.testing import AnyModel
from rows import OURS, Results, Row, Series
from workload import TASK, Latency, emergence, fresh, log_normal, model_cpu, settle_memory
from workload import run as run_plain

GROUP = "debate"
AGENTS, SECONDS = 12, 0.2
WINDOW_CYCLE = 48
"""Messages in which the windows of three threads are filled from 8 to 24 messages and cut."""
FLAT, REUSE, WALL, CPU = 1.15, 0.75, 1.1, 2.5
SEED_TABLE = {2: (24, 60), 3: (40, 90), 5: (80, 180), 8: (140, 300), 12: (220, 450)}
"""Messages and seconds by number of agents, as seed 002 expects them."""
ATTENTION = 0.6
"""Share of answers to messages of high attention that seed 002 expects."""


class Talkers(AnyModel):
    """Draws every decision; messages have a usual length. `at_length`, evidence is always at hand and questions are rare."""

    def __init__(self, latency: Latency, at_length: bool) -> None:
        super().__init__(latency=latency)
        self._at_length = at_length

    def reply(self, request: ModelRequest) -> str:
        value = json.loads(super().reply(request))
        if self._at_length and "PROVIDE_EVIDENCE" in str(request.schema):
            value["move"] = "PROVIDE_EVIDENCE"
        elif self._at_length and value.get("move") in ("PROPOSE_CRUX", "REFRAME") and len(request.text) % 8:
            value["move"] = "CLAIM"
        if "text" in value:
            value["text"] = f"{request.agent} says in {request.key} one thing about the matter, with a figure. " * 4
        return json.dumps(value)


def measure(results: Results, directory: Path, repeats: int, quick: bool) -> None:
    seconds = 0.05 if quick else SECONDS
    runs = [
        asyncio.run(_run(Debate(debaters=6, as_is=True), directory, log_normal(seconds, n)))
        for n in range(1 if quick else max(2, repeats // 2))
    ]
    results.add(
        [
            Row(
                GROUP,
                f"wall ÷ longest chain: a debate of 6, log-normal, median {seconds * 1000:g} ms",
                "×",
                Series(OURS, tuple(run.wall / run.chain for run in runs)),
                WALL,
                notes=(f"{runs[0].calls} calls, {runs[0].report.steps} messages",),
            )
        ]
    )
    results.add([asyncio.run(_cpu(agents, directory, 2 if quick else repeats)) for agents in (3, AGENTS)])
    _prompts(results, directory, quick)
    sizes = (2, 3, 5) if quick else tuple(SEED_TABLE)
    for agents in sizes:
        results.add(_size(agents, directory))


async def _cpu(agents: int, directory: Path, repeats: int) -> Row:
    """CPU of a call in a debate with up to 100 messages beside that of a call in emergence, in turn; the first pair warms up."""
    options = ("the first way", "the second way", "the third way")
    protocol = Debate(debaters=agents, option=options, max_messages=100, max_duration=7_200, stagnation=1_000)
    tree = emergence(10, 3, 2)
    ratios, notes = [], []
    for _ in range(repeats + 1):
        settle_memory()
        plain = await run_plain(tree, fresh(directory))
        beside = (plain.cpu - await model_cpu(plain.requests)) / plain.calls
        settle_memory()
        debate = await _run(protocol, directory)
        began = time.process_time()
        alone = Talkers(lambda request: 0.0, False)
        for request in debate.requests:
            await alone.complete(request)
        own = (debate.cpu - (time.process_time() - began)) / debate.calls
        ratios.append(own / beside)
        notes = [
            f"{debate.calls} calls, {debate.report.steps} messages; last {own * 1000:.2f} ms and {beside * 1000:.2f} ms"
        ]
    name = f"CPU per call: a debate of {agents}, up to 100 messages ÷ emergence, 100 leaves"
    return Row(GROUP, name, "×", Series(OURS, tuple(ratios[1:])), CPU, notes=tuple(notes))


def _prompts(results: Results, directory: Path, quick: bool) -> None:
    """Long threads: three propositions, with budgets of 40 and 60 messages each."""
    marks = (20, 100) if quick else (20, 100, 200, 300)
    protocol = Debate(
        debaters=AGENTS,
        option=("the first way", "the second way", "the third way"),
        max_messages=marks[-1] + WINDOW_CYCLE // 2,
        max_duration=7_200,
        discovery_messages=40,
        evidence_messages=60,
        stagnation=1_000,
    )
    run = _longest_run(protocol, directory)
    ours = [
        len(request.text) for request in run.requests if request.key.startswith(("turn", "commit", "steelman", "grade"))
    ]
    other = asyncio.run(chats.run(AGENTS, marks[-1])).characters if chats.installed() else ()
    if not other:
        results.skip(chats.MISSING)
    for mark in marks:
        beside = (Series(chats.CHAT, (_mean(other, mark),)),) if other else ()
        name = f"prompt characters per message, a debate of {AGENTS}, at message {mark}"
        results.add([Row(GROUP, name, "", Series(OURS, (_mean(ours, mark),)), beside=beside)])
    if not quick:
        name = f"mean prompt around message {marks[-1]} ÷ around message {marks[1]}"
        ratio = _around(ours, marks[-1]) / _around(ours, marks[1])
        results.add([Row(GROUP, name, "×", Series(OURS, (ratio,)), FLAT)])
    reuse = Row(
        GROUP,
        "share of prompt characters that begin an earlier prompt too",
        "",
        Series(OURS, (_reuse([request.text for request in run.requests]),), more_is_better=True),
        REUSE,
    )
    results.add([reuse])


def _longest_run(protocol: Debate, directory: Path) -> _Run:
    """The first of ten draws that reaches the limit on messages, else the longest."""
    longest: _Run | None = None
    for seed in range(10):
        run = asyncio.run(_run(protocol, directory, at_length=True, seed=seed))
        if run.report.steps >= protocol.max_messages:
            return run
        longest = run if longest is None or run.report.steps > longest.report.steps else longest
    assert longest is not None
    return longest


def _size(agents: int, directory: Path) -> list[Row]:
    """The size of a debate beside what the seed expects; attention is the share of answers to messages of at least 0.7."""
    run = asyncio.run(_run(Debate(debaters=agents, as_is=True), directory))
    messages, seconds = SEED_TABLE[agents]
    report, used = run.report, run.report.ledger.actual
    converged = sum(thread.status == "CONVERGED" for thread in report.threads)
    notes = (
        f"{run.calls} calls, {used.tokens_in:,} tokens in and {used.tokens_out:,} out, "
        f"{converged} of {len(report.threads)} threads converged",
    )
    name = f"a debate of {agents} whose agents draw every decision"
    attention = Series(OURS, (report.metrics["attention_high"] or 0.0,), more_is_better=True)
    return [
        Row(GROUP, f"messages of {name}", "", Series(OURS, (float(report.steps),)), messages, notes=notes),
        Row(GROUP, f"virtual seconds of {name}", "s", Series(OURS, (report.duration / 1000,)), seconds),
        Row(GROUP, f"share of answers with attention of at least 0.7 in {name}", "", attention, ATTENTION),
    ]


class _Run:
    """A debate that was run, with the longest chain of its calls in seconds."""

    def __init__(
        self, report: DebateReport, model: Talkers, events: Sequence[Event], wall: float, cpu: float, latency: Latency
    ) -> None:
        self.report, self.wall, self.cpu, self.requests = report, wall, cpu, model.requests
        self.calls = report.ledger.actual.calls
        took = {request.key: latency(request) for request in model.requests}
        self.chain = _longest(events, took)


async def _run(
    protocol: Debate, directory: Path, latency: Latency = lambda request: 0.0, *, at_length: bool = False, seed: int = 0
) -> _Run:
    import consilience

    model, store = Talkers(latency, at_length), SqliteStore(fresh(directory))
    loop = asyncio.get_running_loop()
    began, cpu = loop.time(), time.process_time()
    report = await consilience.deliberate(TASK, protocol, model=model, store=store, seed=seed)
    wall, cpu = loop.time() - began, time.process_time() - cpu
    assert isinstance(report, DebateReport)
    events = list(store.read(report.session))
    store.close()
    return _Run(report, model, events, wall, cpu, latency)


AWAITED: dict[str, tuple[str, ...]] = {
    "turn": ("opening",),
    "single": ("opening",),
    "flip": ("crystallize",),
    "final": ("single", "synthesize", "flip", "same", "reframe", "spawn", "derive"),
    "closing": ("final",),
    "named": ("closing",),
    "test": ("closing", "named"),
}
"""The calls that a call of each kind waits for."""


def _longest(events: Sequence[Event], took: dict[str, float]) -> float:
    """Seconds of the longest chain: a call depends on all that was published, and all private replies awaited, before it."""
    ends: dict[str, float] = {}
    known = 0.0
    for event in sorted((event for event in events if event.place), key=lambda event: place_key(event.place)):
        if isinstance(event, CallCompleted):
            kinds = AWAITED.get(event.key.partition("/")[0], ())
            known = max([known, *(end for key, end in ends.items() if key.startswith(kinds))]) if kinds else known
            ends[event.key] = known + took.get(event.key, 0.0)
        elif isinstance(event, MessagePublished) and event.id.endswith("/said"):
            known = max(known, ends[event.id.removesuffix("/said")])
        elif isinstance(event, Noted) and event.name in ("thread_converged", "thread_created"):
            known = max([known, *(end for key, end in ends.items() if key.startswith(("flip", "same", "spawn")))])
    return max(ends.values(), default=0.0)


def _reuse(texts: Sequence[str]) -> float:
    """Share of characters in the longest prefix that an earlier prompt has, in blocks of 64 characters."""
    seen: set[int] = set()
    shared = total = 0
    for text in texts:
        total += len(text)
        digest, open_prefix = 0, True
        for start in range(0, len(text), 64):
            digest = hash((digest, text[start : start + 64]))
            if open_prefix and digest in seen:
                shared += len(text[start : start + 64])
            else:
                open_prefix = False
                seen.add(digest)
    return shared / total


def _around(characters: Sequence[int], mark: int) -> float:
    """The mean over as many messages as a window needs to fill and to be cut."""
    return statistics.mean(characters[mark - WINDOW_CYCLE // 2 : mark + WINDOW_CYCLE // 2])


def _mean(characters: Sequence[int], mark: int) -> float:
    return statistics.mean(characters[max(0, mark - AGENTS) : mark] or [0])
