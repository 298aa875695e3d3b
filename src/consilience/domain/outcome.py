"""How runs end, and the limits under which they run."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt


class StopReason(StrEnum):
    """The closed set. Running out is never `converged`."""

    CONVERGED = "converged"
    SETTLED = "settled"
    EXHAUSTED_STEPS = "exhausted_steps"
    EXHAUSTED_BUDGET = "exhausted_budget"
    EXHAUSTED_TIME = "exhausted_time"
    STALLED = "stalled"
    INCONCLUSIVE = "inconclusive"
    CANCELLED = "cancelled"
    FAILED = "failed"


class FailureKind(StrEnum):
    """Why a call gave no reply. `BUDGET` and `TIME` are limits; the others are lasting failures of the seat."""

    BUDGET = "budget"
    TIME = "time"
    DEADLINE = "deadline"
    MALFORMED = "malformed"
    REFUSED = "refused"
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    UNREACHABLE = "unreachable"
    REJECTED = "rejected"

    @property
    def is_limit(self) -> bool:
        return self in (FailureKind.BUDGET, FailureKind.TIME)

    @property
    def exhaustion(self) -> StopReason:
        """The stop reason of a run that this limit cut short."""
        return StopReason.EXHAUSTED_TIME if self is FailureKind.TIME else StopReason.EXHAUSTED_BUDGET


class Check(BaseModel):
    """A stop condition's judgement. `score` and `threshold` are of one `kind`; a composite has `parts` and no score."""

    model_config = ConfigDict(frozen=True)

    met: bool
    kind: str
    score: float | None = None
    threshold: float | None = None
    detail: str = ""
    parts: tuple[Check, ...] = ()


class Allowance(BaseModel):
    """What one agent or one phase may spend. None is no limit; 0 is legal and refuses everything.

    `calls` bounds requests, retries included; `tokens` those read and written; `money` US dollars; `seconds` what its
    calls took, added up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: NonNegativeInt | None = None
    tokens: NonNegativeInt | None = None
    money: NonNegativeFloat | None = None
    seconds: NonNegativeFloat | None = None


class Limits(Allowance):
    """What a session may spend; `seconds` is here the wall time in which a process holds it, `steps` the protocol's rounds.

    `agents` and `phases` bound single ones besides, by agent id, by phase name (all its indices together) or `NAME/INDEX`; `"*"`
    gives every agent, or every phase at every index, as much.
    """

    steps: NonNegativeInt | None = None
    agents: dict[str, Allowance] = {}
    phases: dict[str, Allowance] = {}


class Estimate(BaseModel):
    """Calls foreseen: `min` if all goes well and stops early, `max` at most, corrective and provider retries not counted."""

    model_config = ConfigDict(frozen=True)

    min: int
    max: int
