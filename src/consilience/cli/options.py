"""The command lines that begin a run: a command for any protocol, its options generated from the settings, and `fork`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from consilience.cli.commands import (
    REPEATED,
    Id,
    SectionedCommand,
    names_option,
    new_app,
    parameters_of,
    sign,
    with_options,
)
from consilience.cli.setting_types import help_of, listed_kind, metavar_of, option_type
from consilience.domain.detail import DetailChoice
from consilience.domain.errors import SettingsError
from consilience.domain.messages import FILE, NO_OPTION
from consilience.domain.outcome import StopReason, ThinkingLevel

if TYPE_CHECKING:
    from consilience.engine.execution import Options
    from consilience.engine.protocol import Protocol


MODELS = "Who takes part"
MATERIAL = "Material"
LIMITS = "Limits"
OUTPUT = "Running and output"


MaxCalls = Annotated[
    int | None, typer.Option(help="Most requests to models, retries included.", metavar="N", rich_help_panel=LIMITS)
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Most tokens read and written, in all.", metavar="N", rich_help_panel=LIMITS)
]
MaxCost = Annotated[
    float | None, typer.Option(help="Most money, in US dollars.", metavar="DOLLARS", rich_help_panel=LIMITS)
]
MaxTime = Annotated[
    float | None, typer.Option(help="Most time, in seconds.", metavar="SECONDS", rich_help_panel=LIMITS)
]
MaxSteps = Annotated[int | None, typer.Option(help="Most rounds.", metavar="N", rich_help_panel=LIMITS)]
AgentLimit = Annotated[
    list[str] | None,
    typer.Option(
        help="What one agent may spend, of calls, tokens, cost, time; * is each of them. Repeatable.",
        metavar="ID:calls=N,…",
        rich_help_panel=LIMITS,
    ),
]
PhaseLimit = Annotated[
    list[str] | None,
    typer.Option(
        help="What one phase may spend: NAME, or NAME/INDEX for one round of it. Repeatable.",
        metavar="NAME:calls=N,…",
        rich_help_panel=LIMITS,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Spend money without asking.", rich_help_panel=OUTPUT)]
Out = Annotated[
    Path | None,
    typer.Option(help="Write the report files into this directory.", metavar="DIR", rich_help_panel=OUTPUT),
]
OpenPage = Annotated[bool, typer.Option("--open", help="Open the report as a page.", rich_help_panel=OUTPUT)]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the report as JSON and nothing else.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the report.", rich_help_panel=OUTPUT)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen and cost, and stop.", rich_help_panel=OUTPUT)
]
Require = Annotated[
    list[StopReason] | None,
    names_option(
        help="Exit with 4 unless the run stopped for one of these reasons.",
        metavar="REASON",
        kind=StopReason,
        rich_help_panel=OUTPUT,
    ),
]
Cache = Annotated[
    bool,
    typer.Option(
        "--cache",
        help="Take recorded replies to the very same requests again, free of charge.",
        rich_help_panel=OUTPUT,
    ),
]
EnvFile = Annotated[
    Path | None,
    typer.Option(help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE", rich_help_panel=OUTPUT),
]
Thinking = Annotated[
    ThinkingLevel | None,
    typer.Option(
        help="How long models that can think do so before the answer: off, minimal, low, medium, high. Default: low.",
        metavar="LEVEL",
        rich_help_panel=MODELS,
        show_default=False,
    ),
]
Detail = Annotated[
    DetailChoice | None,
    typer.Option(
        help="Prompts that agents are shown: full, brief (for small models), or auto: brief if an embedded model has a voice. "
        "Default: auto.",
        metavar="auto|brief|full",
        rich_help_panel=MODELS,
        show_default=False,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Sampling temperature, 0 to 2. Default: the model's own.", metavar="T", rich_help_panel=MODELS),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        help="Max seconds of one request to a model. Default: 300; 900 for a server on this machine or long thinking.",
        metavar="SECONDS",
        rich_help_panel=LIMITS,
    ),
]
HumanDeadline = Annotated[
    float | None,
    typer.Option(
        help="Max seconds of wall time for one answer of a person, parked time included. Default: no limit.",
        metavar="SECONDS",
        rich_help_panel=LIMITS,
    ),
]
Pace = Annotated[
    float,
    typer.Option(
        help="Real seconds per virtual second, to watch a protocol that runs in virtual time; 0 does not wait.",
        metavar="SECONDS",
        rich_help_panel=OUTPUT,
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        help="A directory of templates that replace the protocol's own.", metavar="DIR", rich_help_panel=MATERIAL
    ),
]
OneModel = Annotated[
    str | None,
    typer.Option(
        help="Model of all agents: local, local:NAME, PROVIDER:MODEL, exec:COMMAND, or http://HOST:PORT/v1#NAME at any "
        "OpenAI-compatible endpoint; A|B: B if A fails.",
        metavar="MODEL",
        rich_help_panel=MODELS,
    ),
]
SeveralModels = Annotated[
    list[str] | None,
    names_option(help="Models to assign to the agents in turn.", metavar="MODEL", rich_help_panel=MODELS),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="Encoder that compares texts by embedding: minilm (offline) or PROVIDER:MODEL.",
        metavar="MODEL",
        rich_help_panel=MODELS,
    ),
]


@dataclass(frozen=True)
class Request:
    """One command line, as given. The annotations are the options: their help, and the section they stand in."""

    task: Annotated[
        str,
        typer.Argument(
            help="The question or task; @FILE reads it from a file, - from standard input.",
            metavar="TASK",
            show_default=False,
        ),
    ]
    model: OneModel = None
    models: SeveralModels = None
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="The model of one agent: ID=MODEL, ID=exec:COMMAND, ID=human. Repeatable.",
            metavar="ID=MODEL",
            rich_help_panel=MODELS,
        ),
    ] = None
    encoder: Encoder = None
    panel: Annotated[
        str | None,
        typer.Option(
            help="Personas from a panel: a shipped name (consilience panels), a TOML file, or auto for a proposed one.",
            metavar="NAME|FILE|auto",
            rich_help_panel=MODELS,
        ),
    ] = None
    persona: Annotated[
        list[str] | None,
        typer.Option(
            help='A persona in a few words ("Sceptical CFO" or "CFO: You ask who pays. [horizon=1 year]"). Repeatable.',
            metavar="TEXT",
            rich_help_panel=MODELS,
        ),
    ] = None
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A document to deliberate on; ID=FILE shows it to one agent only. Repeatable.",
            metavar="FILE|DIR|-",
            rich_help_panel=MATERIAL,
        ),
    ] = None
    prompts: Prompts = None
    detail: Detail = None
    thinking: Thinking = None
    temperature: Temperature = None
    deadline: Deadline = None
    human_deadline: HumanDeadline = None
    quorum: Annotated[
        float,
        typer.Option(
            help="Share of agents whose first reply is needed, 0 to 1.", metavar="SHARE", rich_help_panel=LIMITS
        ),
    ] = 0.5
    max_calls: MaxCalls = None
    max_tokens: MaxTokens = None
    max_cost: MaxCost = None
    max_time: MaxTime = None
    max_steps: MaxSteps = None
    agent_limit: AgentLimit = None
    phase_limit: PhaseLimit = None
    seed: Annotated[int, typer.Option(help="Seed of everything drawn.", metavar="N", rich_help_panel=OUTPUT)] = 0
    pace: Pace = 0.0
    dry_run: DryRun = False
    yes: Yes = False
    out: Out = None
    open: OpenPage = False
    json: AsJson = False
    quiet: Quiet = False
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Keep no record; no resume, no replay.", rich_help_panel=OUTPUT)
    ] = False
    cache: Cache = False
    require: Require = None
    env_file: EnvFile = None

    @property
    def options(self) -> Options:
        """How to run, as far as the command line says. Raises `SettingsError` for a value that is out of range."""
        from consilience.engine.execution import Options

        cache = self.cache or None
        return Options(
            cache=cache,
            detail=self.detail,
            thinking=self.thinking,
            temperature=self.temperature,
            deadline=self.deadline,
            human_deadline=self.human_deadline,
            pace=self.pace,
        )


SETTINGS = "Settings of {}"

COMMON = frozenset({"model", "models", "source", "max_cost", "out", "open", "dry_run"})
"""With the first `COMMON_SETTINGS` settings of the protocol the ten options that `--help` shows."""

COMMON_SETTINGS = 3


def app_for(name: str) -> typer.Typer:
    """The command of the protocol of that name. Raises `UnknownName`."""
    from consilience.engine.protocol import find_protocol

    cls = find_protocol(name)

    def command(ctx: typer.Context, **values: object) -> None:
        from consilience.cli.run import run

        common = {field.name: values.pop(field.name) for field in fields(Request)}
        given = {
            field: _value(cls, field, values[option])
            for option, field in _options(cls).items()
            if _was_given(ctx, option)
        }
        raise typer.Exit(run(cls, Request(**common), given))  # type: ignore[arg-type]

    parameters = [_context(), *parameters_of(Request)]
    parameters[2:2] = [_parameter(cls, option, field) for option, field in _options(cls).items()]
    sign(command, parameters)

    class ProtocolCommand(SectionedCommand):
        common = COMMON | frozenset([name for name in _options(cls) if name != "reply_tokens"][:COMMON_SETTINGS])

    app = new_app()
    app.command(name, cls=ProtocolCommand, help=f"{name}: {cls.summary}.")(command)
    return app


def option_of(cls: type[Protocol], field: str) -> str:
    """The option that sets a field: `--max-rounds`; with the protocol's name in front where all protocols have one so named."""
    taken = field in {common.name for common in fields(Request)}
    return f"--{f'{cls.name}-' if taken else ''}{field.replace('_', '-')}"


