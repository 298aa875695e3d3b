"""OpenAI-compatible endpoints: named by their address (`http://HOST:PORT/v1#MODEL`, also with https), or servers on this machine.

An address may lead anywhere, so nothing is assumed about it: no key of a provider is sent to it unless the host is that
provider's, and its price is not known unless it is configured, on loopback too, where a proxy may spend real money.

Servers on this machine are found by probing. Only loopback addresses are ever probed, without proxies and without keys. On
ports that other programs use too, the server must say that it is what it is taken for: a gateway there might spend money,
and one's own `consilience serve` would ask itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias
from urllib.parse import SplitResult, urlsplit

from consilience.domain.errors import SettingsError, UnknownName
from consilience.models.http_client import check_address, chosen_address, is_own_host

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers import Provider

KEY_VARIABLE = "CONSILIENCE_ENDPOINT_KEY"
"""The key for endpoints named by address, except those of a known provider."""
FREE_VARIABLE = "CONSILIENCE_FREE_ENDPOINTS"
"""Addresses of endpoints that cost nothing, separated by commas."""

EXAMPLES: Mapping[str, str] = {
    "Ollama": "http://127.0.0.1:11434/v1#qwen3:8b",
    "vLLM": "http://127.0.0.1:8000/v1#Qwen/Qwen3-8B",
    "LiteLLM": "http://127.0.0.1:4000/v1#gpt-5-mini",
    "LM Studio": "http://127.0.0.1:1234/v1#qwen/qwen3-8b",
    "OpenRouter": "https://openrouter.ai/api/v1#deepseek/deepseek-r1",
    "llama.cpp": "http://127.0.0.1:8080/v1#qwen3-8b",
}
"""A model's name at each kind of endpoint, at its usual address."""

Prices: TypeAlias = "tuple[float, float] | Literal['listed', 'unknown']"
"""US dollars per million tokens (in, out), `listed` for those of the price data, or `unknown`."""

FREE = (0.0, 0.0)
_PROVIDER_HOSTS: Mapping[str, str] = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "google",
    "openrouter.ai": "openrouter",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "api.cerebras.ai": "cerebras",
    "api.x.ai": "xai",
    "api.moonshot.ai": "moonshotai",
    "router.huggingface.co": "huggingface",
    "ollama.com": "ollama",
}

_configured: dict[str, tuple[float, float]] = {}


def configure(prices: Mapping[str, tuple[float, float]]) -> None:
    """Set the prices of endpoints for this process, by address or full name (`ADDRESS#MODEL`); replaces earlier ones."""
    _configured.clear()
    _configured.update({_normal(name): dollars for name, dollars in prices.items()})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`address` is normalised: scheme and host in lower case, no slash at the end."""

    address: str
    model: str

    @property
    def account(self) -> str:
        """What its requests share a rate limit by: its provider if it has one, else scheme, host and port."""
        return provider_at(self.address) or "{0.scheme}://{0.netloc}".format(urlsplit(self.address))


def is_endpoint(name: str) -> bool:
    return name.lstrip().lower().startswith(("http://", "https://"))


def parse_endpoint(name: str) -> Endpoint:
    """Address and model of `http://HOST:PORT/v1#MODEL`. Raises `UnknownName`, which repeats no secret.

    If the model is missing, a server on loopback is asked which ones it has, for at most 0.3 s.
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
            f"Put a key into {KEY_VARIABLE}; or put the address into OPENAI_BASE_URL and write openai-chat:MODEL.",
        )
    if parts.query:
        _refuse(f"the address of the endpoint at {parts.hostname} has a query (?…)")
    if not usable or any(character.isspace() for character in url):
        _refuse("the address of an endpoint is not valid")
    address = _normal(url)
    if address.endswith("/chat/completions"):
        address = address.removesuffix("/chat/completions")
        _refuse(f"{url} is the path of a request, not the address of an endpoint", f"Write {address}#MODEL.")
    if not model.strip():
        raise _without_model(address)
    return Endpoint(address, model.strip())


def _refuse(what: str, do: str = "Write http://HOST:PORT/v1#MODEL.") -> NoReturn:
    raise UnknownName(what, do=do)


def _without_model(address: str) -> UnknownName:
    what = f"{address} names an endpoint without a model"
    listing = list_models(address, PROBE_SECONDS) if is_loopback(address) else None
    if listing is not None and listing.models:
        names = ", ".join(listing.models[:10]) + (", …" if len(listing.models) > 10 else "")
        return UnknownName(what, do=f"Write {address}#{listing.models[0]}. Models it lists: {names}.")
    return UnknownName(what, do=f"Write {address}#MODEL, with a model that it serves.")


def _normal(url: str) -> str:
    """An address as it is compared. User name, password and query are dropped; a model's name after `#` is kept."""
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


