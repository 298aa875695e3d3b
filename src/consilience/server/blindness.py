"""What a caller may see of a session: the one place that every face reads records through (`SeenReader`).

Who holds a seat of a running session sees only what the calls of that seat were shown, and their own replies; no ballot, tally or
text of another seat. At the end of the session, or once its owner has lifted it on the record, everything is there.

- The owner, and the owner's team, hold the seats of people that were never given away by a link.
- A message that the protocol wrote is there once a call of theirs quotes it, also one in the name of their own seat: it may hold
  words of others, such as the title that another gave to the same finding.
- A quoted message is there under the label that the prompt gave to its author, with the words that the prompt quoted of it, and
  without the id that names its author.
- A text or prompt can be read only after a session that refers to it: no id of a caller's choice leads anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Self, TypeVar

from consilience.domain.errors import UnknownName
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    BlindnessLifted,
    CallAwaited,
    CallEvent,
    CallLost,
    CancelRequested,
    CommentPosted,
    Event,
    MessagePublished,
    SessionFinished,
    SessionParked,
    SessionResumed,
    SessionStarted,
    StepCompleted,
)
from consilience.journal.store import Arrival, InFlightCall, Letter, Opinion, Reader, Records, SessionEntry, SessionLink

if TYPE_CHECKING:
    from consilience.reporting.questions import Question

T = TypeVar("T")
_OF_ALL = (CancelRequested, CommentPosted, BlindnessLifted, SessionParked, SessionResumed, SessionFinished)
"""Events without a word of an agent's."""
_ID_FIELDS = ("task", "text", "body", "prompt", "form", "vectors", "report", "presentation", "forecasts")
HeldSeats = Callable[[Records, str], frozenset[str]]
"""Returns the seats of a session that somebody holds."""


def seats_of_owner(records: Records, session: str) -> frozenset[str]:
    """Return the seats of people that the owner of a session holds: those into which no link was ever made."""
    started = records.beginning(session)
    people = {agent.id for agent in started.agents if agent.is_person_here} if started else set()
    return frozenset(people - given_seats(records, session))


def given_seats(records: Records, session: str) -> frozenset[str]:
    """Return the seats into which a link was made, whether or not it has ended."""
    return frozenset(seat_links(records, session))


def seat_links(records: Records, session: str) -> dict[str, tuple[SessionLink, ...]]:
    """Return all links into each seat that was given away, by its agent, those that have ended too."""
    links: dict[str, tuple[SessionLink, ...]] = {}
    for link in records.links(session):
        if link.kind == "seat":
            links[link.agent] = (*links.get(link.agent, ()), link)
    return links


def asked_of_owner(questions: Iterable[Question], given: Container[str]) -> list[Question]:
    """Return of the questions of a session those that its owner may answer: open ones of people in seats that were not `given`."""
    return [asked for asked in questions if not (asked.answered or asked.ticket or asked.agent in given)]


def valid_links(links: Mapping[str, Sequence[SessionLink]], now: float) -> dict[str, tuple[SessionLink, ...]]:
    """Return of the links into each seat those that open it at a time."""
    return {agent: tuple(link for link in into if link.until > now) for agent, into in links.items()}


