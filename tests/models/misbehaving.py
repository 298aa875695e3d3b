"""A real server on 127.0.0.1 that answers chat completions well, badly, late or not at all, and counts what it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

KEY = "zq7-wintermute-plum-4410"
"""An api key of no known shape, which must never be seen in an error."""


@dataclass(frozen=True)
class Answer:
    """What to send. `cut` sends only so many bytes of the body and hangs up; `hang` sends nothing, ever; `drip` sends a byte of
    the body every so many seconds."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: bool = False
    drip: float = 0.0


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def completion(content: str | None = "Four.", *, finish: str = "stop", **more: object) -> Answer:
    """A well-formed chat completion. `more` goes into its message; a `usage` among it replaces the usual one."""
    usage = more.pop("usage", {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15})
    body = {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "stub-2026-01-01",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **more}}
        ],
        "usage": usage,
    }
    return Answer(body=body)


def error(status: int, message: str = "no", *, code: str | None = None, **headers: str) -> Answer:
    """An error as OpenAI sends it; header names are written with underscores."""
    body = {"error": {"message": f"{message} (key {KEY})", "type": "error", "code": code}}
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


class Server:
    """Answers with `answer`, which may be a function of the number of the request, from 1."""

    def __init__(self, answer: Answer | Callable[[int], Answer]) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.url = ""
        self.arrived = asyncio.Event()
        self.hung_up = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.append(Seen(head[0].split()[1], headers, json.loads(raw) if raw else {}))
        self.arrived.set()
        answer = self.answer(len(self.seen)) if callable(self.answer) else self.answer
        if answer.hang:
            await reader.readexactly(1)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} Whatever", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        for start in range(len(body) if answer.drip else 0):
            writer.write(body[start : start + 1])
            await writer.drain()
            await asyncio.sleep(answer.drip)
        writer.write(b"" if answer.drip else body[: answer.cut])
        await writer.drain()
        return answer.cut is None

    async def stop(self) -> None:
        for task in list(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)


@asynccontextmanager
async def misbehaving(answer: Answer | Callable[[int], Answer]) -> AsyncIterator[Server]:
    server = Server(answer)
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0, limit=64 * 1024)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await server.stop()
        await listening.wait_closed()
