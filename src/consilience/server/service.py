"""What all faces of a server do with sessions: the only way from HTTP, chat and MCP to the store and the executor.

Every method takes the caller: they see and act on the sessions of their owner, and another's session does not exist for them. What
blocks on the disk runs on threads, so that a slow disk stops no reader.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from typing import Protocol as TypingProtocol

from consilience.deliberation import Deliberation
from consilience.domain.errors import JournalError, SettingsError, StoreUnusable, UnknownName
from consilience.domain.events import AnyEvent, SessionFinished, SessionStarted
from consilience.domain.report import Report
from consilience.engine.execution import Options
from consilience.engine.fork import Fork, prepare_fork
from consilience.engine.protocol import Protocol, report_type
from consilience.executor import Executor
from consilience.journal.store import LetterKind, Records, Store
from consilience.models.limiter import waits
from consilience.models.registry import canonical_name
from consilience.planning import RunPlan
from consilience.reporting.export import FORMATS, report_data
from consilience.reporting.follow_up import BrierScore, Deadline, FollowedSession, Resolution
from consilience.reporting.questions import Question, open_question, pending_questions, reply_to
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.views import view_of
from consilience.server.audit import Audit, Deed, audit_path
from consilience.server.blindness import SeenReader
from consilience.server.bodies import ForkBody, NewSession, TellBody
from consilience.server.callers import Caller
from consilience.server.errors import Overloaded
from consilience.server.feeds import Feeds
from consilience.server.forecasts import followed_by
from consilience.server.forks import planned_fork
from consilience.server.joins import Joins
from consilience.server.metrics import Meter, metrics_text
from consilience.server.openai_errors import RunFailed
from consilience.server.run_failures import RunFailures
from consilience.server.seats import SessionSeats
from consilience.server.session_plans import SERVED, SessionPlans
from consilience.server.settings import ServerSettings
from consilience.sessions.follow_up import ResolvedQuestion, all_scores, due_groups, forecast_outcomes, resolve_question
from consilience.sessions.rows import SessionRow, created_at, session_row
from consilience.sessions.search import search

PAGE_SIZE = 50
"""Sessions on one page of a list."""
CHECK_SECONDS = 1.0
"""Interval at which a reader looks whether the run that it waits for has failed."""
T = TypeVar("T")


class HasSession(TypingProtocol):
    @property
    def session(self) -> str: ...


P = TypeVar("P", bound=HasSession)


def is_served(started: SessionStarted) -> bool:
    """Return whether a server began the session."""
    return SERVED in started.deliveries


@dataclass(frozen=True)
class Prepared:
    """A session that was recorded and waits for its turn."""

    session: str
    plan: RunPlan


@dataclass(frozen=True)
class SessionList:
    """A page of sessions."""

    sessions: Sequence[SessionRow]
    page: int
    pages: int
    total: int


@dataclass(frozen=True)
class PreparedFork:
    """A fork that was recorded and waits for its turn."""

    session: str
    fork: Fork


def _new_id() -> str:
    return f"r{secrets.token_hex(8)}"


def _recorded(deliberation: Deliberation[Report], plan: RunPlan, task: str, session: str | None) -> Prepared:
    if plan.unfit is not None:
        raise plan.unfit
    return Prepared(asyncio.run(deliberation.prepare(task, session=session or _new_id())), plan)


class Sessions:
    """The sessions of a server."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        settings: ServerSettings,
        *,
        options: Options | None = None,
        meter: Meter | None = None,
        failures: RunFailures | None = None,
    ) -> None:
        """`options` are those of the executor: endpoints, connections. The `meter` observes its runs, `failures` how they end."""
        self._reader = SeenReader(store.reader)
        self.feeds = Feeds(self._reader)
        self.joins = Joins(self)
        self.meter = meter or Meter()
        self.failures = RunFailures() if failures is None else failures  # an empty one is false
        self._store = store
        self._executor = executor
        self.audit = Audit(audit_path(settings.access, store.path))
        self.seats = SessionSeats(store, executor, self.audit)
        self.settings = settings
        options = options or Options()
        self.endpoints = options.endpoints
        """What is declared of OpenAI-compatible endpoints."""
        self._preparing = Options(endpoints=options.endpoints, connections=options.connections)
        self._plans = SessionPlans(store, settings, self._preparing)

    # --- beginning sessions

    async def plan(self, caller: Caller, body: NewSession) -> RunPlan:
        """Return what a request would run, without recording anything. Raises `UserError`, `Forbidden`."""
        return await asyncio.to_thread(lambda: self._plans.planned(caller, body)[1])

    async def begin(
        self, caller: Caller, body: NewSession, *, session: str | None = None, derived: Mapping[str, Any] = {}
    ) -> Prepared:
        """Record a new session, durably, and hand it to the executor. Raises `UserError`, `Forbidden` before anything is spent.

        `session` is its id, by default a random one. `derived` are settings that follow from the documents.
        """

        def prepare() -> Prepared:
            deliberation, plan = self._plans.planned(caller, body, derived)
            return _recorded(deliberation, plan, body.task, session)

        prepared = await self._begun(prepare)
        self.audit.note(caller.owner, "began", prepared.session)
        return prepared

    async def begin_service(
        self,
        caller: Caller,
        protocol: Protocol,
        model: str,
        body: NewSession,
        session: str | None = None,
        *,
        prompts: Path | None = None,
    ) -> str:
        """Record a session that serves another request of a caller, by a protocol or on a model that they could not name, hand it
        to the executor, and return its id. It counts against what its owner may spend. Raises `Forbidden` as `begin`.

        `prompts` are templates in place of the protocol's.
        """

        def prepare() -> Prepared:
            models = {agent.id: canonical_name(model) for agent in protocol.agents(None)}
            deliberation, plan = self._plans.deliberation(caller, protocol, models, body, prompts=prompts)
            return _recorded(deliberation, plan, body.task, session)

        return (await self._begun(prepare)).session

    async def _begun(self, prepare: Callable[[], P]) -> P:
        """Hand the session to the executor that `prepare` records, on a thread. Raises `Overloaded`, `StoreUnusable` before."""
        await asyncio.to_thread(self.check_room)
        prepared = await asyncio.to_thread(prepare)
        self.failures.pop(prepared.session, None)  # of a removed one with this id
        self._executor.submit(prepared.session)
        return prepared

    def check_room(self) -> None:
        """Raise `Overloaded` if too many sessions wait, `StoreUnusable` if the journal cannot be written or its disk is full."""
        self.check_disk()
        if (waiting := self._executor.backlog().waiting) > self.settings.waiting:
            raise Overloaded(f"{waiting:,} sessions wait for their turn, and at most {self.settings.waiting:,} may")

    def check_disk(self) -> None:
        """Raise `StoreUnusable` if the journal cannot be written, or its disk is nearly full."""
        self._store.check_writable()
        if self._store.path != ":memory:":
            free = shutil.disk_usage(os.path.dirname(self._store.path)).free
            if free < self.settings.min_free:
                raise StoreUnusable(
                    f"the disk has {free:,} bytes free, fewer than {self.settings.min_free:,} (min_free)",
                    where=self._store.path,
                    do="Free space there; nothing was lost.",
                )

    # --- reading sessions

    async def read(self, caller: Caller, work: Callable[[Records], T], *, told: Sequence[AnyEvent] = ()) -> T:
        """Return `work(records)` over the caller's sessions, executed on the reading thread. The texts of events that `tail` has
        `told` may be read without their session."""
        return await self._reader.of(*caller.owners).run(work, told=told)

    def tail(self, caller: Caller, session: str, *, after: int = 0) -> AsyncGenerator[AnyEvent]:
        """Yield committed events after a number, as they appear, until the session ends. Raises `UnknownName`."""
        return self._reader.of(*caller.owners).tail(session, after=after)

    async def events(self, caller: Caller, session: str) -> AsyncGenerator[AnyEvent]:
        """Yield the committed events of a session until it ends. Raises `RunFailed` if its run ended without a report."""
        async with aclosing(self.tail(caller, session)) as tail:
            pending: asyncio.Future[AnyEvent] | None = None
            try:
                while True:
                    pending = pending or asyncio.ensure_future(anext(tail))
                    await asyncio.wait((pending,), timeout=CHECK_SECONDS)
                    if pending.done():
                        done, pending = pending, None
                        try:
                            yield done.result()
                        except StopAsyncIteration:
                            return
                    elif reason := self.failures.get(session):
                        raise RunFailed(f"Session {session} was interrupted: {reason}")
            finally:
                if pending is not None:
                    pending.cancel()
                    await asyncio.wait((pending,))

    async def wait(self, caller: Caller, session: str) -> None:
        """Return when a session has ended. Raises `RunFailed` as `events`."""
        async with aclosing(self.events(caller, session)) as events:
            async for _ in events:
                pass

    async def ending(self, caller: Caller, session: str) -> SessionFinished | None:
        """Return the last event of a session; None for one that goes on. Raises `UnknownName`."""

        def read(records: Records) -> SessionFinished | None:
            records.owner(session)
            end = records.ending(session)
            return end if isinstance(end, SessionFinished) else None

        return await self.read(caller, read)

    async def follow(self, caller: Caller, session: str, *, after: int = 0) -> AsyncGenerator[bytes] | None:
        """Return the events of a session after a number as server-sent events, until it ends; None if it has ended before.

        Raises `UnknownName`.
        """

        def has_ended(records: Records) -> bool:
            last = records.ending(session)
            return isinstance(last, SessionFinished) and after >= last.seq

        ended = await self.read(caller, has_ended)
        return None if ended else self.feeds.follow(caller.owners, session, after=after)

    async def listing(
        self, caller: Caller, *, words: Sequence[str] = (), protocols: Collection[str] = (), page: int = 1
    ) -> SessionList:
        """Return a page of the caller's sessions, newest first, that have all `words` in question, name or id.

        The records of one page are read, one at a time.
        """
        found = await self.read(caller, lambda records: search(records, words, protocols=protocols)[::-1])
        rows = []
        for entry in found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]:
            try:
                rows.append(await self.read(caller, partial(session_row, entry=entry)))
            except UnknownName:  # removed meanwhile
                continue
            except JournalError:
                rows.append(SessionRow(session=entry.session, state="unreadable", created=created_at(entry.created)))
        return SessionList(rows, page, -(-len(found) // PAGE_SIZE), len(found))

    async def export(self, caller: Caller, session: str, format: str) -> object:
        """Return a session in a format: a text, or data for JSON. Raises `SettingsError` for a format that it does not have."""

        def exported(records: Records) -> object:
            record = read_record(records, session)
            if format in FORMATS:
                return FORMATS[format](record)
            finished, started = record.state.finished, record.state.started
            cls = report_type(started.protocol) if started else None
            if finished is None or cls is None or format not in cls.formats:
                known = (*FORMATS, *(cls.formats if cls else ()))
                reason = f"Formats: {', '.join(known)}." if finished else "It has one when it is finished."
                raise SettingsError(f"session {session} has no format {format!r}", where="format", do=reason)
            return report_data(cls.model_validate_json(record.text(finished.report)), format)

        return await self.read(caller, exported)

    async def view(self, caller: Caller, session: str, name: str) -> dict[str, Any]:
        """Return a view of a session as data. Raises `UnknownName`."""
        view = await self.read(caller, lambda records: view_of(name, read_record(records, session)))
        return view.model_dump(mode="json")

    async def due(self, caller: Caller, *, today: date, within: int) -> dict[str, list[Deadline]]:
        """Return the deadlines over all sessions of the caller; see `sessions.follow_up.due_groups`."""
        followed = await followed_by(self._reader.of(*caller.owners))
        return await asyncio.to_thread(due_groups, followed, self._store.path, today=today, within=within)

    async def scores(self, caller: Caller) -> tuple[Sequence[BrierScore], Sequence[BrierScore]]:
        """Return the scores of agents and of models over all resolved questions of the caller."""
        followed = await followed_by(self._reader.of(*caller.owners))
        return await asyncio.to_thread(all_scores, followed, self._store.path)

    async def resolve(self, caller: Caller, session: str, question: str, outcome: bool) -> ResolvedQuestion:
        """Record the outcome of a question. Raises `UnknownName`."""
        place = self._store.path
        return await self.read(caller, lambda records: resolve_question(records, place, session, question, outcome))

    async def outcomes(self, caller: Caller, session: str) -> tuple[FollowedSession | None, dict[str, Resolution]]:
        """Return a session with its forecasts, None without any, and their recorded outcomes. Raises `UnknownName`."""
        place = self._store.path
        return await self.read(caller, lambda records: forecast_outcomes(records, place, session))

    async def metrics(self) -> str:
        """Return what the process has done and has to do, over all owners, as text for Prometheus."""
        finished = await self._store.reader.run(lambda records: [entry.finished for entry in records.entries()])
        return metrics_text(
            self.meter,
            self._executor.backlog(),
            finished=sum(finished),
            unfinished=len(finished) - sum(finished),
            readers=self.feeds.readers,
            waits=waits(),
        )

    # --- acting on sessions

    async def plan_fork(self, caller: Caller, session: str, body: ForkBody | TellBody) -> Fork:
        """Return what a fork, or a told fact, would inherit and change, without recording it. Raises `UserError`, `Forbidden`."""
        await self.seats.check_whole(caller, session)
        store = self._store.of(*caller.owners)
        return await asyncio.to_thread(planned_fork, store, caller, self.settings, session, body, self.endpoints)

    async def fork(
        self, caller: Caller, session: str, body: ForkBody | TellBody, *, to: str | None = None
    ) -> PreparedFork:
        """Record a new session that inherits from another, and hand it to the executor. Raises `UserError`, `Forbidden`.

        `to` is its id, by default a random one.
        """
        await self.seats.check_whole(caller, session)
        options = replace(self._preparing, name=body.name, deliveries={SERVED: "yes"})

        def prepare() -> PreparedFork:
            owner = self._store.of(*caller.owners).owner(session)
            store = self._store.of(owner, *caller.owners)  # a fork belongs to whom its parent belongs
            planned = planned_fork(store, caller, self.settings, session, body, self.endpoints)
            return PreparedFork(
                asyncio.run(prepare_fork(planned, store=store, session=to or _new_id(), options=options)), planned
            )

        prepared = await self._begun(prepare)
        deed: Deed = "told" if isinstance(body, TellBody) else "forked"
        self.audit.note(caller.owner, deed, prepared.session, parent=session)
        return prepared

    async def questions(self, caller: Caller, session: str) -> list[Question]:
        """Return the open questions of a session to people and outside processes."""
        return await self.read(
            caller, lambda records: pending_questions(records.read(session), records.text, records.prompt)
        )

    async def answer(self, caller: Caller, session: str, key: str, text: str, *, by: str = "") -> str:
        """Answer an open question and let the session go on; return the key of its call. Raises `UserError`."""
        question = await self._open_question(caller, session, key)
        await self.seats.check_seat(caller, session, question.agent)
        await self._post(caller, session, "answer", question.key, reply_to(question, text), by)
        self.audit.note(caller.owner, "answered", session, key=question.key)
        self.failures.pop(session, None)
        self._executor.submit(session)
        return question.key

    async def cancel(self, caller: Caller, session: str, *, answer: bool = False, by: str = "") -> None:
        """End a session with a report, wherever it runs. Raises `UserError` if it is finished."""
        await self.read(caller, lambda records: records.owner(session))  # theirs
        await asyncio.to_thread(lambda: self._executor.cancel(session, answer=answer, by=by or caller.owner))
        self.audit.note(caller.owner, "cancelled", session)

    async def comment(self, caller: Caller, session: str, text: str, *, by: str = "") -> None:
        """Put a comment on the record of a session that is not finished. Raises `UserError`."""
        await self._post(caller, session, "comment", "", text, by)
        self.audit.note(caller.owner, "commented", session)

    async def resume(self, caller: Caller, session: str) -> None:
        """Hand a session to the executor, which runs it when its turn comes; a finished one stays as it is."""
        await self.read(caller, lambda records: records.owner(session))
        self.audit.note(caller.owner, "resumed", session)
        self.failures.pop(session, None)
        self._executor.submit(session)

    async def remove(self, caller: Caller, session: str) -> None:
        """Remove a session with its texts. Raises `UnknownName`, `SessionBusy`."""
        await asyncio.to_thread(lambda: self._store.of(*caller.owners).admin.remove([session]))
        self.failures.pop(session, None)
        self.audit.note(caller.owner, "deleted", session)

    async def decline(self, caller: Caller, session: str, key: str) -> str:
        """Pass on an open question, and let the session go on; return the key of its call. Raises `UserError`."""
        question = await self._open_question(caller, session, key)
        await self.seats.decline(caller, session, question)
        return question.key

    async def _open_question(self, caller: Caller, session: str, key: str) -> Question:
        return open_question(session, key, await self.questions(caller, session))

    async def _post(self, caller: Caller, session: str, kind: LetterKind, key: str, text: str, by: str) -> None:
        store = self._store.of(*caller.owners)
        await asyncio.to_thread(lambda: store.post(session, kind, key, text, by or caller.owner))


def require_met(record: SessionRecord) -> bool | None:
    """Return whether the report has one of the stop reasons that its request requires; None without both."""
    started, report = record.state.started, record.report
    required = started.deliveries.get("require") if started else None
    return None if not required or report is None else report.stop_reason.value in required.split(",")


def plan_json(plan: RunPlan) -> dict[str, Any]:
    """Return a plan as data."""
    data: dict[str, Any] = json.loads(json.dumps(plan.as_json(), default=str))
    return data
