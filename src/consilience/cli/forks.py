"""The commands `fork` and `tell`: a new session that inherits from another, planned, approved, executed, delivered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import typer

from consilience.cli.delivering import check_output, declared_by_all
from consilience.cli.errors import EXIT_OK, run_until_done
from consilience.cli.execution import RunExecution
from consilience.cli.fork_options import ForkRequest, InheritingRequest, TellRequest
from consilience.cli.inputs import (
    assign_models,
    own_models,
    read_limits,
    read_pairs,
    read_sources,
    read_task,
    unassigned_models,
)
from consilience.cli.options import request_app
from consilience.cli.plan import approve
from consilience.cli.sessions import confirm_code, find_session, user_store
from consilience.cli.settings import confirm_recorded_programs, load_config, setting_value
from consilience.domain.outcome import Limits
from consilience.engine import fork as forks
from consilience.engine.protocol import check_phases
from consilience.engine.runner import start_event
from consilience.engine.sent_prompts import replaced_without_effect
from consilience.journal.store import Store
from consilience.models.embeddings import check_encoder
from consilience.models.registry import Choice
from consilience.planning import check_models, inheritance_words
from consilience.run_plans import leads_nowhere, plan_of_fork


def fork_session(request: ForkRequest) -> int:
    """Continue from an event of a session with changes, in a new session that inherits the calls before it.

    Inherited calls are not paid for again, unless they quote new replies. Limits apply to the fork alone; limits that are not
    given are the parent's.
    """
    with user_store() as store:
        parent = find_session(store, request.id)
        old = start_event(parent, store.read(parent))
        confirm_code(store, parent)
        changes = replace(
            _changes(request),
            settings={
                name: setting_value(partial(forks.changed_protocol, old), name, text)
                for name, text in read_pairs("--set", "KEY=VALUE", request.set).items()
            },
            perspectives=read_pairs("--perspective", "ID=TEXT", request.perspective),
            task=None if request.task is None else read_task(request.task),
        )
        planned = forks.plan_fork(parent, store=store, at=request.at, changes=changes)
        return _run_fork(request, store, planned, f"from event {planned.at}")


def tell_session(request: TellRequest) -> int:
    """Tell a finished session a new fact, in a new session: agents give their final positions again, and a new answer is written.

    The report names the agents that changed position. All other calls are inherited and not paid for again. The finished session
    stays as it is.
    """
    with user_store() as store:
        parent = find_session(store, request.id)
        confirm_code(store, parent)
        planned = forks.plan_telling(parent, request.fact, store=store, changes=_changes(request))
        return _run_fork(request, store, planned, "with a new fact")


def _changes(request: InheritingRequest) -> forks.ForkChanges:
    return forks.ForkChanges(
        replace=read_pairs("--replace-agent", "ID=MODEL", request.replace_agent),
        prompts=request.prompts_directory,
        encoder=request.encoder,
        detail=request.detail,
    )


def _run_fork(request: InheritingRequest, store: Store, planned: forks.Fork, position: str) -> int:
    config = load_config(env_file=request.env_file, named=request.endpoints_named)
    check_output(planned.protocol.report, request)
    planned, models = _with_models(request, planned)
    idle = leads_nowhere(planned, store)
    check_models(models.values(), config.endpoints, keys=not request.dry_run, origin="as recorded")
    check_models(unassigned_models(request, planned.agents), config.endpoints, keys=False)
    if request.encoder is not None:
        check_encoder(request.encoder)
    remarks = [remark for document in planned.documents for remark in document.remarks]
    notes = run_until_done(replaced_without_effect(planned, store=store))
    if idle and not request.dry_run:
        raise forks.no_call_error(planned, notes)
    plan = plan_of_fork(
        planned,
        Choice("", "" if request.model or request.models or request.replace_agent else "as in the parent"),
        known=config.endpoints,
        thinking=request.thinking,
    )
    origin = f"Fork of {planned.parent} {position}: {inheritance_words(planned)}"
    place = {"parent": planned.parent, "forked_at": planned.at, "inherited": planned.replies}
    place |= {"failures_inherited": len(planned.failures), "asked_again": planned.asked_again}
    if idle:
        notes.append(f"This fork will be refused: {forks.no_call_error(planned)}")
    plan = replace(plan, unfit=None, preamble=origin, details=[*plan.details, *remarks, *notes], data=place)
    if not approve(plan, request, config):
        return EXIT_OK
    confirm_recorded_programs(name for name in plan.programs if name not in request.endpoints_named)
    execution = RunExecution.open(request, store, plan, config.endpoints)
    planned = replace(planned, models=execution.seat(models))
    report = execution.start(
        plan.protocol.name,
        lambda options, session: forks.fork(planned, store=store, session=session, options=options),
    )
    return execution.deliver(report)


def _with_models(request: InheritingRequest, planned: forks.Fork) -> tuple[forks.Fork, dict[str, str]]:
    """Return the fork with its models, documents and limits, and the model's name by agent. Limits default to the parent's."""
    sources = read_sources(request.source or (), planned.agents)
    limits = {name: value for name, value in read_limits(request, planned.agents) if value not in (None, {})}
    models_by_name = {id: str(name) for id, name in planned.models.items()}
    if request.model is not None or request.models is not None:
        models_by_name = own_models("--replace-agent", request.replace_agent or (), planned.agents)
    models = assign_models(request, planned.agents, models_by_name, None)
    planned = planned.with_models(models).with_sources(sources, limits=planned.limits.model_copy(update=limits))
    check_phases(planned.protocol, Limits(phases=limits.get("phases", {})))
    return planned, models


def fork_app(name: str) -> typer.Typer:
    """Return the command `fork`, with the options that the report of any protocol declares."""
    own = declared_by_all()
    return request_app(name, ForkRequest, fork_session, parameters=own.parameters, read=own.read)


tell = request_app("tell", TellRequest, tell_session)
