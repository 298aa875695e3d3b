"""Sessions as their pages show them: each is folded once for all of its readers, at most about four times a second.

The parts of a page are rendered by the templates of a session's file (`reporting/page`), from what the caller may see.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote

from markupsafe import Markup

from consilience.domain.events import AnyEvent, BlindnessLifted, SessionFinished
from consilience.domain.sections import ProgressColumn, View
from consilience.journal.store import Records, SessionLink
from consilience.reporting.formatting import count, duration
from consilience.reporting.html import is_natural, page_parts, session_content, session_document, shown_views
from consilience.reporting.page_parts import PageParts, environment
from consilience.reporting.questions import Question, pending_questions
from consilience.reporting.record import SessionRecord, read_family
from consilience.reporting.replayed import record_at
from consilience.reporting.seats import (
    SeatState,
    describe_waited_for,
    phase_lines,
    progress_facts,
    seat_states,
    ticket_states,
    what_is_missing,
)
from consilience.reporting.transcript import PagePlace, log_entry, logged, places_of
from consilience.reporting.views import PER_CALL
from consilience.server.blindness import asked_of_owner, seat_links, seats_of_owner
from consilience.server.callers import Caller
from consilience.server.pages import templates
from consilience.server.service import Sessions

if TYPE_CHECKING:
    from jinja2 import Environment

T = TypeVar("T")
MIN_SECONDS = 0.25
"""Between two folds of a session."""
MAX_SHARE = 0.2
"""Of the time may go into folds of one session."""
FAMILY_SECONDS = 20.0
"""For so long forks of a session that were made meanwhile may be missing."""
NOTICED_SECONDS = 2.0
"""A call in flight that was not there so long ago has just begun."""
MAX_KEPT = 8
"""Sessions that are kept for their readers."""
MAX_MESSAGES = 200
MAX_SENT_BYTES = 50_000
"""Of a page as it is sent, compressed; style and script take some 9 kB more."""
MAX_PAGE_BYTES = 280_000
"""Of the parts of a page and its messages, before compression; its forms take some 6 kB more."""
MAX_VIEW_BYTES = 120_000
"""Of all views of a page, and no more than the report and the messages leave; those that have no room are on pages of their own."""
MESSAGE_BYTES = 40_000
"""Kept for messages."""
MAX_FOLDED_CHARS = 30_000
"""Of a section of the report that opens on demand. A longer one, such as a transcript, which the messages repeat, is on a page of
its own."""
MAX_VIEWED_CALLS = 200
"""Of a session with more calls, the views that have a place for each call are on pages of their own, and drawn only there."""


@dataclass(frozen=True)
class Stamp:
    """What a page depends on. Equal stamps have equal pages."""

    last: int
    flying: frozenset[str]
    holder: str | None
    held: frozenset[str]
    """The seats that its reader holds."""
    given: tuple[tuple[str, tuple[SessionLink, ...]], ...] = ()
    """The seats that were given away, each with the links into it."""
    created: float = 0.0
    """When the session began, in seconds since the epoch: a removed one leaves its id to the next of the same request."""


class SessionLog:
    """The messages and calls of a session as HTML, each rendered once."""

    def __init__(self, record: SessionRecord, places: Mapping[str, PagePlace], known: dict[int, Markup]) -> None:
        self._record = record
        self._base = page_address(record.session)
        self._known = known
        self._places = places
        self._parts = page_parts(record, places)
        self.numbers = logged(record)
        """Of the entries, in order."""

    def entry(self, n: int) -> Markup:
        if n not in self._known:
            entry = log_entry(self._record, n, self._places, self.call_address)
            self._known[n] = self._parts.entry(entry, level=3)
        return self._known[n]

    def call_address(self, key: str) -> str:
        """Return the address of the page of a call."""
        return f"{self._base}/calls/{quote(key)}"

    def window(self, beside: Iterable[str], before: int | None = None) -> list[int]:
        """Return the numbers of the last entries before one that have room on a page, beside its other parts; at least one."""
        measure = zlib.compressobj(6)
        whole = sent = 0
        for part in beside:
            whole += len(html := part.encode())
            sent += len(measure.compress(html))
        numbers: list[int] = []
        for n in reversed(self.numbers if before is None else [n for n in self.numbers if n < before]):
            whole += len(html := self.entry(n).encode())
            sent += len(measure.compress(html)) + len(measure.flush(zlib.Z_SYNC_FLUSH))
            if numbers and (len(numbers) == MAX_MESSAGES or whole > MAX_PAGE_BYTES or sent > MAX_SENT_BYTES):
                break
            numbers.append(n)
        return numbers[::-1]


@dataclass(frozen=True)
class ShownSession:
    """A session as its page shows it."""

    record: SessionRecord
    stamp: Stamp
    version: str
    """Of the parts: a name of this process, and a number that grows."""
    parts: Mapping[str, Markup]
    changed: Mapping[str, int]
    """In which version each part changed last."""
    log: SessionLog
    window: Sequence[int]
    """The numbers of the messages of a page that is opened now."""
    questions: Sequence[Question]
    noticed: Mapping[str, int]
    """After how many events each call in flight was seen first."""

    @property
    def title(self) -> str:
        """Its question."""
        started = self.record.state.started
        return self.record.text(started.task) if started else f"Session {self.record.session}"

    @property
    def actions(self) -> str:
        """What the forms of the page depend on."""
        links = (f"{link.number} {link.until}" for _, links in self.stamp.given for link in links)
        return "|".join((self.record.status, *(f"{q.key} {q.attempt} {q.answered}" for q in self.questions), *links))

    def changed_since(self, version: str) -> dict[str, Markup]:
        """Return the parts that differ from those of a version; all parts for one of another process."""
        process, _, number = version.partition("-")
        is_known = process == self.version.partition("-")[0] and number.isdecimal()
        since = int(number[:18]) if is_known else 0
        return {name: part for name, part in self.parts.items() if self.changed[name] > since}


class LiveSession:
    """One session for all readers who may see the same of it."""

    def __init__(self, sessions: Sessions, caller: Caller, session: str) -> None:
        self._sessions, self._caller, self._session = sessions, caller, session
        self._process = secrets.token_hex(4)
        self._number = 0
        self._shown: ShownSession | None = None
        self._due = self._family_due = self._looked = 0.0
        self._coming: asyncio.Task[ShownSession] | None = None
        """The next fold, while it sees all that is committed now."""
        self._running: asyncio.Task[ShownSession] | None = None
        self._since: dict[str, float | None] = {}
        """When calls in flight began, in seconds since the epoch; None if it is not known."""
        self._texts: dict[str, str] = {}
        self._prompts: dict[str, Sequence[str]] = {}
        self._entries: dict[int, Markup] = {}

    async def opened(self) -> ShownSession:
        """Return the session for a page that is opened, as it was at most a moment ago. Raises `UnknownName`."""
        if self._shown is not None and time.monotonic() < self._due:
            return self._shown
        return await self.current()

    async def current(self) -> ShownSession:
        """Return the session with all that is committed now. Who asks meanwhile waits for the same fold. Raises `UnknownName`."""
        if self._coming is None:
            self._coming = asyncio.create_task(self._next(self._running))
            self._coming.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._coming)

    async def _next(self, running: asyncio.Task[ShownSession] | None) -> ShownSession:
        try:
            if running is not None and not running.done():
                await asyncio.wait((running,))
            await asyncio.sleep(max(0.0, self._due - time.monotonic()))
        finally:
            self._running, self._coming = self._coming, None
        stamp = await self._sessions.read(self._caller, self._stamp)
        before, now = self._shown, time.monotonic()
        if before is not None and before.stamp.created != stamp.created:
            before, self._entries = None, {}
            self._texts.clear()
            self._prompts.clear()
            self._family_due = 0.0
        is_same = not self._note_flights(stamp.flying, now)
        if before is not None and before.stamp == stamp and now < self._family_due and is_same:
            return before
        told = before.record.events if before is not None else ()
        record = await self._sessions.read(self._caller, partial(self._read, before=before, stamp=stamp), told=told)
        stamp = replace(
            stamp, last=max([stamp.last, *(event.seq for event in record.events[-1:])])
        )  # some came in between
        began = time.monotonic()
        self._shown = await asyncio.to_thread(self._fold, record, stamp, before)
        self._due = time.monotonic() + max(MIN_SECONDS, (time.monotonic() - began) / MAX_SHARE)
        return self._shown

    def _stamp(self, records: Records) -> Stamp:
        session = self._session
        last = records.last(session)
        flying = frozenset(flight.key for flight in records.flights(session))
        given = tuple(sorted(seat_links(records, session).items()))
        held = seats_of_owner(records, session)
        return Stamp(last, flying, records.holder(session), held, given, records.created(session))

    def _note_flights(self, flying: Iterable[str], now: float) -> bool:
        """Note when calls in flight began; return whether more is known than before."""
        seen = self._sessions.feeds.began(self._caller.owners, self._session)
        began = time.time() if now - self._looked < NOTICED_SECONDS else None
        before, self._looked = self._since, now
        self._since = {key: before.get(key) or seen.get(key) or began for key in flying}
        return self._since != before

    def _read(self, records: Records, *, before: ShownSession | None, stamp: Stamp) -> SessionRecord:
        """Return the record. Only events that were not read before are read, unless the caller may now see more."""
        session, events = self._session, list[AnyEvent]()
        if before is not None and before.stamp.held == stamp.held:
            later = records.read(session, after=before.stamp.last)
            if not any(isinstance(event, BlindnessLifted | SessionFinished) for event in later):
                events = [*before.record.events, *later]
        if not events:
            events = records.read(session)
            self._entries = {}
        text = _remembered(self._texts, records.text)
        family = before.record.family if before is not None else None
        if time.monotonic() >= self._family_due:
            family = read_family(records, session, text)
            self._family_due = time.monotonic() + FAMILY_SECONDS
        is_finished = any(isinstance(event, SessionFinished) for event in events[-1:])
        return SessionRecord(
            session=session,
            events=events,
            text=text,
            prompt=_remembered(self._prompts, records.prompt),
            created=records.created(session),
            flights={} if is_finished else {flight.key: flight.agent for flight in records.flights(session)},
            holder=None if is_finished else stamp.holder,
            family=family,
        )

    def _fold(self, record: SessionRecord, stamp: Stamp, before: ShownSession | None) -> ShownSession:
        places = places_of(record, page_address(self._session))
        log = SessionLog(record, places, self._entries)
        questions = pending_questions(record.events, record.text, lambda id: tuple(record.prompt(id)))
        given = dict(stamp.given)
        asks = bool(asked_of_owner(questions, given))
        since = {key: Since(moment=_iso(began)) for key, began in self._since.items() if began is not None}
        parts = session_parts(record, places, since=since, asks=asks)
        noticed = before.noticed if before is not None and before.stamp.held == stamp.held else {}
        self._number += 1
        changed = {
            name: before.changed[name] if before is not None and before.parts[name] == part else self._number
            for name, part in parts.items()
        }
        return ShownSession(
            record=record,
            stamp=stamp,
            version=f"{self._process}-{self._number}",
            parts=parts,
            changed=changed,
            log=log,
            window=log.window(parts.values()),
            questions=questions,
            noticed={key: noticed.get(key, len(record.events)) for key in record.flights},
        )


def _remembered(known: dict[str, T], look_up: Callable[[str], T]) -> Callable[[str], T]:
    def get(id: str) -> T:
        if id not in known:
            known[id] = look_up(id)
        return known[id]

    return get


class LiveSessions:
    """The sessions of a server that are looked at; the last ones stay for the next look."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._live: OrderedDict[tuple[tuple[str, ...], str], LiveSession] = OrderedDict()

    def of(self, caller: Caller, session: str) -> LiveSession:
        key = caller.owners, session
        live = self._live.pop(key, None) or LiveSession(self._sessions, caller, session)
        self._live[key] = live
        while len(self._live) > MAX_KEPT:
            self._live.popitem(last=False)
        return live

    async def at(self, caller: Caller, session: str, n: int) -> tuple[ShownSession, Mapping[str, Markup], SessionLog]:
        """Return a session, and its parts and messages as they were after the first `n` events that the caller may see."""
        shown = await self.of(caller, session).opened()
        return shown, *await asyncio.to_thread(_as_it_was, shown, n)


