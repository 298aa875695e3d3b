"""The tools of `mcp_tools` at `/mcp` of the HTTP server. They take texts only: no path of the server is read."""

from __future__ import annotations

from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from consilience.server.access import caller_of
from consilience.server.mcp_face import ToolFace
from consilience.server.mcp_tools import build_mcp
from consilience.server.service import Sessions


def mcp_app(sessions: Sessions) -> Starlette:
    """Return the application whose routes and lifespan belong to the server. It keeps nothing between requests, so a client goes on
    after a restart. Host and Origin are checked before it, as for every route."""

    async def opened() -> Sessions:
        return sessions

    return build_mcp(ToolFace(opened, caller_of)).streamable_http_app(
        stateless_http=True,
        max_request_body_size=sessions.settings.max_body,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
