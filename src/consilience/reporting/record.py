"""One recorded session as renderers, views and exports read it: events, texts, report and what follows from them."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Protocol, Self

from pydantic import ConfigDict, PrivateAttr, ValidationError

from consilience.domain.agents import Agent
from consilience.domain.document_shares import Lines
from consilience.domain.events import (
    AnyEvent,
    CallCompleted,
    CallFailed,
    Ended,
    MessagePublished,
    SessionStarted,
    SourceRef,
    place_key,
)
from consilience.domain.messages import ReadDocument
from consilience.domain.presenting import try_present, try_progress
from consilience.domain.prompt_parts import QuotedMessage, ShownDocument, read_part, shown_documents
from consilience.domain.report import FORECASTS, Forecast, Report, UnfinishedSession, find_report, labels_of
from consilience.domain.sections import Bullets, Item, Presentation, Section, stored_presentation
from consilience.domain.topology import Topology
from consilience.domain.validation import describe_invalid
from consilience.reporting.formatting import describe_place, one_line, seat_labels
from consilience.reporting.session_state import SessionState, fold_events, status_of

LOGGER = logging.getLogger("consilience")
MAX_LISTED_CHANGES = 4
MAX_CHANGE_CHARS = 30
Text = Callable[[str], str]
"""Returns a stored text by its id."""
_NUMBERED = re.compile(r"([a-z_]+)-(\d+)")


def _read_presentation(text: str) -> tuple[Presentation | None, str]:
    """Return a presentation from its JSON and "", or None and why it cannot be shown."""
    try:
        return stored_presentation(text), ""
    except ValidationError as error:
        return None, f"the stored sections and views cannot be read: {describe_invalid(error)}"


class AnyReport(Report):
    """A report of any protocol. Fields that the protocol adds to the header are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    _stored: Presentation | None = PrivateAttr(default=None)

    @classmethod
    def recorded(cls, report: str, presentation: str) -> Self:
        """Return a recorded report from its JSON and the JSON of the presentation stored with it."""
        recorded = cls.model_validate_json(report)
        recorded._stored, problem = _read_presentation(presentation)
        if problem:
            LOGGER.warning("session %s: %s", recorded.session, problem)
        return recorded

    def presentation(self) -> Presentation:
        """The stored one if the report has it, else as the protocol's own code makes it, if that is present."""
        if self._stored is not None:
            return self._stored
        cls = find_report(self.protocol)
        return super().presentation() if cls is Report else cls.model_validate(self.model_dump()).presentation()

    def plain_presentation(self) -> Presentation:
        """As the protocol's own code makes it, if that is present and has words of its own for a summary."""
        cls = find_report(self.protocol)
        if cls.plain_presentation is Report.plain_presentation:
            return self.presentation()
        return cls.model_validate(self.model_dump()).plain_presentation()


class InFlight(Protocol):
    """A call in flight."""

    @property
    def key(self) -> str: ...

    @property
    def agent(self) -> str: ...


class RecordStore(Protocol):
    """The part of a store that reading a session needs."""

    def read(self, session: str) -> list[AnyEvent]: ...

    def text(self, id: str) -> str: ...

    def prompt(self, id: str) -> tuple[str, ...]: ...

    def created(self, session: str) -> float: ...

    def flights(self, session: str) -> Sequence[InFlight]: ...

    def holder(self, session: str) -> str | None: ...

    def sessions(self) -> list[str]: ...

    def parents(self) -> dict[str, str]: ...

    def beginning(self, session: str) -> SessionStarted | None: ...


@dataclass(frozen=True)
class Reading:
    """What one call was shown: messages, its own included, and documents."""

    key: str
    reader: str
    phase: str
    quoted: tuple[QuotedMessage, ...] = ()
    shown: tuple[ShownDocument, ...] = ()

    @property
    def documents(self) -> tuple[str, ...]:
        """Ids of the documents, each once."""
        return tuple(dict.fromkeys(document.id for document in self.shown))


