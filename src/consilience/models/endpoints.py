"""OpenAI-compatible endpoints: named by their address (`http://HOST:PORT/v1#MODEL`, also with https), or servers on this machine.

An address may lead anywhere, so its price is unknown unless configured, on loopback too, where a proxy may spend real money. A
server on loopback that says what it is (Ollama, LM Studio, llama.cpp, vLLM) is free.

The user's key is sent to an endpoint only if the user has named it: on the command line, in the environment, in their own
configuration or in a program. Other names may be another person's: those in the configuration of a directory, in a panel's file and
in the journal. Such an endpoint is asked without a key. The key of a known provider is sent only to that provider's own host.

Servers on this machine are found by probing: only loopback addresses, without proxies and keys. On ports that other programs use
too, the server must identify itself: a gateway there might spend money.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar, get_args
from urllib.parse import SplitResult, urlsplit

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.model_names import is_endpoint, links
from consilience.domain.outcome import Thinks
from consilience.domain.validation import did_you_mean
from consilience.models.providers import (
    ENDPOINT_KEY_VARIABLE,
    SERVERS,
    Declaration,
    Server,
    check_address,
    chosen_address,
    is_loopback,
    is_near,
    key_variables,
    provider_at,
    set_key,
    valid_key_advice,
)
from consilience.models.server_models import (
    NAMED_SECONDS,
    PROBE_SECONDS,
    answers_within,
    chat_models,
    is_cloud,
    kept_answer,
    list_models,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.providers import Provider
    from typing_extensions import TypeIs

T = TypeVar("T")

FREE_VARIABLE = "CONSILIENCE_FREE_ENDPOINTS"
"""Addresses of endpoints that cost nothing, separated by commas."""

EXAMPLES: Mapping[str, str] = {
    **{server.title: f"http://127.0.0.1:{server.port}/v1#{server.example}" for server in SERVERS.values()},
    "LiteLLM": "http://127.0.0.1:4000/v1#gpt-5-mini",
    "OpenRouter": "https://openrouter.ai/api/v1#deepseek/deepseek-r1",
}
"""A model's name at each kind of endpoint, at its usual address."""

FREE = (0.0, 0.0)
MAX_DOLLARS = 1_000_000
"""Max amount, and max price per million tokens."""


