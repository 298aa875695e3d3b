"""A server process: store, executor and application, from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from consilience.configuration import own_config
from consilience.engine.execution import Options
from consilience.executor import LocalExecutor
from consilience.journal.open_store import opened
from consilience.models.endpoints import Endpoints
from consilience.server.service import RunFailures, Sessions
from consilience.server.settings import ServerSettings


@contextmanager
def serving(settings: ServerSettings, endpoints: Endpoints | None = None) -> Iterator[Sessions]:
    """Open the user's journal and an executor, which takes up the sessions that an earlier process left.

    `endpoints` default to those of the user's own configuration and of the server's models.
    """
    options = Options(endpoints=endpoints or own_config().endpoints.name(settings.models))
    failures = RunFailures()
    with (
        opened(None, writing=True) as store,
        LocalExecutor(store, running=settings.running, options=options, on_end=failures.note) as executor,
    ):
        sessions = Sessions(store, executor, settings, options=options)
        sessions.failures = failures
        yield sessions


def serve(settings: ServerSettings, *, host: str, port: int) -> None:
    """Serve until the process is told to end."""
    import uvicorn

    from consilience.server.app import build_app

    with serving(settings) as sessions:
        uvicorn.run(build_app(sessions), host=host, port=port, log_level="warning")
