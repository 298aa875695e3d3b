"""What commands that run sessions are asked for: their options as dataclasses, and the options that are settings of a protocol."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from consilience.cli.options import (
    LIMITS,
    MATERIAL,
    MODELS,
    OUTPUT,
    REPEATED,
    Id,
    names_option,
    option,
    options_in,
)
from consilience.domain.detail import DetailChoice
from consilience.domain.messages import FILE, NAMES, NO_OPTION, OptionName
from consilience.domain.outcome import Severity, StopReason, ThinkingLevel
from consilience.engine.execution import Options

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from consilience.engine.protocol import Protocol

CHANGES = "Changes"
SETTINGS = "Settings of {}"
TARGET = "Target"

ReportFormat = Literal["text", "markdown", "json", "sarif", "github"]


@dataclass(frozen=True, kw_only=True)
class SpendingRequest:
    """Options of every command that may spend money."""

    deadline: float | None = option(
        "Max seconds per request to a model. Default: 300; 900 for a server on this machine or long thinking.",
        LIMITS,
        "SECONDS",
    )
    yes: bool = option("Spend money without asking.", OUTPUT, short="-y", default=False)
    out: Path | None = option("Write the report files into this directory.", OUTPUT, "DIR")
    json: bool = option("Print the report as JSON and nothing else.", OUTPUT, default=False)
    quiet: bool = option("Print the report without progress.", OUTPUT, short="-q", default=False)
    env_file: Path | None = option("Read environment variables (KEY=VALUE lines) first.", OUTPUT, "FILE")


@dataclass(frozen=True, kw_only=True)
class DeliveryRequest(SpendingRequest):
    """Options of every command that runs a session: what becomes of its report."""

    open: bool = option("Open the report in a browser.", OUTPUT, default=False)
    require: list[StopReason] | None = option(
        "Exit with 4 unless the run stopped for one of these reasons.", OUTPUT, "REASON", kind=StopReason
    )

    @property
    def output_format(self) -> str:
        """The format in which the report is printed; `text` is Markdown, rendered on a terminal."""
        return "json" if self.json else "text"

    @property
    def options(self) -> Options:
        """How the session is executed. Raises `SettingsError` for a value out of range."""
        return Options(deadline=self.deadline)

    @property
    def repeated(self) -> list[str]:
        """The options that `resume` needs again to deliver the report as asked, because no session records them."""
        words: list[str] = []
        for name in ("out", "require", "fail_on", "format", "write_baseline"):
            value = getattr(self, name, None)
            for one in value if isinstance(value, list) else [value] if value not in (None, "text") else []:
                words += [f"--{name.replace('_', '-')}", str(one)]
        return words


@dataclass(frozen=True, kw_only=True)
class FindingsRequest(DeliveryRequest):
    """The same of every command whose session may be of a protocol that reports findings."""

    fail_on: Severity | None = option(
        "Exit with 6 if a finding is at least this severe, or if a part was not read.",
        OUTPUT,
        "critical|major|minor",
    )
    format: ReportFormat = option(
        "How to print the report: text, markdown, json, sarif (2.1.0) or github (a review with comments on lines).",
        OUTPUT,
        "text|markdown|json|sarif|github",
        default="text",
    )
    write_baseline: Path | None = option(
        "Write the findings into this file, for --baseline in later runs.", OUTPUT, "FILE"
    )

    @property
    def output_format(self) -> str:
        return "json" if self.json else self.format


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(FindingsRequest):
    """Options of `resume`."""

    id: Id
    pace: float = option(
        "Real seconds per virtual second for new events; 0 does not wait.", OUTPUT, "SECONDS", default=0.0
    )

    @property
    def options(self) -> Options:
        return replace(super().options, pace=self.pace)


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
        "A document to deliberate on; ID=FILE shows it to one agent only. Repeatable.", MATERIAL, "FILE|DIR|-"
    )
    detail: DetailChoice | None = option(
        "Length of the prompts: full, brief (for small models), or auto: brief if an embedded model has a "
        "voice. Default: auto.",
        MODELS,
        "auto|brief|full",
    )
    thinking: ThinkingLevel | None = option(
        "Thinking before the answer, for models that can think: off, minimal, low, medium, high. Default: low.",
        MODELS,
        "LEVEL",
    )
    temperature: float | None = option("Sampling temperature, 0 to 2. Default: the model's own.", MODELS, "T")
    max_cost: float | None = option("Max cost in US dollars.", LIMITS, "DOLLARS")
    max_time: float | None = option("Max time in seconds.", LIMITS, "SECONDS")
    dry_run: bool = option("Show agents, calls and cost without running.", OUTPUT, default=False)


@dataclass(frozen=True, kw_only=True)
class SessionRequest(PlannedRequest, DeliveryRequest):
    """Options that a run and a fork share: each makes one new session."""

    encoder: str | None = option(
        "Embedding model for text similarity: minilm (offline) or PROVIDER:MODEL.", MODELS, "MODEL"
    )
    prompts: Path | None = option("Directory of templates that replace those of the protocol.", MATERIAL, "DIR")
    human_deadline: float | None = option(
        "Max seconds per answer of a person, including time while the session is parked. Default: no limit.",
        LIMITS,
        "SECONDS",
    )
    max_calls: int | None = option("Max requests to models, including retries.", LIMITS, "N")
    max_tokens: int | None = option("Max tokens in total, input and output.", LIMITS, "N")
    max_steps: int | None = option("Max rounds.", LIMITS, "N")
    agent_limit: list[str] | None = option(
        "Limit for one agent (calls, tokens, cost, time); * for every agent. Repeatable.", LIMITS, "ID:calls=N,…"
    )
    phase_limit: list[str] | None = option(
        "Limit for one phase (NAME) or one round of it (NAME/INDEX). Repeatable.", LIMITS, "NAME:calls=N,…"
    )
    cache: bool = option("Reuse recorded replies to identical requests (free).", OUTPUT, default=False)

    @property
    def options(self) -> Options:
        return replace(
            super().options,
            cache=self.cache or None,
            detail=self.detail,
            thinking=self.thinking,
            temperature=self.temperature,
            human_deadline=self.human_deadline,
        )


@dataclass(frozen=True, kw_only=True)
class NewSessionRequest(SessionRequest):
    """Options of every command of a protocol: it begins a session."""

    agent: list[str] | None = option(
        "Model of one agent: ID=MODEL, or exec:COMMAND, human, workspace:DIR[#NAME]. Repeatable.", MODELS, "ID=MODEL"
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

    @property
    def options(self) -> Options:
        return replace(super().options, pace=self.pace)


@dataclass(frozen=True, kw_only=True)
class RunRequest(NewSessionRequest):
    """Options of a protocol's command, without the protocol's own settings."""

    task: Annotated[
        str,
        typer.Argument(
            help="The question or task; @FILE reads it from a file, - from standard input.",
            metavar="TASK",
            show_default=False,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class TargetRequest(FindingsRequest, NewSessionRequest):
    """Options of the command of a protocol that reads a target, without the protocol's own settings."""

    target: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, directories, a .diff file, or - for standard input; with --diff, paths that select changed files. "
            "Default: the uncommitted changes.",
            metavar="TARGET",
            show_default=False,
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
    focus: str | None = option("What to look for; @FILE reads it from a file, - from standard input.", TARGET, "TEXT")
    source: list[str] | None = field(default=None, init=False)


