"""Running a protocol to its report, to a park or into a defect, and releasing everything."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated

from pydantic import Field

from consilience.documents.dealing import Deal
from consilience.domain.detail import Detail, DetailChoice
from consilience.domain.errors import (
    ProtocolViolation,
    SessionHeld,
    SessionWaiting,
    SettingsError,
    StoreUnusable,
)
from consilience.domain.events import (
    Ended,
    Event,
    SessionFinished,
    SessionParked,
    SessionStarted,
    Settled,
    text_id,
)
from consilience.domain.outcome import Limits, ThinkingLevel
from consilience.domain.presenting import try_forecasts, try_present
from consilience.domain.report import FORECASTS, Report
from consilience.domain.validation import check_fields
from consilience.engine.activity import Activity, Phase
from consilience.engine.cancelling import Cancellation
from consilience.engine.faults import Crash, parse_fault
from consilience.engine.inventory import take_inventories
from consilience.engine.ledger import Ledger
from consilience.engine.mail import MailTaker
from consilience.engine.owners import claim_of, cost_of
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol
from consilience.engine.recorder import Observer, Recorder
from consilience.engine.seats import Seats, check_prices
from consilience.engine.session import Session
from consilience.engine.similarity import Encoder
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import Document
from consilience.engine.state import FaultHook, State
from consilience.engine.telemetry import span
from consilience.engine.template_use import TemplateUse
from consilience.engine.templates import INSTRUCTIONS, Templates
from consilience.engine.timing import NOTE_INTERVAL_SECONDS, CallsInFlight
from consilience.engine.work import Branch, current_branch
from consilience.journal.accounts import Account, Accounts
from consilience.journal.store import Journal
from consilience.models.connections import Connections
from consilience.models.endpoints import NO_ENDPOINTS, Endpoints

MAX_REPAIRS = 10
MAX_DEADLINE_SECONDS = 86_400
MAX_PACE = 1_000
MAX_HUMAN_DEADLINE_SECONDS = 31_536_000
CLAIM_CHECK_SECONDS = 0.2
"""Min seconds from one check whether a ticket is still claimed to the next."""
MAX_INVENTORY_TOKENS = 16_000
MAX_TEMPERATURE = 2
"""No provider takes a higher temperature."""


@dataclass(frozen=True)
class Options:
    """How to run a session.

    `repairs`, `cache`, `temperature`, `thinking`, `detail`, `deadline`, `human_deadline` and `inventory_tokens` are recorded when a
    session begins, and apply to a resume or fork that does not set them. The others do not affect the record.
    """

    observer: Observer | None = None
    """Called with each event once it is committed."""
    patience: float | None = 30.0
    """Seconds for which a session that awaits only people or outside processes stays up before it is parked; None: no limit. It is
    parked at once when all of them have left."""
    hold: Callable[[Phase | None], bool] | None = None
    """Calls of a phase for which this is true are not made. Once no other call is left the run ends with `SessionHeld`, as if
    interrupted there. Nothing of this is recorded."""
    faults: Callable[[str, Phase | None], None] | None = None
    """Called at each fault point (`engine.faults`)."""
    repairs: Annotated[int, Field(ge=0, le=MAX_REPAIRS)] | None = None
    """How often to repeat a call whose reply is unusable. None: 1."""
    cache: bool | None = None
    """Whether to reuse a reply in the store to an identical request (agent, model, prompt, parameters, seed). None: no."""
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """None: the model's own."""
    thinking: ThinkingLevel | None = None
    """How much models that can think do so before they answer. None: `low`."""
    detail: DetailChoice | None = None
    """Which set of prompts agents are shown. None: `auto`."""
    deal: Deal = "none"
    """How documents are dealt to the agents of a new session; what each is shown is recorded with the documents."""
    inventory_tokens: Annotated[int, Field(ge=0, le=MAX_INVENTORY_TOKENS)] | None = None
    """Max tokens of the inventory with which a reader of dealt documents begins; 0: no inventories. None: 2,000."""
    deadline: Annotated[float, Field(gt=0, le=MAX_DEADLINE_SECONDS)] | None = None
    """Max seconds of one request to a model. None: the provider's default."""
    pace: Annotated[float, Field(ge=0, le=MAX_PACE)] = 0.0
    """Real seconds per virtual second, for watching a run in virtual time; 0 does not wait. A replay never waits, a resume not for
    recorded events. Protocols without virtual time ignore it."""
    human_deadline: Annotated[float, Field(gt=0, le=MAX_HUMAN_DEADLINE_SECONDS)] | None = None
    """Max seconds of wall time for a person's answer, time in which the session is parked included; then the call fails as
    `deadline`. None: no limit."""
    allow_unpriced: bool = False
    """Whether a new session with a limit on money may have models without a known price, whose cost that limit does not bound."""
    accounts: Accounts | None = None
    """Bounds what the owners of sessions may spend a day and run at the same time. None: nothing does."""
    name: str = ""
    """What the user calls a new session, in lists and searches; may be changed later (`Store.rename`)."""
    comparison: str = ""
    """Id of the comparison that begins the session, recorded, so that a list can show its sessions together."""
    deliveries: Mapping[str, str] = field(default_factory=dict)
    """Options of a command by which the report is delivered, recorded for its resume. Nothing else reads them."""
    endpoints: Endpoints = NO_ENDPOINTS
    """What is declared of OpenAI-compatible endpoints, and which of them may have a key. A deliberation adds the endpoints among
    the models that it is given, and those of the user's own `consilience.toml`."""
    connections: Connections | None = None
    """Clients that models of several sessions share, on one event loop. Their maker closes them. None: each session has its own."""

    def observed_by(self, observer: Observer) -> Options:
        """Return these options with one more observer, which is called before the other."""
        first = self.observer
        if first is None:
            return replace(self, observer=observer)

        def notify_both(event: Event) -> None:
            observer(event)
            first(event)

        return replace(self, observer=notify_both)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The configuration of a session with all names resolved."""

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
    warnings: tuple[str, ...] = ()
    """What the report warns of whatever happens, such as personas without a seat."""
    options: Options = Options()

    @cached_property
    def opening(self) -> Opening:
        """The beginning of all prompts of the session."""
        instructions = self.templates.render(INSTRUCTIONS, documents=bool(self.documents))
        return Opening(instructions, self.task, self.documents, self.protocol.readers)


def fault_hook(options: Options) -> FaultHook | None:
    """Return the function that strikes at fault points, if any. Raises `SettingsError` for an invalid point."""
    spec = os.environ.get("CONSILIENCE_FAULT")
    return options.faults or (parse_fault(spec).hit if spec else None)


@asynccontextmanager
async def leased(journal: Journal) -> AsyncIterator[None]:
    """Close the journal at the end: commit what was recorded and release the lease. After a simulated kill commit nothing."""
    try:
        yield
    except Crash:
        journal.abandon()
        raise
    except BaseException:
        with suppress(StoreUnusable):  # the cause, which is being raised
            await journal.close()
        raise
    await journal.close()


async def open_account(state: State, accounts: Accounts | None) -> Account | None:
    """Return the account of the session's owner; None in a replay, where no call will be made, and where nothing bounds the owner.

    Raises `OverAllowance`, and `SettingsError` for a model of unknown price if the owner's money is bounded.
    """
    recorder = state.recorder
    if accounts is None or recorder.replay or state.cancellation.forbids(closing=True):
        return None
    costs = {
        claim_of(event): cost_of(event) for event in recorder.events if isinstance(event, Ended) and not event.inherited
    }
    account = await accounts.open(recorder.journal, costs)
    if account is not None and account.allowance.cost is not None:
        try:
            check_prices(state.ports, Limits(cost=account.allowance.cost))
        except SettingsError:
            account.release()
            raise
    return account


async def execute(setup: Setup, state: State) -> Report:
    """Run the protocol to its report, to a park or into a defect."""
    protocol, options = setup.protocol, setup.options
    state.account = await open_account(state, options.accounts)
    session = Session(state)
    loop = asyncio.get_running_loop()
    current_branch.set(Branch("", state.ledger.root, max(state.started.estimate.max - protocol.closing, 0)))
    state.recorder.idle_seconds = lambda: state.activity.idle_seconds
    state.activity.enter()
    main = loop.create_task(_run(protocol, session, state))
    clock, mail = loop.create_task(_note_time(state)), MailTaker(state)
    mail.begin()
    try:
        await _until_ended_or_still(main, state, options.patience, mail)
        if not main.done():
            session.raise_defect()
            held = dict(sorted(state.activity.held_calls.items()))
            outside = dict(sorted(state.activity.outside.items()))
            await _stop(main, session)  # an answer that comes meanwhile is for the process that resumes
            if not outside and held:
                raise SessionHeld(state.id, held)
            if not outside:
                raise ProtocolViolation("deadlock: every branch waits for another one")
            await state.recorder.commit(SessionParked(awaited=tuple(outside)))
            tickets = {key: answer.ticket.id for key, answer in outside.items() if answer.ticket is not None}
            raise SessionWaiting(state.id, tuple(outside), tickets)
        return main.result()
    except Crash:  # nothing that still runs can record anything
        state.recorder.journal.abandon()
        await _stop(main, session)
        raise
    except BaseException:
        await _stop(main, session)
        with suppress(StoreUnusable):
            state.recorder.note_time()
        raise
    finally:
        clock.cancel()
        await mail.end()
        if state.account is not None:
            with suppress(StoreUnusable):
                state.account.release()
        await state.in_flight.wait()


async def _run(protocol: Protocol, session: Session, state: State) -> Report:
    with span(
        f"session {protocol.name}", session=state.id, protocol=protocol.name, agents=len(state.started.agents)
    ) as current:
        await take_inventories(session, state)
        report = await protocol.run(session)
        if not isinstance(report, Report):
            raise ProtocolViolation(
                f"run of {type(protocol).__name__} returned a {type(report).__name__}, not a report. "
                "Write `return await session.close(…)` or `return await session.report(…)`"
            )
        if left := session.clock.close():
            raise ProtocolViolation(
                f"{left} of the coroutines given to clock.spawn never ran. Await session.clock.run() after the last spawn"
            )
        current.set_attribute("consilience.stop_reason", report.stop_reason.value)
    state.faults("before_finish", None)
    if not state.recorder.replay:
        report, event, texts = await asyncio.to_thread(_finish, protocol, report)
        await state.recorder.commit(event, texts)
    state.faults("after_finish", None)
    return report


def _finish(protocol: Protocol, report: Report) -> tuple[Report, SessionFinished, tuple[str, ...]]:
    """Return the report, with warnings if it has another type than declared or its presentation failed, and the last event with
    its texts."""
    presentation, problem = try_present(report)
    forecasts, unforeseen = try_forecasts(report)
    problems = tuple(filter(None, (_other_type(protocol, report), problem, unforeseen)))
    if problems:
        report = report.model_copy(update={"defects": (*report.defects, *problems)})
    body, shown = report.model_dump_json(), presentation.model_dump_json()
    foreseen = FORECASTS.dump_json(forecasts).decode() if forecasts else ""
    event = SessionFinished(
        stop_reason=report.stop_reason,
        report=text_id(body),
        report_digest=report.digest(),
        presentation=text_id(shown),
        forecasts=text_id(foreseen) if foreseen else "",
        volatile={"ended_at": round(time.time(), 3)},
    )
    return report, event, tuple(filter(None, (body, shown, foreseen)))


def _other_type(protocol: Protocol, report: Report) -> str:
    """Return a warning if the report is not of the type by which it will be read again."""
    declared, returned = protocol.report.__name__, type(report).__name__
    if type(report) is protocol.report:
        return ""
    return (
        f"the report has another type than its protocol declares: "
        f"run of {type(protocol).__name__} returned {returned}, but the class declares `report = {declared}`, "
        f"as which a recorded session is read. Return `await session.report(self.report, …)`, or declare `report = {returned}`"
    )


async def _note_time(state: State) -> None:
    """Store the time used if it is limited, so that after a kill at most a second is used twice."""
    with suppress(StoreUnusable):  # the next commit raises it
        while state.started.limits.seconds is not None and not state.recorder.replay:
            await asyncio.sleep(NOTE_INTERVAL_SECONDS)
            state.recorder.note_time()


async def _stop(main: asyncio.Task[Report], session: Session) -> None:
    main.cancel()
    await asyncio.gather(main, return_exceptions=True)
    session.clock.close()
    await session.abandon()


async def _until_ended_or_still(
    main: asyncio.Task[Report], state: State, patience: float | None, mail: MailTaker
) -> None:
    """As `_until_still`, and nothing lies in the mailbox that could move the run."""
    activity = state.activity
    while True:
        await _until_still(main, state, patience)
        stillness = activity.generation
        if main.done() or not (
            await mail.look() or activity.running or activity.generation != stillness or _goes_on(state)
        ):
            return


def _goes_on(state: State) -> bool:
    """Return whether a call that waits goes on, or ends, in a moment: it was answered through the mailbox, or cancelled."""
    return state.in_flight.is_ending or not state.activity.outside.keys().isdisjoint(state.recorder.answers)


async def _until_still(main: asyncio.Task[Report], state: State, patience: float | None) -> None:
    """Return when the run has ended, or when it is to be parked or held, or is deadlocked. A claimed ticket prevents parking."""
    activity = state.activity
    while True:
        still: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        activity.on_still = partial(_when_still, state, patience, still)
        if not activity.running:
            activity.on_still()
        try:
            await asyncio.wait((main, still), return_when=asyncio.FIRST_COMPLETED)
        finally:
            still.cancel()
        if main.done():
            return
        stillness = activity.generation
        if not (activity.running or await activity.has_live_ticket() or activity.generation != stillness):
            return
        patience = None if patience is None else max(patience, CLAIM_CHECK_SECONDS)


def _when_still(state: State, patience: float | None, still: asyncio.Future[None]) -> None:
    """End the run after `patience` without movement, unless waiting calls can be funded."""

    loop, stillness = asyncio.get_running_loop(), state.activity.generation

    def look() -> None:
        activity = state.activity
        if activity.running or activity.generation != stillness or still.done():
            return
        if _goes_on(state):
            return
        if activity.outside or activity.held_calls or activity.defective or not state.ledger.fund_waiting():
            still.set_result(None)

    if state.activity.is_unanswerable:
        loop.call_soon(look)
    elif patience is not None:
        loop.call_later(patience, look)


def build_state(setup: Setup, started: SessionStarted, recorder: Recorder) -> State:
    """Make the state that the branches of the session share."""
    protocol, options = setup.protocol, setup.options
    opening = replace(setup.opening, window=min(started.windows.values(), default=None))
    sizes = CallSizes(
        opening,
        protocol,
        started.agents,
        started.prices,
        started.thinking_tokens,
        started.steps,
        started.fit,
        inventory_tokens=started.inventory_tokens,
    )
    activity, cancellation = Activity(), Cancellation()
    faults = fault_hook(options)
    own = {agent.id: agent.introduction() for agent in protocol.agents_without_panel()}
    state = State(
        id=recorder.journal.session,
        started=started,
        opening=opening,
        templates=setup.templates.of(recorder.journal.session),
        template_use=TemplateUse(setup.templates.replaced, opening.instructions),
        ports=setup.seats.ports,
        recorder=recorder,
        encoder=setup.encoder,
        has_encoder=setup.encoder is not None,
        activity=activity,
        ledger=Ledger(sizes, started.limits, activity, recorder.now, cancellation),
        in_flight=CallsInFlight(cancellation),
        reply_tokens=protocol.max_reply_tokens,
        pace=0.0 if recorder.replay else options.pace,
        human_deadline=options.human_deadline or started.human_deadline,
        report_type=protocol.report,
        notes=protocol.notes,
        must_be_read=protocol.must_be_read,
        after_answer=protocol.after_answer,
        warnings=[("", warning) for warning in started.warnings],
        unintroduced={a.id: a for a in started.agents if a.persona and a.introduction() != own.get(a.id)},
    )
    if faults is not None:
        state.faults = faults
        recorder.on_recorded = partial(_strike, faults)
    if options.hold is not None:
        state.hold = options.hold
    return state


def _strike(faults: FaultHook, event: Ended | Settled) -> None:
    if isinstance(event, Settled):
        faults("after_settled", (event.name, event.index))
    else:
        faults("after_commit", event.phase)
