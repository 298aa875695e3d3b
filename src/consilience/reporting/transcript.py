"""The transcript of a session's page: every call and message in words, where each has its place, and what it had read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from consilience.domain.events import CallCompleted, CallFailed, Ended, MessagePublished, ReplyRejected
from consilience.reporting.formatting import (
    describe_output_tokens,
    describe_phase,
    describe_place,
    duration,
    money,
    one_line,
    reply_text,
)
from consilience.reporting.record import SessionRecord, has_step_number, phase_of, step_of
from consilience.reporting.session_state import call_seconds

MAX_ERROR_CHARS = 300


@dataclass(frozen=True)
class PagePlace:
    """Where a call, a message or a document stands on the page, and its name for readers."""

    anchor: str
    words: str


@dataclass(frozen=True)
class Link:
    """A reference to a place on the page."""

    words: str
    anchor: str = ""
    """"" for what has no place on the page."""


@dataclass(frozen=True)
class TranscriptEntry:
    """One attempt of a call, or a message."""

    anchor: str
    who: str
    what: str
    """Its kind, and what is special about it."""
    figures: str
    key: str
    """Key of the call, or id of the message."""
    text: str
    """Its text in Markdown; of a typed reply the free text."""
    whole: str = ""
    """A typed reply as received."""
    problem: str = ""
    read: Sequence[Link] = ()
    """What its prompt quoted, under the labels used there."""
    reply_to: Link | None = None


def places_of(record: SessionRecord) -> dict[str, PagePlace]:
    """Return the places on the page: of calls by key (the answered attempt, else the last), of messages and documents by id."""
    numbered = [
        (call, PagePlace(f"call-{n}", f"{_name(record, call.agent)}, {record.place(call.key, call.agent)}"))
        for n, call in enumerate(record.calls, 1)
    ]
    places = {call.key: place for call, place in numbered}
    places |= {call.key: place for call, place in numbered if isinstance(call, CallCompleted)}
    sources = record.state.started.sources if record.state.started else ()
    places |= {source.id: PagePlace(f"document-{n}", f"document {source.id}") for n, source in enumerate(sources, 1)}
    return places | {
        event.id: PagePlace(
            f"message-{n}", f"{_name(record, event.sender)}, {describe_phase(event.kind, record.labels)}"
        )
        for n, event in enumerate(_messages(record), 1)
    }


def place_words(ref: str, names: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """Return the name for readers of a call or message of which only the key is known."""
    agent = next((part for part in reversed(ref.split("/")) if part in names), "")
    place = describe_place(ref, agent, labels)
    return f"{names[agent]}, {place}" if agent else place


def transcript(record: SessionRecord, places: Mapping[str, PagePlace]) -> list[tuple[str, list[TranscriptEntry]]]:
    """Return calls in program order by phase, phases in order of appearance, then messages such as objections."""
    phases: dict[str, list[TranscriptEntry]] = {}
    for n, call in enumerate(record.calls, 1):
        phases.setdefault(phase_of(call), []).append(_entry(call, f"call-{n}", places, record))
    for event in _messages(record):
        entry = TranscriptEntry(
            anchor=places[event.id].anchor,
            who=_name(record, event.sender),
            what=describe_phase(event.kind, record.labels),
            figures="",
            key=event.id,
            text=record.text(event.text),
            reply_to=_link("", event.reply_to, places) if event.reply_to else None,
        )
        phases.setdefault(f"{event.phase[0]} {event.phase[1]}" if event.phase else "published", []).append(entry)
    headings = _headings(record)
    return [(headings.get(phase, phase), entries) for phase, entries in phases.items()]


def _headings(record: SessionRecord) -> dict[str, str]:
    """Return the words for each phase: `Round 2 · objections`, `Check 2`; a phase that occurs once has no number."""
    numbers: dict[str, set[str]] = {}
    steps: dict[str, str] = {}
    for event in (*record.calls, *_messages(record)):
        if event.phase is not None:
            phase, number = event.phase
            numbers.setdefault(phase, set()).add(str(number))
            if isinstance(event, Ended) and has_step_number(event):
                steps[f"{phase} {number}"] = step_of(event)
    headings = {}
    for phase, of_phase in numbers.items():
        words = describe_phase(phase, record.labels)
        for n in of_phase:
            name = f"{phase} {n}"
            numbered = f"{words} {n}" if len(of_phase) > 1 else words
            heading = f"{steps[name]} · {words}" if name in steps else numbered
            headings[name] = heading[:1].upper() + heading[1:]
    return headings


def _name(record: SessionRecord, agent: str) -> str:
    return record.names.get(agent, agent)


def _messages(record: SessionRecord) -> list[MessagePublished]:
    return [event for event in record.events if isinstance(event, MessagePublished)]


def _entry(call: Ended, anchor: str, places: Mapping[str, PagePlace], record: SessionRecord) -> TranscriptEntry:
    reading = record.readings.get(call.key)
    links = [_link(quoted.label, quoted.message, places) for quoted in reading.quoted] if reading else []
    links += [_link("", id, places) for id in reading.documents] if reading else []
    marks = [
        "" if call.kind == "reply" else describe_phase(call.kind, record.labels),
        "" if call.attempt == 1 else f"attempt {call.attempt}",
        "inherited" if call.inherited else "",
        "from a recorded reply" if isinstance(call, CallCompleted) and call.cached else "",
        "paid from the reserve" if call.reserve else "",
    ]
    text = whole = problem = ""
    match call:
        case CallCompleted():
            whole = record.text(call.text)
            text = reply_text(whole)
            whole = whole if text != whole else ""
            problem = "cut at the token limit" if call.cut else ""
        case ReplyRejected():
            whole = record.text(call.text)
            problem = f"invalid reply: {one_line(call.error, MAX_ERROR_CHARS)}"
        case CallFailed():
            problem = f"no reply, {call.failure.value}: {one_line(call.reason, MAX_ERROR_CHARS)}".rstrip(": ")
    return TranscriptEntry(
        anchor=anchor,
        who=_name(record, call.agent),
        what=", ".join(filter(None, marks)),
        figures=" · ".join(_figures(call)),
        key=call.key,
        text=text,
        whole=whole,
        problem=problem,
        read=links,
    )


def _figures(call: Ended) -> Iterable[str]:
    if not isinstance(call, CallFailed):
        yield f"{call.tokens_in:,} tokens read, {describe_output_tokens(call.tokens_out, call.tokens_thought)}"
        if call.cost:
            yield money(call.cost)
    seconds = call_seconds(call)
    if seconds is not None:
        yield duration(seconds)


def _link(label: str, id: str, places: Mapping[str, PagePlace]) -> Link:
    """Return a link to a message, named by the label that the reader's prompt used and by its author and phase."""
    place = places.get(id, PagePlace("", id))
    return Link(f"{label}: {place.words}" if label else place.words, place.anchor)
