"""A model with scripted replies, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from pydantic import BaseModel

from consilience.domain.outcome import Thinks
from consilience.models.port import Completion, ModelRequest


@dataclass(frozen=True, slots=True)
class Scripted:
    """A reply with its usage. Tokens default to a quarter of the characters; `tokens_thought` is part of `tokens_out`."""

    value: str | BaseModel
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_thought: int = 0
    tokens_cached: int = 0
    cost: float | None = 0.0
    finish_reason: str = "stop"


Answer = str | BaseModel | Scripted | Exception
ScriptedReplies = Callable[[ModelRequest], Answer] | Sequence[Answer]
Latency = float | Callable[[ModelRequest], float]


class ScriptedModel:
    """Replies from a function of the request, or from a list in order of dispatch.

    A reply is text, an instance of the requested type, a `Scripted`, or an exception to raise. With a list, an unexpected
    call raises `AssertionError`, and so does leaving `with ScriptedModel([...])` with unused replies. `latency` is seconds,
    or a function of the request that returns them. A model with `thinks` gets tokens for thinking with each request.
    `requests` lists the requests in order of dispatch.
    """

    def __init__(
        self,
        reply: ScriptedReplies,
        latency: Latency = 0.0,
        *,
        name: str = "scripted",
        price: float | None = 0.0,
        thinks: Thinks = "never",
        context_window: int | None = None,
    ) -> None:
        self._reply = reply if callable(reply) else None
        self._left: list[Answer] | None = None if callable(reply) else list(reply)
        self._latency = latency
        self._price = price
        self.thinks: Thinks = thinks
        self.context_window = context_window
        self.name = name
        self.account = name
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> Completion:
        self.requests.append(request)
        answer = self._answer(request)
        wait = self._latency(request) if callable(self._latency) else self._latency
        if wait > 0:
            await asyncio.sleep(wait)
        if isinstance(answer, Exception):
            raise answer
        scripted = answer if isinstance(answer, Scripted) else Scripted(answer)
        value = scripted.value
        text = value.model_dump_json(by_alias=True) if isinstance(value, BaseModel) else value
        return Completion(
            text=text,
            model=self.name,
            tokens_in=_estimate_tokens(request.text) if scripted.tokens_in is None else scripted.tokens_in,
            tokens_out=_estimate_tokens(text) if scripted.tokens_out is None else scripted.tokens_out,
            tokens_thought=scripted.tokens_thought,
            tokens_cached=scripted.tokens_cached,
            cost=scripted.cost,
            finish_reason=scripted.finish_reason,
        )

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return None if self._price is None else self._price * (tokens_in + tokens_out)

    async def close(self) -> None:
        return None

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._left:
            raise AssertionError(f"{len(self._left)} scripted replies were not used; the first is {self._left[0]!r}")

    def _answer(self, request: ModelRequest) -> Answer:
        if self._reply is not None:
            return self._reply(request)
        assert self._left is not None
        if not self._left:
            raise AssertionError(f"an unexpected call: {request.key} by {request.agent}")
        return self._left.pop(0)


def _estimate_tokens(text: str) -> int:
    return -(-len(text) // 4)
