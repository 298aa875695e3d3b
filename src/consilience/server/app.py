"""The HTTP face: routes over `service.Sessions`, with errors as JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from consilience.domain.errors import ConsilienceError
from consilience.domain.events import Noted
from consilience.reporting.export import as_json
from consilience.server import chat, debate_multi, responses
from consilience.server.bodies import AnswerBody, CancelBody, CommentBody, NewSession
from consilience.server.dependencies import HEARTBEAT_SECONDS, Service, Who
from consilience.server.errors import error_json, status_of
from consilience.server.service import Sessions, plan_json, require_met

routes = APIRouter(prefix="/api")


def build_app(sessions: Sessions) -> FastAPI:
    """Return the application of a server."""
    app = FastAPI(title="Consilience")
    app.state.sessions = sessions
    app.include_router(routes)
    chat.attach(app, sessions)
    app.include_router(debate_multi.routes)
    app.include_router(responses.routes)
    app.add_exception_handler(ConsilienceError, _as_answer)
    return app


def _as_answer(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ConsilienceError)
    return JSONResponse({"error": error_json(error)}, status_of(error))


@routes.post("/sessions", status_code=201)
async def begin(body: NewSession, sessions: Service, caller: Who, response: Response) -> dict[str, Any]:
    """Begin a session: it is recorded, and runs when its turn comes. With `dry_run`, return the plan alone."""
    if body.dry_run:
        response.status_code = 200
        return {"plan": plan_json(await sessions.plan(caller, body))}
    prepared = await sessions.begin(caller, body)
    response.headers["Location"] = f"/api/sessions/{prepared.session}"
    return {"session": prepared.session, "plan": plan_json(prepared.plan)}


@routes.get("/sessions/{session}")
async def show(session: str, sessions: Service, caller: Who) -> dict[str, Any]:
    """Return how a session stands, and its report once it is finished."""

    def read(records: Any) -> dict[str, Any]:
        from consilience.reporting.record import read_record

        record = read_record(records, session)
        return {
            "session": session,
            "state": record.status,
            "report": json.loads(as_json(record)),
            "require_met": require_met(record),
        }

    return await sessions.read(caller, read)


@routes.get("/sessions/{session}/events")
async def events(
    session: str,
    sessions: Service,
    caller: Who,
    after: int = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventSourceResponse:
    """Stream the committed events of a session from a number on, until it ends."""
    start = int(last_event_id) if last_event_id and last_event_id.isdecimal() else after
    await sessions.read(caller, lambda records: records.last(session))

    async def stream() -> AsyncIterator[ServerSentEvent]:
        async for event in sessions.tail(caller, session, after=start):
            kind = event.protocol if isinstance(event, Noted) and hasattr(event, "protocol") else event.type
            yield ServerSentEvent(event.model_dump_json(), event=kind, id=str(event.seq))

    return EventSourceResponse(stream(), ping=HEARTBEAT_SECONDS)


@routes.post("/sessions/{session}/answer")
async def answer(session: str, body: AnswerBody, sessions: Service, caller: Who) -> dict[str, str]:
    """Answer an open question of a session."""
    return {"session": session, "key": await sessions.answer(caller, session, body.key, body.text)}


@routes.post("/sessions/{session}/cancel")
async def cancel(session: str, body: CancelBody, sessions: Service, caller: Who) -> dict[str, str]:
    """End a session with a report."""
    await sessions.cancel(caller, session, answer=body.answer)
    return {"session": session}


@routes.post("/sessions/{session}/comment")
async def comment(session: str, body: CommentBody, sessions: Service, caller: Who) -> dict[str, str]:
    """Put a comment on the record; no agent reads it."""
    await sessions.comment(caller, session, body.text)
    return {"session": session}


@routes.post("/sessions/{session}/resume")
async def resume(session: str, sessions: Service, caller: Who) -> dict[str, str]:
    """Let a session go on that was interrupted."""
    await sessions.resume(caller, session)
    return {"session": session}


@routes.delete("/sessions/{session}")
async def remove(session: str, sessions: Service, caller: Who) -> dict[str, str]:
    """Remove a session with its texts."""
    await sessions.remove(caller, session)
    return {"session": session}
