"""A session in words for chat programs: its transcript as it is committed, and the head of its report.

Both follow from the journal alone, so that whoever joins a session reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
from consilience.domain.sections import Presentation
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
from consilience.reporting.markdown import blocks_markdown
from consilience.reporting.record import AnyReport, SessionRecord
from consilience.reporting.report_sections import HEADINGS, headline, report_document
from consilience.reporting.session_state import SessionState

Text = Callable[[str], str]
"""Returns a stored text by its id."""
MAX_DISSENTS, MAX_DISSENT_CHARS = 3, 400


class Narrator:
    """Tells the transcript of a session, event by event."""

    def __init__(self) -> None:
        self._state = SessionState()
        self._events: list[AnyEvent] = []
        self._names: dict[str, str] = {}

    def tell(self, event: AnyEvent, text: Text) -> str:
        """Return what a committed event adds to the transcript, as Markdown; "" for nothing."""
        self._state.take(event)
        self._events.append(event)
        match event:
            case SessionStarted():
                return self._beginning(event)
            case CallCompleted() if event.kind in find_report(self._protocol).published_kinds:
                return ""  # its message follows
            case CallCompleted():
                return self._said(event.agent, self._state.place(event.key, event.agent), reply_text(text(event.text)))
            case MessagePublished():
                return self._message(event, text)
            case SessionParked():
                return f"*Waits for {describe_awaited(event.awaited, self._state.people)}.*"
            case CommentPosted():
                return self._said("", f"Comment by {event.by or 'a person'}", text(event.text))
            case ReplyRejected() | CallFailed() | CallLost() | Noted() | CheckRecorded():
                line = event_line(event, self._state)
                return f"*{escape_inline(line)}*" if line else ""
        return ""

    @property
    def _protocol(self) -> str:
        return self._state.started.protocol if self._state.started else ""

    def _beginning(self, started: SessionStarted) -> str:
        who, calls = describe_agents(started.agents), describe_calls(started.estimate)
        return f"*{started.protocol}: {who}, {calls}.*"

    def _message(self, event: MessagePublished, text: Text) -> str:
        if not self._names:
            self._names = self._named(text)
        of_call = event.id.removesuffix("/said")
        place = self._state.place(of_call, event.sender) if of_call != event.id else event.kind.replace("_", " ")
        return self._said(event.sender, place, text(event.text))

    def _named(self, text: Text) -> dict[str, str]:
        """Return the names of the agents as the protocol's own messages use them, once there is one."""
        if self._state.started is None:
            return {}
        presentation, _ = try_progress(UnfinishedSession(self._state.started, self._events, text))
        return dict(presentation.names)

    def _said(self, agent: str, place: str, words: str) -> str:
        models = {seat.id: seat.model for seat in self._state.agents}
        name = self._names.get(agent) or seat_labels(self._state.agents).get(agent, agent)
        who = f"{name} ({models[agent]})" if models.get(agent) else name
        heading = " · ".join(filter(None, (f"{place[:1].upper()}{place[1:]}", who)))
        return f"**{escape_inline(heading)}**\n\n{demote_markdown(words)}"


def head_of(record: SessionRecord) -> str:
    """Return the head of a finished session's report as Markdown: what is missing, then the answer, then who dissents."""
    report = record.report
    assert report is not None
    return "\n\n".join(filter(None, _head(report, record.presentation)))


def _head(report: AnyReport, presentation: Presentation) -> Iterator[str]:
    document = report_document(report, presentation)
    if report.degraded or not document.answer_stands or report.stop_reason not in _ENDED_WELL:
        yield f"**{escape_inline(headline(report, presentation))}**"
    for chapter in document.chapters:
        if chapter.heading in ("", HEADINGS["answer"]):
            yield blocks_markdown(chapter.blocks)
    if not presentation.below_answer:
        yield _dissent(report)


_ENDED_WELL = (StopReason.CONVERGED, StopReason.SETTLED, StopReason.EXHAUSTED_STEPS)


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
