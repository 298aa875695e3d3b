"""Carrying out a fork: read, plan, agree, fetch, run, show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from consilience.cli.config import load_config, load_env_file
from consilience.cli.consent import agree
from consilience.cli.desk import desk_for
from consilience.cli.failures import DONE, say
from consilience.cli.fetch import ensure_weights
from consilience.cli.inputs import deal_models, read_limits, undealt, unused
from consilience.cli.output import print_json
from consilience.cli.plan import Plan, check_models, cost_words, dry_run, dry_run_json, make_plan
from consilience.cli.request import Request
from consilience.cli.run import deliver, held, new_id, watch, without_report
from consilience.cli.sessions import find_session, user_store
from consilience.domain.errors import SettingsError
from consilience.domain.events import CallCompleted, SessionStarted
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.engine import fork as forks
from consilience.engine.protocol import Protocol
from consilience.journal.store import Store
from consilience.models.names import Choice
from consilience.reporting.files import claim_directory
from consilience.reporting.terminal import show
from consilience.reporting.words import calls_words, count


@dataclass(frozen=True)
class Asked:
    """What to fork, where, and what to change, as typed."""

    parent: str
    at: str
    settings: Mapping[str, str]
    replace: Mapping[str, str]
    perspectives: Mapping[str, str]


def go(asked: Asked, request: Request) -> int:
    """Fork a session and run it. Returns the exit code; raises `UserError`s before anything is spent or made."""
    if request.env_file is not None:
        load_env_file(request.env_file)
    config = load_config()
    if request.out is not None:
        claim_directory(request.out)
    with user_store() as store:
        parent = find_session(store, asked.parent)
        events = store.read(parent)
        old = forks.beginning(parent, events)
        last = forks.position(parent, events, asked.at)
        settings = _typed(old, asked.settings)
        protocol = forks.changed(old, settings)
        models = _models(asked, request, old, protocol)
        check_models(models.values(), keys=not request.dry_run, why="as recorded")
        check_models(undealt(request, list(models)), keys=False)
        limits = _limits(request, old, protocol)
        plan = _plan(asked, request, old, protocol, models, limits, store)
        kept = sum(isinstance(event, CallCompleted) for event in forks.inheritance(events, last, old.encoder))
        if not request.quiet:
            for line in unused(request, plan.agents):
                say(line)
        if request.dry_run:
            _say_plan(plan, request, parent, last, kept)
            return DONE
        if not request.quiet:
            say(_first_line(plan, parent, last, kept))
        agree(plan, yes=request.yes, confirm_above=config.confirm_above)
        ensure_weights(plan.models, quiet=request.quiet)
        session = new_id(store)
        desk = desk_for(models.values())
        report = watch(
            lambda options: forks.fork(
                parent,
                store=store,
                at=last,
                settings=settings,
                models=desk.seat(models) if desk else models,
                perspectives=asked.perspectives,
                prompts=request.prompts,
                limits=limits,
                encoder=request.encoder,
                session=session,
                options=options,
            ),
            session=session,
            title=f"{protocol.name} {session}",
            models=plan.models,
            desk=desk,
            quiet=request.quiet,
            cache=request.cache or None,  # what the parent has
            as_json=request.json,
        )
        if isinstance(report, int):
            return without_report(report, session, store, as_json=request.json)
        return held(report, request, deliver(report, out=request.out, as_json=request.json))


def _typed(old: SessionStarted, settings: Mapping[str, str]) -> dict[str, object]:
    """Values as the settings read words; where they cannot, as JSON: lists are written so."""
    found: dict[str, object] = {}
    for name, words in settings.items():
        try:
            forks.changed(old, {name: words})
            found[name] = words
        except SettingsError:
            try:
                found[name] = json.loads(words)
            except ValueError:
                found[name] = words
    return found


def _models(asked: Asked, request: Request, old: SessionStarted, protocol: Protocol) -> dict[str, str]:
    """A name for every agent of the fork."""
    agents = forks.seats(old, protocol, asked.perspectives)
    replaced = [f"{id}={name}" for id, name in asked.replace.items()]
    if request.model is not None or request.models is not None:
        given = Request(task="", model=request.model, models=request.models, agent=replaced)
        return deal_models(given, agents, None)
    kept = forks.dealt(old, protocol, None, asked.replace)
    assert isinstance(kept, Mapping)
    names = {id: str(name) for id, name in kept.items()}
    return deal_models(Request(task="", agent=[f"{id}={name}" for id, name in names.items()]), agents, "local")


def _limits(request: Request, old: SessionStarted, protocol: Protocol) -> Limits:
    """Those given in place of the parent's, kind by kind."""
    given = read_limits(request, protocol.agents(None))
    return old.limits.model_copy(update={name: value for name, value in given if value not in (None, {})})


def _plan(
    asked: Asked,
    request: Request,
    old: SessionStarted,
    protocol: Protocol,
    models: Mapping[str, str],
    limits: Limits,
    store: Store,
) -> Plan:
    sources = [Source(text=store.text(s.text), name=s.name, agents=s.agents) for s in old.sources]
    agents = forks.seats(old, protocol, asked.perspectives)
    encoder = request.encoder or old.encoder
    task = store.text(old.task)
    return make_plan(
        protocol, agents, models, Choice("", "as in the parent"), limits, task, sources, request.prompts, encoder
    )


def _first_line(plan: Plan, parent: str, last: int, kept: int) -> str:
    return (
        f"A fork of {parent} from event {last}: {count(kept, 'reply', 'replies')} inherited, not paid for again · "
        f"{plan.protocol.name} with {', '.join(plan.models)} · "
        f"{calls_words(plan.estimate)} foreseen in all · {cost_words(plan)}"
    )


def _say_plan(plan: Plan, request: Request, parent: str, last: int, kept: int) -> None:
    if request.json:
        body = {"parent": parent, "forked_at": last, "inherited": kept, **dry_run_json(plan)}
        print_json(body)
    else:
        show(dry_run(plan) + f"- A fork of {parent} from event {last}: {count(kept, 'reply', 'replies')} inherited\n")
