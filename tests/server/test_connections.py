"""Sessions of a server share the clients of their models; no client sends a key that was meant for another address."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest

from cli.loopback import Provider, prose, provider
from consilience import Endpoints, Options, SqliteStore
from consilience.domain.events import SessionFinished
from consilience.executor import LocalExecutor
from consilience.models.connections import Connections
from consilience.models.port import ModelRequest
from consilience.models.registry import resolve
from consilience.server.bodies import NewSession
from consilience.server.callers import LOCAL
from consilience.server.service import Sessions
from consilience.server.settings import ServerSettings
from kit import certificates

PATIENCE = 300


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many clients and certificate stores were made."""
    counts: Counter[str] = Counter()
    client, load = httpx2.AsyncClient.__init__, ssl.SSLContext.load_verify_locations

    def counted_client(self: httpx2.AsyncClient, *arguments: Any, **named: Any) -> None:
        counts["clients"] += 1
        client(self, *arguments, **named)

    def counted_load(self: ssl.SSLContext, *arguments: Any, **named: Any) -> None:
        counts["certificates"] += 1
        load(self, *arguments, **named)

    monkeypatch.setattr(httpx2.AsyncClient, "__init__", counted_client)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted_load)
    monkeypatch.setattr(httpcore2, "default_ssl_context", certificates.read)
    return counts


def authorizations(server: Provider) -> list[str]:
    """The `Authorization` of each request from now on."""
    heard: list[str] = []

    def answer(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
        heard.append(headers.get("authorization", ""))
        return prose(body, headers)

    server.answer = answer
    return heard


@pytest.fixture
def servers() -> Iterator[tuple[Provider, Provider]]:
    with provider() as first, provider() as second:
        yield first, second


@pytest.mark.parametrize("name", ["openai-chat:stub", "endpoint"])
def test_server_makes_one_client_for_all_sessions_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Counter[str], servers: tuple[Provider, Provider], name: str
) -> None:
    address = f"{servers[0].url}/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    monkeypatch.setenv("CONSILIENCE_FREE_ENDPOINTS", address)
    model = f"{address}#stub" if name == "endpoint" else name
    options = Options(endpoints=Endpoints().name([model]), connections=Connections())
    with closing(SqliteStore(tmp_path / "j.db")) as store, LocalExecutor(store, options=options) as executor:
        sessions = Sessions(store, executor, ServerSettings(models=(model,)), options=options)
        for turn in range(3):  # between them no session is open
            for n in range(4):
                body = NewSession(task=f"Question {turn} {n}?", protocol="vote", settings={"votes": 2})
                asyncio.run(sessions.begin(LOCAL, body))
            assert executor.join(PATIENCE)
        ends = [store.ending(session) for session in store.sessions()]
    assert len(ends) == 12
    assert all(isinstance(end, SessionFinished) for end in ends)
    assert len(servers[0].asked) == 24
    assert made == {"clients": 1, "certificates": 1}


async def ask(name: str, connections: Connections, known: Endpoints) -> None:
    model = resolve(name, known=known, connections=connections)
    await model.complete(ModelRequest(agent="a", key="k", system="", user="2+2?"))
    await model.close()


async def test_shared_connections_send_each_key_to_its_own_address(
    monkeypatch: pytest.MonkeyPatch, servers: tuple[Provider, Provider]
) -> None:
    monkeypatch.setenv("FIRST_KEY", "key-of-first")
    monkeypatch.setenv("SECOND_KEY", "key-of-second")
    first, second = (f"{server.url}/v1" for server in servers)
    known = Endpoints().declare(first, key_variable="FIRST_KEY").declare(second, key_variable="SECOND_KEY")
    heard = [authorizations(server) for server in servers]
    connections = Connections()
    for address in (first, second, first):
        await ask(f"{address}#m", connections, known)
    assert heard == [["Bearer key-of-first"] * 2, ["Bearer key-of-second"]]
    await connections.close()


async def test_shared_connections_send_a_key_only_for_those_who_named_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, servers: tuple[Provider, Provider]
) -> None:
    monkeypatch.setenv("CONSILIENCE_ENDPOINT_KEY", "own-key")
    name = f"{servers[0].url}/v1#m"
    heard = authorizations(servers[0])
    connections = Connections()
    for known in (Endpoints().name([name]), Endpoints(), Endpoints().name([name])):
        await ask(name, connections, known)
    assert heard == ["Bearer own-key", "Bearer api-key-not-set", "Bearer own-key"]
    await connections.close()


async def test_shared_connections_follow_a_key_that_changes(
    monkeypatch: pytest.MonkeyPatch, servers: tuple[Provider, Provider]
) -> None:
    heard = [authorizations(server) for server in servers]
    connections = Connections()
    for key, server in (("old", servers[0]), ("new", servers[0]), ("other", servers[1])):
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", key)
        await ask("openai-chat:stub", connections, Endpoints())
    assert heard == [["Bearer old", "Bearer new"], ["Bearer other"]]
    await connections.close()


def test_connections_that_were_closed_are_opened_again_on_another_event_loop(
    monkeypatch: pytest.MonkeyPatch, made: Counter[str], servers: tuple[Provider, Provider]
) -> None:
    name = f"{servers[0].url}/v1#m"
    connections = Connections()

    async def twice() -> None:
        await ask(name, connections, Endpoints())
        await ask(name, connections, Endpoints())
        await connections.close()

    asyncio.run(twice())
    asyncio.run(twice())
    assert len(servers[0].asked) == 4
    assert made["clients"] == 2


async def test_models_share_a_client_and_not_what_they_learn(
    monkeypatch: pytest.MonkeyPatch, made: Counter[str], servers: tuple[Provider, Provider]
) -> None:
    address = f"{servers[0].url}/v1"
    known = Endpoints().declare(f"{address}#thinker", thinks="always").declare(f"{address}#other", thinks="never")
    connections = Connections()
    models = [resolve(f"{address}#{name}", known=known, connections=connections) for name in ("thinker", "other")]
    assert [model.thinks for model in models] == ["always", "never"]  # type: ignore[attr-defined]
    assert made["clients"] == 1
