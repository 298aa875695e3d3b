"""The commands that run a session, `resume` and one per protocol: planned, approved, executed, delivered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli.delivering import (
    TEXT_FORMATS,
    Declared,
    apply_conditions,
    as_begun,
    check_output,
    declared_by_all,
    write_deliveries,
)
from consilience.cli.earlier import read_earlier
from consilience.cli.errors import EXIT_OK, notify, option_spelling, print_json, with_options
from consilience.cli.execution import RunExecution
from consilience.cli.fork_options import ForkRequest
from consilience.cli.inputs import (
    assign_models,
    own_models,
    read_file,
    read_limits,
    read_material,
    read_panel,
    read_request,
    target_json,
    target_lines,
    task_of,
    unassigned_models,
)
from consilience.cli.options import (
    NewSessionRequest,
    ResumeRequest,
    RunRequest,
    SectionedCommand,
    TargetRequest,
    new_app,
    options_in,
    parameters_of,
    request_app,
    set_signature,
)
from consilience.cli.plan import approve, choose_model
from consilience.cli.sessions import find_session, read_back, user_store
from consilience.cli.settings import (
    confirm_recorded_code,
    confirm_recorded_programs,
    load_config,
    read_settings,
    setting_options,
    setting_parameter,
)
from consilience.configuration import Config
from consilience.deliberation import AUTO_PANEL, Deliberation
from consilience.domain.agents import Agent, in_dealing_order
from consilience.domain.errors import SessionBusy, SettingsError, UnavailableModel, UnknownName, UserError
from consilience.domain.events import SessionStarted
from consilience.domain.messages import FILE, Source
from consilience.domain.model_names import is_endpoint
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.usage import LedgerReport, UsageTotals
from consilience.domain.validation import InvalidValues
from consilience.engine.dealing import deal_for
from consilience.engine.protocol import Protocol, check_phases, find_protocol, recorded_protocol, report_type
from consilience.engine.runner import check_quorum, missing_encoder
from consilience.engine.seats import of_persona, seat_warnings
from consilience.engine.templates import recorded_templates
from consilience.journal.open_store import open_store
from consilience.journal.store import Store
from consilience.model_words import recorded_level
from consilience.models.embeddings import MiniLM, ProviderEncoder, check_encoder, open_encoder
from consilience.models.endpoints import Endpoints
from consilience.models.registry import Choice
from consilience.planning import PERSONA, RunPlan, check_models, make_plan
from consilience.reporting.export import report_data, save_report
from consilience.reporting.files import claim_directory
from consilience.reporting.formatting import count
from consilience.reporting.session_state import SessionState, fold_events
from consilience.run_plans import plan_deliberation
from consilience.targets import Target

if TYPE_CHECKING:
    from typer._click import Context

OF_TARGET = ("left_out", "unread_files", "known_findings", "reviewed_commit", "reviewed_base")
"""Settings that follow from the target, which a report has too."""

COMMON = frozenset({"model", "models", "source", "max_cost", "out", "panel", "dry_run"})
"""With the first `COMMON_SETTINGS` settings of the protocol, the ten options that `--help` shows."""

COMMON_SETTINGS = 3

COMMON_TARGET = frozenset({"model", "max_cost", "dry_run", "diff", "staged", "since", "focus"})
"""The same for a protocol that reads a target, with what its report declares and the first `COMMON_TARGET_SETTINGS` settings."""

COMMON_TARGET_SETTINGS = 2


def app_for(name: str) -> typer.Typer:
    """Return the command of a protocol: its options are the settings and those of a request. Raises `UnknownName`."""
    cls = find_protocol(name)
    request_class = TargetRequest if cls.reads_target else RunRequest
    common = [*(field.name for field in options_in(request_class)), "format", "asked"]
    declared = Declared(cls.report)
    settings = setting_options(cls, [*common, *(parameter.name for parameter in declared.parameters)])

    def command(ctx: typer.Context, **values: Any) -> None:
        values = declared.read(values)
        request = request_class(**{name: values.pop(name) for name in common})
        options_given = {
            field: _setting_value(cls, field, values[name], option_spelling(name))
            for name, field in settings.items()
            if _is_given(ctx, name)
        }
        try:
            code = run(cls, request, options_given)
        except InvalidValues as error:
            raise with_options(error, settings, options_given) from None
        raise typer.Exit(code)

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    setting_parameters = [
        setting_parameter(cls.model_fields[field], name, f"Settings of {cls.name}") for name, field in settings.items()
    ]
    set_signature(command, [context, *setting_parameters, *parameters_of(request_class), *declared.parameters])
    fixed, n = (COMMON_TARGET, COMMON_TARGET_SETTINGS) if cls.reads_target else (COMMON, COMMON_SETTINGS)

    class ProtocolCommand(SectionedCommand):
        common = fixed | declared.common | frozenset([name for name in settings if name != "reply_tokens"][:n])

    app = new_app()
    app.command(name, cls=ProtocolCommand, help=f"{name}: {cls.summary}.")(command)
    return app


def _is_given(ctx: typer.Context, parameter: str) -> bool:
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


def _setting_value(cls: type[Protocol], field: str, value: object, option: str) -> object:
    """Return the value of a setting: the file's text if the option names a file. Raises `SettingsError`, `SourceError`."""
    if isinstance(value, list | tuple) and any(isinstance(text, str) and not text.strip() for text in value):
        raise SettingsError("a text is empty", where=option, do="Give words, or leave it out.")
    if FILE not in cls.model_fields[field].metadata:
        return value
    return read_file(str(value), f"the {field}")


