"""`consilience COMMAND`: the table of commands and the console script."""

from __future__ import annotations

import gc
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import takewhile
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

ENTRY_POINTS = "consilience.protocols"
"""Entry point group of installed protocols."""

AS_JSON = "consilience.json"
"""Key in a context's `meta`: whether the command line contains --json."""


ASKING = ("run", "start", "new", "chat", "query", "deliberate", "discuss")
"""Words that other tools have for a command that takes a question."""

SEARCHING = ("search", "find", "grep", "history")
"""Words that other tools have for a command that finds sessions."""
MAX_SHOWN_CHARS = 60


class LazyCommand(TyperCommand):
    """A command that imports its implementation when it is called: `target` is the module of this package that has a Typer app of
    the command's name, or `module:attribute` with a function from that name to an app."""

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, short_help=summary, rich_markup_mode=None)
        self.name: str = name
        self.target = target

    def load(self) -> Command:
        from importlib import import_module

        module, _, attribute = self.target.partition(":")
        app = getattr(import_module(f"consilience.cli.{module}"), attribute or self.name)
        command = get_command(app(self.name) if attribute else app)
        command.name = self.name
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        return self.load().make_context(info_name, args, parent, **extra)


FRONT_DOOR = {
    "Start here": [
        LazyCommand("ask", "ask:app_for", "Answer a question or do a piece of work: chooses how, says what it costs.")
    ]
}
SECTIONS = {
    "Evaluation": [
        LazyCommand(
            "compare", "compare", "Compare protocols on the same tasks at equal budget; reports losses as well as wins."
        )
    ],
    "Sessions": [
        LazyCommand("show", "sessions", "Show a session's report or its progress."),
        LazyCommand("resume", "run:resume_app", "Resume a session; recorded calls are not paid for again."),
        LazyCommand("replay", "sessions", "Run a session again from its record, without model calls."),
        LazyCommand("fork", "forks:fork_app", "Continue from an event of a session with changes."),
        LazyCommand("tell", "forks", "Tell a finished session a new fact; show which agents change position."),
        LazyCommand("diff", "sessions", "Show what differs between two sessions."),
        LazyCommand("due", "follow_up", "List findings whose deadline is past or near."),
        LazyCommand("resolve", "follow_up", "Record the outcome of a question of a session."),
        LazyCommand("scores", "follow_up", "Show Brier scores of agents and models."),
        LazyCommand("export", "sessions", "Write a session as JSON, Markdown, HTML, SVG or events."),
        LazyCommand("sessions", "session_admin", "List or remove sessions, or answer their questions."),
    ],
    "Server": [LazyCommand("serve", "serve", "Serve sessions over HTTP.")],
    "Coordination": [
        LazyCommand("workspace", "workspace", "Coordinate agents in other processes by tickets in a directory.")
    ],
    "Servers": [
        LazyCommand("mcp", "mcp", "Serve tools to an agent that speaks MCP, over standard input and output."),
    ],
    "Set-up": [
        LazyCommand("models", "setup", "List, fetch or remove local models."),
        LazyCommand("panels", "setup", "List or show panels of personas."),
        LazyCommand("hierarchies", "setup", "List or show hierarchies of roles."),
        LazyCommand("prompts", "prompts", "List, print or copy the prompt templates of a protocol."),
        LazyCommand("schema", "setup", "Print the JSON Schemas of reports and exported events."),
        LazyCommand("doctor", "doctor", "Check the installation and show which model would be used."),
    ],
}
"""The commands that belong to no protocol, by heading."""

FIXED = {command.name: command for commands in (*FRONT_DOOR.values(), *SECTIONS.values()) for command in commands}