class SeatView:
    """Folds the events of a running session to those that the holder of some of its seats may see.

    A message that a call of theirs quotes appears with that call: directly before it, with the number of the visible event before
    it. So numbers do not fall, and a reader who continues after any of them misses nothing.
    """

    def __init__(self, seats: frozenset[str]) -> None:
        self.seats = seats
        self._aliases: dict[str, str] = {}
        """What stands in place of the ids of quoted messages of others, which name their authors."""
        self._own: set[str] = set()
        """Keys of their calls."""
        self._last = 0

    def reads(self, event: Event) -> bool:
        """Whether `take` looks into the records for this event."""
        return isinstance(event, CallAwaited) and event.agent in self.seats and bool(event.quoted)

    def take(self, event: AnyEvent, records: Records | None = None) -> list[AnyEvent]:
        """Return what one more event lets them see. `records` is needed for an event that it `reads`."""
        seen = list(self._seen(event, records))
        if seen:
            self._last = event.seq
        return seen

    def _seen(self, event: AnyEvent, records: Records | None) -> Iterator[AnyEvent]:
        match event:
            case SessionStarted():
                readable = [s for s in event.sources if s.agents is None or not self.seats.isdisjoint(s.agents)]
                yield _numbered(event.model_copy(update={"sources": tuple(readable)}), event.seq)
            case CallEvent() | CallAwaited() | CallLost() | StepCompleted() if event.agent in self.seats:
                self._own.add(event.key)
                if records is not None and isinstance(event, CallAwaited) and self.reads(event):
                    yield from self._quoted(event, records)
                yield event
            case AnswerReceived() if event.key in self._own:
                yield event
            case _ if isinstance(event, _OF_ALL):
                yield event

    def _quoted(self, event: CallAwaited, records: Records) -> Iterator[AnyEvent]:
        """Yield the messages of others that a prompt is the first to quote to them."""
        quotes = (part.split(":", 2) for part in records.prompt(event.prompt) if part.startswith("q:"))
        for (_, label, id), text in zip(quotes, event.quoted, strict=True):
            if id not in self._own and id not in self._aliases:
                self._aliases[id] = f"quoted-{len(self._aliases) + 1}"
                quoted = MessagePublished(id=self._aliases[id], sender=label, kind="quoted", text=text)
                yield _numbered(quoted, self._last)

    def parts(self, parts: Iterable[str]) -> tuple[str, ...]:
        """Return the parts of a prompt of theirs without ids that name the author of a quotation."""
        return tuple(map(self._part, parts))

    def _part(self, part: str) -> str:
        if not part.startswith("q:"):
            return part
        kind, label, id = part.split(":", 2)
        return f"{kind}:{label}:{self._alias(id)}"

    def _alias(self, id: str) -> str:
        return id if id in self._own else self._aliases.get(id, "")


def _numbered(event: AnyEvent, seq: int) -> AnyEvent:
    event.seq = seq
    return event


def view_of(records: Records, session: str, seats: HeldSeats) -> SeatView | None:
    """Return the view of whoever holds `seats` of a session; None if they may see all of it. Raises `UnknownName`."""
    held = seats(records, session)
    if not held or isinstance(records.ending(session), SessionFinished):
        return None
    lifted = any(isinstance(event, BlindnessLifted) for event in records.read(session))
    return None if lifted else SeatView(held)