@dataclass(frozen=True)
class Endpoints:
    """What a user or a program declares of OpenAI-compatible endpoints, and which endpoints they name, to which a key may be sent.

    A value: methods return another one. A deliberation takes it in its options (`Options(endpoints=…)`), and completes it by the
    models that it is given and by the user's own `consilience.toml`. Deliberations of one process do not share it.
    """

    declared: Mapping[str, Declaration] = field(default_factory=dict)
    """Declarations by normalised address or full name (`ADDRESS#MODEL`)."""
    named: frozenset[str] = frozenset()
    """Addresses of the models that the user or the program names."""
    complete: bool = False
    """Whether nothing is added to it. The command line says so, because the engine gets names from files and the journal too."""

    def declare(
        self,
        address: str,
        *,
        free: bool | None = None,
        input_price: float | None = None,
        output_price: float | None = None,
        context_window: int | None = None,
        thinks: Thinks | None = None,
        key_variable: str | None = None,
    ) -> Endpoints:
        """Return these endpoints with a declaration of what is not known of one; it replaces an earlier one of that name.

        `address` is `http://HOST:PORT/v1`, or `http://HOST:PORT/v1#MODEL` for one model there. Prices are US dollars per million
        tokens, `context_window` is in tokens. `thinks` ("never", "optionally", "always") says whether the model is sent a level of
        thinking. `key_variable` names the environment variable of the key. Raises `SettingsError` for an invalid value.
        """
        given = {
            name: value for name, value in locals().items() if name not in ("self", "address") and value is not None
        }
        return self.declare_table(address, given, where="Endpoints.declare")

    def declare_table(self, name: str, table: object, where: str) -> Endpoints:
        """Return these endpoints with what `table`, found at `where`, declares of the endpoint or model `name`."""
        declaration = read_declaration(name, table, where)
        return replace(self, declared={**self.declared, normalize_address(name): declaration})

    def name(self, names: Iterable[str]) -> Endpoints:
        """Return these endpoints with the user or program naming those among these models. No effect if they are complete."""
        addresses = frozenset(address for name in names for address in addresses_in(name))
        return self if self.complete else replace(self, named=self.named | addresses)

    def over(self, other: Endpoints) -> Endpoints:
        """Return both, with these declarations taking precedence; these alone if they are complete."""
        if self.complete:
            return self
        return replace(self, declared={**other.declared, **self.declared}, named=self.named | other.named)

    def declaration_of(self, address: str, model: str, environ: Mapping[str, str]) -> Declaration:
        """Return what is declared of a model at an address: of the model, completed by the address."""
        free = _free(environ)
        result = Declaration()
        for key in (f"{address}#{model}", address):
            own = self.declared.get(key, Declaration())
            result = result.over(own).over(Declaration(FREE if key in free else None))
        return result

    def models_at(self, address: str) -> dict[str, Declaration]:
        """Return what is declared of single models at an address, by model."""
        prefix = f"{address}#"
        return {name.removeprefix(prefix): entry for name, entry in self.declared.items() if name.startswith(prefix)}

    def addresses(self) -> list[str]:
        """Return the addresses that are declared or in the environment, each once."""
        environ = os.environ
        known = [environ.get("OPENAI_BASE_URL", ""), *self.declared, *environ.get(FREE_VARIABLE, "").split(",")]
        declared = [normalize_address(name.partition("#")[0]) for name in known if name.strip()]
        return list(dict.fromkeys([*declared, *addresses_in(environ.get("CONSILIENCE_MODEL", ""))]))

    def may_have_key(self, address: str) -> bool:
        """Return whether a key may be sent to an address: to a known provider's own host, which gets that provider's key, and to
        an endpoint that the environment, a declaration or a model given by the user or the program names.
        """
        return provider_at(address) is not None or address in self.named or address in self.addresses()

    def key_variables(self, address: str, model: str = "") -> tuple[str, ...]:
        """Return the environment variables, one of which holds the key for an address: that declared for the model, for the
        address or, without `model`, for a model there; else those of the host's provider."""
        own = self.declaration_of(address, model, {}).key_variable
        if own is None and not model:
            own = next((entry.key_variable for entry in self.models_at(address).values() if entry.key_variable), None)
        return (own,) if own else key_variables(provider_at(address) or address)

    def key(self, address: str, model: str = "") -> str | None:
        """Return the key to send to an address, if it is set and the address may have it."""
        if not self.may_have_key(address):
            return None
        return set_key(self.key_variables(address, model), os.environ)

    def key_advice(self, address: str, model: str) -> str:
        """Return what to do if an endpoint does not accept the key, or got none because the user has not named it."""
        if self.may_have_key(address):
            return valid_key_advice(self.key_variables(address, model))
        return (
            f"No key is sent to {address}, which you have not named. If it may have your key, give --key-to "
            f'{shlex.quote(address)}, or write key_variable = "{ENDPOINT_KEY_VARIABLE}" below [endpoints."{address}"] into your '
            "own consilience.toml (consilience doctor shows its path); in Python give "
            f"Options(endpoints=consilience.Endpoints().declare({address!r}, key_variable={ENDPOINT_KEY_VARIABLE!r}))."
        )

    def only_named(self, names: Iterable[str]) -> list[str]:
        """Return the addresses among `names` that get a key only because they are named, each once."""
        unnamed = replace(self, named=frozenset())
        found = dict.fromkeys(address for name in names for address in addresses_in(name))
        return [a for a in found if not unnamed.may_have_key(a) and self.key(a) is not None]


NO_ENDPOINTS = Endpoints()
"""Nothing is declared, and only the environment names endpoints."""


def read_declaration(name: str, table: object, where: str) -> Declaration:
    """Return what `table` declares of the endpoint or model `name`. Raises `SettingsError`, which does not quote values."""
    if not is_endpoint(name) or "@" in name.partition("#")[0]:
        raise SettingsError(
            "an endpoint must be named by its address",
            where=where.replace(f'."{name}"', ""),
            do='Write [endpoints."http://127.0.0.1:8000/v1"], without a user name or password.',
        )
    values = dict(table) if isinstance(table, Mapping) else {}
    if unknown := next((key for key in values if key not in _KEYS), None):
        raise SettingsError(
            f"{name} has an unknown key {unknown!r}",
            where=where,
            do=f"{did_you_mean(unknown, _KEYS)}Known: {', '.join(_KEYS)}.",
        )
    for key, (is_valid, do) in _KEYS.items():
        if key in values and not is_valid(values[key]):
            raise SettingsError(f"invalid {key} of {name}", where=where, do=do)
    prices = [float(values[key]) for key in ("input_price", "output_price") if key in values]
    if not values or len(prices) == 1 or (prices and "free" in values):
        raise SettingsError(f"invalid price of {name}", where=where, do=_PRICES)
    return Declaration(
        FREE if "free" in values else (prices[0], prices[1]) if prices else None,
        values.get("context_window"),
        values.get("thinks"),
        values.get("key_variable"),
    )


