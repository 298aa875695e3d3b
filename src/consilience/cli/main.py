"""`consilience COMMAND`: the table of commands and the console script."""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TextIO

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

ENTRY_POINTS = "consilience.protocols"
"""Entry point group of installed protocols."""

AS_JSON = "consilience.json"
"""Key in a context's `meta`: whether the command line contains --json."""


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
                self.commands[name] = LazyCommand(name, "consilience.cli.run:app_for", summary_of(target))
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


class Commands(LazyGroup):
    """One command per installed protocol, then the fixed ones."""

    sections = {
        "Evaluation": {
            "compare": (
                "consilience.cli.compare:compare",
                "Compare protocols on the same tasks at equal budget; reports losses as well as wins.",
            ),
        },
        "Sessions": {
            "show": ("consilience.cli.sessions:show", "Show a session's report or its progress."),
            "resume": (
                "consilience.cli.run:resume",
                "Resume a session; recorded calls are not paid for again.",
            ),
            "replay": ("consilience.cli.sessions:replay", "Run a session again from its record, without model calls."),
            "fork": ("consilience.cli.run:fork", "Continue from an event of a session with changes."),
            "tell": ("consilience.cli.run:tell", "Tell a finished session a new fact and show who moves."),
            "diff": ("consilience.cli.sessions:diff", "Show what differs between two sessions."),
            "due": ("consilience.cli.session_admin:due", "List findings whose deadline is past or near."),
            "resolve": ("consilience.cli.session_admin:resolve", "Record how a question of a session came out."),
            "scores": ("consilience.cli.session_admin:scores", "Show Brier scores of agents and models."),
            "export": ("consilience.cli.sessions:export", "Write a session as JSON, Markdown, HTML, SVG or events."),
            "sessions": (
                "consilience.cli.session_admin:sessions",
                "List, remove or answer sessions; also all commands above.",
            ),
        },
        "Coordination": {
            "workspace": (
                "consilience.cli.workspace:workspace",
                "Coordinate agents in other processes by tickets in a directory.",
            ),
        },
        "Set-up": {
            "models": ("consilience.cli.setup:models", "List, fetch or remove local models."),
            "panels": ("consilience.cli.setup:panels", "List or show panels of personas."),
            "hierarchies": ("consilience.cli.setup:hierarchies", "List or show hierarchies of roles."),
            "schema": ("consilience.cli.setup:schema", "Print the JSON Schemas of reports and exported events."),
            "doctor": ("consilience.cli.doctor:doctor", "Check the installation and show which model would be used."),
        },
    }
    protocols = "Protocols"


app = typer.Typer(
    name="consilience",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog='Try: consilience emergence "Should we …?" --dry-run',
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"consilience {version('consilience')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Put a question to several language-model agents and get an answer with its dissent, its cost and a record that can be
    replayed. Help on a command: consilience COMMAND --help."""


def _null_stream() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _broken_pipe() -> TextIO:
    """Return a pipe without a reader, which behaves like a closed output."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def main() -> None:
    """The console script."""
    gc.set_threshold(50_000, 20, 20)  # reading a long journal makes many lasting objects and few cycles
    sys.stdout = sys.stdout or _broken_pipe()  # None if it was closed (>&-)
    sys.stderr = sys.stderr or _null_stream()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal lacks must not prevent the report
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a write error must be reported here; at interpreter exit it could not be
    except OSError as error:
        from consilience.cli.errors import exit_code_of

        sys.exit(exit_code_of(error))
