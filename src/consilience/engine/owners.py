"""What the owner of a session may spend: each call is reserved at its greatest cost before it is sent, and settled after."""

from __future__ import annotations

from consilience.domain.events import Ended
from consilience.domain.outcome import FailureKind
from consilience.engine.ledger import LimitHit
from consilience.engine.sizes import Usage
from consilience.engine.state import State


async def reserve_for_owner(state: State, key: str, attempt: int, agent: str, need: Usage) -> LimitHit | None:
    """Reserve an attempt with all its steps, or return the limit that refuses it."""
    if state.account is None:
        return None
    if await state.account.reserve(f"{key}#{attempt}", need.cost * state.ledger.sizes.steps.get(agent, 1)):
        return None
    return LimitHit(FailureKind.BUDGET, unit="cost", of_owner=state.account.owner)


def claim_of(event: Ended) -> str:
    return f"{event.key}#{event.attempt}"


def cost_of(event: Ended) -> float | None:
    """Return what an attempt cost; None if that is unknown."""
    return None if getattr(event, "possibly_charged", False) else event.cost
