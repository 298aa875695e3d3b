"""A server process: store, executor and application, from beginning to end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvicorn

from consilience.configuration import own_config
from consilience.domain.errors import SettingsError
from consilience.engine.execution import Options
from consilience.executor import LocalExecutor
from consilience.journal.open_store import opened
from consilience.journal.sqlite_accounts import SqliteAccounts
from consilience.models.connections import Connections
from consilience.models.endpoints import Endpoints
from consilience.models.registry import choose
from consilience.planning import check_models
from consilience.server.access import check_start
from consilience.server.app import build_app
from consilience.server.connections import BoundedConnection, drop_stalled, max_connections
from consilience.server.metrics import Meter
from consilience.server.notices import LOOK_SECONDS, Notices
from consilience.server.owners import Owners
from consilience.server.periodic import periodically
from consilience.server.retention import SWEEP_SECONDS, Retention
from consilience.server.run_failures import RunFailures
from consilience.server.service import Sessions, is_served
from consilience.server.settings import ServerSettings

LAST_SECONDS = 5
"""How long requests may take to end once the process is told to."""
HANDLED = (signal.SIGINT, signal.SIGTERM)


def default_model() -> str:
    """Return the model of a server for which none is named: that of `CONSILIENCE_MODEL` or the user's own file, else a server on
    this machine or the embedded model."""
    configured = own_config().model
    return choose(os.environ, {} if configured is None else {"model": configured}).name


@contextmanager
def serving(settings: ServerSettings, endpoints: Endpoints | None = None) -> Iterator[Sessions]:
    """Open the user's journal and an executor, which takes up the sessions that an earlier server left.

    `endpoints` default to those of the user's own configuration and of the server's models.
    """
    endpoints = endpoints or own_config().endpoints.name(settings.models)
    connections = Connections()
    served = (*settings.models, *filter(None, [settings.helper_model]))
    check_models(served, endpoints, keys=True, origin="the server's models", connections=connections)
    meter, failures = Meter(), RunFailures()
    access = settings.access
    owners = Owners(access.token_file) if access.token_file is not None else None
    accounts = SqliteAccounts(owners.allowance) if owners is not None else None
    options = Options(endpoints=endpoints, observer=meter.observe, accounts=accounts, connections=connections)
    with ExitStack() as opening:
        store = opening.enter_context(opened(None, writing=True))
        local = LocalExecutor(
            store, running=settings.running, options=options, on_end=failures.note, takes_up=is_served
        )
        executor = opening.enter_context(local)
        sessions = Sessions(store, executor, settings, options=options, meter=meter, failures=failures)
        if access.webhook or access.smtp:
            notices = Notices(store, access, Path(store.path).with_name("notices.json"))
            opening.enter_context(periodically(notices.look, LOOK_SECONDS, "notices"))
        if access.keep_days or access.quota or owners is not None:
            retention = Retention(store, access, owners, sessions.audit)
            opening.enter_context(periodically(retention.sweep, SWEEP_SECONDS, "retention"))
        yield sessions


def serve(settings: ServerSettings, *, host: str, port: int, on_start: Callable[[str], None]) -> None:
    """Serve until the process is told to end by SIGTERM or SIGINT; `on_start` is called with the address once it answers.

    Sessions that run then are interrupted, and taken up by the next process. Raises `SettingsError` for an address that cannot
    be had, or that needs a token file.
    """
    check_start(settings.access, host)
    # before the library of MCP sets up its own log, which is laid out for a terminal of 80 columns
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("consilience").setLevel(logging.INFO)
    listener = _listen(host, port)
    drop_stalled(listener)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    with listener, serving(settings) as sessions:
        config = uvicorn.Config(
            build_app(sessions),
            http=BoundedConnection,
            limit_concurrency=max_connections(),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=LAST_SECONDS,
            ws="none",
            proxy_headers=False,  # the gate believes trusted proxies, and nobody else
        )
        _Server(config, sessions, lambda: on_start(address)).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(
            f"the server cannot listen there: {reason}",
            where=f"{host}, port {port}",
            do="Give another --port; 0 takes a free one.",
        ) from None


class _Server(uvicorn.Server):
    """Ends streams when it is told to end, and returns then, so that the executor is closed."""

    def __init__(self, config: uvicorn.Config, sessions: Sessions, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._sessions = sessions
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._sessions.feeds.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which ends the process by the same signal afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
