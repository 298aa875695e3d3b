"""Resolves a model's name to a model, and chooses a name if none is given.

A name is `local`, `local:NAME`, `local:/path/to.gguf`, a server on this machine (`ollama:`, `lmstudio:`, `llamacpp:`,
`vllm:`), a program on this machine (`exec:COMMAND`), any OpenAI-compatible endpoint (`http://HOST:PORT/v1#MODEL`), or any
`provider:model` of pydantic-ai; `openai-chat:` sends to the address in `OPENAI_BASE_URL`. Resolving a name touches no network.
A model is recorded and compared by its `canonical_name`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from consilience.domain.errors import SettingsError, UnavailableModel, UnknownName, UserError
from consilience.domain.outcome import Thinks
from consilience.models import endpoints, weights
from consilience.models.endpoints import NO_ENDPOINTS, Endpoints
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
    is_endpoint,
    is_loopback,
    key_variables,
    known_providers,
    provider_at,
)
from consilience.models.weights import CATALOGUE

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
WORKSPACE_PREFIX = "workspace:"


def is_workspace(name: str) -> bool:
    """Return whether the name is `workspace:DIR[#NAME]`: an agent of another process."""
    return name.lstrip().startswith(WORKSPACE_PREFIX)


def is_program(name: str) -> bool:
    return name.startswith("exec:")


def is_person(name: str) -> bool:
    """Return whether the name is `human` or `human:NAME`. A chain is not a person."""
    return name.partition(":")[0] == "human" and "|" not in name


def check_chain(links: Sequence[str]) -> None:
    """Raise `SettingsError` for a chain with a person or an outside agent: they may be awaited for days and do not fail over."""
    outside = "a person" if any(map(is_person, links)) else "an outside agent" if any(map(is_workspace, links)) else ""
    if len(links) > 1 and outside:
        raise SettingsError(
            f"{outside} cannot be part of a chain of models",
            where="|".join(links),
            do="Give it the seat alone (ID=human, ID=workspace:DIR), or give the seat to models and programs alone.",
        )


def _key(account: str) -> str | None:
    return next((key for variable in key_variables(account) if (key := os.environ.get(variable))), None)


def maker_of(name: str) -> tuple[str, str]:
    """Return provider and model of a name. An endpoint's provider is the owner of its host, else its address."""
    if is_endpoint(name):
        address, _, model = name.strip().partition("#")
        return provider_at(address) or address, model
    provider, _, model = name.partition(":")
    return provider, model


def endpoint_key(endpoint: endpoints.Endpoint, known: Endpoints) -> str | None:
    """Return the key to send to an endpoint. Raises `UnavailableModel` if it must have one, which is not set."""
    facts = ModelFacts(f"{endpoint.address}#{endpoint.model}", known)
    key = known.key(endpoint.address, endpoint.model)
    if key is None and facts.key_variables != (ENDPOINT_KEY_VARIABLE,):
        raise _unavailable(facts.name, endpoint.account, "", facts.key_variables)
    return key


def alternatives(name: str) -> list[str]:
    """Return the models of a name in the order in which they are tried: `openai:a|local` has two, a program's command one."""
    if name.lstrip().startswith("exec:"):
        return [name.strip()]
    return [part.strip() for part in name.split("|")]


def canonical_name(name: str) -> str:
    """Return the one spelling of a name: `local` is the default local model, and paths and addresses are whole.

    The name may be invalid. A path that is relative, or a link, is read on this machine.
    """
    return "|".join(map(_canonical_link, alternatives(name)))


def _canonical_link(link: str) -> str:
    provider, _, model = link.partition(":")
    if provider == "local":
        return f"local:{weights.canonical_name(model)}"
    if is_workspace(link):
        directory, hash_sign, agent = model.partition("#")
        path = os.path.realpath(os.path.expanduser(directory))
        return link if not directory.strip() or "#" in path else f"{WORKSPACE_PREFIX}{path}{hash_sign}{agent}"
    return endpoints.canonical_name(link) if is_endpoint(link) else link


def facts_of(name: str, known: Endpoints = NO_ENDPOINTS, environ: Mapping[str, str] | None = None) -> list[ModelFacts]:
    """Return what is known of each model of a name, in the order in which they are tried."""
    return [ModelFacts(link, known, os.environ if environ is None else environ) for link in alternatives(name)]


