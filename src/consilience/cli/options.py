"""The options of commands: how they are declared, and requests, dataclasses whose fields are the options of one command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import EnumType
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from consilience.documents.dealing import Deal
from consilience.domain.detail import DetailChoice
from consilience.domain.outcome import StopReason, ThinkingLevel

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

    from consilience.engine.execution import Options
    from consilience.models.endpoints import Endpoints

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
MATERIAL = "Documents"
LIMITS = "Limits"
OUTPUT = "Run and output"
CHANGES = "Changes"
TARGET = "Target"
OTHER = "Other options"
LAST_SECTIONS = (MODELS, MATERIAL, LIMITS, OUTPUT, OTHER)
"""Sections of help that follow those of a single command, in this order."""


def new_app(cls: type[ListingGroup] | None = None, **options: Any) -> typer.Typer:
    """Return an app for one command, or with `cls` for a group."""
    return typer.Typer(cls=cls, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options)


def names_option(*spelling: str, help: str, metavar: str, kind: Callable[[str], object] = str, **options: Any) -> Any:
    """Return an option for a list of names or numbers: separated by commas, repeated, or both. Its parameter is a list of `kind`.

    Parsing raises `SettingsError` for an empty name and for one that `kind` rejects with a `ValueError`.
    """

    def read(param: typer.CallbackParam, value: Sequence[object] | None) -> list[object] | None:
        if value is None:
            return None
        return [
            _listed_name(name.strip(), kind, option=f"--{(param.name or '').replace('_', '-')}", metavar=metavar)
            for names in value
            for name in str(names).split(",")
        ]

    return typer.Option(
        *spelling, help=f"{help} {LISTED}".strip(), metavar=f"{metavar},…", parser=str, callback=read, **options
    )


def _listed_name(name: str, kind: Callable[[str], object], *, option: str, metavar: str) -> object:
    from consilience.domain.errors import SettingsError

    if not name:
        raise SettingsError("a name in the list is empty", where=option, do=f"Write {option} {metavar},{metavar}.")
    try:
        return kind(name)
    except ValueError:
        choices = ", ".join(map(str, kind)) if isinstance(kind, EnumType) else "numbers"
        raise SettingsError(f"{name!r} is not valid here", where=option, do=f"Use {choices}.") from None


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
) -> Any:
    """Return a field of a request dataclass that is an option of its command.

    A flag has no `--no-` form. With `kind` the value is a list; see `names_option`. `names` default to that of the field.
    """
    spec = {"help": help, "rich_help_panel": section, "metavar": metavar, "show_default": default not in (None, "")}
    metadata = {"option": (spec, kind, names)}
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
    return [field for field in fields(cls) if field.init and "declared" not in field.metadata]


def _parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    if "option" in field.metadata:
        spec, kind, names = field.metadata["option"]
        if annotation is bool and not names:
            names = [f"--{field.name.replace('_', '-')}"]
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


def request_app(
    name: str,
    cls: type[T],
    execute: Callable[[T], int],
    *,
    command_class: type[SectionedCommand] = SectionedCommand,
    parameters: Sequence[inspect.Parameter] = (),
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> typer.Typer:
    """Return a command that passes its options, as the dataclass `cls`, to `execute` and exits with the result.

    `read` returns the fields of `cls` from the values of its options and of further `parameters`.
    """

    def command(**values: Any) -> None:
        raise typer.Exit(execute(cls(**read(values))))

    set_signature(command, [*parameters_of(cls), *parameters])
    app = new_app()
    app.command(name, cls=command_class, help=inspect.getdoc(execute))(command)
    return app


# --- requests


@dataclass(frozen=True, kw_only=True)
class SpendingRequest:
    """Options of every command that may spend money."""

    deadline: float | None = option(
        "Max seconds per request to a model. Default: 300; 900 for a server on this machine or long thinking; in a resume "
        "or fork, as recorded.",
        LIMITS,
        "SECONDS",
    )
    yes: bool = option("Spend money without asking.", OUTPUT, names=("--yes", "-y"), default=False)
    out: Path | None = option("Write the report files into this directory.", OUTPUT, "DIR")
    json: bool = option("Print the report as JSON and nothing else.", OUTPUT, default=False)
    quiet: bool = option("Print the report without progress.", OUTPUT, names=("--quiet", "-q"), default=False)
    env_file: Path | None = option("Read environment variables (KEY=VALUE lines) first.", OUTPUT, "FILE")
    key_to: list[str] | None = option(
        "Addresses of endpoints that get your key although you do not name their models: a file or the journal does.",
        OUTPUT,
        "ADDRESS",
        kind=str,
    )

    @property
    def endpoints_named(self) -> list[str]:
        """The names of models, and the addresses, on the command line. Raises `SettingsError` for an invalid address."""
        from consilience.domain.errors import SettingsError
        from consilience.domain.model_names import is_endpoint

        addresses = self.key_to or []
        if invalid := next((address for address in addresses if not is_endpoint(address)), None):
            raise SettingsError(
                f"{invalid!r} is not the address of an endpoint",
                where="--key-to",
                do="Write --key-to http://HOST:PORT/v1.",
            )
        by_agent = [getattr(self, name, None) or () for name in ("agent", "replace_agent")]
        names = [getattr(self, "model", None), getattr(self, "encoder", None), *(getattr(self, "models", None) or ())]
        names += [argument.partition("=")[2] for arguments in by_agent for argument in arguments]
        return [*addresses, *(name for name in names if name)]

    def options(self, known: Endpoints) -> Options:
        """Return how sessions are executed: those of `Options` that the command has, and the `known` endpoints.

        Raises `SettingsError` for a value out of range.
        """
        from consilience.cli.errors import with_options
        from consilience.domain.validation import InvalidValues
        from consilience.engine.execution import Options

        names = [name for name in Options.__dataclass_fields__ if getattr(self, name, False) is not False]
        try:  # the command asks for consent to an unknown cost
            return Options(allow_unpriced=True, endpoints=known, **{name: getattr(self, name) for name in names})
        except InvalidValues as error:
            raise with_options(error, dict(zip(names, names, strict=True)), names) from None


@dataclass(frozen=True, kw_only=True)
class DeliveryRequest(SpendingRequest):
    """Options of every command that runs a session: what becomes of its report."""

    open: bool = option("Open the report in a browser.", OUTPUT, default=False)
    require: list[StopReason] | None = option(
        "Exit with 4 unless the run stopped for one of these reasons.", OUTPUT, "REASON", kind=StopReason
    )

    format: str | None = field(default=None, metadata={"declared": True})
    asked: Mapping[str, str] = field(default_factory=dict, metadata={"declared": True})
    """What the options that the report declares ask for, by parameter."""

    @property
    def output_format(self) -> str:
        """The format in which the report is printed; `text` is Markdown, rendered on a terminal."""
        return "json" if self.json else self.format or "text"

    @property
    def deliveries(self) -> Mapping[str, str]:
        """What a session records of all this, for its resume. A directory keeps its place."""
        recorded = dict(self.asked)
        if self.output_format != "text":
            recorded["format"] = self.output_format
        if self.out is not None:
            recorded["out"] = str(self.out.absolute())
        return recorded

    def repeated(self, known: Endpoints) -> list[str]:
        """Return the options that `resume` needs again, because no session records them."""
        words = [word for reason in self.require or () for word in ("--require", str(reason))]
        only_here = known.only_named(self.endpoints_named)
        return [*words, *(word for address in only_here for word in ("--key-to", address))]


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(DeliveryRequest):
    """Options of `resume`."""

    id: Id
    pace: float = option(
        "Real seconds per virtual second for new events; 0 does not wait.", OUTPUT, "SECONDS", default=0.0
    )


@dataclass(frozen=True, kw_only=True)
class PlannedRequest(SpendingRequest):
    """Options of every command that plans new calls: which models get what, and within which limits."""

    model: str | None = option(
        "Model of all agents: local, local:NAME, PROVIDER:MODEL, exec:COMMAND, or http://HOST:PORT/v1#NAME at"
        " any OpenAI-compatible endpoint; A|B: B if A fails.",
        MODELS,
        "MODEL",
    )
    models: list[str] | None = option("Models to assign to the agents in turn.", MODELS, "MODEL", kind=str)
    source: list[str] | None = option(
        "A document to deliberate on; ID,ID=FILE shows it to these agents only, named by id or persona. Repeatable.",
        MATERIAL,
        "FILE|DIR|-",
    )
    detail: DetailChoice | None = option(
        "Length of the prompts: full, brief (for small models), or auto (brief if an agent runs on an embedded "
        "model). Default: auto; in a fork, the parent's.",
        MODELS,
        "auto|brief|full",
    )
    thinking: ThinkingLevel | None = option(
        "Thinking before the answer, for models that can think: off, minimal, low, medium, high. Default: low; in a "
        "fork, the parent's.",
        MODELS,
        "LEVEL",
    )
    temperature: float | None = option(
        "Sampling temperature, 0 to 2. Default: the model's own; in a fork, the parent's.", MODELS, "T"
    )
    max_cost: float | None = option("Max cost in US dollars.", LIMITS, "DOLLARS")
    max_seconds: float | None = option("Max time in seconds.", LIMITS, "SECONDS", names=("--max-seconds", "--max-time"))
    dry_run: bool = option("Show agents, calls and cost without running.", OUTPUT, default=False)


@dataclass(frozen=True, kw_only=True)
class SessionRequest(PlannedRequest, DeliveryRequest):
    """Options that a run and a fork share: each makes one new session."""

    encoder: str | None = option(
        "Embedding model for text similarity: minilm (offline) or PROVIDER:MODEL.", MODELS, "MODEL"
    )
    prompts: list[Path] | None = option(
        "Directory of prompt templates that replace those of the protocol (consilience prompts).", MODELS, "DIR"
    )
    human_deadline: float | None = option(
        "Max seconds per answer of a person, including time while the session is parked. Default: no limit; in a "
        "fork, the parent's.",
        LIMITS,
        "SECONDS",
    )
    max_calls: int | None = option("Max requests to models, including retries.", LIMITS, "N")
    max_tokens: int | None = option("Max tokens in total, input and output.", LIMITS, "N")
    max_steps: int | None = option("Max rounds, iterations or passes; in debate, max messages.", LIMITS, "N")
    agent_limit: list[str] | None = option(
        "Limit for one agent (calls, tokens, cost, seconds); * for every agent. Repeatable.", LIMITS, "ID:calls=N,…"
    )
    phase_limit: list[str] | None = option(
        "Limit for one phase (NAME) or one round of it (NAME/INDEX). Repeatable.", LIMITS, "NAME:calls=N,…"
    )
    name: str = option("Name of the session, by which show and sessions find it.", OUTPUT, "NAME", default="")
    cache: bool = option("Reuse recorded replies to identical requests (free).", OUTPUT, default=False)

    @property
    def prompts_directory(self) -> Path | None:
        """The directory of `--prompts`. Raises `SettingsError` for several."""
        from consilience.domain.errors import SettingsError

        if self.prompts and len(self.prompts) > 1:
            raise SettingsError(
                f"{len(self.prompts)} directories of prompts are given",
                where="--prompts",
                do="Give one directory that contains all the templates to replace.",
            )
        return self.prompts[0] if self.prompts else None


@dataclass(frozen=True, kw_only=True)
class NewSessionRequest(SessionRequest):
    """Options of every command of a protocol: it begins a session."""

    agent: list[str] | None = option(
        "Model of one agent, as for --model; or human, or workspace:DIR[#NAME]. --dry-run lists the ids. Repeatable.",
        MODELS,
        "ID=MODEL",
    )
    panel: str | None = option(
        "Personas from a panel: a shipped name (consilience panels), a TOML file, or auto for a proposed one.",
        MODELS,
        "NAME|FILE|auto",
    )
    persona: list[str] | None = option(
        'A persona in a few words ("Sceptical CFO" or "CFO: You ask who pays. [horizon=1 year]"). Repeatable.',
        MODELS,
        "TEXT",
    )
    quorum: float = option("Min share of agents that must give a first reply, 0 to 1.", LIMITS, "SHARE", default=0.5)
    seed: int = option("Random seed.", OUTPUT, "N", default=0)
    pace: float = option(
        "Real seconds per virtual second, for protocols that run in virtual time; 0 does not wait.",
        OUTPUT,
        "SECONDS",
        default=0.0,
    )
    no_store: bool = option("Record nothing; the run cannot be resumed or replayed.", OUTPUT, default=False)


@dataclass(frozen=True, kw_only=True)
class RunRequest(NewSessionRequest):
    """Options of a protocol's command, without the protocol's own settings."""

    task: Annotated[str, argument("The question or task; @FILE reads it from a file, - from standard input.", "TASK")]
    deal: Deal = option("Deal documents to agents: auto, document, directory, size.", MATERIAL, "HOW", default="none")
    inventory_tokens: int | None = option("Max tokens of a reader's inventory; 0: none. Default: 2000.", MATERIAL, "N")


@dataclass(frozen=True, kw_only=True)
class TargetRequest(NewSessionRequest):
    """Options of the command of a protocol that reads a target, without the protocol's own settings."""

    target: Annotated[
        list[str] | None,
        argument(
            "Files, directories, a .diff file, or - for standard input; with --diff, paths that select changed files. "
            "Default: the uncommitted changes.",
            "TARGET",
        ),
    ] = None
    diff: str | None = option(
        "Changes that Git records: main..HEAD, main...HEAD, COMMIT (the files against it) or COMMIT^! (its own).",
        TARGET,
        "RANGE",
    )
    staged: bool = option("Changes in the index of Git.", TARGET, default=False)
    include: list[str] | None = option(
        "Read what is otherwise left out: lock files, generated, minified and large files. A pattern as in .gitignore. "
        "Repeatable.",
        TARGET,
        "PATTERN",
    )
    since: str | None = option(
        "What was reviewed before: a session, a commit, or a file of the GitHub action. Only what is new in the change "
        "since then is read, and known findings are not reported again.",
        TARGET,
        "SESSION|COMMIT|FILE",
    )
    context: list[str] | None = option(
        "A file or directory that is read and may be quoted, and is not under review. Repeatable.", TARGET, "FILE|DIR"
    )
    rules: str | None = option(
        "The rules of the project. Default: its REVIEW.md, else AGENTS.md or CLAUDE.md, from the base of the changes.",
        TARGET,
        "FILE",
    )
    intent: list[str] | None = option(
        "What the author says of the changes, beside the commit messages: a pull request's text, an issue. Repeatable.",
        TARGET,
        "FILE",
    )
    evidence: list[str] | None = option(
        "SARIF that linters wrote of the files under review. Repeatable.", TARGET, "FILE"
    )
    focus: str | None = option("What to look for; @FILE reads it from a file, - from standard input.", TARGET, "TEXT")
    source: list[str] | None = field(default=None, init=False)
