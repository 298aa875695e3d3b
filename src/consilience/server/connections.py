"""Connections of a server: what uvicorn lets a client keep open for as long as it likes is bounded here."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""Max time for the head of a request, from its first byte; for the first request from the opening of the connection."""
STALLED_SECONDS = 60
"""A client that takes nothing of an answer for so long is dropped."""
MAX_CONNECTIONS = 10_000


class BoundedConnection(H11Protocol):
    """A connection that ends if the head of a request does not arrive in time. A body has its own bounds (`bounds`)."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.abort()
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        self._await_head()
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        """Begin the time of a head, unless it has begun or a request is being answered."""
        if self._overdue is None and not self._is_answering():
            self._overdue = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


def drop_stalled(listener: socket.socket) -> None:
    """Let the system drop connections of a listener whose clients take nothing for `STALLED_SECONDS`, also while they are closed.

    Does nothing on a system that cannot.
    """
    if (option := cast("int | None", getattr(socket, "TCP_USER_TIMEOUT", None))) is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, STALLED_SECONDS * 1_000)


def max_connections() -> int:
    """Let this process open as many files as it may, and return for how many connections they suffice: half of them are left to
    journals and requests to models."""
    try:
        import resource
    except ImportError:  # Windows
        return MAX_CONNECTIONS
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MAX_CONNECTIONS if most == resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return min(MAX_CONNECTIONS, wanted // 2)