def _as_it_was(shown: ShownSession, n: int) -> tuple[Mapping[str, Markup], SessionLog]:
    total = len(shown.record.events)
    record, seconds = record_at(shown.record, n, shown.noticed)
    status = f"As it was after event {min(n, total):,} of {total:,}"
    places = places_of(record, page_address(record.session))
    since = {key: Since(words=duration(of)) for key, of in seconds.items()}
    return session_parts(record, places, since=since, status=status), SessionLog(record, places, {})


def page_address(session: str) -> str:
    """Return the address of a session's page on this server."""
    return f"/sessions/{quote(session, safe='')}"


def session_parts(
    record: SessionRecord,
    places: Mapping[str, PagePlace],
    *,
    since: Mapping[str, Since] | None = None,
    asks: bool = False,
    status: str = "",
) -> dict[str, Markup]:
    """Return the parts of a session's page by name: header, state, contents, seats, pictures, report, views, settings,
    family.

    `since`: when calls in flight began, by key; `asks`: whether a person is asked something now; `status`: the state in words.
    """
    base, parts = page_address(record.session), page_parts(record, places)
    states = seat_states(record)
    document = session_document(record, with_replies=False)
    long = {s.name: s.heading for s in document.folded if len(s.model_dump_json()) > MAX_FOLDED_CHARS}
    document = replace(document, folded=tuple(s for s in document.folded if s.name not in long))
    far = {**(PER_CALL if len(record.calls) > MAX_VIEWED_CALLS else {}), **long}
    views = sorted(shown_views(record, without=far), key=lambda view: not is_natural(view, record))
    pictures = sum(is_natural(view, record) for view in views)
    linked = [View(name=name, heading=heading) for name, heading in far.items()]
    if record.report is None:  # the head of the page has its state
        document = replace(document, status="")
    acts = {} if status else {"actions": "What you can do"}
    sections = {**({} if record.report else {"seats": "Agents"}), **acts, "messages": "Messages"}
    content = {
        **session_content(record, places, document, [*views, *linked], sections),
        "parts": parts,
        "base": base,
        "status": status or _status(record),
        "asks": asks,
        "missing": what_is_missing(record, states),
        "to_follow": _to_follow(record),
        "seats": list(_seat_rows(record, states.values(), since or {})),
        "tickets": [(row, _moment(row.asked_at)) for row in ticket_states(record)],
        "progress": list(progress_facts(record)),
        "phase_lines": phase_lines(record),
        "made": record.state.made,
        "most": record.state.started.estimate.max if record.state.started else 1,
        "columns": list(_columns(record, since or {})),
    }
    started = record.state.started is not None
    report = render_part(environment(), "report", content)
    room = min(MAX_VIEW_BYTES, MAX_PAGE_BYTES - MESSAGE_BYTES - len(report.encode()))
    rendered = [*_rendered_views(parts, views, base, room), *(_view_link(view, base) for view in linked)]
    return {
        "header": render_part(environment(), "header", content),
        "state": render_part(templates(), "state", content),
        "contents": render_part(environment(), "contents", content),
        "seats": Markup() if record.report else render_part(templates(), "seats", content),
        "report": report,
        "pictures": Markup().join(rendered[:pictures]),
        "views": Markup().join(rendered[pictures:]),
        "settings": render_part(environment(), "settings", content) if started else Markup(),
        "family": render_part(environment(), "family", content) if record.family else Markup(),
    }


