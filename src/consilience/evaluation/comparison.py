"""Running the rows on the tasks. Every run is a session, whose id follows from what is run."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pydantic import BaseModel

from consilience.configuration import own_config
from consilience.deliberation import Deliberation
from consilience.domain.detail import Detail, DetailChoice
from consilience.domain.errors import SettingsError
from consilience.domain.events import CallCompleted, Event, SessionFinished
from consilience.domain.outcome import DEFAULT_THINKING, Limits, ThinkingLevel, thinking_tokens
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.engine.seats import SeatModel
from consilience.engine.similarity import mean_pairwise
from consilience.evaluation.results import Budget, Comparison, Difference, Run
from consilience.evaluation.rows import (
    DEFAULT_ROWS,
    REFERENCES,
    CallPrice,
    CompareRow,
    RowSize,
    TaskBudget,
    budget_for_task,
    ceiling_row,
    price_of,
    rows_of,
    setup_of,
)
from consilience.evaluation.scoring import position_of, score
from consilience.evaluation.statistics import deviation_notes, require_libraries, row_difference, summarize_row
from consilience.evaluation.task_file import Task
from consilience.journal.open_store import opened
from consilience.journal.store import Store
from consilience.models.endpoints import Endpoints
from consilience.models.parsing import Malformed, parse_reply
from consilience.models.port import thinks
from consilience.models.registry import canonical_name, is_embedded, thinks_by_name

PROBE = "probe"
"""The role of a small run that measures the cost of a row's calls."""

MAX_PROBES = 3
"""Max probes of a row, if no agent replies."""

MAX_REPEATS = 1_000

Lineup: TypeAlias = "SeatModel | Sequence[SeatModel]"
"""One model for all agents, or several assigned to the agents of each protocol in turn; names or models."""


