"""The providers: one row each with the variables of its key and address, its hosts, its client library, its local server, and its
models where no public data lists them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from urllib.parse import urlsplit

from consilience.domain.errors import SettingsError, UnavailableModel
from consilience.domain.model_names import is_endpoint
from consilience.domain.outcome import Thinks

ENDPOINT_KEY_VARIABLE = "CONSILIENCE_ENDPOINT_KEY"
"""The key for endpoints named by address, except those of a known provider."""


@dataclass(frozen=True, slots=True)
class Server:
    """A kind of server on this machine."""

    title: str
    variable: str
    """Environment variable of its address."""
    port: int
    example: str
    """A model that it may serve."""
    path: str = "/v1/models"
    owner: str = ""
    """Required `owned_by` of its models, if other programs use the port too."""
    listed_owner: str = ""
    """`owned_by` of its models in its list of OpenAI's form."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a row of `PROVIDERS` or a user declares of a model. None: nothing."""

    prices: tuple[float, float] | None = None
    """US dollars per million tokens (in, out)."""
    context_window: int | None = None
    """Max tokens of prompt and reply together."""
    thinks: Thinks | None = None
    """A model that thinks is sent the level of `--thinking`."""
    key_variable: str | None = None
    """Environment variable of the key, for an address."""

    def over(self, other: Declaration) -> Declaration:
        """Return this declaration, completed by another."""
        own = {name: value for name in _DECLARED if (value := getattr(self, name)) is not None}
        return replace(other, **own)


_DECLARED = tuple(field.name for field in fields(Declaration))


@dataclass(frozen=True, slots=True)
class Provider:
    """How a provider is reached."""

    keys: tuple[str, ...] = ()
    """Environment variables, one of which holds the key."""
    extra: str = "openai"
    """The optional dependency with its client."""
    account: str = ""
    """The provider whose rate limit and prices it shares; empty for its own."""
    host: str = ""
    """Host of its OpenAI-compatible endpoint. A model named by an https address there gets the provider's key."""
    hosts: str = ""
    """Pattern of further hosts of its own, where its listed prices apply over https."""
    addresses: tuple[str, ...] = ()
    """Environment variables from which the client library reads another address."""
    server: Server | None = None
    """If it runs on the user's machine."""
    base_url: str = ""
    """Address of an OpenAI-compatible service that pydantic-ai does not know. No other code is needed for it."""
    models: Mapping[str, Declaration] = field(default_factory=dict)
    """What is known of its models, by name, where the price data has none."""

    @property
    def own_host(self) -> str:
        """The host whose https addresses are this provider's."""
        return self.host or urlsplit(self.base_url).hostname or ""


_OPENAI = Provider(
    ("OPENAI_API_KEY",), host="api.openai.com", hosts=r"[a-z]+\.api\.openai\.com", addresses=("OPENAI_BASE_URL",)
)
_AZURE = Provider(
    ("AZURE_OPENAI_API_KEY",),
    hosts=r"[a-z0-9-]+\.(openai|cognitiveservices|services\.ai)\.azure\.com",
    addresses=("AZURE_OPENAI_ENDPOINT",),
)

