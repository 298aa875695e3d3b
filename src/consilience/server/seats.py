"""Seats and links: who may answer for a seat, who sees what of it, and tokens that open a part of a session to others.

A link is a row of the journal with the digest of its token, so it outlives a restart, is removed with its session, and can be
withdrawn. A seat's link ends with its session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from consilience.domain.errors import SettingsError, UnknownName, UnknownSession
from consilience.domain.events import CallAwaited, CallEvent, SessionFinished
from consilience.engine.sent_prompts import SentPrompt, sent_prompts
from consilience.executor import Executor
from consilience.journal.store import LetterKind, LinkKind, Opinion, ReaderVote, Records, SessionLink, Store
from consilience.reporting.questions import Question, pending_questions, reply_to
from consilience.server.audit import Audit
from consilience.server.blindness import SeenReader, given_seats, seats_of_owner, view_of
from consilience.server.callers import Caller, Forbidden
from consilience.server.owners import new_token, token_digest

T = TypeVar("T")
MAX_LINK_DAYS = 366.0
SHARES: tuple[LinkKind, ...] = ("share", "hearing")
MAX_LINKS = 200
"""Links of a session."""


@dataclass(frozen=True)
class NewLink:
    """A link that was just made: the only time that its token is there."""

    token: str
    until: float
    """When it ends, in seconds since the epoch."""


@dataclass(frozen=True)
class OpenSeat:
    """What a seat's link shows."""

    session: str
    agent: str
    question: Question | None
    """None while nothing is asked of the seat."""
    task: str = ""
    """What the session is about, which every seat may read."""


