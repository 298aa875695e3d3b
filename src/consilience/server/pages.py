"""Pages and forms. The small ones that need no token of an owner, the login and what a link opens, have no script."""

from __future__ import annotations

import hmac
import secrets
from functools import cache
from importlib.resources import files
from urllib.parse import parse_qsl

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from consilience.server.access import COOKIE, AccessRefusal, cookie_value, door_of

FORM_COOKIE = "consilience_form"
MAX_FORM_BYTES = 2_000_000
POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
APP_POLICY = f"{POLICY}; script-src 'self'; connect-src 'self'"


@cache
def _pages() -> Environment:
    loader = PackageLoader("consilience.server", "page")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def page(
    request: Request,
    name: str,
    title: str,
    *,
    status: int = 200,
    problem: str = "",
    policy: str = POLICY,
    **values: object,
) -> HTMLResponse:
    """Return a page with a form token that `read_form` will ask for."""
    token = cookie_value(request.headers, FORM_COOKIE) or secrets.token_urlsafe(24)
    text = _pages().get_template(f"{name}.html.j2").render(title=title, problem=problem, form_token=token, **values)
    response = HTMLResponse(text, status, headers={"Content-Security-Policy": policy})
    keep(request, response, FORM_COOKIE, token)
    return response


def part(name: str, **values: object) -> str:
    """Return a part of a page from a template that pages include."""
    return _pages().get_template(f"{name}.html.j2").render(**values)


def app_page(
    request: Request, name: str, title: str, *, status: int = 200, problem: str = "", **values: object
) -> HTMLResponse:
    """Return a page of somebody who is known, with the navigation and the script of all such pages (`app.html.j2`)."""
    may_log_out = cookie_value(request.headers, COOKIE) != ""
    return page(
        request, name, title, status=status, problem=problem, policy=APP_POLICY, may_log_out=may_log_out, **values
    )


def keep(request: Request, response: Response, name: str, value: str) -> None:
    """Put a value into a cookie that no script reads and no other site sends; where there are public URLs, over https only."""
    secure = bool(door_of(request).access.public_urls)
    response.set_cookie(name, value, httponly=True, samesite="strict", secure=secure, path="/")


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises `AccessRefusal` for one that is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise AccessRefusal(413, f"the request has more than {MAX_FORM_BYTES:,} bytes")
    return bytes(body)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a posted form. Raises `AccessRefusal` for one that is too large or comes from another site."""
    body = (await read_body(request)).decode("utf-8", "replace")
    try:
        fields = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=500))
    except ValueError:
        raise AccessRefusal(422, "the form has too many fields") from None
    expected = cookie_value(request.headers, FORM_COOKIE)
    if not expected or not hmac.compare_digest(expected.encode(), fields.pop("form_token", "").encode()):
        raise AccessRefusal(
            403, "the form was not filled in on this page", "Open the page again, and send it from there."
        )
    return fields


@cache
def style_sheet() -> str:
    return (files("consilience.server") / "page" / "login.css").read_text("utf-8")
