"""How the command line reads a setting of a protocol: its type, its form in help, its help text."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def option_type(annotation: object) -> Any:
    """The type the command line reads: the field's own where it is simple, else text that the settings will judge."""
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
    """Of a field that holds several choices or numbers: what reads one of them. None for texts, and for a single value."""
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
    """What stands for the value in help; None for a flag."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, arguments))
    if arguments:
        return metavar_of(arguments[0])
    return {bool: None, int: "N", float: "NUMBER"}.get(annotation, "TEXT")


def help_of(info: FieldInfo) -> str:
    """The field's description and its bounds."""
    text = (info.description or "").strip()
    if text.partition(",")[0] != info.default:  # a value is spelt as it is
        text = f"{text[:1].upper()}{text[1:]}"
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    if low is not None and high is not None:
        text += f" ({low} to {high})"
    return f"{text}." if text and not text.endswith(".") else text
