"""The login: a token, given once in a form, is kept in a cookie, since an `EventSource` sends no headers."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, RedirectResponse, Response
from starlette.requests import Request

from consilience.server.access import COOKIE, AccessRefusal, door_of
from consilience.server.pages import keep, page, read_form

routes = APIRouter(include_in_schema=False)
TITLE = "Log in"
MAX_BYTES = 10_000
"""Of the form, which anybody may send."""


@routes.get("/login")
async def form(request: Request, next: str = "/") -> Response:
    """Show the form."""
    return page(request, "login", TITLE, next=_here(next))


@routes.post("/login")
async def log_in(request: Request) -> Response:
    """Keep a valid token in a cookie, and go on to the page that was asked for."""
    door = door_of(request)
    if not door.keeps_cookies(request.scope, request.headers):
        problem = "This page was not reached by https, so a token would be readable on its way. Use the https address."
        return page(request, "login", TITLE, status=403, problem=problem, next="/")
    fields = await read_form(request, MAX_BYTES)
    token, next = fields.get("token").strip(), _here(fields.get("next", "/"))
    if door.owners is None or door.owners.by_token(token) is None:
        return page(request, "login", TITLE, status=403, problem="The token is unknown or has expired.", next=next)
    response = RedirectResponse(next, 303)
    keep(request, response, COOKIE, token)
    return response


@routes.post("/logout")
async def log_out() -> Response:
    """Forget the token of this browser."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/")
    return response


def refused(request: Request, refusal: Exception) -> Response:
    """Answer a refusal that a route raises."""
    assert isinstance(refusal, AccessRefusal)
    return PlainTextResponse(f"{refusal.what}. {refusal.do}".strip(), refusal.status)


def _here(path: str) -> str:
    """Return a path of this server to go on to: never another site's, which a link to the login could name."""
    is_path = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if is_path else "/"
