"""A person in a seat. They have all the time they want; when they leave, the session can wait for days."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from consilience.engine.ports import Awaited, Later
from consilience.models.port import Completion, ModelRequest

Put = Callable[[ModelRequest], Awaitable[str]]
"""Puts a question to a person and gives their answer; raises `Later` when they leave without one."""


class Person:
    """`human`, or `human:NAME`. Without `put` nobody can be asked in this process, and the answer comes through the store."""

    def __init__(self, name: str = "human", put: Put | None = None) -> None:
        self.name = name
        self._put = put

    async def send(self, request: ModelRequest) -> Awaited:
        return Awaited(self._answer(request))

    async def collect(self, key: str, digest: str) -> None:
        """An answer given meanwhile is in the journal; a question without one is put again."""
        return

    async def _answer(self, request: ModelRequest) -> Completion:
        if self._put is None:
            raise Later
        return Completion(text=await self._put(request), model=self.name, cost=0.0)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def close(self) -> None:
        return None
