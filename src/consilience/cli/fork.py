"""`fork` and `diff`: what would have been, had something been otherwise."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from consilience.cli.options import SectionedCommand, with_options
from consilience.cli.output import print_json
from consilience.cli.request import (
    AgentLimit,
    AsJson,
    Cache,
    DryRun,
    Encoder,
    EnvFile,
    MaxCalls,
    MaxCost,
    MaxSteps,
    MaxTime,
    MaxTokens,
    OneModel,
    Out,
    PhaseLimit,
    Prompts,
    Quiet,
    Request,
    Require,
    SeveralModels,
    Yes,
)
from consilience.cli.sessions import Id, Json, find_session, new_app, user_store
from consilience.domain.errors import SettingsError

CHANGES = "What is changed"

fork, diff = new_app(), new_app()


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
    model: OneModel = None
    models: SeveralModels = None
    encoder: Encoder = None
    prompts: Prompts = None
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
    from consilience.cli.branching import Asked, go

    typed = ForkRequest(**given)  # type: ignore[arg-type]
    asked = Asked(
        parent=typed.id,
        at=typed.at,
        settings=_pairs("--set", "KEY=VALUE", typed.set),
        replace=_pairs("--replace-agent", "ID=MODEL", typed.replace_agent),
        perspectives=_pairs("--perspective", "ID=TEXT", typed.perspective),
    )
    raise typer.Exit(go(asked, typed.request))


fork.command("fork", cls=SectionedCommand)(with_options(_fork, ForkRequest))


@diff.command("diff")
def diff_command(
    a: Id,
    b: Annotated[str, typer.Argument(help="The other session.", metavar="ID", show_default=False)],
    as_json: Json = False,
) -> None:
    """What differs between two sessions: how they were set up, where they part, what they came to."""
    from consilience.reporting.changes import changes, changes_markdown, side
    from consilience.reporting.terminal import show

    with user_store() as store:
        first, second = (find_session(store, given) for given in (a, b))
        one, other = (side(session, store.read(session), store.text) for session in (first, second))
        found = changes(one, other, store.text)
        if as_json:
            print_json(found.as_json())
        else:
            show(changes_markdown(found))


def _pairs(option: str, form: str, given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise SettingsError(f"{one!r} is not {form}", where=option, do=f"Write {option} {form}.")
        if name.strip() in found:
            raise SettingsError(f"{name.strip()} is given twice", where=option, do="Give it once.")
        found[name.strip()] = value.strip()
    return found
