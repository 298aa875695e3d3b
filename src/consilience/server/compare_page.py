"""Two sessions side by side: the command's own data, `reporting.session_diff`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.requests import Request

from consilience.journal.store import Records
from consilience.reporting.html import about_session
from consilience.reporting.page_parts import PageParts
from consilience.reporting.record import read_record
from consilience.reporting.session_diff import SessionDiff, diff_document
from consilience.server.dependencies import Service, SessionId, Who
from consilience.server.pages import PageRoute, app_page, go_to

routes = APIRouter(prefix="/sessions/{session}/compare", include_in_schema=False, route_class=PageRoute)


@routes.get("")
async def chosen(
    session: SessionId, sessions: Service, caller: Who, other: Annotated[str, Query(max_length=200)]
) -> Response:
    """Go to the comparison with a session whose id, or the address of whose page, was typed."""
    id = other.strip().rstrip("/").rpartition("/")[2]
    await sessions.read(caller, lambda records: records.owner(id))
    return go_to(f"/sessions/{session}/compare/{id}")


@routes.get("/{other}")
async def compare(session: SessionId, other: SessionId, request: Request, sessions: Service, caller: Who) -> Response:
    """Show what differs: settings, replies, results, sides; and the answers next to each other."""

    def read(records: Records) -> dict[str, object]:
        sides = [read_record(records, id) for id in (session, other)]
        parts = PageParts({}, {})
        answers = [side.report.answer if side.report else None for side in sides]
        return {
            "answers": [
                (side.session, about_session(side), None if answer is None else parts.agent_text(answer))
                for side, answer in zip(sides, answers, strict=True)
            ],
            "differences": parts.document(diff_document(SessionDiff(*sides))),
        }

    values = await sessions.read(caller, read)
    return app_page(request, "compare", "Two sessions, compared", session=session, other=other, compared=values)