@dataclass(frozen=True)
class SessionRecord:
    """A recorded session and what follows from it.

    Every property is computed once, in time linear in the events and in the quotations of their prompts.
    """

    session: str
    events: Sequence[AnyEvent]
    text: Callable[[str], str]
    """Returns a stored text by its id."""
    prompt: Callable[[str], Sequence[str]]
    """Returns the parts of a stored prompt by its id."""
    created: float | None = None
    """Seconds since the epoch."""
    flights: Mapping[str, str] = field(default_factory=dict)
    """Agents of the calls in flight, by key."""
    holder: str | None = None
    """The process that runs the session now."""
    family: Bullets | None = None
    """Ancestors and forks."""

    @cached_property
    def state(self) -> SessionState:
        return fold_events(self.events)

    @cached_property
    def status(self) -> str:
        return status_of(self.state, self.holder)

    @cached_property
    def report(self) -> AnyReport | None:
        """None until the session is finished."""
        finished = self.state.finished
        return AnyReport.model_validate_json(self.text(finished.report)) if finished else None

    @cached_property
    def forecasts(self) -> tuple[Forecast, ...]:
        """What the future may answer; nothing until the session is finished."""
        finished = self.state.finished
        return FORECASTS.validate_json(self.text(finished.forecasts)) if finished and finished.forecasts else ()

    @property
    def presentation(self) -> Presentation:
        """What the protocol adds to how the session is shown: as stored, else by its code, if that is installed, else nothing."""
        return self._shown[0]

    @cached_property
    def with_comments(self) -> Presentation:
        """The presentation, with what people said about the session as a section."""
        items = [Item(text=self.text(comment.text), by=comment.by) for comment in self.state.comments]
        if not items:
            return self.presentation
        section = Section(
            name="comments", part="differences", heading="Comments", blocks=(Bullets(items=tuple(items)),)
        )
        return self.presentation.model_copy(update={"sections": (*self.presentation.sections, section)})

    @property
    def unpresented(self) -> str:
        """Why sections and views of the protocol are missing; empty if none are. What is recorded is shown in any case."""
        return self._shown[1]

    @cached_property
    def _shown(self) -> tuple[Presentation, str]:
        finished, started = self.state.finished, self.state.started
        unreadable = ""
        if finished:
            stored, unreadable = _read_presentation(self.text(finished.presentation))
            if stored is not None:
                return stored, ""
        if started is None:
            return Presentation(), ""
        if self.report is not None:
            presentation, problem = try_present(self.report)
            return presentation, problem or (unreadable if find_report(started.protocol) is Report else "")
        return try_progress(UnfinishedSession(started, self.events, self.text))

    @cached_property
    def agents(self) -> dict[str, Agent]:
        """By id: the agents of the session, and those that only the topology names."""
        agents_by_id = {agent.id: agent for agent in self.state.agents}
        return agents_by_id | {id: Agent(id=id, role="") for id in self.topology.agents if id not in agents_by_id}

    @cached_property
    def topology(self) -> Topology:
        started = self.state.started
        return started.topology if started else Topology(kind="complete", agents=())

    @cached_property
    def names(self) -> dict[str, str]:
        return seat_labels(self.state.agents) | self.presentation.names

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The protocol's words for phases and parts of keys."""
        started = self.state.started
        return labels_of(started.protocol, self.presentation) if started else {}

    def place(self, key: str, agent: str = "") -> str:
        """Return the step and phase in a key of the session, in words."""
        return describe_place(key, agent, self.labels)

    @cached_property
    def calls(self) -> list[Ended]:
        """Every ended attempt in program order, whatever the order of arrival; without inherited calls that a fork repeated."""
        repeated = {call.key for call in self.state.calls if not call.inherited and call.attempt == 1}
        counting = [call for call in self.state.calls if not (call.inherited and call.key in repeated)]
        return sorted(counting, key=lambda call: (place_key(call.place), call.attempt))

    @cached_property
    def said(self) -> list[tuple[int, Ended | MessagePublished]]:
        """The same attempts, and the messages, in the order of commit, each with its number among the events, from 1."""
        counting = {id(call) for call in self.calls}
        return [
            (n, event)
            for n, event in enumerate(self.events, 1)
            if isinstance(event, MessagePublished) or (isinstance(event, Ended) and id(event) in counting)
        ]

    @cached_property
    def answered(self) -> frozenset[str]:
        """Keys of the calls with a valid reply."""
        return frozenset(call.key for call in self.calls if isinstance(call, CallCompleted))

    @cached_property
    def authors(self) -> dict[str, str]:
        """The agent of every reply and message, by its id."""
        replies = {event.key: event.agent for event in self.events if isinstance(event, CallCompleted)}
        return replies | {event.id: event.sender for event in self.events if isinstance(event, MessagePublished)}

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """By key, in program order, for every call with a reply, valid or not."""
        return {key: self._reading(call) for key, call in self._replied.items()}

    def reading(self, key: str) -> Reading | None:
        """Return what one call was shown, without looking at the prompts of others; None for a call without a reply."""
        return self._reading(self._replied[key]) if key in self._replied else None

    @cached_property
    def _replied(self) -> dict[str, Ended]:
        """The last attempt with a reply, by key."""
        return {call.key: call for call in self.calls if not isinstance(call, CallFailed) and call.prompt}

    def _reading(self, call: Ended) -> Reading:
        parts = [read_part(line) for line in self.prompt(call.prompt)]
        quoted = tuple(part for part in parts if isinstance(part, QuotedMessage))
        shown = tuple(document for part in parts for document in shown_documents(part))
        return Reading(call.key, call.agent, phase_of(call), quoted, shown)

    @cached_property
    def documents(self) -> tuple[ReadDocument, ...]:
        """The documents, each with the agents that replied to a call which showed it; of an unfinished session so far."""
        if self.report is not None:
            return self.report.documents
        started = self.state.started
        if started is None or not started.sources:
            return ()
        shown = defaultdict[str, dict[str, list[Lines | None]]](dict)
        for reading in self.readings.values():
            for document in reading.shown:
                shown[document.id].setdefault(reading.reader, []).append(document.lines)
        return tuple(self._document(source).read_by(shown[source.id]) for source in started.sources)

    def _document(self, source: SourceRef) -> ReadDocument:
        text = self.text(source.text)
        return ReadDocument(
            id=source.id,
            name=source.name,
            lines=len(text.splitlines()),
            characters=len(text),
            agents=source.agents,
            remarks=source.remarks,
        )