Approval = Callable[[RunPlan, NewSessionRequest, Config], bool]
"""Says what is planned, gets consent to its cost, and returns whether to run it."""


def run(
    cls: type[Protocol],
    request: NewSessionRequest,
    settings: Mapping[str, object],
    *,
    material: tuple[str, Sequence[Source]] | None = None,
    approval: Approval = approve,
) -> int:
    """Run a protocol; return the exit code. Raises `UserError` before anything is spent.

    `material` is the task with its documents, if they are not those that the request names.
    """
    config = load_config(env_file=request.env_file, named=request.endpoints_named)
    target = None
    check_output(cls.report, request)
    if isinstance(request, TargetRequest):
        earlier = read_earlier(request.since)
        target = read_request(request, earlier)
        of_target = {name: value for name, value in _of_target(target).items() if name in cls.model_fields}
        settings = {**settings, **of_target, **cls.settings_after(earlier, target.texts, target.renamed)}
        if not target.sources:
            return _report_nothing(read_settings(cls, settings, config), request, target)
    task, deliberation, plan = _prepare(cls, request, settings, config, target, material)
    if not approval(plan, request, config):
        return EXIT_OK
    with closing(open_store(":memory:" if request.no_store else None, writing=True)) as store:
        execution = RunExecution.open(request, store, plan, config.endpoints, stored=not request.no_store)
        deliberation = replace(deliberation, store=store, model=execution.seat(plan.models_by_agent))
        if request.panel == AUTO_PANEL:
            sources = (source for source in deliberation.sources if isinstance(source, Source))
            undealt = [source.model_copy(update={"shares": ()}) for source in sources]
            deliberation = replace(deliberation, sources=undealt)  # they are dealt to the seats that are proposed
            proposing = deliberation.proposing()
            proposed = execution.start(
                "propose",
                lambda options, session: replace(proposing, options=replace(options, name="", deal="none")).run(
                    task, session=session
                ),
            )
            models = _reassigned_models(plan, proposed.panel, request)
            deliberation = replace(deliberation.with_proposed(proposed), model=execution.seat(models))
            if not request.quiet and proposed.panel is not None:
                notify(f"The panel ({proposed.session}): {', '.join(proposed.panel.names)}.")
        report = execution.start(
            plan.protocol.name,
            lambda options, session: replace(deliberation, options=options).run(task, session=session),
        )
        return execution.deliver(report)


def _of_target(target: Target) -> Mapping[str, object]:
    """Return the settings that follow from a target."""
    return {
        "left_out": target.left_out,
        "unread_files": target.unread,
        "not_searched": target.not_searched,
        "reviewed_commit": target.commit,
        "reviewed_base": target.base,
    }


def _report_nothing(protocol: Protocol, request: TargetRequest, target: Target) -> int:
    """Report that there is nothing to review, in the format asked for and without a session; return the exit code."""
    lines = [f"Nothing to review: {target.title}.", *target_lines(target)[1:]]
    report = protocol.report.model_validate(
        {
            "protocol": protocol.name,
            "task": task_of(target, None),
            "settings": protocol.model_dump(mode="json"),
            "seed": request.seed,
            "agents": (),
            "topology": protocol.topology(),
            "stop_reason": StopReason.SETTLED,
            "replied": 0,
            "quorum_met": True,
            "answer": lines[0],
            "ledger": LedgerReport(estimated=Estimate(min=0, max=0), actual=UsageTotals()),
            **{name: getattr(protocol, name) for name in OF_TARGET if name in protocol.report.model_fields},
        }
    )
    if not request.dry_run:
        write_deliveries(report, request)
        if request.out is not None:
            save_report(report, request.out)
    if request.output_format in TEXT_FORMATS:
        typer.echo("\n".join(lines))
    else:
        print_json(report_data(report, request.output_format))
    return EXIT_OK if request.dry_run else apply_conditions(report, request, EXIT_OK)


