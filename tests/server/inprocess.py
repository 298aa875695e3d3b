"""A server of a test in this process, and clients of it: without a socket, asynchronous, and on a socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from cli.loopback import MODEL, PATIENCE
from consilience import Options
from consilience.configuration import own_config
from consilience.domain.paths import journal_path
from consilience.engine import seats
from consilience.executor import LocalExecutor
from consilience.journal.sqlite import SqliteStore
from consilience.journal.sqlite_accounts import SqliteAccounts
from consilience.server.access import Door
from consilience.server.access_settings import AccessSettings
from consilience.server.app import build_app
from consilience.server.callers import LOCAL, Caller
from consilience.server.owners import Owners, add_owner
from consilience.server.run_failures import RunFailures
from consilience.server.service import Sessions
from consilience.server.settings import ServerSettings
from consilience.testing.any_model import AnyModel

SETTINGS = ServerSettings(models=(MODEL,))
PUBLIC = "https://talks.example"
PROXY = "10.0.0.9"
PEOPLE = {"protocol": "vote", "settings": {"votes": 2}, "models": ["human"], "task": "Is it so?"}
"""A request for a session that waits for two people, and so needs no model."""


@dataclass(frozen=True)
class Served:
    """A server's parts."""

    app: FastAPI
    sessions: Sessions
    store: SqliteStore
    executor: LocalExecutor

    @property
    def access(self) -> AccessSettings:
        return self.sessions.settings.access

    def client(self, token: str = "", *, url: str = "", peer: str = "127.0.0.1", **headers: str) -> TestClient:
        """Return a client without redirects, by default at the address by which this server is reached."""
        base = url or (self.access.public_urls[0] if self.access.public_urls else "http://127.0.0.1:8765")
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        return TestClient(self.app, base_url=base, client=(peer, 50000), headers=sent, follow_redirects=False)

    def official_client(self, token: str, **headers: str) -> openai.OpenAI:
        """Return the official client of it."""
        client: Any = self.client()
        url = f"{client.base_url}/v1"
        return openai.OpenAI(base_url=url, api_key=token, max_retries=0, http_client=client, default_headers=headers)

    def begin(self, client: TestClient, body: Mapping[str, Any] = PEOPLE) -> str:
        """Begin a session, and wait until nothing more happens in it by itself."""
        answer = client.post("/api/sessions", json=body)
        assert answer.status_code == 201, answer.text
        self.settle()
        return str(answer.json()["session"])

    def settle(self) -> None:
        assert self.executor.join(PATIENCE)


@contextmanager
def served(
    directory: Path, settings: ServerSettings = SETTINGS, *, access: AccessSettings | None = None, models: Any = None
) -> Iterator[Served]:
    """`models` are the ports of the executor, by default those that the names in a session mean."""
    if access is not None:
        settings = settings.model_copy(update={"access": access})
    file = settings.access.token_file
    accounts = SqliteAccounts(Owners(file).allowance) if file is not None else None
    options = Options(endpoints=own_config().endpoints.name(settings.models), accounts=accounts)
    failures, store = RunFailures(), SqliteStore(directory / "journal.db")
    try:
        with LocalExecutor(
            store, running=settings.running, model=models, options=options, on_end=failures.note
        ) as executor:
            sessions = Sessions(store, executor, settings, options=options, failures=failures)
            yield Served(build_app(sessions), sessions, store, executor)
    finally:
        store.close()


def behind_proxy(directory: Path, *names: str, extra: str = "") -> tuple[AccessSettings, dict[str, str]]:
    """Return settings of a server behind a proxy with TLS, and tokens of these owners; `extra` ends the token file."""
    file = directory / "tokens.toml"
    tokens = {name: add_owner(file, name) for name in names}
    if extra:
        file.write_text(f"{file.read_text()}\n{extra}")
    access = AccessSettings(
        token_file=file,
        public_urls=(PUBLIC,),
        trusted_proxies=(PROXY,),  # type: ignore[arg-type]
        audit_log=directory / "audit.log",
    )
    return access, tokens


# --- asynchronous, for tests that watch what goes on


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
        await self.sessions.wait(self.caller[0], begun["session"])
        return str(begun["session"])


@asynccontextmanager
async def facing(
    directory: Path, *, models: Sequence[str] = (MODEL,), model: object = None, **settings: Any
) -> AsyncIterator[Face]:
    """`model` answers in place of the models of these names; people are people."""
    stub, resolve, caller = model or AnyModel(name=models[0]), seats.resolve, [LOCAL]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seats, "resolve", lambda name, **more: stub if name in models else resolve(name, **more))
        patch.setattr(Door, "caller", lambda door, scope, headers: caller[0])
        with served(directory, ServerSettings(models=tuple(models), **settings)) as server:
            transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=PATIENCE) as client:
                try:
                    yield Face(server.sessions, server.store, server.executor, client, caller)
                finally:
                    server.sessions.feeds.close()


# --- on a socket, for the official client


@dataclass(frozen=True)
class Chat:
    url: str
    sessions: Sessions
    client: openai.OpenAI


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A socket on a free port of 127.0.0.1. Clients may connect before there is a server, and wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)


@contextmanager
def chatting(settings: ServerSettings = SETTINGS, *, models: Any = None) -> Iterator[Chat]:
    """Serve the user's journal; `models` as for `served`."""
    with served(journal_path().parent, settings, models=models) as server, listening() as listener:
        listens = uvicorn.Server(uvicorn.Config(server.app, log_level="warning"))
        thread = threading.Thread(target=listens.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with client_of(url_of(listener)) as client:
                yield Chat(url_of(listener), server.sessions, client)
        finally:
            listens.should_exit = True
            thread.join()
