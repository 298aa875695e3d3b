"""The next model when one does not answer."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

from consilience.domain.errors import ProviderError
from consilience.domain.outcome import Thinks
from consilience.models.limiter import requests_of, retry_allowed
from consilience.models.port import Completion, Model, ModelRequest, context_window, thinks


class Fallback:
    """Several models under one name, by default that of the first; each later one is tried when those before it failed.

    A failure here is final: put retries inside (`Fallback([Limited(a), Limited(b)])`). Moving on is a further sending
    and asks `may_retry`, unless nothing was sent yet because an account is shut. `Completion.model` says who answered; its tokens
    and cost are those of all, since a refusal is paid for too.
    """

    def __init__(self, models: Sequence[Model], name: str | None = None) -> None:
        if not models:
            raise ValueError("a fallback needs at least one model")
        self.models = tuple(models)
        self.name = name or self.models[0].name

    @property
    def account(self) -> str:
        return self.models[0].account

    @property
    def thinks(self) -> Thinks:
        """What is to be reserved for, since any of them may answer: `always` if one always thinks."""
        return max(map(thinks, self.models), key=("never", "optionally", "always").index)

    @property
    def context_window(self) -> int | None:
        """The smallest that is known, since any of them may answer."""
        return min((window for model in self.models if (window := context_window(model))), default=None)

    async def complete(self, request: ModelRequest) -> Completion:
        """The first answer. Raises the last model's error, with what became of the others in its detail."""
        sent, waited = 0, 0.0
        earlier: list[str] = []
        paid: list[Completion] = []
        for model in self.models:
            failure: ProviderError
            try:
                completion = await model.complete(request)
            except ProviderError as error:
                failure = error
            else:
                if not earlier:
                    return completion
                whole = _together([*paid, completion])
                return replace(
                    whole, requests=sent + completion.requests, waited=waited + completion.waited, fallback=True
                )
            if isinstance(failure.completion, Completion):
                paid.append(failure.completion)
            sent += requests_of(failure)
            waited += failure.waited
            if model is self.models[-1] or (sent and not retry_allowed()):
                break
            earlier.append(failure.detail)
        failure = copy.copy(failure)  # a model may raise the same object each time
        if earlier:
            failure.detail = "; before that, ".join([failure.detail, *reversed(earlier)])
            failure.args = (failure.detail,)
        vars(failure).update(requests=sent, waited=waited, completion=_together(paid) if paid else None)
        raise failure

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """The dearest of them, since any may answer; None where one has no known price."""
        prices = [model.price(tokens_in, tokens_out) for model in self.models]
        known = [price for price in prices if price is not None]
        return max(known) if len(known) == len(prices) else None

    async def close(self) -> None:
        for model in self.models:
            await model.close()


def _together(completions: Sequence[Completion]) -> Completion:
    """The last one, with what all of them took."""
    costs = [one.cost for one in completions]
    return replace(
        completions[-1],
        tokens_in=sum(one.tokens_in for one in completions),
        tokens_out=sum(one.tokens_out for one in completions),
        tokens_thought=sum(one.tokens_thought for one in completions),
        tokens_cached=sum(one.tokens_cached for one in completions),
        cost=None if None in costs else math.fsum(cost for cost in costs if cost is not None),
    )
