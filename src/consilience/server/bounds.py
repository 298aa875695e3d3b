"""Bounds on requests before anything reads them: headers, bytes of the body, time that it takes, depth of JSON."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consilience.server.errors import error_response

MAX_HEADERS = 100
IDLE_SECONDS = 20.0
"""Max time between two parts of a body."""
BODY_SECONDS = 300.0
"""Max time for a whole body."""
MAX_DEPTH = 32
"""Max levels of lists and objects in JSON."""
MAX_VALUES = 50_000
"""Max members of lists and objects in JSON, all together."""


class Bounds:
    """Refuses requests with too many headers (431), and bodies that are too long (413), also without a declared length, or too
    slow (408). Nothing of a body that declares too much is read."""

    def __init__(self, app: ASGIApp, *, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["headers"]) > MAX_HEADERS:
            refusal = error_response(scope["path"], 431, f"the request has more than {MAX_HEADERS} headers")
            await refusal(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > self._max_body:
            refusal = error_response(scope["path"], 413, self._too_long, do="Send less, or parts of it.")
            await refusal(scope, receive, send)
            return
        body = _BoundedBody(receive, send, self)
        await self._app(scope, body.receive, body.send)

    @property
    def _too_long(self) -> str:
        return f"the request has more than {self._max_body:,} bytes"

    def check(self, received: int) -> None:
        if received > self._max_body:
            raise HTTPException(413, self._too_long)


class _BoundedBody:
    """The channels of one request."""

    def __init__(self, receive: Receive, send: Send, bounds: Bounds) -> None:
        self._receive, self._send, self._bounds = receive, send, bounds
        self._received = 0
        self._complete = self._started = False
        self._until = asyncio.get_running_loop().time() + BODY_SECONDS

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            try:
                left = self._until - asyncio.get_running_loop().time()
                async with asyncio.timeout(min(IDLE_SECONDS, left)):
                    message = await self._receive()
            except TimeoutError:
                raise HTTPException(408, "the body of the request did not arrive in time") from None
            self._received += len(message.get("body", b""))
            self._bounds.check(self._received)
        except HTTPException:
            if self._started:  # the answer needs no body, and is on its way
                return {"type": "http.disconnect"}
            raise
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        self._started = True
        await self._send(message)


def parse_json(body: bytes) -> Any:
    """Return the value of a body. Raises `HTTPException` 422 for what is not JSON in UTF-8, nested too deeply, of too many values,
    or not valid Unicode."""
    try:
        text = body.decode()
        _check_size(text)
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise HTTPException(422, _TOO_DEEP) from None
    except ValueError as error:
        raise HTTPException(422, f"the body is not valid JSON: {error!s:.200}") from None
    _check(value)
    return value


_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string of JSON, also one without its end: so a text is read once, whatever it holds."""
_TOO_DEEP = f"the body is nested more than {MAX_DEPTH} levels deep"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _check_size(text: str) -> None:
    """Count the values before any is made: a million of them would keep all other requests waiting for a minute."""
    strings = text.count('"') - text.count('\\"')  # each has one quote at least that no backslash precedes
    if strings <= 2 * MAX_VALUES:
        structure = _STRING.sub("", text)
        if sum(map(structure.count, ",[{")) <= MAX_VALUES:
            return
    raise HTTPException(422, f"the body has more than {MAX_VALUES:,} values: give long lists as the text of a source")


def _check(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, dict):
                for key in item:
                    _check_text(key)
                inner += item.values()
        if not inner:
            return
        level = inner
    raise HTTPException(422, _TOO_DEEP)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise HTTPException(422, "the body contains a lone surrogate, which is not valid Unicode") from None
    if "\0" in text:
        raise HTTPException(422, "the body contains a NUL character")
