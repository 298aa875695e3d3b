"""Events of attempts that failed or that a limit refused, with what was paid for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from consilience.domain.errors import ProviderError, Timeout, Unreachable
from consilience.domain.events import CallFailed, Ended, StepCompleted
from consilience.domain.outcome import FailureKind
from consilience.engine.activity import Phase
from consilience.engine.ledger import CallBudget, LimitHit
from consilience.engine.ports import AgentPort
from consilience.engine.steps import StepLog, StepRefused
from consilience.engine.timing import CallCancelled, CallEnded, TimeLimitReached
from consilience.models.port import Completion

REFUSED_AGAIN = {
    FailureKind.BUDGET: "no budget for another attempt",
    FailureKind.TIME: "no budget for another attempt",
    FailureKind.CANCELLED: "the session was cancelled before another attempt",
}
"""In the detail of a call whose last reply was unusable, why it was not asked again."""


def refusal_event(
    common: Mapping[str, object], refusal: LimitHit, error: str, steps_taken: Sequence[StepCompleted], *, repeated: bool
) -> CallFailed:
    """Return the event of an attempt that a limit refuses. `repeated`: it follows an unusable reply with that
    `error`. `steps_taken`: the requests that an agent with tools had made for it before the session was interrupted."""
    refused = f"refused by a limit of {refusal.whose}" if refusal.whose else "refused by a limit"
    if refusal.of_owner is not None:
        refused = f"refused, since {refusal.of_owner or 'this machine'} may spend no more today"
    if refusal.kind is FailureKind.CANCELLED:
        refused = "not made, because the session was cancelled"
    figures: dict[str, object] = {"prompt": ""}  # nothing was sent
    if steps_taken:
        costs = [step.cost for step in steps_taken]
        figures = {
            "tokens_in": sum(step.tokens_in for step in steps_taken),
            "tokens_out": sum(step.tokens_out for step in steps_taken),
            "tokens_thought": sum(step.tokens_thought for step in steps_taken),
            "cost": math.fsum(cost for cost in costs if cost is not None) if None not in costs else None,
            "steps": len(steps_taken),
            "volatile": {"requests": sum(int(step.volatile.get("requests", 1) or 0) for step in steps_taken)},
        }
    return CallFailed(
        **{**common, **figures},
        failure=refusal.kind,
        detail=f"{error}; {REFUSED_AGAIN[refusal.kind]}" if repeated else refused,
        limit=refusal.whose,
        exhausted=refusal.unit,
    )


def unreached(ended: Iterable[Ended], phase: Phase | None, model: str, models: Mapping[str, str]) -> Unreachable | None:
    """Return the failure of a call that is not sent: in the phases before its own nobody was reached, and neither was its `model`.

    `models`: names of the models by agent. One failed call is not enough. A run without a phase has no first phase, and goes on; so
    does one that inherits calls.
    """
    before: list[CallFailed] = []
    for event in ended:
        if not isinstance(event, CallFailed) or event.failure is not FailureKind.UNREACHABLE or event.inherited:
            return None
        if event.phase is not None and event.phase != phase:
            before.append(event)
    if phase is None or len(before) < 2 or model not in {models[event.agent] for event in before}:
        return None
    name, number = before[0].phase or ("", 0)
    failure = Unreachable(f"not sent, because nobody could be reached in {name} {number}")
    failure.requests = 0
    return failure


def failure_event(
    common: Mapping[str, object],
    failure: ProviderError,
    *,
    steps: StepLog | None,
    charged: tuple[Completion, bool] | None,
    budget: CallBudget,
    port: AgentPort,
) -> CallFailed:
    """Return the event of a failure with what was paid: for a completion that refuses to answer, or for steps before the failure.
    If the `budget` refused a further attempt, the cause is still what the provider did. What a request cost that was ended in
    flight is unknown, and so is what a program spends."""
    figures: dict[str, object] = {}
    requests, refusal = failure.requests, budget.hit
    is_model = not port.keeps_requests
    overdue = is_model and isinstance(failure, Timeout)
    in_flight = failure.possibly_charged if isinstance(failure, CallEnded) else overdue
    figures["possibly_charged"] = in_flight
    if is_model and requests and in_flight:
        figures["cost"] = port.price(0, 0)
    if steps is not None:
        figures |= {"tokens_in": steps.tokens_in, "tokens_out": steps.tokens_out, "cost": steps.cost}
        figures["tokens_thought"] = steps.tokens_thought
        figures["steps"] = max(steps.steps_taken, 1)
        requests = int(steps.spent.calls) + (failure.requests if isinstance(failure, CallEnded) else 0)
    elif charged is not None:
        completion, estimated = charged
        figures |= {"tokens_in": completion.tokens_in, "tokens_out": completion.tokens_out, "cost": completion.cost}
        figures["tokens_thought"] = completion.tokens_thought
        figures["estimated"] = estimated
    elif failure.cost_unknown:
        figures["cost"] = None
    if isinstance(failure, TimeLimitReached):
        refusal, figures["limit"], figures["exhausted"] = None, failure.whose, "seconds"
    elif isinstance(failure, CallCancelled):
        refusal = None
    elif isinstance(failure, StepRefused):
        figures["exhausted"] = failure.hit.unit
    return CallFailed(
        **{**common, **figures},
        failure=failure.kind,
        detail=failure.detail[:500],
        no_further_attempt=refusal is not None,
        reserve=budget.from_reserve,
        volatile={"requests": requests},
    )