def is_amount(value: object) -> TypeIs[int | float]:
    """Return whether a value is a number of dollars from 0 to `MAX_DOLLARS`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_DOLLARS


def _is_window(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", value) is not None


_PRICES = (
    "Write free = true, or input_price = 2.5 and output_price = 10 (US dollars per million tokens, "
    f"at most {MAX_DOLLARS:,})."
)
_KEYS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "free": (lambda value: value is True, _PRICES),
    "input_price": (is_amount, _PRICES),
    "output_price": (is_amount, _PRICES),
    "context_window": (_is_window, "Write context_window = 32000, a number of tokens."),
    "thinks": (lambda value: value in get_args(Thinks), 'Write thinks = "never", "optionally" or "always".'),
    "key_variable": (
        _is_variable,
        'Write key_variable = "CORP_API_KEY", the name of a variable in capitals, not the key.',
    ),
}
"""The keys of a declaration, each with a test of its value and what to write."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model at an address."""

    address: str
    """Normalised: scheme and host in lower case, no trailing slash."""
    model: str

    @property
    def account(self) -> str:
        """What shares a rate limit: the provider if the host is one's, else scheme, host and port."""
        return provider_at(self.address) or "{0.scheme}://{0.netloc}".format(urlsplit(self.address))


def parse_endpoint(name: str, known: Endpoints = NO_ENDPOINTS) -> Endpoint:
    """Return address and model of `http://HOST:PORT/v1#MODEL`. Raises `UnknownName`, without secrets.

    If the model is missing, a loopback server is asked for its models, for at most 3 s, with the key that `known` allows.
    """
    url, _, model = name.strip().partition("#")
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        _refuse("the address of an endpoint is not valid")
    if parts.username is not None or parts.password is not None:
        _refuse(
            f"the address of the endpoint at {parts.hostname} holds a user name or password, which would be recorded",
            f"Put a key into {ENDPOINT_KEY_VARIABLE}; or put the address into OPENAI_BASE_URL and write openai-chat:MODEL.",
        )
    if parts.query:
        _refuse(f"the address of the endpoint at {parts.hostname} has a query (?…)")
    if not usable or any(character.isspace() for character in url):
        _refuse("the address of an endpoint is not valid")
    address = normalize_address(url)
    if address.endswith("/chat/completions"):
        address = address.removesuffix("/chat/completions")
        _refuse(f"{url} is the path of a request, not the address of an endpoint", f"Write {address}#MODEL.")
    if not model.strip():
        raise _without_model(address, known.key(address))
    return Endpoint(address, model.strip())


def _refuse(problem: str, do: str = "Write http://HOST:PORT/v1#MODEL.") -> NoReturn:
    raise UnknownName(problem, do=do)


def _without_model(address: str, key: str | None) -> UnknownName:
    problem = f"{address} names an endpoint without a model"
    listing = list_models(address, NAMED_SECONDS, key) if is_loopback(address) else None
    if listing is not None and listing.models:
        names = ", ".join(listing.models[:10]) + (", …" if len(listing.models) > 10 else "")
        return UnknownName(problem, do=f"Write {address}#{listing.models[0]}. Models it lists: {names}.")
    return UnknownName(problem, do=f"Write {address}#MODEL, with a model that it serves.")


def normalize_address(url: str) -> str:
    """Return an address for comparison. User name, password and query are dropped; a model's name after `#` is kept."""
    url, hash_sign, model = url.strip().partition("#")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    netloc = f"[{host}]" if ":" in host else host
    if port is not None and port != {"http": 80, "https": 443}.get(parts.scheme):
        netloc += f":{port}"
    return SplitResult(parts.scheme, netloc, parts.path.rstrip("/"), "", "").geturl() + hash_sign + model


def canonical_name(name: str) -> str:
    """Return `ADDRESS#MODEL` with a normalised address; unchanged if that would drop a part that `parse_endpoint` refuses."""
    url, _, model = name.strip().partition("#")
    return name.strip() if re.search(r"[@?]", url) or not model else f"{normalize_address(url)}#{model.strip()}"


