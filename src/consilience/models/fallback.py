"""A chain of models: the next one is tried if a model fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from consilience.domain.errors import ProviderError
from consilience.domain.outcome import Thinks
from consilience.models.limiter import requests_of, retry_allowed
from consilience.models.port import Completion, Model, ModelRequest, add_usage, context_window, thinks


class Fallback:
    """Several models under one name, by default that of the first; each is tried if those before it failed.

    Retries belong inside (`Fallback([Limited(a), Limited(b)])`). Trying the next model is a further request and asks
    `may_retry`, unless no request was sent because an account is shut. `Completion.model` is the model that answered.
    Tokens and cost are those of all models, because a refusal is charged too.
    """

    def __init__(self, models: Sequence[Model], name: str | None = None) -> None:
        if not models:
            raise ValueError("a fallback needs at least one model")
        self.links = tuple(models)
        self.name = name or self.links[0].name

    @property
    def account(self) -> str:
        return self.links[0].account

    @property
    def thinks(self) -> Thinks:
        """`always` if one of the models always thinks: any of them may answer."""
        return max(map(thinks, self.links), key=("never", "optionally", "always").index)

    @property
    def context_window(self) -> int | None:
        """The smallest known one: any of the models may answer."""
        return min((window for model in self.links if (window := context_window(model))), default=None)

    async def complete(self, request: ModelRequest) -> Completion:
        """Return the first answer. Raises the last model's error, with the failures of the others in its detail."""
        sent, seconds_waited = 0, 0.0
        earlier_failures: list[str] = []
        charged: list[Completion] = []
        cost_unknown = False
        for model in self.links:
            failure: ProviderError
            try:
                completion = await model.complete(request)
            except ProviderError as error:
                failure = error
            else:
                if not earlier_failures:
                    return completion
                whole = add_usage([*charged, completion], cost_unknown=cost_unknown)
                return replace(
                    whole, requests=sent + completion.requests, waited=seconds_waited + completion.waited, fallback=True
                )
            if isinstance(failure.completion, Completion):
                charged.append(failure.completion)
            cost_unknown = cost_unknown or failure.cost_unknown
            sent += requests_of(failure)
            seconds_waited += failure.waited
            if model is self.links[-1] or (sent and not retry_allowed()):
                break
            earlier_failures.append(failure.detail)
        failure = failure.with_detail("; before that, ".join([failure.detail, *reversed(earlier_failures)]))
        paid = add_usage(charged, cost_unknown=cost_unknown) if charged else None
        vars(failure).update(requests=sent, waited=seconds_waited, completion=paid, cost_unknown=cost_unknown)
        raise failure

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """Max price among the models; None if one of them is unknown."""
        prices = [model.price(tokens_in, tokens_out) for model in self.links]
        known_prices = [price for price in prices if price is not None]
        return max(known_prices) if len(known_prices) == len(prices) else None

    async def close(self) -> None:
        for model in self.links:
            await model.close()
