"""The commands that run a session: one per protocol, with options for its settings, and `fork` and `resume`."""

from __future__ import annotations

import inspect
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from consilience.cli.commands import (
    REPEATED,
    SectionedCommand,
    help_of,
    listed_kind,
    metavar_of,
    names_option,
    new_app,
    option_type,
    parameters_of,
    request_app,
    set_signature,
)
from consilience.cli.options import ForkRequest, ResumeRequest, RunRequest
from consilience.domain.errors import SettingsError
from consilience.domain.messages import FILE, NO_OPTION

if TYPE_CHECKING:
    from consilience.engine.protocol import Protocol

SETTINGS = "Settings of {}"

COMMON = frozenset({"model", "models", "source", "max_cost", "out", "open", "dry_run"})
"""With the first `COMMON_SETTINGS` settings of the protocol, the ten options that `--help` shows."""

COMMON_SETTINGS = 3


def app_for(name: str) -> typer.Typer:
    """Return the command of a protocol. Raises `UnknownName`."""
    from consilience.engine.protocol import find_protocol

    cls = find_protocol(name)
    settings = _setting_options(cls)

    def command(ctx: typer.Context, **values: Any) -> None:
        from consilience.cli.run import run

        request = RunRequest(**{field.name: values.pop(field.name) for field in fields(RunRequest)})
        given = {
            field: _setting_value(cls, field, values[option])
            for option, field in settings.items()
            if _is_given(ctx, option)
        }
        raise typer.Exit(run(cls, request, given))

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    own = [_setting_parameter(cls, option, field) for option, field in settings.items()]
    set_signature(command, [context, *own, *parameters_of(RunRequest)])

    class ProtocolCommand(SectionedCommand):
        common = COMMON | frozenset([name for name in settings if name != "reply_tokens"][:COMMON_SETTINGS])

    app = new_app()
    app.command(name, cls=ProtocolCommand, help=f"{name}: {cls.summary}.")(command)
    return app


def option_of(cls: type[Protocol], field: str) -> str:
    """Return the option of a setting, such as `--max-rounds`; prefixed by the protocol if all protocols have that option."""
    taken = field in {common.name for common in fields(RunRequest)}
    return f"--{f'{cls.name}-' if taken else ''}{field.replace('_', '-')}"


def _setting_options(cls: type[Protocol]) -> dict[str, str]:
    """Return the settings of a protocol by the parameter of their option."""
    shown = [field for field, info in cls.model_fields.items() if NO_OPTION not in info.metadata]
    return {option_of(cls, field).removeprefix("--").replace("-", "_"): field for field in shown}


def _is_given(ctx: typer.Context, option: str) -> bool:
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _setting_value(cls: type[Protocol], field: str, value: object) -> object:
    """Return the value of a setting: the file's text if the option names a file. Raises `SettingsError`, `SourceError`."""
    if isinstance(value, list | tuple) and any(isinstance(text, str) and not text.strip() for text in value):
        raise SettingsError("a text is empty", where=option_of(cls, field), do="Give words, or leave it out.")
    if FILE not in cls.model_fields[field].metadata:
        return value
    from consilience.cli.inputs import read_file

    return read_file(str(value), f"the {field}")


def _setting_parameter(cls: type[Protocol], option: str, field: str) -> inspect.Parameter:
    info = cls.model_fields[field]
    annotation, default = option_type(info.annotation), info.get_default(call_default_factory=True)
    spelling = option_of(cls, field)
    if annotation in (bool, bool | None):
        spelling = f"{spelling}/--no-{spelling.removeprefix('--')}"
    if isinstance(default, tuple | list | frozenset):
        default = list(default)
    if isinstance(default, Enum):
        default = default.value
    more: dict[str, Any] = {
        "show_default": default not in ("", None, []),
        "rich_help_panel": SETTINGS.format(cls.name),
    }
    metavar = "FILE|-" if FILE in info.metadata else metavar_of(annotation)
    kind = listed_kind(info.annotation)
    if kind is not None:
        metavar = "NAME" if kind is str or not metavar else metavar
        description = names_option(spelling, help=help_of(info), metavar=metavar, kind=kind, **more)
    else:
        repeated = f" {REPEATED}" if get_origin(annotation) is list else ""
        description = typer.Option(spelling, help=f"{help_of(info)}{repeated}".strip(), metavar=metavar, **more)
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, description], default=default
    )


def _fork(request: ForkRequest) -> int:
    """Continue from an event of a session with changes, in a new session that inherits the calls before it.

    Inherited calls are not paid for again. Limits apply to the fork alone; limits that are not given are the parent's.
    """
    from consilience.cli.run import fork

    return fork(request)


def _resume(request: ResumeRequest) -> int:
    """Resume a session; recorded calls are not paid for again."""
    from consilience.cli.run import resume

    return resume(request)


fork = request_app("fork", ForkRequest, _fork)
resume = request_app("resume", ResumeRequest, _resume)
