"""What a client can keep open on a real socket: heads that do not end, more connections than there may be, answers unread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from consilience.server import connections
from consilience.server.connections import BoundedConnection, drop_stalled, max_connections

PATIENCE = 300
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"

Address = tuple[str, int]


async def greet(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def listening(app: Any, limit: int | None = None) -> AsyncIterator[Address]:
    config, state = Config(app, http=BoundedConnection, limit_concurrency=limit, lifespan="off"), ServerState()
    config.load()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        drop_stalled(listener)
        server = await asyncio.get_running_loop().create_server(
            lambda: BoundedConnection(config, state, {}), sock=listener
        )
        async with server:
            yield listener.getsockname()
            for connection in list(state.connections):
                connection.transport.abort()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What a connection still has to say, to its end."""
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("before", [b"", REQUEST], ids=["first request", "second request"])
async def test_head_that_does_not_end_is_given_up(before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    async with listening(greet) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(before)
        if before:
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")

        async def trickle() -> None:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n")
            while not reader.at_eof():
                writer.write(b"X")
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        assert await rest_of(reader) == b""
        trickling.cancel()
        writer.close()


async def test_connection_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    async with listening(greet) as address:
        reader, writer = await asyncio.open_connection(*address)
        assert await rest_of(reader) == b""
        writer.close()


async def test_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.01)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.1)
        await greet(scope, receive, send)

    async with listening(slow) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        assert (await asyncio.wait_for(reader.readuntil(b"hi"), PATIENCE)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_body_after_the_answer_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    async with listening(greet) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"hi")

        async def pour() -> None:
            while not reader.at_eof():
                writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0.01)

        pouring = asyncio.create_task(pour())
        assert await rest_of(reader) == b""
        pouring.cancel()
        writer.close()


async def test_connections_over_the_limit_are_closed_and_there_is_room_again_later() -> None:
    async with listening(greet, limit=4) as address:
        kept = [await asyncio.open_connection(*address) for _ in range(4)]
        reader, writer = await asyncio.open_connection(*address)
        assert await rest_of(reader) == b""
        writer.close()
        for _, other in kept:
            other.close()
            await other.wait_closed()
        while True:  # until the server has seen that they went
            reader, writer = await asyncio.open_connection(*address)
            writer.write(REQUEST)
            answer = await rest_of(reader) if reader.at_eof() else await asyncio.wait_for(reader.read(12), PATIENCE)
            writer.close()
            if answer == b"HTTP/1.1 200":
                return


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux drops such connections")
async def test_reader_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 1)
    gone = asyncio.Event()
    lost = BoundedConnection.connection_lost

    def connection_lost(self: BoundedConnection, exc: Exception | None) -> None:
        lost(self, exc)
        gone.set()

    monkeypatch.setattr(BoundedConnection, "connection_lost", connection_lost)

    async def pour(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.is_set():
            await send({"type": "http.response.body", "body": b"x" * 60_000, "more_body": True})

    async with listening(pour) as address:
        with closing(socket.socket()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, REQUEST)
            await asyncio.wait_for(gone.wait(), PATIENCE)


def test_as_many_connections_as_leave_files_for_journals_and_models() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        limit = max_connections()
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (before[0] <= now, most) == (True, before[1])
    assert 2 * limit <= now
