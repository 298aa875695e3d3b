"""The gate that every request passes before any route: where it comes from, by which name, and who asks.

One ASGI layer around the whole application, so that a route that somebody adds is closed until it is named in `OPEN`. It puts the
caller into the scope (`caller_of`), or what a link opens (`link_of`). Errors are answered here, in the form of all others.

- Host and Origin are checked on every request, against DNS rebinding and posts of other sites.
- Nothing of a request is believed because it says so: `X-Forwarded-Proto` and the user header count from a trusted proxy only.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consilience.domain.errors import SettingsError
from consilience.server.access_settings import AccessSettings, origin_of
from consilience.server.callers import LOCAL, Caller
from consilience.server.errors import error_response
from consilience.server.owners import Owners

OPEN = frozenset(
    {("GET", "/login"), ("POST", "/login"), ("GET", "/page.css"), ("GET", "/summary.css"), ("GET", "/healthz")}
)
"""All that is answered without a token. Nothing else is, but for what a link opens (`LINKED`)."""
LINKED = ("/seat/", "/share/")
"""Beginnings of paths whose rest is the token of a link, which the routes there check. They are given no caller."""
COOKIE = "consilience"
MAX_OPEN = 256
"""Requests of one owner that are answered at the same time, streams included, so that one leaves connections to the others."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class AccessRefusal(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, what: str, do: str = "") -> None:
        super().__init__(what)
        self.status, self.what, self.do = status, what, do


def check_start(access: AccessSettings, host: str) -> None:
    """Raise `SettingsError` for an address to listen on that needs more than `access` has."""
    if access.token_file is None and not is_loopback(host):
        raise SettingsError(
            f"{host} can be reached from other machines, and there is no token file",
            where="host",
            do="Make one with consilience serve --token-file FILE --new-owner NAME, and name it with --token-file FILE; "
            "or listen on 127.0.0.1.",
        )
    if not is_loopback(host) and not access.public_urls:
        raise SettingsError(
            f"{host} can be reached from other machines, and no public URL says by which name",
            where="host",
            do="Name each address that browsers and clients use, with --public-url URL.",
        )


def is_loopback(host: str | None) -> bool:
    """Return whether a host or peer is this machine."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@dataclass(frozen=True)
class Door:
    """What the operator has decided, as the gate uses it."""

    access: AccessSettings
    owners: Owners | None
    """None without a token file: the only caller is `LOCAL`."""

    def origins(self, scope: Scope) -> Sequence[str]:
        """Return the addresses by which the server may be reached, as browsers write them in `Origin`."""
        if self.access.public_urls:
            return self.access.public_urls
        _, port = scope.get("server") or ("", None)
        return [origin_of(f"http://{name}:{port}" if port else f"http://{name}") for name in LOOPBACK_NAMES]

    def is_trusted(self, scope: Scope) -> bool:
        """Whether the peer is a trusted proxy."""
        peer, _ = scope.get("client") or ("", 0)
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in proxies for proxies in self.access.trusted_proxies)

    def scheme(self, scope: Scope, headers: Headers) -> str:
        """Return the scheme by which the client sent the request."""
        forwarded = headers.getlist("x-forwarded-proto")
        if self.is_trusted(scope) and len(forwarded) == 1 and forwarded[0] in ("http", "https"):
            return forwarded[0]
        return "https" if scope["scheme"] in ("https", "wss") else "http"

    def check_address(self, scope: Scope, headers: Headers) -> None:
        """Raise `AccessRefusal` unless Host, and Origin if there is one, are this server's."""
        origins = self.origins(scope)
        if self.owners is None and not is_loopback((scope.get("client") or ("", 0))[0]):
            raise AccessRefusal(403, "without a token file only this machine is answered")
        hosts = headers.getlist("host")
        names = {_host_of(origin) for origin in origins}
        if len(hosts) != 1 or _normal_host(hosts[0], origins) not in names:
            raise AccessRefusal(421, "this server has another name", f"Use {' or '.join(origins)}.")
        sent = headers.getlist("origin")
        if sent and (len(sent) > 1 or sent[0].lower() not in origins):
            raise AccessRefusal(403, "the request comes from a page of another site")

    def caller(self, scope: Scope, headers: Headers) -> Caller | None:
        """Return who asks; None if nobody is identified. Raises `AccessRefusal` for a user header from elsewhere than a proxy."""
        if self.owners is None:
            return LOCAL
        if (name := self.access.trusted_user_header) is not None and name.lower() in headers:
            return self._named_caller(scope, headers, name)
        sent = headers.getlist("authorization")
        if sent:
            kind, _, token = sent[0].partition(" ")
            return self.owners.by_token(token.strip()) if len(sent) == 1 and kind.lower() == "bearer" else None
        token = cookie_value(headers, COOKIE)
        if not token or not self.keeps_cookies(scope, headers):
            return None
        if scope.get("method", "GET") not in SAFE_METHODS and "origin" not in headers:
            raise AccessRefusal(
                403, "a request with a cookie must say from which page it comes", "Send Origin, or a token."
            )
        return self.owners.by_token(token)

    def keeps_cookies(self, scope: Scope, headers: Headers) -> bool:
        """Whether a token may be in a cookie: on loopback, or where the client came by https."""
        return not self.access.public_urls or self.scheme(scope, headers) == "https"

    def _named_caller(self, scope: Scope, headers: Headers, header: str) -> Caller | None:
        users = headers.getlist(header)
        if not self.is_trusted(scope):
            raise AccessRefusal(403, "the header that names the user does not come from the trusted proxy")
        assert self.owners is not None
        groups = ",".join(headers.getlist(self.access.trusted_groups_header)).split(",")
        return self.owners.by_user(users[0], [group.strip() for group in groups]) if len(users) == 1 else None


