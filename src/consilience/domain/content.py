"""Content addresses: the ids of texts, which follow from what they say."""

from __future__ import annotations

import binascii
import hashlib
from functools import lru_cache

MAX_CACHED_CHARS = 4_000
"""Digests of longer texts are not cached: a cache bounded by entries would keep megabytes of text in memory."""

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def text_id(text: str) -> str:
    """Return the content address: the first 16 bytes of the SHA-256 of the UTF-8 text, URL-safe base64 without padding."""
    return _short_text_id(text) if len(text) <= MAX_CACHED_CHARS else _digest_text(text)


def id_of(digest: bytes) -> str:
    """Return a content address of 16 bytes as `text_id` writes it."""
    return binascii.b2a_base64(digest, newline=False).translate(_URL_SAFE)[:22].decode()


def _digest_text(text: str) -> str:
    return id_of(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16])


_short_text_id = lru_cache(maxsize=1024)(_digest_text)
