"""Translates exceptions of the provider libraries to `ProviderError`s: typed, with advice, without keys."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from consilience.domain.errors import (
    ProviderError,
    RateLimited,
    Refused,
    Rejected,
    ServerError,
    Timeout,
    Unreachable,
)
from consilience.models.answers import words_of
from consilience.models.bodies import ReplyUnreadable
from consilience.models.providers import key_variables, proxy_of, valid_key_advice

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError

_POLICY = re.compile(
    r"content[_ ](filter|policy|management)|moderation|safety (system|filter)|prohibited[_ ]content|敏感"
    r"|data_?inspection|responsibleai|guardrail"
)
_NO_MONEY = re.compile(
    r"余额|欠费|充值|insufficient (?:balance|credit|fund)|(?:run|ran) out of credit|(?:all|no) available credits|spending limit"
    r"|credit balance|daily free allocation|recharge your account|payment required|included credits"
)
_KEY = re.compile(r"\bkeys?\b|token|credential|auth(?!or)|令牌", re.I)
_OVERFLOW = re.compile(r"context (size|length|window)|exceed_context|prompt is too long|too many (input )?tokens")
_GENERATION = re.compile(r"json_validate_failed|tool_use_failed|failed to (?:generate json|call a function)")
"""The model wrote something that its provider did not accept; another time it may write something else."""
_NO_MODEL = re.compile(
    r"(?:invalid|unknown|no such) model\b|not a valid model|model_not_found|\bmodel\b.{0,80}not (?:found|exist)|模型不存在"
)
_MAX_CAUSES = 10
"""Exceptions of a chain that are examined."""
_MAX_CLEANED_CHARS = 4_000
"""Part of a provider's message that is cleaned, before it is shortened to `_MAX_SHOWN_CHARS`."""
_MAX_SHOWN_CHARS = 300
"""Part of a provider's message that an error shows."""


def retry_after(headers: Mapping[str, str] | None, now: datetime | None = None) -> float | None:
    """Return the seconds a response asks to wait (`retry-after-ms`, or `retry-after` in seconds or as a date); None if unusable.

    A date is compared with the response's own `date` header if there is one, so clocks need not agree. Header names are in lower
    case.
    """
    if not headers:
        return None
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    until = _http_date(headers.get("retry-after"))
    if until is None:
        return None
    since = _http_date(headers.get("date")) or now or datetime.now(UTC)
    return max(0.0, (until - since).total_seconds())


def _http_date(value: str | None) -> datetime | None:
    if not value:
        return None
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def translate(error: Exception, account: str, clean: Callable[[str], str], key_advice: str = "") -> ProviderError:
    """Return the `ProviderError` for an exception of a request. `clean` removes keys from a text. `key_advice` is what to do if the
    key is not accepted, by default to set the account's.

    An exception of no known category becomes a `ServerError`: a library could not read the reply.
    """
    from pydantic_ai import exceptions as library

    if isinstance(error, ProviderError):
        return error
    detail = _Detail(account, clean, key_advice or valid_key_advice(key_variables(account)))
    if (unreadable := _unreadable(error)) is not None:
        reason = detail("the reply was not read", str(unreadable), "Check the address of the server.")
        return _unusable_reply(reason, unreadable.retries) if unreadable.retries else Rejected(reason)
    if isinstance(error, library.ContentFilterError):
        return Refused(detail("the content filter stopped the answer", str(error)))
    if isinstance(error, library.ModelAPIError):
        return _translate_reported(error, detail)
    if isinstance(error, library.UnexpectedModelBehavior):
        return _unusable_reply(detail("the answer is no completion", str(error), "Check the address of the server."))
    if isinstance(error, library.UserError):
        return Rejected(detail("the request cannot be made with this model", str(error)))
    return _translate_transport(error, detail)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and those that it was raised from, which libraries wrap in their own."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _unreadable(error: BaseException) -> ReplyUnreadable | None:
    return next((cause for cause in _causes(error) if isinstance(cause, ReplyUnreadable)), None)


def _connection_failed(error: BaseException, message: str, detail: _Detail) -> Unreachable:
    """Return the error of a failed connection, with the reason that the operating system or TLS gave."""
    import socket
    import ssl

    do = "Is the server up, and its address right?"
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            message, do = (
                f"the certificate is invalid ({cause.verify_message})",
                "Check the address and its certificate.",
            )
        elif isinstance(cause, ssl.SSLError):
            reason = (cause.reason or "no reason given").replace("_", " ").lower()
            message, do = f"TLS failed ({reason})", "Does the server expect https at this port?"
        elif isinstance(cause, socket.gaierror):
            message = "the name of the host is not known"
        elif isinstance(cause, OSError) and cause.errno:
            message = os.strerror(cause.errno)
        elif type(cause).__name__ == "RemoteProtocolError":
            message = str(cause)
        else:
            continue
        break
    fault = "the connection failed"
    if proxy := proxy_of(next((url for cause in _causes(error) if (url := _url_of(cause))), ""), os.environ):
        fault, do = (
            f"the connection through the proxy in {proxy} failed",
            "Is the proxy up? NO_PROXY names hosts without one.",
        )
    return Unreachable(detail(fault, message, do))