class Commands(TyperGroup):
    """`ask`, one command per installed protocol, then those of `SECTIONS`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._protocols: dict[str, LazyCommand] = {}

    def list_commands(self, ctx: Context) -> list[str]:
        return [command.name for _, commands in self._by_heading() for command in commands]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name in FIXED:
            return FIXED[cmd_name]
        self._by_heading()
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and (advice := self._advice(ctx, args)):
            ctx.fail(f"No such command {shorten(args[0], MAX_SHOWN_CHARS, placeholder=' …')!r}. {advice}")
        if args and _is_question(args[0]) and self.get_command(ctx, args[0]) is None:
            args = ["ask", *args]
        return super().resolve_command(ctx, args)

    def _advice(self, ctx: Context, args: list[str]) -> str:
        """Return the command to try in place of an unknown one; empty if only its spelling may be wrong."""
        from consilience.domain.session_ids import is_session_word

        word, *rest = args
        named = next((name for name in rest if self.get_command(ctx, name) is not None), "")
        if word in ("list", "ls"):
            return "Did you mean 'sessions list'?"
        if word == "help":
            return f"Try: consilience {f'{named} ' if named else ''}--help"
        if word == "version":
            return "Try: consilience --version"
        if is_session_word(word):
            words = [shlex.quote(other) for other in rest if other != named and not other.startswith("-")]
            follow_up = " ".join(words) or '"And …?"'
            return f"To show a session: consilience show {word}. To follow it up: consilience ask {word} {follow_up}"
        if word in ASKING or (named and _is_question(word)):
            words = rest if word in ASKING else args
            words = [other for other in words if other != named]
            command = " ".join(map(shlex.quote, words)) or '"Should we …?"'
            return f"Try: consilience {named or 'ask'} {command}"
        if word in SEARCHING:
            return f"Try: consilience sessions list {shlex.join(rest)}".rstrip()
        question = list(takewhile(lambda part: not part.startswith("-"), args))
        if len(question) > 2 and not get_close_matches(word, self.list_commands(ctx)):
            return f"Put a question in quotation marks: consilience {shlex.quote(' '.join(question))}"
        return ""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        with _exit_on_broken_pipe():  # --help prints here
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        options = args[: args.index("--")] if "--" in args else args
        ctx.meta[AS_JSON] = "--json" in options  # needed before the command parses its options
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "option_name"):
                from consilience.cli.errors import add_usage_advice

                add_usage_advice(error)
            raise

    def invoke(self, ctx: Context) -> Any:
        """Run the command. An exception is reported in one paragraph, with --json also as JSON, and becomes an exit code."""
        from pydantic import ValidationError

        from consilience.cli.errors import (
            EXIT_USAGE,
            add_usage_advice,
            exit_code_of,
            is_handled_by_typer,
            print_error_json,
        )
        from consilience.domain.validation import describe_invalid

        with _exit_on_broken_pipe():
            try:
                return super().invoke(ctx)
            except (Exception, KeyboardInterrupt) as error:
                if not is_handled_by_typer(error):
                    raise typer.Exit(exit_code_of(error, as_json=ctx.meta[AS_JSON])) from error
                if isinstance(error.__cause__, ValidationError) and hasattr(error, "message"):  # of an option
                    error.message = describe_invalid(error.__cause__)
                add_usage_advice(error)
                if ctx.meta[AS_JSON] and hasattr(error, "show"):  # an invalid option
                    error.show()
                    print_error_json(error, EXIT_USAGE)
                    raise typer.Exit(EXIT_USAGE) from error
                raise

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        width = max(len(name) for name in self.list_commands(ctx))
        for heading, commands in self._by_heading():
            with formatter.section(heading):
                formatter.write_dl([(command.name.ljust(width), command.short_help or "") for command in commands])

    def _by_heading(self) -> list[tuple[str, list[LazyCommand]]]:
        """Register every command, and return all by heading."""
        installed = {name: target for name, target in sorted(entry_point_targets().items()) if name not in FIXED}
        for name, target in installed.items():
            if name not in self._protocols:
                self._protocols[name] = LazyCommand(name, "run:app_for", summary_of(target))
        self.commands = {**self._protocols, **FIXED}
        protocols = {"Protocols": [self._protocols[name] for name in installed]} if installed else {}
        return [*FRONT_DOOR.items(), *protocols.items(), *SECTIONS.items()]


def _is_question(word: str) -> bool:
    """Return whether a word in place of a command is a task for `ask`."""
    return len(word.split()) > 1 or word.endswith("?") or not word.isascii()


@contextmanager
def _exit_on_broken_pipe() -> Iterator[None]:
    """Turn a broken pipe into an exit code."""
    try:
        yield
    except BrokenPipeError as error:
        from consilience.cli.errors import exit_code_of

        raise typer.Exit(exit_code_of(error)) from error


def entry_point_targets() -> dict[str, str]:
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


app = typer.Typer(
    name="consilience",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog='Try: consilience "Should we …?" --dry-run',
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