class AccessGate:
    """The ASGI layer: lets a request through with its caller, or answers it."""

    def __init__(self, app: ASGIApp, *, door: Door) -> None:
        self.app = app
        self.door = door
        self._open: Counter[str] = Counter()
        """Requests that are being answered, by owner."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            caller = self._admit(scope, headers)
        except AccessRefusal as refusal:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await _answer(refusal, scope, headers)(scope, receive, send)
            return
        owner = caller.owner if caller is not None else ""
        self._open[owner] += 1
        try:
            await self._pass_on(scope, receive, _private(send), headers, caller)
        finally:
            self._open[owner] -= 1

    def _admit(self, scope: Scope, headers: Headers) -> Caller | None:
        """Return who asks; None where nobody need be known. Raises `AccessRefusal`."""
        scope.pop("consilience.caller", None)
        scope["consilience.door"] = self.door
        self.door.check_address(scope, headers)
        path = scope["path"]
        if (scope.get("method"), path) in OPEN or path.startswith(LINKED):
            return None
        caller = self.door.caller(scope, headers)
        if caller is None:
            raise AccessRefusal(401, "no valid token", "Send Authorization: Bearer TOKEN, or log in at /login.")
        if caller.owner and self._open[caller.owner] >= MAX_OPEN:
            raise AccessRefusal(429, f"{caller.owner} has {MAX_OPEN} open requests", "Close streams, or wait.")
        scope["consilience.caller"] = caller
        return caller

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, caller: Caller | None
    ) -> None:
        """Let the application answer. A stream ends when the token is withdrawn by which it began, or its rights change."""
        withdrawn = False

        async def send_while_valid(message: Message) -> None:
            nonlocal withdrawn
            if caller is not None and message.get("more_body") and self.door.caller(scope, headers) != caller:
                withdrawn = True
                raise OSError("the token was withdrawn")  # as if the client had gone
            await send(message)

        try:
            await self.app(scope, receive, send_while_valid)
        except Exception:
            if not withdrawn:
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def caller_of(request: Request) -> Caller:
    """Return who asks. Raises `KeyError` on a route that is open, or that no gate protects."""
    caller: Caller = request.scope["consilience.caller"]
    return caller


def door_of(request: Request) -> Door:
    door: Door = request.scope["consilience.door"]
    return door


def page_of(request: Request, session: str) -> str:
    """Return where a person reads a session."""
    urls = door_of(request).access.public_urls
    return f"{urls[0] if urls else str(request.base_url).rstrip('/')}/sessions/{quote(session, safe='')}"


def cookie_value(headers: Headers, name: str) -> str:
    """Return the value of a cookie; "" without one. What other programs of the same host keep in theirs does not matter."""
    return cookie_parser("; ".join(headers.getlist("cookie"))).get(name, "")


def _answer(refusal: AccessRefusal, scope: Scope, headers: Headers) -> Response:
    wants_page = "text/html" in headers.get("accept", "") and scope.get("method") == "GET"
    if refusal.status == 401 and wants_page:
        return RedirectResponse(f"/login?next={quote(scope['path'])}", 303)
    answer = error_response(scope["path"], refusal.status, refusal.what, do=refusal.do)
    challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    answer.headers.update({**challenge, "Cache-Control": "no-store"})
    return answer


def _private(send: Send) -> Send:
    """Add to every answer that nobody else may store it, frame it or guess its type."""
    added = [
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
    ]

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = list(message.get("headers") or ())
            names = {name.lower() for name, _ in there}
            message["headers"] = [*there, *(pair for pair in added if pair[0] not in names)]
        await send(message)

    return with_headers


def _host_of(origin: str) -> str:
    return origin.partition("://")[2]


def _normal_host(host: str, origins: Sequence[str]) -> str:
    """Return a `Host` header as the origins write theirs; "" for one that is no name."""
    scheme = origins[0].partition(":")[0]
    try:
        return _host_of(origin_of(f"{scheme}://{host}")) if not set(host) & set("/?#@\\") else ""
    except ValueError:
        return ""