def _options(cls: type[Protocol]) -> dict[str, str]:
    """Parameter names of the protocol's own options, with the fields they set."""
    shown = [field for field, info in cls.model_fields.items() if NO_OPTION not in info.metadata]
    return {option_of(cls, field).removeprefix("--").replace("-", "_"): field for field in shown}


def _was_given(ctx: typer.Context, option: str) -> bool:
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _value(cls: type[Protocol], field: str, given: object) -> object:
    """What an option gives its field: the text of the file, where it takes one. Raises `SettingsError`, `SourceError`."""
    if isinstance(given, list | tuple) and any(isinstance(one, str) and not one.strip() for one in given):
        raise SettingsError("a text is empty", where=option_of(cls, field), do="Give words, or leave it out.")
    if FILE not in cls.model_fields[field].metadata:
        return given
    from consilience.cli.inputs import read_file

    return read_file(str(given), f"the {field}")


def _context() -> inspect.Parameter:
    return inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def _parameter(cls: type[Protocol], option: str, field: str) -> inspect.Parameter:
    info = cls.model_fields[field]
    annotation, default = option_type(info.annotation), info.get_default(call_default_factory=True)
    spelling = option_of(cls, field)
    if annotation in (bool, bool | None):
        spelling = f"{spelling}/--no-{spelling.removeprefix('--')}"
    if isinstance(default, tuple | list | frozenset):
        default = list(default)
    if isinstance(default, Enum):
        default = default.value
    shown: bool | str = default not in ("", None, []) if not isinstance(default, list) else bool(default)
    form = "FILE|-" if FILE in info.metadata else metavar_of(annotation)
    more: dict[str, Any] = {"show_default": shown, "rich_help_panel": SETTINGS.format(cls.name)}
    listed = listed_kind(info.annotation)
    if listed is not None:
        form = "NAME" if listed is str else form
        described = names_option(spelling, help=help_of(info), metavar=form or "NAME", kind=listed, **more)
    else:
        repeated = f" {REPEATED}" if get_origin(annotation) is list else ""
        described = typer.Option(spelling, help=f"{help_of(info)}{repeated}".strip(), metavar=form, **more)
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, described], default=default
    )


