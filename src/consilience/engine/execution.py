"""Carrying a run from its first operation to its report, a park or a defect, and giving everything back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from consilience.domain.detail import DETAIL_CHOICES, Detail, DetailChoice
from consilience.domain.errors import (
    ProtocolViolation,
    SessionHeld,
    SessionWaiting,
    SettingsError,
    StoreUnusable,
)
from consilience.domain.events import (
    Event,
    SessionFinished,
    SessionParked,
    SessionStarted,
    text_id,
)
from consilience.domain.outcome import THINKING_TOKENS, Limits, ThinkingLevel
from consilience.domain.report import Report, present
from consilience.engine.activity import Activity, Phase
from consilience.engine.branch import Branch, current_branch
from consilience.engine.faults import Crash, parse_fault
from consilience.engine.ledger import Ledger
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.recorder import Observer, Recorder
from consilience.engine.seats import Seats
from consilience.engine.session import Session
from consilience.engine.similarity import Encoder
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import Document
from consilience.engine.state import FaultHook, State
from consilience.engine.telemetry import span
from consilience.engine.templates import INSTRUCTIONS, Templates
from consilience.engine.timing import NOTE_INTERVAL_SECONDS
from consilience.journal.store import Journal

MAX_REPAIRS = 10
MAX_DEADLINE_SECONDS = 86_400
MAX_PACE = 1_000
MAX_HUMAN_DEADLINE_SECONDS = 31_536_000
MAX_TEMPERATURE = 2
"""No provider takes a higher temperature."""


@dataclass(frozen=True)
class Options:
    """How to run, as against what: none of it changes what is recorded, `repairs`, `temperature` and `cache` apart.

    These three are settled when a session is begun; None is 1, the model's own and False, in a fork what the parent has. With
    `repairs`, a reply that cannot be used is asked for so many times again. With `cache`, a reply that the store holds to the
    very same request (agent, model, prompt, parameters, seed) is taken again.

    `patience` is how long, in seconds, a session that awaits only the outside world stays up before it is parked; None for ever.
    Once all who are awaited have left, it is parked at once.

    Calls of a phase for which `hold` is true are not made; once no others are left the run ends with `SessionHeld`, as if it had
    been interrupted there, and nothing of it is recorded.
    """

    observer: Observer | None = None
    patience: float | None = 30.0
    hold: Callable[[Phase | None], bool] | None = None
    faults: Callable[[str, Phase | None], None] | None = None
    repairs: int | None = None
    cache: bool | None = None
    temperature: float | None = None
    thinking: ThinkingLevel | None = None
    """How much models that can think do so before they answer; settled like `repairs`. None is `low`."""
    detail: DetailChoice | None = None
    """Which set of prompts agents are shown; settled like `repairs`. None is `auto`."""
    deadline: float | None = None
    """Max seconds of one request to a model, from when it is sent; None is the provider's default."""
    pace: float = 0.0
    """Real seconds per virtual second, for people who watch a run in virtual time; 0 does not wait. A replay never waits, a
    resume not for what is recorded. Protocols without virtual time ignore it."""
    human_deadline: float | None = None
    """Max seconds of wall time in which a person answers, from when they are asked; then the call fails as `deadline`. Time in
    which the session is parked counts. None: no limit, and in a resume or fork what the session was begun with."""

    def observed_by(self, observer: Observer) -> Options:
        """Return these options with one more observer, which is called before the other."""
        first = self.observer
        if first is None:
            return replace(self, observer=observer)

        def both(event: Event) -> None:
            observer(event)
            first(event)

        return replace(self, observer=both)

    def __post_init__(self) -> None:
        for name in ("observer", "hold", "faults"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise SettingsError(
                    f"{getattr(self, name)!r:.60} is not a function", where=name, do="Give one, or None."
                )
        if self.repairs is not None and not (isinstance(self.repairs, int) and 0 <= self.repairs <= MAX_REPAIRS):
            raise SettingsError(
                f"a reply cannot be asked for {self.repairs!r} times again",
                do=f"Give repairs from 0 to {MAX_REPAIRS}.",
            )
        if self.temperature is not None and not (
            isinstance(self.temperature, int | float) and 0 <= self.temperature <= MAX_TEMPERATURE
        ):
            raise SettingsError(
                f"{self.temperature!r} is no temperature", do=f"Give a number from 0 to {MAX_TEMPERATURE}."
            )
        if self.thinking is not None and self.thinking not in tuple(THINKING_TOKENS):
            raise SettingsError(
                f"{self.thinking!r} is not a level of thinking", do=f"Give one of: {', '.join(THINKING_TOKENS)}."
            )
        if self.detail is not None and self.detail not in DETAIL_CHOICES:
            raise SettingsError(f"{self.detail!r} is not a detail", do=f"Give one of: {', '.join(DETAIL_CHOICES)}.")
        if self.deadline is not None and not (
            isinstance(self.deadline, int | float) and 0 < self.deadline <= MAX_DEADLINE_SECONDS
        ):
            raise SettingsError(
                f"the deadline of {self.deadline!r} s is invalid",
                do=f"Give seconds, more than 0 and at most {MAX_DEADLINE_SECONDS:,}.",
            )
        if not (isinstance(self.pace, int | float) and 0 <= self.pace <= MAX_PACE):
            raise SettingsError(
                f"the pace {self.pace!r} is invalid",
                do=f"Give real seconds per virtual second, from 0 (do not wait) to {MAX_PACE}.",
            )
        if self.human_deadline is not None and not (
            isinstance(self.human_deadline, int | float) and 0 < self.human_deadline <= MAX_HUMAN_DEADLINE_SECONDS
        ):
            raise SettingsError(
                f"the deadline for people of {self.human_deadline!r} s is invalid",
                do=f"Give seconds, more than 0 and at most {MAX_HUMAN_DEADLINE_SECONDS:,} (a year).",
            )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a session runs with: its configuration with every name resolved."""

    protocol: Protocol
    task: str
    documents: tuple[Document, ...] = ()
    templates: Templates
    encoder: Encoder | None = None
    seats: Seats
    detail: Detail
    seed: int = 0
    quorum: float = 0.5
    limits: Limits = field(default_factory=Limits)
    options: Options = Options()

    @cached_property
    def opening(self) -> Opening:
        """What all prompts of the session begin with."""
        return Opening(self.templates.render(INSTRUCTIONS), self.task, self.documents, self.protocol.readers)


def fault_hook(options: Options) -> FaultHook | None:
    """Where this process is to be killed, if anywhere. Raises `SettingsError` for a point that is spelt wrongly."""
    spec = os.environ.get("CONSILIENCE_FAULT")
    return options.faults or (parse_fault(spec).hit if spec else None)


@asynccontextmanager
async def leased(journal: Journal) -> AsyncIterator[None]:
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


async def execute(setup: Setup, state: State) -> Report:
    """Run the protocol to its end, to a park, or into a defect."""
    protocol, options = setup.protocol, setup.options
    session = Session(state)
    loop = asyncio.get_running_loop()
    still: asyncio.Future[None] = loop.create_future()
    state.activity.on_still = lambda: _when_still(loop, state, options.patience, still)
    current_branch.set(Branch("", state.ledger.root, max(state.estimate.max - protocol.closing, 0)))
    state.recorder.idle = lambda: state.activity.idle
    state.activity.enter()
    main = loop.create_task(_run(protocol, session, state))
    clock = loop.create_task(_note_time(state))
    try:
        await asyncio.wait((main, still), return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
            session.raise_defect()
            await _stop(main, session)
            if not state.activity.outside and state.activity.held:
                raise SessionHeld(state.id, dict(sorted(state.activity.held.items())))
            if not state.activity.outside:
                raise ProtocolViolation("every branch waits for another; the protocol is deadlocked")
            awaited = tuple(sorted(state.activity.outside))
            await state.recorder.commit(SessionParked(awaited=awaited))
            raise SessionWaiting(state.id, awaited)
        return main.result()
    except Crash:  # what still runs can record nothing any more
        state.recorder.journal.abandon()
        await _stop(main, session)
        raise
    except BaseException:
        await _stop(main, session)
        with suppress(StoreUnusable):
            state.recorder.note_time()
        raise
    finally:
        still.cancel()
        clock.cancel()
        await state.cancelled.wait()


async def _run(protocol: Protocol, session: Session, state: State) -> Report:
    with span(
        f"session {protocol.name}", session=state.id, protocol=protocol.name, agents=len(state.agents)
    ) as current:
        report = await protocol.run(session)
        current.set_attribute("consilience.stop_reason", report.stop_reason.value)
    state.faults("before_finish", None)
    if not state.recorder.replay:
        event, texts = await asyncio.to_thread(_finish_event, report)
        await state.recorder.commit(event, texts)
    state.faults("after_finish", None)
    return report


def _finish_event(report: Report) -> tuple[SessionFinished, tuple[str, str]]:
    body, shown = report.model_dump_json(), present(report).model_dump_json()
    event = SessionFinished(
        stop_reason=report.stop_reason,
        report=text_id(body),
        report_digest=report.digest(),
        presentation=text_id(shown),
    )
    return event, (body, shown)


async def _note_time(state: State) -> None:
    """Store the time used while there is a limit on it, so that after a kill at most a second is used twice."""
    with suppress(StoreUnusable):  # the next commit raises it
        while state.limits.seconds is not None and not state.recorder.replay:
            await asyncio.sleep(NOTE_INTERVAL_SECONDS)
            state.recorder.note_time()


async def _stop(main: asyncio.Task[Report], session: Session) -> None:
    main.cancel()
    await asyncio.gather(main, return_exceptions=True)
    await session.abandon()


def _when_still(
    loop: asyncio.AbstractEventLoop, state: State, patience: float | None, still: asyncio.Future[None]
) -> None:
    """Nobody moves: after `patience` the outside world is given up on; a session that waits for nothing at all is deadlocked."""

    stillness = state.activity.generation

    def look() -> None:
        if state.activity.running or state.activity.generation != stillness or still.done():
            return
        activity = state.activity
        if activity.outside or activity.held or activity.defective or not state.ledger.fund_waiting():
            still.set_result(None)

    if state.activity.is_unanswerable:
        loop.call_soon(look)
    elif patience is not None:
        loop.call_later(patience, look)


def build_state(setup: Setup, started: SessionStarted, recorder: Recorder) -> State:
    """What the branches of the session share."""
    protocol, options, opening = setup.protocol, setup.options, setup.opening
    sizes = CallSizes(
        opening, protocol, started.agents, started.prices, started.thinking_tokens, started.steps, started.fit
    )
    activity = Activity()
    faults = fault_hook(options)
    state = State(
        id=recorder.journal.session,
        protocol=started.protocol,
        settings=started.settings,
        agents=started.agents,
        topology=started.topology,
        opening=opening,
        templates=setup.templates,
        ports=setup.seats.ports,
        recorder=recorder,
        encoder=setup.encoder,
        activity=activity,
        ledger=Ledger(sizes, started.limits, activity, recorder.now),
        limits=started.limits,
        estimate=started.estimate,
        quorum=started.quorum,
        seed=started.seed,
        repairs=started.repairs,
        reply_tokens=protocol.max_reply_tokens,
        detail=setup.detail,
        temperature=started.temperature,
        thinking=started.thinking,
        cache=started.cache,
        windows=started.windows,
        pace=0.0 if recorder.replay else options.pace,
        human_deadline=options.human_deadline or started.human_deadline,
        parent=started.parent,
        notes=protocol.notes,
        must_be_read=protocol.must_be_read,
    )
    if faults is not None:
        state.faults = faults
        recorder.on_ended = lambda event: faults("after_commit", event.phase)
    if options.hold is not None:
        state.hold = options.hold
    return state