class Since(NamedTuple):
    """When a call in flight began: a moment, or how long before the event that is shown."""

    moment: str = ""
    """ISO 8601."""
    words: str = ""


UNKNOWN = Since()


class SeatRow(NamedTuple):
    """A seat in the table of all of them."""

    name: str
    model: str
    words: str
    since: Since
    """When its call in flight began."""
    note: str
    """Why it has no reply, or until when a person is asked."""


def _seat_rows(record: SessionRecord, states: Iterable[SeatState], since: Mapping[str, Since]) -> Iterator[SeatRow]:
    for state in states:
        until = f"until {_moment(state.until)}" if state.until is not None else ""
        yield SeatRow(
            record.names.get(state.agent.id, state.agent.id),
            state.agent.model,
            state.words,
            since.get(state.call, UNKNOWN),
            until or (state.why if state.has_failed else ""),
        )


class ColumnRow(NamedTuple):
    """A column of what goes on at present, with the names of those composing there and when each began."""

    column: ProgressColumn
    composing: Sequence[tuple[str, Since]]


def _columns(record: SessionRecord, since: Mapping[str, Since]) -> Iterator[ColumnRow]:
    for column in record.presentation.columns if record.report is None else ():
        flying = [(record.names.get(agent, agent), key) for key, agent in record.flights.items() if column.has(key)]
        yield ColumnRow(column, [(name, since.get(key, UNKNOWN)) for name, key in flying])


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%d %B, %H:%M} UTC".lstrip("0")