def _prepare(
    cls: type[Protocol],
    request: NewSessionRequest,
    settings: Mapping[str, object],
    config: Config,
    target: Target | None,
    material: tuple[str, Sequence[Source]] | None,
) -> tuple[str, Deliberation[Report], RunPlan]:
    """Return the task, how it is deliberated on, and the plan of that."""
    panel = read_panel(request)
    protocol = read_settings(cls, settings, config).with_panel(panel)
    agents = in_dealing_order(protocol.agents(panel))
    limits = read_limits(request, agents)
    check_phases(protocol, limits)
    check_quorum(request.quorum, "--quorum")
    task, sources = material or read_material(request, target, agents)
    models, choice, origins = _choose_models(request, config, agents)
    options = request.options(config.endpoints)
    dealt, sources = deal_for(protocol, sources, options, models, panel, task)
    if dealt is not protocol:  # it has other agents
        protocol, agents = dealt, in_dealing_order(dealt.agents(panel))
        limits = read_limits(request, agents)
        models, choice, origins = _choose_models(request, config, agents)
    deliberation: Deliberation[Report] = Deliberation(
        protocol,
        model=models,
        panel=AUTO_PANEL if request.panel == AUTO_PANEL else panel,
        sources=sources,
        seed=request.seed,
        limits=limits,
        quorum=request.quorum,
        encoder=_encoder(protocol, request, config.endpoints),
        prompts=request.prompts_directory,
        options=options,
    )
    plan = plan_deliberation(deliberation, task, choice, encoder=request.encoder)
    table = config.tables.get(cls.name, {})
    configured = {name: path for name, (_, path) in table.items() if name not in settings}
    details = [*plan.details, *protocol.limit_warnings(limits), *(target_lines(target) if target else [])]
    details += [remark for source in sources for remark in source.remarks]
    if request.panel == AUTO_PANEL:
        details.append("A panel is proposed first, by one additional call.")
    details += [f"{warning[:1].upper()}{warning[1:]}." for warning in seat_warnings(protocol, panel)]
    data = target_json(target) if target else {}
    return task, deliberation, replace(plan, details=details, configured=configured, origins=origins, data=data)


def _choose_models(
    request: NewSessionRequest, config: Config, agents: Sequence[Agent]
) -> tuple[dict[str, str], Choice, dict[str, str]]:
    """Return the models by agent, why the default one was chosen, and what named the models of single agents. All are checked."""
    models_of_agents = own_models("--agent", request.agent or (), agents)
    by_persona = {agent.id: PERSONA for agent in agents if agent.model}
    origins = by_persona | dict.fromkeys(models_of_agents, "--agent")
    choice = choose_model(request, config, len(agents), len(origins))
    models = assign_models(request, agents, models_of_agents, choice.name)
    keys = not request.dry_run
    for agent in agents:
        if origins.get(agent.id) == PERSONA:
            try:
                check_models([agent.model], config.endpoints, keys=keys)
            except UserError as error:
                raise of_persona(error, agent, f"--agent {agent.id}=MODEL") from None
    check_models(models.values(), config.endpoints, keys=keys, origin=choice.why if choice.name else "")
    check_models(unassigned_models(request, agents), config.endpoints, keys=False)
    return models, choice, origins


def _reassigned_models(plan: RunPlan, panel: Panel | None, request: NewSessionRequest) -> Mapping[str, str]:
    """Return the models by agent after a panel was proposed, which may change the seats."""
    protocol = plan.protocol
    if protocol.with_panel(panel) == protocol:
        return plan.models_by_agent
    agents = in_dealing_order(protocol.with_panel(panel).agents(panel))
    models_of_agents = own_models("--agent", request.agent or (), agents)
    return assign_models(request, agents, models_of_agents, plan.models[0])


def _encoder(protocol: Protocol, request: NewSessionRequest, known: Endpoints) -> MiniLM | ProviderEncoder | None:
    """Return the encoder, ready to use; None in a dry run. Raises `UserError` if it is missing or unusable."""
    if protocol.needs_encoder and request.encoder is None:
        raise missing_encoder(protocol)
    if request.encoder is None:
        return None
    check_encoder(request.encoder)
    if request.dry_run:
        check_models([request.encoder] if is_endpoint(request.encoder) else [], known, keys=False)
        return None
    return open_encoder(request.encoder, known)


