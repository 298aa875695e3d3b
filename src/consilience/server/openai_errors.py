"""Errors in the form of OpenAI's API, which its clients read."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from consilience.domain.errors import ConsilienceError, ProviderError, UnknownName, UserError
from consilience.server.callers import Forbidden
from consilience.server.errors import status_of
from consilience.server.uploads import BodyRoute


class RefusedRequest(ConsilienceError):
    """A request that this server does not serve: status 400, or another one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class RunFailed(ConsilienceError):
    """The run of a session ended without a report: status 500. The session can be resumed."""


class OpenAIError(BaseModel):
    """What is wrong, as OpenAI's API says it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIErrorAnswer(BaseModel):
    """The body of an answer that is an error."""

    error: OpenAIError


OPENAI_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OpenAIErrorAnswer, "description": description}
    for status, description in {
        400: "The request is invalid.",
        403: "The caller may not do this.",
        404: "There is no such thing, or it belongs to another owner.",
        429: "There is no room now; `Retry-After` says when to try again.",
        500: "The run ended without a report; it can be resumed.",
        502: "The provider of a model failed.",
    }.items()
}
"""Errors of the routes in this form."""

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "invalid_request_error", 429: "rate_limit_error"}


def openai_status(error: ConsilienceError) -> int:
    """Return the HTTP status of an error. What a client cannot correct by a repetition is 400, not 422."""
    if isinstance(error, RefusedRequest):
        return error.status
    if isinstance(error, RunFailed | ProviderError):
        return 502 if isinstance(error, ProviderError) else 500
    status = status_of(error)
    return 400 if status == 422 else status


def openai_error(error: ConsilienceError) -> dict[str, Any]:
    """Return `{"error": {message, type, param, code}}`."""
    status = openai_status(error)
    param = getattr(error, "param", None)
    code = getattr(error, "code", None)
    message = str(error)
    match error:
        case UnknownName():
            code = "not_found"
        case Forbidden():
            code = "not_allowed"
        case RunFailed():
            code = "run_failed"
    if isinstance(error, UserError):
        param = param or error.where or None
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class OpenAIRoute(BodyRoute):
    """A route with a bounded JSON body, whose errors have that form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as invalid:
                first = invalid.errors()[0]
                where = ".".join(str(part) for part in first["loc"][1:])
                refusal = RefusedRequest(f"{where}: {first['msg']}" if where else first["msg"], param=where or None)
                return JSONResponse(openai_error(refusal), 400)
            except HTTPException as invalid:  # the body is too long, too slow, or not the JSON of a request
                refusal = RefusedRequest(
                    invalid.detail, status=400 if invalid.status_code == 422 else invalid.status_code
                )
                return JSONResponse(openai_error(refusal), refusal.status)
            except ConsilienceError as error:
                return JSONResponse(openai_error(error), openai_status(error), headers=retry_header(error))

        return answer


def retry_header(error: ConsilienceError) -> dict[str, str]:
    """Return the header by which a client knows not to repeat what no repetition mends."""
    seconds = getattr(error, "retry_after", None)
    return {"Retry-After": str(int(seconds))} if seconds else {}


def as_data(value: dict[str, Any]) -> str:
    """Return a JSON object as the data of an event, in ASCII: clients take U+2028 and the like for the end of a line."""
    return json.dumps(value)
