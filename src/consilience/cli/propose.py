"""`--panel auto`: a panel proposed in a session of its own, before the run that uses it."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from consilience.cli.failures import say
from consilience.cli.plan import Plan
from consilience.cli.request import Request
from consilience.cli.run import new_id, watch, without_report
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel
from consilience.domain.report import Spent
from consilience.engine import runner
from consilience.journal.store import Store
from consilience.protocols.propose import Propose, ProposeReport

MOST = 6


def propose(
    task: str, sources: Sequence[Source], plan: Plan, request: Request, store: Store, seats: int
) -> tuple[Panel, Limits]:
    """A panel for so many seats, and what is left of the limits. Raises `SettingsError` where none comes, saying where to look.

    Asked of the first agent's model; documents that are for single agents are not shown.
    """
    session = new_id(store)
    protocol = Propose(personas=max(2, min(seats, MOST)))
    report = watch(
        lambda options: runner.start(
            task,
            protocol,
            models=plan.agents[0].model,
            store=store,
            sources=[source for source in sources if source.agents is None],
            seed=request.seed,
            limits=plan.limits.model_copy(update={"agents": {}, "phases": {}}),
            session=session,
            options=options,
        ),
        session=session,
        title=f"propose {session}",
        models=plan.models,
        quiet=request.quiet,
        resumable=not request.no_store,
        cache=request.cache,
        as_json=request.json,
    )
    if isinstance(report, int):  # it is said already why
        raise typer.Exit(without_report(report, session, store, as_json=request.json, resumable=not request.no_store))
    if not isinstance(report, ProposeReport) or report.panel is None:
        raise SettingsError(
            "no panel could be proposed for this task",
            where=f"session {session}",
            do="Name a panel (consilience panels lists them), or describe personas with --persona.",
        )
    if not request.quiet:
        say(f"The panel ({session}): {', '.join(report.panel.names)}.")
    return report.panel, _left(plan.limits, report.ledger.actual)


def _left(limits: Limits, spent: Spent) -> Limits:
    """What the proposal leaves of the limits that were given."""
    tokens = spent.tokens_in + spent.tokens_out
    return limits.model_copy(
        update={
            "calls": None if limits.calls is None else max(limits.calls - spent.requests, 0),
            "tokens": None if limits.tokens is None else max(limits.tokens - tokens, 0),
            "money": None if limits.money is None else max(limits.money - (spent.cost or 0.0), 0.0),
            "seconds": None if limits.seconds is None else max(limits.seconds - spent.seconds, 0.0),
        }
    )
