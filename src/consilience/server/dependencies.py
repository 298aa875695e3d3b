"""What every route is given: the service, and who asks."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from consilience.server.access import caller_of
from consilience.server.callers import Caller
from consilience.server.errors import ErrorAnswer
from consilience.server.service import Sessions


def sessions_of(request: Request) -> Sessions:
    found: Sessions = request.app.state.sessions
    return found


Service = Annotated[Sessions, Depends(sessions_of)]
Who = Annotated[Caller, Depends(caller_of)]
SessionId = Annotated[str, Path(max_length=120, description="Id of a session.")]

ERRORS: dict[int | str, dict[str, object]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        403: "The caller may not do this.",
        404: "There is no such thing, or it belongs to another owner.",
        409: "The state of the session does not allow this.",
        413: "The body is too long.",
        422: "The request is invalid.",
        429: "There is no room now; `Retry-After` says when to try again.",
        507: "Nothing can be recorded now.",
    }.items()
}
"""Answers of any route."""
