"""Errors as HTTP answers: a status, and what, where and what to do as JSON, or OpenAI's form of it where its clients ask. They name
no path and nothing of other owners."""

from __future__ import annotations

import logging
import os
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from consilience.domain.errors import (
    AlreadyFinished,
    Command,
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
        case UnknownName() if isinstance(error, UnknownSession) or not error.place():
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


def error_json(error: ConsilienceError, *, routes: bool = True) -> dict[str, str]:
    """Return what is wrong, where, and what to do about it, in the terms of HTTP; without `routes` for a page."""
    match error:
        case UnknownSession():
            problem = ErrorDetail(
                what="there is no such session", do="List yours: GET /api/sessions." if routes else ""
            )
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
            where = "" if os.path.isabs(error.where) else error.place()
            problem = ErrorDetail(what=error.what, where=where, do=error.advice(_route) if routes else error.do)
        case _:
            problem = ErrorDetail(what=str(error))
    return {name: replace_surrogates(text) for name, text in problem.model_dump().items()}


def _route(command: Command) -> str:
    """Return the request that does what a command does."""
    method = "GET" if command.name in ("show", "events", "export") else "POST"
    return f"{method} /api/sessions/{command.session}{'' if command.name == 'show' else f'/{command.name}'}"


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