PROVIDERS: Mapping[str, Provider] = {
    "openai": _OPENAI,
    "openai-chat": replace(_OPENAI, account="openai"),
    "openai-responses": replace(_OPENAI, account="openai"),
    "anthropic": Provider(
        ("ANTHROPIC_API_KEY",), "anthropic", host="api.anthropic.com", addresses=("ANTHROPIC_BASE_URL",)
    ),
    "google": Provider(
        ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        "google",
        host="generativelanguage.googleapis.com",
        addresses=("GOOGLE_GEMINI_BASE_URL",),
    ),
    "google-cloud": Provider(
        (), "google", hosts=r"([a-z0-9-]+-)?aiplatform\.googleapis\.com", addresses=("GOOGLE_VERTEX_BASE_URL",)
    ),
    "mistral": Provider(("MISTRAL_API_KEY",), "mistral", host="api.mistral.ai"),
    "groq": Provider(("GROQ_API_KEY",), "groq", host="api.groq.com", addresses=("GROQ_BASE_URL",)),
    "openrouter": Provider(("OPENROUTER_API_KEY",), host="openrouter.ai"),
    "deepseek": Provider(("DEEPSEEK_API_KEY",), host="api.deepseek.com"),
    "xai": Provider(("XAI_API_KEY",), "xai", host="api.x.ai"),
    "cohere": Provider(("CO_API_KEY",), "cohere", hosts=r"api\.cohere\.(com|ai)", addresses=("CO_BASE_URL",)),
    "together": Provider(("TOGETHER_API_KEY",), host="api.together.xyz"),
    "fireworks": Provider(("FIREWORKS_API_KEY",), host="api.fireworks.ai"),
    "cerebras": Provider(("CEREBRAS_API_KEY",), "cerebras", host="api.cerebras.ai"),
    "huggingface": Provider(("HF_TOKEN",), "huggingface", host="router.huggingface.co"),
    "azure": _AZURE,
    "azure-responses": replace(_AZURE, account="azure"),
    "bedrock": Provider(
        ("AWS_BEARER_TOKEN_BEDROCK",),
        "bedrock",
        hosts=r"bedrock-runtime(-fips)?\.[a-z0-9-]+\.amazonaws\.com",
        addresses=("AWS_BEDROCK_BASE_URL",),
    ),
    "moonshotai": Provider(
        ("MOONSHOTAI_API_KEY",),
        host="api.moonshot.ai",
        hosts=r"api\.moonshot\.cn",
        addresses=("MOONSHOTAI_BASE_URL",),
    ),
    "meta": Provider(("META_API_KEY",)),
    "alibaba": Provider(("ALIBABA_API_KEY", "DASHSCOPE_API_KEY")),
    "nebius": Provider(("NEBIUS_API_KEY",)),
    "ovhcloud": Provider(("OVHCLOUD_API_KEY",)),
    "sambanova": Provider(("SAMBANOVA_API_KEY",), hosts=r"api\.sambanova\.ai", addresses=("SAMBANOVA_BASE_URL",)),
    "vercel": Provider(("VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN")),
    "heroku": Provider(
        ("HEROKU_INFERENCE_KEY",), hosts=r"[a-z]+\.inference\.heroku\.com", addresses=("HEROKU_INFERENCE_URL",)
    ),
    "crusoe": Provider(("CRUSOE_API_KEY",)),
    "snowflake": Provider(("SNOWFLAKE_TOKEN",), "snowflake"),
    "zai": Provider(("ZAI_API_KEY",), "zai"),
    "github-copilot": Provider(
        ("GITHUB_COPILOT_API_KEY", "GITHUB_COPILOT_API_TOKEN", "COPILOT_GITHUB_TOKEN"),
        hosts=r"api(\.[a-z-]+)?\.githubcopilot\.com",
        addresses=("GITHUB_COPILOT_BASE_URL", "COPILOT_API_URL", "GITHUB_COPILOT_API_BASE"),
    ),
    "ollama": Provider(
        ("OLLAMA_API_KEY",),
        host="ollama.com",
        server=Server("Ollama", "OLLAMA_BASE_URL", 11434, "qwen3:8b", path="/api/tags", listed_owner="library"),
    ),
    "lmstudio": Provider(
        ("LMSTUDIO_API_KEY",),
        server=Server("LM Studio", "LMSTUDIO_BASE_URL", 1234, "qwen/qwen3-8b", listed_owner="organization_owner"),
    ),
    "llamacpp": Provider(
        ("LLAMACPP_API_KEY",),
        server=Server("llama.cpp", "LLAMACPP_BASE_URL", 8080, "qwen3-8b", owner="llamacpp", listed_owner="llamacpp"),
    ),
    "vllm": Provider(
        ("VLLM_API_KEY",),
        server=Server("vLLM", "VLLM_BASE_URL", 8000, "Qwen/Qwen3-8B", owner="vllm", listed_owner="vllm"),
    ),
}
"""In order of preference, where several answer or know a model."""

GATEWAY = Provider(
    ("PYDANTIC_AI_GATEWAY_API_KEY", "PAIG_API_KEY"),
    hosts=r"gateway(-[a-z]+)?\.pydantic\.dev",
    addresses=("PYDANTIC_AI_GATEWAY_BASE_URL", "PAIG_BASE_URL"),
)
"""The provider of names that begin with `gateway/`."""

SERVERS: Mapping[str, Server] = {name: row.server for name, row in PROVIDERS.items() if row.server is not None}

_BY_HOST = {row.own_host: name for name, row in PROVIDERS.items() if row.own_host and not row.account}
_UNKNOWN = Provider()


def find_provider(name: str) -> Provider:
    """Return the row of a provider; one without keys and hosts for an unknown name."""
    return GATEWAY if name.startswith("gateway/") else PROVIDERS.get(name, _UNKNOWN)


def known_providers() -> tuple[str, ...]:
    """Return the names allowed before the colon, sorted; `gateway/PROVIDER` works too."""
    return tuple(sorted(["local", *PROVIDERS]))


def key_variables(account: str) -> tuple[str, ...]:
    """Return the environment variables, one of which holds the key of a provider or account; empty if none is known."""
    return (ENDPOINT_KEY_VARIABLE,) if is_endpoint(account) else find_provider(account.partition("@")[0]).keys


