"""Errors in the form of OpenAI's API, which its clients read. `errors` decides which errors have it: all below `OPENAI_PATHS`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from consilience.domain.errors import ConsilienceError

OPENAI_PATHS = "/v1/"
"""What the paths begin with whose errors have this form."""


class RefusedRequest(ConsilienceError):
    """A request that this server does not serve: status 400, or another one."""

    def __init__(self, message: str, *, param: str = "", code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class RunFailed(ConsilienceError):
    """The run of a session ended without a report: status 500. The session can be resumed."""

    code = "run_failed"


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
        401: "There is no valid token.",
        403: "The caller may not do this.",
        404: "There is no such thing, or it belongs to another owner.",
        413: "The body is too long.",
        429: "There is no room now; `Retry-After` says when to try again.",
        500: "The run ended without a report; it can be resumed.",
        502: "The model of helper requests failed.",
        507: "Nothing can be recorded now.",
    }.items()
}
"""Errors of the routes in this form."""

_KINDS: Mapping[int, tuple[str, str]] = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "not_allowed"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
"""Type and code of an error by its status."""


def openai_form(status: int, what: str, *, where: str = "", do: str = "", code: str | None = None) -> dict[str, Any]:
    """Return `{"error": {message, type, param, code}}`."""
    kind, usual = _KINDS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    message = f"{what.rstrip('.')}. {do}".strip()
    return {"error": OpenAIError(message=message, type=kind, param=where or None, code=code or usual).model_dump()}


def as_data(value: dict[str, Any]) -> str:
    """Return a JSON object as the data of an event, in ASCII: clients take U+2028 and the like for the end of a line."""
    return json.dumps(value)
