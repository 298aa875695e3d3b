"""Routes of sessions: begin, list, read, follow, act, fork, export."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from consilience.journal.store import Records
from consilience.reporting.export import as_json
from consilience.reporting.questions import question_json
from consilience.reporting.record import read_record
from consilience.server.bodies import (
    AnswerBody,
    CancelBody,
    CommentBody,
    ForkBody,
    NewSession,
    ResolveBody,
    TellBody,
)
from consilience.server.dependencies import ERRORS, Service, SessionId, Who
from consilience.server.feeds import EventStream
from consilience.server.forks import fork_json
from consilience.server.pages import SANDBOX
from consilience.server.replies import (
    AnsweredQuestion,
    BegunSession,
    PlannedFork,
    PlannedSession,
    QuestionView,
    ResolvedView,
    SessionAnswer,
    SessionView,
    StartedFork,
)
from consilience.server.service import SessionList, plan_json, require_met
from consilience.server.uploads import FORM, BodyRoute, UploadRoute
from consilience.sessions.follow_up import score_rows

routes = APIRouter(prefix="/api/sessions", tags=["sessions"], route_class=BodyRoute, responses=ERRORS)
uploads = APIRouter(prefix="/api/sessions", tags=["sessions"], route_class=UploadRoute, responses=ERRORS)
"""Routes that take files too."""

MEDIA_TYPES = {
    "markdown": "text/markdown",
    "html": "text/html",
    "svg": "image/svg+xml",
    "events": "application/x-ndjson",
    "json": "application/json",
    "sarif": "application/sarif+json",
}


@uploads.post("", status_code=201, openapi_extra=FORM, responses={200: {"model": PlannedSession}})
async def begin(body: NewSession, sessions: Service, caller: Who, response: Response) -> BegunSession | PlannedSession:
    """Begin a session: it is recorded, and runs when its turn comes. With `dry_run`, return the plan alone (200)."""
    if body.dry_run:
        response.status_code = 200
        return PlannedSession(plan=plan_json(await sessions.plan(caller, body)))
    prepared = await sessions.begin(caller, body)
    response.headers["Location"] = f"/api/sessions/{prepared.session}"
    return BegunSession(session=prepared.session, plan=plan_json(prepared.plan))


@routes.get("")
async def listing(
    sessions: Service,
    caller: Who,
    q: Annotated[str, Query(max_length=500, description="Words of the question, the name or the id.")] = "",
    protocol: Annotated[list[str] | None, Query(description="Only sessions of these protocols.")] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000, description="Pages have 50 sessions.")] = 1,
) -> SessionList:
    """List sessions, newest first."""
    return await sessions.listing(caller, words=q.split(), protocols=protocol or (), page=page)


@routes.get("/{session}")
async def show(session: SessionId, sessions: Service, caller: Who) -> SessionView:
    """Return how a session stands, and its report once it is finished."""

    def read(records: Records) -> SessionView:
        record = read_record(records, session)
        return SessionView(
            session=session,
            state=record.status,
            report=json.loads(as_json(record)),
            require_met=require_met(record),
        )

    return await sessions.read(caller, read)


@routes.get(
    "/{session}/events",
    response_class=EventStream,
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "The session has ended before."}},
)
async def events(
    session: SessionId,
    sessions: Service,
    caller: Who,
    after: Annotated[int, Query(ge=0, lt=2**63, description="The number of the last event that was read.")] = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream the committed events of a session as server-sent events, from a number on, until it ends.

    `id` is the event's number, `event` its type or, of a note, its name, `data` the event as `export` writes it with the texts
    that it says. `call_started` events are hints: they have no id, and may be missing.
    """
    is_number = last_event_id is not None and last_event_id.isascii() and last_event_id.isdecimal()
    start = min(int(last_event_id[:19]), 2**62) if last_event_id is not None and is_number else after
    rows = await sessions.follow(caller, session, after=start)
    return Response(status_code=204) if rows is None else EventStream(rows)


@routes.get("/{session}/questions", response_model_by_alias=True)
async def questions(session: SessionId, sessions: Service, caller: Who) -> list[QuestionView]:
    """List the questions to people and outside processes that a session waits for."""
    return [QuestionView.model_validate(question_json(q)) for q in await sessions.questions(caller, session)]