def render_part(environment: Environment, name: str, content: Mapping[str, object]) -> Markup:
    """Return a part of a page from the template of that name."""
    return Markup(environment.get_template(f"{name}.html.j2").render(content))


def _rendered_views(parts: PageParts, views: Iterable[View], base: str, room: int) -> Iterator[Markup]:
    """Yield views as HTML, and a link in the place of each that is longer than the bytes which are left."""
    for view in views:
        html = parts.view(view) if len(view.model_dump_json()) <= room else None  # it is longer than its data
        if html is None or len(html.encode()) > room:
            html = _view_link(view, base)
        yield html
        room -= len(html.encode())


def _view_link(view: View, base: str) -> Markup:
    return render_part(templates(), "view_link", {"name": view.name, "heading": view.heading, "base": base})


def _to_follow(record: SessionRecord) -> str:
    """Return how much of a finished session the future may answer, in words; "" for nothing."""
    forecasts = record.forecasts
    findings = sum(len(forecast.falsifiers) for forecast in forecasts)
    would = f", and {count(findings, 'finding')} that would change a mind" if findings else ""
    return f"{count(len(forecasts), 'question')} that the future may answer{would}" if forecasts else ""


def _status(record: SessionRecord) -> str:
    """Return the state of a session in words."""
    state = record.state
    if record.report is not None:
        return "Finished" if record.report.answer is not None else "Ended without an answer"
    if record.holder:
        return "Running"
    if state.awaited:
        return f"Waiting for an answer of {describe_waited_for(record)}"
    if not state.calls and not record.flights:
        return "Waiting for its turn"
    return "Not running now: it goes on when this server takes it up"
