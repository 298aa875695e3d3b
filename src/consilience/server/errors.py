"""Errors as HTTP answers: a status, and what, where and what to do as JSON."""

from __future__ import annotations

from consilience.domain.errors import (
    ConsilienceError,
    NewerSchema,
    OverAllowance,
    SessionBusy,
    StoreUnusable,
    UnknownName,
    UnknownSession,
    UserError,
)
from consilience.server.callers import Forbidden


def status_of(error: ConsilienceError) -> int:
    """Return the HTTP status of an error."""
    match error:
        case UnknownName() if isinstance(error, UnknownSession) or not error.where:
            return 404
        case Forbidden():
            return 403
        case OverAllowance():
            return 429
        case UserError():
            return 422
        case SessionBusy():
            return 409
        case StoreUnusable() | NewerSchema():
            return 507 if isinstance(error, StoreUnusable) else 409
        case _:
            return 409


def error_json(error: ConsilienceError) -> dict[str, str]:
    """Return what is wrong, where, and what to do about it. A caller learns neither a path nor the ids of other sessions."""
    if isinstance(error, UnknownSession):
        return {"what": error.what, "where": "session", "do": "Name one of your sessions."}
    if isinstance(error, UserError):
        return {"what": error.what, "where": error.where, "do": error.do}
    return {"what": str(error), "where": "", "do": ""}
