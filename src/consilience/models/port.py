"""The port between the engine and a model. Wrappers compose around it: fallback around limiter around provider.

A model raises only `ProviderError`s; any other exception is a defect.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

from consilience.domain.outcome import ThinkingLevel, Thinks

T = TypeVar("T")

JsonSchema = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model. `system` and `user` are the rendered prompt."""

    agent: str
    key: str
    """Key of the call."""
    system: str
    user: str
    returns: type | None = None
    """Type of the reply."""
    schema: JsonSchema | None = None
    """JSON Schema of the reply; None for free text."""
    attempt: int = 1
    """1, or the number of the corrective request."""
    max_tokens: int = 1024
    """Max tokens of the answer, without thinking."""
    temperature: float | None = None
    seed: int | None = None
    thinking: ThinkingLevel | None = None
    """Level of thinking for a model that can think; None for the provider's default."""
    thinking_tokens: int = 0
    """Tokens reserved for thinking, on top of `max_tokens`. A model that never thinks ignores it."""
    shared: tuple[int, ...] = ()
    """Lengths in characters of prefixes of `user` that other calls share, shortest first."""
    session: str = ""
    """Id of the session."""
    for_person: str = ""
    """The prompt in the words for a person, if one is in the seat."""
    digest: str = ""
    """Names this request of this session: the same if a resumed session repeats it."""

    @property
    def text(self) -> str:
        """The complete prompt."""
        return f"{self.system}\n\n{self.user}" if self.system else self.user


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer and what it cost. Tokens are those that the provider counted."""

    text: str
    """The answer, without thinking."""
    model: str
    """The model that answered."""
    tokens_in: int = 0
    tokens_out: int = 0
    """Tokens written, including those of thinking."""
    tokens_thought: int = 0
    """The part of `tokens_out` used for thinking."""
    tokens_cached: int = 0
    """The part of `tokens_in` served from a known prefix."""
    cost: float | None = None
    """US dollars; None if no price is known."""
    finish_reason: str = "stop"
    """"stop", "length" (cut at `max_tokens`), or the provider's word."""
    requests: int = 1
    """Requests sent, including retries."""
    waited: float = 0.0
    """Seconds spent in the limiter and between retries."""
    fallback: bool = False
    """Whether a model other than the first of a chain answered."""
    requeued: int = 0
    """How often the ticket of an outside agent was offered again before it was answered."""
    notes: tuple[str, ...] = ()
    """What is sent otherwise than asked for from this reply on, because the server refuses it; each is said once."""
    uncounted: int = 0
    """About how many tokens of the prompt were not counted in `tokens_in`, if they are many and nobody knows why; else 0."""


def add_usage(completions: Sequence[Completion], *, cost_unknown: bool = False) -> Completion:
    """The last completion, with the usage of all of them. With `cost_unknown` another request may have cost money too."""
    costs = [completion.cost for completion in completions]
    return replace(
        completions[-1],
        tokens_in=sum(completion.tokens_in for completion in completions),
        tokens_out=sum(completion.tokens_out for completion in completions),
        tokens_thought=sum(completion.tokens_thought for completion in completions),
        tokens_cached=sum(completion.tokens_cached for completion in completions),
        cost=None if cost_unknown or None in costs else math.fsum(cost for cost in costs if cost is not None),
    )


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step of an agent with tools, as it is stored: a model's response or a tool's result."""

    text: str
    form: Literal["text", "json", "retry"] = "text"
    """How to read the text; "retry" is the tool's request for a correction."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    cost: float | None = 0.0
    requests: int = 0
    """Requests sent, including retries."""
    tokens_thought: int = 0


class Steps(Protocol):
    """Records each step of an agent with tools before it has effect, so that no step is repeated."""

    @property
    def last(self) -> bool:
        """Whether the next request to the model is the last allowed one, which must give the answer."""
        ...

    async def ask(self, digest: str, send: Callable[[], Awaitable[StepResult]]) -> StepResult:
        """Make a request to the agent's model, or return the recorded result. Raises `ProviderError`s."""
        ...

    async def use(self, number: int, digest: str, work: Callable[[], Awaitable[StepResult]]) -> StepResult:
        """Run the tool call `number` (from 1) of the latest response, or return the recorded result."""
        ...


@runtime_checkable
class Worker(Protocol):
    """An agent with tools. `work` answers a request in at most `max_steps` requests to its model, made through `steps`."""

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

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """The name it was requested by."""
            ...
    else:
        name: str  # a property would refuse `self.name = …` in a subclass

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
    """Return the max tokens of prompt and reply together, from the optional attribute `context_window`; None if unknown."""
    window: int | None = getattr(model, "context_window", None)
    return window


def links(model: T) -> Sequence[T]:
    """Return the models of a chain, from the optional attribute `links`; else the model itself."""
    chain: Sequence[T] = getattr(model, "links", (model,))
    return chain


def thinks(model: object) -> Thinks:
    """Return whether a model thinks, from the optional attribute `thinks`; `never` without it."""
    answer: Thinks = getattr(model, "thinks", "never")
    return answer
