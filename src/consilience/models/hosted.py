"""Opens models of providers and endpoints, through the client library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from consilience.domain.errors import UnavailableModel, UserError
from consilience.models import endpoints
from consilience.models.connections import Connections
from consilience.models.endpoints import Endpoints
from consilience.models.facts import ModelFacts
from consilience.models.port import Model
from consilience.models.providers import (
    ENDPOINT_KEY_VARIABLE,
    GATEWAY,
    PROVIDERS,
    SERVERS,
    account_of,
    check_environment,
    chosen_address,
    find_provider,
    is_loopback,
    key_needed,
    key_variables,
    set_key,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.models import Model as LibraryModel
    from pydantic_ai.providers import Provider

    from consilience.models.limiter import Pace

DEADLINE_SECONDS = 300.0
"""How long one request to a provider may take."""
SERVER_DEADLINE_SECONDS = 900.0
"""How long one request may take to a server on this machine, or to a model that thinks at length."""
RETRIES = 4
_MAX_LOCAL_IN_FLIGHT = 4.0
"""Max requests in flight to a server on this machine: time in its queue would count toward their deadlines."""
_OWN_EXTRAS = ("openai", "anthropic", "google", "local")


def open_hosted(
    facts: ModelFacts,
    provider: str,
    model: str,
    *,
    deadline: float | None,
    retries: int,
    connections: Connections | None = None,
) -> Model:
    """Return the model of a provider, or of an endpoint that is its own provider, behind the limiter of its account.

    Only an endpoint that the facts' `known` or the environment names gets a key. Without `connections` it has a client of its own.
    """
    from consilience.models.prompt_counts import WholePrompts
    from consilience.models.provider import ProviderModel

    library = _library_model(facts, provider, model, connections or Connections())
    policy = connection_policy(provider, _url(library))
    inner = ProviderModel(facts.name, policy.account, library, facts=facts, connections=connections)
    return WholePrompts(inner, deadline=deadline or policy.deadline, retries=retries, pace=policy.pace)


def endpoint_key(endpoint: endpoints.Endpoint, known: Endpoints) -> str | None:
    """Return the key to send to an endpoint. Raises `UnavailableModel` if it must have one, which is not set."""
    facts = ModelFacts(f"{endpoint.address}#{endpoint.model}", known)
    key = known.key(endpoint.address, endpoint.model)
    if key is None and facts.key_variables != (ENDPOINT_KEY_VARIABLE,):
        raise _unavailable(facts.name, endpoint.account, "", facts.key_variables)
    return key


@dataclass(frozen=True, slots=True)
class ConnectionPolicy:
    """How requests to one address are sent."""

    account: str
    """What shares a limiter."""
    deadline: float
    """Seconds per request."""
    pace: Pace | None = None
    """None for the default pace."""


def connection_policy(provider: str, url: str) -> ConnectionPolicy:
    """Return the policy for requests to a provider at `url`, for models and encoders."""
    from consilience.models.limiter import Pace

    account = _account(provider, url)
    if not is_loopback(url):
        return ConnectionPolicy(account, DEADLINE_SECONDS)
    pace = None if provider == "vllm" else Pace(initial_window=_MAX_LOCAL_IN_FLIGHT, max_window=_MAX_LOCAL_IN_FLIGHT)
    return ConnectionPolicy(account, SERVER_DEADLINE_SECONDS, pace)


def _library_model(facts: ModelFacts, provider: str, model: str, connections: Connections) -> LibraryModel:
    from pydantic_ai import exceptions as library
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider

    check_environment(provider, os.environ)
    full_name_asked = facts.name
    try:
        if facts.kind == "endpoint":
            endpoint = endpoints.parse_endpoint(full_name_asked)
            return _compatible(endpoint, endpoint_key(endpoint, facts.known), "", connections)
        if base_url := find_provider(provider).base_url:
            if (key := set_key(key_variables(provider), os.environ)) is None:
                raise _unavailable(full_name_asked, provider, "")
            endpoint = endpoints.Endpoint(chosen_address(provider, os.environ) or base_url, model)
            return _compatible(endpoint, key, provider, connections)
        if provider in SERVERS:
            kind = f"openai-chat:{model}" if provider in ("lmstudio", "llamacpp") else full_name_asked
            url, key = endpoints.base_url(provider, os.environ), set_key(key_variables(provider), os.environ)
            server = connections.provider(provider, url, key, lambda: _server_provider(provider, url, key))
            return infer_model(kind, provider_factory=lambda _: server)
        return infer_model(
            full_name_asked,
            provider_factory=lambda name: connections.provider(name, "", None, lambda: infer_provider(name)),
        )
    except ImportError:
        failure: UserError = _missing_extra(full_name_asked, provider)
    except Exception as error:
        theirs = type(error).__module__.partition(".")[0] in ("openai", "anthropic", "google", "groq", "botocore")
        if not theirs and not isinstance(error, library.UserError | ValueError | RuntimeError):
            raise
        failure = _unavailable(full_name_asked, provider, str(error))
    raise failure


def _compatible(endpoint: endpoints.Endpoint, key: str | None, name: str, connections: Connections) -> LibraryModel:
    """Return the model at an OpenAI-compatible address, of the provider `name` or of its host."""
    from pydantic_ai.models import infer_model

    provider = connections.provider(
        name, endpoint.address, key, lambda: endpoints.provider_for(endpoint, key, name=name)
    )
    return infer_model(f"openai-chat:{endpoint.model}", provider_factory=lambda _: provider)


def _server_provider(kind: str, url: str, key: str | None) -> Provider[AsyncOpenAI]:
    """Return pydantic-ai's provider for a server of the user's own."""
    if kind == "ollama":
        from pydantic_ai.providers.ollama import OllamaProvider

        return OllamaProvider(base_url=url, api_key=key)
    if kind == "vllm":
        from pydantic_ai.providers.vllm import VLLMProvider

        return VLLMProvider(base_url=url, api_key=key)
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    return OpenAICompatibleProvider(kind, base_url=url, api_key=key or "none")


def _url(model: LibraryModel) -> str:
    try:
        return model.provider.base_url if model.provider is not None else ""
    except Exception:  # some providers have no address before they have a client
        return ""


def _account(provider: str, url: str) -> str:
    """Return what shares one rate limit: the provider, with its host if the address is not the default one."""
    account = account_of(provider)
    if provider in SERVERS or (account == "openai" and os.environ.get("OPENAI_BASE_URL")):
        return f"{account}@{urlsplit(url).netloc.rpartition('@')[2]}"
    return account


def _missing_extra(asked: str, provider: str) -> UnavailableModel:
    entry = PROVIDERS.get(provider, GATEWAY)
    package = "consilience" if entry.extra in _OWN_EXTRAS else "pydantic-ai-slim"
    return UnavailableModel(
        f"{asked} needs a client library that is not installed", do=f"Run: pip install '{package}[{entry.extra}]'"
    )


def _unavailable(asked: str, provider: str, reason: str, variables: Sequence[str] = ()) -> UnavailableModel:
    from consilience.models.redaction import scrub

    variables = variables or key_variables(provider)
    if variables and set_key(variables, os.environ) is None:
        return key_needed(asked, variables)
    return UnavailableModel(f"{asked} cannot be set up: {scrub(' '.join(reason.split()), [])[:300]}")