def set_key(variables: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Return the key in the first of these variables that is set; None if none is."""
    return next((key for variable in variables if (key := environ.get(variable))), None)


def key_needed(name: str, variables: Sequence[str]) -> UnavailableModel:
    """Return the error for a model whose key is in none of these variables."""
    return UnavailableModel(
        f"{name} needs a key, and none is set",
        where="the environment",
        do=f"Set {' or '.join(variables)}, or use another model: local needs none.",
    )


def valid_key_advice(variables: Sequence[str]) -> str:
    """Return what to do if a key from one of these variables is not accepted."""
    return f"Set {' or '.join(variables)} to a valid key." if variables else "Give the server's key."


def account_of(provider: str) -> str:
    """Return the provider whose rate limit and prices a provider shares: its own name, as a rule."""
    return find_provider(provider).account or provider


def chosen_address(provider: str, environ: Mapping[str, str]) -> str:
    """Return the address that the environment sets for a provider's requests; empty if none."""
    return next((url for name in find_provider(provider).addresses if (url := environ.get(name, "").strip())), "")


def provider_at(address: str) -> str | None:
    """Return the known provider that owns the host of an https address."""
    return _BY_HOST.get(_https_host(address))


def is_own_host(provider: str, url: str) -> bool:
    """Return whether an address is the provider's own, where its listed prices apply."""
    row, host = find_provider(provider), _https_host(url)
    return bool(host) and (host == row.own_host or re.fullmatch(row.hosts, host) is not None)


def _https_host(url: str) -> str:
    """Return the host of an https address at the usual port; empty for another address."""
    try:
        parts = urlsplit(url)
        usual = parts.scheme == "https" and parts.port in (None, 443)
    except ValueError:
        return ""
    return parts.hostname or "" if usual else ""


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_SOCKS = ("socks5", "socks5h")


def check_environment(provider: str, environ: Mapping[str, str]) -> None:
    """Check everything that the HTTP client of a provider reads from the environment.

    The clients report a mistake late: as a failed connection after all retries, or as an exception of their own. Raises
    `SettingsError` for an invalid address, proxy or file of certificates, and `UnavailableModel` for a SOCKS proxy if the library
    for it is missing. Messages name the variable and never its value, which may contain a password.
    """
    for variable in find_provider(provider).addresses:
        if value := environ.get(variable, "").strip():
            check_address(value, variable)
    for variable in _PROXIES:
        value = environ.get(variable, "").strip()
        if value:
            url = value if "://" in value else f"http://{value}"
            check_address(url, variable, ("http", "https", *_SOCKS), "http://HOST:PORT")
            if url.lower().startswith(_SOCKS) and find_spec("socksio") is None:
                raise UnavailableModel(
                    f"{variable} names a SOCKS proxy, for which a library is not installed",
                    where="the environment",
                    do="Run: pip install socksio",
                )
    certificates = environ.get("SSL_CERT_FILE", "")
    if certificates and not os.path.isfile(certificates):
        raise SettingsError(
            f"SSL_CERT_FILE names no file: {certificates}", where="the environment", do="Correct or unset it."
        )


def proxy_of(url: str, environ: Mapping[str, str]) -> str:
    """Return which variable names the proxy for an address, and the proxy, without a password; empty if none does."""
    host, scheme = urlsplit(url).hostname or "", urlsplit(url).scheme
    direct = [
        entry.strip().lstrip(".") for entry in (environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
    ]
    if (
        not host
        or is_loopback(url)
        or any((entry and f".{host}".endswith(f".{entry}")) or entry == "*" for entry in direct)
    ):
        return ""
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    name = next((name for name in names if environ.get(name, "").strip()), "")
    if not name:
        return ""
    return f"{name} ({environ[name].strip().rpartition('://')[2].rpartition('@')[2].rstrip('/')})"


def is_loopback(url: str) -> bool:
    """Return whether the address is this machine's own, without looking up a name."""
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


def is_near(url: str) -> bool:
    """Return whether the address is this machine's own or that of its network, by the numbers in it."""
    import ipaddress

    try:
        return is_loopback(url) or ipaddress.ip_address(urlsplit(url).hostname or "").is_private
    except ValueError:
        return False


def check_address(
    url: str, variable: str, schemes: Sequence[str] = ("http", "https"), example: str = "http://HOST:PORT/v1"
) -> None:
    """Raise `SettingsError` with the mistake and an example if the address in a variable is invalid."""
    if mistake := _describe_mistake(url, schemes):
        raise SettingsError(
            f"{variable} is not a web address: {mistake}", where="the environment", do=f"Write {variable}={example}."
        )


def _describe_mistake(url: str, schemes: Sequence[str]) -> str:
    if any(character.isspace() or not character.isprintable() for character in url):
        return "it has a space or a control character in it"
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in schemes:
        return f"it does not begin with {' or '.join(f'{prefix}://' for prefix in schemes)}"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:
        return "its host is not valid"
    try:
        usable = parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        return "its port is not a number from 1 to 65535"
    return "" if host else "it has no host"
