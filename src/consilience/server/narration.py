"""A session in words for chat programs: its transcript as it is committed, and the head of its report.

Both follow from the journal alone, so that whoever joins a session reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from consilience.domain.events import (
    AnyEvent,
    CallCompleted,
    CallFailed,
    CallLost,
    CheckRecorded,
    CommentPosted,
    MessagePublished,
    Noted,
    ReplyRejected,
    SessionParked,
    SessionStarted,
)
from consilience.domain.outcome import StopReason
from consilience.domain.presenting import try_progress
from consilience.domain.report import Report, UnfinishedSession, find_report
from consilience.reporting.event_lines import event_line
from consilience.reporting.formatting import (
    count,
    demote_markdown,
    describe_agents,
    describe_awaited,
    describe_calls,
    describe_cost,
    escape_inline,
    one_line,
    reply_text,
    seat_labels,
)
from consilience.reporting.markdown import blocks_markdown, chapter_markdown
from consilience.reporting.record import AnyReport, SessionRecord, Text
from consilience.reporting.report_sections import HEADINGS, headline, report_document
from consilience.reporting.session_state import SessionState

MAX_DISSENTS, MAX_DISSENT_CHARS = 3, 400


class Narrator:
    """Tells the transcript of a session, event by event."""

    def __init__(self, *, answer_follows: bool) -> None:
        """`answer_follows`: whoever reads this reads the answer next, so a session of one call has no transcript."""
        self._answer_follows = answer_follows
        self._state = SessionState()
        self._events: list[AnyEvent] = []
        self._names: dict[str, str] = {}
        """As the protocol's own messages use them. They are read again when its first note says how."""

    def tell(self, event: AnyEvent, text: Text) -> str:
        """Return what a committed event adds to the transcript, as Markdown; "" for nothing."""
        self._state.take(event)
        if isinstance(event, Noted) and not any(isinstance(earlier, Noted) for earlier in self._events):
            self._names = {}
        self._events.append(event)
        match event:
            case SessionStarted():
                return self._beginning(event)
            case CallCompleted() if self._is_shown_elsewhere(event):
                return ""
            case CallCompleted():
                return self._said(
                    event.agent, self._state.place(event.key, event.agent), reply_text(text(event.text)), text
                )
            case MessagePublished():
                return self._message(event, text)
            case SessionParked():
                return f"*Waits for {describe_awaited(event.awaited, self._state.people)}.*"
            case CommentPosted():
                return self._said("", f"Comment by {event.by or 'a person'}", text(event.text), text)
            case ReplyRejected() | CallFailed() | CallLost() | Noted() | CheckRecorded():
                line = event_line(event, self._state)
                return f"*{escape_inline(line)}*" if line else ""
        return ""

    def _is_shown_elsewhere(self, call: CallCompleted) -> bool:
        """Whether the words of a reply follow as a message, or are the whole answer."""
        started = self._state.started
        return started is not None and (
            call.kind in find_report(started.protocol).published_kinds
            or (self._answer_follows and started.estimate.max == 1)
        )

    def _beginning(self, started: SessionStarted) -> str:
        who, calls = describe_agents(started.agents), describe_calls(started.estimate)
        return f"*{started.protocol}: {who}, {calls}.*"

    def _message(self, event: MessagePublished, text: Text) -> str:
        of_call = event.id.removesuffix("/said")
        place = self._state.place(of_call, event.sender) if of_call != event.id else event.kind.replace("_", " ")
        return self._said(event.sender, place, text(event.text).replace("\n", "\n\n"), text)

    def _said(self, agent: str, place: str, words: str, text: Text) -> str:
        seats = {seat.id: seat for seat in self._state.agents}
        model = seats[agent].model if agent in seats else ""
        heading = " · ".join(filter(None, (f"{place[:1].upper()}{place[1:]}", self._name(agent, text), model)))
        if any(seat.is_person for seat in seats.values()):
            return f"**{escape_inline(heading)}** *Shown at the end: a person has a seat.*"
        return f"**{escape_inline(heading)}**\n\n{demote_markdown(words)}"

    def _name(self, agent: str, text: Text) -> str:
        if not self._names and self._state.started is not None:
            presentation, _ = try_progress(UnfinishedSession(self._state.started, self._events, text))
            service = {seat.id: seat.id for seat in self._state.agents if not seat.voice}
            self._names = seat_labels(self._state.agents) | dict(presentation.names) | service
        return self._names.get(agent, agent)


def head_of(record: SessionRecord) -> str:
    """Return the head of a finished session's report as Markdown: what is missing, the answer, the documents to which it refers,
    who dissents, and what would overturn it, which the answer's author was told stands below."""
    report = record.report
    assert report is not None
    return "\n\n".join(filter(None, _head(report, record)))


def _head(report: AnyReport, record: SessionRecord) -> Iterator[str]:
    presentation = record.presentation
    document = report_document(report, presentation)
    if report.degraded or not document.answer_stands or report.stop_reason not in _ENDED_WELL:
        yield f"**{escape_inline(headline(report, presentation))}**"
    for chapter in document.chapters:
        if chapter.heading in ("", HEADINGS["answer"]):
            yield blocks_markdown(chapter.blocks)
    yield _references(report, record)
    if not presentation.below_answer:
        yield _dissent(report)
    if overturning := chapter_markdown(document, "unknown"):
        yield f"**{HEADINGS['unknown']}:**\n\n{overturning}"


_ENDED_WELL = (StopReason.CONVERGED, StopReason.SETTLED, StopReason.EXHAUSTED_STEPS)


def _references(report: Report, record: SessionRecord) -> str:
    """The names of the documents that the answer quotes by number."""
    started = record.state.started
    sources = started.sources if started is not None else ()
    quoted = [
        f"S{n}: {escape_inline(source.name)}"
        for n, source in enumerate(sources, 1)
        if re.search(rf"\[S{n}[:\]]", report.answer or "")
    ]
    return f"*{' · '.join(quoted)}*" if quoted else ""


def _dissent(report: Report) -> str:
    names = seat_labels(report.agents)
    lines = [
        f"- “{escape_inline(one_line(dissent.text, MAX_DISSENT_CHARS))}” — *{names.get(dissent.agent, dissent.agent)}*"
        for dissent in report.dissent
        if report.answer is not None and dissent.text not in report.answer
    ]
    more = len(lines) - MAX_DISSENTS
    listed = [*lines[:MAX_DISSENTS], *([f"- and {more} more"] if more > 0 else [])]
    return "\n".join(("**Dissent:**", "", *listed)) if lines else ""


def figures_of(report: Report) -> str:
    """Return what a session cost, for its last line."""
    spent = report.ledger.actual
    return f"{count(spent.calls, 'call')} · {describe_cost(spent)}"
