"""Building blocks of commands: lazy imports, help in sections, options from the fields of dataclasses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, field, fields
from enum import EnumType
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

T = TypeVar("T")

ENTRY_POINTS = "consilience.protocols"
"""Entry point group of installed protocols."""

Id = Annotated[
    str, typer.Argument(help="Session id, a unique prefix of it, or `last`.", metavar="ID", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
EnvFile = Annotated[
    Path | None, typer.Option(help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE")
]

LISTED = "Separated by commas, or repeated."
REPEATED = "Repeatable."
"""The end of the help of an option with several values: `LISTED` for names and numbers (see `names_option`), `REPEATED` for values
that may contain commas (paths, texts, KEY=VALUE)."""

HELP_ALL = "--help-all"
AS_JSON = "consilience.json"
"""Key in a context's `meta`: whether the command line contains --json."""

ARGUMENTS = "Arguments"
MODELS = "Agents and models"
MATERIAL = "Documents and prompts"
LIMITS = "Limits"
OUTPUT = "Run and output"
OTHER = "Other options"
LAST_SECTIONS = (MODELS, MATERIAL, LIMITS, OUTPUT, OTHER)
"""Sections of help that follow those of a single command, in this order."""


class LazyCommand(TyperCommand):
    """A command that imports its implementation, `target` (`module:attribute`), when it is called.

    The attribute is a Typer app, or a function from the command's name to a Typer app.
    """

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, short_help=summary, rich_markup_mode=None)
        self.target = target

    def load(self) -> Command:
        from importlib import import_module

        module, _, attribute = self.target.partition(":")
        app = getattr(import_module(module), attribute)
        command = get_command(app if isinstance(app, typer.Typer) else app(self.name))
        command.name = self.name
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        return self.load().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group with one command per installed protocol, under the heading `protocols`, followed by `sections`: heading → command
    name → (target, summary)."""

    sections: ClassVar[Mapping[str, Mapping[str, tuple[str, str]]]] = {}
    protocols: ClassVar[str] = ""

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for _, names in self._commands_by_heading() for name in names]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        for commands in self.sections.values():
            if cmd_name in commands:
                target, summary = commands[cmd_name]
                return self.commands.setdefault(cmd_name, LazyCommand(cmd_name, target, summary))
        self._commands_by_heading()
        return self.commands.get(cmd_name)

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        with _exit_on_broken_pipe():  # --help prints here
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        ctx.meta[AS_JSON] = "--json" in options  # needed before the command parses its options
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Context) -> Any:
        """Run the command. An exception is reported in one paragraph, with --json also as JSON, and becomes an exit code."""
        from pydantic import ValidationError

        from consilience.cli.errors import EXIT_USAGE, exit_code_of, is_handled_by_typer, print_error_json
        from consilience.domain.validation import describe_invalid

        with _exit_on_broken_pipe():
            try:
                return super().invoke(ctx)
            except (Exception, KeyboardInterrupt) as error:
                if not is_handled_by_typer(error):
                    raise typer.Exit(exit_code_of(error, as_json=ctx.meta[AS_JSON])) from error
                if isinstance(error.__cause__, ValidationError) and hasattr(error, "message"):  # of an option
                    error.message = describe_invalid(error.__cause__)
                if ctx.meta[AS_JSON] and hasattr(error, "show"):  # an invalid option
                    error.show()
                    print_error_json(error, EXIT_USAGE)
                    raise typer.Exit(EXIT_USAGE) from error
                raise

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        width = max(len(name) for name in self.list_commands(ctx))
        for heading, names in self._commands_by_heading():
            rows = [(name.ljust(width), self.commands[name].short_help or "") for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def _commands_by_heading(self) -> list[tuple[str, list[str]]]:
        """Return command names by heading, after registering every command."""
        fixed = {name for commands in self.sections.values() for name in commands}
        installed = {name: target for name, target in installed_protocols().items() if name not in fixed}
        for name, target in installed.items():
            if name not in self.commands:
                self.commands[name] = LazyCommand(name, "consilience.cli.run_commands:app_for", summary_of(target))
        for commands in self.sections.values():
            for name, (target, summary) in commands.items():
                self.commands.setdefault(name, LazyCommand(name, target, summary))
        by_heading = [(heading, list(commands)) for heading, commands in self.sections.items()]
        return [(self.protocols, sorted(installed)), *by_heading] if installed else by_heading


@contextmanager
def _exit_on_broken_pipe() -> Iterator[None]:
    """Turn a broken pipe into an exit code."""
    try:
        yield
    except BrokenPipeError as error:
        from consilience.cli.errors import exit_code_of

        raise typer.Exit(exit_code_of(error)) from error


def installed_protocols() -> dict[str, str]:
    """Return `module:attribute` by protocol name, from package metadata, without importing any."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def summary_of(target: str) -> str:
    """Return the first paragraph of the docstring of an entry point's module, read from its file without importing it.

    Empty if there is no file or no docstring.
    """
    import ast
    from importlib.util import find_spec

    try:
        spec = find_spec(target.partition(":")[0])
        source = spec.loader.get_source(spec.name) if spec and spec.loader else None  # type: ignore[attr-defined]
        docstring = ast.get_docstring(ast.parse(source or "")) or ""
    except (ImportError, AttributeError, SyntaxError, ValueError):
        return ""
    first = re.sub(r"\s*\([^()]*\)\.?$", "", " ".join(docstring.partition("\n\n")[0].split()))
    return first if not first or first.endswith(".") else f"{first}."


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
    """Return a parameter per field of a request dataclass, those of the most derived class first."""
    hints = get_type_hints(cls, include_extras=True)
    own = inspect.get_annotations(cls)
    return [
        _parameter(field, hints[field.name]) for field in sorted(fields(cls), key=lambda field: field.name not in own)
    ]


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
