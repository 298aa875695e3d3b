"""Bodies as JSON, or as `multipart/form-data` with files: these are converted to text and become sources of the JSON.

Conversion runs in the bounded child process of `consilience.documents`. The name of a file is a label; nothing is opened by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from consilience.documents import read_data
from consilience.domain.messages import Source
from consilience.server.bounds import parse_json

MAX_FILES = 100
MAX_REQUEST_CHARS = 2_000_000
"""Max size of the JSON in a form."""
MAX_NAME_CHARS = 200
MAX_CONVERSIONS = 2
"""Files that are converted at the same time. Each takes up to 1 GB."""

FORM: dict[str, Any] = {
    "requestBody": {
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "request": {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "description": "The JSON of the request.",
                        },
                        "sources": {
                            "type": "array",
                            "items": {"type": "string", "contentMediaType": "application/octet-stream"},
                            "description": "Files: text, HTML, e-mail, notebooks, PDF, Word, Excel, PowerPoint, EPUB.",
                        },
                    },
                    "required": ["request"],
                }
            }
        }
    }
}
"""What OpenAPI says of a route that takes files."""


class _JsonRequest(Request):
    """A request whose JSON is bounded."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class BodyRoute(APIRoute):
    """A route with a bounded JSON body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            converted = isinstance(request, _Converted)
            return await handle(request if converted else _JsonRequest(request.scope, request.receive))

        return bounded


class UploadRoute(BodyRoute):
    """A route that takes a form with files too; see `FORM`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_files(request: Request) -> Response:
            kind = request.headers.get("content-type", "")
            if not kind.lower().startswith("multipart/form-data"):
                return await handle(request)
            async with request.form(max_files=MAX_FILES, max_fields=MAX_FILES, max_part_size=MAX_REQUEST_CHARS) as form:
                body = await _body_of(form, request.app.state.conversions)
            others = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
            scope = {**request.scope, "headers": [*others, (b"content-type", b"application/json")]}
            return await handle(_Converted(scope, body))

        return with_files


class _Converted(Request):
    """A request whose form has been read."""

    def __init__(self, scope: Any, value: Any) -> None:
        super().__init__(scope)
        self._body = b"form"
        self._json = value


async def _body_of(form: FormData, conversions: asyncio.Semaphore) -> Any:
    texts = form.getlist("request")
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise HTTPException(422, "the form needs one field `request` with the JSON of the request")
    body = parse_json(texts[0].encode())
    sources = []
    for name, value in form.multi_items():
        if name == "sources" and isinstance(value, UploadFile):
            source = await source_of(value.filename or "", await value.read(), conversions)
            sources.append(source.model_dump(mode="json"))
        elif name != "request":
            raise HTTPException(422, f"the form has an unknown field {name[:80]!r}: files are in `sources`")
    if isinstance(body, dict) and sources:
        given = body.get("sources", [])
        body["sources"] = [*given, *sources] if isinstance(given, list) else given
    return body


async def source_of(name: str, data: bytes, conversions: asyncio.Semaphore) -> Source:
    """Return a file as a source. Its name is a label. Raises `SourceError`."""
    bare = name.replace("\\", "/").rpartition("/")[2]
    label = "".join(character for character in bare if character.isprintable())[-MAX_NAME_CHARS:] or "document"
    async with conversions:
        document = await asyncio.to_thread(read_data, data, "the document", label)
    return document.source(label)
