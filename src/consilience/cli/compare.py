"""`consilience compare`: protocols side by side on the same tasks, with the same models, at equal budget."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from consilience.cli.commands import SectionedCommand, names_option, new_app, with_options
from consilience.cli.config import Config, load_config
from consilience.cli.display import Bench, shown
from consilience.cli.errors import DONE, NO_ANSWER, exit_code_of, print_json, say
from consilience.cli.inputs import deal_models, read_settings, read_sources, read_task
from consilience.cli.options import (
    LIMITS,
    MATERIAL,
    OUTPUT,
    Deadline,
    Detail,
    DryRun,
    EnvFile,
    OneModel,
    Out,
    Quiet,
    Request,
    SeveralModels,
    Temperature,
    Thinking,
    Yes,
)
from consilience.cli.plan import Plan, check_models, choice_without_a_name, confirm_spending, cost_words, links, price
from consilience.cli.setup import ensure_weights, loaded
from consilience.cli.signals import run_until_done
from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.outcome import Estimate, Limits
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.runner import Options
from consilience.evaluation import (
    Budget,
    Comparison,
    Foreseen,
    Row,
    Task,
    TaskSource,
    choose,
    execute,
    foresee,
    load_tasks,
    markdown,
    write,
)
from consilience.evaluation import Plan as Planned
from consilience.evaluation import plan as plan_comparison
from consilience.evaluation.rows import ALONE, DEFAULT_ROWS, REVIEWED, reviewed_row
from consilience.journal.open_store import open_store
from consilience.models.registry import Choice, paid
from consilience.reporting.files import claim_directory
from consilience.reporting.formatting import count, describe_calls, format_range, printable
from consilience.reporting.markdown import print_markdown

TASKS = "What is asked"
COMPARED = "What is compared"
MOST_SEATS = 64


@dataclass(frozen=True)
class CompareRequest:
    """One command line, as given."""

    task: Annotated[
        str | None,
        typer.Argument(
            help="One question or task; @FILE reads it from a file, - from standard input. Or give --tasks.",
            metavar="TASK",
            show_default=False,
        ),
    ] = None
    protocols: Annotated[
        list[str],
        names_option(
            help="Protocols to compare; LABEL=NAME for a second row of one protocol.",
            metavar="NAME",
            rich_help_panel=COMPARED,
        ),
    ] = field(default_factory=lambda: list(DEFAULT_ROWS))
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting of a row, emergence.children=3, or of all that have it, reply_tokens=300. Repeatable.",
            metavar="[ROW.]NAME=VALUE",
            rich_help_panel=COMPARED,
        ),
    ] = None
    budget: Annotated[
        int | None,
        typer.Option(
            help="Most tokens of each run; else what the dearest row could need, and sizes matched to what it spent.",
            metavar="TOKENS",
            rich_help_panel=COMPARED,
        ),
    ] = None
    budget_calls: Annotated[
        int | None,
        typer.Option(help="Most calls of each run, instead of tokens.", metavar="N", rich_help_panel=COMPARED),
    ] = None
    match: Annotated[
        Literal["tokens", "calls", "cost"],
        typer.Option(help="Without a budget: what vote and solo+reviews are made equal in.", rich_help_panel=COMPARED),
    ] = "tokens"
    repeat: Annotated[
        int,
        typer.Option(help="Runs of each row on each task, with seeds in a row.", metavar="N", rich_help_panel=COMPARED),
    ] = 1
    tasks: Annotated[
        str | None,
        typer.Option(
            help="A file of tasks with their answers (JSON Lines), or the shipped set: starter.",
            metavar="FILE|NAME",
            rich_help_panel=TASKS,
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        names_option(help="Only these splits or ids of the tasks.", metavar="NAME", rich_help_panel=TASKS),
    ] = None
    limit: Annotated[
        int | None, typer.Option(help="Only the first N of the tasks.", metavar="N", rich_help_panel=TASKS)
    ] = None
    answer: Annotated[
        str | None, typer.Option(help="The right answer to TASK.", metavar="TEXT", rich_help_panel=TASKS)
    ] = None
    kind: Annotated[
        Literal["exact", "number", "magnitude", "choice"],
        typer.Option(help="How that answer is judged.", rich_help_panel=TASKS),
    ] = "exact"
    answer_pattern: Annotated[
        str,
        typer.Option(
            help="Regular expression of an extractable answer to TASK.",
            metavar="REGEX",
            rich_help_panel=TASKS,
            show_default=False,
        ),
    ] = ""
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A document; N=FILE shows it to the N-th agent of the first phase only. Repeatable.",
            metavar="FILE|DIR|-",
            rich_help_panel=MATERIAL,
        ),
    ] = None
    model: OneModel = None
    models: SeveralModels = None
    detail: Detail = None
    thinking: Thinking = None
    temperature: Temperature = None
    deadline: Deadline = None
    max_cost: Annotated[
        float | None,
        typer.Option(help="Most money of each run, in US dollars.", metavar="DOLLARS", rich_help_panel=LIMITS),
    ] = None
    max_time: Annotated[
        float | None,
        typer.Option(help="Max time of each run, in seconds.", metavar="SECONDS", rich_help_panel=LIMITS),
    ] = None
    jobs: Annotated[int, typer.Option(help="Tasks run side by side.", metavar="N", rich_help_panel=OUTPUT)] = 1
    name: Annotated[
        str,
        typer.Option(
            help="A name of this comparison; under another one all is run anew.",
            metavar="NAME",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = ""
    store: Annotated[
        Path | None,
        typer.Option(
            help="Record the runs in this file instead of your journal.", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="The first seed.", metavar="N", rich_help_panel=OUTPUT)] = 0
    dry_run: DryRun = False
    yes: Yes = False
    out: Out = None
    json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON and nothing else.", rich_help_panel=OUTPUT)
    ] = False
    quiet: Quiet = False
    env_file: EnvFile = None


def _compare(**given: object) -> None:
    """Protocols side by side on the same task, or a set of tasks, with the same models, at equal budget. Runs are
    recorded: the same command goes on where it was left."""
    raise typer.Exit(_run(CompareRequest(**given)))  # type: ignore[arg-type]


compare = new_app()
compare.command("compare", cls=SectionedCommand)(with_options(_compare, CompareRequest))


def _run(request: CompareRequest) -> int:
    config = load_config(env_file=request.env_file)
    tasks = _tasks(request)
    models, choice = _models(request, config)
    planned = plan_comparison(
        tasks,
        _rows(request, config),
        models=models,
        budget=Budget(tokens=request.budget, calls=request.budget_calls, match=request.match),
        repeat=request.repeat,
        seed=request.seed,
        name=request.name,
        money=_limit("--max-cost", request.max_cost),
        seconds=_limit("--max-time", request.max_time),
        options=Options(
            detail=request.detail,
            thinking=request.thinking,
            temperature=request.temperature,
            deadline=request.deadline,
        ),
    )
    if request.jobs < 1:
        raise SettingsError(f"{request.jobs} jobs do nothing", where="--jobs", do="Give 1 or more.")
    foreseen = foresee(planned)
    cost = _cost(planned, foreseen, models, choice)
    if request.match == "cost" and planned.budget.matched and not cost.most_money:
        why = "no price is known for one of the models" if cost.most_money is None else "these models cost nothing"
        raise SettingsError(f"nothing can be matched by cost: {why}", where="--match", do="Match tokens or calls.")
    if request.dry_run:
        if request.json:
            print_json(_dry_json(planned, foreseen, cost))
        else:
            print_markdown(_dry(planned, foreseen, cost))
        return DONE
    if request.out is not None:
        claim_directory(request.out)
    if not request.quiet:
        say(_first_line(planned, cost))
    confirm_spending(cost, yes=request.yes, confirm_above=config.confirm_above)
    comparison = _execute(request, planned, models)
    return _deliver(request, comparison)


def _execute(request: CompareRequest, planned: Planned, models: Sequence[str]) -> Comparison:
    ensure_weights(models, quiet=request.quiet)
    store = open_store(request.store, writing=True)
    bench = Bench(planned.runs, quiet=request.quiet)

    async def main() -> Comparison:
        async with shown(bench), loaded(models, bench.loading):
            return await execute(planned, store=store, jobs=request.jobs, observer=bench.observer)

    try:
        with bench:
            return run_until_done(main(), tell=bench.tell)
    except BaseException:
        if bench.recorded or bench.done:
            bench.close()
            say("What was run is recorded; the same command goes on from there.")
        raise
    finally:
        store.close()


def _deliver(request: CompareRequest, comparison: Comparison) -> int:
    unwritten: SettingsError | None = None
    written: list[Path] = []
    if request.out is not None:
        try:
            written = write(comparison, request.out)
        except SettingsError as error:  # said after the results, which are not lost for it
            unwritten = error
    if request.json:
        print_json(comparison.model_dump(mode="json"))
    else:
        print_markdown(printable(markdown(comparison)))
    sys.stdout.flush()
    if unwritten is not None:
        return exit_code_of(unwritten)
    before = sum(run.recorded for run in comparison.runs)
    if not request.quiet:
        if before:
            said = "run was" if before == 1 else "runs were"
            say(f"{before} of {len(comparison.runs)} {said} recorded before; --name NAME runs everything anew.")
        if written:
            say(f"Written: {', '.join(map(str, written))}")
    return DONE if any(run.answered for run in comparison.runs) else NO_ANSWER


def _tasks(request: CompareRequest) -> list[Task]:
    if (request.task is None) == (request.tasks is None):
        raise SettingsError(
            "either one task or a file of them is compared on", do='Give "TASK", or --tasks FILE (or --tasks starter).'
        )
    if request.tasks is not None:
        alone = {"--answer": request.answer, "--answer-pattern": request.answer_pattern, "--source": request.source}
        if given := [option for option, value in alone.items() if value]:
            raise SettingsError(
                f"{', '.join(given)} belongs to a single task", where="--tasks", do="Write it into the task file."
            )
        return choose(load_tasks(request.tasks), only=request.only or (), limit=request.limit)
    if request.only is not None or request.limit is not None:
        raise SettingsError("--only and --limit choose from --tasks", do="Leave them out, or give --tasks FILE.")
    seats = [Agent(id=str(n), role="seat") for n in range(1, MOST_SEATS + 1)]
    sources = [
        TaskSource(text=s.text, name=s.name, seat=int(s.agents[0]) if s.agents else None)
        for s in read_sources(request.source or (), seats, whose="a seat")
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
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise SettingsError(f"the task cannot be used: {reason}", where="--answer, --kind", do="Correct it.") from None


def _models(request: CompareRequest, config: Config) -> tuple[list[str], Choice]:
    """One model, or several to be dealt, checked."""
    named = request.model is not None or request.models is not None
    choice = Choice("", "as asked") if named else choice_without_a_name(config)
    several = len(request.models or ("",))
    seats = [Agent(id=f"A{n}", role="") for n in range(several)]
    asked = Request(task="", model=request.model, models=request.models)
    models = list(deal_models(asked, seats, choice.name).values())
    check_models(models, keys=not request.dry_run, why=choice.why if choice.name else "")
    return models, choice


def _rows(request: CompareRequest, config: Config) -> list[Row]:
    """Rows by label with their settings. Raises `SettingsError`, `UnknownName`."""
    named: dict[str, type[Protocol]] = {}
    reviewed: set[str] = set()
    for one in request.protocols:
        label, _, protocol = one.rpartition("=")
        label = label or protocol
        if label in named:
            raise SettingsError(
                f"two rows are both {label!r}", where="--protocols", do=f"Name one apart: other={protocol}."
            )
        named[label] = find_protocol(ALONE if protocol == REVIEWED else protocol)
        reviewed |= {label} if protocol == REVIEWED else set()
    given: dict[str, dict[str, object]] = {label: {} for label in named}
    for one in request.setting or ():
        place, equals, value = one.partition("=")
        label, dot, name = place.strip().rpartition(".")
        name = name.replace("-", "_")
        rows = [label] if dot else [row for row, cls in named.items() if name in cls.model_fields]
        if not equals or not rows or not set(rows) <= named.keys():
            raise SettingsError(
                f"{one!r} sets nothing", where="--set", do=f"Write [ROW.]NAME=VALUE; rows: {', '.join(named)}."
            )
        for row in rows:
            given[row][name] = _value(named[row], name, value)
    read = {label: read_settings(cls, given[label], config) for label, cls in named.items()}
    return [reviewed_row(label, one) if label in reviewed else Row(label, one) for label, one in read.items()]


def _value(cls: type[Protocol], name: str, text: str) -> object:
    """Text for a field of text, else what it says as JSON, else text that the settings will judge."""
    field = cls.model_fields.get(name)
    if field is not None and field.annotation is not str:
        with suppress(ValueError):
            return json.loads(text)
    return text


def _limit(option: str, value: float | None) -> float | None:
    if value is not None and not 0 <= value < float("inf"):
        raise SettingsError(f"invalid limit: {value}", where=option, do="Give 0 or more.")
    return value


def _cost(planned: Planned, foreseen: Sequence[Foreseen], models: Sequence[str], choice: Choice) -> Plan:
    """All of it as one plan, for those who ask what it costs."""
    paid_for = tuple(one for one in links(models) if paid(one))
    most: float | None = 0.0
    for row in foreseen:
        prices = [price(name, row.read, row.written) for name in paid_for]
        known = [found for found in prices if found is not None]
        once = None if len(known) < len(prices) else row.calls.max * max(known, default=0.0)
        if planned.money is not None and once is not None:
            once = min(once, row.runs * planned.money)
        most = None if most is None or once is None else most + once
    return Plan(
        protocol=planned.rows[0].protocol,
        agents=tuple(Agent(id=str(n), role="", model=name) for n, name in enumerate(dict.fromkeys(models))),
        why=choice.why,
        estimate=Estimate(min=sum(r.calls.min for r in foreseen), max=sum(r.calls.max for r in foreseen)),
        limits=Limits(money=planned.money),
        most_tokens=sum(row.tokens for row in foreseen),
        most_money=most,
        paid=paid_for,
        unspent_keys=choice.unspent_keys,
    )


def _first_line(planned: Planned, cost: Plan) -> str:
    why = f" ({cost.why})" if cost.why != "as asked" else ""
    parts = [
        f"{', '.join(row.label for row in planned.rows)} with {', '.join(cost.models)}{why}",
        count(len(planned.tasks), "task"),
        count(planned.runs, "run"),
        f"{describe_calls(cost.estimate)} foreseen",
        cost_words(cost),
    ]
    if cost.unspent_keys:
        parts.append(
            f"not spent: {', '.join(f'{key} (for --model {model})' for key, model in cost.unspent_keys.items())}"
        )
    return " · ".join(parts)


def _dry(planned: Planned, foreseen: Sequence[Foreseen], cost: Plan) -> str:
    lines = [
        "**Dry run of compare: nothing is asked, spent or recorded.**",
        "",
        "| row | runs | calls | tokens at most |",
        "|---|---|---|---|",
        *(f"| {r.row} | {r.runs:,} | {format_range(r.calls.min, r.calls.max)} | {r.tokens:,} |" for r in foreseen),
        "",
        f"- Tasks: {count(len(planned.tasks), 'task')}, seeds {planned.seeds[0]} to {planned.seeds[-1]}",
        f"- Budget: {_budget_words(planned)}",
        f"- Model: {', '.join(cost.models)} ({cost.why})",
        f"- Calls foreseen: {format_range(cost.estimate.min, cost.estimate.max)}, those recorded before included",
        f"- Tokens: at most {cost.most_tokens:,}, if every prompt were as long as it can be",
        f"- Money: {cost_words(cost)}",
        *(
            f"- **{r.row} may be cut short**: it needs up to {count(r.needs, 'call')} and the budget is sure to pay for "
            f"{r.allowed:,}; then it is not its whole course that is compared"
            for r in foreseen
            if r.needs
        ),
    ]
    return "\n".join(lines) + "\n"


def _budget_words(planned: Planned) -> str:
    bounds = [allotment.bound for allotment in planned.allotments.values()]
    if planned.budget.matched:
        matched = (
            f"; vote and solo+reviews matched by {planned.budget.match}" if planned.budget.match != "tokens" else ""
        )
        return f"what the dearest row could need, {format_range(min(bounds), max(bounds))} tokens a run{matched}"
    return f"{bounds[0]:,} {'tokens' if planned.budget.calls is None else 'calls'} a run"


def _dry_json(planned: Planned, foreseen: Sequence[Foreseen], cost: Plan) -> Mapping[str, object]:
    return {
        "dry_run": True,
        "rows": [
            {
                "row": r.row,
                "runs": r.runs,
                "calls": r.calls.model_dump(),
                "most_tokens": r.tokens,
                "needs": r.needs,
                "allowed": r.allowed,
            }
            for r in foreseen
        ],
        "tasks": [task.id for task in planned.tasks],
        "seeds": list(planned.seeds),
        "budget": planned.budget.model_dump(),
        "models": cost.models,
        "estimate": cost.estimate.model_dump(),
        "most_tokens": cost.most_tokens,
        "most_money": None if cost.programs else cost.most_money,
        "paid": list(cost.paid),
        "programs": cost.programs,
    }
