"""`consilience compare`: protocols side by side on the same tasks, with the same models, at equal budget."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Group

from consilience.cli.display import Display, progress_bar
from consilience.cli.errors import EXIT_NO_ANSWER, EXIT_OK, notify
from consilience.cli.execution import publish, run_on
from consilience.cli.inputs import amounts, assign_models, read_sources, read_task
from consilience.cli.options import LIMITS, MATERIAL, OUTPUT, PlannedRequest, argument, option, request_app
from consilience.cli.plan import approve, choose_model
from consilience.cli.settings import load_config, read_settings, setting_value
from consilience.cli.setup import ensure_weights
from consilience.configuration import Config
from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.events import CallCompleted, Event
from consilience.domain.outcome import Estimate, Limits
from consilience.domain.sections import Block, Item, Paragraph, Table
from consilience.domain.validation import describe_invalid
from consilience.engine.protocol import Protocol, find_protocol
from consilience.evaluation import (
    Budget,
    CompareObserver,
    CompareRow,
    Comparison,
    ComparisonPlan,
    RowEstimate,
    Run,
    Task,
    TaskSource,
    estimate_rows,
    execute,
    load_tasks,
    markdown,
    select_tasks,
    write,
)
from consilience.evaluation import plan as plan_comparison
from consilience.evaluation.rows import DEFAULT_ROWS, REVIEWED, SOLO, reviewed_row
from consilience.journal.open_store import open_store
from consilience.model_words import key_notes
from consilience.models.endpoints import Endpoints
from consilience.models.registry import Choice, paid
from consilience.planning import (
    AS_ASKED,
    NOTHING_DONE,
    Plan,
    bullets,
    check_models,
    cost_words,
    joined,
    links,
    unspent_words,
)
from consilience.prices import max_price
from consilience.reporting.formatting import count, describe_calls, duration, format_range, one_line, printable

TASKS = "Tasks"
ROWS = "Comparison"
MAX_SEATS = 64


@dataclass(frozen=True, kw_only=True)
class CompareRequest(PlannedRequest):
    """Options of `compare`."""

    task: Annotated[
        str | None,
        argument(
            "One question or task; @FILE reads it from a file, - from standard input. Alternatively, give --tasks.",
            "TASK",
        ),
    ] = None
    protocols: list[str] = option(
        "Protocols to compare, one row of the result each; LABEL=NAME for another row of the same protocol.",
        ROWS,
        "NAME",
        kind=str,
        default=list(DEFAULT_ROWS),
    )
    setting: list[str] | None = option(
        "A setting of one row (emergence.children=3), or of every row that has it (reply_tokens=300). Repeatable.",
        ROWS,
        "[ROW.]NAME=VALUE",
        names=("--set",),
    )
    budget: int | None = option(
        "Max tokens per run. Default: what the most expensive row may need; vote and solo+reviews are then made as large as "
        "its usage (--match).",
        ROWS,
        "TOKENS",
    )
    budget_calls: int | None = option("Max calls per run, instead of tokens.", ROWS, "N")
    match: Literal["tokens", "calls", "cost"] = option(
        "Without a budget: the usage in which vote and solo+reviews equal the most expensive row.",
        ROWS,
        default="tokens",
    )
    repeat: int = option("Runs of each row on each task, with consecutive seeds.", ROWS, "N", default=1)
    tasks: str | None = option(
        "A file of tasks with their answers (JSON Lines or CSV), or the shipped set: starter.", TASKS, "FILE|NAME"
    )
    only: list[str] | None = option("Only these splits or ids of the tasks.", TASKS, "NAME", kind=str)
    limit: int | None = option("Only the first N of the tasks.", TASKS, "N")
    answer: str | None = option("The right answer to TASK.", TASKS, "TEXT")
    kind: Literal["exact", "number", "magnitude", "choice"] = option(
        "How answers are compared with --answer.", TASKS, default="exact"
    )
    answer_pattern: str = option(
        "What finds the answer to TASK: number, yes/no, choice:4, or a regular expression.",
        TASKS,
        "PATTERN",
        default="",
    )
    source: list[str] | None = option(
        "A document; N=FILE shows it to the N-th agent of the first phase only. Repeatable.", MATERIAL, "FILE|DIR|-"
    )
    max_cost: float | None = option("Max cost per run in US dollars.", LIMITS, "DOLLARS")
    max_seconds: float | None = option(
        "Max time per run in seconds.", LIMITS, "SECONDS", names=("--max-seconds", "--max-time")
    )
    jobs: int = option("Tasks to run in parallel.", OUTPUT, "N", default=1)
    name: str = option("Name of this comparison; a new name reruns everything.", OUTPUT, "NAME", default="")
    store: Path | None = option("Record the runs in this file instead of your journal.", OUTPUT, "FILE")
    seed: int = option("The first seed.", OUTPUT, "N", default=0)
    json: bool = option("Print the results as JSON and nothing else.", OUTPUT, default=False)


def _compare(request: CompareRequest) -> int:
    """Compare protocols on one task or a set of tasks, with the same models, at equal budget. Runs are recorded; the same
    command continues an interrupted comparison."""
    config = load_config(env_file=request.env_file, named=request.endpoints_named)
    tasks = _tasks(request)
    models, choice = _models(request, config)
    limits = amounts(request, ("cost", "seconds"))
    planned = plan_comparison(
        tasks,
        _rows(request, config),
        models=models,
        budget=Budget(tokens=request.budget, calls=request.budget_calls, match=request.match),
        repeat=request.repeat,
        seed=request.seed,
        name=request.name,
        cost=limits.cost,
        seconds=limits.seconds,
        options=request.options(config.endpoints),
    )
    if request.jobs < 1:
        raise SettingsError(f"invalid number of jobs: {request.jobs}", where="--jobs", do="Give 1 or more.")
    plan = _plan(planned, estimate_rows(planned), models, choice, config.endpoints)
    if request.match == "cost" and planned.budget.matched and not plan.max_cost:
        reason = "no price is known for one of the models" if plan.max_cost is None else "these models cost nothing"
        raise SettingsError(f"nothing can be matched by cost: {reason}", where="--match", do="Match tokens or calls.")
    if not approve(plan, request, config):
        return EXIT_OK
    comparison = _execute(request, planned, models)
    paths_written, code = publish(
        lambda: comparison.model_dump(mode="json"),
        lambda files: printable(markdown(comparison)),
        as_json=request.json,
        write=lambda: [] if request.out is None else write(comparison, request.out),
    )
    if code != EXIT_OK:
        return code
    if not request.quiet:
        if recorded_runs := sum(run.recorded for run in comparison.runs):
            verb = "run was" if recorded_runs == 1 else "runs were"
            notify(f"{recorded_runs} of {len(comparison.runs)} {verb} recorded before; --name NAME reruns everything.")
        if paths_written:
            notify(f"Written: {', '.join(map(str, paths_written))}")
    return EXIT_OK if any(run.answered for run in comparison.runs) else EXIT_NO_ANSWER


compare = request_app("compare", CompareRequest, _compare)


def _execute(request: CompareRequest, planned: ComparisonPlan, models: Sequence[str]) -> Comparison:
    ensure_weights(models, quiet=request.quiet)
    with closing(open_store(request.store, writing=True)) as store:
        progress = ComparisonProgress(planned.runs)
        screen = Display(progress, quiet=request.quiet)
        observer = CompareObserver(
            begins=progress.begin, event=screen.observe, ended=lambda run: screen.line(progress.end(run))
        )
        try:
            return run_on(
                screen,
                lambda: execute(planned, store=store, jobs=request.jobs, observer=observer),
                models=models,
            )
        except BaseException:
            if progress.recorded or progress.done:
                screen.close()
                notify("Finished calls are recorded; the same command continues from there.")
            raise


class ComparisonProgress:
    """Progress of the `total` runs of a comparison."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.calls = total, 0, 0
        self.recorded = False
        """Whether any event was recorded."""
        self.loading = ""
        self._opened = time.monotonic()

    def begin(self, row: str, task: Task, seed: int) -> None:
        self.loading = one_line(f"{row} on {task.id}", 60)

    def take(self, event: Event) -> str:
        """Record an event; single events have no line."""
        self.recorded = True
        self.calls += isinstance(event, CallCompleted)
        return ""

    def end(self, run: Run) -> str:
        """Record the end of a run; return its line."""
        self.done += 1
        return f"{self.done} of {self.total}: {run_line(run)}"

    @property
    def heartbeat(self) -> str:
        return f"{self.done} of {self.total}: {self._status}"

    @property
    def _status(self) -> str:
        return f"{self.loading} · {count(self.calls, 'call')} · {duration(round(time.monotonic() - self._opened))}"

    def screen(self, height: int, width: int = 100) -> Group:
        """Return a bar."""
        return Group(progress_bar(f"{self.done}/{self.total}", self.done, self.total, self._status))


