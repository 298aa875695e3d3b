"""What every protocol command takes beside its protocol's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from consilience.domain.outcome import StopReason

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
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the report as JSON and nothing else.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the report.", rich_help_panel=OUTPUT)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen and cost, and stop.", rich_help_panel=OUTPUT)
]
Require = Annotated[
    list[StopReason] | None,
    typer.Option(
        help="Exit with 4 unless the run stopped so. Repeatable: any of them will do.",
        metavar="REASON",
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
Prompts = Annotated[
    Path | None,
    typer.Option(
        help="A directory of templates that replace the protocol's own.", metavar="DIR", rich_help_panel=MATERIAL
    ),
]
OneModel = Annotated[
    str | None,
    typer.Option(
        help="The model of all agents: local, local:NAME, PROVIDER:MODEL or exec:COMMAND; A|B: B where A fails.",
        metavar="MODEL",
        rich_help_panel=MODELS,
    ),
]
SeveralModels = Annotated[
    str | None,
    typer.Option(help="Several models, dealt to the agents in turn.", metavar="A,B,…", rich_help_panel=MODELS),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        help="What compares texts by embedding, where asked to: PROVIDER:MODEL.",
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
            help='A persona in a few words ("Sceptical CFO" or "CFO: You ask who pays."). Repeatable.',
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
    dry_run: DryRun = False
    yes: Yes = False
    out: Out = None
    json: AsJson = False
    quiet: Quiet = False
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Keep no record; no resume, no replay.", rich_help_panel=OUTPUT)
    ] = False
    cache: Cache = False
    require: Require = None
    env_file: EnvFile = None
