"""What the tools and the tasks of MCP have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.server.callers import LOCAL, Caller

if TYPE_CHECKING:
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
    root: Path | None = None
    """The directory whose files tools may read, by the server itself; None: texts only."""
    max_cost: float | None = None
    """US dollars that a session may cost; None: no bound."""


def caller_of(request: Any) -> Caller:
    """Return who calls: whom the gate of the HTTP server has let in, or without a `request` the user of this machine.

    Raises `KeyError` behind no gate.
    """
    caller: Caller = LOCAL if request is None else request.scope["consilience.caller"]
    return caller


async def session_text(sessions: Sessions, request: Any, session: str) -> str:
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
            whole = f"The whole report: consilience://sessions/{session}/report"
            return f"{report_head(record)}\n\nSession {session}. {whole}{page}"
        lines = [f"Running: session {session}, {progress_line(record)}.{page}"]
        questions = [q for q in pending_questions(record.events, record.text, records.prompt) if not q.answered]
        for question in questions:
            lines.append(f"{question.addressee} is asked `{question.key}`:\n\n{question.text}")
        if questions:
            lines.append(f'To answer: answer(session="{session}", key=…, text=…).')
        else:
            lines.append(f'For its result: status(session="{session}", wait_s={WAIT_SECONDS}).')
        return "\n\n".join(lines)

    return await sessions.read(caller_of(request), text)
