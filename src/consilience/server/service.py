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
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, TypeVar
from typing import Protocol as TypingProtocol

from consilience.choosing import choose, reading_of
from consilience.deliberation import Deliberation
from consilience.domain.agents import Agent, in_dealing_order
from consilience.domain.errors import JournalError, SettingsError, StoreUnusable, UnknownName
from consilience.domain.events import AnyEvent, SessionFinished, SessionStarted
from consilience.domain.panels import CATALOG, Panel, load_panel
from consilience.domain.report import Report, register_report_finder
from consilience.engine.execution import Options
from consilience.engine.fork import Fork, no_call_error, prepare_fork
from consilience.engine.protocol import Protocol, find_protocol, protocol_names, report_type
from consilience.engine.seats import choose_detail
from consilience.executor import Executor
from consilience.journal.store import LetterKind, Records, Store
from consilience.models.endpoints import Endpoints
from consilience.models.limiter import waits
from consilience.models.registry import Choice
from consilience.planning import AS_ASKED, RunPlan, make_plan, with_documents
from consilience.reporting.export import FORMATS, report_data
from consilience.reporting.follow_up import BrierScore, Deadline
from consilience.reporting.questions import Question, named_question, pending_questions, reply_to
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.views import view_of
from consilience.server.audit import Audit, Deed, audit_path
from consilience.server.blindness import SeenReader
from consilience.server.bodies import ChoicesBody, ForkBody, NewSession, TellBody
from consilience.server.callers import Caller
from consilience.server.checks import (
    allowed_models,
    assigned_models,
    check_allowed,
    check_priced,
    check_settings,
)
from consilience.server.choices import Chosen, choice_read, given_of
from consilience.server.errors import Overloaded
from consilience.server.feeds import Feeds
from consilience.server.forks import planned_fork
from consilience.server.metrics import Meter, metrics_text
from consilience.server.run_failures import RunFailures
from consilience.server.seats import SessionSeats
from consilience.server.settings import ServerSettings
from consilience.sessions.follow_up import ResolvedQuestion, all_scores, due_groups, resolve_question
from consilience.sessions.rows import SessionRow, created_at, session_row
from consilience.sessions.search import search

PAGE_SIZE = 50
"""Sessions on one page of a list."""
READING_SECONDS = 30.0
"""How long the reading of a task is waited for in the request that began it."""
T = TypeVar("T")


class HasSession(TypingProtocol):
    @property
    def session(self) -> str: ...


