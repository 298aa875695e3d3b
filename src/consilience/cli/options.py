"""How options are declared: lists, sections of help, and a request, a dataclass whose fields are the options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, field, fields
from enum import EnumType
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

T = TypeVar("T")


def argument(help: str, metavar: str) -> Any:
    return typer.Argument(help=help, metavar=metavar, show_default=False)


Id = Annotated[str, argument("Session id, a unique prefix of it, or `last`.", "ID")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
EnvFile = Annotated[
    Path | None, typer.Option(help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE")
]

LISTED = "Separated by commas, or repeated."
REPEATED = "Repeatable."
"""The end of the help of an option with several values: `LISTED` for names and numbers (see `names_option`), `REPEATED` for values
that may contain commas (paths, texts, KEY=VALUE)."""

HELP_ALL = "--help-all"
ARGUMENTS = "Arguments"
MODELS = "Agents and models"
MATERIAL = "Documents and prompts"
LIMITS = "Limits"
OUTPUT = "Run and output"
OTHER = "Other options"
LAST_SECTIONS = (MODELS, MATERIAL, LIMITS, OUTPUT, OTHER)
"""Sections of help that follow those of a single command, in this order."""


def new_app(cls: type[ListingGroup] | None = None) -> typer.Typer:
    """Return an app for one command, or with `cls` for a group."""
    return typer.Typer(cls=cls, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def names_option(*spelling: str, help: str, metavar: str, kind: Callable[[str], object] = str, **more: Any) -> Any:
    """Return an option for a list of names or numbers: separated by commas, repeated, or both. Its parameter is a list of `kind`.

    Parsing raises `SettingsError` for an empty name and for one that `kind` rejects with a `ValueError`.
    """

    def read(param: typer.CallbackParam, value: Sequence[object] | None) -> list[object] | None:
        if value is None:
            return None
        return [
            _listed_name(name.strip(), kind, where=f"--{(param.name or '').replace('_', '-')}", metavar=metavar)
            for names in value
            for name in str(names).split(",")
        ]

    return typer.Option(
        *spelling, help=f"{help} {LISTED}".strip(), metavar=f"{metavar},…", parser=str, callback=read, **more
    )


def _listed_name(name: str, kind: Callable[[str], object], *, where: str, metavar: str) -> object:
    from consilience.domain.errors import SettingsError

    if not name:
        raise SettingsError("a name in the list is empty", where=where, do=f"Write {where} {metavar},{metavar}.")
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(map(str, kind)) if isinstance(kind, EnumType) else "numbers"
        raise SettingsError(f"{name!r} is not valid here", where=where, do=f"Use {known}.") from None


class SectionedCommand(TyperCommand):
    """A command whose help has sections: arguments, the command's own, then `LAST_SECTIONS`.

    With `common`, `--help` shows only those options and `--help-all` shows all.
    """

    common: ClassVar[frozenset[str]] = frozenset()

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        if HELP_ALL in args[:end]:
            ctx.meta[HELP_ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {ARGUMENTS: []}
        few = bool(self.common) and not ctx.meta.get(HELP_ALL)
        parameters = self.get_params(ctx)
        for parameter in parameters:
            is_argument = parameter.param_type_name == "argument"
            record = parameter.get_help_record(ctx)
            if record is None or (few and not is_argument and parameter.name not in {*self.common, "help"}):
                continue
            heading = ARGUMENTS if is_argument else getattr(parameter, "rich_help_panel", None) or OTHER
            sections.setdefault(heading, []).append(record)
        if few:
            sections.setdefault(OTHER, []).append((HELP_ALL, f"Show all {len(parameters) - 1} options and exit."))
        order = {heading: n for n, heading in enumerate(LAST_SECTIONS)}
        for heading in sorted(sections, key=lambda heading: order.get(heading, -1)):
            if sections[heading]:
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])


class ListingGroup(TyperGroup):
    """A group whose default subcommand is `list`; options before any subcommand, other than help, belong to `list`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        default = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if default else args)


def option(
    help: str,
    section: str,
    metavar: str | None = None,
    *,
    default: object = None,
    kind: Callable[[str], object] | None = None,
    names: Sequence[str] = (),
    short: str = "",
) -> Any:
    """Return a field of a request dataclass that is an option of its command.

    A flag has no `--no-` form. With `kind` the value is a list; see `names_option`. `names` default to that of the field, `short`
    is a second one.
    """
    spec = {"help": help, "rich_help_panel": section, "metavar": metavar, "show_default": default not in (None, "")}
    metadata = {"option": (spec, kind, names, short)}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def parameters_of(cls: type[Any]) -> list[inspect.Parameter]:
    """Return a parameter per option of a request dataclass, those of the most derived class first."""
    hints = get_type_hints(cls, include_extras=True)
    depth = {name: n for n, base in reversed([*enumerate(cls.__mro__)]) for name in inspect.get_annotations(base)}
    return [
        _parameter(field, hints[field.name]) for field in sorted(options_in(cls), key=lambda field: depth[field.name])
    ]


def options_in(cls: type[Any]) -> list[Field[Any]]:
    """Return the fields of a request dataclass that are options; one with `init=False` is an option that this command lacks."""
    return [field for field in fields(cls) if field.init]


def _parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    if "option" in field.metadata:
        spec, kind, names, short = field.metadata["option"]
        if short or (annotation is bool and not names):
            names = [f"--{field.name.replace('_', '-')}", *([short] if short else [])]
        info = typer.Option(*names, **spec) if kind is None else names_option(*names, kind=kind, **spec)
        annotation = Annotated[annotation, info]
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def set_signature(function: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function of arbitrary keywords the signature that Typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def request_app(name: str, cls: type[T], execute: Callable[[T], int]) -> typer.Typer:
    """Return a command that passes its options, as the dataclass `cls`, to `execute` and exits with the result."""

    def command(**values: Any) -> None:
        raise typer.Exit(execute(cls(**values)))

    set_signature(command, parameters_of(cls))
    app = new_app()
    app.command(name, cls=SectionedCommand, help=inspect.getdoc(execute))(command)
    return app