def read_record(store: RecordStore, session: str) -> SessionRecord:
    """Return a session of a store. Each text and prompt is looked up at most once."""
    events = store.read(session)
    finished = any(event.type == "session_finished" for event in events)
    text = cache(store.text)
    return SessionRecord(
        session=session,
        events=events,
        text=text,
        prompt=cache(store.prompt),
        created=store.created(session),
        flights={} if finished else {flight.key: flight.agent for flight in store.flights(session)},
        holder=None if finished else store.holder(session),
        family=read_family(store, session, text),
    )


def read_family(store: RecordStore, session: str, text: Text) -> Bullets | None:
    """Return the ancestors and forks of a session; None without any. Costs one look at every session of the store."""
    sessions = set(store.sessions())
    return ForkTree(
        session, store.parents(), lambda id: store.beginning(id) if id in sessions else None, text
    ).bullets()


def phase_of(call: Ended) -> str:
    """Return the phase of a call, `leaf_respond 1`; without one the first part of its key."""
    return f"{call.phase[0]} {call.phase[1]}" if call.phase else call.key.partition("/")[0]


def step_of(call: Ended) -> str:
    """Return the step of a call: `round 2` for the key `round-2/…`, else its phase."""
    match = _NUMBERED.fullmatch(call.key.partition("/")[0])
    return f"{match[1]} {match[2]}" if match else phase_of(call)


