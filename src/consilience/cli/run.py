"""From a command line to a report, of a new session or a resumed one: read, plan, agree, fetch, run, show."""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from consilience.cli.config import Config, load_config
from consilience.cli.display import display, shown
from consilience.cli.errors import CONDITION, DONE, FAILED, NO_ANSWER, WAITING, exit_code_of, print_json, say
from consilience.cli.inputs import (
    deal_models,
    read_limits,
    read_panel,
    read_settings,
    read_sources,
    read_task,
    undealt,
    unused,
)
from consilience.cli.options import Request
from consilience.cli.plan import (
    PERSONA,
    Plan,
    check_models,
    choose_model,
    confirm_spending,
    dry_run,
    dry_run_json,
    first_line,
    make_plan,
    named_models,
)
from consilience.cli.prompter import TerminalPrompter, prompter_for
from consilience.cli.sessions import find_session, read_back, user_store
from consilience.cli.setup import ensure_weights, loaded
from consilience.cli.signals import run_until_done
from consilience.deliberation import AUTO_PANEL, Deliberation
from consilience.domain.agents import in_dealing_order
from consilience.domain.errors import SessionBusy, SessionWaiting, SettingsError, UnavailableModel, UnknownName
from consilience.domain.events import AnyEvent, Event, SessionStarted
from consilience.domain.messages import Source
from consilience.domain.outcome import StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine.protocol import Protocol, recorded_protocol
from consilience.engine.runner import Models, Options
from consilience.engine.seats import detail_of
from consilience.journal.open_store import open_store
from consilience.journal.store import Store
from consilience.models.embeddings import ProviderEncoder, check_encoder, open_encoder
from consilience.models.endpoints import is_endpoint
from consilience.models.minilm import MiniLM
from consilience.models.registry import Choice
from consilience.reporting.files import claim_directory, write_files
from consilience.reporting.formatting import count
from consilience.reporting.markdown import markdown, print_markdown
from consilience.reporting.session_state import SessionState, fold_events

R = TypeVar("R", bound=Report)

PAGE = "report.html"
MAX_OPENING_SECONDS = 5.0


@dataclass(frozen=True)
class Inputs:
    """Everything a run takes, read and checked."""

    task: str
    deliberation: Deliberation[Report]
    models: Mapping[str, str]
    plan: Plan


def run(cls: type[Protocol], request: Request, given: Mapping[str, object]) -> int:
    """Run a protocol as asked; returns the exit code. Raises `UserError`s before anything is spent."""
    config = load_config(env_file=request.env_file)
    inputs = _read(cls, request, given, config)
    if not request.quiet:
        for line in unused(request, inputs.plan.agents):
            say(line)
    if request.dry_run:
        if request.json:
            print_json(dry_run_json(inputs.plan))
        else:
            print_markdown(dry_run(inputs.plan))
        return DONE
    if request.out is not None:
        claim_directory(request.out)
    if not request.quiet:
        say(first_line(inputs.plan))
        if request.panel == AUTO_PANEL:
            say("A panel is proposed first, by one call more.")
        if surplus := _without_a_seat(inputs):
            say(f"Without a seat here: {', '.join(surplus)}.")
    confirm_spending(inputs.plan, yes=request.yes, confirm_above=config.confirm_above)
    store = open_store(":memory:" if request.no_store else None, writing=True)
    try:
        if inputs.plan.makes_calls:
            ensure_weights(inputs.plan.models, quiet=request.quiet)
        return _run(inputs, request, store)
    finally:
        store.close()


def _read(cls: type[Protocol], request: Request, given: Mapping[str, object], config: Config) -> Inputs:
    panel = read_panel(request)
    protocol = read_settings(cls, given, config).with_panel(panel)
    agents = in_dealing_order(protocol.agents(panel))
    limits = read_limits(request, agents)
    task = read_task(request.task)
    sources = read_sources(request.source or (), agents)
    choice = choose_model(request, config, agents)
    models = deal_models(request, agents, choice.name)
    named = named_models(request, agents)
    for agent in agents:
        if named.get(agent.id) == PERSONA:
            check_models([agent.model], keys=not request.dry_run, why=f"the model of the persona {agent.persona}")
    check_models(models.values(), keys=not request.dry_run, why=choice.why if choice.name else "")
    check_models(undealt(request, agents), keys=False)
    detail = detail_of(request.detail, agents, models)
    protocol = protocol.with_detail(detail)
    deliberation: Deliberation[Report] = Deliberation(
        protocol,
        model=models,
        panel=AUTO_PANEL if request.panel == AUTO_PANEL else panel,
        sources=sources,
        seed=request.seed,
        limits=limits,
        quorum=request.quorum,
        encoder=_encoder(protocol, request),
        prompts=request.prompts,
        options=replace(request.options, detail=detail),
    )
    plan = make_plan(
        protocol,
        agents,
        models,
        choice,
        limits,
        task,
        sources,
        request.prompts,
        request.encoder,
        thinking=request.options.thinking,
        detail=detail,
    )
    table = config.tables.get(cls.name, {})
    configured = {name: path for name, (_, path) in table.items() if name not in given}
    return Inputs(task, deliberation, models, replace(plan, configured=configured, named=named))


