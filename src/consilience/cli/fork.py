"""Carrying out a fork: read, plan, agree, fetch, run, show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from consilience.cli.config import load_config
from consilience.cli.errors import DONE, print_json, say
from consilience.cli.inputs import deal_models, read_limits, read_sources, read_task, undealt, unused
from consilience.cli.options import ForkRequest, Request
from consilience.cli.plan import Plan, check_models, confirm_spending, cost_words, dry_run, dry_run_json, make_plan
from consilience.cli.prompter import prompter_for
from consilience.cli.run import deliver, held, new_id, watch, without_report
from consilience.cli.sessions import find_session, user_store
from consilience.cli.setup import ensure_weights
from consilience.domain.errors import SettingsError
from consilience.domain.events import SessionStarted
from consilience.domain.messages import Source
from consilience.engine import fork as forks
from consilience.journal.store import Store
from consilience.models.embeddings import check_encoder
from consilience.models.registry import Choice
from consilience.reporting.files import claim_directory
from consilience.reporting.formatting import count, describe_calls
from consilience.reporting.markdown import print_markdown


@dataclass(frozen=True)
class Asked:
    """What to fork, where, and what to change, as typed."""

    parent: str
    at: str
    settings: Mapping[str, str]
    replace: Mapping[str, str]
    perspectives: Mapping[str, str]
    task: str | None = None


def run_fork(typed: ForkRequest) -> int:
    """Fork a session and run it. Returns the exit code; raises `UserError`s before anything is spent or made."""
    asked = Asked(
        parent=typed.id,
        at=typed.at,
        settings=_pairs("--set", "KEY=VALUE", typed.set),
        replace=_pairs("--replace-agent", "ID=MODEL", typed.replace_agent),
        perspectives=_pairs("--perspective", "ID=TEXT", typed.perspective),
        task=typed.task,
    )
    request = typed.request
    config = load_config(env_file=request.env_file)
    if request.out is not None:
        claim_directory(request.out)
    with user_store() as store:
        planned, models = _planned(asked, request, store)
        check_models(models.values(), keys=not request.dry_run, why="as recorded")
        check_models(undealt(request, list(models)), keys=False)
        if request.encoder is not None:
            check_encoder(request.encoder)
        plan = _cost(planned, request, models)
        if not request.quiet:
            for line in unused(request, plan.agents):
                say(line)
        if request.dry_run:
            _say_plan(plan, request, planned)
            return DONE
        if not request.quiet:
            say(_first_line(plan, planned))
        confirm_spending(plan, yes=request.yes, confirm_above=config.confirm_above)
        ensure_weights(plan.models, quiet=request.quiet)
        session = new_id(store)
        prompter = prompter_for(models.values())
        planned = replace(planned, models=prompter.seat(models) if prompter else models)
        report = watch(
            lambda options: forks.fork(planned, store=store, session=session, options=options),
            session=session,
            title=f"{plan.protocol.name} {session}",
            models=plan.models,
            prompter=prompter,
            quiet=request.quiet,
            options=request.options,
            as_json=request.json,
        )
        if isinstance(report, int):
            return without_report(report, session, store, as_json=request.json)
        return held(
            report, request, deliver(report, store, out=request.out, as_json=request.json, open_page=request.open)
        )


def _planned(asked: Asked, request: Request, store: Store) -> tuple[forks.Fork, dict[str, str]]:
    """The fork, and the name of the model of each agent."""
    parent = find_session(store, asked.parent)
    old = forks.beginning(parent, store.read(parent))
    changes = forks.Changes(
        settings=_typed(old, asked.settings),
        replace=asked.replace,
        perspectives=asked.perspectives,
        prompts=request.prompts,
        encoder=request.encoder,
        task=None if asked.task is None else read_task(asked.task),
        detail=request.detail,
    )
    planned = forks.plan_fork(parent, store=store, at=asked.at, changes=changes)
    sources = read_sources(request.source or (), planned.agents)
    limits = [(name, value) for name, value in read_limits(request, planned.agents) if value not in (None, {})]
    models = _models(asked, request, planned)
    return planned.with_sources(sources, limits=planned.limits.model_copy(update=dict(limits))), models


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


def _models(asked: Asked, request: Request, planned: forks.Fork) -> dict[str, str]:
    """A name for every agent of the fork; a kind of limit that is not given is the parent's."""
    if request.model is not None or request.models is not None:
        replaced = [f"{id}={name}" for id, name in asked.replace.items()]
        named = Request(task="", model=request.model, models=request.models, agent=replaced)
        return deal_models(named, planned.agents, None, option="--replace-agent")
    recorded = [f"{id}={name}" for id, name in planned.models.items()]
    return deal_models(Request(task="", agent=recorded), planned.agents, "local", option="--replace-agent")


def _cost(planned: forks.Fork, request: Request, models: Mapping[str, str]) -> Plan:
    return make_plan(
        planned.protocol,
        planned.agents,
        models,
        Choice("", "as in the parent"),
        planned.limits,
        planned.task,
        [Source(text=d.text, name=d.name, agents=d.agents) for d in planned.documents],
        request.prompts,
        request.encoder or planned.started.encoder,
        thinking=request.thinking or planned.started.thinking,
        detail=planned.detail,
    )


def _first_line(plan: Plan, planned: forks.Fork) -> str:
    parts = [
        f"A fork of {planned.parent} from event {planned.at}: "
        f"{count(planned.replies, 'reply', 'replies')} inherited, not paid for again",
        f"{plan.protocol.name} with {', '.join(plan.models)}",
        f"{describe_calls(plan.estimate)} foreseen in all",
        f"{plan.detail} prompts",
        plan.replies,
        cost_words(plan),
    ]
    return " · ".join(filter(None, parts))


def _say_plan(plan: Plan, request: Request, planned: forks.Fork) -> None:
    if request.json:
        body = {"parent": planned.parent, "forked_at": planned.at, "inherited": planned.replies, **dry_run_json(plan)}
        print_json(body)
    else:
        inherited = count(planned.replies, "reply", "replies")
        print_markdown(dry_run(plan) + f"- A fork of {planned.parent} from event {planned.at}: {inherited} inherited\n")


def _pairs(option: str, form: str, given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{one!r} is not {form}", where=option, do=f"Write {option} {form}.")
        if name.strip() in found:
            raise SettingsError(f"{name.strip()} is given twice", where=option, do="Give it once.")
        found[name.strip()] = value.strip()
    return found