def provider_at(address: str) -> str | None:
    """The known provider whose host answers at an https address."""
    try:
        parts = urlsplit(address)
        usual = parts.scheme == "https" and parts.port in (None, 443)
    except ValueError:
        return None
    return _PROVIDER_HOSTS.get(parts.hostname or "") if usual else None


def address_of(name: str, environ: Mapping[str, str]) -> str | None:
    """The address a model is asked at if the user chose it: that of its name, or of its provider's variable."""
    if is_endpoint(name):
        return _normal(name.partition("#")[0])
    url = chosen_address(name.strip().partition(":")[0], environ)
    return _normal(url) if url else None


def prices_of(name: str, environ: Mapping[str, str]) -> Prices:
    """What a model costs: as configured for its full name or its address, as listed at its provider's own host, else unknown."""
    address = address_of(name, environ)
    if address is None:
        return "listed"
    model = name.strip().partition("#" if is_endpoint(name) else ":")[2]
    free = _free(environ)
    for known in (f"{address}#{model}", address):
        if known in _configured:
            return _configured[known]
        if known in free:
            return FREE
    own = provider_at(address) if is_endpoint(name) else is_own_host(name.strip().partition(":")[0], address)
    return "listed" if own else "unknown"


def _free(environ: Mapping[str, str]) -> set[str]:
    """The addresses of `CONSILIENCE_FREE_ENDPOINTS`. Raises `SettingsError` naming an entry that is none."""
    entries = [one.strip() for one in environ.get(FREE_VARIABLE, "").split(",") if one.strip()]
    for one in entries:
        if not re.match(r"https?://[^/\s#]", one, re.IGNORECASE):
            raise SettingsError(
                f"{FREE_VARIABLE} has an entry that is not an address: {one.rpartition('@')[2]}",
                where="the environment",
                do=f"Write {FREE_VARIABLE}=http://HOST:PORT/v1, several separated by commas.",
            )
    return {_normal(one) for one in entries}


def how_to_free(name: str, environ: Mapping[str, str]) -> str:
    """How to say that a model of unknown price is free; empty for any other."""
    if prices_of(name, environ) != "unknown":
        return ""
    return f"{FREE_VARIABLE}={address_of(name, environ)}, or an [endpoints] table in your own consilience.toml (docs/agents.md)."


def in_dollars(prices: tuple[float, float], tokens_in: int, tokens_out: int) -> float:
    return (tokens_in * prices[0] + tokens_out * prices[1]) / 1_000_000


def answered_by(name: str, model: str) -> str:
    """The full name of a model that the provider or endpoint of `name` says has answered."""
    if is_endpoint(name):
        return f"{name.partition('#')[0]}#{model}"
    return f"{name.partition(':')[0]}:{model}"


def provider_for(endpoint: Endpoint, key: str | None) -> Provider[AsyncOpenAI]:
    """pydantic-ai's provider for an endpoint. Without a key a placeholder is sent.

    What the client library takes from the environment for OpenAI itself is not sent: organization, project, and headers.
    """
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    known = provider_at(endpoint.address)
    profile = OpenAIModelProfile(
        supports_json_object_output=False,  # asked for last, of a server that has refused a schema
        openai_chat_supports_multiple_system_messages=False,
        openai_chat_supports_max_completion_tokens=known == "openai",  # servers that only know max_tokens ignore it
    )
    provider = OpenAICompatibleProvider(
        known or urlsplit(endpoint.address).netloc, base_url=endpoint.address, api_key=key, profile=profile
    )
    if known != "openai":
        vars(provider.client).update(organization=None, project=None, _custom_headers={})
    return provider


def library_model(endpoint: Endpoint, key: str | None) -> OpenAIChatModel:
    from pydantic_ai.models.openai import OpenAIChatModel

    return OpenAIChatModel(endpoint.model, provider=provider_for(endpoint, key))


def addresses(environ: Mapping[str, str] | None = None) -> list[str]:
    """Those that are configured or in the environment, each once."""
    environ = os.environ if environ is None else environ
    named = [environ.get("OPENAI_BASE_URL", ""), *_configured, *environ.get(FREE_VARIABLE, "").split(",")]
    return list(dict.fromkeys(_normal(name.partition("#")[0]) for name in named if name.strip()))


