"""Pages and forms. The login and what a share link opens have no script.

Everything works without one: a form is posted, and answered by a redirect, or by its page again with what was typed and what is
wrong beside the fields.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import ChoiceLoader, Environment, PackageLoader
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from consilience.domain.errors import ConsilienceError
from consilience.domain.report import Report, find_report
from consilience.reporting.export import FORMATS
from consilience.reporting.formatting import count, duration, money
from consilience.reporting.forms import controls
from consilience.reporting.page_parts import environment
from consilience.reporting.record import SessionRecord
from consilience.server.access import COOKIE, AccessRefusal, cookie_value, door_of
from consilience.server.errors import error_json, status_of

FORM_COOKIE = "consilience_form"
MAX_FORM_BYTES = 2_000_000
"""Of a form without files. One with files has at most the bytes of any request (`ServerSettings.max_body`)."""
MAX_FIELDS = 1_000
MAX_FILES = 100
POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
SANDBOX = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of pages that hold words of models, so that nothing in them acts on this server."""
REFERRER = "same-origin"
"""No other site learns an address. With `no-referrer`, browsers send `Origin: null` with a form, which the gate refuses."""
APP_POLICY = f"{POLICY}; script-src 'self'; connect-src 'self'"


@cache
def templates() -> Environment:
    """Return the templates of the server, above those of `reporting`, whose parts they use."""
    own, parts = PackageLoader("consilience.server", "page"), PackageLoader("consilience.reporting", "page")
    pages = environment().overlay(loader=ChoiceLoader([own, parts]))
    pages.filters = {**pages.filters, "utc": utc, "money": money, "duration": duration, "plural": count}
    pages.globals = {**pages.globals, "controls": controls, "formats_of": formats_of}
    return pages


def utc(seconds: float) -> str:
    """Return a time in seconds since the epoch as `2026-11-28 20:47 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def formats_of(record: SessionRecord) -> Sequence[str]:
    """Return the formats in which a session can be exported now."""
    report: type[Report] = find_report(record.state.started.protocol) if record.state.started else Report
    return (*FORMATS, *(name for name in report.formats if record.state.finished and name not in FORMATS))


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
    text = templates().get_template(f"{name}.html.j2").render(title=title, problem=problem, form_token=token, **values)
    response = HTMLResponse(text, status, headers={"Content-Security-Policy": policy, "Referrer-Policy": REFERRER})
    keep(request, response, FORM_COOKIE, token)
    return response


def part(name: str, **values: object) -> str:
    """Return a part of a page from a template that pages include."""
    return templates().get_template(f"{name}.html.j2").render(**values)


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


async def read_body(request: Request, max_bytes: int = MAX_FORM_BYTES) -> bytes:
    """Return the body of a request. Raises `AccessRefusal` for one that is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise AccessRefusal(413, f"the request has more than {max_bytes:,} bytes")
    return bytes(body)


@dataclass(frozen=True)
class PostedForm:
    """The fields of a posted form, in its order, without the form's token."""

    pairs: Sequence[tuple[str, str]]
    files: Sequence[tuple[str, bytes]] = field(default=(), repr=False)
    """Name and bytes of each file that was chosen."""

    @property
    def values(self) -> dict[str, str]:
        """The fields by name; of those with several values the last one. Line ends are those of texts, not of forms."""
        return {name: value.replace("\r\n", "\n") for name, value in self.pairs}

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for own, value in self.pairs if own == name]

    def below(self, prefix: str) -> dict[str, str]:
        """Return the fields whose names begin so, by the rest of the name."""
        return {name.removeprefix(prefix): value for name, value in self.values.items() if name.startswith(prefix)}


async def read_form(request: Request, max_bytes: int = MAX_FORM_BYTES, *, with_files: bool = False) -> PostedForm:
    """Return the fields of a posted form. Only one `with_files` may have any, and is bounded by `ServerSettings.max_body` alone.

    Raises `AccessRefusal` for one that is too large or comes from another site.
    """
    pairs: Iterable[tuple[str, str]]
    chosen: list[tuple[str, bytes]] = []
    if with_files and request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        pairs, chosen = await _read_multipart(request)
    else:
        body = (await read_body(request, max_bytes)).decode("utf-8", "replace")
        try:
            pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise AccessRefusal(422, "the form has too many fields") from None
    fields = PostedForm(list(pairs), chosen)
    expected = cookie_value(request.headers, FORM_COOKIE)
    if not expected or not hmac.compare_digest(expected.encode(), fields.get("form_token").encode()):
        raise AccessRefusal(
            403, "the form was not filled in on this page", "Open the page again, and send it from there."
        )
    return PostedForm([pair for pair in fields.pairs if pair[0] != "form_token"], chosen)


async def _read_multipart(request: Request) -> tuple[list[tuple[str, str]], list[tuple[str, bytes]]]:
    pairs, chosen, most = [], [], request.app.state.sessions.settings.max_body
    try:
        async with request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=most) as form:
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    if value.filename:  # a field in which no file was chosen is sent without a name
                        chosen.append((value.filename, await value.read()))
                else:
                    pairs.append((name, value))
    except HTTPException as error:
        raise AccessRefusal(error.status_code if error.status_code == 413 else 422, str(error.detail)) from None
    return pairs, chosen


class PageRoute(APIRoute):
    """A route of a page: an error that its handler does not show beside a field becomes a page too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except ConsilienceError as error:
                title = "There is no such session" if status_of(error) == 404 else "This was not done"
                return app_page(request, "app", title, status=status_of(error), problem=problem_of(error))
            except RequestValidationError:
                return app_page(request, "app", "There is no such page", status=422)

        return handled


def problem_of(error: ConsilienceError) -> str:
    """Return an error in words for a page: what is wrong and what to do, without routes and options of commands."""
    detail = error_json(error, routes=False)
    what, do = detail["what"].rstrip("."), detail["do"].rstrip(".")
    return f"{what[:1].upper()}{what[1:]}. {f'{do}.' if do else ''}".strip()


def go_to(path: str) -> Response:
    """Return the answer to a form that was accepted: the browser loads that page of this server."""
    return RedirectResponse(path, 303)