class SeenRecords:
    """The records that somebody may see, for one piece of work: it remembers to which texts the sessions that it read refer.

    It satisfies `Records`. Texts and prompts of other sessions are not there for it, whoever asks by whatever id.
    """

    path = ""
    """Nobody who asks a server is told where its records are."""

    def __init__(self, records: Records, seats: HeldSeats = seats_of_owner, told: Iterable[AnyEvent] = ()) -> None:
        self._records = records
        self._seats = seats
        self._views: dict[str, tuple[SeatView, list[tuple[int, AnyEvent]]] | None] = {}
        """By session, what may be seen of it, each event with the number of the one that made it visible; None for all."""
        self._prompts: dict[str, SeatView] = {}
        """The views of those prompts that were shown to the holder of a seat, by id."""
        self._ids: set[str] = set()
        """Ids of texts and prompts that may be read."""
        self._open(told)

    def sessions(self) -> list[str]:
        return self._records.sessions()

    def read(self, session: str, *, after: int = 0) -> list[AnyEvent]:
        seen = self._seen(session)
        events = self._records.read(session, after=after) if seen is None else [e for n, e in seen[1] if n > after]
        self._open(events)
        return events

    def _open(self, events: Iterable[AnyEvent]) -> None:
        """Let the texts and prompts be read to which these events refer."""
        for event in events:
            self._ids.update(ids_of(event))

    def last(self, session: str) -> int:
        return self._records.last(session)

    def flights(self, session: str) -> list[InFlightCall]:
        seen, flights = self._seen(session), self._records.flights(session)
        return flights if seen is None else [flight for flight in flights if flight.agent in seen[0].seats]

    def arrivals(self, session: str) -> list[Arrival]:
        return self._records.arrivals(session) if self._seen(session) is None else []

    def mail(self, session: str) -> list[Letter]:
        return self._records.mail(session) if self._seen(session) is None else []

    def links(self, session: str) -> list[SessionLink]:
        return self._records.links(session)

    def opinions(self, session: str) -> list[Opinion]:
        return self._records.opinions(session)

    def link(self, digest: str) -> SessionLink | None:
        """Never one: a token is looked up before it is known who asks."""
        return None

    def beginning(self, session: str) -> SessionStarted | None:
        if self._seen(session) is not None:
            first = next(iter(self.read(session)), None)
            return first if isinstance(first, SessionStarted) else None
        started = self._records.beginning(session)
        self._ids.update(ids_of(started) if started else ())
        return started

    def ending(self, session: str) -> AnyEvent | None:
        if self._seen(session) is not None:
            return next(reversed(self.read(session)), None)
        event = self._records.ending(session)
        self._ids.update(ids_of(event) if event else ())
        return event

    def entries(self) -> list[SessionEntry]:
        entries = self._records.entries()
        self._ids.update(entry.task for entry in entries)
        return entries

    def parents(self) -> dict[str, str]:
        return self._records.parents()

    def of(self, owner: str, *others: str) -> Self:
        raise UnknownName("these are the records of one caller already")

    def owner(self, session: str) -> str:
        return self._records.owner(session)

    def created(self, session: str) -> float:
        return self._records.created(session)

    def holder(self, session: str) -> str | None:
        return self._records.holder(session)

    def text(self, id: str) -> str:
        return self.texts([id])[id]

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        self._check(ids)
        return self._records.texts(ids)

    def prompt(self, id: str) -> tuple[str, ...]:
        return self.prompts([id])[id]

    def prompts(self, ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        self._check(ids)
        prompts = {
            id: self._prompts[id].parts(parts) if id in self._prompts else parts
            for id, parts in self._records.prompts(ids).items()
        }
        self._ids.update(part[2:] for parts in prompts.values() for part in parts if part[:2] in ("t:", "i:", "k:"))
        return prompts

    def _check(self, ids: Iterable[str]) -> None:
        for id in ids:
            if id not in self._ids:
                raise UnknownName("no session that you see and that was read refers to this text")

    def _seen(self, session: str) -> tuple[SeatView, list[tuple[int, AnyEvent]]] | None:
        if session not in self._views:
            view = view_of(self._records, session, self._seats)
            events = self._records.read(session) if view else []
            if view is None or any(isinstance(event, SessionFinished) for event in events):
                self._views[session] = None
            else:
                seen = [(event.seq, shown) for event in events for shown in view.take(event, self._records)]
                self._views[session] = view, seen
                self._prompts |= {id: view for _, event in seen if (id := getattr(event, "prompt", ""))}
        return self._views[session]


class SeenReader:
    """A `Reader` of what somebody may see: all work is given `SeenRecords`."""

    def __init__(self, reader: Reader, seats: HeldSeats = seats_of_owner) -> None:
        self._reader = reader
        self._seats = seats

    def of(self, owner: str, *others: str) -> Self:
        return type(self)(self._reader.of(owner, *others), self._seats)

    async def run(self, work: Callable[[Records], T], *, told: Iterable[AnyEvent] = ()) -> T:
        """As `Reader.run`. The texts of events that this reader has `told` may be read without their session."""
        return await self._reader.run(lambda records: work(SeenRecords(records, self._seats, told)))

    async def tail(self, session: str, *, after: int = 0) -> AsyncGenerator[AnyEvent]:
        """As `Reader.tail`. After a `BlindnessLifted` all that is committed follows; what was withheld before is read again."""
        view = await self._reader.run(lambda records: view_of(records, session, self._seats))
        async with aclosing(self._reader.tail(session, after=0 if view else after)) as events:
            async for event in events:
                if isinstance(event, BlindnessLifted):
                    view = None
                for seen in [event] if view is None else await self._taken(view, event):
                    if event.seq > after:
                        yield seen

    async def _taken(self, view: SeatView, event: AnyEvent) -> list[AnyEvent]:
        if not view.reads(event):
            return view.take(event)
        return await self._reader.run(lambda records: view.take(event, records))


def ids_of(event: Event) -> Iterator[str]:
    """Yield the ids of the texts and prompts that an event refers to."""
    fields = vars(event)  # `getattr` of a field that is not there takes a model ten times as long
    yield from filter(None, (fields.get(name) for name in _ID_FIELDS))
    yield from fields.get("texts", ())
    yield from fields.get("quoted", ())
    if isinstance(event, SessionStarted):
        yield from (source.text for source in event.sources)
        yield from event.templates.values()