@dataclass(frozen=True)
class CompareObserver:
    """Callbacks of a running comparison: a run begins, an event is recorded, a run ended."""

    begins: Callable[[str, Task, int], None] = lambda row, task, seed: None
    event: Callable[[Event], None] = lambda event: None
    ended: Callable[[Run], None] = lambda run: None


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it runs: rows, tasks and budgets."""

    tasks: tuple[Task, ...]
    rows: tuple[CompareRow, ...]
    budget: Budget
    seeds: tuple[int, ...]
    models: Lineup
    name: str = ""
    cost: float | None = None
    seconds: float | None = None
    options: Options = field(default_factory=Options)
    ceiling: CompareRow | None = None
    allotments: dict[str, TaskBudget] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """Number of runs, without probes."""
        private = sum(task.private for task in self.tasks) if self.ceiling else 0
        return (len(self.tasks) * len(self.rows) + private) * len(self.seeds)

    @property
    def id(self) -> str:
        """A digest of name, tasks and models. The plan with other rows, seeds or limits is of the same comparison."""
        identity = [self.name, [[task.id, task.task] for task in self.tasks], model_names(self.models)]
        return f"k{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]}"

    def rows_on(self, task: Task) -> list[tuple[CompareRow, bool]]:
        """Return rows in the order in which they run on a task, and whether each is resized; resized rows run last."""
        allotment = self.allotments[task.id]
        marked = [(row, allotment.resized(row)) for row in self.rows]
        ceiling = [(self.ceiling, False)] if self.ceiling and task.private else []
        return [*[(r, s) for r, s in marked if not s], *ceiling, *[(r, s) for r, s in marked if s]]


def plan(
    tasks: Sequence[Task],
    protocols: Sequence[str | Protocol | CompareRow],
    *,
    models: Lineup,
    budget: Budget | None = None,
    repeat: int = 1,
    seed: int = 0,
    name: str = "",
    cost: float | None = None,
    seconds: float | None = None,
    options: Options | None = None,
) -> ComparisonPlan:
    """Plan a comparison; nothing is sent or spent. Raises `SettingsError`, `UnknownName`."""
    options = options or Options()
    detail = _detail(models, options.detail)
    options = replace(options, detail=detail)
    known = options.endpoints.over(own_config().endpoints)
    thinking = _thinking(models, options.thinking or DEFAULT_THINKING, known)
    rows = [replace(row.at(detail), thinking=thinking) for row in rows_of(protocols)]
    if not 1 <= repeat <= MAX_REPEATS:
        raise SettingsError(f"invalid number of repeats: {repeat}", do=f"Give 1 to {MAX_REPEATS}.")
    if not tasks:
        raise SettingsError("no task to compare on", do="Give a task or a task file.")
    if repeated := [id for id, n in Counter(task.id for task in tasks).items() if n > 1]:
        raise SettingsError(f"two tasks have the id {repeated[0]!r}", do="Give each task its own id.")
    if sum(task.answer is not None for task in tasks) > 1 and len(rows) > 1:
        require_libraries()
    budget = budget or Budget()
    return ComparisonPlan(
        tasks=tuple(tasks),
        rows=tuple(rows),
        budget=budget,
        seeds=tuple(range(seed, seed + repeat)),
        models=models,
        name=name,
        cost=cost,
        seconds=seconds,
        options=options,
        ceiling=ceiling.at(detail) if (ceiling := ceiling_row(tasks, rows)) else None,
        allotments={task.id: budget_for_task(budget, [row.on(task) for row in rows], task) for task in tasks},
    )


def _detail(models: Lineup, choice: DetailChoice | None) -> Detail:
    """Return one set of prompts for all rows, whatever models their seats get."""
    if choice is not None and choice != "auto":
        return choice
    return "brief" if any(map(is_embedded, model_names(models))) else "full"


def _thinking(models: Lineup, level: ThinkingLevel, known: Endpoints) -> int:
    """Return the max thinking tokens before one reply, over all models."""
    lineup = [models] if isinstance(models, str) or not isinstance(models, Sequence) else models
    return max(
        (thinking_tokens(level, thinks_by_name(m, known) if isinstance(m, str) else thinks(m)) for m in lineup),
        default=0,
    )


async def compare(
    tasks: Sequence[Task] | Task | str,
    protocols: Sequence[str | Protocol | CompareRow] = DEFAULT_ROWS,
    *,
    models: Lineup,
    store: Store | None = None,
    budget: Budget | None = None,
    repeat: int = 1,
    seed: int = 0,
    name: str = "",
    cost: float | None = None,
    seconds: float | None = None,
    jobs: int = 1,
    observer: CompareObserver | None = None,
    options: Options | None = None,
) -> Comparison:
    """Run protocols on the same tasks with the same models at equal budget.

    Every run is a session in `store` (default: the user's journal). Its id follows from `name` and from all that decides what
    is run, so finished runs are reused and interrupted ones resume. `cost` (US dollars) and `seconds` (wall time) limit each
    run, `options` apply to all. `jobs` pairs of task and seed run concurrently, the rows of a pair in turn. Raises `UserError`s
    before anything is spent.
    """
    if isinstance(tasks, str):
        tasks = Task(id="task", task=tasks)
    if isinstance(tasks, Task):
        tasks = [tasks]
    planned = plan(
        tasks,
        protocols,
        models=models,
        budget=budget,
        repeat=repeat,
        seed=seed,
        name=name,
        cost=cost,
        seconds=seconds,
        options=options,
    )
    with opened(store, writing=True) as journal:
        return await execute(planned, store=journal, jobs=jobs, observer=observer)


async def execute(
    planned: ComparisonPlan, *, store: Store, jobs: int = 1, observer: CompareObserver | None = None
) -> Comparison:
    """Run a plan. After a cancellation or an error the recorded runs are kept, and running the plan again continues it."""
    if jobs < 1:
        raise SettingsError(f"invalid number of jobs: {jobs}", do="Give 1 or more.")
    turns = asyncio.Semaphore(jobs)
    runner = _Runner(planned, store, observer or CompareObserver(), set(store.sessions()))

    async def cell(task: Task, seed: int) -> tuple[list[Run], list[str]]:
        async with turns:
            return await runner.cell(task, seed)

    try:
        async with asyncio.TaskGroup() as group:
            cells = [group.create_task(cell(task, seed)) for task in planned.tasks for seed in planned.seeds]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    done = [cell.result() for cell in cells]
    return _conclude(planned, [run for runs, _ in done for run in runs], [note for _, notes in done for note in notes])


class _Runner:
    """Runs rows one after the other, or reads them from the journal."""

    def __init__(self, planned: ComparisonPlan, store: Store, observer: CompareObserver, session_ids: set[str]) -> None:
        self._planned, self._store, self._observer, self._known = planned, store, observer, session_ids

    async def cell(self, task: Task, seed: int) -> tuple[list[Run], list[str]]:
        """Run all rows on one task with one seed; return the runs and notes on their sizes."""
        allotment, match = self._planned.allotments[task.id], self._planned.budget.match
        runs: dict[str, Run] = {}
        notes: list[str] = []
        target = 0.0
        for row, resized in self._planned.rows_on(task):
            task_row, size = row.on(task), None
            if resized:
                size = await self._size(task_row, task, seed, allotment, target)
                task_row = task_row.sized(size.calls)
            run = await self._run(task_row, task, seed, allotment, size=resized)
            if not (resized or row.ceiling):
                target = max(target, _spent(run, self._planned.budget))
            runs[row.label] = run
            notes += size.notes(run, target, match) if size else []
            self._observer.ended(run)
        return list(runs.values()), notes

    async def _size(self, row: CompareRow, task: Task, seed: int, allotment: TaskBudget, target: float) -> RowSize:
        """Return how many calls a resizable row gets: all that fit the limit, or as many as match the most expensive other row.

        A probe without a reply that shows the price is repeated with other seeds.
        """
        match = self._planned.budget.match
        max_calls, small = allotment.max_calls(row, task), allotment.probe(row, task)
        if small is None:
            return RowSize(min(row.nearest(target), max_calls) if allotment.budget.matched else max_calls, max_calls)
        prices, lost_calls = [], 0
        for attempt in range(MAX_PROBES):
            role = f"{PROBE} {attempt}" if attempt else PROBE
            probe = await self._run(small, task, seed + attempt * MAX_REPEATS, allotment, role=role)
            lost_calls += probe.lost
            prices.append(price := price_of(small, task, self._store.read(probe.session), match))
            if price.sure:
                break
        else:
            # The max cost of a call in dollars is unknown; one call is then sure not to be too much.
            max_price = small.call_tokens(task) if match == "tokens" else target
            price = next((price for price in prices if price.each), CallPrice(max_price, why=price.why, is_max=True))
        calls = row.nearest((target - price.fixed) / price.each)
        return RowSize(min(calls, max_calls), max_calls, price, len(prices), lost_calls)

    async def _run(
        self, row: CompareRow, task: Task, seed: int, allotment: TaskBudget, *, size: bool = False, role: str = ""
    ) -> Run:
        limits = allotment.limits.model_copy(update={"cost": self._planned.cost, "seconds": self._planned.seconds})
        session = session_id(self._planned, row, task, seed, limits, role)
        if not role:
            self._observer.begins(row.label, task, seed)
        events = self._store.read(session) if session in self._known else []
        recorded = any(isinstance(event, SessionFinished) for event in events)
        deliberation = Deliberation(
            row.protocol,
            model=self._planned.models,
            sources=task.sources_for(row.protocol, everything=row.ceiling),
            seed=seed,
            limits=limits,
            store=self._store,
            # parking one of many runs gains nothing
            options=replace(
                self._planned.options,
                observer=self._observer.event,
                patience=None,
                name=self._planned.name,
                comparison=self._planned.id,
            ),
        )
        report: Report = await deliberation.run_or_resume(session, task.task)
        self._known.add(session)
        firsts = first_texts(row.protocol, self._store, session)
        return _measured(row, task, seed, report, firsts, allotment.bound, size=size, recorded=recorded)


def _spent(run: Run, budget: Budget) -> float:
    """Return the cost of a run in the unit that is matched. Raises `SettingsError` for a price that is unknown or zero."""
    amount = run.spent(budget.match)
    if budget.match == "cost" and not amount:
        raise SettingsError(
            f"the cost of {run.row} is {'zero' if amount == 0 else 'unknown'}, so no row can be matched to it",
            do="Match tokens or calls instead (--match).",
        )
    return float(amount or 0)


def session_id(planned: ComparisonPlan, row: CompareRow, task: Task, seed: int, limits: Limits, role: str = "") -> str:
    """Return the id of a run's session: a digest of the comparison's name and all that decides what is run."""
    identity = {
        "name": planned.name,
        "task": [task.id, task.task],
        "sources": [s.model_dump() for s in task.sources_for(row.protocol, everything=row.ceiling)],
        "protocol": [row.protocol.name, row.protocol.version, row.protocol.model_dump(mode="json")],
        "row": [row.label, role],
        "models": model_names(planned.models),
        "limits": limits.model_dump(mode="json"),
        "seed": seed,
    }
    options = {name: getattr(planned.options, name) for name in ("detail", "thinking", "temperature", "repairs")}
    identity |= {name: value for name, value in options.items() if value is not None}
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True, default=str)
    return f"c{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def model_names(models: Lineup) -> list[str]:
    lineup = [models] if isinstance(models, str) or not isinstance(models, Sequence) else models
    return [canonical_name(model) if isinstance(model, str) else str(model.name) for model in lineup]


def first_texts(protocol: Protocol, store: Store, session: str) -> list[str]:
    """Return the first draft of each agent. Replies that the protocol names asides are not drafts."""
    replies: dict[str, list[str]] = {seat: [] for seat in protocol.first_speakers}
    for event in store.read(session):
        if isinstance(event, CallCompleted) and event.agent in replies and event.kind not in protocol.report.asides:
            replies[event.agent].append(event.text)
    drafts = (next((text for id in ids if (text := _free_text(store.text(id)))), "") for ids in replies.values())
    return [draft for draft in drafts if draft]


class _Typed(BaseModel):
    """A typed reply with a text."""

    text: str


def _free_text(reply: str) -> str:
    """Return the field `text` of a typed reply, parsed as the engine does; else the whole reply, which may be requested JSON."""
    try:
        return parse_reply(reply, _Typed).text.strip()
    except Malformed:
        return reply.strip()


def _measured(
    row: CompareRow,
    task: Task,
    seed: int,
    report: Report,
    firsts: Sequence[str],
    limit: int,
    *,
    size: bool,
    recorded: bool,
) -> Run:
    usage = report.ledger.actual
    result = score(task, report)
    return Run(
        row=row.label,
        task=task.id,
        split=task.split,
        seed=seed,
        session=report.session,
        size=row.protocol.estimate().max if size else None,
        answer=report.answer,
        position=position_of(report, task.answer_pattern),
        answered=result.answered,
        correct=result.correct,
        error=result.error,
        orders=result.orders,
        stop_reason=report.stop_reason,
        degraded=report.degraded,
        limit=limit,
        calls=usage.calls,
        requests=usage.requests,
        lost=usage.lost,
        tokens_in=usage.tokens_in,
        tokens_out=usage.tokens_out,
        cost=usage.cost,
        seconds=usage.seconds,
        draft_similarity=mean_pairwise(firsts),
        voices=len(firsts),
        effective=report.independence.effective,
        changes=len(report.position_changes),
        conformity=sum(change.conformity for change in report.position_changes),
        recorded=recorded,
    )


def _conclude(planned: ComparisonPlan, runs: Sequence[Run], notes: Sequence[str]) -> Comparison:
    rows = [*planned.rows, *([planned.ceiling] if planned.ceiling else [])]
    setups = [
        setup_of(row, sized=not row.ceiling and any(a.resized(row) for a in planned.allotments.values()))
        for row in rows
    ]
    order = {(task.id, seed): n for n, (task, seed) in enumerate((t, s) for t in planned.tasks for s in planned.seeds)}
    by_row = {
        setup.row: sorted((run for run in runs if run.row == setup.row), key=lambda run: order[run.task, run.seed])
        for setup in setups
    }
    return Comparison(
        name=planned.name,
        models=tuple(dict.fromkeys(model_names(planned.models))),
        budget=planned.budget,
        seeds=planned.seeds,
        tasks=tuple(task.id for task in planned.tasks),
        setups=tuple(setups),
        runs=tuple(run for row_runs in by_row.values() for run in row_runs),
        rows=tuple(summarize_row(setup, by_row[setup.row], calls=planned.budget.calls is not None) for setup in setups),
        differences=tuple(_differences(planned, by_row)),
        notes=(
            *deviation_notes(
                [r for row_runs in by_row.values() for r in row_runs], calls=planned.budget.calls is not None
            ),
            *notes,
        ),
    )


def _differences(planned: ComparisonPlan, by_row: dict[str, list[Run]]) -> list[Difference]:
    """Every row to every reference; where none of them is compared, to the first row."""
    labels = [row.label for row in planned.rows]
    references = [row.label for row in planned.rows if row.label in REFERENCES] or labels[:1]
    references.sort(key=lambda label: REFERENCES.index(label) if label in REFERENCES else 0)
    differences: list[Difference] = []
    for n, reference in enumerate(references):
        for label in labels:
            if label != reference and label not in references[:n]:
                difference = row_difference(by_row[label], by_row[reference], seed=planned.seeds[0])
                differences += [difference] if difference else []
    return differences
