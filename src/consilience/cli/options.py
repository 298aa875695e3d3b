"""The command lines of run, fork and resume as dataclasses, whose annotations are their options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.commands import (
    LIMITS,
    MATERIAL,
    MODELS,
    OUTPUT,
    Id,
    names_option,
)
from consilience.domain.detail import DetailChoice
from consilience.domain.outcome import StopReason, ThinkingLevel

if TYPE_CHECKING:
    from consilience.engine.execution import Options

CHANGES = "Changes"


@dataclass(frozen=True, kw_only=True)
class SpendingRequest:
    """Options of every command that may spend money."""

    deadline: Annotated[
        float | None,
        typer.Option(
            help="Max seconds per request to a model. Default: 300; 900 for a server on this machine or long thinking.",
            metavar="SECONDS",
            rich_help_panel=LIMITS,
        ),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Spend money without asking.", rich_help_panel=OUTPUT)] = (
        False
    )
    out: Annotated[
        Path | None,
        typer.Option(help="Write the report files into this directory.", metavar="DIR", rich_help_panel=OUTPUT),
    ] = None
    json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON and nothing else.", rich_help_panel=OUTPUT)
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the report without progress.", rich_help_panel=OUTPUT)
    ] = False
    env_file: Annotated[
        Path | None,
        typer.Option(
            help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(SpendingRequest):
    """Options of `resume`."""

    id: Id
    pace: Annotated[
        float,
        typer.Option(
            help="Real seconds per virtual second for new events; 0 does not wait.",
            metavar="SECONDS",
            rich_help_panel=OUTPUT,
        ),
    ] = 0.0

    @property
    def options(self) -> Options:
        """How the session is executed. Raises `SettingsError` for a value out of range."""
        from consilience.engine.execution import Options

        return Options(deadline=self.deadline, pace=self.pace)


@dataclass(frozen=True, kw_only=True)
class PlannedRequest(SpendingRequest):
    """Options of every command that plans new calls: which models get what, and within which limits."""

    model: Annotated[
        str | None,
        typer.Option(
            help="Model of all agents: local, local:NAME, PROVIDER:MODEL, exec:COMMAND, or http://HOST:PORT/v1#NAME at "
            "any OpenAI-compatible endpoint; A|B: B if A fails.",
            metavar="MODEL",
            rich_help_panel=MODELS,
        ),
    ] = None
    models: Annotated[
        list[str] | None,
        names_option(help="Models to assign to the agents in turn.", metavar="MODEL", rich_help_panel=MODELS),
    ] = None
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A document to deliberate on; ID=FILE shows it to one agent only. Repeatable.",
            metavar="FILE|DIR|-",
            rich_help_panel=MATERIAL,
        ),
    ] = None
    detail: Annotated[
        DetailChoice | None,
        typer.Option(
            help="Length of the prompts: full, brief (for small models), or auto: brief if an embedded model has a "
            "voice. Default: auto.",
            metavar="auto|brief|full",
            rich_help_panel=MODELS,
            show_default=False,
        ),
    ] = None
    thinking: Annotated[
        ThinkingLevel | None,
        typer.Option(
            help="Thinking before the answer, for models that can think: off, minimal, low, medium, high. Default: low.",
            metavar="LEVEL",
            rich_help_panel=MODELS,
            show_default=False,
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature, 0 to 2. Default: the model's own.", metavar="T", rich_help_panel=MODELS
        ),
    ] = None
    max_cost: Annotated[
        float | None,
        typer.Option(help="Max cost in US dollars.", metavar="DOLLARS", rich_help_panel=LIMITS),
    ] = None
    max_time: Annotated[
        float | None, typer.Option(help="Max time in seconds.", metavar="SECONDS", rich_help_panel=LIMITS)
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show agents, calls and cost without running.", rich_help_panel=OUTPUT),
    ] = False


@dataclass(frozen=True, kw_only=True)
class SessionRequest(PlannedRequest):
    """Options that a run and a fork share: each makes one new session."""

    encoder: Annotated[
        str | None,
        typer.Option(
            help="Embedding model for text similarity: minilm (offline) or PROVIDER:MODEL.",
            metavar="MODEL",
            rich_help_panel=MODELS,
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Directory of templates that replace those of the protocol.", metavar="DIR", rich_help_panel=MATERIAL
        ),
    ] = None
    human_deadline: Annotated[
        float | None,
        typer.Option(
            help="Max seconds per answer of a person, including time while the session is parked. Default: no limit.",
            metavar="SECONDS",
            rich_help_panel=LIMITS,
        ),
    ] = None
    max_calls: Annotated[
        int | None,
        typer.Option(help="Max requests to models, including retries.", metavar="N", rich_help_panel=LIMITS),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Max tokens in total, input and output.", metavar="N", rich_help_panel=LIMITS),
    ] = None
    max_steps: Annotated[int | None, typer.Option(help="Max rounds.", metavar="N", rich_help_panel=LIMITS)] = None
    agent_limit: Annotated[
        list[str] | None,
        typer.Option(
            help="Limit for one agent (calls, tokens, cost, time); * for every agent. Repeatable.",
            metavar="ID:calls=N,…",
            rich_help_panel=LIMITS,
        ),
    ] = None
    phase_limit: Annotated[
        list[str] | None,
        typer.Option(
            help="Limit for one phase (NAME) or one round of it (NAME/INDEX). Repeatable.",
            metavar="NAME:calls=N,…",
            rich_help_panel=LIMITS,
        ),
    ] = None
    open: Annotated[bool, typer.Option("--open", help="Open the report in a browser.", rich_help_panel=OUTPUT)] = False
    cache: Annotated[
        bool,
        typer.Option("--cache", help="Reuse recorded replies to identical requests (free).", rich_help_panel=OUTPUT),
    ] = False
    require: Annotated[
        list[StopReason] | None,
        names_option(
            help="Exit with 4 unless the run stopped for one of these reasons.",
            metavar="REASON",
            kind=StopReason,
            rich_help_panel=OUTPUT,
        ),
    ] = None

    @property
    def options(self) -> Options:
        """How the session is executed. Raises `SettingsError` for a value out of range."""
        from consilience.engine.execution import Options

        return Options(
            cache=self.cache or None,
            detail=self.detail,
            thinking=self.thinking,
            temperature=self.temperature,
            deadline=self.deadline,
            human_deadline=self.human_deadline,
        )


@dataclass(frozen=True, kw_only=True)
class RunRequest(SessionRequest):
    """Options of a protocol's command, without the protocol's own settings."""

    task: Annotated[
        str,
        typer.Argument(
            help="The question or task; @FILE reads it from a file, - from standard input.",
            metavar="TASK",
            show_default=False,
        ),
    ]
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="Model of one agent: ID=MODEL, ID=exec:COMMAND, ID=human. Repeatable.",
            metavar="ID=MODEL",
            rich_help_panel=MODELS,
        ),
    ] = None
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
    quorum: Annotated[
        float,
        typer.Option(
            help="Min share of agents that must give a first reply, 0 to 1.", metavar="SHARE", rich_help_panel=LIMITS
        ),
    ] = 0.5
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="N", rich_help_panel=OUTPUT)] = 0
    pace: Annotated[
        float,
        typer.Option(
            help="Real seconds per virtual second, for protocols that run in virtual time; 0 does not wait.",
            metavar="SECONDS",
            rich_help_panel=OUTPUT,
        ),
    ] = 0.0
    no_store: Annotated[
        bool,
        typer.Option(
            "--no-store", help="Record nothing; the run cannot be resumed or replayed.", rich_help_panel=OUTPUT
        ),
    ] = False

    @property
    def options(self) -> Options:
        return replace(super().options, pace=self.pace)


@dataclass(frozen=True, kw_only=True)
class ForkRequest(SessionRequest):
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
        typer.Option(help="Another perspective for one agent. Repeatable.", metavar="ID=TEXT", rich_help_panel=CHANGES),
    ] = None
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A document to add; one with the name of a recorded document replaces it. ID=FILE shows it to one "
            "agent. Repeatable.",
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
