"""The server of a test on a socket of its own, and the official client of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import openai
import uvicorn

from cli.loopback import MODEL
from consilience.domain.paths import journal_path
from consilience.executor import LocalExecutor
from consilience.journal.sqlite import SqliteStore
from consilience.server.app import build_app
from consilience.server.run import serving
from consilience.server.service import RunFailures, Sessions
from consilience.server.settings import ServerSettings
from consilience.testing import ScriptedModel

SETTINGS = ServerSettings(models=(MODEL,))


@dataclass(frozen=True)
class Served:
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
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


@contextmanager
def served(settings: ServerSettings = SETTINGS, *, model: ScriptedModel | None = None) -> Iterator[Served]:
    """Serve from this process; `model` stands for the model of that name."""
    with serving(settings) if model is None else _scripted(settings, model) as sessions, listening() as listener:
        server = uvicorn.Server(uvicorn.Config(build_app(sessions), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with client_of(url_of(listener)) as client:
                yield Served(url_of(listener), sessions, client)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def _scripted(settings: ServerSettings, model: ScriptedModel) -> Iterator[Sessions]:
    failures = RunFailures()
    store = SqliteStore(str(journal_path()))
    try:
        with LocalExecutor(store, model=model, on_end=failures.note) as executor:
            sessions = Sessions(store, executor, settings)
            sessions.failures = failures
            yield sessions
    finally:
        store.close()
