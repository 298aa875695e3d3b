"""Errors as HTTP answers: a status, and what, where and what to do as JSON, or OpenAI's form of it where its clients ask. They name
no path and nothing of other owners."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from consilience.domain.errors import (
    AlreadyFinished,
    ConsilienceError,
    OverAllowance,
    SessionBusy,
    StoreUnusable,
    UnknownName,
    UnknownSession,
    UserError,
    replace_surrogates,
)
from consilience.server.callers import Forbidden
from consilience.server.openai_errors import OPENAI_PATHS, RefusedRequest, RunFailed, openai_form

logger = logging.getLogger("consilience")

RETRY_SECONDS = 30
"""What `Retry-After` says after a refusal for lack of room."""
FIELDS = {"--set": "settings", "--replace-agent": "replace", "--perspective": "perspectives"}
"""Fields of bodies by the option of the same meaning, where they are named differently."""
_COMMAND = re.compile(r"consilience (resume|show|fork|tell) (\w+)[^.;,]*")
_ROUTES = {
    "show": "GET /api/sessions/{}",
    **{name: f"POST /api/sessions/{{}}/{name}" for name in ("resume", "fork", "tell")},
}


class ErrorDetail(BaseModel):
    """What is wrong, where, and what to do about it."""

    what: str
    where: str = ""
    """A field of the request; "" for none."""
    do: str = ""


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class Overloaded(ConsilienceError):
    """There is no room for another session now: HTTP status 429."""


def status_of(error: ConsilienceError) -> int:
    """Return the HTTP status of an error."""
    match error:
        case UnknownName() if isinstance(error, UnknownSession) or not error.where:
            return 404
        case RefusedRequest():
            return error.status
        case Forbidden():
            return 403
        case OverAllowance() | Overloaded():
            return 429
        case StoreUnusable():
            return 507
        case SessionBusy() | AlreadyFinished():
            return 409
        case UserError():
            return 422
        case RunFailed():
            return 500
        case _:
            return 409


def error_json(error: ConsilienceError) -> dict[str, str]:
    """Return what is wrong, where, and what to do about it, in the terms of HTTP."""
    match error:
        case UnknownSession():
            problem = ErrorDetail(what="there is no such session", do="List yours: GET /api/sessions.")
        case StoreUnusable():
            problem = ErrorDetail(
                what="the server cannot record anything now",
                do="Try again later. What was recorded is kept; the server's log says what its operator has to do.",
            )
        case SessionBusy():
            problem = ErrorDetail(what="the session is running", do="Wait until it ends, or cancel it.")
        case RefusedRequest():
            problem = ErrorDetail(what=str(error), where=error.param)
        case UserError():
            option, _, rest = error.where.partition(" ")
            where = "" if os.path.isabs(error.where) else FIELDS.get(option.rstrip(","), error.where)
            if where.startswith("--"):
                where = f"{option[2:].rstrip(',').replace('-', '_')} {rest}".strip()
            problem = ErrorDetail(what=error.what, where=where, do=_as_route(error.do))
        case _:
            problem = ErrorDetail(what=str(error))
    return {name: replace_surrogates(text) for name, text in problem.model_dump().items()}


def _as_route(do: str) -> str:
    """Return an advice with routes in place of commands; "" if it is about the command line alone."""
    words = _COMMAND.sub(lambda match: _ROUTES[match[1]].format(match[2]), do)
    return "" if "consilience " in words or " --" in words else words


def openai_error(error: ConsilienceError) -> dict[str, Any]:
    """Return an error in OpenAI's form, as an event of a stream."""
    return openai_form(status_of(error), **error_json(error), code=getattr(error, "code", None))


def error_response(
    path: str, status: int, what: str, *, where: str = "", do: str = "", code: str | None = None
) -> JSONResponse:
    """Return an error as an answer to a request of this path. Below `OPENAI_PATHS` what is invalid has status 400, not 422."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 507) else {}
    if not path.startswith(OPENAI_PATHS):
        return JSONResponse({"error": {"what": what, "where": where, "do": do}}, status, headers)
    status = 400 if status == 422 else status
    return JSONResponse(openai_form(status, what, where=where, do=do, code=code), status, headers)


def handle_errors(app: FastAPI) -> None:
    """Give all errors of an application one form."""
    app.add_exception_handler(ConsilienceError, _known_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _defect)


def _known_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ConsilienceError)
    if isinstance(error, StoreUnusable):
        logger.error("%s", error)
    code = getattr(error, "code", None)
    return error_response(request.scope["path"], status_of(error), **error_json(error), code=code)


def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    first = details[0]
    place, *inner = (str(part) for part in first["loc"])
    more = f"; and {len(details) - 1} more" if len(details) > 1 else ""
    what = replace_surrogates(f"{first['msg']}{more}")
    where = replace_surrogates(".".join(inner)[:200] or place)
    return error_response(
        request.scope["path"], 422, what, where=where, do="The form of each request: GET /openapi.json."
    )


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    answer = error_response(request.scope["path"], error.status_code, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _defect(request: Request, error: Exception) -> JSONResponse:
    return error_response(
        request.scope["path"], 500, "the server failed; its log has the reason", do="Tell the operator."
    )
