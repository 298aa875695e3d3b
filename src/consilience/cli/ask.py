"""The command `ask`: chooses how a question or a piece of work is done, says so with cost and time, and runs it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import Annotated

from consilience.choosing import (
    REASONS,
    ProtocolChoice,
    choice_json,
    choose,
    follow_up_sources,
    given_for,
    reading_of,
)
from consilience.cli.delivering import check_output
from consilience.cli.errors import notify
from consilience.cli.execution import RunExecution
from consilience.cli.inputs import assign_models, merge_sources, read_limits, read_panel, read_sources, read_task
from consilience.cli.options import NewSessionRequest, RunRequest, TargetRequest, argument, request_app
from consilience.cli.plan import approve, choose_model, confirm_spending
from consilience.cli.run import run
from consilience.cli.sessions import find_session, read_back, user_store
from consilience.cli.settings import load_config
from consilience.cli.setup import missing_weights
from consilience.configuration import Config
from consilience.deliberation import Deliberation
from consilience.documents import is_address
from consilience.domain.errors import SettingsError, SourceError, UnknownName
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, SpendingLimits
from consilience.domain.paths import expanded, journal_path
from consilience.domain.report import Report
from consilience.domain.session_ids import is_session_word
from consilience.engine.protocol import Protocol
from consilience.engine.usage import remaining_limits
from consilience.journal.open_store import open_store
from consilience.journal.store import Store
from consilience.model_words import key_notes
from consilience.planning import RunPlan, calls_words, check_models, cost_words, time_words
from consilience.protocols.choose import Choose, TaskReading
from consilience.reporting.files import claim_directory
from consilience.reporting.formatting import count, one_line
from consilience.run_plans import plan_deliberation
from consilience.sessions.durations import recorded_seconds


@dataclass(frozen=True, kw_only=True)
class AskRequest(NewSessionRequest):
    """Options of `ask`. Which agents there are is not known yet, so none is named."""

    words: Annotated[
        list[str],
        argument(
            "A question or a piece of work (@FILE reads it from a file, - from standard input), then files and directories "
            "that belong to it. The id of a session before it: a follow-up to its answer.",
            "[ID] TASK [FILE|DIR]…",
        ),
    ]
    agent: list[str] | None = field(default=None, init=False)
    agent_limit: list[str] | None = field(default=None, init=False)
    phase_limit: list[str] | None = field(default=None, init=False)

    def for_protocol(self, protocol: Protocol, work: AskedWork) -> NewSessionRequest:
        """Return the request of the protocol's command for this task."""
        own = {f.name for f in fields(NewSessionRequest)}
        common = {name: getattr(self, name) for name in own - {"source"}}
        if protocol.reads_target:
            return TargetRequest(**common, target=list(work.paths), focus=work.task)
        return RunRequest(**common, task=work.task)


@dataclass(frozen=True)
class AskedWork:
    """What a command line asks for."""

    task: str
    paths: tuple[str, ...]
    """Files and directories that were named."""
    sources: tuple[Source, ...]
    parent: str = ""
    """The session to which this is a follow-up."""


def ask(request: AskRequest) -> int:
    """Choose how a question or a piece of work is done, say what that costs, and run it. One call is often enough."""
    config = load_config(env_file=request.env_file, named=request.endpoints_named)
    check_output(Report, request)
    if request.out is not None and not request.dry_run:
        claim_directory(request.out)
    work = read_work(request)
    models = models_at_hand(request, config)
    panel = read_panel(request)
    given = given_for(
        work.sources,
        models,
        config.endpoints,
        files=work.paths,
        personas=len(panel.personas) if panel else 0,
        is_follow_up=work.parent != "",
    )
    choice, told = choose(given), list[str]()
    if choice is None and not request.dry_run:
        told = key_notes(models[:1], config.endpoints)
        for note in () if request.quiet else told:
            notify(note)
        reading, limits = read_by_model(work, models[0], request, config)
        choice = choose(given, reading)
        request = replace(request, **{f"max_{unit}": getattr(limits, unit) for unit in SpendingLimits.model_fields})
    unread = choice is None
    chosen = choice or choose(given, TaskReading(kind="answer"))
    assert chosen is not None

    def approval(plan: RunPlan, request: NewSessionRequest, config: Config) -> bool:
        if plan.limits.calls is not None and plan.limits.calls < plan.estimate.min:
            least = count(plan.estimate.min, "call")
            raise SettingsError(
                f"the limit leaves {count(plan.limits.calls, 'call')}, and {plan.protocol.name} needs at least {least}",
                where="--max-calls",
                do="Raise it; the reading of the task counts as one call.",
            )
        fitting = () if plan.fits else (f"{line}." for line in plan.fitting)
        notes = dict.fromkeys([*plan.details, *(line for line in fitting if f"Warning: {line}" not in plan.details)])
        return approve(
            replace(
                plan,
                details=[note for note in notes if note not in told],
                data={**plan.data, "choice": choice_json(chosen, unread=unread)},
            ),
            request,
            config,
            lines=proposal_lines(chosen, plan, work, usual_seconds(models), unread=unread),
            is_proposed=True,
        )

    return run(
        type(chosen.protocol),
        request.for_protocol(chosen.protocol, work),
        chosen.protocol.model_dump(exclude_unset=True),
        material=None if chosen.protocol.reads_target else (work.task, chosen.documents),
        approval=approval,
    )


