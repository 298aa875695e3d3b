"""A server process: store, executor and application, from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from consilience.configuration import own_config
from consilience.engine.execution import Options
from consilience.executor import LocalExecutor
from consilience.journal.open_store import opened
from consilience.journal.sqlite_accounts import SqliteAccounts
from consilience.server.access import check_start
from consilience.server.app import build_app
from consilience.server.owners import Owners
from consilience.server.service import Sessions
from consilience.server.settings import ServerSettings


@contextmanager
def serving(settings: ServerSettings) -> Iterator[Sessions]:
    """Open the user's journal and an executor, which takes up the sessions that an earlier process left."""
    endpoints = own_config().endpoints.name(settings.models)
    file = settings.access.token_file
    accounts = SqliteAccounts(Owners(file).allowance) if file is not None else None
    options = Options(endpoints=endpoints, accounts=accounts)
    with (
        opened(None, writing=True) as store,
        LocalExecutor(store, running=settings.running, options=options) as executor,
    ):
        yield Sessions(store, executor, settings, options=options)


def serve(settings: ServerSettings, *, host: str, port: int) -> None:
    """Serve until the process is told to end. Raises `SettingsError` for an address that needs a token file."""
    check_start(settings.access, host)
    with serving(settings) as sessions:
        # who sent a request, and by which scheme, is for the gate to say, which believes trusted proxies only
        uvicorn.run(
            build_app(sessions), host=host, port=port, log_level="warning", access_log=False, proxy_headers=False
        )
