"""The one small port between the engine and whatever answers a request.

Wrappers compose around it: fallback around limiter around provider. A model raises `ProviderError`s only;
anything else it raises is a defect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from consilience.domain.outcome import ThinkingLevel, Thinks

JsonSchema = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One sending. `system` and `user` are the rendered prompt; `schema` is the JSON Schema of the reply, or None for free text."""

    agent: str
    key: str
    system: str
    user: str
    returns: type | None = None
    schema: JsonSchema | None = None
    attempt: int = 1
    max_tokens: int = 1024
    """Max tokens of the answer, without the thinking before it."""
    temperature: float | None = None
    seed: int | None = None
    thinking: ThinkingLevel | None = None
    """How much a model that can think is to think; None leaves the provider's default."""
    thinking_tokens: int = 0
    """Tokens reserved for thinking, on top of `max_tokens`. A model that never thinks ignores it."""
    shared: tuple[int, ...] = ()
    """Lengths in characters of beginnings of `user` that other calls send too, shortest first."""

    @property
    def text(self) -> str:
        """The whole prompt as sent."""
        return f"{self.system}\n\n{self.user}" if self.system else self.user


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back. Tokens as the provider counted them; `cost` in US dollars, None where no price is known.

    `tokens_thought` is the part of `tokens_out` that the model used for thinking, which is no part of `text`.

    `requests` counts sendings including retries; `waited` is seconds spent in the limiter and between retries;
    `tokens_cached` is the part of `tokens_in` served from a prefix already seen; `finish_reason` is "stop",
    "length" (cut by `max_tokens`) or the provider's word; `model` is who really
    answered, a `fallback` where the first that was asked did not.
    """

    text: str
    model: str
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_thought: int = 0
    tokens_cached: int = 0
    cost: float | None = None
    finish_reason: str = "stop"
    requests: int = 1
    waited: float = 0.0
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """What one step of an agent with tools came to, as it is stored: a model's response or a tool's result.

    `form` says how to read the text: as it is, as JSON, or as what the tool wants done better. `requests` counts sendings.
    """

    text: str
    form: Literal["text", "json", "retry"] = "text"
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    cost: float | None = 0.0
    requests: int = 0
    tokens_thought: int = 0


class Steps(Protocol):
    """Through this an agent with tools takes its steps, so that each is recorded before it has effect, and none taken twice."""

    @property
    def last(self) -> bool:
        """Whether the next request to the model is the last there may be, so that it should bring the answer."""
        ...

    async def ask(self, digest: str, send: Callable[[], Awaitable[Taken]]) -> Taken:
        """One request to the agent's model, or what is recorded of it. Raises `ProviderError`s."""
        ...

    async def use(self, number: int, digest: str, work: Callable[[], Awaitable[Taken]]) -> Taken:
        """The tool asked for as `number` (from 1) in the latest response, or what is recorded of its work."""
        ...


@runtime_checkable
class Worker(Protocol):
    """An agent with tools: `work` answers a request in at most `max_steps` requests to its model, taken through `steps`."""

    @property
    def name(self) -> str: ...

    @property
    def max_steps(self) -> int: ...

    async def work(self, request: ModelRequest, steps: Steps) -> str: ...

    def price(self, tokens_in: int, tokens_out: int) -> float | None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Model(Protocol):
    """Answers requests. A subclass inherits defaults for all but `name` and `complete`."""

    @property
    def name(self) -> str:
        """The name it was requested by."""
        ...

    @property
    def account(self) -> str:
        """What shares one rate limit."""
        return self.name

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer, or raise a `ProviderError`. Cancellation abandons the request cleanly."""
        ...

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """US dollars for a request of that size; None if no price is known."""
        return None

    async def close(self) -> None:
        """Release connections and processes."""
        return


def context_window(model: object) -> int | None:
    """Tokens that a prompt and its reply may have together, from a model's optional attribute `context_window`; None if unknown."""
    found: int | None = getattr(model, "context_window", None)
    return found


def thinks(model: object) -> Thinks:
    """Whether a model thinks, from its optional attribute `thinks`; `never` for one that has none."""
    found: Thinks = getattr(model, "thinks", "never")
    return found
