"""Turns of conversations as sessions. A request that is repeated joins the session that it began, and is paid for once."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from asyncio import Task
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from consilience.choosing import choose, follow_up_sources
from consilience.deliberation import remaining_limits
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import AnyEvent
from consilience.domain.messages import Source
from consilience.domain.panels import Panel
from consilience.journal.store import Records
from consilience.protocols.baselines import Solo
from consilience.protocols.choose import ChooseReport, TaskReading
from consilience.reporting.record import read_record
from consilience.server.bodies import ChoicesBody, NewSession
from consilience.server.callers import Caller
from consilience.server.chat_bodies import ASK, PREFIX, ChatTurn
from consilience.server.checks import allowed_models
from consilience.server.choices import given_of
from consilience.server.conversing import chat_models, ended_at
from consilience.server.openai_errors import RefusedRequest, RunFailed
from consilience.server.service import Sessions

UNREADABLE = TaskReading(kind="answer")
"""What counts as read if the call that reads a task fails: a plain question."""
JOIN_SECONDS = 15 * 60
"""How long after its end a session is joined by a repeated request. Clients give up after 10 minutes and repeat, unasked."""
CHECK_SECONDS = 1.0
"""Interval at which a reader looks whether the run that it waits for has failed."""


@dataclass(frozen=True)
class Joined:
    """The session of a turn."""

    session: str
    beginning: Task[None]
    """Done when the session is recorded; it goes on if nobody waits for it. Raises what was wrong with the request."""


class Turns:
    """Begins the sessions of conversations, or joins them.

    The id of a session follows from owner, model and all that was sent. A request looks for the session of that id and begins it if
    there is none, so a restart forgets nothing.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._beginning: dict[str, Task[None]] = {}

    async def join(self, caller: Caller, turn: ChatTurn) -> Joined:
        """Return the session of a turn. Raises `RefusedRequest` for a model that is not there."""
        self._check_model(caller, turn)
        return await self.joined(caller, turn.digest(caller.owner), partial(self._begin, caller, turn))

    async def joined(self, caller: Caller, digest: str, begin: Callable[[str], Awaitable[None]]) -> Joined:
        """Return the session of a digest that runs or ended at most `JOIN_SECONDS` ago, else one that `begin` records under the id
        that it is given."""
        async with self._locks.setdefault(digest, asyncio.Lock()):
            session, exists = await self._current(caller, digest)
            beginning = self._beginning.get(session)
            if beginning is None:
                beginning = asyncio.create_task(self._enter(caller, session, None if exists else begin))
                self._beginning[session] = beginning
                beginning.add_done_callback(lambda _: self._beginning.pop(session))
            return Joined(session, beginning)

    def _check_model(self, caller: Caller, turn: ChatTurn) -> None:
        models = chat_models(self.sessions, caller)
        if turn.model != PREFIX + turn.name or turn.name not in (ASK, *models):
            known = ", ".join(PREFIX + name for name in (ASK, *models))
            raise RefusedRequest(
                f"There is no model {turn.model!r}. Known: {known}.", param="model", code="model_not_found", status=404
            )

    async def _current(self, caller: Caller, digest: str) -> tuple[str, bool]:
        """Return the latest session of a digest, if it can be joined, else the id of the next one; and whether it is there."""
        for number in itertools.count():
            session = session_id(digest, number)
            try:
                ended = await ended_at(self.sessions, caller, session)
            except UnknownName:
                return session, False
            if ended is None or time.time() - ended <= JOIN_SECONDS:
                return session, True
        raise AssertionError

    async def _enter(self, caller: Caller, session: str, begin: Callable[[str], Awaitable[None]] | None) -> None:
        if begin is None:
            if session in self.sessions.failures:
                await self.sessions.resume(caller, session)
            return
        try:
            await begin(session)
        except SettingsError as error:
            try:  # another process may have begun it in this moment
                await ended_at(self.sessions, caller, session)
            except UnknownName:
                raise error from None

    async def _begin(self, caller: Caller, turn: ChatTurn, session: str) -> None:
        body = NewSession(
            task=turn.task,
            protocol=turn.name,
            settings=turn.options.settings,
            panel=turn.options.panel,
            models=turn.options.models,
            sources=turn.sources,
            limits=turn.options.limits,
            seed=turn.seed,
            thinking=turn.thinking,
        )
        if turn.parent:
            left = await self._left_by(caller, turn.parent)
            known = {(source.name, source.text) for source in left}
            more = (source for source in turn.sources if (source.name, source.text) not in known)
            body = body.model_copy(
                update={"protocol": Solo.name, "settings": {}, "panel": None, "sources": (*left, *more)}
            )
        elif turn.name == ASK:
            body = await self._chosen(caller, body, session)
        await self.sessions.begin(caller, body, session=session)

    async def _left_by(self, caller: Caller, session: str) -> Sequence[Source]:
        try:
            return await self.sessions.read(caller, lambda records: follow_up_sources(read_record(records, session)))
        except UnknownName:
            raise RefusedRequest(
                f"The session {session}, to which this is a follow-up, is not there. Put /new before the task to begin anew.",
                param="messages",
                code="session_not_found",
                status=404,
            ) from None

    async def _chosen(self, caller: Caller, body: NewSession, session: str) -> NewSession:
        """Return the session that suits a task; where that depends on what it asks for, after one call that reads it."""
        personas = len(body.panel.personas) if isinstance(body.panel, Panel) else 0
        allowed = allowed_models(caller, self.sessions.settings)
        asked = ChoicesBody(
            task=body.task,
            sources=body.sources,
            models=tuple(dict.fromkeys(body.models)) or tuple(allowed[:1]),
            personas=personas,
            limits=body.limits,
        )
        given = await asyncio.to_thread(given_of, asked, asked.models, self.sessions.endpoints)
        choice, limits = choose(given), body.limits
        if choice is None:
            report = await self._reading(caller, asked, session)
            choice = choose(given, report.reading or UNREADABLE)
            limits = remaining_limits(limits, report.ledger.actual)
        assert choice is not None
        return body.model_copy(
            update={
                "protocol": choice.protocol.name,
                "settings": {**choice.protocol.model_dump(mode="json", exclude_unset=True), **body.settings},
                "sources": tuple(choice.documents),
                "limits": limits,
            }
        )

    async def _reading(self, caller: Caller, body: ChoicesBody, session: str) -> ChooseReport:
        reading = reading_id(session)
        try:
            await ended_at(self.sessions, caller, reading)
        except UnknownName:
            await self.sessions.begin_reading(caller, body, body.models[:1], reading)
        else:
            if reading in self.sessions.failures:
                await self.sessions.resume(caller, reading)
        async with aclosing(events_of(self.sessions, caller, reading)) as events:
            async for _ in events:
                pass
        return await self.sessions.read(caller, lambda records: _choose_report(records, reading))


def _choose_report(records: Records, session: str) -> ChooseReport:
    report = read_record(records, session).report
    assert report is not None
    return ChooseReport.model_validate(report.model_dump())


def session_id(digest: str, number: int) -> str:
    """Return the id of the `number`-th session of a digest. Deterministic, and of the form that commands take."""
    return f"r{hashlib.sha256(f'{digest}/{number}'.encode()).hexdigest()[:20]}"


def reading_id(session: str) -> str:
    """Return the id of the session in which the task of a session is read."""
    return session_id(session, 0)


async def events_of(sessions: Sessions, caller: Caller, session: str, *, after: int = 0) -> AsyncGenerator[AnyEvent]:
    """Yield the committed events of a session until it ends. Raises `RunFailed` if its run ended without a report."""
    async with aclosing(sessions.tail(caller, session, after=after)) as tail:
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
                elif reason := sessions.failures.get(session):
                    raise RunFailed(f"Session {session} was interrupted: {reason}")
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait((pending,))
