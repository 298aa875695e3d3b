"""The command `serve`: sessions over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from consilience.server.settings import ServerSettings

# not `cli.options`, which imports what runs sessions: help is to be fast
serve = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

DEFAULT_PORT = 8080
PACKAGES = ("fastapi", "multipart", "python_multipart", "sse_starlette", "starlette", "uvicorn", "mcp")
"""What the extra `server` installs."""

HostOption = Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST")]
PortOption = Annotated[
    int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.", metavar="PORT")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model", help="A model that callers may name; the first is the default. Repeatable.", metavar="NAME"
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option(help="The operator's file (server.toml): models, presets, bounds.", metavar="FILE")
]
RunningOption = Annotated[
    int | None, typer.Option(min=1, help="Max sessions that run at the same time. Default: 32.", metavar="N")
]
TokenFileOption = Annotated[
    Path | None, typer.Option(help="Owners and digests of their tokens. Needed for other machines.", metavar="FILE")
]
PublicUrlOption = Annotated[
    list[str] | None,
    typer.Option("--public-url", help="An address of the server; no other is answered. Repeatable.", metavar="URL"),
]
TrustedProxyOption = Annotated[
    list[str] | None,
    typer.Option("--trusted-proxy", help="A proxy whose X-Forwarded-Proto counts. Repeatable.", metavar="ADDR"),
]
UserHeaderOption = Annotated[
    str | None, typer.Option(help="Header in which a trusted proxy names the user.", metavar="NAME")
]
NewOwnerOption = Annotated[
    str | None,
    typer.Option(help="Add an owner to the token file, print the token (stored nowhere), and end.", metavar="NAME"),
]


@serve.command("serve")
def _serve(
    host: HostOption = "127.0.0.1",
    port: PortOption = DEFAULT_PORT,
    models: ModelsOption = None,
    config: ConfigOption = None,
    running: RunningOption = None,
    token_file: TokenFileOption = None,
    public_urls: PublicUrlOption = None,
    trusted_proxies: TrustedProxyOption = None,
    trusted_user_header: UserHeaderOption = None,
    new_owner: NewOwnerOption = None,
) -> None:
    """Serve sessions over HTTP, until Ctrl-C or SIGTERM: to this machine, and with a token file to others.

    Sessions that run at the end are interrupted, and taken up by the next start. Paid models are called without asking again:
    whoever reaches the address may spend money on the models that are named here.
    """
    try:
        from consilience.server.run import default_model
        from consilience.server.run import serve as run_server
        from consilience.server.settings import read_settings
    except ModuleNotFoundError as missing:
        raise _needed(missing) from missing
    from consilience.domain.paths import check_home

    check_home()
    access = {
        "token_file": token_file,
        "public_urls": public_urls or None,
        "trusted_proxies": trusted_proxies or None,
        "trusted_user_header": trusted_user_header,
    }
    if new_owner is not None:
        _add_owner(config, access, new_owner)
        return
    settings = read_settings(config, models=models or None, running=running, access=access, default_model=default_model)

    run_server(settings, host=host, port=port, on_start=lambda address: _announce(address, settings))


def _announce(address: str, settings: ServerSettings) -> None:
    typer.echo(f"Consilience serves {address} with {', '.join(settings.models)}. Ctrl-C ends it.")
    if settings.access.token_file is not None:
        for url in settings.access.public_urls or (address,):
            typer.echo(f"Log in at {url}/login, or send the header Authorization: Bearer TOKEN.")
        return
    typer.echo(
        f"Try: curl -s {address}/api/sessions -H 'content-type: application/json' "
        """-d '{"protocol": "vote", "task": "Cats or dogs?"}'"""
    )
    typer.echo(f"What else there is: {address}/docs")


def _add_owner(config: Path | None, access: Mapping[str, object], name: str) -> None:
    from consilience.domain.errors import SettingsError
    from consilience.server.owners import add_owner
    from consilience.server.settings import read_access

    path = read_access(config, access).token_file
    if path is None:
        raise SettingsError(
            "no token file is named to which the owner is added",
            where="--new-owner",
            do="Name one with --token-file FILE.",
        )
    token = add_owner(path, name)
    typer.echo(token)
    typer.echo(f"The token of {name}, which is stored nowhere; its digest is in {path}.", err=True)


def _needed(missing: ModuleNotFoundError) -> Exception:
    """Return the error of a server whose extra is not installed."""
    from consilience.domain.errors import UserError

    package = (missing.name or "").partition(".")[0]
    if package not in PACKAGES:
        return missing
    return UserError(
        f"the server needs the package {package}, which is not installed",
        do="Run: pip install 'consilience[server]'",
    )
