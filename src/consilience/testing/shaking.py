"""The arrivals kit: the order of replies, the place where a budget ends, and kills must not change the journal or the report."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from consilience.blocking import run_blocking
from consilience.deliberation import Deliberation
from consilience.domain.errors import SessionWaiting
from consilience.domain.events import AnyEvent, CallCompleted, Ended, ReplyRejected, canonical, canonical_digest
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, StopReason
from consilience.domain.panels import MAX_PERSONAS, Panel, Persona
from consilience.domain.report import Report
from consilience.engine.activity import Phase
from consilience.engine.faults import Crash, Fault
from consilience.engine.protocol import PanelSeats, Protocol
from consilience.engine.runner import Options
from consilience.engine.state import FaultHook
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import Answer, ScriptedModel
from consilience.testing.any_model import AnyModel

SESSION = "s"
MAX_TURNS = 12
"""Max delay of a reply, in turns of the event loop."""
MALFORMED = 0.2
EXHAUSTED = (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME)
FORK_FIELDS = {"session", "parent", "ledger", "warnings"}
"""Fields of a report that may differ in a fork without changes."""

ReplyFunction = Callable[[ModelRequest], Answer]


class ShakeFailed(AssertionError):
    """Two runs of one protocol differ, or a run broke a rule of protocols. The text names the runs and the difference."""


class Shuffled(ScriptedModel):
    """Answers in a random order, after a random number of turns of the event loop; immediately if `order` is None."""

    def __init__(self, reply: ReplyFunction, order: int | None) -> None:
        super().__init__(reply)
        self._order = random.Random(order) if order is not None else None
        self.arrived: list[str] = []

    async def complete(self, request: ModelRequest) -> Completion:
        completion = await super().complete(request)
        for _ in range(self._order.randrange(MAX_TURNS) if self._order else 0):
            await asyncio.sleep(0)
        self.arrived.append(request.key)
        return completion


SeatModels = Callable[[ScriptedModel, int | None], Mapping[str, Any]]
"""Returns the model of each seat, from the default model and the order of arrival; for outside agents and agents with tools."""


@dataclass
class ShakenRun:
    """A run, over all its processes."""

    report: Report
    events: Sequence[AnyEvent]
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Requests as (key, attempt), in order of dispatch."""
    arrived: tuple[str, ...] = ()
    crashes: int = 0
    asked_again: set[tuple[str, int]] = field(default_factory=set)
    """Requests that were sent although their replies were recorded."""
    what: str = ""
    """Which run of `shake` it is."""

    @property
    def same(self) -> tuple[str, str]:
        """Digests of the canonical journal and of the report."""
        return canonical_digest(self.events), self.report.digest()


async def to_the_end(
    store: SqliteStore,
    models: Mapping[str, Any],
    begun: Awaitable[Report],
    answer: Callable[[str], str] = "from outside, on {}".format,
) -> Report:
    """Run a session to its report; when it is parked, answer what it waits for and resume it."""
    while True:
        try:
            return await begun
        except SessionWaiting as parked:
            for key in parked.awaited:
                store.post(parked.session, "answer", key, answer(key))
            begun = resuming(store, models).resume(parked.session)


def resuming(store: SqliteStore, models: Mapping[str, Any]) -> Deliberation[Report]:
    """Return a deliberation that resumes sessions of a store with these models."""
    return Deliberation(model=models, store=store, options=Options(patience=0))


