"""What the operator of a server decides about who may reach it, read from the operator's file as `access`."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

_HEADER = re.compile(r"[A-Za-z0-9-]+")


def _network(address: object) -> IPv4Network | IPv6Network:
    try:
        return ip_network(str(address))
    except ValueError:
        raise ValueError(
            f"{str(address)!r:.100} is no address or network of a proxy, such as 127.0.0.1 or 172.17.0.0/16"
        ) from None


ProxyNetwork = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]


class Smtp(BaseModel):
    """A mail server of the operator's, to which notices are given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str
    port: int = Field(default=587, gt=0, lt=65536)
    starttls: bool = True
    """Encrypt, and refuse a server that cannot."""
    user: str = ""
    """"" sends without a login. The password is in `CONSILIENCE_SMTP_PASSWORD`."""
    sender: str
    """The address that mails come from."""
    to: tuple[str, ...] = Field(min_length=1)
    """The addresses that all mails go to. No caller can name another one."""

    @field_validator("sender", "to")
    @classmethod
    def _one_line(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for address in (value,) if isinstance(value, str) else value:
            if "@" not in address or not address.isprintable():
                raise ValueError(f"{address!r} is no mail address")
        return value


class AccessSettings(BaseModel):
    """Who may reach the server, and how. The default is the user of this machine, from this machine, without a token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_file: Path | None = None
    """The owners and the digests of their tokens, as `owners.TokenFile` reads them. Needed to listen anywhere but on loopback."""
    public_urls: tuple[str, ...] = ()
    """The only addresses by which the server is reached, if there are any: each with its scheme, without a path."""
    trusted_proxies: tuple[ProxyNetwork, ...] = ()
    """Addresses or networks of the only peers whose `X-Forwarded-Proto` and user header count."""
    trusted_user_header: str | None = None
    """The header in which a trusted proxy names the user, such as `X-Forwarded-User`."""
    trusted_groups_header: str = "X-Forwarded-Groups"
    """The header in which it names the groups of the user, with commas between them."""
    audit_log: Path | None = None
    """Who did what, a line each. None: `audit.log` beside the journal."""
    webhook: str | None = None
    """The address to which notices are posted as JSON."""
    smtp: Smtp | None = None
    keep_days: float | None = Field(default=None, gt=0)
    """Days for which a finished session is kept. None: until it is removed. An owner's entry overrides it."""
    quota: int | None = Field(default=None, gt=0)
    """Bytes that the finished sessions of an owner may take; the oldest are removed. None: no bound. An owner's entry
    overrides it."""

    @field_validator("public_urls")
    @classmethod
    def _origins(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(origin_of(url) for url in urls)

    @field_validator("webhook")
    @classmethod
    def _address(cls, url: str | None) -> str | None:
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError(f"{url!r} is no address of HTTP")
        return url

    @field_validator("trusted_user_header", "trusted_groups_header")
    @classmethod
    def _header(cls, name: str | None) -> str | None:
        if name is not None and not _HEADER.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a header")
        return name

    @model_validator(mode="after")
    def _complete(self) -> AccessSettings:
        if self.trusted_user_header and not self.trusted_proxies:
            raise ValueError("trusted_user_header needs trusted_proxies, since anybody could send the header")
        if self.trusted_user_header and self.token_file is None:
            raise ValueError("trusted_user_header needs a token_file, which says what its users and groups may do")
        if (self.public_urls or self.trusted_proxies) and self.token_file is None:
            raise ValueError("public_urls and trusted_proxies need a token_file, since others reach the server by them")
        if self.trusted_proxies and not self.public_urls:
            raise ValueError("trusted_proxies need public_urls, which say by which names the proxies are reached")
        return self


def origin_of(url: str) -> str:
    """Return a URL as browsers send it as `Origin`: in lower case, without the port of its scheme. Raises `ValueError`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{url!r} must be http:// or https://, a name and nothing after it")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{url!r} must have nothing but scheme, name and port")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_default = port in (None, 443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{name}" + ("" if is_default else f":{port}")