def resume_session(request: ResumeRequest) -> int:
    """Resume a session; recorded calls are not paid for again."""
    config = load_config(env_file=request.env_file, named=request.endpoints_named)
    with user_store() as store:
        session = find_session(store, request.id)
        events = store.read(session)
        state = fold_events(events)
        started = state.started
        report_class = (started and report_type(started.protocol)) or Report
        if started is not None:
            request = as_begun(request, report_class, started.deliveries, finished=state.finished is not None)
        check_output(report_class, request)
        plan = None
        if state.finished is not None:
            if request.out is not None:
                claim_directory(request.out)
            if not request.quiet:
                notify(f"{session} is already finished; its report follows.")
            request = replace(request, quiet=True)
        elif holder := store.holder(session):
            raise SessionBusy(
                f"session {session} is being run by {holder}",
                do="Wait for it to end, or stop that process; then try again.",
            )
        elif started is not None and (state.cancel is None or state.cancel.answer):
            confirm_recorded_code(started, store)
            plan = _remaining_plan(started, state.made, store, config.endpoints)
            _check_recorded(session, plan)
            approve(plan, request, config, lines=[_resume_line(session, state, store)])
            confirm_recorded_programs(plan.programs)
        execution = RunExecution.open(request, store, plan, config.endpoints)
        seated = execution.seat(plan.models_by_agent) if plan else None
        report = execution.watch(
            lambda options: Deliberation[Report](model=seated, store=store, options=options).resume(session),
            session=session,
            title=f"{started.protocol if started else ''} {session}".strip(),
            recorded_events=events,
        )
        return execution.deliver(report, read_back(store, session).presentation if state.finished else None)


def _remaining_plan(started: SessionStarted, calls_made: int, store: Store, known: Endpoints) -> RunPlan:
    """Return the plan of the rest of a session."""
    plan = make_plan(
        recorded_protocol(started.protocol).model_validate(started.settings),
        started.agents,
        {agent.id: agent.model for agent in started.agents},
        Choice("", "as recorded"),
        known=known,
        limits=started.limits,
        task=store.text(started.task),
        sources=[
            Source(text=store.text(s.text), name=s.name, agents=s.agents, shares=s.shares, purpose=s.purpose)
            for s in started.sources
        ],
        templates=recorded_templates(recorded_protocol(started.protocol), started, store.text),
        encoder=started.encoder,
        thinking=recorded_level(started.thinking),
        detail=started.detail,
        inventory_tokens=started.inventory_tokens,
        calls_made=0 if started.steps else calls_made,  # the number of remaining steps of a tool agent is unknown
    )
    return replace(plan, limits_adjustable=False)


def _check_recorded(session: str, plan: RunPlan) -> None:
    """Raise for a model that is not available now. A model object passed by a program has no name here."""
    try:
        check_models(plan.models, plan.known, keys=True)
    except UnknownName as error:
        raise UnavailableModel(
            f"session {session} was started by a program with a model of its own, which has no name here: {error.what}",
            do=f"Pass it again from Python: consilience.resume({session!r}, model={{id: model, …}}).",
        ) from None


def _resume_line(session: str, state: SessionState, store: Store) -> str:
    known = [f"{count(state.made, 'call')} recorded"] if state.made else []
    known += [f"{count(state.inherited, 'call')} inherited"] if state.inherited else []
    parts = [f"{', '.join(known)}, not paid for again" if known else "no call is recorded yet"]
    if failed := len(state.failed):
        parts.append(
            f"{count(failed, 'failed call')} not made again (a fork does: consilience fork {session} --at end)"
        )
    from_outside = (*state.awaited, *state.answered, *state.tickets, *state.asked)
    if kept := [arrival.key for arrival in store.arrivals(session)]:
        parts.append(f"{count(len(kept), 'reply')} arrived before it stopped, not paid for again")
    if in_flight := [flight.key for flight in store.flights(session) if flight.key not in (*from_outside, *kept)]:
        parts.append(f"{len(in_flight)} in flight when it stopped, repeated")
    return f"Resuming {session}: {'; '.join(parts)}."


class ResumeCommand(SectionedCommand):
    """`resume`, which refers to `fork` for an option that only a fork takes."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", "")
            own = {spelling for parameter in self.get_params(ctx) for spelling in parameter.opts}
            if name not in own and name in {f"--{field.name.replace('_', '-')}" for field in options_in(ForkRequest)}:
                advice = f"a fork takes others: consilience fork ID --at end {name} …"
                ctx.fail(f"No such option: {name}. A resume keeps the recorded settings and limits; {advice}")
            raise


def resume_app(name: str) -> typer.Typer:
    """Return the command `resume`, with the options that the report of any protocol declares."""
    own = declared_by_all()
    return request_app(
        name, ResumeRequest, resume_session, command_class=ResumeCommand, parameters=own.parameters, read=own.read
    )
