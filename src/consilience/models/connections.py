"""Clients of providers that the models of many sessions share."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pydantic_ai.models import Model as LibraryModel
    from pydantic_ai.providers import Provider

    LibraryProvider: TypeAlias = Provider[Any]


class Connections:
    """The clients of the models that are opened with it: one for each provider, address, key and environment.

    A client sends the key that it was made with, to the address that it was made for, so no model gets a client with another key.
    Each has certificates of its own (about 1 MB of memory and 50 ms of CPU), which sessions that share it need once.

    Models may be opened on any thread. They send on one event loop at a time; on another one the clients are opened again.
    """

    def __init__(self) -> None:
        self._providers: dict[object, LibraryProvider] = {}
        self._opening = threading.Lock()
        self._held: list[LibraryProvider] = []
        """Providers that this object has entered: their clients stay open while no session uses them."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def provider(
        self, name: str, address: str, key: str | None, make: Callable[[], LibraryProvider]
    ) -> LibraryProvider:
        """Return the client of a provider, which `make` makes if there is none for this address and key.

        What the client library reads from the environment (keys, addresses, proxies) is part of what distinguishes clients.
        """
        identity = name, address, key, frozenset(os.environ.items())
        with self._opening:
            if identity not in self._providers:
                self._providers[identity] = make()
            return self._providers[identity]

    async def hold(self, model: LibraryModel) -> None:
        """Keep the client of a model open until `close`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            await self._release()
            self._loop = loop
        provider = model.provider
        if provider is not None and not any(held is provider for held in self._held):
            self._held.append(provider)
            await provider.__aenter__()

    async def close(self) -> None:
        """Close the clients that no model uses any more. Models that are opened later get others."""
        with self._opening:
            self._providers.clear()
        await self._release()

    async def _release(self) -> None:
        held, self._held = self._held, []
        closed_with_its_loop = self._loop is not None and self._loop.is_closed()
        for provider in held:
            with suppress(*((RuntimeError,) if closed_with_its_loop else ())):
                await provider.__aexit__(None, None, None)
