"""Options of a protocol's command that are its settings."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from consilience.cli.options import REPEATED, SETTINGS, NewSessionRequest, RunRequest, names_option, options_in
from consilience.cli.target import TargetRequest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from consilience.engine.protocol import Protocol


def request_type(cls: type[Protocol]) -> type[NewSessionRequest]:
    """Return the options of a protocol's command that are not its settings."""
    return TargetRequest if cls.reads_target else RunRequest


def option_of(cls: type[Protocol], field: str) -> str:
    """Return the option of a setting, such as `--max-rounds`; prefixed by the protocol if all protocols have that option."""
    from consilience.domain.messages import OptionName

    named = next((mark.name for mark in cls.model_fields[field].metadata if isinstance(mark, OptionName)), field)
    taken = named in {common.name for common in options_in(request_type(cls))}
    return f"--{f'{cls.name}-' if taken else ''}{named.replace('_', '-')}"


def setting_options(cls: type[Protocol]) -> dict[str, str]:
    """Return the settings of a protocol by the parameter of their option."""
    from consilience.domain.messages import NO_OPTION

    shown = [field for field, info in cls.model_fields.items() if NO_OPTION not in info.metadata]
    return {option_of(cls, field).removeprefix("--").replace("-", "_"): field for field in shown}


def setting_parameter(cls: type[Protocol], option: str, field: str) -> inspect.Parameter:
    from consilience.domain.messages import FILE, NAMES

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
    kind = str if NAMES in info.metadata else listed_kind(info.annotation)
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
