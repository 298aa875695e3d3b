"""One recorded session as views and exports see it: its events, and how to look up the texts and prompts they refer to."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Protocol

from consilience.domain.agents import Agent
from consilience.domain.events import (
    AnyEvent,
    CallCompleted,
    CallFailed,
    Ended,
    MessagePublished,
    SessionStarted,
    place_key,
)
from consilience.domain.report import Progress, find_report, present
from consilience.domain.sections import Presentation
from consilience.domain.topology import Topology
from consilience.reporting.fork_tree import family
from consilience.reporting.formatting import seat_labels
from consilience.reporting.markdown import AnyReport
from consilience.reporting.session_state import SessionState, fold_events

LOGGER = logging.getLogger("consilience")
_NUMBERED = re.compile(r"([a-z_]+)-(\d+)")


class InFlight(Protocol):
    """A call that was sent and has not ended."""

    @property
    def key(self) -> str: ...

    @property
    def agent(self) -> str: ...


class RecordStore(Protocol):
    """What of a store is needed to read a session back."""

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
class QuotedMessage:
    """A message as one call was shown it: under a label, by its id."""

    label: str
    message: str


@dataclass(frozen=True)
class Reading:
    """What one call had been shown of others and of its own, and the ids of the documents."""

    key: str
    reader: str
    phase: str
    quoted: tuple[QuotedMessage, ...] = ()
    documents: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionRecord:
    """`text` and `prompt` look up by id. `flights` maps the keys of calls under way to their agents, `holder` names who runs the
    session now, `created` is in seconds since the epoch, `family` its forks as Markdown.

    Every property is computed once, in time linear in the events and in what their prompts quote.
    """

    session: str
    events: Sequence[AnyEvent]
    text: Callable[[str], str]
    prompt: Callable[[str], Sequence[str]]
    created: float | None = None
    flights: Mapping[str, str] = field(default_factory=dict)
    holder: str | None = None
    family: str = ""

    @cached_property
    def state(self) -> SessionState:
        return fold_events(self.events)

    @cached_property
    def report(self) -> AnyReport | None:
        """None until the session is finished."""
        finished = self.state.finished
        return AnyReport.model_validate_json(self.text(finished.report)) if finished else None

    @cached_property
    def presentation(self) -> Presentation:
        """What the protocol adds to how the session is shown."""
        return presentation_of(self.session, self.state, self.events, self.text)

    @cached_property
    def agents(self) -> dict[str, Agent]:
        """By id: who has a seat, and whoever else the topology names."""
        known = {agent.id: agent for agent in self.state.agents}
        return known | {id: Agent(id=id, role="") for id in self.topology.agents if id not in known}

    @cached_property
    def topology(self) -> Topology:
        started = self.state.started
        return started.topology if started else Topology(kind="complete", agents=())

    @cached_property
    def names(self) -> dict[str, str]:
        return seat_labels(self.state.agents)

    @cached_property
    def calls(self) -> list[Ended]:
        """Every ended attempt in program order, which is the same whatever the order of arrival was; of what a fork inherited, that
        which it did not ask for again."""
        anew = {call.key for call in self.state.calls if not call.inherited and call.attempt == 1}
        counting = [call for call in self.state.calls if not (call.inherited and call.key in anew)]
        return sorted(counting, key=lambda call: (place_key(call.place), call.attempt))

    @cached_property
    def authors(self) -> dict[str, str]:
        """Who said a message, by its id."""
        found = {event.key: event.agent for event in self.events if isinstance(event, CallCompleted)}
        return found | {event.id: event.sender for event in self.events if isinstance(event, MessagePublished)}

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """By key, for every call that got a reply, usable or not; in program order."""
        found: dict[str, Reading] = {}
        for call in self.calls:
            if not isinstance(call, CallFailed) and call.prompt:
                found[call.key] = self._reading(call)
        return found

    def _reading(self, call: Ended) -> Reading:
        quoted: list[QuotedMessage] = []
        documents: list[str] = []
        for part in self.prompt(call.prompt):
            kind, _, rest = part.partition(":")
            if kind == "q":
                label, _, message = rest.partition(":")
                quoted.append(QuotedMessage(label, message))
            elif kind == "s":
                documents.append(rest.partition(":")[0])
        return Reading(call.key, call.agent, phase_of(call), tuple(quoted), tuple(dict.fromkeys(documents)))


def read_record(store: RecordStore, session: str) -> SessionRecord:
    """A session of a store, read back; each text and prompt is looked up at most once."""
    events = store.read(session)
    finished = any(event.type == "session_finished" for event in events)
    known = set(store.sessions())
    text = cache(store.text)
    return SessionRecord(
        session=session,
        events=events,
        text=text,
        prompt=cache(store.prompt),
        created=store.created(session),
        flights={} if finished else {flight.key: flight.agent for flight in store.flights(session)},
        holder=None if finished else store.holder(session),
        family=family(session, store.parents(), lambda id: store.beginning(id) if id in known else None, text),
    )


def presentation_of(
    session: str, course: SessionState, events: Sequence[AnyEvent], text: Callable[[str], str]
) -> Presentation:
    """What a protocol adds to how a session is shown: as stored; else by its code, where that is present; else nothing.

    Code that cannot read an old report adds nothing, with a warning in the log: what is recorded is shown in any case.
    """
    if course.finished and course.finished.presentation:
        return Presentation.model_validate_json(text(course.finished.presentation))
    if course.started is None:
        return Presentation()
    if course.finished:
        return present(AnyReport.model_validate_json(text(course.finished.report)))
    try:
        return find_report(course.started.protocol).progress(Progress(course.started, events, text))
    except Exception:
        LOGGER.warning("the sections of session %s could not be built", session, exc_info=True)
        return Presentation()


def phase_of(call: Ended) -> str:
    """`leaf_respond 1`, or the beginning of its key for a call in no phase."""
    return f"{call.phase[0]} {call.phase[1]}" if call.phase else call.key.partition("/")[0]


def step_of(call: Ended) -> str:
    """The round, pass or stage a call belongs to: `round 2` for the key `round-2/…`, else its phase."""
    found = _NUMBERED.fullmatch(call.key.partition("/")[0])
    return f"{found[1]} {found[2]}" if found else phase_of(call)


def has_step_number(call: Ended) -> bool:
    """Whether a call says by its key which round, pass or stage it belongs to."""
    return _NUMBERED.fullmatch(call.key.partition("/")[0]) is not None


def steps_of(calls: Iterable[Ended]) -> list[str]:
    """Steps as they first came up, those of one name in the order of their numbers: an opening ballot is `round 0`."""
    names: dict[str, list[str]] = {}
    for step in dict.fromkeys(step_of(call) for call in calls):
        names.setdefault(step.rpartition(" ")[0], []).append(step)
    return [step for steps in names.values() for step in sorted(steps, key=_number)]


def _number(step: str) -> int:
    last = step.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0
