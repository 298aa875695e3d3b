"""Money is spent with consent only: asked for on a terminal, given beforehand elsewhere."""

from __future__ import annotations

import sys

import typer

from consilience.cli.failures import INTERRUPTED, say
from consilience.cli.plan import Plan, cost_words
from consilience.domain.errors import SettingsError


def agree(plan: Plan, *, yes: bool, confirm_above: float) -> None:
    """Return if the run may spend what it may spend.

    It may if it is free, agreed to or limited beforehand, or cheap on a terminal. Raises `SettingsError` where nobody can
    be asked, `typer.Exit` where the answer is no.
    """
    if not plan.paid or yes or plan.limits.money is not None or not plan.makes_calls:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(
            f"this run is paid for ({', '.join(plan.paid)}; {cost_words(plan)}) and nobody can be asked",
            do="Give --yes to agree, or --max-cost DOLLARS to set a bound; --dry-run says more.",
        )
    if plan.most_money is not None and plan.most_money <= confirm_above:
        return
    most = "an amount nobody can foresee (no price is known)" if plan.most_money is None else cost_words(plan)
    try:
        agreed = typer.confirm(f"Spend {most} on {', '.join(plan.paid)}?", default=False, err=True)
    except typer.Abort:  # Ctrl-C or the end of input is an answer too
        agreed = False
    if not agreed:
        say("Nothing was spent.")
        raise typer.Exit(INTERRUPTED)
