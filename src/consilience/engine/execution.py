"""Carrying a run from its first operation to its report, a park or a defect, and giving everything back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from consilience.domain.errors import (
    ProtocolViolation,
    SessionHeld,
    SessionWaiting,
    SettingsError,
    StoreUnusable,
)
from consilience.domain.events import (
    SessionFinished,
    SessionParked,
    SessionStarted,
    text_id,
)
from consilience.domain.report import Report
from consilience.engine.activity import Activity
from consilience.engine.allowances import Allowances
from consilience.engine.branch import Branch, Phase, current_branch
from consilience.engine.budget import call_size, hold_back
from consilience.engine.faults import Crash, from_spec
from consilience.engine.ports import AgentPort
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.recorder import Observer, Recorder
from consilience.engine.session import Session
from consilience.engine.sources import Document
from consilience.engine.state import Faults, State
from consilience.engine.telemetry import span
from consilience.engine.templates import INSTRUCTIONS, Templates
from consilience.journal.store import Journal

MOST_REPAIRS = 10
HOTTEST = 2
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

    def __post_init__(self) -> None:
        if self.repairs is not None and not 0 <= self.repairs <= MOST_REPAIRS:
            raise SettingsError(
                f"a reply cannot be asked for {self.repairs} times again", do=f"Give repairs from 0 to {MOST_REPAIRS}."
            )
        if self.temperature is not None and not (
            isinstance(self.temperature, int | float) and 0 <= self.temperature <= HOTTEST
        ):
            raise SettingsError(f"{self.temperature!r} is no temperature", do=f"Give a number from 0 to {HOTTEST}.")


def faults_of(options: Options) -> Faults | None:
    """Where this process is to be killed, if anywhere. Raises `SettingsError` for a point that is spelt wrongly."""
    spec = os.environ.get("CONSILIENCE_FAULT")
    return options.faults or (from_spec(spec).hit if spec else None)


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


@asynccontextmanager
async def closing(close: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await close()


async def execute(protocol: Protocol, state: State, options: Options) -> Report:
    """Run the protocol to its end, to a park, or into a defect."""
    session = Session(state)
    loop = asyncio.get_running_loop()
    still: asyncio.Future[None] = loop.create_future()
    state.activity = Activity(lambda: _when_still(loop, state, options.patience, still))
    current_branch.set(Branch("", state.root, max(state.estimate.max - 1, 0)))
    state.recorder.idle = lambda: state.activity.idle
    state.activity.enter()
    main = loop.create_task(_run(protocol, session, state))
    try:
        await asyncio.wait((main, still), return_when=asyncio.FIRST_COMPLETED)
        if not main.done():
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
        raise
    finally:
        still.cancel()


async def _run(protocol: Protocol, session: Session, state: State) -> Report:
    with span(
        f"session {protocol.name}", session=state.id, protocol=protocol.name, agents=len(state.agents)
    ) as current:
        report = await protocol.run(session)
        current.set_attribute("consilience.stop_reason", report.stop_reason.value)
    state.faults("before_finish", None)
    if not state.recorder.replay:
        body = report.model_dump_json()
        event = SessionFinished(stop_reason=report.stop_reason, report=text_id(body), report_digest=report.digest())
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

    stillness = state.activity.stirred

    def look() -> None:
        if state.activity.running == 0 and state.activity.stirred == stillness and not still.done():
            still.set_result(None)

    if state.activity.hopeless:
        loop.call_soon(look)
    elif patience is not None:
        loop.call_later(patience, look)


def state_of(
    protocol: Protocol,
    session: str,
    started: SessionStarted,
    task: str,
    found: tuple[Document, ...],
    templates: Templates,
    ports: Mapping[str, AgentPort],
    recorder: Recorder,
    options: Options,
) -> State:
    opening = Opening(templates.render(INSTRUCTIONS), task, found, protocol.readers)
    size = call_size(opening, protocol, started.prices, started.agents)
    root, reserve = hold_back(started.limits, size)
    faults = faults_of(options)
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
        cache=started.cache,
        prices=started.prices,
        steps=started.steps,
        call_size=size,
        root=root,
        reserve=reserve,
        allowances=Allowances(started.limits),
        parent=started.parent,
    )
    if faults is not None:
        state.faults = faults
    if options.hold is not None:
        state.hold = options.hold
    return state
