"""Running a session from its start, resuming it, or replaying it without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from pydantic_core import PydanticSerializationError

from consilience.domain.errors import Command, RequestMismatch, SettingsError, VersionMismatch, check_unicode
from consilience.domain.events import (
    SCHEMA_VERSION,
    AnyEvent,
    CallFailed,
    CallLost,
    CancelRequested,
    SessionFinished,
    SessionParked,
    SessionResumed,
    SessionStarted,
    text_id,
)
from consilience.domain.outcome import DEFAULT_THINKING, FailureKind
from consilience.domain.report import Report
from consilience.domain.session_ids import new_session_id
from consilience.engine.collector import CollectorPause
from consilience.engine.execution import Options, Setup, build_state, execute, fault_hook, leased
from consilience.engine.mail import apply_cancel, take
from consilience.engine.ports import AgentPort
from consilience.engine.prompt import PROMPT_FORMAT
from consilience.engine.protocol import (
    Protocol,
    check_agents,
    check_phases,
    find_protocol,
    recorded_protocol,
    report_type,
)
from consilience.engine.readers import inventory_size
from consilience.engine.recorded_code import check_code, check_programs
from consilience.engine.recorder import Recorder
from consilience.engine.rooms import closing_error
from consilience.engine.seats import (
    Models,
    Seats,
    cancelled_seats,
    check_prices,
    estimate_with_steps,
    make_seats,
    max_steps_by_agent,
    open_encoder,
    prices_by_agent,
    replay_seats,
    request_deadline,
    thinking_by_agent,
    windows_by_agent,
    with_own_models,
)
from consilience.engine.similarity import Encoder
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import document_from_ref, document_refs
from consilience.engine.state import State
from consilience.engine.templates import recorded_templates
from consilience.journal.store import Journal, Store
from consilience.models.registry import canonical_name

MAX_TASK_CHARS = 1_000_000
"""Max characters of a task. Longer texts belong into documents."""


async def begin(
    setup: Setup, *, store: Store, session: str | None = None, inherited: Inheritance | None = None
) -> Report:
    """Run a new session to its report. Raises `UserError`s before anything is spent, `SessionWaiting` if it is parked."""
    async with _recorded(setup, store, session, inherited) as (recorded_setup, state):
        report = await execute(recorded_setup, state)
        state.forget()
        return report


async def prepare(
    setup: Setup, *, store: Store, session: str | None = None, inherited: Inheritance | None = None
) -> str:
    """Record the start of a new session without a call, and return its id; `resume` runs it."""
    async with _recorded(setup, store, session, inherited) as (_, state):
        return state.id


@dataclass(frozen=True)
class Inheritance:
    """What a fork takes over from its parent."""

    parent: str
    forked_at: int
    """The last event of the parent that is inherited."""
    events: Sequence[AnyEvent]


@asynccontextmanager
async def _recorded(
    setup: Setup, store: Store, session: str | None, inherited: Inheritance | None
) -> AsyncIterator[tuple[Setup, State]]:
    """Record the start of a session with its texts and inherited events, and hold the session.

    Yields also the setup with the settings that follow from documents and models.
    """
    async with aclosing(setup.seats):
        _check(setup)
        if not setup.options.allow_unpriced:
            check_prices(setup.seats.ports, setup.limits)
        check_phases(setup.protocol, setup.limits)
        windows = windows_by_agent(setup.seats.ports)
        window = min(windows.values(), default=None)
        setup = replace(setup, protocol=setup.protocol.with_documents(setup.documents, window))
        if inherited is None and (error := closing_error(_sizes(setup), setup.protocol, windows)) is not None:
            raise error
        started = _start_event(setup)
        if inherited is not None:
            started = started.model_copy(update={"parent": inherited.parent, "forked_at": inherited.forked_at})
        try:
            started.model_dump_json()
        except PydanticSerializationError:
            raise SettingsError(
                "a setting, a persona or the name of a model contains a lone surrogate, which is not valid Unicode",
                do="Write it in UTF-8.",
            ) from None
        journal = store.create(session or new_session_id(), deferred=True, name=setup.options.name)
        async with leased(journal):
            events = list(inherited.events) if inherited is not None else []
            recorder = Recorder(journal, events, replay=False, observer=setup.options.observer)
            texts = [setup.task, *(d.text for d in setup.documents), *setup.templates.sources.values()]
            await recorder.begin(started, texts)
            yield setup, build_state(setup, started, recorder)


def _sizes(setup: Setup) -> CallSizes:
    ports, level = setup.seats.ports, setup.options.thinking or DEFAULT_THINKING
    opening = replace(setup.opening, window=min(windows_by_agent(ports).values(), default=None))
    prices, thinking = prices_by_agent(ports), thinking_by_agent(ports, level)
    return CallSizes(
        opening,
        setup.protocol,
        setup.seats.agents,
        prices,
        thinking,
        max_steps_by_agent(ports),
        inventory_tokens=inventory_size(setup.documents, setup.options.inventory_tokens),
    )


def _start_event(setup: Setup) -> SessionStarted:
    protocol, options, seats = setup.protocol, setup.options, setup.seats
    sizes = _sizes(setup)
    return SessionStarted(
        task=text_id(setup.task),
        sources=document_refs(setup.documents),
        seed=setup.seed,
        limits=setup.limits,
        quorum=setup.quorum,
        repairs=1 if options.repairs is None else options.repairs,
        cache=bool(options.cache),
        temperature=options.temperature,
        deadline=options.deadline,
        human_deadline=options.human_deadline,
        deliveries=dict(options.deliveries),
        comparison=options.comparison,
        inventory_tokens=sizes.inventory_tokens,
        thinking=options.thinking or DEFAULT_THINKING,
        thinking_tokens=dict(sizes.thinking_tokens),
        detail=setup.detail,
        windows=windows_by_agent(seats.ports),
        schema_version=SCHEMA_VERSION,
        prompt_format=PROMPT_FORMAT,
        protocol=protocol.name,
        protocol_version=protocol.version,
        settings=protocol.model_dump(mode="json"),
        agents=seats.agents,
        topology=protocol.topology(),
        estimate=estimate_with_steps(sizes.estimate, sizes.steps),
        steps=dict(sizes.steps),
        prices=dict(sizes.prices),
        fit=sizes.largest_fit(setup.limits),
        templates={name: text_id(source) for name, source in setup.templates.sources.items()},
        replaced_templates=setup.templates.replaced,
        warnings=setup.warnings,
        encoder=setup.encoder.name if setup.encoder else None,
    )


async def resume(
    session: str,
    *,
    store: Store,
    models: Models | None = None,
    encoder: str | Encoder | None = None,
    options: Options | None = None,
) -> Report:
    """Resume a session; completed calls are not repeated. A finished session returns its report.

    Models and encoder default to the recorded ones. Raises `UnknownName`, `SessionBusy`, `VersionMismatch`, `RequestMismatch`.
    """
    with CollectorPause() as pause:
        return await _rerun(session, store, models, encoder, options or Options(), pause, replay=False)


async def replay(session: str, *, store: Store, options: Options | None = None) -> Report:
    """Run the session again from its journal without any request, and compare event by event.

    Raises `ReplayMiss` if the journal lacks an event, `RequestMismatch` if one differs.
    """
    with CollectorPause() as pause:
        return await _rerun(session, store, None, None, options or Options(), pause, replay=True)


async def _rerun(
    session: str,
    store: Store,
    models: Models | None,
    encoder: str | Encoder | None,
    options: Options,
    pause: CollectorPause,
    *,
    replay: bool,
) -> Report:
    journal = store.open(session)
    async with leased(journal):
        events = await store.reader.run(lambda records: records.read(session))
        started = start_event(session, events)
        finished = _finish_event(events)
        if finished is not None and not replay:
            return _recorded_report(started.protocol, finished, journal.store)
        cls = recorded_protocol(started.protocol)
        check_version(session, started, cls)
        letters = [] if replay else store.mail(session)
        if replay:
            seats = replay_seats(started.agents)
        elif _is_cancelled([*events, *(letter.event() for letter in letters)]):
            seats = cancelled_seats(started.agents)
        else:
            check_programs(started.agents, models, store)
            names = {agent.id: agent.model for agent in started.agents}
            deadline = request_deadline(options.deadline or started.deadline, started.thinking)
            models = names if models is None else with_own_models(started.agents, models)
            seats = make_seats(started.agents, models, deadline, options.endpoints, options.connections)
        async with aclosing(seats):
            _check_models(session, started, seats.ports)
            recorder = Recorder(journal, events, replay=replay, observer=options.observer, recalls=not replay)
            recorder.on_live = pause.release
            setup = recorded_setup(started, journal, seats, options)
            if not replay:
                encoder = started.encoder if encoder is None else encoder
                setup = replace(setup, encoder=open_encoder(encoder, options.endpoints))
            state = resumed_state(setup, started, recorder)
            if not replay:
                for letter in letters:
                    await take(state, letter)
                apply_cancel(state)
                await _note_lost(journal, recorder, state)
            report = await execute(setup, state)
        if replay and (unreplayed := recorder.unreplayed()):
            raise RequestMismatch(f"the replay of {session} did not reach recorded events: {', '.join(unreplayed[:3])}")
        if replay and finished is not None and finished.report_digest != report.digest():
            recorded_report = cls.report.model_validate_json(journal.store.text(finished.report))
            report = _as_recorded(session, report, recorded_report)
        state.forget()
        return report


def _is_cancelled(events: Sequence[AnyEvent]) -> bool:
    """Return whether no call at all will be made, because the session was cancelled."""
    cancel = next((event for event in reversed(events) if isinstance(event, CancelRequested)), None)
    return cancel is not None and not cancel.answer


def _check_models(session: str, started: SessionStarted, ports: Mapping[str, AgentPort]) -> None:
    pairs = [(agent, ports[agent.id].name) for agent in started.agents]
    changed = [f"{a.id}: {a.model}, now {n}" for a, n in pairs if canonical_name(n) != canonical_name(a.model)]
    if changed:
        raise SettingsError(
            f"session {session} was begun with other models ({'; '.join(changed)})",
            do="Give the same, or change them in a fork",
            command=Command("fork", session, {"at": "end", "replace": "ID=MODEL"}),
        )


def start_event(session: str, events: Sequence[AnyEvent]) -> SessionStarted:
    """Return the start of a session. Raises `SettingsError` for a session whose process was killed before it was recorded."""
    started = events[0] if events else None
    if not isinstance(started, SessionStarted):
        raise SettingsError(
            f"session {session} was interrupted before its start was recorded, so it has no task and no call",
            do="Run its task again.",
        )
    return started


def check_version(
    session: str, started: SessionStarted, cls: type[Protocol], do: str = "", command: Command | None = None
) -> None:
    """Raise `VersionMismatch` if the installed code cannot run the session. Advice by default: how to go on with it."""
    do = do or "It can still be shown. Install the version that wrote it, or keep its replies in a fork"
    command, what = command or Command("fork", session, {"at": "end"}), ""
    if cls.version != started.protocol_version:
        what = f"by version {started.protocol_version} of {started.protocol}; this is {cls.version}"
    elif started.prompt_format != PROMPT_FORMAT:
        what = f"with prompt format {started.prompt_format}; this is {PROMPT_FORMAT}"
    if what:
        raise VersionMismatch(f"session {session} was written {what}", do=do, command=command)


def recorded_setup(started: SessionStarted, journal: Journal, seats: Seats, options: Options) -> Setup:
    """Return the setup that the session was begun with. Raises `SettingsError` for `foreign_code`."""
    check_code(started, journal.store)
    cls = recorded_protocol(started.protocol)
    return Setup(
        protocol=cls.model_validate(started.settings),
        task=journal.store.text(started.task),
        documents=tuple(document_from_ref(ref, journal.store.text(ref.text)) for ref in started.sources),
        templates=recorded_templates(cls, started, journal.store.text),
        seats=seats,
        detail=started.detail,
        options=options,
    )


def resumed_state(setup: Setup, started: SessionStarted, recorder: Recorder) -> State:
    """Return the state of a session that goes on from its record."""
    state = build_state(setup, started, recorder)
    state.resumed = True
    state.has_encoder = started.encoder is not None or setup.encoder is not None
    state.ledger.late = any(
        isinstance(e, CallFailed) and e.failure is FailureKind.TIME and not e.limit for e in recorder.events
    )
    state.lost = sum(isinstance(e, CallLost) for e in recorder.events)
    return state


async def _note_lost(journal: Journal, recorder: Recorder, state: State) -> None:
    flights = journal.store.flights(journal.session)
    recorder.arrivals = {arrival.key: arrival for arrival in journal.store.arrivals(journal.session)}
    waiting = (
        recorder.answers.keys()
        | recorder.arrivals.keys()
        | {key for e in recorder.events if isinstance(e, SessionParked) for key in e.awaited}
    )
    lost = [f for f in flights if f.key not in waiting and not state.ports[f.agent].keeps_requests]
    for flight in lost:
        await recorder.commit(CallLost(key=flight.key, agent=flight.agent))
        state.faults("after_lost", None)
    state.lost += len(lost)
    await recorder.commit(SessionResumed(lost=len(lost)))


def _check(setup: Setup) -> None:
    """Raise `SettingsError` if the session cannot begin with this setup."""
    check_task(setup.task)
    check_quorum(setup.quorum)
    check_unicode(setup.task, "the task")
    for n, document in enumerate(setup.documents, 1):
        check_unicode(document.name, f"the name of document {n}")
        check_unicode(document.text, f"document {document.name or n}")
        if not document.text.strip():
            raise SettingsError(
                "the document is empty", where=document.name or f"source {n}", do="Leave it out or fill it."
            )
    _check_name(setup.protocol)
    check_agents(setup.protocol, setup.seats.agents)
    fault_hook(setup.options)  # raises for an invalid fault point


def check_task(task: str, where: str = "") -> None:
    """Raise `SettingsError` for a task that is empty or too long, found at `where`."""
    if not task.strip():
        raise SettingsError("the task is empty", where=where, do="Give a question or task.")
    if len(task) > MAX_TASK_CHARS:
        raise SettingsError(
            f"the task has {len(task):,} characters; at most {MAX_TASK_CHARS:,} are allowed",
            where=where,
            do="Give long material as documents (sources) and ask about them.",
        )


def check_quorum(quorum: float, where: str = "") -> None:
    """Raise `SettingsError` for a quorum that is no share of the agents."""
    if not 0 <= quorum <= 1:
        raise SettingsError(f"a quorum of {quorum} is not a share", where=where, do="Give a number from 0 to 1.")


def _check_name(protocol: Protocol) -> None:
    """Raise `SettingsError` if the name resolves to another class: a journal holds only the protocol's name."""
    registered = find_protocol(protocol.name)
    if registered is not type(protocol):
        raise SettingsError(
            f"the name {protocol.name!r} of {type(protocol).__qualname__} is taken by "
            f"{registered.__module__}.{registered.__qualname__}",
            do="Give the class a name of its own.",
        )