def _redealt(inputs: Inputs, panel: Panel | None, request: Request) -> Mapping[str, str]:
    """The models by agent once a panel was proposed: its seats may be others than those of the plan."""
    protocol = inputs.plan.protocol
    if protocol.with_panel(panel) == protocol:
        return inputs.models
    agents = in_dealing_order(protocol.with_panel(panel).agents(panel))
    return deal_models(request, agents, next(iter(inputs.models.values())))


def _encoder(protocol: Protocol, request: Request) -> MiniLM | ProviderEncoder | None:
    """The encoder named, ready; none for a dry run. Raises `UserError`s where one is needed or cannot be used."""
    if protocol.needs_encoder and request.encoder is None:
        raise SettingsError(
            "comparing texts by embedding needs an encoder",
            where="--encoder",
            do=f"Name one (--encoder minilm is offline and free), or {protocol.without_encoder}.",
        )
    if request.encoder is None:
        return None
    check_encoder(request.encoder)
    if request.dry_run:
        check_models([request.encoder] if is_endpoint(request.encoder) else [], keys=False)
        return None
    return open_encoder(request.encoder)


def _without_a_seat(inputs: Inputs) -> list[str]:
    """Personas of the panel that no agent takes."""
    seated, panel = {agent.persona for agent in inputs.plan.agents}, inputs.deliberation.panel
    return [name for name in panel.names if name not in seated] if isinstance(panel, Panel) else []


def _run(inputs: Inputs, request: Request, store: Store) -> int:
    prompter = prompter_for(inputs.models.values())

    def seated(models: Mapping[str, str]) -> Models:
        return prompter.seat(models) if prompter else models

    deliberation = replace(inputs.deliberation, store=store, model=seated(inputs.models))

    def watched(deliberation: Deliberation[R], protocol: str) -> R | int:
        session = new_id(store)
        report = watch(
            lambda options: replace(deliberation, options=options).run(inputs.task, session=session),
            session=session,
            title=f"{protocol} {session}",
            models=inputs.plan.models if inputs.plan.makes_calls else [],
            quiet=request.quiet,
            resumable=not request.no_store,
            options=request.options,
            prompter=prompter,
            as_json=request.json,
        )
        if isinstance(report, int):
            return without_report(report, session, store, as_json=request.json, resumable=not request.no_store)
        return report

    if request.panel == AUTO_PANEL:
        proposed = watched(deliberation.proposing(), "propose")
        if isinstance(proposed, int):
            return proposed
        models = _redealt(inputs, proposed.panel, request)
        deliberation = replace(deliberation.with_proposed(proposed), model=seated(models))
        if not request.quiet and proposed.panel is not None:
            say(f"The panel ({proposed.session}): {', '.join(proposed.panel.names)}.")
    report = watched(deliberation, inputs.plan.protocol.name)
    if isinstance(report, int):
        return report
    stored = not request.no_store
    code = deliver(report, store, out=request.out, as_json=request.json, open_page=request.open, stored=stored)
    return held(report, request, code)


def resume_session(
    id: str,
    *,
    yes: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    env_file: Path | None,
    deadline: float | None = None,
    pace: float = 0.0,
) -> int:
    """Resume a session; a finished one gives its report. Returns the exit code."""
    config = load_config(env_file=env_file)
    if out is not None:
        claim_directory(out)
    with user_store() as store:
        session = find_session(store, id)
        events = store.read(session)
        course = fold_events(events)
        models: list[str] = []
        prompter = prompter_for(agent.model for agent in course.agents) if course.finished is None else None
        seated = prompter.seat({agent.id: agent.model for agent in course.agents}) if prompter else None
        if course.finished is not None:
            _tell(f"{session} is finished already; this is its report.", quiet)
        elif holder := store.holder(session):
            raise SessionBusy(
                f"session {session} is being run by {holder}",
                do="Wait for it to end, or stop that process; then try again.",
            )
        elif course.started is not None:
            plan = _remaining_plan(course.started, course.made, store)
            _check_recorded(session, plan)
            _tell(_resume_line(session, course, store), quiet)
            confirm_spending(plan, yes=yes, confirm_above=config.confirm_above, resumed=True)
            ensure_weights(plan.models, quiet=quiet)
            models = plan.models
        report = watch(
            lambda options: Deliberation[Report](model=seated, store=store, options=options).resume(session),
            session=session,
            title=f"{course.started.protocol if course.started else ''} {session}".strip(),
            models=models,
            quiet=quiet or course.finished is not None,
            before=tuple(events),
            options=Options(deadline=deadline, pace=pace),
            prompter=prompter,
            as_json=as_json,
        )
        if isinstance(report, int):
            return without_report(report, session, store, as_json=as_json)
        return deliver(report, store, out=out, as_json=as_json)


