"""Settings of the provider libraries' HTTP clients: checked addresses and proxies, and a bound on the size of replies.

The libraries report a bad address late: as a failed connection after all retries, or as an exception of their own. Messages name
the variable and never its value, which may contain a password.

The libraries read a complete reply into memory. A few hundred kilobytes of gzip unpack to gigabytes, so the bound must apply while
the reply is read.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from consilience.domain.errors import SettingsError, UnavailableModel
from consilience.models.providers import find_provider

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_SOCKS = ("socks5", "socks5h")


def check_environment(provider: str, environ: Mapping[str, str]) -> None:
    """Check everything that the HTTP client of a provider reads from the environment.

    Raises `SettingsError` for an invalid address, proxy or file of certificates, and `UnavailableModel` for a SOCKS proxy if the
    library for it is missing.
    """
    for variable in find_provider(provider).addresses:
        if value := environ.get(variable, "").strip():
            check_address(value, variable)
    for variable in _PROXIES:
        value = environ.get(variable, "").strip()
        if value:
            url = value if "://" in value else f"http://{value}"
            check_address(url, variable, ("http", "https", *_SOCKS), "http://HOST:PORT")
            if url.lower().startswith(_SOCKS):
                _need_socks(variable)
    certificates = environ.get("SSL_CERT_FILE", "")
    if certificates and not os.path.isfile(certificates):
        raise SettingsError(
            f"SSL_CERT_FILE names no file: {certificates}", where="the environment", do="Correct or unset it."
        )


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
        return f"it does not begin with {' or '.join(f'{one}://' for one in schemes)}"
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


def _need_socks(variable: str) -> None:
    from importlib.util import find_spec

    if find_spec("socksio") is None:
        raise UnavailableModel(
            f"{variable} names a SOCKS proxy, for which a library is not installed",
            where="the environment",
            do="Run: pip install socksio",
        )


MAX_REPLY_BYTES = 8_000_000
"""Bytes of one reply, as sent and as unpacked. Parsed JSON can take 20 times as much memory."""
MAX_VECTORS_BYTES = 64_000_000
"""Bytes of one reply that holds vectors: about 1,000 texts with 3,072 dimensions, written as decimal numbers."""

_PIECE_BYTES = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS


class ReplyUnreadable(Exception):
    """A reply that was not read to its end, with the reason. Another request would not help."""


class _Stream(Protocol):
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Unpacker(Protocol):
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Message(Protocol):
    """A request or a response of `httpx` or `httpx2`."""

    headers: Any
    stream: Any
    extensions: Any


class _HttpClient(Protocol):
    event_hooks: dict[str, list[Callable[[Any], Awaitable[None]]]]


def bound_requests(model: object, max_bytes: int = MAX_REPLY_BYTES) -> None:
    """Make the HTTP client of a pydantic-ai model or provider refuse replies of more than `max_bytes`, and remove its timeout.

    The limiter ends a request at its deadline; the libraries' own timeout of 600 seconds would end a longer one earlier. A
    reply that is too large raises `ReplyUnreadable` inside the library. Providers create new clients when the event loop
    changes, so call this before each request; it changes a client once. Clients that the caller created are not changed,
    because they may serve other downloads, nor are those of providers without httpx (xAI, Bedrock, Hugging Face).
    """
    provider = getattr(model, "provider", model)
    client: _HttpClient | None = getattr(provider, "_own_http_client", None)
    if client is None or any(isinstance(hook, _ReplyBound) for hook in client.event_hooks["response"]):
        return
    client.event_hooks["request"].append(_prepare)
    client.event_hooks["response"].append(_ReplyBound(max_bytes))


async def _prepare(request: _Message) -> None:
    """Request the only compression that `_ReplyBound` unpacks, without a read timeout."""
    request.headers["Accept-Encoding"] = "gzip"
    request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}


class _ReplyBound:
    """A response hook of httpx, which runs before the body is read. It unpacks the body itself, in bounded pieces."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    async def __call__(self, response: _Message) -> None:
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "", "gzip", "x-gzip"):
            raise ReplyUnreadable(f"it is compressed as {encoding[:40]!r}, which was not asked for")
        if encoding.endswith("gzip"):
            del response.headers["Content-Encoding"]  # so that the library does not unpack it again
        library = sys.modules[type(response).__module__.partition(".")[0]]  # httpx, or httpx2
        pieces = _pieces(response.stream, encoding.endswith("gzip"), self._max_bytes)
        response.stream = _stream_class(library.AsyncByteStream)(pieces, response.stream)


def _stream_class(base: type) -> Callable[[AsyncIterator[bytes], _Stream], _Stream]:
    """Return a factory of streams of `pieces`, of the class that the response's library requires."""

    class BoundedStream(base):  # type: ignore[misc]
        def __init__(self, pieces: AsyncIterator[bytes], inner: _Stream) -> None:
            self._pieces, self._inner = pieces, inner

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self._pieces

        async def aclose(self) -> None:
            await self._inner.aclose()

    return BoundedStream


async def _pieces(stream: _Stream, gzip: bool, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body, unpacked if `gzip`. Raises `ReplyUnreadable` if it is too large or not gzip."""
    unpacker = zlib.decompressobj(_GZIP)
    received = unpacked = 0
    async for raw in stream:
        received += len(raw)
        for piece in _unpack(unpacker, raw) if gzip else (raw,):
            unpacked += len(piece)
            if max(received, unpacked) > max_bytes:
                break
            yield piece
        if max(received, unpacked) > max_bytes:
            raise ReplyUnreadable(f"it has more than {max_bytes / 1e6:g} MB")


def _unpack(unpacker: _Unpacker, raw: bytes) -> Iterator[bytes]:
    try:
        while piece := unpacker.decompress(raw, _PIECE_BYTES):
            yield piece
            raw = unpacker.unconsumed_tail
    except zlib.error as error:
        raise ReplyUnreadable(f"it is not valid gzip ({error})") from None
