"""The transcript of a session's page, and the log of one that goes on: every call and message, its place, and what it had read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from consilience.domain.events import CallCompleted, CallFailed, Ended, MessagePublished, ReplyRejected
from consilience.domain.report import find_report
from consilience.reporting.formatting import (
    count,
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
MAX_LOGGED_CHARS = 4_000
"""Of one text in a log; the page of its call has all of it."""
MAX_LOGGED_LINKS = 8
"""Links of one entry of a log to what it had read."""


@dataclass(frozen=True)
class PagePlace:
    """Where a call, a message or a document stands, and its name for readers."""

    anchor: str
    words: str
    page: str = ""
    """The address of the page that it is on; "" for the page with the link."""
    lines: int = 0
    """How many lines of a document have places of their own."""

    @property
    def href(self) -> str:
        return f"{self.page}#{self.anchor}"

    def line_href(self, line: int) -> str:
        """Return where a line of a document is, from 1; where the document is, if it has no such line."""
        if not 0 < line <= self.lines:
            return self.href
        page = f"{self.page}?line={line}" if self.page else ""
        return f"{page}#{self.anchor}-{line}"


@dataclass(frozen=True)
class Link:
    """A reference to a place."""

    words: str
    href: str = ""
    """"" for what has no place."""


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
    details: str = ""
    """The address of the page with its prompt and its reply as received; "" without one."""


def places_of(record: SessionRecord, base: str = "") -> dict[str, PagePlace]:
    """Return the places of calls by key (the answered attempt, else the last), of messages and documents by id.

    Anchors have the number of the event, so they stay while a session goes on. All places are on one page, or with the address of
    a session's page as `base` on the pages of a server: those of messages end with the message.
    """
    places: dict[str, PagePlace] = {}
    for n, event in record.said:
        page = f"{base}?before={n + 1}" if base else ""
        if isinstance(event, MessagePublished):
            words = f"{_name(record, event.sender)}, {describe_phase(event.kind, record.labels)}"
            places[event.id] = PagePlace(f"message-{n}", words, page)
        elif event.key not in places or event.key not in record.answered or isinstance(event, CallCompleted):
            words = f"{_name(record, event.agent)}, {record.place(event.key, event.agent)}"
            places[event.key] = PagePlace(f"call-{n}", words, page)
    if base:  # a log has the message in place of the reply
        places |= {key: places[f"{key}/said"] for key in record.answered if f"{key}/said" in places}
    sources = record.state.started.sources if record.state.started else ()
    lines = {document.id: document.lines for document in record.documents}
    return places | {
        source.id: PagePlace(
            f"document-{n}",
            f"document {source.id}",
            f"{base}/documents/{n}" if base else "",
            lines.get(source.id, 0),
        )
        for n, source in enumerate(sources, 1)
    }


def place_words(ref: str, names: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """Return the name for readers of a call or message of which only the key is known."""
    agent = next((part for part in reversed(ref.split("/")) if part in names), "")
    place = describe_place(ref, agent, labels)
    return f"{names[agent]}, {place}" if agent else place


def transcript(record: SessionRecord, places: Mapping[str, PagePlace]) -> list[tuple[str, list[TranscriptEntry]]]:
    """Return calls in program order by phase, phases in order of appearance, then messages such as objections."""
    phases: dict[str, list[TranscriptEntry]] = {}
    numbers = {id(event): n for n, event in record.said}
    for call in record.calls:
        entry = _call_entry(call, f"call-{numbers[id(call)]}", places, record)
        phases.setdefault(phase_of(call), []).append(entry)
    for n, event in record.said:
        if isinstance(event, MessagePublished):
            phase = f"{event.phase[0]} {event.phase[1]}" if event.phase else "published"
            phases.setdefault(phase, []).append(_message_entry(event, f"message-{n}", places, record))
    headings = phase_headings(record)
    return [(headings.get(phase, phase), entries) for phase, entries in phases.items()]


def logged(record: SessionRecord) -> list[int]:
    """Return the numbers of the calls and messages of a log, in the order of commit. Replies whose words follow as a message are
    left out."""
    published = find_report(record.state.started.protocol).published_kinds if record.state.started else ()
    return [n for n, event in record.said if not (isinstance(event, CallCompleted) and event.kind in published)]


def log_entry(
    record: SessionRecord, n: int, places: Mapping[str, PagePlace], details: Callable[[str], str]
) -> TranscriptEntry:
    """Return the entry of the call or message with a number in a log, which has no headings of phases; a long text is cut.

    `details` returns the address of the page of a call, by its key.
    """
    event = record.events[n - 1]
    if isinstance(event, MessagePublished):
        entry = _message_entry(event, f"message-{n}", places, record)
        key = event.id.removesuffix("/said")
        address = details(key) if key in record.answered else ""
    else:
        assert isinstance(event, Ended)
        entry = _call_entry(event, f"call-{n}", places, record)
        place = record.place(event.key, event.agent)
        entry = replace(entry, what=", ".join(filter(None, (place, entry.what))), whole="")
        address = details(event.key)
    text = entry.text
    if len(text) > MAX_LOGGED_CHARS:
        text = f"{text[:MAX_LOGGED_CHARS]} … [{count(len(text) - MAX_LOGGED_CHARS, 'character')} more]"
    more = len(entry.read) - MAX_LOGGED_LINKS
    read = [*entry.read[:MAX_LOGGED_LINKS], *([Link(f"{more} more")] if more > 0 else [])]
    return replace(entry, text=text, read=read, details=address)


def _message_entry(
    event: MessagePublished, anchor: str, places: Mapping[str, PagePlace], record: SessionRecord
) -> TranscriptEntry:
    return TranscriptEntry(
        anchor=anchor,
        who=_name(record, event.sender),
        what=describe_phase(event.kind, record.labels),
        figures="",
        key=event.id,
        text=record.text(event.text),
        reply_to=_link("", event.reply_to, places) if event.reply_to else None,
    )


def phase_headings(record: SessionRecord) -> dict[str, str]:
    """Return the words for each phase: `Round 2 · objections`, `Check 2`; a phase that occurs once has no number."""
    numbers: dict[str, set[str]] = {}
    steps: dict[str, str] = {}
    for _, event in record.said:
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


def _call_entry(call: Ended, anchor: str, places: Mapping[str, PagePlace], record: SessionRecord) -> TranscriptEntry:
    reading = record.reading(call.key)
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
    place = places.get(id)
    words = place.words if place else id
    return Link(f"{label}: {words}" if label else words, place.href if place else "")
