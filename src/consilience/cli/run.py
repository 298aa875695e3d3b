"""From a command line to a report: read, plan, agree, fetch, run, show."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from consilience.cli.config import Config, load_config, load_env_file
from consilience.cli.consent import agree
from consilience.cli.desk import Desk, desk_for
from consilience.cli.failures import CONDITION, DONE, FAILED, NO_ANSWER, WAITING, exit_code_of, say
from consilience.cli.fetch import ensure_weights, loaded
from consilience.cli.inputs import (
    AUTO,
    deal_models,
    read_limits,
    read_panel,
    read_settings,
    read_sources,
    read_task,
    undealt,
    unused,
)
from consilience.cli.loop import run_until_done
from consilience.cli.output import print_json
from consilience.cli.plan import Plan, check_models, choose_model, dry_run, dry_run_json, first_line, make_plan
from consilience.cli.progress import display, shown
from consilience.cli.request import Request
from consilience.domain.errors import SessionWaiting, SettingsError, UnknownName
from consilience.domain.events import AnyEvent, Event, SessionStarted
from consilience.domain.messages import Source
from consilience.domain.outcome import StopReason
from consilience.domain.panels import Panel
from consilience.domain.places import journal_path
from consilience.domain.report import Report
from consilience.engine import runner
from consilience.engine.protocol import Protocol
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.journal.store import Store
from consilience.models.embeddings import ProviderEncoder
from consilience.reporting.files import claim_directory, write_files
from consilience.reporting.markdown import markdown
from consilience.reporting.terminal import show

EXPORTS = {"mca_report.json": "mca_report", "final_state.json": "final_state", "document.md": "document"}
"""Files of a report directory beyond the common ones, with the method of a report that gives their content: text, or data
that becomes JSON; nothing is written where it is empty."""


@dataclass(frozen=True)
class Inputs:
    """Everything a run takes, read and checked."""

    task: str
    protocol: Protocol
    panel: Panel | None
    sources: list[Source]
    models: Mapping[str, str]
    encoder: ProviderEncoder | None
    plan: Plan


def run(cls: type[Protocol], request: Request, given: Mapping[str, object]) -> int:
    """Run a protocol as asked; returns the exit code. Raises `UserError`s before anything is spent."""
    if request.env_file is not None:
        load_env_file(request.env_file)
    config = load_config()
    inputs = _read(cls, request, given, config)
    if not request.quiet:
        for line in unused(request, inputs.plan.agents):
            say(line)
    if request.dry_run:
        if request.json:
            print_json(dry_run_json(inputs.plan))
        else:
            show(dry_run(inputs.plan))
        return DONE
    if request.out is not None:
        claim_directory(request.out)
    if not request.quiet:
        say(first_line(inputs.plan))
        if request.panel == AUTO:
            say("A panel is proposed first, by one call more.")
        if surplus := _without_a_seat(inputs):
            say(f"Without a seat here: {', '.join(surplus)}.")
    agree(inputs.plan, yes=request.yes, confirm_above=config.confirm_above)
    store = SqliteStore(":memory:" if request.no_store else journal_path(), writing=True)
    try:
        if inputs.plan.makes_calls:
            ensure_weights(inputs.plan.models, quiet=request.quiet)
        if request.panel == AUTO:
            from consilience.cli.propose import propose

            seats = len(inputs.protocol.first_seats)
            panel, limits = propose(inputs.task, inputs.sources, inputs.plan, request, store, seats)
            inputs = replace(inputs, panel=panel, plan=replace(inputs.plan, limits=limits))
        return _run(inputs, request, store)
    finally:
        store.close()


def _read(cls: type[Protocol], request: Request, given: Mapping[str, object], config: Config) -> Inputs:
    protocol = read_settings(cls, given, config)
    panel = read_panel(request)
    agents = protocol.agents(panel)
    limits = read_limits(request, agents)
    task = read_task(request.task)
    sources = read_sources(request.source or (), agents)
    choice = choose_model(request, config, agents)
    models = deal_models(request, agents, choice.name)
    check_models(models.values(), keys=not request.dry_run, why=choice.why if choice.name else "")
    check_models(undealt(request, agents), keys=False)
    encoder = _encoder(protocol, request)
    plan = make_plan(protocol, agents, models, choice, limits, task, sources, request.prompts, request.encoder)
    table = config.tables.get(cls.name, {})
    plan = replace(plan, configured={name: path for name, (_, path) in table.items() if name not in given})
    return Inputs(task, protocol, panel, sources, models, encoder, plan)


def _encoder(protocol: Protocol, request: Request) -> ProviderEncoder | None:
    """The encoder named, ready; none for a dry run. Raises `UserError`s where one is needed or cannot be used."""
    if protocol.needs_encoder and request.encoder is None:
        raise SettingsError(
            "comparing texts by embedding needs an encoder",
            where="--encoder",
            do=f"Name one (--encoder openai:text-embedding-3-small), or {protocol.without_encoder}.",
        )
    if request.encoder is None:
        return None
    provider, _, model = request.encoder.partition(":")
    if not (provider and model):
        raise UnknownName(
            f"{request.encoder!r} names no encoder",
            where="--encoder",
            do="Write PROVIDER:MODEL, such as openai:text-embedding-3-small.",
        )
    return None if request.dry_run else ProviderEncoder(request.encoder)


def _without_a_seat(inputs: Inputs) -> list[str]:
    """Personas of the panel that no agent takes."""
    seated = {agent.persona for agent in inputs.plan.agents}
    return [name for name in inputs.panel.names if name not in seated] if inputs.panel else []


def _run(inputs: Inputs, request: Request, store: Store) -> int:
    session = new_id(store)
    desk = desk_for(inputs.models.values())
    report = watch(
        lambda options: runner.start(
            inputs.task,
            inputs.protocol,
            models=desk.seat(inputs.models) if desk else inputs.models,
            store=store,
            panel=inputs.panel,
            sources=inputs.sources,
            seed=request.seed,
            limits=inputs.plan.limits,
            quorum=request.quorum,
            encoder=inputs.encoder,
            prompts=request.prompts,
            session=session,
            options=options,
        ),
        session=session,
        title=f"{inputs.protocol.name} {session}",
        models=inputs.plan.models if inputs.plan.makes_calls else [],
        quiet=request.quiet,
        resumable=not request.no_store,
        cache=request.cache,
        desk=desk,
        as_json=request.json,
    )
    if isinstance(report, int):
        return without_report(report, session, store, as_json=request.json, resumable=not request.no_store)
    return held(report, request, deliver(report, out=request.out, as_json=request.json, stored=not request.no_store))


def watch(
    work: Callable[[Options], Awaitable[Report]],
    *,
    session: str,
    title: str,
    models: Sequence[str],
    quiet: bool,
    before: tuple[AnyEvent, ...] = (),
    resumable: bool = True,
    cache: bool | None = None,
    desk: Desk | None = None,
    as_json: bool = False,
) -> Report | int:
    """Load what is local among the models, and run to the report with its progress shown. At a `desk`, people are asked.

    What goes wrong is said, with how to go on, and its exit code returned. `as_json` has it said as JSON too, except for a
    session that is parked: `without_report` does that, which knows how far it got.
    """
    begun = bool(before)
    screen = display(before, title=title, quiet=quiet)
    if desk is not None:
        desk.screen = screen

    async def main() -> Report:
        def observe(event: Event) -> None:
            nonlocal begun
            begun = begun or isinstance(event, SessionStarted)
            screen.observe(event)

        async with shown(screen), loaded(models, screen.loading):
            return await work(Options(observer=observe, cache=cache, patience=None if desk else 30.0))

    try:
        return run_until_done(main(), tell=screen.tell, leave=desk.leave if desk else lambda: False)
    except (Exception, KeyboardInterrupt) as error:
        screen.close()
        if isinstance(error, SessionWaiting) and not resumable:
            say(f"Waiting for {', '.join(error.awaited)}, and nothing is kept (--no-store): the run ends here.")
            return WAITING
        going_on = session if begun and resumable else None
        return exit_code_of(error, session=going_on, as_json=as_json and not isinstance(error, SessionWaiting))


def without_report(code: int, session: str, store: Store, *, as_json: bool, resumable: bool = True) -> int:
    """The exit code of a run that came to none. One that is parked says as JSON how far it got, as `show` does."""
    if as_json and code == WAITING:
        from consilience.reporting.record import record_of
        from consilience.reporting.unfinished import unfinished_json

        record = record_of(store, session)
        so_far = unfinished_json(session, record.course, record.text, flights=list(record.flights), holder=None)
        if not resumable:
            del so_far["resume"]
        print_json(so_far)
    return code


def held(report: Report, request: Request, code: int) -> int:
    """The exit code, which is another where the run did not stop as required."""
    if not request.require or report.stop_reason in request.require:
        return code
    wanted = " or ".join(reason.value for reason in request.require)
    say(f"It stopped {report.stop_reason.value}; {wanted} was required.")
    return CONDITION if code == DONE else code


def deliver(report: Report, *, out: Path | None, as_json: bool, stored: bool = True) -> int:
    """Write the files asked for, print the report, and return its exit code."""
    written: list[Path] = []
    unwritten: SettingsError | None = None
    if out is not None:
        try:
            written = write_files(out, report_files(report, stored=stored))
        except SettingsError as error:
            unwritten = error
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        show(markdown(report, heading=False, files=written, stored=stored))
    sys.stdout.flush()
    if unwritten is not None:  # after the report, which is not lost for it
        return exit_code_of(unwritten)
    return exit_code(report)


def report_files(report: Report, *, stored: bool = True) -> dict[str, str]:
    """File names with their contents."""
    files = {
        "report.json": report.model_dump_json(indent=2) + "\n",
        "report.md": markdown(report, stored=stored),
    }
    for name, method in EXPORTS.items():
        export = getattr(report, method, None)
        if export is not None and (content := export()):
            files[name] = (
                content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            )
    return files


def exit_code(report: Report) -> int:
    """An answer with a quorum is success, however the run stopped."""
    if report.answer is not None and report.quorum_met:
        return DONE
    return FAILED if report.stop_reason is StopReason.FAILED else NO_ANSWER


def new_id(store: Store) -> str:
    """An id no session of the store has."""
    taken = set(store.sessions())
    for _ in range(100):
        id = f"r{secrets.token_hex(3)}"
        if id not in taken:
            return id
    raise SettingsError("no free session id was found", do="Remove old sessions.")
