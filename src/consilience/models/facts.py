"""Everything that is known of a model by its name alone: price, context window, whether it thinks, the variables of its key.

Dry run, consent, limits on money, `doctor`, `review` and the models themselves all ask here. A fact comes from the first of these
that has it: what the user declares of the address, the model's entry in the row of its provider (`PROVIDERS`), the data of the
client library. No key is needed, and no network except loopback, where a server says what it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

from consilience.domain.model_names import NameKind, is_endpoint, kind_of
from consilience.domain.outcome import Thinks
from consilience.models import endpoints
from consilience.models.endpoints import FREE, NO_ENDPOINTS, Endpoints
from consilience.models.kinds import ask_kind, find_kind, is_added
from consilience.models.providers import (
    SERVERS,
    Declaration,
    account_of,
    check_environment,
    find_provider,
    is_loopback,
    is_own_host,
    key_variables,
    provider_at,
    set_key,
    valid_key_advice,
)
from consilience.models.server_models import NAMED_SECONDS, is_cloud, kept_answer, served_window
from consilience.models.weights import CONTEXT_TOKENS, MINILM

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

Prices: TypeAlias = "tuple[float, float] | Literal['listed', 'unknown']"
"""US dollars per million tokens (in, out), `listed` for the price data, or `unknown`."""

_OUTSIDE = ("program", "person", "workspace")
"""Kinds of names that are no model's."""
_OPENAI_COMPATIBLE = ("lmstudio", "llamacpp")
"""Servers on this machine that the client library does not know."""


_MAKERS = frozenset(
    {"openai", "anthropic", "google", "google-gla", "google-vertex", "deepseek", "mistral", "cohere", "xai"}
)
"""Accounts whose models the model layer knows. Others host models of many makers."""


