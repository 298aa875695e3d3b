"""Options made from annotated dataclasses, and help in sections."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from typer.core import TyperCommand

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter


class SectionedCommand(TyperCommand):
    """Help in sections, in the order in which they first appear; a long list reads better so."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                if parameter.param_type_name == "argument":
                    heading = "Arguments"
                else:
                    heading = getattr(parameter, "rich_help_panel", None) or "Other options"
                sections.setdefault(heading, []).append(record)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def parameters_of(cls: type[Any]) -> list[inspect.Parameter]:
    """A parameter for each field of a dataclass whose annotations are options and arguments; without a default, required."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(cls)
    ]


def sign(function: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function that takes any keywords the signature that Typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def with_options(function: Callable[..., None], cls: type[Any]) -> Callable[..., None]:
    """The function, taking the fields of a dataclass as options."""
    sign(function, parameters_of(cls))
    return function