def _remaining_plan(started: SessionStarted, made: int, store: Store) -> Plan:
    """What the rest of the session may cost, after the calls that were made."""
    protocol = recorded_protocol(started.protocol).model_validate(started.settings)
    sources = [Source(text=store.text(s.text), name=s.name, agents=s.agents) for s in started.sources]
    models = {agent.id: agent.model for agent in started.agents}
    choice = Choice("", "as recorded")
    return make_plan(
        protocol,
        started.agents,
        models,
        choice,
        started.limits,
        store.text(started.task),
        sources,
        None,
        started.encoder,
        made=0 if started.steps else made,  # of steps nobody knows how many are left
        thinking=started.thinking,
        detail=started.detail,
    )


def _check_recorded(session: str, plan: Plan) -> None:
    """Raise for a model that cannot be reached now. One that has no name here was handed over by a program."""
    try:
        check_models(plan.models, keys=True)
    except UnknownName as error:
        raise UnavailableModel(
            f"session {session} was begun by a program with a model of its own, which has no name here: {error.what}",
            do=f"Give it again from Python: consilience.resume({session!r}, model={{id: model, …}}).",
        ) from None


def _resume_line(session: str, course: SessionState, store: Store) -> str:
    line = f"Going on with {session}: {count(course.made, 'call')} recorded, not paid for again"
    outside = (*course.awaited, *course.answered)
    open_calls = [flight.key for flight in store.flights(session) if flight.key not in outside]
    if open_calls:
        line += f"; {len(open_calls)} in flight when it stopped, asked again"
    return f"{line}."


def _tell(line: str, quiet: bool) -> None:
    if not quiet:
        say(line)


def watch(
    work: Callable[[Options], Awaitable[R]],
    *,
    session: str,
    title: str,
    models: Sequence[str],
    quiet: bool,
    before: tuple[AnyEvent, ...] = (),
    resumable: bool = True,
    options: Options | None = None,
    prompter: TerminalPrompter | None = None,
    as_json: bool = False,
) -> R | int:
    """Load what is local among the models, and run to the report with its progress shown. At a `prompter`, people are asked.

    What goes wrong is said, with how to go on, and its exit code returned. `as_json` has it said as JSON too, except for a
    session that is parked: `without_report` does that, which knows how far it got.
    """
    begun = bool(before)
    screen = display(before, title=title, quiet=quiet)
    if prompter is not None:
        prompter.screen = screen

    async def main() -> R:
        def observe(event: Event) -> None:
            nonlocal begun
            begun = begun or isinstance(event, SessionStarted)
            screen.observe(event)

        async with shown(screen), loaded(models, screen.loading):
            given = options or Options()
            return await work(replace(given, observer=observe, patience=None if prompter else 30.0))

    try:
        return run_until_done(main(), tell=screen.tell, leave=prompter.leave if prompter else lambda: False)
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
        from consilience.reporting.partial_report import partial_json
        from consilience.reporting.record import read_record

        record = read_record(store, session)
        so_far = partial_json(session, record.state, record.text, flights=list(record.flights), holder=None)
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


def deliver(
    report: Report,
    store: Store,
    *,
    out: Path | None,
    as_json: bool,
    open_page: bool = False,
    stored: bool = True,
) -> int:
    """Write the files asked for, print the report, open its page if asked to, and return its exit code."""
    written: list[Path] = []
    unwritten: SettingsError | None = None
    if out is not None or open_page:
        from consilience.reporting.export import report_files

        directory = out or Path(tempfile.mkdtemp(prefix="consilience-"))
        files = report_files(report, record=read_back(store, report.session), stored=stored)
        try:
            written = write_files(directory, files if out is not None else {PAGE: files[PAGE]})
        except SettingsError as error:
            unwritten = error
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        print_markdown(markdown(report, heading=False, files=written, stored=stored))
    sys.stdout.flush()
    if unwritten is not None:  # after the report, which is not lost for it
        return exit_code_of(unwritten)
    if open_page:
        say(open_in_browser(next(path for path in written if path.name == PAGE)))
    return exit_code(report)


def open_in_browser(page: Path) -> str:
    """Open a page without waiting for the browser; return what was done, in words."""
    import webbrowser

    has_display = sys.platform in ("darwin", "win32") or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    )
    if not has_display:
        return f"There is no display to open the page on: {page}"
    opened: list[bool] = []
    opener = threading.Thread(target=lambda: opened.append(webbrowser.open(page.resolve().as_uri())), daemon=True)
    opener.start()
    opener.join(MAX_OPENING_SECONDS)  # a browser that runs in the foreground goes on by itself
    return f"Opened {page}" if opened != [False] else f"No browser could open the page: {page}"


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