def run_line(run: Run) -> str:
    """Return `solo on split-01: 12, wrong; 1 call, 310 tokens, 4.2 s`."""
    verdict = {True: ", right", False: ", wrong", None: ""}[run.correct if run.answered else None]
    answer = one_line(run.position or run.answer or "", 60) if run.answered else "no answer"
    usage = f"{count(run.calls, 'call')}, {count(run.tokens, 'token')}, {duration(run.seconds)}"
    return f"{run.row} on {run.task}: {answer}{verdict}; {'recorded before' if run.recorded else usage}"


def _tasks(request: CompareRequest) -> list[Task]:
    if (request.task is None) == (request.tasks is None):
        raise SettingsError(
            "give either a task or a file of tasks", do='Give "TASK", or --tasks FILE (or --tasks starter).'
        )
    if request.tasks is not None:
        alone = {"--answer": request.answer, "--answer-pattern": request.answer_pattern, "--source": request.source}
        if options := [option for option, value in alone.items() if value]:
            raise SettingsError(
                f"{', '.join(options)} applies to a single task", where="--tasks", do="Write it into the task file."
            )
        return select_tasks(load_tasks(request.tasks), only=request.only or (), limit=request.limit)
    if request.only is not None or request.limit is not None:
        raise SettingsError("--only and --limit need --tasks", do="Leave them out, or give --tasks FILE.")
    seats = [Agent(id=str(n), role="seat") for n in range(1, MAX_SEATS + 1)]
    documents = read_sources(request.source or (), seats, noun="a seat")
    for remark in (remark for document in documents for remark in document.remarks):
        notify(remark)
    sources = [
        TaskSource(text=s.text, name=s.name, seat=None if seat is None else int(seat))
        for s in documents
        for seat in s.agents or (None,)
    ]
    return [
        _checked_task(
            id="task",
            task=read_task(request.task or ""),
            answer=request.answer,
            kind=request.kind,
            answer_pattern=request.answer_pattern,
            sources=sources,
        )
    ]


