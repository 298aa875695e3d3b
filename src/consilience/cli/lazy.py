"""Commands that are imported when they are used. Their names and summaries are known without that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

GROUP = "consilience.protocols"

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
        from consilience.cli.failures import MISTAKE, exit_code_of, is_own_affair, tell_as_json

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
                self.commands[name] = LazyCommand(name, "consilience.cli.protocol:app_for", summary_of(target))
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
        from consilience.cli.failures import exit_code_of

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
