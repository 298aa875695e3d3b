"""The page of all sessions: what waits for the reader, what is due, and a list to search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.requests import Request

from consilience.domain.errors import ConsilienceError, JournalError, UnknownName
from consilience.journal.store import Records, SessionEntry
from consilience.reporting.formatting import seat_labels
from consilience.reporting.questions import Question, pending_questions
from consilience.server.blindness import given_seats
from consilience.server.callers import Caller
from consilience.server.catalog_routes import protocol_views
from consilience.server.dependencies import Service, SessionId, Who
from consilience.server.pages import PageRoute, app_page, go_to, problem_of, read_form
from consilience.server.service import Sessions
from consilience.sessions.follow_up import NEAR_DAYS

routes = APIRouter(include_in_schema=False, route_class=PageRoute)
MAX_WAITING = 200
"""Unfinished sessions, the latest first, in which open questions are looked for."""
MAX_QUESTION_CHARS = 200
OUTCOMES = {"happened": True, "did not happen": False}


@dataclass(frozen=True)
class WaitingQuestion:
    """An open question to a person in a session of the reader's."""

    session: str
    title: str
    question: Question
    is_given: bool
    """Whether the seat was given away by a link: whoever has it answers."""


@routes.get("/sessions")
async def listing(
    request: Request,
    sessions: Service,
    caller: Who,
    q: Annotated[str, Query(max_length=500)] = "",
    protocol: Annotated[str, Query(max_length=120)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> Response:
    """Show the page."""
    return await _page(request, sessions, caller, words=q, protocol=protocol, number=page)


@routes.post("/sessions/{session}/resolve")
async def resolve(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Record what became of a forecast."""
    form = await read_form(request)
    outcome = OUTCOMES.get(form.get("outcome"))
    is_of_session = form.get("from") == "session"
    problem = "Nothing was recorded. Choose whether it happened."
    try:
        if outcome is not None:
            await sessions.resolve(caller, session, form.get("question"), outcome)
            return go_to(f"/sessions/{session}/outcomes" if is_of_session else "/sessions#due")
    except ConsilienceError as error:
        if isinstance(error, UnknownName) and not error.place():
            raise
        problem = problem_of(error)
    if is_of_session:
        return await _outcomes_page(request, sessions, caller, session, problem)
    return await _page(request, sessions, caller, problem=problem, status=422)


@routes.get("/sessions/{session}/outcomes")
async def outcomes(session: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Show the questions of a finished session with what would change minds, each with how it came out or a form for that."""
    return await _outcomes_page(request, sessions, caller, session)


async def _outcomes_page(
    request: Request, sessions: Sessions, caller: Caller, session: str, problem: str = ""
) -> Response:
    followed, recorded = await sessions.outcomes(caller, session)
    return app_page(
        request,
        "outcomes",
        "How its questions came out",
        status=422 if problem else 200,
        problem=problem,
        session=session,
        forecasts=followed.forecasts if followed else (),
        names=seat_labels(followed.agents) if followed else {},
        recorded=recorded,
    )


async def _page(
    request: Request,
    sessions: Sessions,
    caller: Caller,
    *,
    words: str = "",
    protocol: str = "",
    number: int = 1,
    problem: str = "",
    status: int = 200,
) -> Response:
    found = await sessions.listing(caller, words=words.split(), protocols=[protocol] if protocol else (), page=number)
    is_whole = not words and not protocol and number == 1
    due = await sessions.due(caller, today=datetime.now(UTC).date(), within=NEAR_DAYS) if is_whole else {}
    asked = {"q": words, "protocol": protocol}
    return app_page(
        request,
        "sessions",
        "Sessions",
        status=status,
        problem=problem,
        words=words,
        protocol=protocol,
        protocols=sorted({view.protocol for view in protocol_views(sessions.settings, caller)}),
        found=found,
        waiting=await waiting_questions(sessions, caller) if is_whole else [],
        due=[(when, deadlines) for when, deadlines in due.items() if deadlines],
        at_page=lambda n: f"/sessions?{urlencode({**asked, 'page': n}, quote_via=quote)}",
        most=MAX_QUESTION_CHARS,
    )


async def waiting_questions(sessions: Sessions, caller: Caller) -> list[WaitingQuestion]:
    """Return the open questions to people in the caller's sessions, those of the latest session first. A session is read at a
    time, and at most `MAX_WAITING`."""
    entries = await sessions.read(caller, lambda records: [entry for entry in records.entries() if not entry.finished])
    found: list[WaitingQuestion] = []
    for entry in entries[: -MAX_WAITING - 1 : -1]:
        try:
            found += await sessions.read(caller, partial(_asked, entry=entry))
        except (UnknownName, JournalError):  # removed meanwhile, or damaged: the list says so
            continue
    return found


def _asked(records: Records, *, entry: SessionEntry) -> Sequence[WaitingQuestion]:
    session = entry.session
    asked = pending_questions(records.read(session), records.text, records.prompt)
    open_ones = [question for question in asked if not question.answered and not question.ticket]
    if not open_ones:
        return ()
    title, given = entry.name or records.text(entry.task), given_seats(records, session)
    return [WaitingQuestion(session, title, question, question.agent in given) for question in open_ones]