@dataclass(frozen=True, kw_only=True)
class InheritingRequest(SessionRequest):
    """Options of every command that makes a new session from another."""

    id: Id
    replace_agent: list[str] | None = option("Another model for one agent. Repeatable.", CHANGES, "ID=MODEL")
    source: list[str] | None = option(
        "A document to add; one with the name of a recorded document replaces it. ID=FILE shows it to one "
        "agent. Repeatable.",
        CHANGES,
        "FILE|DIR|-",
    )


@dataclass(frozen=True, kw_only=True)
class TellRequest(InheritingRequest):
    """Options of `tell`."""

    id: Id  # the first argument
    fact: Annotated[str, typer.Argument(help="The new fact, in a sentence.", metavar="FACT", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class ForkRequest(FindingsRequest, InheritingRequest):
    """Options of `fork`."""

    id: Id
    at: Annotated[
        str,
        typer.Option(
            help="The last event to keep: its number, a call's key, PHASE/INDEX, or end (show ID --events lists them).",
            metavar="EVENT",
            show_default=False,
        ),
    ]
    set: list[str] | None = option("A setting of the protocol. Repeatable.", CHANGES, "KEY=VALUE")
    perspective: list[str] | None = option("Another perspective for one agent. Repeatable.", CHANGES, "ID=TEXT")
    task: str | None = option("Another task; @FILE reads it from a file, - from standard input.", CHANGES, "TASK")


# --- settings


def request_type(cls: type[Protocol]) -> type[NewSessionRequest]:
    """Return the options of a protocol's command that are not its settings."""
    return TargetRequest if cls.reads_target else RunRequest


def option_of(cls: type[Protocol], field: str) -> str:
    """Return the option of a setting, such as `--max-rounds`; prefixed by the protocol if all protocols have that option."""
    named = next((mark.name for mark in cls.model_fields[field].metadata if isinstance(mark, OptionName)), field)
    taken = named in {common.name for common in options_in(request_type(cls))}
    return f"--{f'{cls.name}-' if taken else ''}{named.replace('_', '-')}"


def setting_options(cls: type[Protocol]) -> dict[str, str]:
    """Return the settings of a protocol by the parameter of their option."""
    shown = [field for field, info in cls.model_fields.items() if NO_OPTION not in info.metadata]
    return {option_of(cls, field).removeprefix("--").replace("-", "_"): field for field in shown}


def setting_parameter(cls: type[Protocol], option: str, field: str) -> inspect.Parameter:
    info = cls.model_fields[field]
    parsed, default = option_type(info.annotation), info.get_default(call_default_factory=True)
    spelling = option_of(cls, field)
    if parsed is bool:
        spelling = f"{spelling}/--no-{spelling.removeprefix('--')}"
    if isinstance(default, tuple | list | frozenset):
        default = list(default)
    if isinstance(default, Enum):
        default = default.value
    shown: dict[str, Any] = {
        "show_default": default not in ("", None, []),
        "rich_help_panel": SETTINGS.format(cls.name),
    }
    (element,) = get_args(parsed) if get_origin(parsed) is list else (None,)
    is_choice = get_origin(element) is Literal
    description: Any
    if NAMES in info.metadata or is_choice:
        parsed = list[str]
        description = names_option(spelling, help=help_of(info), metavar="NAME", kind=str, **shown)
    elif element in (int, float):
        description = names_option(
            spelling, help=help_of(info), metavar=str(metavar_of(element)), kind=element, **shown
        )
    else:
        metavar = "FILE|-" if FILE in info.metadata else metavar_of(element or parsed)
        repeated = f" {REPEATED}" if element else ""
        description = typer.Option(spelling, help=f"{help_of(info)}{repeated}".strip(), metavar=metavar, **shown)
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[parsed | None, description], default=default
    )


def option_type(annotation: object) -> Any:
    """Return the type that the command line parses, without None: the field's own if it is simple, else text that the settings
    validate."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return option_type(arguments[0])
    if origin is Union or origin is types.UnionType:
        inner = [option_type(a) for a in arguments if a is not type(None)]
        return inner[0] if len(inner) == 1 else str
    if origin is Literal:
        return annotation
    if origin in (tuple, list, frozenset, set, Sequence):
        return list[option_type(arguments[0]) if arguments else str]  # type: ignore[misc]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Literal[tuple(member.value for member in annotation)]
    return annotation if annotation in (bool, int, float) else str


def metavar_of(parsed: Any) -> str | None:
    """Return the placeholder of the value in help; None for a flag."""
    if get_origin(parsed) is Literal:
        return "|".join(map(str, get_args(parsed)))
    return {bool: None, int: "N", float: "NUMBER"}.get(parsed, "TEXT")


def help_of(info: FieldInfo) -> str:
    """Return the field's description and its bounds."""
    text = (info.description or "").strip()
    if text.partition(",")[0] != info.default:  # the description begins with a value, which keeps its spelling
        text = f"{text[:1].upper()}{text[1:]}"
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    if low is not None and high is not None:
        text += f" ({low} to {high})"
    return f"{text}." if text and not text.endswith(".") else text
