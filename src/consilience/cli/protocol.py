"""A command for any protocol, its options generated from the settings."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from consilience.cli.options import SectionedCommand, parameters_of, sign
from consilience.cli.request import Request
from consilience.domain.errors import SettingsError
from consilience.domain.messages import FILE
from consilience.engine.protocol import Protocol, find_protocol

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

SETTINGS = "Settings of {}"


def app_for(name: str) -> typer.Typer:
    """The command of the protocol of that name. Raises `UnknownName`."""
    cls = find_protocol(name)

    def command(ctx: typer.Context, **values: object) -> None:
        from consilience.cli.run import run

        common = {field.name: values.pop(field.name) for field in fields(Request)}
        given = {
            field: _value(cls, field, values[option])
            for option, field in _options(cls).items()
            if _was_given(ctx, option)
        }
        raise typer.Exit(run(cls, Request(**common), given))  # type: ignore[arg-type]

    parameters = [_context(), *parameters_of(Request)]
    parameters[2:2] = [_parameter(cls, option, field) for option, field in _options(cls).items()]
    sign(command, parameters)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=SectionedCommand, help=f"{name}: {cls.summary}.")(command)
    return app


def option_of(cls: type[Protocol], field: str) -> str:
    """The option that sets a field: `--max-rounds`; with the protocol's name in front where all protocols have one so named."""
    taken = field in {common.name for common in fields(Request)}
    return f"--{f'{cls.name}-' if taken else ''}{field.replace('_', '-')}"


def _options(cls: type[Protocol]) -> dict[str, str]:
    """Parameter names of the protocol's own options, with the fields they set."""
    return {option_of(cls, field).removeprefix("--").replace("-", "_"): field for field in cls.model_fields}


def _was_given(ctx: typer.Context, option: str) -> bool:
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _value(cls: type[Protocol], field: str, given: object) -> object:
    """What an option gives its field: the text of the file, where it takes one. Raises `SettingsError`, `SourceError`."""
    if isinstance(given, list | tuple) and any(isinstance(one, str) and not one.strip() for one in given):
        raise SettingsError("a text is empty", where=option_of(cls, field), do="Give words, or leave it out.")
    if FILE not in cls.model_fields[field].metadata:
        return given
    from consilience.cli.inputs import read_file

    return read_file(str(given), f"the {field}")


def _context() -> inspect.Parameter:
    return inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def _parameter(cls: type[Protocol], option: str, field: str) -> inspect.Parameter:
    info = cls.model_fields[field]
    annotation, default = _option_type(info.annotation), info.get_default(call_default_factory=True)
    spelling = option_of(cls, field)
    if annotation in (bool, bool | None):
        spelling = f"{spelling}/--no-{spelling.removeprefix('--')}"
    if isinstance(default, tuple | list | frozenset):
        default = list(default)
    if isinstance(default, Enum):
        default = default.value
    shown: bool | str = default not in ("", None, []) if not isinstance(default, list) else bool(default)
    described = typer.Option(
        spelling,
        help=_help(info),
        metavar="FILE|-" if FILE in info.metadata else _metavar(annotation),
        show_default=shown,
        rich_help_panel=SETTINGS.format(cls.name),
    )
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, described], default=default
    )


def _option_type(annotation: object) -> Any:
    """The type the command line reads: the field's own where it is simple, else text that the settings will judge."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _option_type(arguments[0])
    if origin is Union or origin is types.UnionType:
        inner = [_option_type(a) for a in arguments if a is not type(None)]
        return inner[0] | None if len(inner) == 1 else str | None
    if origin is Literal:
        return annotation
    if origin in (tuple, list, frozenset, set, Sequence):
        choice = not arguments or get_origin(_option_type(arguments[0])) is Literal
        return list[str] if choice else list[_option_type(arguments[0])]  # type: ignore[misc]
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return Literal[tuple(member.value for member in annotation)]
        if annotation in (bool, int, float):
            return annotation
    return str


def _metavar(annotation: Any) -> str | None:
    """What stands for the value in help; None for a flag."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, arguments))
    if arguments:
        return _metavar(arguments[0])
    return {bool: None, int: "N", float: "NUMBER"}.get(annotation, "TEXT")


def _help(info: FieldInfo) -> str:
    """The field's description, its bounds, and whether it may be repeated."""
    text = (info.description or "").strip()
    if text.partition(",")[0] != info.default:  # a value is spelt as it is
        text = f"{text[:1].upper()}{text[1:]}"
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    if low is not None and high is not None:
        text += f" ({low} to {high})"
    if get_origin(_option_type(info.annotation)) is list:
        text += "; repeatable"
    return f"{text}." if text and not text.endswith(".") else text
