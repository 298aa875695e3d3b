"""What the tools and the tasks of MCP have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from consilience.server.callers import Caller
    from consilience.server.service import Sessions

WAIT_SECONDS = 45
SESSION_META = "consilience/session"
"""Key in the metadata of a result: the session that it is of."""

BEGINNING = frozenset({"ask", "deliberate", "review", "tell"})
"""Tools that begin a session."""

WAITS: ContextVar[bool] = ContextVar("waits", default=True)
"""Whether a tool that begins a session waits for it; it does not where the client follows the session as a task."""


@dataclass(frozen=True)
class ToolFace:
    """What the tools stand on."""

    sessions: Callable[[], Awaitable[Sessions]]
    """Returns the sessions, opened at the first use."""
    caller: Callable[[Any], Caller]
    """Returns who sent a request; over standard input and output the request is None."""
    root: Path | None = None
    """The directory whose files tools may read, by the server itself; None: texts only."""
    max_cost: float | None = None
    """US dollars that a session may cost; None: no bound."""


async def session_text(sessions: Sessions, face: ToolFace, request: Any, session: str) -> str:
    """Return what is known of a session now: the head of its report, its open questions, or a handle; and where a person reads it,
    if the `request` came by HTTP."""
    page = ""
    if request is not None:
        from consilience.server.access import page_of

        page = f" Its page: {page_of(request, session)}"

    def text(records: Any) -> str:
        from consilience.reporting.questions import pending_questions
        from consilience.reporting.record import read_record
        from consilience.server.heads import progress_line, report_head

        record = read_record(records, session)
        if record.report is not None:
            whole = (
                f'status(session="{session}", show="report"), or the resource consilience://sessions/{session}/report.'
            )
            more = f'To ask about it: ask(task=…, follow_up="{session}").'
            return f"{report_head(record)}\n\nSession {session}.{page} The whole report: {whole} {more}"
        lines = [f"Running: session {session}, {progress_line(record)}.{page}"]
        questions = [q for q in pending_questions(record.events, record.text, records.prompt) if not q.answered]
        for question in questions:
            lines.append(f"{question.addressee} is asked `{question.key}`:\n\n{question.text}")
        if questions:
            lines.append(f'To answer: answer(session="{session}", key=…, text=…).')
        else:
            lines.append(f'For its result: status(session="{session}", wait_s={WAIT_SECONDS}).')
        return "\n\n".join(lines)

    return await sessions.read(face.caller(request), text)


async def whole_text(sessions: Sessions, caller: Caller, session: str, what: Literal["report", "transcript"]) -> str:
    """Return the report of a session, or its progress, or what its agents said, as Markdown."""

    def text(records: Any) -> str:
        from consilience.reporting.export import as_markdown
        from consilience.reporting.record import read_record
        from consilience.server.heads import transcript_markdown

        record = read_record(records, session)
        return as_markdown(record) if what == "report" else transcript_markdown(record)

    return await sessions.read(caller, text)
