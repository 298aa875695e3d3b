"""The commands that run a session: one per protocol, with options for its settings, and `fork` and `resume`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from consilience.cli.commands import (
    REPEATED,
    SectionedCommand,
    names_option,
    new_app,
    parameters_of,
    request_app,
    set_signature,
)
from consilience.cli.options import ForkRequest, ResumeRequest, RunRequest
from consilience.domain.errors import SettingsError
from consilience.domain.messages import FILE, NO_OPTION

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

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


def option_type(annotation: object) -> Any:
    """Return the type that the command line parses: the field's own if it is simple, else text that the settings validate."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return option_type(arguments[0])
    if origin is Union or origin is types.UnionType:
        inner = [option_type(a) for a in arguments if a is not type(None)]
        return inner[0] | None if len(inner) == 1 else str | None
    if origin is Literal:
        return annotation
    if origin in (tuple, list, frozenset, set, Sequence):
        choice = not arguments or get_origin(option_type(arguments[0])) is Literal
        return list[str] if choice else list[option_type(arguments[0])]  # type: ignore[misc]
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return Literal[tuple(member.value for member in annotation)]
        if annotation in (bool, int, float):
            return annotation
    return str


def listed_kind(annotation: object) -> Callable[[str], object] | None:
    """Return the parser of one element of a list of choices or numbers; None for texts and for single values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated or origin is Union or origin is types.UnionType:
        return next(
            (kind for kind in map(listed_kind, arguments[:1] if origin is Annotated else arguments) if kind), None
        )
    if origin not in (tuple, list, frozenset, set, Sequence) or not arguments:
        return None
    element = option_type(arguments[0])
    if get_origin(element) is Literal:
        return str
    return element if element in (int, float) else None


def metavar_of(annotation: Any) -> str | None:
    """Return the placeholder of the value in help; None for a flag."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, arguments))
    if arguments:
        return metavar_of(arguments[0])
    return {bool: None, int: "N", float: "NUMBER"}.get(annotation, "TEXT")


def help_of(info: FieldInfo) -> str:
    """Return the field's description and its bounds."""
    text = (info.description or "").strip()
    if text.partition(",")[0] != info.default:  # the description begins with a value, which keeps its spelling
        text = f"{text[:1].upper()}{text[1:]}"
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    if low is not None and high is not None:
        text += f" ({low} to {high})"
    return f"{text}." if text and not text.endswith(".") else text


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