def paid(name: str, known: Endpoints = NO_ENDPOINTS, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a request to a model of that name may cost money."""
    return any(facts.paid for facts in facts_of(name, known, environ))


def is_embedded(name: str) -> bool:
    """Return whether a model of the chain is in the embedded catalogue. A GGUF file of the user's own is not."""
    parts = [link.partition(":") for link in alternatives(canonical_name(name))]
    return any(provider == "local" and model in CATALOGUE for provider, _, model in parts)


def thinks_by_name(name: str, known: Endpoints) -> Thinks:
    """Return whether a model of that name thinks."""
    return max((facts.thinks for facts in facts_of(name, known)), key=("never", "optionally", "always").index)


def window_by_name(name: str, known: Endpoints) -> int | None:
    """Return the context window (tokens) of the model of that name, the smallest known one of a chain; None if unknown."""
    return min(
        (window for facts in facts_of(name, known) if (window := facts.context_window) is not None), default=None
    )


def resolve(
    name: str, *, deadline: float | None = None, retries: int = RETRIES, known: Endpoints = NO_ENDPOINTS
) -> Model:
    """Return the model of that name, behind the limiter of its account unless it runs in a process of ours. Its name is canonical.

    `deadline` is seconds per request. Only an endpoint that `known` or the environment names gets a key. `A|B` is A, and B if A
    fails. Raises `UnknownName`, or `UnavailableModel` that names the
    variable to set or what to install. Reads the environment, not the network (except to list the models of a loopback endpoint
    in an error). Blocks for about 1 s while a client library is imported.
    """
    asked = canonical_name(name)
    if len(links := alternatives(asked)) > 1:
        from consilience.models.fallback import Fallback

        check_chain(links)
        chain = [resolve(link, deadline=deadline, retries=retries, known=known) for link in links]
        return Fallback(chain, name=asked)
    provider, colon, model = asked.partition(":")
    if provider == "local":
        from consilience.models.local import LocalModel

        return LocalModel(model)
    if is_program(asked):
        from consilience.models import program
        from consilience.models.limiter import Limited, Pace

        pace = Pace(initial_window=program.MAX_IN_FLIGHT, max_window=program.MAX_IN_FLIGHT)
        return Limited(program.ProgramModel(asked), deadline=deadline or program.DEADLINE_SECONDS, retries=0, pace=pace)
    if provider == "agent":
        raise UnavailableModel(
            f"{asked} is an agent with tools, which must be given from Python",
            do="Pass it again: resume(…, model={id: agent, …}).",
        )
    if is_endpoint(asked):
        provider = endpoints.parse_endpoint(asked, known).account
    elif not colon or not model or "," in model:
        raise _incomplete(asked, provider)
    elif provider not in PROVIDERS and not provider.startswith("gateway/"):
        raise _unknown_provider(asked, provider)
    from consilience.models.limiter import Limited
    from consilience.models.provider import ProviderModel

    library = _library_model(asked, provider, model, known)
    policy = connection_policy(provider, _url(library))
    inner = ProviderModel(asked, policy.account, library, facts=ModelFacts(asked, known))
    return Limited(inner, deadline=deadline or policy.deadline, retries=retries, pace=policy.pace)


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


def _library_model(full_name_asked: str, provider: str, model: str, known: Endpoints) -> LibraryModel:
    from pydantic_ai import exceptions as library
    from pydantic_ai.models import infer_model

    check_environment(provider, os.environ)

    try:
        if is_endpoint(full_name_asked):
            endpoint = endpoints.parse_endpoint(full_name_asked)
            server_provider = endpoints.provider_for(endpoint, endpoint_key(endpoint, known))
            return infer_model(f"openai-chat:{endpoint.model}", provider_factory=lambda _: server_provider)
        if base_url := find_provider(provider).base_url:
            if (key := _key(provider)) is None:
                raise _unavailable(full_name_asked, provider, "")
            compatible = endpoints.provider_for(
                endpoints.Endpoint(chosen_address(provider, os.environ) or base_url, model), key, name=provider
            )
            return infer_model(f"openai-chat:{model}", provider_factory=lambda _: compatible)
        if provider in SERVERS:
            kind = f"openai-chat:{model}" if provider in ("lmstudio", "llamacpp") else full_name_asked
            return infer_model(kind, provider_factory=lambda _: _server_provider(provider))
        return infer_model(full_name_asked)
    except ImportError:
        failure: UserError = _missing_extra(full_name_asked, provider)
    except Exception as error:
        theirs = type(error).__module__.partition(".")[0] in ("openai", "anthropic", "google", "groq", "botocore")
        if not theirs and not isinstance(error, library.UserError | ValueError | RuntimeError):
            raise
        failure = _unavailable(full_name_asked, provider, str(error))
    raise failure


def _server_provider(kind: str) -> Provider[AsyncOpenAI]:
    """Return pydantic-ai's provider for a server of the user's own; a key is sent only if its variable is set."""
    url = endpoints.base_url(kind, os.environ)
    key = _key(kind)
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


def _incomplete(asked: str, provider: str) -> UnknownName:
    """The error for a name without a provider, with the full name that was probably meant."""
    from difflib import get_close_matches

    if not asked:
        return UnknownName("the name of a model is empty", do="Use local, or PROVIDER:MODEL.")
    if "," in asked:
        return UnknownName(
            f"there is no model named {asked!r}", do="Name several models with --models A,B, or in Python as a list."
        )
    if provider in known_providers():
        return UnknownName(f"{asked!r} names a provider without a model", do=f"Write {provider}:MODEL.")

    near = get_close_matches(asked, list(CATALOGUE), n=1, cutoff=0.7)
    if near:
        return UnknownName(f"there is no model named {asked!r}", do=f"Did you mean local:{near[0]}?")
    makers = _makers()
    near = [f"{makers[model]}:{model}" for model in get_close_matches(asked, list(makers), n=2, cutoff=0.8)]
    near = near or _of_its_family(asked, makers)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    return UnknownName(
        f"there is no model named {asked!r}",
        do=f"{meant}A name is local, local:NAME, PROVIDER:MODEL or http://HOST:PORT/v1#MODEL.",
    )


def _makers() -> dict[str, str]:
    """Return the provider of every model name that pydantic-ai knows; the first of `PROVIDERS` if several have it."""
    from pydantic_ai.models import known_model_names

    order = {provider: place for place, provider in enumerate(PROVIDERS)}
    names = [name.split(":", 1) for name in known_model_names() if name.partition(":")[0] in order]
    makers: dict[str, str] = {}
    for provider, model in sorted(names, key=lambda pair: order[pair[0]]):
        makers.setdefault(model, provider)
    return makers


def _of_its_family(asked: str, makers: Mapping[str, str]) -> list[str]:
    family = asked.partition("-")[0] + "-"
    return next(([f"{provider}:{asked}"] for model, provider in makers.items() if model.startswith(family)), [])


def full_name(asked: str) -> str:
    """Return a model's name (`gpt-4o-mini`) with its provider; unchanged if no provider is known."""
    asked = asked.strip()
    if ":" in asked or asked in known_providers() or is_person(asked):
        return asked
    makers = _makers()
    return f"{makers[asked]}:{asked}" if asked in makers else next(iter(_of_its_family(asked, makers)), asked)


def _unknown_provider(asked: str, provider: str) -> UnknownName:
    from difflib import get_close_matches

    near = get_close_matches(provider, known_providers(), n=3, cutoff=0.5)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    return UnknownName(
        f"{asked!r}: there is no provider {provider!r}",
        do=f"{meant}For any OpenAI-compatible server write http://HOST:PORT/v1#MODEL, "
        "or set OPENAI_BASE_URL and write openai-chat:MODEL. "
        "If a session was recorded with a model object of this name, pass the object again from Python: model=… or replace=….",
    )


def _missing_extra(asked: str, provider: str) -> UnavailableModel:
    entry = PROVIDERS.get(provider, GATEWAY)
    package = "consilience" if entry.extra in _OWN_EXTRAS else "pydantic-ai-slim"
    return UnavailableModel(
        f"{asked} needs a client library that is not installed", do=f"Run: pip install '{package}[{entry.extra}]'"
    )


def _unavailable(asked: str, provider: str, reason: str, variables: Sequence[str] = ()) -> UnavailableModel:
    from consilience.models.redaction import scrub

    variables = variables or key_variables(provider)
    if variables and not any(os.environ.get(variable) for variable in variables):
        return UnavailableModel(
            f"{asked} needs a key, and none is set",
            where="the environment",
            do=f"Set {' or '.join(variables)}, or use another model: local needs none.",
        )
    return UnavailableModel(f"{asked} cannot be set up: {scrub(' '.join(reason.split()), [])[:300]}")


@dataclass(frozen=True, slots=True)
class Choice:
    """The model used if none was named."""

    name: str
    why: str
    """The reason, in a few words."""
    unspent_keys: Mapping[str, str] = field(default_factory=dict)
    """Variables with a key that this choice does not use, and what each would allow (`openai:MODEL`)."""


def choose(environ: Mapping[str, str], config: Mapping[str, object], known: Endpoints = NO_ENDPOINTS) -> Choice:
    """`CONSILIENCE_MODEL`, the configuration's `model`, a server on this machine that answers, `local`; in this order.

    A key in the environment alone is never used. Blocks for at most 0.3 s, only if neither of the first two is set: on an event
    loop call it in a thread. Raises `SettingsError` for an invalid address of a server.
    """
    configured = config.get("model")
    if name := environ.get("CONSILIENCE_MODEL", "").strip():
        return Choice(name, "CONSILIENCE_MODEL is set", _unspent(environ, name, known))
    if isinstance(configured, str) and (name := configured.strip()):
        return Choice(name, "the configuration file sets it", _unspent(environ, name, known))
    endpoint = endpoints.probe(environ)
    if endpoint is not None:
        name = f"{endpoint.provider}:{endpoint.models[0]}"
        return Choice(name, f"{endpoint.server.title} answers at {endpoint.address}", _unspent(environ, name, known))
    return Choice(
        "local", "no other model is set and no server answers on this machine", _unspent(environ, "local", known)
    )


def _unspent(environ: Mapping[str, str], chosen: str, known: Endpoints) -> dict[str, str]:
    variables_used = {variable for facts in facts_of(chosen, known, environ) for variable in facts.key_variables}
    unspent: dict[str, str] = {}
    for provider, entry in PROVIDERS.items():
        if provider in SERVERS or entry.account:
            continue
        for variable in entry.keys:
            if environ.get(variable) and variable not in variables_used:
                unspent.setdefault(variable, f"{provider}:MODEL")
    return unspent