@dataclass(frozen=True)
class Arrivals:
    """A protocol with its models, to run under any order of arrival, budget and kill. The checks raise `ShakeFailed`."""

    protocol: Protocol
    reply: ReplyFunction = field(default_factory=lambda: AnyModel(malformed=MALFORMED).reply)
    task: str = "Is it so?"
    sources: Sequence[Source] = ()
    panel: Panel | None = None
    seats: SeatModels = lambda model, order: {"*": model}
    max_steps: int = 1
    """Max requests of one call: more than 1 if an agent has tools."""

    @property
    def need(self) -> int:
        """Max requests of a run, without retries."""
        return self.protocol.estimate().max * self.max_steps

    def _models(self, model: ScriptedModel, order: int | None) -> Mapping[str, Any]:
        seats = self.seats(model, order)
        return {agent.id: seats.get(agent.id, model) for agent in self.protocol.agents(self.panel)}

    async def run(
        self,
        *,
        order: int | None = None,
        calls: int | None = None,
        path: Path | str = ":memory:",
        fault: FaultHook | None = None,
        what: str = "in a run",
    ) -> ShakenRun:
        """Run once, from start to end. If a fault kills the run, resume it from the journal at `path`.

        Raises `ShakeFailed`, which says `what` run it is, for an exception of the protocol and for the defects in its report.
        """
        with self._named(what):
            outcome = await self._run(order, calls, path, fault)
        self._require(not outcome.report.defects, f"{what}: {', '.join(outcome.report.defects)}")
        outcome.what = what
        return outcome

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Name the run in which an exception is raised."""
        try:
            yield
        except ShakeFailed:
            raise
        except Exception as error:
            raise ShakeFailed(f"{self.protocol.name}, {what}: {type(error).__name__}: {error}") from error

    async def _run(self, order: int | None, calls: int | None, path: Path | str, fault: FaultHook | None) -> ShakenRun:
        store, model, crashes, recorded, before = SqliteStore(path), Shuffled(self.reply, order), 0, set(), 0
        models = self._models(model, order)
        options = Options(faults=fault, patience=0)
        try:
            begin = Deliberation(self.protocol, model=models, store=store, panel=self.panel, sources=self.sources,
                                 limits=Limits(calls=calls), options=options)  # fmt: skip
            report = await to_the_end(store, models, begin.run(self.task, session=SESSION))
        except Crash:
            crashes, before = 1, len(model.requests)
            store = SqliteStore(path)
            events = store.read(SESSION)
            recorded = {(e.key, e.attempt) for e in events if isinstance(e, CallCompleted | ReplyRejected)}
            models = self._models(model, order)
            report = await to_the_end(store, models, resuming(store, models).resume(SESSION))
        asked = [(request.key, request.attempt) for request in model.requests]
        arrived, again = tuple(model.arrived), recorded & set(asked[before:])
        outcome = ShakenRun(
            report, store.read(SESSION), asked=asked, arrived=arrived, crashes=crashes, asked_again=again
        )
        store.close()
        return outcome

    def _equal(self, reference: ShakenRun, outcome: ShakenRun) -> None:
        if outcome.same != reference.same:
            raise ShakeFailed(f"{self.protocol.name}, {outcome.what}: {difference(reference, outcome)}")
        again = sorted(outcome.asked_again)
        self._require(not again, f"{outcome.what}: asked again although recorded: {again}")

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise ShakeFailed(f"{self.protocol.name}, {problem}")

    async def fault_points(self) -> list[tuple[str, int]]:
        """Return every point at which a run can be killed, with how often it was passed by then (from 1)."""
        passed, points = Counter[str](), []

        def count(point: str, phase: Phase | None) -> None:
            passed[point] += 1
            points.append((point, passed[point]))

        await self.run(fault=count)
        return points

    async def check_orders(self, orders: Iterable[int]) -> int:
        """Check that every order of arrival gives the same journal and report; return the number of different orders."""
        reference = await self.run()
        limit, used = self.protocol.estimate().max, reference.report.ledger.actual.calls
        self._require(used <= self.need, f"made {used} calls, and estimates at most {limit}")
        arrived = set()
        for order in orders:
            outcome = await self.run(order=order, what=f"order of arrival {order}")
            self._equal(reference, outcome)
            arrived.add(outcome.arrived)
        return len(arrived)

    async def check_budgets(self, budgets: Iterable[int], orders: Iterable[int]) -> None:
        """Check that every budget of calls is kept, ends in a report that names the limit, and is the same in every order."""
        unlimited, orders, ended, points = await self.run(), list(orders), 0, set[str]()
        for calls in budgets:
            what = f"with a budget of {calls} of {self.need} calls"
            outcome = await self.run(calls=calls, fault=lambda point, phase: points.add(point), what=what)
            self._require(len(outcome.asked) <= calls, f"{what}: sent {len(outcome.asked)} requests")
            answered = outcome.report.answer is not None
            self._require(calls > 0 or not answered, f"{what}: gave an answer without a call")
            if len(outcome.asked) < len(unlimited.asked):
                ended += calls > 0
                stop = outcome.report.stop_reason
                self._require(
                    stop in EXHAUSTED,
                    f"{what}: stopped as {stop}, and not by the budget. Make the report with session.close(), or pass "
                    "session.limit_hit, if not None, as stop_reason",
                )
            for order in orders:
                self._equal(outcome, await self.run(order=order, calls=calls, what=f"{what}, order of arrival {order}"))
        self._require(
            not (self.protocol.closing and ended) or "closing_call" in points,
            "no run that its budget ended made a call with closing=True. Make one, or declare closing = False: "
            "the budget of one call is reserved for it",
        )

    async def check_full_budget(self, reply: ReplyFunction | None = None) -> None:
        """Check that a budget of the max need changes nothing if no reply is malformed."""
        well_formed = replace(self, reply=reply or (lambda request: self.reply(replace(request, attempt=2))))
        free = await well_formed.run(what="with well-formed replies")
        bound = await well_formed.run(calls=self.need, what=f"with a budget of the max need, {self.need} calls")
        same = free.report.digest() == bound.report.digest() and sorted(free.asked) == sorted(bound.asked)
        self._require(same, f"a budget of the max need, {self.need} calls, changes the run: {difference(free, bound)}")

    async def check_kills(
        self, faults: Iterable[tuple[str, int]], directory: Path, *, calls: int | None = None
    ) -> Counter[str]:
        """Kill a run at each fault, and resume it: it must end the same and repeat no call. Return the kills by fault point."""
        reference, struck = await self.run(calls=calls), Counter[str]()
        for n, (point, nth) in enumerate(faults):
            path = directory / f"{point}-{nth}-{calls}.db"
            budget = "no budget" if calls is None else f"a budget of {calls} calls"
            what = f"killed at {point} #{nth} and resumed, order of arrival {n}, {budget}"
            outcome = await self.run(order=n, calls=calls, path=path, fault=Fault(point, nth=nth).hit, what=what)
            struck[point] += outcome.crashes
            self._equal(reference, outcome)
        return struck

    async def check_replay(self, directory: Path) -> None:
        """Check that a finished session replays and resumes to its report without a call and without writing."""
        outcome = await self.run(path=directory / "replay.db")
        store = SqliteStore(directory / "replay.db")
        finished: Deliberation[Report] = Deliberation(store=store)
        with self._named("in the replay"):
            replayed = await finished.replay(SESSION)
        self._require(replayed.digest() == outcome.report.digest(), "the replay gives another report")
        self._require(store.read(SESSION) == outcome.events, "the replay wrote into the journal")
        resumed = await finished.resume(SESSION)
        self._require(resumed == outcome.report, "resuming the finished session gives another report")
        store.close()

    async def check_panel(self) -> None:
        """Check that the personas of a panel are in the prompts."""
        if self.panel is None:
            cls, seats = type(self.protocol), len(self.protocol.first_speakers)
            if issubclass(cls, PanelSeats):
                seats = min(max(seats, cls.min_seats), cls.max_seats)
            personas = (Persona(name=f"Persona {n + 1}", description="You doubt.") for n in range(seats))
            panel = Panel(name="shaken", description="Personas.", personas=tuple(personas)[:MAX_PERSONAS])
            await replace(self, panel=panel).run(what="with a panel")

    async def check_forks(self, points: int, directory: Path) -> None:
        """Check that a fork without changes ends the same and makes only calls that come after its starting point."""
        outcome = await self.run(path=directory / "fork.db")
        store = SqliteStore(directory / "fork.db")
        for at in sorted({len(outcome.events) * n // points for n in range(points + 1)}):
            model = ScriptedModel(self.reply)
            models = self._models(model, None)
            with self._named(f"in a fork at event {at} that changes nothing"):
                report = await to_the_end(store, models, resuming(store, models).fork(SESSION, at=at))
            inherited = {(e.key, e.attempt) for e in outcome.events if isinstance(e, Ended) and e.seq <= at}
            again = inherited & {(request.key, request.attempt) for request in model.requests}
            self._require(not again, f"a fork at event {at} asked for what it had inherited: {sorted(again)}")
            changed = _fields(outcome.report, report, FORK_FIELDS)
            self._require(
                not changed, f"a fork at event {at} that changes nothing has another report: {', '.join(changed)}"
            )
        store.close()


def difference(first: ShakenRun, other: ShakenRun) -> str:
    """Return the first event in which two canonical journals differ, and the fields in which the reports differ."""
    parts = []
    pairs = list(zip(canonical(first.events), canonical(other.events), strict=False))
    event = next(((a, b) for a, b in pairs if a != b and a["type"] != "session_finished"), None)
    if event:
        a, b = event
        names = sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
        was = ", ".join(f"{name} {a.get(name)!r:.80} and {b.get(name)!r:.80}" for name in names)
        parts.append(f"the journals differ first at place {a.get('place')} ({a['type']} {a.get('key', '')}): {was}")
    elif canonical_digest(first.events) != canonical_digest(other.events):
        parts.append(f"one journal goes on after {len(pairs)} canonical events")
    if fields := _fields(first.report, other.report, {"session"}):
        parts.append(f"the reports differ in {', '.join(fields)}")
    return "; ".join(parts)


def _fields(first: Report, other: Report, but: set[str]) -> list[str]:
    was, now = first.model_dump(mode="json", exclude=but), other.model_dump(mode="json", exclude=but)
    return [name for name in was if was[name] != now[name]]


@dataclass(frozen=True)
class Shaken:
    """The runs of `shake`, all with equal results."""

    need: int
    """Max calls of a run."""
    orders: int
    """Different orders in which replies arrived; 1 if there is no concurrency."""
    budgets: tuple[int, ...]
    """Budgets in calls."""
    kills: Mapping[str, int]
    """Kills by fault point, each followed by a resume."""
    forks: int


def shake(
    case: Protocol | Arrivals, *, orders: int = 40, budgets: int = 12, kills: int = 30, forks: int = 5, seed: int = 0
) -> Shaken:
    """Run a protocol many times, offline, under random orders of arrival, budgets and kills, and compare the runs.

    `Arrivals(protocol, reply=…)` sets the replies of its agents; for a protocol alone they come from `AnyModel`, some malformed.
    `orders`, `budgets`, `kills` and `forks`: max number of each, drawn by `seed`. The defaults take a few seconds for a protocol of
    15 calls. Raises `ShakeFailed` with the run and the difference or the exception.
    """
    arrivals = case if isinstance(case, Arrivals) else Arrivals(case)
    return run_blocking(_shake(arrivals, orders, budgets, kills, forks, random.Random(seed)))


async def _shake(arrivals: Arrivals, orders: int, budgets: int, kills: int, forks: int, draw: random.Random) -> Shaken:
    def sample(items: Iterable[Any], size: int) -> list[Any]:
        every = list(items)
        return every if len(every) <= size else sorted(draw.sample(every, size))

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        arrived = await arrivals.check_orders(range(orders))
        await arrivals.check_full_budget()
        tried = sample(range(arrivals.need + 1), budgets)
        await arrivals.check_budgets(tried, range(2))
        faults = sample(await arrivals.fault_points(), kills)
        struck = await arrivals.check_kills(faults, directory)
        for calls in tried[1:-1:3]:
            struck += await arrivals.check_kills(sample(faults, 3), directory, calls=calls)
        await arrivals.check_replay(directory)
        await arrivals.check_forks(forks, directory)
        await arrivals.check_panel()
    return Shaken(arrivals.need, arrived, tuple(tried), dict(struck), forks)
