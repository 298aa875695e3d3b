"""Running a session from its start, from where it was left, or over again without a network."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.domain.agents import Agent
from consilience.domain.errors import (
    ProtocolViolation,
    RequestMismatch,
    SessionWaiting,
    SettingsError,
    StoreUnusable,
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
from consilience.engine.activity import Activity
from consilience.engine.branch import UNLIMITED, Account, Amount, Branch, Phase, current_branch
from consilience.engine.faults import Crash, from_spec
from consilience.engine.ports import AgentPort, as_port
from consilience.engine.prompt import PROMPT_FORMAT, Opening, tokens_in
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.recorder import Observer, Recorder
from consilience.engine.session import Session
from consilience.engine.similarity import Encoder
from consilience.engine.sources import Document, documents, references
from consilience.engine.state import Faults, State
from consilience.engine.templates import INSTRUCTIONS, Templates
from consilience.journal.store import Journal, Store
from consilience.models.names import resolve
from consilience.models.port import Completion, Model, ModelRequest

Models = str | Model | AgentPort | Sequence[str | Model | AgentPort] | Mapping[str, str | Model | AgentPort]

MOST_TASK = 1_000_000
"""Characters a task may have; more belongs into documents."""


@dataclass(frozen=True)
class Options:
    """How to run, as against what: none of it changes what is recorded, `repairs` and `temperature` apart.

    `patience` is how long, in seconds, a session that awaits only the outside world stays up before it is parked; None for ever.
    """

    observer: Observer | None = None
    patience: float | None = 30.0
    faults: Callable[[str, Phase | None], None] | None = None
    repairs: int = 1
    temperature: float | None = None


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
    opened = _encoder(encoder)
    if protocol.needs_encoder and opened is None:
        raise SettingsError(
            "comparing texts by embedding needs an encoder",
            do="Name one (--encoder openai:text-embedding-3-small), or use another similarity.",
        )
    agents, ports, close = deal(protocol.agents(panel), models)
    templates = protocol.templates(prompts)
    found = documents(sources)
    started = SessionStarted(
        prompt_format=PROMPT_FORMAT,
        protocol=protocol.name,
        protocol_version=protocol.version,
        settings=protocol.model_dump(mode="json"),
        task=text_id(task),
        sources=references(found),
        seed=seed,
        agents=agents,
        topology=protocol.topology(),
        limits=limits,
        quorum=quorum,
        estimate=protocol.estimate(),
        templates={name: text_id(source) for name, source in templates.sources.items()},
        prices=_prices(ports),
        repairs=options.repairs,
        encoder=opened.name if opened else None,
        temperature=options.temperature,
    )
    texts = [task, *(d.text for d in found), *templates.sources.values()]
    journal = store.create(session or f"r{secrets.token_hex(3)}")
    async with _leased(journal), _closing(close):
        recorder = Recorder(journal, [], replay=False, observer=options.observer)
        await recorder.commit(started, texts)
        state = _state(journal.session, started, task, found, templates, ports, recorder, options)
        state.encoder = opened
        return await _execute(protocol, state, options)


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
    async with _leased(journal):
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
            ports: dict[str, AgentPort] = {agent.id: Shut(agent.model) for agent in started.agents}
            close = _nothing
        else:
            _, ports, close = deal(started.agents, models if models is not None else _recorded(started.agents))
        async with _closing(close):
            recorder = Recorder(journal, events, replay=replay, observer=options.observer)
            state = _restored(session, started, journal, ports, recorder, options)
            if not replay:
                state.encoder = _encoder(encoder if encoder is not None else started.encoder)
                await _note_lost(journal, recorder, state)
            report = await _execute(cls.model_validate(started.settings), state, options)
        if replay and finished is not None and finished.report_digest != report.digest():
            raise RequestMismatch(
                f"the replay of {session} ended in another report: {_difference(report, finished, journal, cls)}"
            )
        return report


def _check_version(session: str, started: SessionStarted, cls: type[Protocol]) -> None:
    if cls.version != started.protocol_version:
        raise VersionMismatch(
            f"session {session} was written by version {started.protocol_version} of {started.protocol}; this is {cls.version}",
            do="It can still be shown; to go on, install the version that wrote it, or run the task anew.",
        )


@asynccontextmanager
async def _leased(journal: Journal) -> AsyncIterator[None]:
    """Give the lease back however the run ends, with what was recorded committed; after a simulated kill, not even that."""
    try:
        yield
    except Crash:
        journal.abandon()
        raise
    except BaseException:
        with suppress(StoreUnusable):  # it is what is being raised
            await journal.close()
        raise
    await journal.close()


@asynccontextmanager
async def _closing(close: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await close()


async def _execute(protocol: Protocol, state: State, options: Options) -> Report:
    """Run the protocol to its end, to a park, or into a defect."""
    session = Session(state)
    loop = asyncio.get_running_loop()
    still: asyncio.Future[None] = loop.create_future()
    state.activity = Activity(lambda: _when_still(loop, state, options.patience, still))
    current_branch.set(Branch("", state.root))
    state.activity.enter()
    main = loop.create_task(_run(protocol, session, state))
    try:
        await asyncio.wait((main, still), return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
            await _stop(main, session)
            if not state.activity.outside:
                raise ProtocolViolation("every branch waits for another; the protocol is deadlocked")
            awaited = tuple(sorted(state.activity.outside))
            await state.recorder.commit(SessionParked(awaited=awaited))
            raise SessionWaiting(state.id, awaited)
        return main.result()
    except Crash:
        raise
    except BaseException:
        await _stop(main, session)
        raise
    finally:
        still.cancel()


async def _run(protocol: Protocol, session: Session, state: State) -> Report:
    report = await protocol.run(session)
    state.faults("before_finish", None)
    body = report.model_dump_json()
    event = SessionFinished(stop_reason=report.stop_reason, report=text_id(body), report_digest=report.digest())
    if not state.recorder.replay:
        await state.recorder.commit(event, [body])
    state.faults("after_finish", None)
    return report


async def _stop(main: asyncio.Task[Report], session: Session) -> None:
    main.cancel()
    await asyncio.gather(main, return_exceptions=True)
    await session.abandon()


def _when_still(
    loop: asyncio.AbstractEventLoop, state: State, patience: float | None, still: asyncio.Future[None]
) -> None:
    """Nobody moves: after `patience` the outside world is given up on; a session that waits for nothing at all is deadlocked."""

    def look() -> None:
        if state.activity.running == 0 and not still.done():
            still.set_result(None)

    if not state.activity.outside:
        loop.call_soon(look)
    elif patience is not None:
        loop.call_later(patience, look)


def deal(
    agents: Sequence[Agent], models: Models
) -> tuple[tuple[Agent, ...], dict[str, AgentPort], Callable[[], Coroutine[Any, Any, None]]]:
    """Give every agent its model: one for all, several in turn in the order of agents, or by agent id.

    Names are resolved once each. Returns the agents with their models' names, their ports, and what closes those opened here.
    """
    opened: dict[str, Model] = {}

    def port(model: str | Model | AgentPort) -> AgentPort:
        if isinstance(model, str):
            if model not in opened:
                opened[model] = resolve(model)
            return as_port(opened[model])
        return as_port(model)

    ids = [agent.id for agent in agents]
    if isinstance(models, Mapping):
        lacking = [id for id in ids if id not in models]
        unknown = [id for id in models if id not in ids]
        if lacking or unknown:
            raise SettingsError(
                f"models are given by agent, but {', '.join(lacking or unknown)} {'has none' if lacking else 'is no agent'}",
                do=f"Give one for each of: {', '.join(ids)}.",
            )
        ports = {id: port(models[id]) for id in ids}
    else:
        dealt = [models] if isinstance(models, str) or not isinstance(models, Sequence) else list(models)
        if not dealt:
            raise SettingsError("no model is given", do="Name at least one.")
        ports = {id: port(dealt[i % len(dealt)]) for i, id in enumerate(ids)}

    async def close() -> None:
        for model in opened.values():
            await model.close()

    named = tuple(agent.model_copy(update={"model": ports[agent.id].name}) for agent in agents)
    return named, ports, close


def _state(
    session: str,
    started: SessionStarted,
    task: str,
    found: tuple[Document, ...],
    templates: Templates,
    ports: Mapping[str, AgentPort],
    recorder: Recorder,
    options: Options,
) -> State:
    opening = Opening(templates.render(INSTRUCTIONS), task, found)
    cls = find_protocol(started.protocol)
    protocol = cls.model_validate(started.settings)
    size = call_size(opening, protocol, started.prices)
    root, reserve = _hold_back(started.limits, size)
    spec = os.environ.get("CONSILIENCE_FAULT")
    faults: Faults | None = options.faults or (from_spec(spec).hit if spec else None)
    state = State(
        id=session,
        protocol=started.protocol,
        settings=started.settings,
        agents=started.agents,
        topology=started.topology,
        opening=opening,
        templates=templates,
        ports=ports,
        recorder=recorder,
        activity=Activity(lambda: None),
        limits=started.limits,
        estimate=started.estimate,
        quorum=started.quorum,
        seed=started.seed,
        repairs=started.repairs,
        temperature=started.temperature,
        prices=started.prices,
        call_size=size,
        root=root,
        reserve=reserve,
        parent=started.parent,
    )
    if faults is not None:
        state.faults = faults
    return state


def _restored(
    session: str,
    started: SessionStarted,
    journal: Journal,
    ports: Mapping[str, AgentPort],
    recorder: Recorder,
    options: Options,
) -> State:
    found = tuple(Document(s.id, s.name, journal.text(s.text), s.agents) for s in started.sources)
    templates = Templates({name: journal.text(id) for name, id in started.templates.items()})
    state = _state(session, started, journal.text(started.task), found, templates, ports, recorder, options)
    state.resumed = True
    state.late = any(isinstance(e, CallFailed) and e.failure is FailureKind.TIME for e in recorder.events)
    state.lost = sum(isinstance(e, CallLost) for e in recorder.events)
    return state


async def _note_lost(journal: Journal, recorder: Recorder, state: State) -> None:
    flights = journal.flights()
    waiting = set(recorder.answers) | {
        key for e in recorder.events if isinstance(e, SessionParked) for key in e.awaited
    }
    lost = [flight for flight in flights if flight.key not in waiting]
    for flight in lost:
        await recorder.commit(CallLost(key=flight.key, agent=flight.agent))
    state.lost += len(lost)
    await recorder.commit(SessionResumed(lost=len(lost)))


def _encoder(encoder: str | Encoder | None) -> Encoder | None:
    if not isinstance(encoder, str):
        return encoder
    from consilience.models.embeddings import ProviderEncoder

    return ProviderEncoder(encoder)


def _hold_back(limits: Limits, size: Amount) -> tuple[Account, Account]:
    """The budget without the reserve, and the reserve: one call of the greatest size, or all there is if that is less."""
    given = [limits.calls, limits.tokens, limits.money]
    if given == [None, None, None]:
        return Account(UNLIMITED), Account(UNLIMITED)
    whole = Amount(*(float("inf") if limit is None else limit for limit in given))
    held = Amount(min(whole.calls, size.calls), min(whole.tokens, size.tokens), min(whole.money, size.money))
    left = Amount(*(a if a == float("inf") else a - b for a, b in _pairs(whole, held)))
    return Account(left), Account(held)


def _pairs(a: Amount, b: Amount) -> list[tuple[float, float]]:
    return [(a.calls, b.calls), (a.tokens, b.tokens), (a.money, b.money)]


def _prices(ports: Mapping[str, AgentPort]) -> dict[str, tuple[float, float]]:
    """Per token, taken from a million of them."""
    million = 1_000_000
    found = {agent: (port.price(million, 0), port.price(0, million)) for agent, port in ports.items()}
    return {agent: (read / million, written / million) for agent, (read, written) in found.items() if read and written}


def call_size(opening: Opening, protocol: Protocol, prices: Mapping[str, tuple[float, float]]) -> Amount:
    """The greatest size of one call: the opening, the widest prompt's quotations at full length, the request, the reply."""
    text = opening.instructions + opening.task + "".join(d.numbered for d in opening.documents)
    prompt = tokens_in(text) + protocol.widest * (protocol.reply_tokens + 32) + 512
    dearest = max((prompt * read + protocol.reply_tokens * written for read, written in prices.values()), default=0.0)
    return Amount(1, prompt + protocol.reply_tokens, dearest)


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
    for n, source in enumerate(sources, 1):
        if not source.text.strip():
            raise SettingsError(
                "the document is empty", where=source.name or f"source {n}", do="Leave it out or fill it."
            )


def _finished(events: Sequence[AnyEvent]) -> SessionFinished | None:
    return next((event for event in events if isinstance(event, SessionFinished)), None)


def _recorded(agents: Sequence[Agent]) -> dict[str, str]:
    return {agent.id: agent.model for agent in agents}


def _difference(report: Report, finished: SessionFinished, journal: Journal, cls: type[Protocol]) -> str:
    before = cls.report.model_validate_json(journal.text(finished.report)).model_dump(mode="json")
    after = report.model_dump(mode="json")
    return ", ".join(sorted(name for name in after if after[name] != before.get(name))) or "its digest"


async def _nothing() -> None:
    return None


class Shut:
    """The network in a replay."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, request: ModelRequest) -> Completion:
        raise AssertionError("a replay sends nothing")

    async def collect(self, key: str, digest: str) -> None:
        return None

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None


__all__ = ["Models", "Options", "call_size", "deal", "replay", "resume", "start"]