@dataclass(frozen=True)
class ModelFacts:
    """What is known of one model, which is no chain. Properties raise `SettingsError` for an invalid value in the environment."""

    name: str
    known: Endpoints = field(default=NO_ENDPOINTS, repr=False)
    """What is declared of endpoints, and which ones are named."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    @cached_property
    def address(self) -> str | None:
        """The address that the user chose, in the name or in a variable of the provider."""
        return endpoints.address_of(self.name, self.environ)

    @cached_property
    def provider(self) -> str:
        """The provider. That of an address is the owner of its host, else the address."""
        if is_endpoint(self.name):
            return provider_at(self.address or "") or self.address or ""
        return self.name.strip().partition(":")[0]

    @cached_property
    def kind(self) -> NameKind:
        return kind_of(self.name)

    @cached_property
    def _added(self) -> Declaration | None:
        """What the kind of an installed package declares; None for a name of another kind."""
        if not is_added(self.provider):
            return None
        kind = find_kind(self.provider)
        assert kind is not None
        return ask_kind(self.provider, lambda: kind.declared(self.model))

    @property
    def model(self) -> str:
        """The model's name at its provider."""
        return self.name.strip().partition("#" if is_endpoint(self.name) else ":")[2]

    @cached_property
    def declared(self) -> Declaration:
        """What the user and the provider's row declare. The row's prices apply at the provider's own host only."""
        if self._added is not None:
            return self._added
        row = find_provider(self.provider).models.get(self.model, Declaration())
        if self.address is None:
            return row
        own = self.known.declaration_of(self.address, self.model, self.environ)
        return own.over(row if self._is_own else Declaration(None, row.context_window, row.thinks))

    @property
    def _is_own(self) -> bool:
        """Whether requests are sent to the provider's own host."""
        return self.address is None or is_own_host(self.provider, self.address)

    @property
    def _on_own_server(self) -> bool:
        """Whether the user's own server is asked. If it passes requests on to its maker's cloud, it adds the key itself."""
        if self.provider not in SERVERS or is_endpoint(self.name):
            return False
        host = urlsplit(endpoints.base_url(self.provider, self.environ)).hostname or ""
        return not host.endswith("ollama.com")

    @cached_property
    def paid(self) -> bool:
        """Whether a request may cost money: all may but those to the user's own models and servers. What a program spends is
        unknown and not counted. A loopback address is asked what server it is.
        """
        if self.kind in ("local", *_OUTSIDE) or self.provider in ("sentence-transformers", MINILM):
            return False
        if self.provider in SERVERS and not is_endpoint(self.name):
            return is_cloud(self.model) or not self._on_own_server
        if self.declared.prices is None and self.address is not None:
            key = self.known.key(self.address)
            return not (is_loopback(self.address) and endpoints.server_at(self.address, self.model, key))
        return self.declared.prices != FREE

    @cached_property
    def prices(self) -> Prices:
        """The declared prices, or those listed for the provider's own host; unknown elsewhere."""
        if not self.paid:
            return FREE
        return self.declared.prices or ("listed" if self._is_own and self._added is None else "unknown")

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        """Return US dollars of one request without cache reads; None if no price is known. Listed prices are a 0.5 s import."""
        if self.prices == "unknown":
            return None
        if self.prices != "listed":
            return in_dollars(self.prices, tokens_in, tokens_out)
        from pydantic_ai.messages import ModelResponse
        from pydantic_ai.usage import RequestUsage

        usage = RequestUsage(input_tokens=tokens_in, output_tokens=tokens_out)
        return listed_cost(
            ModelResponse(parts=[], usage=usage, model_name=self.model, provider_name=self._listing_provider)
        )

    @cached_property
    def context_window(self) -> int | None:
        """Max tokens of prompt and reply together; None if unknown. Listed windows are a 0.1 s import; the user's own server is
        asked."""
        if self.kind == "local":
            return CONTEXT_TOKENS
        if (window := self.declared.context_window) is not None:
            return window
        if self.own_server is not None:
            return self.served_window()
        if self.kind in _OUTSIDE or self._added is not None or not self._is_own:
            return None
        try:
            from genai_prices.data_snapshot import get_snapshot

            found = get_snapshot().find_provider_model(self.model, None, self._listing_provider, None)
        except (ImportError, LookupError):
            return None
        return found[1].context_window

    @property
    def own_server(self) -> tuple[str, str, str | None] | None:
        """Kind and address of the user's own server, and the key for it, if one computes the model there."""
        if self._on_own_server and not is_cloud(self.model):
            address = endpoints.base_url(self.provider, self.environ)
            return self.provider, address, set_key(self.key_variables, self.environ)
        if self.address is None or self.kind not in ("endpoint", "provider"):
            return None
        key = self.known.key(self.address, self.model)
        kind = endpoints.server_at(self.address, self.model, key)
        return (kind, self.address, key) if kind else None

    def served_window(self, *, anew: bool = False) -> int | None:
        """Return the context window that the user's own server gives to the model; None if it does not say, or there is none.

        Asks the server, for at most 3 s, but not on an event loop, where the last answer holds. It also holds for 30 s unless the
        server is asked `anew`.
        """
        if self.own_server is None:
            return None
        kind, address, key = self.own_server
        ask = partial(served_window, kind, address, self.model, NAMED_SECONDS, key)
        return kept_answer((kind, address, self.model, key), ask, anew=anew)

    @property
    def _listing_provider(self) -> str:
        return account_of(self.provider.removeprefix("gateway/"))

    @cached_property
    def thinks(self) -> Thinks:
        """Whether the model thinks. Imports its client library; `always` if that is missing."""
        if self.kind in ("local", *_OUTSIDE):
            return "never"
        if self._added is not None:
            return self._added.thinks or "never"
        account = account_of(self.provider) if self._is_own else ""
        return self.declared.thinks or thinks_of(self._profile or {}, self.name, account)

    @property
    def is_sent_level(self) -> bool:
        """Whether a level of thinking is sent to it, as far as is known."""
        if self._added is not None or self.declared.thinks is not None:
            return self.thinks != "never"
        return self._profile is None or bool(self._profile.get("supports_thinking", False))

    @cached_property
    def _profile(self) -> Mapping[str, object] | None:
        """What the client library knows of the model; None if the library is missing."""
        compatible = (
            is_endpoint(self.name) or self.provider in _OPENAI_COMPATIBLE or find_provider(self.provider).base_url
        )
        try:
            check_environment(self.provider, self.environ)
            if compatible:
                from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

                return OpenAICompatibleProvider.model_profile(self.model) or {}
            from pydantic_ai.providers import infer_provider_class

            return infer_provider_class(self.provider).model_profile(self.model) or {}
        except (ImportError, ValueError):
            return None

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables, one of which holds the key; empty if none is known."""
        if is_endpoint(self.name):
            return self.known.key_variables(self.address or "", self.model)
        if self._added is not None:
            return (self._added.key_variable,) if self._added.key_variable else ()
        return key_variables(self.provider)

    @property
    def key_advice(self) -> str:
        """What to do if the key is not accepted."""
        if is_endpoint(self.name):
            return self.known.key_advice(self.address or "", self.model)
        return valid_key_advice(self.key_variables)

    @property
    def withheld_key(self) -> str:
        """That a key is set which is not sent to this endpoint, and what to do. Empty if that is not so."""
        if not is_endpoint(self.name) or self.known.may_have_key(self.address or ""):
            return ""
        return self.key_advice if set_key(self.key_variables, self.environ) else ""

    @property
    def missing_key(self) -> str:
        """The variables of which one must hold the key, `A or B`, if none does; else empty. An unknown host may need no key."""
        variables = self.key_variables
        needs_none = is_endpoint(self.provider) or self._on_own_server or not (self.paid or self._added)
        if needs_none or set_key(variables, self.environ):
            return ""
        return " or ".join(variables)

    @property
    def unpriced(self) -> str:
        """The name under which an unknown price can be declared: `ADDRESS#MODEL`. Empty if the price is known."""
        return f"{self.address}#{self.model}" if self.prices == "unknown" and self.address else ""


def in_dollars(prices: tuple[float, float], tokens_in: int, tokens_out: int) -> float:
    return (tokens_in * prices[0] + tokens_out * prices[1]) / 1_000_000


def listed_cost(response: ModelResponse) -> float | None:
    """Return the cost in US dollars by the public price data; None if it has no such model, or the response no usage."""
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None


def thinks_of(profile: Mapping[str, object], name: str, account: str) -> Thinks:
    """Return whether a model thinks, by the model layer's profile. "never" is accepted only for its maker's own service, and at an
    address only for OpenAI's: elsewhere the profile is a guess from the name."""
    if profile.get("thinking_always_enabled", False):
        return "always"
    if profile.get("supports_thinking", False):
        return "optionally"
    is_known = account in _MAKERS and (account == "openai" or not is_endpoint(name))
    return "never" if is_known else "always"
