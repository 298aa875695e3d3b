"""OpenAI-compatible servers on this machine: where they listen, and which of them answers now.

Only loopback addresses are ever probed, without proxies and without keys. On ports that other programs use too, the
server must say that it is what it is taken for: a gateway there might spend money, and one's own `consilience serve`
would ask itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

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
    """Where requests to a server of that kind go: its variable, for Ollama also `OLLAMA_HOST`, else its usual port."""
    server = SERVERS[provider]
    url = environ.get(server.variable, "").strip()
    if url:
        return url
    if provider == "ollama" and (host := environ.get("OLLAMA_HOST", "").strip()):
        return f"{_origin(host, server.port)}/v1"
    return f"http://127.0.0.1:{server.port}/v1"


def _origin(host: str, port: int) -> str:
    """`OLLAMA_HOST` as Ollama reads it: `host`, `host:port`, `:port` or a URL; "everywhere" becomes this machine."""
    parts = urlsplit(host if "//" in host else f"http://{host}")
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
    """The most preferred server that answers within `seconds` and has a model. Blocks so long at most; never raises."""
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
    import http.client
    import json

    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "127.0.0.1", parts.port, timeout=seconds)
    try:
        connection.request("GET", server.path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return ()
        listed = json.loads(response.read(_MOST_BYTES))
    finally:
        connection.close()
    entries = listed.get("models" if server.path == "/api/tags" else "data", [])
    names = [
        str(entry.get("name") or entry.get("id") or "")
        for entry in entries
        if not server.owner or entry.get("owned_by") == server.owner
    ]
    return tuple(name for name in names if name and _chats_here(name))


def _chats_here(name: str) -> bool:
    """Not an embedding model, and not one that the server merely passes on to its maker's cloud."""
    plain = name.lower()
    return "embed" not in plain and not plain.startswith(("bge-", "all-minilm")) and not plain.endswith("-cloud")