def _finish_event(events: Sequence[AnyEvent]) -> SessionFinished | None:
    return next((event for event in events if isinstance(event, SessionFinished)), None)


def _recorded_report(protocol: str, finished: SessionFinished, store: Store) -> Report:
    """Return the report of a finished session; without its protocol's code an `AnyReport`, shown as stored."""
    text = store.text(finished.report)
    cls = report_type(protocol)
    if cls is not None:
        return cls.model_validate_json(text)
    from consilience.reporting.record import AnyReport

    return AnyReport.recorded(text, store.text(finished.presentation))


def _as_recorded(session: str, report: Report, recorded_report: Report) -> Report:
    """Return the report of a replay with the recorded wording of its warnings, its check and of what is unmet. Raise if the two
    differ otherwise. A field that is missing in a report of an earlier version has its default."""
    if len(recorded_report.warnings) == len(report.warnings):
        report = report.model_copy(update={"warnings": recorded_report.warnings})
    if len(recorded_report.unmet) == len(report.unmet):
        report = report.model_copy(update={"unmet": recorded_report.unmet})
    if report.check and recorded_report.check:
        check = report.check.model_copy(update={"detail": recorded_report.check.detail})
        report = report.model_copy(update={"check": check})
    was, now = recorded_report.digested(), report.digested()
    if names := ", ".join(sorted(name for name in was | now if was.get(name) != now.get(name))):
        raise RequestMismatch(f"the replay of {session} ended in another report: {names}")
    return report


def encoder_for(protocol: Protocol, encoder: str | Encoder | None, options: Options) -> Encoder | None:
    """Open the encoder. Raises `SettingsError` if the protocol needs one and there is none."""
    encoder_opened = open_encoder(encoder, options.endpoints)
    if protocol.needs_encoder and encoder_opened is None:
        raise missing_encoder(protocol)
    return encoder_opened


def missing_encoder(protocol: Protocol) -> SettingsError:
    """Return the error of a protocol that needs an encoder and has none."""
    return SettingsError(
        "comparing texts by embedding needs an encoder",
        field="encoder",
        do=f"Name one (minilm is offline and free), or {protocol.without_encoder}.",
    )


__all__ = ["Models", "Options", "Setup", "begin", "check_task", "encoder_for", "prepare", "replay", "resume"]