class SessionSeats:
    """The seats of people in the sessions of a server, and the links into its sessions."""

    def __init__(self, store: Store, executor: Executor, audit: Audit, *, now: Callable[[], float] = time.time) -> None:
        """`now` is in seconds since the epoch."""
        self._store = store
        self._executor = executor
        self._audit = audit
        self.now = now

    # --- of the owner

    async def check_whole(self, caller: Caller, session: str) -> None:
        """Raise `Forbidden` if the caller may not see all of a session yet, which a fork of it would show. Raises `UnknownName`."""
        if await self._read(caller, lambda records: view_of(records, session, seats_of_owner)) is not None:
            raise Forbidden(
                "You hold a seat in this session, which goes on: only its end shows you the replies of others. "
                f"Wait for it, or lift that, on the record: POST /api/sessions/{session}/lift."
            )

    async def check_seat(self, caller: Caller, session: str, agent: str) -> None:
        """Raise `Forbidden` for a seat that was given away by a link. Raises `UnknownName`."""
        if agent in await self._read(caller, lambda records: given_seats(records, session)):
            raise Forbidden(f"The seat {agent} was given away: who has a valid link into it answers.")

    async def lift(self, caller: Caller, session: str) -> None:
        """Let the owner see all of a running session in which they hold a seat. It is on the record, and in the report."""
        await self._post(caller, session, "lift", by=caller.owner)
        self._audit.note(caller.owner, "lifted", session)

    async def decline(self, caller: Caller, session: str, question: Question) -> None:
        """Pass on an open question: its call fails as refused, and the session goes on. Raises `UserError`, `Forbidden`."""
        await self.check_seat(caller, session, question.agent)
        await self._post(caller, session, "pass", question.key, by=caller.owner)
        self._audit.note(caller.owner, "passed", session, key=question.key)
        self._executor.submit(session)

    async def give(self, caller: Caller, session: str, agent: str, days: float) -> NewLink:
        """Make a link into the seat of a person. From then on its holder answers, and nobody else. Raises `UserError`."""

        def check(records: Records) -> None:
            started = records.beginning(session)
            people = [a.id for a in started.agents if a.is_person_here] if started else []
            if agent not in people:
                known = f"Seats of people: {', '.join(people)}." if people else "It has no seats of people."
                raise UnknownName(f"session {session} has no seat {agent!r} of a person", do=known)
            if isinstance(records.ending(session), SessionFinished):
                raise SettingsError(f"session {session} is finished, and nobody is asked any more")

        await self._read(caller, check)
        made = await self._make(caller, session, "seat", agent, days)
        self._audit.note(caller.owner, "linked", session, seat=agent)
        return made

    async def share(self, caller: Caller, session: str, days: float, *, asks: bool = False) -> NewLink:
        """Make a link by which anybody reads the page of a finished session and, if it `asks`, gives one opinion on it.

        Raises `UserError`.
        """

        def check(records: Records) -> None:
            if not isinstance(records.ending(session), SessionFinished):
                raise SettingsError(f"session {session} is not finished", do="Share it when it is.")

        await self._read(caller, check)
        made = await self._make(caller, session, "hearing" if asks else "share", "", days)
        self._audit.note(caller.owner, "shared", session)
        return made

    async def links(self, caller: Caller, session: str) -> list[SessionLink]:
        """Return the links into a session of the caller, those that have ended too. Raises `UnknownName`."""
        return await self._read(caller, lambda records: records.links(session))

    async def end_link(self, caller: Caller, session: str, number: int) -> None:
        """Withdraw a link, at once. Raises `UnknownName`."""
        store = self._store.of(*caller.owners)
        await asyncio.to_thread(lambda: store.end_link(session, number, self.now()))
        self._audit.note(caller.owner, "unlinked", session, link=number)

    async def sent_prompts(self, caller: Caller, session: str, key: str) -> list[SentPrompt]:
        """Return the prompts of a call as they were sent, one per attempt. Its protocol runs again, without a call.

        Raises `UnknownName` for a call that the caller may not see, `VersionMismatch` for a session of other code.
        """

        def may_see(records: Records) -> bool:
            asked = (event for event in records.read(session) if isinstance(event, CallEvent | CallAwaited))
            return key in {flight.key for flight in records.flights(session)} or any(e.key == key for e in asked)

        if not await SeenReader(self._store.reader).of(*caller.owners).run(may_see):
            raise UnknownName(f"session {session} has no call {key!r}")
        store = self._store.of(*caller.owners)
        return await asyncio.to_thread(lambda: asyncio.run(sent_prompts(session, key, store=store)))

    # --- of who has a link

    async def seat(self, token: str) -> OpenSeat:
        """Return what is asked of the seat of a link. Raises `UnknownSession` for a token that opens no seat now."""
        link = await self._opened(token, "seat")
        return await self._seat_reader(link).run(lambda records: _open_seat(records, link))

    async def answer_seat(self, token: str, key: str, text: str | None) -> None:
        """Answer the open question of a seat, or pass on it: None. Raises `UserError`, `UnknownSession` as `seat`."""
        link = await self._opened(token, "seat")
        question = (await self.seat(token)).question
        if question is None or question.key != key:
            raise UnknownName("this question is not open any more", do="Load the page again.")
        by = f"{link.agent}, by link {link.number}"
        kind: LetterKind = "pass" if text is None else "answer"
        reply = "" if text is None else reply_to(question, text)
        await asyncio.to_thread(lambda: self._store.post(link.session, kind, key, reply, by))
        self._audit.note(by, "passed" if text is None else "answered", link.session, key=key)
        self._executor.submit(link.session)

    async def shared(self, token: str, work: Callable[[Records, SessionLink], T]) -> T:
        """Return `work` on the records and the link to a finished session. Raises `UnknownSession` as `seat`."""
        link = await self._opened(token, *SHARES)
        reader = SeenReader(self._store.reader, lambda records, session: frozenset())
        return await reader.run(lambda records: work(records, link))

    async def give_opinion(self, token: str, vote: ReaderVote, objection: str) -> None:
        """Record the one opinion of a link that asks for it. Raises `SettingsError` for a second one, `UnknownSession` as
        `seat`."""
        link = await self._opened(token, "hearing")
        if not await asyncio.to_thread(lambda: self._store.add_opinion(link, vote, objection, self.now())):
            raise SettingsError("a vote was given by this link before, and it takes one")
        self._audit.note(f"a reader, by link {link.number}", "voted", link.session)

    async def opinions(self, caller: Caller, session: str) -> list[Opinion]:
        """Return what readers gave by links into a session of the caller. Raises `UnknownName`."""
        return await self._read(caller, lambda records: records.opinions(session))

    async def _opened(self, token: str, *kinds: LinkKind) -> SessionLink:
        digest = token_digest(token)

        def find(records: Records) -> SessionLink | None:
            link = records.link(digest)
            if link is None or link.kind not in kinds or link.until <= self.now():
                return None
            finished = isinstance(records.ending(link.session), SessionFinished)
            return link if finished == (link.kind in SHARES) else None

        link = await self._store.reader.run(find)
        if link is None:
            raise UnknownSession("this link is not valid, or not any more")
        return link

    def _seat_reader(self, link: SessionLink) -> SeenReader:
        return SeenReader(self._store.reader, lambda records, session: frozenset({link.agent}))

    async def _make(self, caller: Caller, session: str, kind: LinkKind, agent: str, days: float) -> NewLink:
        if len(await self.links(caller, session)) >= MAX_LINKS:
            raise SettingsError(f"session {session} has {MAX_LINKS} links already")
        made = NewLink(new_token(), self.now() + days * 86_400)
        digest = token_digest(made.token)
        store = self._store.of(*caller.owners)
        await asyncio.to_thread(
            lambda: store.add_link(session, kind, agent=agent, digest=digest, until=made.until, by=caller.owner)
        )
        return made

    async def _post(self, caller: Caller, session: str, kind: LetterKind, key: str = "", *, by: str) -> None:
        store = self._store.of(*caller.owners)
        await asyncio.to_thread(lambda: store.post(session, kind, key, by=by))

    async def _read(self, caller: Caller, work: Callable[[Records], T]) -> T:
        return await self._store.reader.of(*caller.owners).run(work)


def _open_seat(records: Records, link: SessionLink) -> OpenSeat:
    asked = pending_questions(records.read(link.session), records.text, records.prompt)
    own = [question for question in asked if question.agent == link.agent and not question.answered]
    started = records.beginning(link.session)
    return OpenSeat(link.session, link.agent, own[0] if own else None, records.text(started.task) if started else "")