def _url_of(error: BaseException) -> str:
    """Return the address of the request that an exception of a client is about."""
    request = vars(error).get("request") or vars(error).get("_request")
    return str(getattr(request, "url", ""))


class _Detail:
    """Builds the text of an error: account, failure, the provider's message shortened, advice."""

    def __init__(self, account: str, clean: Callable[[str], str], key_advice: str) -> None:
        self.account = account
        self._clean = clean
        self.key_advice = key_advice

    def __call__(self, fault: str, message: str = "", do: str = "") -> str:
        message = self._clean(" ".join(_beginning(message).split()))
        if len(message) > _MAX_SHOWN_CHARS:
            message = message[: _MAX_SHOWN_CHARS - 1] + "…"
        return f"{self.account}: {fault}" + (f": {message.rstrip('.')}" if message else "") + (f". {do}" if do else "")


def _beginning(text: str) -> str:
    """At most `_MAX_CLEANED_CHARS` characters, without a cut last word: half a key is not recognized as one."""
    return text if len(text) <= _MAX_CLEANED_CHARS else (text[:_MAX_CLEANED_CHARS].rsplit(None, 1) or [""])[0]


def _translate_reported(error: ModelAPIError, detail: _Detail) -> ProviderError:
    """Translate an error that pydantic-ai has classified."""
    from pydantic_ai import exceptions as library

    message = _message(error)
    status = f" (HTTP {error.status_code})" if isinstance(error, library.ModelHTTPError) else ""
    wait = _wait_seconds(error)
    if getattr(error, "status_code", 0) in _LOADING_STATUSES and _LOADING.search(message):
        return _loading(detail(f"the server is loading its model{status}", message), wait)
    match error:
        case library.ModelQuotaExceededError():
            return Rejected(detail(f"the account's quota is used up{status}", message, "Check its billing and limits."))
        case library.ModelRateLimitError() if _NO_MONEY.search(message.lower()):
            return Rejected(detail(f"the account has no money left{status}", message, "Check its billing and limits."))
        case library.ModelRateLimitError():
            return RateLimited(detail(f"rate limit{status}", message), retry_after=wait)
        case library.ModelUnavailableError():
            return ServerError(detail(f"overloaded or unavailable{status}", message), retry_after=wait)
        case library.ModelServerError():
            return ServerError(detail(f"the server failed{status}", message), retry_after=wait)
        case library.ModelTimeoutError() if error.phase not in ("connect", "pool"):
            return Timeout(detail("no answer in time", message))
        case library.ModelRequestTimeout():
            return Timeout(detail("no answer in time", message))
        case library.ModelConnectionError():
            return _connection_failed(error, message, detail)
        case library.ModelContextWindowExceededError():
            return _too_long(detail, message, status)
        case library.ModelAuthenticationError() if getattr(error, "status_code", 401) == 403 and not _KEY.search(
            message
        ):
            do = "Check its billing and limits." if _NO_MONEY.search(message.lower()) or "quota" in message else ""
            return Rejected(detail(f"access was refused{status}", message, do))
        case library.ModelAuthenticationError():
            return Rejected(detail(f"the key was not accepted{status}", message, detail.key_advice))
        case library.ModelNotFoundError():
            suggested = error.suggested_model_id if isinstance(error, library.ModelHTTPError) else None
            do = f"Did you mean {suggested}?" if suggested else "Check the model's name and the server's address."
            return Rejected(detail(f"no such model or address{status}", message, do))
        case library.ModelRequestRejectedError() | library.ModelHTTPError():
            return _translate_status(error, detail, message, status, wait)
    if _POLICY.search(message.lower()):
        return Refused(detail("the content filter stopped the answer", message))
    code = getattr(error.__cause__, "status_code", None)
    if isinstance(code, int) and 300 <= code < 400:
        response = getattr(error.__cause__, "response", None)
        where = str(getattr(response, "headers", {}).get("location", "")).partition("?")[0]
        return Rejected(detail(f"the server sends elsewhere (HTTP {code})", where, "Name the address it answers at."))
    return ServerError(detail("the answer could not be read", message), retry_after=wait)


def _translate_status(
    error: ModelAPIError, detail: _Detail, message: str, status: str, wait: float | None
) -> ProviderError:
    """Translate a rejected request whose category is not specific enough."""
    code = getattr(error, "status_code", 400)
    text = f"{message} {error.provider_error_code or ''} {error.provider_error_type or ''}".lower()
    if _POLICY.search(text):
        return Refused(detail(f"the content filter stopped the request{status}", message))
    if code == 413 or _OVERFLOW.search(text):
        return _too_long(detail, message, status)
    if code == 429:
        return RateLimited(detail(f"rate limit{status}", message), retry_after=wait)
    if code == 405 or _NO_MODEL.search(text):
        do = "Check the server's address." if code == 405 else "Check the model's name."
        return Rejected(detail(f"no such model or address{status}", message, do))
    if code in (408, 409, 424, 425, 498, 499) or code >= 500 or _GENERATION.search(text):
        return ServerError(detail(f"the server failed{status}", message), retry_after=wait)
    return Rejected(
        detail(
            f"the request was rejected{status}", message, "Check that the model takes these settings and this schema."
        )
    )


