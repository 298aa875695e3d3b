"""`mcp`: tools for an agent that speaks the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.options import EnvFile, new_app
from consilience.domain.errors import SettingsError, UnavailableModel, UserError

if TYPE_CHECKING:
    from consilience.configuration import Config
    from consilience.server.service import Sessions

mcp = new_app()

CHECK_AFTER_SECONDS = 2.0
"""When the models are checked: after the client's first requests, since it imports what is heavy."""


@mcp.command("mcp")
def _mcp(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="A model that tools may use; the first is the default. Repeatable.", metavar="MODEL"
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Directory whose files and Git changes tools may read.", metavar="DIR")
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option(min=0, help="Max cost of one session in US dollars. Default: confirm_above.", metavar="DOLLARS"),
    ] = None,
    env_file: EnvFile = None,
) -> None:
    """Serve tools to an agent, over standard input and output: ask, deliberate, review, status, answer, cancel.

    The agent's program starts this command. Its tools act on the user's own sessions.
    """
    from consilience.cli.settings import load_config

    if root is not None and not root.is_dir():
        raise SettingsError("there is no such directory", where=f"--root {root}", do="Name a directory.")
    try:
        from consilience.server.callers import LOCAL
        from consilience.server.mcp_face import ToolFace
        from consilience.server.mcp_tools import build_mcp
    except ModuleNotFoundError as missing:
        raise UnavailableModel(
            f"the module {missing.name} is not installed", where="mcp", do="Install it: pip install 'consilience[mcp]'"
        ) from None
    config = load_config(env_file=env_file, named=models or ())
    bound = config.confirm_above if max_cost is None else max_cost
    with ExitStack() as stack:
        opening = _Opening(config, models or (), stack)
        checking = threading.Timer(CHECK_AFTER_SECONDS, opening.warn)
        checking.daemon = True
        checking.start()
        stack.callback(checking.cancel)
        build_mcp(ToolFace(opening.sessions, lambda request: LOCAL, root, bound)).run("stdio")


class _Opening:
    """Opens the sessions behind the tools at the first use, until the stack is closed."""

    def __init__(self, config: Config, models: Sequence[str], stack: ExitStack) -> None:
        self._config, self._models, self._stack = config, models, stack
        self._lock = asyncio.Lock()
        self._opened: Sessions | None = None

    async def sessions(self) -> Sessions:
        """Return the sessions. Raises `UserError` for a model that cannot be asked."""
        async with self._lock:
            if self._opened is None:
                self._opened = await asyncio.to_thread(self._open)
        return self._opened

    def warn(self) -> None:
        """Print, for the log that clients keep of a server, what the first tool would refuse."""
        from consilience.models.connections import Connections
        from consilience.planning import check_models

        try:
            check_models(self._names(), self._config.endpoints, keys=True, connections=Connections())
        except UserError as error:
            typer.echo(f"Warning: tools that begin a session will be refused: {error}", err=True)

    def _open(self) -> Sessions:
        from consilience.server.run import serving
        from consilience.server.settings import ServerSettings

        return self._stack.enter_context(serving(ServerSettings(models=self._names()), self._config.endpoints))

    def _names(self) -> tuple[str, ...]:
        from consilience.cli.settings import default_model
        from consilience.models.registry import canonical_name

        return tuple(canonical_name(name) for name in self._models or [default_model(self._config).name])