@routes.post("/{session}/answer")
async def answer(session: SessionId, body: AnswerBody, sessions: Service, caller: Who) -> AnsweredQuestion:
    """Answer an open question of a session, and let it go on."""
    key = await sessions.answer(caller, session, body.key, body.text)
    return AnsweredQuestion(session=session, key=key)


@routes.post("/{session}/cancel")
async def cancel(session: SessionId, body: CancelBody, sessions: Service, caller: Who) -> SessionAnswer:
    """End a session with a report. Calls in flight are given up, and may be charged."""
    await sessions.cancel(caller, session, answer=body.answer)
    return SessionAnswer(session=session)


@routes.post("/{session}/comment")
async def comment(session: SessionId, body: CommentBody, sessions: Service, caller: Who) -> SessionAnswer:
    """Put a comment on the record; no agent reads it."""
    await sessions.comment(caller, session, body.text)
    return SessionAnswer(session=session)


@routes.post("/{session}/resume")
async def resume(session: SessionId, sessions: Service, caller: Who) -> SessionAnswer:
    """Let a session go on that was interrupted."""
    await sessions.resume(caller, session)
    return SessionAnswer(session=session)


@uploads.post("/{session}/fork", status_code=201, openapi_extra=FORM, responses={200: {"model": PlannedFork}})
async def fork(
    session: SessionId, body: ForkBody, sessions: Service, caller: Who, response: Response
) -> StartedFork | PlannedFork:
    """Begin a session that inherits the replies of another up to a point, with changes. Inherited calls are not paid for again."""
    return await _forked(session, body, sessions, caller, response)


@uploads.post("/{session}/tell", status_code=201, openapi_extra=FORM, responses={200: {"model": PlannedFork}})
async def tell(
    session: SessionId, body: TellBody, sessions: Service, caller: Who, response: Response
) -> StartedFork | PlannedFork:
    """Tell a finished session a new fact, in a new session, whose report names the agents that changed position."""
    return await _forked(session, body, sessions, caller, response)


async def _forked(
    session: str, body: ForkBody | TellBody, sessions: Service, caller: Who, response: Response
) -> StartedFork | PlannedFork:
    if body.dry_run:
        response.status_code = 200
        return PlannedFork(fork=fork_json(await sessions.plan_fork(caller, session, body)))
    prepared = await sessions.fork(caller, session, body)
    response.headers["Location"] = f"/api/sessions/{prepared.session}"
    return StartedFork(session=prepared.session, fork=fork_json(prepared.fork))


@routes.delete("/{session}")
async def remove(session: SessionId, sessions: Service, caller: Who) -> SessionAnswer:
    """Remove a session with its texts. Cannot be undone."""
    await sessions.remove(caller, session)
    return SessionAnswer(session=session)


@routes.get(
    "/{session}/export",
    response_class=Response,
    responses={200: {"content": {media: {} for media in MEDIA_TYPES.values()}}},
)
async def export(
    session: SessionId,
    sessions: Service,
    caller: Who,
    format: Annotated[
        str, Query(max_length=40, description="json, markdown, html, svg, events; of a review also sarif, github.")
    ] = "markdown",
) -> Response:
    """Return a session as a file."""
    content = await sessions.export(caller, session, format)
    media = MEDIA_TYPES.get(format, "application/json")
    body = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return Response(body, media_type=media, headers=SANDBOX)


@routes.get("/{session}/views/{name}")
async def view(session: SessionId, name: str, sessions: Service, caller: Who) -> dict[str, Any]:
    """Return a view of a session as data: tree, evolution, convergence, reads, figures, or one of the protocol."""
    return await sessions.view(caller, session, name)


@routes.post("/{session}/resolve")
async def resolve(session: SessionId, body: ResolveBody, sessions: Service, caller: Who) -> ResolvedView:
    """Record the outcome of a question of a session. A later outcome replaces an earlier one."""
    resolved = await sessions.resolve(caller, session, body.question, body.outcome)
    return ResolvedView(
        session=session,
        question=body.question,
        text=resolved.question,
        outcome=body.outcome,
        recorded=resolved.resolution.on,
        agents=score_rows(resolved.scores),
    )