def _too_long(detail: _Detail, message: str, status: str) -> Rejected:
    return Rejected(
        detail(
            f"prompt and reply are longer than the model's context window{status}",
            message,
            "Reduce --thinking or --reply-tokens, use fewer or shorter sources, fewer rounds, or a larger model.",
        )
    )


def _wait_seconds(error: ModelAPIError) -> float | None:
    headers: Mapping[str, str] | None = getattr(error, "headers", None)
    stated = (retry_after(headers), error.retry_after, named_wait(str(error.body or "")))
    return next((seconds for seconds in stated if seconds), None)  # to wait for 0 s is to wait as long as usual


_UNITS = {"milliseconds": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(
    r"(\d+(?:\.\d+)?)\s*(milliseconds?|ms|[smhd])(?:ec(?:ond)?s?|in(?:ute)?s?|(?:ou)?rs?|ays?)?(?![a-z])", re.I
)
_WAITS = re.compile(
    rf"(?:retry|try again|retrydelay|\bwait|available again|resets?)\b[^.\d]{{0,40}}((?:{_DURATION.pattern}\W{{0,2}}(?:and )?)+)",
    re.I,
)
_WAIT_FIELD = re.compile(r"retry[_-]?after(?:_?(ms|s|sec|secs|seconds))?\W{1,4}(\d+(?:\.\d+)?)(?![\w.])", re.I)
_RESET_FIELD = re.compile(r"x-ratelimit-reset\W{1,5}(\d{13})\b", re.I)


def named_wait(words: str, now: float | None = None) -> float | None:
    """Return the seconds that the words of an error ask to wait, the longest of several; None if they name none.

    They stand in sentences (`Please try again in 1m30s`), in fields (`retryDelay`, `retry_after`), or as an instant
    (`X-RateLimit-Reset`).
    """
    seconds = [
        sum(
            float(number) * _UNITS[unit if unit in _UNITS else unit[0]]
            for number, unit in _DURATION.findall(match[1].lower())
        )
        for match in _WAITS.finditer(words)
    ]
    seconds += [float(number) * (0.001 if unit == "ms" else 1.0) for unit, number in _WAIT_FIELD.findall(words)]
    since = time.time() if now is None else now
    seconds += [max(0.0, int(instant) / 1000 - since) for instant in _RESET_FIELD.findall(words)]
    return max(seconds, default=None)


_LOADING = re.compile(
    r"(?<!error )(?<!failed )\bloading (?:the )?(?:model|weights)|\b(?:is|are|still|currently)(?: being)? loading|is being loaded"
    r"|warming up|cold[- ]start|(?:is|still) starting|not (?:yet )?ready",
    re.I,
)
_LOADING_STATUSES = (425, 500, 502, 503)
LOADING_POLL_SECONDS = 3.0
"""After how long a server that loads its model is asked again, if it does not say when."""


def _loading(detail: str, wait: float | None) -> ServerError:
    failure = ServerError(detail, retry_after=wait or LOADING_POLL_SECONDS)
    failure.loading = True
    return failure


def _message(error: ModelAPIError) -> str:
    """Return the provider's message: that in its error body, else the body, else the exception's text."""
    body = error.body
    if body is not None:
        return words_of(body) or str(body)
    return "" if hasattr(error, "status_code") else str(error)


def _translate_transport(error: Exception, detail: _Detail) -> ProviderError:
    """Translate unwrapped exceptions of the HTTP clients, and those that a library raises for an unexpected reply."""
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in ("httpx", "httpx2")}
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, TimeoutError) or ("TimeoutException" in names and not names & {"ConnectTimeout"}):
        return Timeout(detail("no answer in time", message))
    if names or isinstance(error, OSError):
        return _connection_failed(error, message, detail)
    return _unusable_reply(detail("the answer could not be read", message))


def _unusable_reply(detail: str, retries: int = 1) -> ServerError:
    """Return a `ServerError` with few retries, for a complete HTTP reply whose body is unusable."""
    failure = ServerError(detail)
    failure.retries = retries
    return failure


def refusal_of(error: Exception) -> tuple[int, str, str] | None:
    """Return status, all words and message of an error with which a server answered a request; None for another error."""
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError

    if not isinstance(error, ModelAPIError):
        return None
    status = error.status_code if isinstance(error, ModelHTTPError) else 0
    body = error.body
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    field = inner.get("param") if isinstance(inner, Mapping) else None
    return status, f"{field or ''} {body if body is not None else error}", _message(error)
