"""Bounds what the HTTP clients of the provider libraries read, and has `answers.normalize` read it before them."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from consilience.models.answers import normalize
from consilience.models.bodies import ReplyUnreadable
from consilience.models.providers import is_loopback

MAX_REPLY_BYTES = 8_000_000
"""Bytes of one reply. Parsed JSON can take 20 times as much memory."""
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""How zlib reads the compressions that it knows."""


def bound_requests(model: object, max_bytes: int = MAX_REPLY_BYTES) -> None:
    """Make the HTTP client of a pydantic-ai model or provider refuse replies of more than `max_bytes`, and remove its timeout and,
    for this machine, its proxies: they cannot reach our loopback.

    The limiter ends a request at its deadline; the libraries' own timeout of 600 seconds would end a longer one earlier. A
    reply that is too large raises `ReplyUnreadable` inside the library. Providers create new clients when the event loop
    changes, so call this before each request; it changes a client once. Clients that the caller created are not changed,
    because they may serve other downloads, nor are those of providers without httpx (xAI, Bedrock, Hugging Face).
    """
    provider = getattr(model, "provider", model)
    client: Any = getattr(provider, "_own_http_client", None)
    if client is not None and _prepare not in client.event_hooks["request"]:
        client.event_hooks["request"].append(_prepare)
        client.event_hooks["response"].append(partial(_read_bounded, max_bytes=max_bytes))
        if is_loopback(_address_of(provider)):
            client._mounts = dict.fromkeys(client._mounts)


def _address_of(provider: Any) -> str:
    try:
        return str(provider.base_url)
    except Exception:  # some providers have no address
        return ""


async def _prepare(request: Any) -> None:
    """Ask for a reply without compression, since a few kilobytes may unpack to gigabytes, and wait for it without a timeout."""
    request.headers["Accept-Encoding"] = "identity"
    request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}


async def _read_bounded(response: Any, max_bytes: int) -> None:
    """Read the body of a response of httpx or httpx2 before the library does, which is given what `normalize` makes of it.

    Raises `ReplyUnreadable`. A reply that was whole when the connection broke is read.
    """
    library: Any = sys.modules[type(response).__module__.partition(".")[0]]
    unpack = _unpacker(response.headers.pop("Content-Encoding", "").strip().lower(), max_bytes)
    body = bytearray()
    broken: Exception | None = None
    try:
        async for piece in response.stream:
            body += unpack(piece)
            if len(body) > max_bytes:
                raise ReplyUnreadable(f"it has more than {max_bytes / 1e6:g} MB")
    except library.TransportError as error:
        broken = error
    await response.stream.aclose()
    content = bytes(body)
    content_type = response.headers.get("Content-Type", "")
    path = response.request.url.path
    read = normalize(path, response.status_code, content_type, content, is_broken=broken is not None)
    if read is not None:
        response.status_code, content = read
        response.headers["Content-Type"] = "application/json"
    elif broken is not None:
        raise broken
    response.stream = library.ByteStream(content)


def _unpacker(encoding: str, max_bytes: int) -> Callable[[bytes], bytes]:
    """Return what unpacks a body piece by piece, a little more than `max_bytes` at most. Raises `ReplyUnreadable`."""
    if encoding in ("", "identity"):
        return lambda piece: piece
    if encoding not in _WINDOW_BITS:
        raise ReplyUnreadable(f"it is compressed as {encoding[:40]!r}, which was not asked for")
    decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])

    def unpack(piece: bytes) -> bytes:
        try:
            return decompressor.decompress(piece, max_bytes + 1)
        except zlib.error:
            raise ReplyUnreadable(f"it is said to be compressed as {encoding!r}, and is not") from None

    return unpack