CHANGES = "What is changed"

fork = new_app()


@dataclass(frozen=True)
class ForkRequest:
    """One command line of `fork`, as given; the annotations are its options."""

    id: Id
    at: Annotated[
        str,
        typer.Option(
            help="The last event to keep: its number, a call's key, PHASE/INDEX, or end (show ID --events lists them).",
            metavar="EVENT",
            show_default=False,
        ),
    ]
    set: Annotated[
        list[str] | None,
        typer.Option(help="A setting of the protocol. Repeatable.", metavar="KEY=VALUE", rich_help_panel=CHANGES),
    ] = None
    replace_agent: Annotated[
        list[str] | None,
        typer.Option(help="Another model for one agent. Repeatable.", metavar="ID=MODEL", rich_help_panel=CHANGES),
    ] = None
    perspective: Annotated[
        list[str] | None,
        typer.Option(
            help="Another point of view for one agent. Repeatable.", metavar="ID=TEXT", rich_help_panel=CHANGES
        ),
    ] = None
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A document to add; one with the name of a recorded document replaces it. ID=FILE shows it to one agent. "
            "Repeatable.",
            metavar="FILE|DIR|-",
            rich_help_panel=CHANGES,
        ),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            help="Another task; @FILE reads it from a file, - from standard input.",
            metavar="TASK",
            rich_help_panel=CHANGES,
        ),
    ] = None
    model: OneModel = None
    models: SeveralModels = None
    encoder: Encoder = None
    prompts: Prompts = None
    detail: Detail = None
    thinking: Thinking = None
    temperature: Temperature = None
    deadline: Deadline = None
    human_deadline: HumanDeadline = None
    max_calls: MaxCalls = None
    max_tokens: MaxTokens = None
    max_cost: MaxCost = None
    max_time: MaxTime = None
    max_steps: MaxSteps = None
    agent_limit: AgentLimit = None
    phase_limit: PhaseLimit = None
    dry_run: DryRun = False
    yes: Yes = False
    out: Out = None
    open: OpenPage = False
    json: AsJson = False
    quiet: Quiet = False
    cache: Cache = False
    require: Require = None
    env_file: EnvFile = None

    @property
    def request(self) -> Request:
        """What it shares with a run."""
        shared = {field.name for field in fields(Request)} - {"task"}
        return Request(task="", **{name: value for name, value in vars(self).items() if name in shared})


def _fork(**given: object) -> None:
    """Go on from a point of a session with something changed, in a new session that inherits what came before.

    Nothing inherited is paid for again. Limits count what the fork itself spends; those not given are the parent's.
    """
    from consilience.cli.fork import run_fork

    raise typer.Exit(run_fork(ForkRequest(**given)))  # type: ignore[arg-type]


fork.command("fork", cls=SectionedCommand)(with_options(_fork, ForkRequest))
