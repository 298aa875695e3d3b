"""`mcp`: tools for an agent that speaks the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.options import EnvFile, new_app
from consilience.domain.errors import SettingsError, UnavailableModel, UserError

if TYPE_CHECKING:
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
    stack = ExitStack()

    def named() -> tuple[str, ...]:
        from consilience.cli.settings import default_model
        from consilience.models.registry import canonical_name

        return tuple(canonical_name(name) for name in models or [default_model(config).name])

    def enter() -> Sessions:
        from consilience.server.run import serving
        from consilience.server.settings import ServerSettings

        return stack.enter_context(serving(ServerSettings(models=named()), config.endpoints))

    def warn() -> None:
        """Print at once, for the log that clients keep of a server, what the first tool would refuse."""
        from consilience.models.connections import Connections
        from consilience.planning import check_models

        try:
            check_models(named(), config.endpoints, keys=True, connections=Connections())
        except UserError as error:
            typer.echo(f"Warning: tools that begin a session will be refused: {error}", err=True)

    opening = asyncio.Lock()
    opened: list[Sessions] = []

    async def sessions() -> Sessions:
        async with opening:
            if not opened:
                opened.append(await asyncio.to_thread(enter))
        return opened[0]

    checking = threading.Timer(CHECK_AFTER_SECONDS, warn)
    checking.daemon = True
    checking.start()
    with stack:
        build_mcp(ToolFace(sessions, lambda request: LOCAL, root, bound)).run("stdio")
