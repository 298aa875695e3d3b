"""Puts the gate around an application, with the routes that need no owner's token."""

from __future__ import annotations

from fastapi import FastAPI

from consilience.server import links, login, share_page
from consilience.server.access import AccessGate, AccessRefusal, Door
from consilience.server.access_settings import AccessSettings
from consilience.server.owners import Owners


def protect(app: FastAPI, access: AccessSettings) -> None:
    """Close every route of an application, also those that are added later, but for `access.OPEN` and what links open.

    Raises `SettingsError` for a token file that cannot be read.
    """
    owners = Owners(access.token_file) if access.token_file is not None else None
    for router in (login.routes, links.owner_routes, links.link_routes, share_page.routes):
        app.include_router(router)
    app.add_exception_handler(AccessRefusal, login.refused)
    app.add_middleware(AccessGate, door=Door(access, owners))