def _checked_task(**fields: object) -> Task:
    from pydantic import ValidationError

    try:
        return Task.model_validate(fields)
    except ValidationError as error:
        reason = describe_invalid(error, model=Task)
        raise SettingsError(f"invalid task: {reason}", where="--answer, --kind", do="Correct it.") from None


def _models(request: CompareRequest, config: Config) -> tuple[list[str], Choice]:
    """Return one model, or several to assign in turn, and why the first was chosen."""
    choice = choose_model(request, config)
    seats = [Agent(id=f"A{n}", role="") for n in range(len(request.models or ("",)))]
    models = list(assign_models(request, seats, {}, choice.name).values())
    check_models(models, config.endpoints, keys=not request.dry_run, origin=choice.why if choice.name else "")
    return models, choice


def _rows(request: CompareRequest, config: Config) -> list[CompareRow]:
    """Return rows with their settings. Raises `SettingsError`, `UnknownName`."""
    protocols: dict[str, type[Protocol]] = {}
    reviewed: set[str] = set()
    for row in request.protocols:
        label, _, protocol = row.rpartition("=")
        label = label or protocol
        if label in protocols:
            raise SettingsError(
                f"two rows are both {label!r}", where="--protocols", do=f"Name one of them: other={protocol}."
            )
        protocols[label] = find_protocol(SOLO if protocol == REVIEWED else protocol)
        if protocol == REVIEWED:
            reviewed.add(label)
    settings: dict[str, dict[str, object]] = {label: {} for label in protocols}
    for assignment in request.setting or ():
        target, equals, value = assignment.partition("=")
        label, dot, name = target.strip().rpartition(".")
        name = name.replace("-", "_")
        labels = [label] if dot else [label for label, cls in protocols.items() if name in cls.own_settings()]
        if not equals or not labels or not set(labels) <= protocols.keys() or _is_internal(protocols[labels[0]], name):
            raise SettingsError(
                f"no row has the setting {assignment!r}",
                where="--set",
                do=f"Write [ROW.]NAME=VALUE; rows: {', '.join(protocols)}.",
            )
        for label in labels:
            settings[label][name] = setting_value(partial(_settings_of, protocols[label]), name, value)
    rows = {label: read_settings(cls, settings[label], config) for label, cls in protocols.items()}
    return [
        reviewed_row(label, protocol) if label in reviewed else CompareRow(label, protocol)
        for label, protocol in rows.items()
    ]


def _is_internal(cls: type[Protocol], name: str) -> bool:
    return name in cls.model_fields and name not in cls.own_settings()


def _settings_of(cls: type[Protocol], settings: Mapping[str, object]) -> Protocol:
    return cls(**settings)


