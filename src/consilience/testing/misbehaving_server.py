"""A real server on 127.0.0.1 that answers well, badly, late or not at all, and keeps the requests that it saw."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

TEXT = "@@text@@"
"""Stands in a body for the text that the model would have written."""


@dataclass(frozen=True)
class ServerAnswer:
    """One answer of a server. `TEXT` is replaced in it. A `body` of bytes is sent as it is, another as JSON."""

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[object] | None = None
    """Sent one after another as a stream instead of `body`; the connection is closed after the last."""
    cut: int | None = None
    """Send only so many bytes of the body, then hang up."""
    hang: bool = False
    """Send nothing, ever."""
    drip: float = 0.0
    """Send a byte of the body every so many seconds."""
    when: Callable[[Mapping[str, Any]], bool] | None = None
    """Which request bodies are answered so; None for every."""
    times: int | None = None
    """How often it is given; None for always."""

    @property
    def holds_text(self) -> bool:
        """Whether it contains `TEXT`, so that it is an answer someone pays for."""
        return TEXT in repr(self.body if self.events is None else self.events)


@dataclass
class ServerRequest:
    """A request that the server got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


AnswerSource = ServerAnswer | Sequence[ServerAnswer] | Callable[[int], ServerAnswer]


class MisbehavingServer:
    """Listens inside `async with` on the running event loop, inside `with` on a thread of its own.

    `answers`: one answer; several, of which each request gets the first that applies to it; or a function of the number of the
    request, from 1. `text`: what replaces `TEXT`, which may depend on the request.
    """

    def __init__(self, answers: AnswerSource, *, text: str | Callable[[ServerRequest], str] = "Four.") -> None:
        self.answers = answers
        self.text = text
        self.seen: list[ServerRequest] = []
        """The requests it got."""
        self.sent: list[ServerAnswer] = []
        """The answers given, in the order of `seen`."""
        self.url = ""
        """`http://127.0.0.1:PORT`, without a path."""
        self.arrived = asyncio.Event()
        """Set by the first request."""
        self.hung_up = asyncio.Event()
        """Set when a client closes its connection."""
        self._handlers: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None
        self._thread: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._handle, "127.0.0.1", 0, limit=64 * 1024)
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        assert self._listening is not None
        self._listening.close()
        for task in list(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._listening.wait_closed()

    def __enter__(self) -> Self:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        self._thread = (loop, thread)
        asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        loop, thread = self._thread
        asyncio.run_coroutine_threadsafe(self.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        request = ServerRequest(head[0].split()[1], headers, json.loads(raw) if raw else {})
        self.seen.append(request)
        self.arrived.set()
        answer = self._choose(request)
        self.sent.append(answer)
        if answer.hang:
            await reader.readexactly(1)
        body = self._body(answer, request)
        streamed = answer.events is not None
        sent = {"Content-Type": "text/event-stream" if streamed else "application/json"}
        sent |= {"Connection": "close"} if streamed else {"Content-Length": str(len(body))}
        sent |= answer.headers
        lines = [f"HTTP/1.1 {answer.status} Whatever", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        for start in range(len(body) if answer.drip else 0):
            writer.write(body[start : start + 1])
            await writer.drain()
            await asyncio.sleep(answer.drip)
        writer.write(b"" if answer.drip else body[: answer.cut])
        await writer.drain()
        return answer.cut is None and not streamed

    def _choose(self, request: ServerRequest) -> ServerAnswer:
        if isinstance(self.answers, ServerAnswer):
            return self.answers
        if callable(self.answers):
            return self.answers(len(self.seen))
        for answer in self.answers:
            used_up = answer.times is not None and sum(given is answer for given in self.sent) >= answer.times
            if not used_up and (answer.when is None or answer.when(request.body)):
                return answer
        raise AssertionError(f"no answer applies to the request to {request.path}")

    def _body(self, answer: ServerAnswer, request: ServerRequest) -> bytes:
        text = self.text(request) if callable(self.text) else self.text

        def encoded(part: object) -> bytes:
            if isinstance(part, bytes):
                return part.replace(TEXT.encode(), json.dumps(text)[1:-1].encode())
            return json.dumps(_filled(part, text)).encode()

        if answer.events is None:
            return encoded(answer.body)
        return b"".join(b"data: " + encoded(event) + b"\n\n" for event in answer.events)


def _filled(part: object, text: str) -> object:
    """Return a body with `TEXT` replaced in all its strings."""
    if isinstance(part, str):
        return part.replace(TEXT, text)
    if isinstance(part, Mapping):
        return {key: _filled(value, text) for key, value in part.items()}
    return [_filled(value, text) for value in part] if isinstance(part, list | tuple) else part


def chat_completion(content: str | None = TEXT, *, finish: str | None = "stop", **more: object) -> dict[str, Any]:
    """A well-formed body of Chat Completions. `more` goes into its message; a `usage` among it replaces the usual one."""
    usage = more.pop("usage", {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15})
    message = {"role": "assistant", "content": content, **more}
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "stub-2026-01-01",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": usage,
    }