def address_of(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the address that the user chose for a model, in its name or in its provider's variable."""
    if is_endpoint(name):
        return normalize_address(name.partition("#")[0])
    url = chosen_address(name.strip().partition(":")[0], environ)
    return normalize_address(url) if url else None


def _free(environ: Mapping[str, str]) -> set[str]:
    """Return the addresses of `CONSILIENCE_FREE_ENDPOINTS`. Raises `SettingsError` for an invalid entry."""
    entries = [entry.strip() for entry in environ.get(FREE_VARIABLE, "").split(",") if entry.strip()]
    for entry in entries:
        if not re.match(r"https?://[^/\s#]", entry, re.IGNORECASE):
            raise SettingsError(
                f"{FREE_VARIABLE} has an entry that is not an address: {entry.rpartition('@')[2]}",
                where="the environment",
                do=f"Write {FREE_VARIABLE}=http://HOST:PORT/v1, several separated by commas.",
            )
    return set(map(normalize_address, entries))


def answering_name(name: str, model: str) -> str:
    """Return the full name of the model that answered, as the provider or endpoint of `name` reports it."""
    if is_endpoint(name):
        return f"{name.partition('#')[0]}#{model}"
    return f"{name.partition(':')[0]}:{model}"


def provider_for(endpoint: Endpoint, key: str | None, name: str = "") -> Provider[AsyncOpenAI]:
    """Return pydantic-ai's provider for an endpoint, called `name` or as its host. Without a key a placeholder is sent.

    Organization, project and headers that the client library reads from the environment are sent to OpenAI only.
    """
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    server = provider_at(endpoint.address)
    profile = OpenAIModelProfile(
        supports_json_object_output=False,  # asked for last, of a server that has refused a schema
        openai_chat_supports_multiple_system_messages=False,
        openai_chat_supports_max_completion_tokens=server == "openai",  # servers that only know max_tokens ignore it
    )
    provider = OpenAICompatibleProvider(
        name or server or urlsplit(endpoint.address).netloc, base_url=endpoint.address, api_key=key, profile=profile
    )
    if server != "openai":
        vars(provider.client).update(organization=None, project=None, _custom_headers={})
    return provider


def addresses_in(name: str) -> list[str]:
    """Return the addresses in the name of a model, which may be a chain `A|B`."""
    return [normalize_address(link.partition("#")[0]) for link in links(name) if is_endpoint(link)]


@dataclass(frozen=True, slots=True)
class DiscoveredServer:
    """A server that answered, and its local models in its own order."""

    provider: str
    server: Server
    address: str
    models: tuple[str, ...]


def base_url(provider: str, environ: Mapping[str, str]) -> str:
    """Return the address of a kind of server: its variable, for Ollama also `OLLAMA_HOST`, else its default port.

    Raises `SettingsError` for a variable with an invalid address.
    """
    server = SERVERS[provider]
    url = environ.get(server.variable, "").strip()
    if url:
        check_address(url, server.variable)
        return url
    if provider == "ollama" and (host := environ.get("OLLAMA_HOST", "").strip()):
        return f"{_origin(host, server.port)}/v1"
    return f"http://127.0.0.1:{server.port}/v1"


def _origin(host: str, port: int) -> str:
    """Read `OLLAMA_HOST` as Ollama does: `host`, `host:port`, `:port` or a URL; an unspecified address means this machine."""
    url = host if "//" in host else f"http://{'127.0.0.1' if host.startswith(':') else ''}{host}"
    check_address(url, "OLLAMA_HOST", example="HOST:PORT")
    parts = urlsplit(url)
    name = parts.hostname or "127.0.0.1"
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"
    default = port if "//" not in host else {"http": 80, "https": 443}.get(parts.scheme, port)
    return f"{parts.scheme}://{f'[{name}]' if ':' in name else name}:{parts.port or default}"


def server_at(address: str, model: str, key: str | None) -> str | None:
    """Return the kind of server in `SERVERS` that computes `model` at an address on this machine or in its network: it says so in
    its list of models, for which it is sent `key`. None for another server.

    Asks the server, for at most 3 s, but not on an event loop, where the last answer holds. A model that Ollama passes on to its
    maker's cloud is not computed here.
    """
    if not is_near(address) or urlsplit(address).path not in ("", "/v1") or is_cloud(model):
        return None
    listing = kept_answer((address, key), lambda: list_models(address, NAMED_SECONDS, key))
    owners = listing.owners if listing else {}
    own = {server.listed_owner: kind for kind, server in SERVERS.items()}
    named = {owners[name] for name in (model, f"{model}:latest") if name in owners} or set(owners.values())
    return own[min(named)] if named and named <= own.keys() else None


def probe(environ: Mapping[str, str], seconds: float = PROBE_SECONDS) -> DiscoveredServer | None:
    """Return the first server in order of preference that answers within `seconds` and has a model. Blocks that long at most.

    Raises `SettingsError` for an invalid address in the environment, and nothing else.
    """
    urls = {provider: base_url(provider, environ) for provider in SERVERS}
    local_urls = {provider: url for provider, url in urls.items() if is_loopback(url)}
    answers = answers_within(
        seconds,
        {provider: partial(chat_models, SERVERS[provider], url, seconds) for provider, url in local_urls.items()},
    )
    for provider, server in SERVERS.items():
        if models := answers.get(provider):
            return DiscoveredServer(provider, server, urlsplit(urls[provider]).netloc.rpartition("@")[2], models)
    return None