def has_step_number(call: Ended) -> bool:
    """Whether the key of a call names its step."""
    return _NUMBERED.fullmatch(call.key.partition("/")[0]) is not None


def steps_of(calls: Iterable[Ended]) -> list[str]:
    """Return steps in order of appearance, those of one name by number: an opening ballot is `round 0`."""
    names: dict[str, list[str]] = {}
    for step in dict.fromkeys(step_of(call) for call in calls):
        names.setdefault(step.rpartition(" ")[0], []).append(step)
    return [step for steps in names.values() for step in sorted(steps, key=_number)]


def _number(step: str) -> int:
    last = step.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


# --- related sessions


@dataclass(frozen=True)
class ForkTree:
    """The sessions related to one. Costs one read of a session's first event per relative."""

    session: str
    parents: Mapping[str, str]
    """The parent of every forked session."""
    first_event: Callable[[str], SessionStarted | None]
    """None if the session was removed."""
    text: Text

    def bullets(self) -> Bullets | None:
        """Return the sessions as a nested list; None for a session without relatives."""
        root = self.session
        while root in self.parents:
            root = self.parents[root]
        items = tuple(self._items(root, None, 0))
        return Bullets(items=items) if len(items) > 1 else None

    def _items(self, session: str, parent: str | None, depth: int) -> Iterator[Item]:
        is_own, started, origin = session == self.session, self.first_event(session), ""
        if started is None:
            origin = ", removed"
        elif parent is not None:
            origin = f" from event {started.forked_at}{self._changes(self.first_event(parent), started)}"
        name = f"`{session}`"
        yield Item(lead=name if is_own else "", text=f"{'(this one)' if is_own else name}{origin}", depth=depth)
        for child, its_parent in self.parents.items():
            if its_parent == session:
                yield from self._items(child, session, depth + 1)

    def _changes(self, parent_start: SessionStarted | None, started: SessionStarted) -> str:
        if parent_start is None:
            return ""
        templates = {prompt_setting(name) for name in started.templates}
        changes = [
            f"{name} changed"
            if name in templates
            else f"{name} {one_line(old, MAX_CHANGE_CHARS)} → {one_line(new, MAX_CHANGE_CHARS)}"
            for name, (old, new) in changed_settings(parent_start, started, self.text).items()
        ]
        unlisted = len(changes) - MAX_LISTED_CHANGES
        rest_note = f", and {unlisted} more" if unlisted > 0 else ""
        return f": {'; '.join(changes[:MAX_LISTED_CHANGES])}{rest_note}" if changes else ": nothing changed"


def changed_settings(a: SessionStarted | None, b: SessionStarted | None, text: Text) -> dict[str, tuple[str, str]]:
    """Return both values of every setting in which two sessions differ, by name; "–" for one that a session does not have."""
    old, new = _settings(a, text) if a else {}, _settings(b, text) if b else {}
    names = dict.fromkeys((*old, *new))
    pairs = {name: (old.get(name, "–"), new.get(name, "–")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _settings(started: SessionStarted, text: Text) -> dict[str, str]:
    settings = {
        "task": text(started.task),
        "protocol": f"{started.protocol}, version {started.protocol_version}",
        **{name: str(value) for name, value in started.settings.items()},
        "seed": str(started.seed),
        "quorum": f"{started.quorum:g}",
        "encoder": str(started.encoder or "–"),
        "set of prompts": started.detail,
    }
    for agent in started.agents:
        settings[f"model of {agent.id}"] = agent.model
        if agent.perspective:
            settings[f"perspective of {agent.id}"] = agent.persona or agent.perspective
    settings |= {f"limit on {name}": str(value) for name, value in started.limits if value not in (None, {})}
    settings |= {f"document {source.id}": f"{source.name} ({source.text[:8]})" for source in started.sources}
    return settings | {prompt_setting(name): id[:8] for name, id in started.templates.items()}


def prompt_setting(template: str) -> str:
    """Return the name of a prompt template among the settings of a session."""
    return f"prompt {template}"
