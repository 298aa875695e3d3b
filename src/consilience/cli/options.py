"""The options of run, fork and resume, as fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.commands import LIMITS, MATERIAL, MODELS, OUTPUT, Id, option
from consilience.domain.detail import DetailChoice
from consilience.domain.outcome import StopReason, ThinkingLevel

if TYPE_CHECKING:
    from consilience.engine.execution import Options

CHANGES = "Changes"
OPEN = option("Open the report in a browser.", OUTPUT, default=False)


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
class ResumeRequest(SpendingRequest):
    """Options of `resume`."""

    id: Id
    pace: float = option(
        "Real seconds per virtual second for new events; 0 does not wait.", OUTPUT, "SECONDS", default=0.0
    )

    open: bool = OPEN

    @property
    def options(self) -> Options:
        """How the session is executed. Raises `SettingsError` for a value out of range."""
        from consilience.engine.execution import Options

        return Options(deadline=self.deadline, pace=self.pace)


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
class SessionRequest(PlannedRequest):
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
    open: bool = OPEN
    cache: bool = option("Reuse recorded replies to identical requests (free).", OUTPUT, default=False)
    require: list[StopReason] | None = option(
        "Exit with 4 unless the run stopped for one of these reasons.", OUTPUT, "REASON", kind=StopReason
    )

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
    agent: list[str] | None = option(
        "Model of one agent: ID=MODEL, ID=exec:COMMAND, ID=human. Repeatable.", MODELS, "ID=MODEL"
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
    set: list[str] | None = option("A setting of the protocol. Repeatable.", CHANGES, "KEY=VALUE")
    replace_agent: list[str] | None = option("Another model for one agent. Repeatable.", CHANGES, "ID=MODEL")
    perspective: list[str] | None = option("Another perspective for one agent. Repeatable.", CHANGES, "ID=TEXT")
    source: list[str] | None = option(
        "A document to add; one with the name of a recorded document replaces it. ID=FILE shows it to one "
        "agent. Repeatable.",
        CHANGES,
        "FILE|DIR|-",
    )
    task: str | None = option("Another task; @FILE reads it from a file, - from standard input.", CHANGES, "TASK")
