"""The HTTP face: routes over `service.Sessions`, with errors as JSON."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import PlainTextResponse
from starlette.middleware.gzip import GZipMiddleware

from consilience.domain.errors import ConsilienceError
from consilience.server import chat, debate_multi, responses, site
from consilience.server.bounds import Bounds
from consilience.server.callers import Forbidden
from consilience.server.catalog_routes import catalog, choosing
from consilience.server.dependencies import ERRORS
from consilience.server.dependencies import Service as Service
from consilience.server.dependencies import Who as Who
from consilience.server.errors import handle_errors
from consilience.server.live_session import LiveSessions
from consilience.server.mcp_http import mcp_app
from consilience.server.protection import protect
from consilience.server.replies import Health
from consilience.server.service import Sessions
from consilience.server.session_routes import routes, uploads
from consilience.server.uploads import MAX_CONVERSIONS

DOCS_POLICY = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; "
    "script-src 'unsafe-inline' https://cdn.jsdelivr.net; style-src 'unsafe-inline' https://cdn.jsdelivr.net"
)
MIN_COMPRESSED_BYTES = 1_000
operations = APIRouter(tags=["operations"], responses=ERRORS)


def build_app(sessions: Sessions) -> FastAPI:
    """Return the application of a server."""
    tools = mcp_app(sessions)
    app = FastAPI(
        title="Consilience",
        version=version("consilience"),
        summary="Deliberations over HTTP.",
        lifespan=tools.router.lifespan_context,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would lead to http behind a proxy
    )
    app.state.sessions = sessions
    app.state.live = LiveSessions(sessions)
    app.state.conversions = asyncio.Semaphore(MAX_CONVERSIONS)
    for router in (uploads, routes, choosing, catalog, operations):
        app.include_router(router)
    chat.attach(app, sessions)
    app.include_router(debate_multi.routes)
    app.include_router(responses.routes)
    app.include_router(site.routes)
    app.router.routes.extend(tools.routes)
    app.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=6)  # no event streams
    app.add_middleware(Bounds, max_body=sessions.settings.max_body)
    protect(app, sessions.settings.access)
    handle_errors(app)
    return app


@operations.get("/healthz", responses={507: {"model": Health}})
async def healthz(sessions: Service, response: Response) -> Health:
    """Return `ok`, or status 507 if the journal cannot be written or its disk is nearly full."""
    try:
        await asyncio.to_thread(sessions.check_disk)
    except ConsilienceError:
        response.status_code = 507
        return Health(status="nothing can be recorded")
    return Health(status="ok")


@operations.get("/docs", include_in_schema=False)
async def documentation(request: Request) -> Response:
    """Show all routes. The script comes from elsewhere, so the page has no origin: nothing of this server can be read in it."""
    page = get_swagger_ui_html(
        openapi_url="",
        title="Consilience",
        swagger_favicon_url="data:,",
        swagger_ui_parameters={"spec": request.app.openapi(), "supportedSubmitMethods": []},
    )
    page.headers["Content-Security-Policy"] = DOCS_POLICY
    return page


@operations.get("/metrics", response_class=PlainTextResponse)
async def metrics(sessions: Service, caller: Who) -> PlainTextResponse:
    """Return figures over all owners as text for Prometheus."""
    if not caller.metrics:
        raise Forbidden(f"{caller.owner} may not read the metrics; the operator may allow it")
    return PlainTextResponse(await sessions.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")
