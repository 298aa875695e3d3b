"""The certificates of authorities, read once for a process: each HTTP client reads them, which takes 25 to 50 ms of CPU."""

from __future__ import annotations

import os
import ssl
from functools import cache

import httpcore2

read = httpcore2.default_ssl_context
"""How a client reads them that shares nothing."""


@cache
def _shared(trust_env: bool, *named: str | None) -> ssl.SSLContext:
    return read(_trust_env=trust_env)


def share_certificates() -> None:
    """Read them, and give all clients of httpx2 for which the environment names the same certificates one context."""

    def context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return _shared(_trust_env, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))

    httpcore2.default_ssl_context = context
    context()