@dataclass(frozen=True, kw_only=True)
class ComparePlan(Plan):
    """The plan of all runs of a comparison."""

    planned: ComparisonPlan
    rows: Sequence[RowEstimate]

    @property
    def line(self) -> str:
        """Rows, models and why, runs, calls, max cost, unused keys."""
        choice_note = f" ({self.why})" if self.why != AS_ASKED.why else ""
        return joined(
            f"{', '.join(row.label for row in self.planned.rows)} with {', '.join(self.models)}{choice_note}",
            count(len(self.planned.tasks), "task"),
            count(self.planned.runs, "run"),
            f"{describe_calls(self.estimate)} estimated",
            cost_words(self),
            unspent_words(self),
        )

    def describe(self) -> tuple[Block, ...]:
        calls = format_range(self.estimate.min, self.estimate.max)
        usual = _rounded(sum(row.usual for row in self.rows))
        return (
            Paragraph(text=f"Dry run of compare: {NOTHING_DONE}", tone="strong"),
            Table(
                heads=("row", "runs", "calls", "usual tokens", "tokens at most"),
                rows=tuple(
                    (r.row, f"{r.runs:,}", format_range(r.calls.min, r.calls.max), _rounded(r.usual), f"{r.tokens:,}")
                    for r in self.rows
                ),
            ),
            bullets(
                f"Tasks: {len(self.planned.tasks):,}, with {_seeds_words(self.planned.seeds)}",
                f"Budget: {_budget_words(self.planned)}",
                f"Model: {', '.join(self.models)} ({self.why})",
                f"Calls estimated: {calls}, including those recorded earlier",
                f"Tokens: usually about {usual}, if runs end early and replies are of usual length; "
                f"at most {self.max_tokens:,}, if every prompt has its max length",
                f"Cost: {cost_words(self, headed=True)}",
                *self.details,
                *(_cut_item(row) for row in self.rows if row.needs),
            ),
        )

    def as_json(self) -> dict[str, object]:
        return {
            "dry_run": True,
            "rows": [
                {
                    "row": r.row,
                    "runs": r.runs,
                    "calls": r.calls.model_dump(),
                    "usual_tokens": r.usual,
                    "max_tokens": r.tokens,
                    "needs": r.needs,
                    "allowed": r.allowed,
                }
                for r in self.rows
            ],
            "tasks": [task.id for task in self.planned.tasks],
            "seeds": list(self.planned.seeds),
            "budget": self.planned.budget.model_dump(),
            **super().as_json(),
        }


def _plan(
    planned: ComparisonPlan, rows: Sequence[RowEstimate], models: Sequence[str], choice: Choice, known: Endpoints
) -> ComparePlan:
    paid_models = tuple(name for name in links(models) if paid(name, known))
    max_cost: float | None = 0.0
    for row in rows:
        call_cost = max_price(dict.fromkeys(paid_models, row.written), row.read, known)
        row_cost = None if call_cost is None else row.calls.max * call_cost
        if planned.cost is not None and row_cost is not None:
            row_cost = min(row_cost, row.runs * planned.cost)
        max_cost = None if max_cost is None or row_cost is None else max_cost + row_cost
    return ComparePlan(
        planned=planned,
        rows=rows,
        models=tuple(dict.fromkeys(models)),
        why=choice.why,
        estimate=Estimate(min=sum(r.calls.min for r in rows), max=sum(r.calls.max for r in rows)),
        known=known,
        limits=Limits(cost=planned.cost),
        max_tokens=sum(row.tokens for row in rows),
        max_cost=max_cost,
        paid=paid_models,
        unspent_keys=choice.unspent_keys,
        details=key_notes(links(models), known),
    )


def _cut_item(row: RowEstimate) -> Item:
    needs = f"it needs up to {count(row.needs, 'call')} and the budget surely pays for {row.allowed:,}"
    return Item(lead=f"{row.row} may be cut short:", text=f"{needs}; a run that is cut short is compared as it stands")


def _seeds_words(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def _rounded(tokens: int) -> str:
    """Return a number of tokens to two digits."""
    return f"{round(tokens, 2 - len(str(tokens))):,}"


def _budget_words(planned: ComparisonPlan) -> str:
    bounds = [allotment.bound for allotment in planned.allotments.values()]
    if planned.budget.matched:
        matched_by = (
            f"; vote and solo+reviews matched by {planned.budget.match}" if planned.budget.match != "tokens" else ""
        )
        return (
            f"what the most expensive row may need, {format_range(min(bounds), max(bounds))} tokens per run{matched_by}"
        )
    return f"{bounds[0]:,} {'tokens' if planned.budget.calls is None else 'calls'} per run"