P = TypeVar("P", bound=HasSession)
INTERNAL = frozenset({"choose", "propose"})
"""Protocols that no caller names: they are parts of other requests."""
SERVED = "server"
"""Key among the recorded deliveries of a session that a server began, and takes up after a restart."""


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
        """`options` are those of the executor: endpoints, accounts. The `meter` observes its runs, `failures` how they end."""
        register_report_finder(report_type)
        self._reader = SeenReader(store.reader)
        self.feeds = Feeds(self._reader)
        self.meter = meter or Meter()
        self.failures = failures or RunFailures()
        self._store = store
        self._executor = executor
        self.audit = Audit(audit_path(settings.access, store.path))
        self.seats = SessionSeats(store, executor, self.audit)
        self.settings = settings
        self._options = options or Options()

    # --- beginning sessions

    async def plan(self, caller: Caller, body: NewSession) -> RunPlan:
        """Return what a request would run, without recording anything. Raises `UserError`, `Forbidden`."""
        return await asyncio.to_thread(lambda: self._planned(caller, body)[1])

    async def begin(
        self, caller: Caller, body: NewSession, *, session: str | None = None, derived: Mapping[str, Any] = {}
    ) -> Prepared:
        """Record a new session, durably, and hand it to the executor. Raises `UserError`, `Forbidden` before anything is spent.

        `session` is its id, by default a random one. `derived` are settings that follow from the documents.
        """

        def prepare() -> Prepared:
            deliberation, plan = self._planned(caller, body, derived)
            if plan.unfit is not None:
                raise plan.unfit
            return Prepared(asyncio.run(deliberation.prepare(body.task, session=session or _new_id())), plan)

        prepared = await self._begun(prepare)
        self.audit.note(caller.owner, "began", prepared.session)
        return prepared

    async def _begun(self, prepare: Callable[[], P]) -> P:
        """Hand the session to the executor that `prepare` records, on a thread. Raises `Overloaded`, `StoreUnusable` before."""
        self.check_room()
        prepared = await asyncio.to_thread(prepare)
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

    def _planned(
        self, caller: Caller, body: NewSession, derived: Mapping[str, Any] = {}
    ) -> tuple[Deliberation[Report], RunPlan]:
        cls, settings, panel, named = self._named(body)
        caller.check_protocol(cls.name)
        check_settings(cls, settings)
        protocol = cls(**settings, **derived).with_panel(panel)
        agents = in_dealing_order(protocol.agents(panel))
        models = assigned_models(caller, self.settings, agents, named)
        return self._deliberation(caller, protocol, agents, models, body, panel)

    def _deliberation(
        self,
        caller: Caller,
        protocol: Protocol,
        agents: Sequence[Agent],
        models: dict[str, str],
        body: NewSession,
        panel: Panel | None = None,
    ) -> tuple[Deliberation[Report], RunPlan]:
        detail = choose_detail("auto", agents, models)
        known = self._options.endpoints
        protocol = with_documents(protocol.with_detail(detail), body.sources, models.values(), known)
        plan = make_plan(
            protocol,
            agents,
            models,
            Choice("", AS_ASKED),
            known=known,
            limits=body.limits,
            task=body.task,
            sources=body.sources,
            templates=protocol.load_templates(None, detail),
            encoder=None,
            thinking=body.thinking,
            detail=detail,
        )
        check_priced(caller, plan)
        require = {"require": ",".join(body.require)} if body.require else {}
        deliberation = Deliberation[Report](
            protocol,
            model=models,
            panel=panel,
            sources=body.sources,
            seed=body.seed,
            limits=body.limits,
            quorum=body.quorum,
            store=self._store.of(caller.beginner(body.team)),
            options=Options(
                thinking=body.thinking, name=body.name, deliveries={SERVED: "yes", **require}, endpoints=known
            ),
        )
        return deliberation, plan

    def _named(
        self, body: NewSession
    ) -> tuple[type[Protocol], dict[str, Any], Panel | None, Sequence[str] | Mapping[str, str]]:
        """Return protocol, settings, panel and models of a request, completed by the preset that it names."""
        name, settings, panel, models = body.protocol, dict(body.settings), body.panel, body.models
        if (preset := self.settings.presets.get(name)) is not None:
            name, settings = preset.protocol, {**preset.settings, **settings}
            panel, models = panel or preset.panel, models or preset.models
        if name in INTERNAL or name not in protocol_names():
            known = sorted({*protocol_names(), *self.settings.presets} - INTERNAL)
            raise UnknownName(f"there is no protocol {name!r}", where="protocol", do=f"Known: {', '.join(known)}.")
        if isinstance(panel, str):
            if panel not in CATALOG.names():
                raise UnknownName(
                    f"there is no panel {panel!r}", where="panel", do=f"Known: {', '.join(CATALOG.names())}."
                )
            panel = load_panel(panel)
        return find_protocol(name), settings, panel, models

    # --- reading sessions

    async def read(self, caller: Caller, work: Callable[[Records], T], *, told: Sequence[AnyEvent] = ()) -> T:
        """Return `work(records)` over the caller's sessions, executed on the reading thread. The texts of events that `tail` has
        `told` may be read without their session."""
        return await self._reader.of(*caller.owners).run(work, told=told)

    def tail(self, caller: Caller, session: str, *, after: int = 0) -> AsyncGenerator[AnyEvent]:
        """Yield committed events after a number, as they appear, until the session ends. Raises `UnknownName`."""
        return self._reader.of(*caller.owners).tail(session, after=after)

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
        place = self._store.path
        return await self.read(caller, lambda records: due_groups(records, place, today=today, within=within))

    async def scores(self, caller: Caller) -> tuple[Sequence[BrierScore], Sequence[BrierScore]]:
        """Return the scores of agents and of models over all resolved questions of the caller."""
        return await self.read(caller, lambda records: all_scores(records, self._store.path))

    async def resolve(self, caller: Caller, session: str, question: str, outcome: bool) -> ResolvedQuestion:
        """Record the outcome of a question. Raises `UnknownName`."""
        place = self._store.path
        return await self.read(caller, lambda records: resolve_question(records, place, session, question, outcome))

    @property
    def endpoints(self) -> Endpoints:
        """What is declared of OpenAI-compatible endpoints."""
        return self._options.endpoints

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

    # --- choosing

    async def choose(self, caller: Caller, body: ChoicesBody) -> Chosen:
        """Return how `ask` would work on a task. Where that depends on what the task asks for, a model reads it, in a session of
        its own, which is waited for `READING_SECONDS`; after them the choice is None, and a later request names that session."""
        models = body.models or tuple(allowed_models(caller, self.settings)[:1])
        check_allowed(caller, self.settings, models)
        given = given_of(body, models, self._options.endpoints)
        if (choice := choose(given)) is not None:
            return Chosen(choice, "")
        session = body.reading or (await self._begun(lambda: self._prepare_reading(caller, body, models[:1]))).session
        with suppress(TimeoutError):
            async with asyncio.timeout(READING_SECONDS):
                async for _ in self.tail(caller, session):
                    pass
        return Chosen(await self.read(caller, lambda records: choice_read(records, session, given)), session)

    async def begin_reading(self, caller: Caller, body: ChoicesBody, models: Sequence[str], session: str) -> None:
        """Begin the session in which a model reads a task, under the id `session`. Raises `UserError`, `Forbidden`."""
        await self._begun(lambda: self._prepare_reading(caller, body, models, session))

    def _prepare_reading(
        self, caller: Caller, body: ChoicesBody, models: Sequence[str], session: str | None = None
    ) -> Prepared:
        protocol = reading_of(body.sources)
        agents = protocol.agents(None)
        request = NewSession(task=body.task, protocol=protocol.name, limits=body.limits)
        named = assigned_models(caller, self.settings, agents, models)
        deliberation, plan = self._deliberation(caller, protocol, agents, named, request)
        return Prepared(asyncio.run(deliberation.prepare(body.task, session=session or _new_id())), plan)

    # --- acting on sessions

    async def plan_fork(self, caller: Caller, session: str, body: ForkBody | TellBody) -> Fork:
        """Return what a fork, or a told fact, would inherit and change, without recording it. Raises `UserError`, `Forbidden`."""
        await self.seats.check_whole(caller, session)
        store = self._store.of(*caller.owners)
        return await asyncio.to_thread(planned_fork, store, caller, self.settings, session, body)

    async def fork(self, caller: Caller, session: str, body: ForkBody | TellBody) -> PreparedFork:
        """Record a new session that inherits from another, and hand it to the executor. Raises `UserError`, `Forbidden`."""
        await self.seats.check_whole(caller, session)
        options = Options(name=body.name, deliveries={SERVED: "yes"}, endpoints=self._options.endpoints)

        def prepare() -> PreparedFork:
            owner = self._store.of(*caller.owners).owner(session)
            store = self._store.of(owner, *caller.owners)  # a fork belongs to whom its parent belongs
            planned = planned_fork(store, caller, self.settings, session, body)
            if planned.makes_no_call:
                raise SettingsError(
                    no_call_error(planned).what,
                    where="at",
                    do="Name an earlier point: `0` asks every call again. Or change settings so that there are more steps.",
                )
            return PreparedFork(
                asyncio.run(prepare_fork(planned, store=store, session=_new_id(), options=options)), planned
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
        self._executor.submit(session)

    async def remove(self, caller: Caller, session: str) -> None:
        """Remove a session with its texts. Raises `UnknownName`, `SessionBusy`."""
        await asyncio.to_thread(lambda: self._store.of(*caller.owners).admin.remove([session]))
        self.audit.note(caller.owner, "deleted", session)

    async def decline(self, caller: Caller, session: str, key: str) -> str:
        """Pass on an open question, and let the session go on; return the key of its call. Raises `UserError`."""
        question = await self._open_question(caller, session, key)
        await self.seats.decline(caller, session, question)
        return question.key

    async def _open_question(self, caller: Caller, session: str, key: str) -> Question:
        asked = {question.key: question for question in await self.questions(caller, session)}
        name = named_question(key, list(asked.values()))
        if name not in asked:
            choices = f"Open questions: {', '.join(asked)}." if asked else "There are none."
            raise UnknownName(f"session {session} has no open question {name!r}", do=choices)
        return asked[name]

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
