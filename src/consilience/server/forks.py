"""Forks and told facts of callers: planned and checked, before anything is recorded."""

from __future__ import annotations

from consilience.engine.fork import Fork, ForkChanges, no_call_error, plan_fork, plan_telling
from consilience.engine.protocol import recorded_protocol
from consilience.engine.runner import start_event
from consilience.journal.store import Store
from consilience.models.endpoints import Endpoints
from consilience.run_plans import leads_nowhere
from consilience.server.bodies import ForkBody, TellBody
from consilience.server.callers import Caller
from consilience.server.checks import check_allowed, check_priced, check_settings
from consilience.server.settings import ServerSettings


def planned_fork(
    store: Store, caller: Caller, settings: ServerSettings, session: str, body: ForkBody | TellBody, known: Endpoints
) -> Fork:
    """Return a fork. All its models are ones that the caller may choose and pay for, those of the parent too. Blocks on the disk.

    Raises `UnknownName`, `SettingsError`, `Forbidden`.
    """
    protocol = recorded_protocol(start_event(session, store.read(session)).protocol)
    caller.check_protocol(protocol.name)
    check_allowed(caller, settings, body.replace.values(), where="replace")
    changes = ForkChanges(replace=body.replace, sources=body.sources, limits=body.limits)
    if isinstance(body, TellBody):
        planned = plan_telling(session, body.fact, store=store, changes=changes)
    else:
        check_settings(protocol, body.settings)
        changes = ForkChanges(
            replace=body.replace,
            sources=body.sources,
            limits=body.limits,
            settings=body.settings,
            perspectives=body.perspectives,
            task=body.task,
        )
        planned = plan_fork(session, store=store, at=body.at, changes=changes)
    models = [str(model) for model in planned.models.values()]
    check_allowed(caller, settings, models, where="replace")
    check_priced(caller, [*models, *([planned.encoder] if isinstance(planned.encoder, str) else ())], known)
    if leads_nowhere(planned, store):
        raise no_call_error(planned)
    return planned


def fork_json(planned: Fork) -> dict[str, object]:
    """Return what a fork inherits and asks again."""
    return {
        "parent": planned.parent,
        "forked_at": planned.at,
        "inherited": planned.replies,
        "failures_inherited": len(planned.failures),
        "asked_again": planned.asked_again,
        "calls": planned.protocol.estimate().max if planned.calls is None else planned.calls,
        "models": {id: str(model) for id, model in planned.models.items()},
    }
