"""The pages for people: their routes, their style and their script."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from consilience.domain.errors import UnknownSession
from consilience.reporting.styles import style_sheet
from consilience.server import actions, compare_page, fork_pages, session_page, sessions_page, start_page
from consilience.server.links import LinkToken, TheSeats, closed

routes = APIRouter(include_in_schema=False)
for pages in (start_page, sessions_page, actions, fork_pages, compare_page):
    routes.include_router(pages.routes)
routes.include_router(session_page.fragments)
routes.include_router(session_page.pages)


@cache
def _asset(name: str) -> str:
    return (files("consilience.server") / "page" / name).read_text("utf-8")


@routes.get("/page.css")
async def style() -> Response:
    """Return the style of all pages: that of a session's file, and of forms and what is live."""
    text = f"{style_sheet('page', 'charts')}\n{_asset('app.css')}"
    return Response(text, media_type="text/css")


@routes.get("/page.js")
async def script() -> Response:
    """Return the script of all pages."""
    return Response(_asset("page.js"), media_type="text/javascript")


@routes.get("/seat/{token}/page.js")
async def seat_script(token: LinkToken, request: Request, seats: TheSeats) -> Response:
    """Return the same to who has the link of a seat."""
    try:
        await seats.seat(token)
    except UnknownSession as error:
        return closed(request, error)
    return await script()
