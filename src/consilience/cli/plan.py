"""The user's consent to the cost of a run. Its plan is the first line of every run, and the whole output of a dry run.

Money is spent only with consent: asked for on a terminal, given by an option elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consilience.cli.errors import can_confirm, confirm, notify, print_json
from consilience.cli.inputs import unused_options
from consilience.cli.options import PlannedRequest, SessionRequest, SpendingRequest
from consilience.cli.settings import default_model
from consilience.configuration import Config
from consilience.domain.errors import SettingsError
from consilience.model_words import price_hint
from consilience.models.registry import Choice
from consilience.planning import AS_ASKED, Plan, RunPlan, amount_words, cost_words, unbounded_words
from consilience.reporting.files import claim_directory
from consilience.reporting.markdown import blocks_markdown, print_markdown


def choose_model(request: PlannedRequest, config: Config, seats: int = 1, seats_with_own_model: int = 0) -> Choice:
    """Return the default model and why: the user's choice if every one of the `seats` has a model."""
    if request.models is not None or request.model is not None or seats_with_own_model >= seats:
        return AS_ASKED
    return default_model(config)


def approve(
    plan: Plan, request: SpendingRequest, config: Config, *, lines: Sequence[str] = (), is_proposed: bool = False
) -> bool:
    """Announce a run and get consent to its cost, or print its plan for --dry-run; return whether to run it.

    `lines` replace the first line of the plan. If the run `is_proposed`, its protocol was not named by the user: the lines are also
    printed by a dry run, and on a terminal every run is confirmed. Raises what `confirm_spending` raises.
    """
    is_dry_run = isinstance(request, PlannedRequest) and request.dry_run
    asks = is_proposed and can_confirm() and not request.yes and not is_dry_run

    def tell(sentences: Iterable[str]) -> None:
        for sentence in sentences if asks or not request.quiet else ():
            notify(sentence)

    if isinstance(request, SessionRequest) and isinstance(plan, RunPlan):
        tell([*unused_options(request, plan.agents), *plan.templates.notes])
    if is_dry_run:
        tell(lines if is_proposed else ())
        if request.json:
            print_json(plan.as_json())
        else:
            print_markdown(f"{blocks_markdown(plan.describe(), max_rows=None)}\n")
        return False
    if isinstance(plan, RunPlan) and plan.unfit is not None:
        raise plan.unfit
    if request.out is not None:
        claim_directory(request.out)
    tell([*(lines or [plan.line]), *plan.details])
    if asks:
        confirm("Run it?", otherwise="It was not run.")
    confirm_spending(plan, yes=request.yes or asks, confirm_above=config.confirm_above)
    return True


def confirm_spending(plan: Plan, *, yes: bool, confirm_above: float) -> None:
    """Return if the run may spend its max cost: if it is free, approved, limited, or on a terminal cheap or confirmed.

    A limit on money does not bound programs, encoders and models of unknown price. Every alternative of a chain counts. Raises
    `SettingsError` without a terminal, `Declined` after a no.
    """
    bounded = plan.limits.cost is not None and plan.max_cost is not None and plan.encoder is None
    if yes or not plan.makes_calls or (not plan.programs and (not plan.paid or bounded)):
        return
    spenders = ", ".join((*plan.paid, *plan.programs))
    if not can_confirm():
        raise SettingsError(
            f"this run costs money ({spenders}; {cost_words(plan)}) and there is no terminal to confirm it"
            if plan.paid and plan.max_cost is not None
            else f"this run may cost money ({cost_words(plan)}) and there is no terminal to confirm it",
            do=_consent_advice(plan),
        )
    is_cost_unknown = plan.programs or plan.max_cost is None
    if not is_cost_unknown and plan.max_cost is not None and plan.max_cost <= confirm_above:
        return
    amount = "an unknown amount (no price is known)" if is_cost_unknown else amount_words(plan)
    unbounded = f"({unbounded_words(plan)}.) " if unbounded_words(plan) else ""
    confirm(f"{unbounded}Spend {amount} on {spenders}?", otherwise="Nothing was spent.")


def _consent_advice(plan: Plan) -> str:
    hint = next((f" {hint}" for name in plan.paid if (hint := price_hint(name, plan.known))), "")
    if not plan.limits_adjustable:
        return f"Give --yes to agree.{hint}"
    bound = "" if plan.programs or plan.encoder or plan.max_cost is None else ", or --max-cost DOLLARS to set a bound"
    return f"Give --yes to agree{bound}; --dry-run shows the plan.{hint}"
