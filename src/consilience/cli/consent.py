"""Money is spent with consent only: asked for on a terminal, given beforehand elsewhere."""

from __future__ import annotations

import sys

import typer

from consilience.cli.failures import Declined
from consilience.cli.plan import Plan, amount_words, cost_words, unbounded_words
from consilience.domain.errors import SettingsError


def agree(plan: Plan, *, yes: bool, confirm_above: float, resumed: bool = False) -> None:
    """Return if the run may spend what it may spend. A `resumed` one takes no other limits and shows no plan.

    It may if it is free, agreed to or limited beforehand, or cheap on a terminal. No limit bounds what a program spends by itself,
    nor an encoder. Raises `SettingsError` where nobody can be asked, `Declined` where the answer is no.
    """
    bounded = not plan.programs and (not plan.paid or (plan.limits.money is not None and plan.encoder is None))
    if yes or bounded or not plan.makes_calls:
        return
    spenders = ", ".join((*plan.paid, *plan.programs))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(
            f"this run is paid for ({spenders}; {cost_words(plan)}) and nobody can be asked"
            if plan.paid
            else f"this run may cost money ({cost_words(plan)}) and nobody can be asked",
            do=_advice(plan, resumed),
        )
    if not plan.programs and plan.most_money is not None and plan.most_money <= confirm_above:
        return
    unforeseen = plan.programs or plan.most_money is None
    most = "an amount nobody can foresee (no price is known)" if unforeseen else amount_words(plan)
    unbounded = f"({unbounded_words(plan)}.) " if unbounded_words(plan) else ""
    try:
        agreed = typer.confirm(f"{unbounded}Spend {most} on {spenders}?", default=False, err=True)
    except typer.Abort:  # Ctrl-C or the end of input is an answer too
        agreed = False
    if not agreed:
        raise Declined("Nothing was spent.")


def _advice(plan: Plan, resumed: bool) -> str:
    if resumed:
        return "Give --yes to agree."
    bound = "" if plan.programs or plan.encoder else ", or --max-cost DOLLARS to set a bound"
    return f"Give --yes to agree{bound}; --dry-run says more."
