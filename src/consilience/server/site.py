"""The pages for people: what they share. Start, lists and forms are in `start_page`, one session is in `session_page`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from consilience.reporting.styles import style_sheet
from consilience.server import session_page

routes = APIRouter(include_in_schema=False)
routes.include_router(session_page.fragments)
routes.include_router(session_page.pages)


@cache
def _asset(name: str) -> str:
    return (files("consilience.server") / "page" / name).read_text("utf-8")


@routes.get("/page.css")
async def style(request: Request) -> Response:
    """Return the style of all pages: that of a session's file, and of forms and what is live."""
    text = f"{style_sheet('page', 'charts')}\n{_asset('app.css')}"
    return session_page.compressed(request, Response(text, media_type="text/css"))


@routes.get("/page.js")
async def script(request: Request) -> Response:
    """Return the script of all pages."""
    return session_page.compressed(request, Response(_asset("page.js"), media_type="text/javascript"))
