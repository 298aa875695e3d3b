"""The application of a server in this process, with a scripted model, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from consilience.engine import seats
from consilience.executor import LocalExecutor
from consilience.journal.sqlite import SqliteStore
from consilience.server.access import Door
from consilience.server.app import build_app
from consilience.server.callers import LOCAL, Caller
from consilience.server.service import Sessions
from consilience.server.settings import ServerSettings
from consilience.testing.any_model import AnyModel

MODEL = "openai-chat:stub"
PATIENCE = 60


@dataclass
class Face:
    """A server's parts, and a client."""

    sessions: Sessions
    store: SqliteStore
    executor: LocalExecutor
    client: httpx.AsyncClient
    caller: list[Caller]
    """Who asks next; of one element."""

    async def get(self, path: str, status: int = 200) -> Any:
        return await self.call("GET", path, status=status)

    async def post(self, path: str, body: object, status: int = 200) -> Any:
        return await self.call("POST", path, status=status, json=body)

    async def call(self, method: str, path: str, *, status: int = 200, **more: Any) -> Any:
        answer = await self.client.request(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else answer.text

    async def run(self, **body: object) -> str:
        """Begin a session and wait for its end; return its id."""
        begun = await self.post("/api/sessions", {"protocol": "vote", "task": "Cats or dogs?", **body}, 201)
        async for _ in self.sessions.tail(self.caller[0], begun["session"]):
            pass
        return str(begun["session"])


@asynccontextmanager
async def facing(
    place: Path, *, models: Sequence[str] = (MODEL,), model: object = None, running: int = 8, **settings: Any
) -> AsyncIterator[Face]:
    """Serve in this process while the block runs."""
    store = SqliteStore(place / "j.db")
    seated, resolve = model or AnyModel(name=models[0]), seats.resolve
    patch = pytest.MonkeyPatch()
    patch.setattr(seats, "resolve", lambda name, **more: seated if name in models else resolve(name, **more))
    executor = LocalExecutor(store, running=running)
    sessions = Sessions(store, executor, ServerSettings(models=tuple(models), **settings))
    app = build_app(sessions)
    caller = [LOCAL]
    patch.setattr(Door, "caller", lambda door, scope, headers: caller[0])
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=PATIENCE) as client:
            yield Face(sessions, store, executor, client, caller)
    finally:
        sessions.feeds.close()
        executor.close()
        store.close()
        patch.undo()
