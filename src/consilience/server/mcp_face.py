"""What the tools and the tasks of MCP have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
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


@dataclass(frozen=True)
class Standing:
    """How the session of a handle stands."""

    place: str
    """The session that shows it: itself, or until it is recorded the one in which its task is read."""
    is_lost: bool = False
    """Whether it was never begun: its reading failed or was cancelled, or the process ended that was to begin it."""


async def standing(sessions: Sessions, caller: Caller, session: str) -> Standing:
    """Return how the session of a handle stands. Raises `UnknownName`, and what was wrong with a request that was being read."""
    from consilience.domain.errors import UnknownName
    from consilience.server.joins import gave_nothing, session_id

    beginning = sessions.joins.beginning(session)
    try:
        await sessions.ending(caller, session)
        return Standing(session)
    except UnknownName:
        reading, exists = await sessions.joins.reading(caller, session)
        if not exists:
            cancelled = session_id(session, 0)
            with suppress(UnknownName):
                await sessions.ending(caller, cancelled)
                return Standing(cancelled, is_lost=True)
            raise
    if beginning is None:
        return Standing(reading, is_lost=True)
    end = await sessions.ending(caller, reading)
    if end is None:
        return Standing(reading)
    if gave_nothing(end):
        return Standing(reading, is_lost=True)
    await asyncio.shield(beginning)
    return Standing(session)


async def session_text(sessions: Sessions, face: ToolFace, request: Any, session: str) -> str:
    """Return what is known of a session now: the head of its report, its open questions, or a handle; and where a person reads it,
    if the `request` came by HTTP."""
    page = ""
    if request is not None:
        from consilience.server.access import page_of

        page = f" Its page: {page_of(request, session)}"
    now = await standing(sessions, face.caller(request), session)
    if now.is_lost:
        return (
            f"Session {session} was not begun after its task was read in session {now.place}, which failed, or was cancelled or "
            "interrupted. Call the same tool again: no finished call is paid twice."
        )

    def text(records: Any) -> str:
        from consilience.reporting.questions import pending_questions
        from consilience.reporting.record import read_record
        from consilience.server.blindness import asked_of_owner, given_seats
        from consilience.server.heads import progress_line, report_head

        record = read_record(records, now.place)
        if record.report is not None and now.place == session:
            whole = (
                f'status(session="{session}", show="report"), or the resource consilience://sessions/{session}/report.'
            )
            more = f'To ask about it: ask(task=…, follow_up="{session}").'
            return f"{report_head(record)}\n\nSession {session}.{page} The whole report: {whole} {more}"
        reading = "" if now.place == session else "a model reads the task and chooses how to work on it: "
        if reason := sessions.failures.get(now.place):
            again = "To go on: the same call again; no finished call is paid twice."
            return f"Interrupted: session {session}, {reading}{progress_line(record)}. {reason}{page}\n\n{again}"
        lines = [f"Running: session {session}, {reading}{progress_line(record)}.{page}"]
        pending = pending_questions(record.events, record.text, records.prompt)
        questions = asked_of_owner(pending, given_seats(records, now.place))
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
    now = await standing(sessions, caller, session)

    def text(records: Any) -> str:
        from consilience.reporting.export import as_markdown
        from consilience.reporting.record import read_record
        from consilience.server.heads import transcript_markdown

        record = read_record(records, now.place)
        return as_markdown(record) if what == "report" else transcript_markdown(record)

    return await sessions.read(caller, text)
