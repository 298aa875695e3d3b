"""Kinds of commands: imported when they are used, with help in sections, with options made from annotated dataclasses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from enum import EnumType
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter


GROUP = "consilience.protocols"

Id = Annotated[
    str, typer.Argument(help="The session's id, its beginning, or `last`.", metavar="ID", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
EnvFile = Annotated[
    Path | None, typer.Option(help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE")
]

LISTED = "Separated by commas, or repeated."
REPEATED = "Repeatable."
"""How every option that takes several values ends its help. Names and numbers are `LISTED`, as `names_option` makes them. Values
that may hold commas themselves (paths, texts, KEY=VALUE) are `REPEATED` only."""

ALL = "--help-all"

AS_JSON = "consilience.json"
"""Of a context: whether the command line asks for JSON."""


class LazyCommand(TyperCommand):
    """Stands in a table of commands; becomes `target` (`module:attribute`) when arguments are to be read.

    The attribute is a Typer app, or a function of a name that makes one.
    """

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, short_help=summary, rich_markup_mode=None)
        self.target = target

    def load(self) -> Command:
        from importlib import import_module

        module, _, attribute = self.target.partition(":")
        found = getattr(import_module(module), attribute)
        command = get_command(found if isinstance(found, typer.Typer) else found(self.name))
        command.name = self.name
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        return self.load().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """`sections` maps headings to commands, these to target and summary; protocols come first under their own heading."""

    sections: ClassVar[Mapping[str, Mapping[str, tuple[str, str]]]] = {}
    protocols: ClassVar[str] = ""

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for _, names in self._headed() for name in names]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        for commands in self.sections.values():
            if cmd_name in commands:
                target, summary = commands[cmd_name]
                return self.commands.setdefault(cmd_name, LazyCommand(cmd_name, target, summary))
        self._headed()
        return self.commands.get(cmd_name)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        with _unread():  # --help prints here
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        ctx.meta[AS_JSON] = "--json" in options  # known also where the command never comes to read its options
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Context) -> Any:
        """Run the command; whatever it raises is said in one paragraph, with --json as JSON too, and becomes an exit code."""
        from consilience.cli.errors import MISTAKE, exit_code_of, is_own_affair, tell_as_json

        with _unread():
            try:
                return super().invoke(ctx)
            except (Exception, KeyboardInterrupt) as error:
                if not is_own_affair(error):
                    raise typer.Exit(exit_code_of(error, as_json=ctx.meta[AS_JSON])) from error
                if ctx.meta[AS_JSON] and hasattr(error, "show"):  # a wrong option
                    error.show()
                    tell_as_json(error, MISTAKE)
                    raise typer.Exit(MISTAKE) from error
                raise

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        width = max(len(name) for name in self.list_commands(ctx))
        for heading, names in self._headed():
            rows = [(name.ljust(width), self.commands[name].short_help or "") for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def _headed(self) -> list[tuple[str, list[str]]]:
        """Headings with their names; the table of commands is complete after this."""
        fixed = {name for commands in self.sections.values() for name in commands}
        installed = {name: target for name, target in installed_protocols().items() if name not in fixed}
        for name, target in installed.items():
            if name not in self.commands:
                self.commands[name] = LazyCommand(name, "consilience.cli.options:app_for", summary_of(target))
        for commands in self.sections.values():
            for name, (target, summary) in commands.items():
                self.commands.setdefault(name, LazyCommand(name, target, summary))
        headed = [(heading, list(commands)) for heading, commands in self.sections.items()]
        return [(self.protocols, sorted(installed)), *headed] if installed else headed


@contextmanager
def _unread() -> Iterator[None]:
    """An exit where whoever read the output has left."""
    try:
        yield
    except BrokenPipeError as error:
        from consilience.cli.errors import exit_code_of

        raise typer.Exit(exit_code_of(error)) from error


def installed_protocols() -> dict[str, str]:
    """Names of protocols with where they live, from the metadata of installed packages; none is imported."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def summary_of(target: str) -> str:
    """The first sentence of the docstring of the module an entry point names, read from its file without running it.

    Empty where there is no such file or text.
    """
    import ast
    from importlib.util import find_spec

    try:
        spec = find_spec(target.partition(":")[0])
        source = spec.loader.get_source(spec.name) if spec and spec.loader else None  # type: ignore[attr-defined]
        said = ast.get_docstring(ast.parse(source or "")) or ""
    except (ImportError, AttributeError, SyntaxError, ValueError):
        return ""
    first = re.sub(r"\s*\([^()]*\)\.?$", "", " ".join(said.partition("\n\n")[0].split()))
    return first if not first or first.endswith(".") else f"{first}."


def new_app(cls: type[ListingGroup] | None = None) -> typer.Typer:
    """A command of its own, or with `cls` a group."""
    return typer.Typer(cls=cls, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def names_option(*spelling: str, help: str, metavar: str, kind: Callable[[str], object] = str, **more: Any) -> Any:
    """An option that lists names or numbers: separated by commas, repeated, or both. Its parameter is a list of `kind`.

    On the command line an empty name, or one that `kind` refuses with a `ValueError`, is a `SettingsError`.
    """

    def read(param: typer.CallbackParam, value: Sequence[object] | None) -> list[object] | None:
        if value is None:
            return None
        return [
            _listed_name(name.strip(), kind, where=f"--{(param.name or '').replace('_', '-')}", metavar=metavar)
            for one in value
            for name in str(one).split(",")
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
    """Help in sections, in the order in which they first appear. `--help` shows the options whose names are in `common`, and
    `--help-all` all of them; without `common` both show all."""

    common: ClassVar[frozenset[str]] = frozenset()

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        if ALL in args[:end]:
            ctx.meta[ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        few = bool(self.common) and not ctx.meta.get(ALL)
        parameters = self.get_params(ctx)
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if few and parameter.param_type_name != "argument" and parameter.name not in {*self.common, "help"}:
                continue
            if record is not None:
                if parameter.param_type_name == "argument":
                    heading = "Arguments"
                else:
                    heading = getattr(parameter, "rich_help_panel", None) or "Other options"
                sections.setdefault(heading, []).append(record)
        if few:
            sections.setdefault("Other options", []).append((ALL, f"Show all {len(parameters) - 1} options and exit."))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class ListingGroup(TyperGroup):
    """A group whose default subcommand is `list`: options alone, other than those for help, are options of `list`."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        default = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if default else args)


def parameters_of(cls: type[Any]) -> list[inspect.Parameter]:
    """A parameter for each field of a dataclass whose annotations are options and arguments; without a default, required."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=_default_of(field),
        )
        for field in fields(cls)
    ]


def _default_of(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default


def sign(function: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function that takes any keywords the signature that Typer reads."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def with_options(function: Callable[..., None], cls: type[Any]) -> Callable[..., None]:
    """The function, taking the fields of a dataclass as options."""
    sign(function, parameters_of(cls))
    return function