def read_work(request: AskRequest) -> AskedWork:
    """Return what the words of a command line ask for. Raises `SourceError`, `SettingsError`, `UnknownName`."""
    words, parent, sources = list(request.words), "", []
    if is_session_word(words[0]):
        if len(words) == 1:
            raise SettingsError(
                "there is no question after the session", where=words[0], do=f'Give one: ask {words[0]} "And …?"'
            )
        with user_store() as store:
            parent = _parent(store, words.pop(0))
            sources = follow_up_sources(read_back(store, parent))
    task, *paths = words
    if task not in ("-", "") and len(task.split()) == 1 and expanded(task).exists():
        raise SettingsError(
            "there is no task before the file",
            where=task,
            do=f'Give one: ask "…" {task}. The file is the task: ask @{task}',
        )
    for path in paths:
        if path != "-" and not is_address(path) and not expanded(path).exists():
            raise SourceError(
                "there is no such file or directory",
                where=path,
                do="Put the task into quotation marks, before the files.",
            )
    sources = merge_sources([*sources, *read_sources([*paths, *(request.source or ())], ())])
    return AskedWork(read_task(task), tuple(paths), tuple(sources), parent)


def _parent(store: Store, name: str) -> str:
    """Return the session of this id or, for `last`, the latest one that is no reading of a task. Raises `UnknownName`."""
    if name != "last":
        return find_session(store, name)
    begun = ((session, store.beginning(session)) for session in reversed(store.sessions()))
    latest = next((session for session, started in begun if started and started.protocol != Choose.name), None)
    return find_session(store, latest or "last")


def models_at_hand(request: AskRequest, config: Config) -> tuple[str, ...]:
    """Return the names of the models that the options name, or the default one. All are checked."""
    choice = choose_model(request, config)
    seats = Choose().agents(None)
    first = assign_models(request, seats, {}, choice.name)
    models = tuple(dict.fromkeys((*first.values(), *(request.models or ()))))
    check_models(models, config.endpoints, keys=not request.dry_run, origin=choice.why if choice.name else "")
    return models


def read_by_model(work: AskedWork, model: str, request: AskRequest, config: Config) -> tuple[TaskReading, Limits]:
    """Return what a model reads in a task, and the limits that are left. It is one call, in a session of its own.

    Raises `SettingsError` without consent to its cost, `UnknownName` without a usable reply.
    """
    protocol = reading_of(work.sources)
    agents = protocol.agents(None)
    models, limits = {agents[0].id: model}, read_limits(request, agents)
    deliberation = Deliberation(
        protocol, model=models, seed=request.seed, limits=limits, options=request.options(config.endpoints)
    )
    plan = plan_deliberation(deliberation, work.task, choose_model(request, config))
    confirm_spending(plan, yes=request.yes, confirm_above=config.confirm_above)
    with closing(open_store(":memory:" if request.no_store else None, writing=True)) as store:
        execution = RunExecution.open(request, store, plan, config.endpoints, stored=not request.no_store)
        deliberation = replace(deliberation, model=execution.seat(models), store=store)
        report = execution.start(
            protocol.name,
            lambda options, session: replace(deliberation, options=options).run(work.task, session=session),
        )
    if report.reading is None:
        raise UnknownName(
            f"{model} gave no usable reading of the task",
            where=f"session {report.session}",
            do='Name a protocol: consilience solo "…" is one call; consilience --help lists them all.',
        )
    return report.reading, remaining_limits(limits, report.ledger.actual)


def proposal_lines(
    choice: ProtocolChoice, plan: RunPlan, work: AskedWork, seconds: Sequence[float], *, unread: bool
) -> list[str]:
    """Return what is run, why, and what it costs in money and time, with what is done before."""
    settings = choice.protocol.model_dump(exclude_unset=True)
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())
    protocol = f"{choice.protocol.name}{f' ({options})' if options else ''}: {choice.protocol.summary}"
    why = REASONS[choice.rule]
    if choice.reading and choice.reading.why:
        why += f". Read as {choice.reading.kind}: “{one_line(choice.reading.why, 160).rstrip('.')}”"
    lines = [f"{protocol[:1].upper()}{protocol[1:]}.", f"Why: {why}."]
    if unread:
        lines.insert(0, "One call reads the task first; what is run depends on it. For a plain question it is this:")
    if work.parent:
        lines.append(f"A follow-up to session {work.parent}.")
    cost = cost_words(plan)
    lines.append(f"{cost[:1].upper()}{cost[1:]}; {calls_words(plan)}. {time_words(plan, seconds)}")
    if missing := missing_weights(plan.models):
        lines.append(f"Before that, weights are downloaded: {', '.join(missing)} (1 to 3 GB).")
    return lines


def usual_seconds(models: Sequence[str]) -> list[float]:
    """Return how long the latest recorded calls of these models took; see `sessions.durations`."""
    path = journal_path()
    if not path.exists():
        return []
    with closing(open_store(path)) as store:
        return recorded_seconds(store, models)


def app_for(name: str) -> object:
    return request_app(name, AskRequest, ask)