PROBE_SECONDS = 0.3
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server. `owner` is what its models must say they are owned by, where the port is a common one."""

    provider: str
    title: str
    variable: str
    port: int
    path: str = "/v1/models"
    owner: str = ""


SERVERS: Mapping[str, Server] = {
    server.provider: server
    for server in (
        Server("ollama", "Ollama", "OLLAMA_BASE_URL", 11434, "/api/tags"),
        Server("lmstudio", "LM Studio", "LMSTUDIO_BASE_URL", 1234),
        Server("llamacpp", "llama.cpp", "LLAMACPP_BASE_URL", 8080, owner="llamacpp"),
        Server("vllm", "vLLM", "VLLM_BASE_URL", 8000, owner="vllm"),
    )
}
"""In the order in which they are preferred."""


@dataclass(frozen=True, slots=True)
class Found:
    """A server that answered, and the names of the models it would run here, in its own order."""

    server: Server
    address: str
    models: tuple[str, ...]


def base_url(provider: str, environ: Mapping[str, str]) -> str:
    """Where requests to a server of that kind go: its variable, for Ollama also `OLLAMA_HOST`, else its usual port.

    Raises `SettingsError` for a variable that holds no web address.
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
    """`OLLAMA_HOST` as Ollama reads it: `host`, `host:port`, `:port` or a URL; "everywhere" becomes this machine."""
    url = host if "//" in host else f"http://{'127.0.0.1' if host.startswith(':') else ''}{host}"
    check_address(url, "OLLAMA_HOST", example="HOST:PORT")
    parts = urlsplit(url)
    name = parts.hostname or "127.0.0.1"
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"
    default = port if "//" not in host else {"http": 80, "https": 443}.get(parts.scheme, port)
    return f"{parts.scheme}://{f'[{name}]' if ':' in name else name}:{parts.port or default}"


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's own, by the look of it alone: no name is looked up."""
    import ipaddress

    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def probe(environ: Mapping[str, str], seconds: float = PROBE_SECONDS) -> Found | None:
    """The most preferred server that answers within `seconds` and has a model. Blocks so long at most.

    Raises `SettingsError` only, for an address in the environment that is not one.
    """
    import threading
    import time

    found: dict[str, Found] = {}

    def ask(server: Server, url: str) -> None:
        try:
            models = _models(server, url, seconds)
        except Exception:  # whatever listens there is not what we look for
            return
        if models:
            found[server.provider] = Found(server, urlsplit(url).netloc.rpartition("@")[2], models)

    urls = {provider: base_url(provider, environ) for provider in SERVERS}
    threads = [
        threading.Thread(target=ask, args=(SERVERS[provider], url), daemon=True)
        for provider, url in urls.items()
        if is_loopback(url)
    ]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    answered = dict(found)
    return next((answered[provider] for provider in SERVERS if provider in answered), None)


def _models(server: Server, url: str, seconds: float) -> tuple[str, ...]:
    """Names of the chat models the server at `url` lists. Raises whatever goes wrong."""
    status, listed = _get(url, server.path, seconds)
    if status != 200:
        return ()
    entries = listed.get("models" if server.path == "/api/tags" else "data", [])
    names = [
        str(entry.get("name") or entry.get("id") or "")
        for entry in entries
        if not server.owner or entry.get("owned_by") == server.owner
    ]
    return tuple(name for name in names if name and _chats_here(name))


def _get(url: str, path: str, seconds: float) -> tuple[int, Any]:
    """Status and JSON body (None unless the status is 200) of a GET to `path` at the host of `url`, without a key."""
    import http.client
    import json

    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "127.0.0.1", parts.port, timeout=seconds)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read(_MOST_BYTES)) if response.status == 200 else None
    finally:
        connection.close()


@dataclass(frozen=True, slots=True)
class Listing:
    """The models an endpoint lists. `problem` says why there are none, in a few words."""

    models: tuple[str, ...] = ()
    problem: str = ""


def list_models(url: str, seconds: float) -> Listing:
    """Ask any OpenAI-compatible endpoint for its models, without a key. Blocks for at most `seconds`; never raises."""
    import threading

    listings: list[Listing] = []
    thread = threading.Thread(target=lambda: listings.append(_listing(url, seconds)), daemon=True)
    thread.start()
    thread.join(seconds)  # looking up a name has no timeout of its own
    return listings[0] if listings else Listing(problem=f"does not answer within {seconds:g} s")


def _listing(url: str, seconds: float) -> Listing:
    try:
        status, listed = _get(url, f"{urlsplit(url).path.rstrip('/')}/models", seconds)
        if status != 200:
            wants_key = status in (401, 403)
            return Listing(problem=f"answers, but {'wants a key' if wants_key else 'lists no models'} (HTTP {status})")
        models = tuple(str(entry["id"]) for entry in listed["data"])
    except TimeoutError:
        return Listing(problem=f"does not answer within {seconds:g} s")
    except OSError as error:
        return Listing(problem=f"does not answer ({error.strerror or type(error).__name__})")
    except Exception:  # no HTTP, no JSON, or another shape
        return Listing(problem="answers, but lists no models")
    return Listing(models, "" if models else "answers, but lists no models")


def _chats_here(name: str) -> bool:
    """Not an embedding model, and not one that the server merely passes on to its maker's cloud."""
    plain = name.lower()
    return "embed" not in plain and not plain.startswith(("bge-", "all-minilm")) and not plain.endswith("-cloud")
