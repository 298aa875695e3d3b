"""Running a session from its start, from where it was left, or over again without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from consilience.domain.errors import (
    RequestMismatch,
    SettingsError,
    VersionMismatch,
)
from consilience.domain.events import (
    AnyEvent,
    CallFailed,
    CallLost,
    SessionFinished,
    SessionParked,
    SessionResumed,
    SessionStarted,
    text_id,
)
from consilience.domain.messages import Source
from consilience.domain.outcome import FailureKind, Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.engine.execution import Options, closing, execute, leased, state_of
from consilience.engine.launch import beginning_of, check_unicode, encoder_for, launch
from consilience.engine.ports import AgentPort, ModelPort, WorkerPort
from consilience.engine.prompt import PROMPT_FORMAT
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.recorder import Recorder
from consilience.engine.seats import Models, deal, open_encoder, recorded_models, shut
from consilience.engine.similarity import Encoder
from consilience.engine.sources import Document, documents, references
from consilience.engine.state import State
from consilience.engine.templates import Templates
from consilience.journal.store import Journal, Store

MOST_TASK = 1_000_000
"""Characters a task may have; more belongs into documents."""


async def start(
    task: str,
    protocol: Protocol,
    *,
    models: Models,
    store: Store,
    panel: Panel | None = None,
    sources: Sequence[Source] = (),
    seed: int = 0,
    limits: Limits | None = None,
    quorum: float = 0.5,
    encoder: str | Encoder | None = None,
    prompts: Path | None = None,
    session: str | None = None,
    options: Options | None = None,
) -> Report:
    """Run a protocol on a task in a new session. Raises `UserError`s before anything is spent, `SessionWaiting` when parked."""
    _check_input(task, sources, quorum)
    limits = limits or Limits()
    options = options or Options()
    opened = encoder_for(protocol, encoder)
    templates = protocol.templates(prompts)
    found = documents(sources)
    agents, ports, close = deal(protocol.agents(panel), models)
    started = SessionStarted(
        task=text_id(task),
        sources=references(found),
        seed=seed,
        limits=limits,
        quorum=quorum,
        repairs=1 if options.repairs is None else options.repairs,
        cache=bool(options.cache),
        temperature=options.temperature,
        **beginning_of(protocol, agents, ports, templates, opened),
    )
    async with closing(close):
        return await launch(
            protocol,
            started,
            session=session,
            task=task,
            documents=found,
            templates=templates,
            ports=ports,
            encoder=opened,
            store=store,
            options=options,
        )


async def resume(
    session: str,
    *,
    store: Store,
    models: Models | None = None,
    encoder: str | Encoder | None = None,
    options: Options | None = None,
) -> Report:
    """Go on where the session was left: nothing completed is asked again. A finished session gives its report.

    Models and encoder are those recorded unless given. Raises `UnknownName`, `SessionBusy`, `VersionMismatch`, `RequestMismatch`.
    """
    return await _again(session, store, models, encoder, options or Options(), replay=False)


async def replay(session: str, *, store: Store, options: Options | None = None) -> Report:
    """Run the session again from its journal with the network shut, and compare event by event.

    Raises `ReplayMiss` where the journal has no answer, `RequestMismatch` where something differs.
    """
    return await _again(session, store, None, None, options or Options(), replay=True)


async def _again(
    session: str, store: Store, models: Models | None, encoder: str | Encoder | None, options: Options, *, replay: bool
) -> Report:
    journal = store.open(session)
    async with leased(journal):
        events = journal.read()
        started = events[0] if events else None
        if not isinstance(started, SessionStarted):
            raise SettingsError(
                f"session {session} has no beginning", do="It was killed before it started; run it anew."
            )
        cls = find_protocol(started.protocol)
        finished = _finished(events)
        if finished is not None and not replay:
            return cls.report.model_validate_json(journal.text(finished.report))
        _check_version(session, started, cls)
        if replay:
            ports, close = shut(started.agents)
        else:
            _, ports, close = deal(started.agents, models if models is not None else recorded_models(started.agents))
        async with closing(close):
            _check_models(session, started, ports)
            recorder = Recorder(journal, events, replay=replay, observer=options.observer)
            protocol = cls.model_validate(started.settings)
            state = _restored(protocol, session, started, journal, ports, recorder, options)
            if not replay:
                state.encoder = open_encoder(encoder if encoder is not None else started.encoder)
                await _note_lost(journal, recorder, state)
            report = await execute(protocol, state, options)
        if replay and (unasked := recorder.unasked()):
            raise RequestMismatch(f"the replay of {session} did not come to what is recorded: {', '.join(unasked[:3])}")
        if replay and finished is not None and finished.report_digest != report.digest():
            _compare(session, report, cls.report.model_validate_json(journal.text(finished.report)))
        return report


def _check_models(session: str, started: SessionStarted, ports: Mapping[str, AgentPort]) -> None:
    other = [f"{a.id}: {a.model}, now {ports[a.id].name}" for a in started.agents if ports[a.id].name != a.model]
    if other:
        raise SettingsError(
            f"session {session} was begun with other models ({'; '.join(other)})",
            do=f"Give the same, or change them in a fork: consilience fork {session} --at end --replace-agent ID=MODEL.",
        )


def _check_version(session: str, started: SessionStarted, cls: type[Protocol]) -> None:
    keep = f"To go on, install the version that wrote it, or keep its replies in a fork: consilience fork {session} --at end."
    if cls.version != started.protocol_version:
        raise VersionMismatch(
            f"session {session} was written by version {started.protocol_version} of {started.protocol}; this is {cls.version}",
            do=f"It can still be shown. {keep}",
        )
    if started.prompt_format != PROMPT_FORMAT:
        raise VersionMismatch(
            f"session {session} was written with prompt format {started.prompt_format}; this is {PROMPT_FORMAT}",
            do=f"It can still be shown. {keep}",
        )


def _restored(
    protocol: Protocol,
    session: str,
    started: SessionStarted,
    journal: Journal,
    ports: Mapping[str, AgentPort],
    recorder: Recorder,
    options: Options,
) -> State:
    found = tuple(Document(s.id, s.name, journal.text(s.text), s.agents) for s in started.sources)
    templates = Templates({name: journal.text(id) for name, id in started.templates.items()})
    state = state_of(protocol, session, started, journal.text(started.task), found, templates, ports, recorder, options)
    state.resumed = True
    state.late = any(
        isinstance(e, CallFailed) and e.failure is FailureKind.TIME and not e.limit for e in recorder.events
    )
    state.lost = sum(isinstance(e, CallLost) for e in recorder.events)
    return state


async def _note_lost(journal: Journal, recorder: Recorder, state: State) -> None:
    flights = journal.flights()
    waiting = set(recorder.answers) | {
        key for e in recorder.events if isinstance(e, SessionParked) for key in e.awaited
    }
    lost = [
        f for f in flights if f.key not in waiting and isinstance(state.ports[f.agent], ModelPort | WorkerPort)
    ]  # others remember
    for flight in lost:
        await recorder.commit(CallLost(key=flight.key, agent=flight.agent))
        state.faults("after_lost", None)
    state.lost += len(lost)
    await recorder.commit(SessionResumed(lost=len(lost)))


def _check_input(task: str, sources: Sequence[Source], quorum: float) -> None:
    if not task.strip():
        raise SettingsError("the task is empty", do="Say what is to be deliberated.")
    if len(task) > MOST_TASK:
        raise SettingsError(
            f"the task has {len(task):,} characters; at most {MOST_TASK:,} are allowed",
            do="Give long material as documents (--source FILE) and ask about them.",
        )
    if not 0 <= quorum <= 1:
        raise SettingsError(f"a quorum of {quorum} is not a share", do="Give a number from 0 to 1.")
    check_unicode(task, "the task")
    for n, source in enumerate(sources, 1):
        check_unicode(source.name, f"the name of document {n}")
        check_unicode(source.text, f"document {source.name or n}")
        if not source.text.strip():
            raise SettingsError(
                "the document is empty", where=source.name or f"source {n}", do="Leave it out or fill it."
            )


def _finished(events: Sequence[AnyEvent]) -> SessionFinished | None:
    return next((event for event in events if isinstance(event, SessionFinished)), None)


def _compare(session: str, report: Report, before: Report) -> None:
    """Raise if a replay ended in another report. One written before a field was added is read with that field's default."""
    if before.digest() == report.digest():
        return
    was, now = before.model_dump(mode="json"), report.model_dump(mode="json")
    names = ", ".join(sorted(name for name in now if now[name] != was.get(name))) or "its digest"
    raise RequestMismatch(f"the replay of {session} ended in another report: {names}")


__all__ = ["Models", "Options", "replay", "resume", "start"]
