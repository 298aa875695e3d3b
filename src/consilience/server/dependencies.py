"""What routes are given: the service, and who asks."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from consilience.server.callers import LOCAL, Caller
from consilience.server.service import Sessions

HEARTBEAT_SECONDS = 15
"""Interval of the comments in a stream of events."""


def sessions_of(request: Request) -> Sessions:
    found: Sessions = request.app.state.sessions
    return found


def caller_of(request: Request) -> Caller:
    """Return who asks, as `access` has identified them."""
    caller: Caller = request.scope.get("consilience.caller", LOCAL)
    return caller


Service = Annotated[Sessions, Depends(sessions_of)]
Who = Annotated[Caller, Depends(caller_of)]
