"""How runs end, and the limits under which they run."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from consilience.domain.errors import SettingsError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MOST = 2**63 - 1
"""The greatest limit there is: what a machine's own numbers hold."""

Count = Annotated[int, Field(ge=0, le=MOST)]
Quantity = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]


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


class LimitsError(SettingsError, ValueError):
    """Limits that cannot be, and the `reason`. A `ValueError` too, so that in a journal it is damage like any other."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"these limits cannot be: {reason}", where="limits", do="Give consilience.Limits(calls=20), for instance."
        )


class Allowance(BaseModel):
    """What one agent or one phase may spend. None is no limit; 0 is legal and refuses everything.

    `calls` bounds requests, retries included; `tokens` those read and written; `money` US dollars; `seconds` what its
    calls took, added up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: Count | None = None
    tokens: Count | None = None
    money: Quantity | None = None
    seconds: Quantity | None = None

    if not TYPE_CHECKING:  # a type checker makes its own of the fields

        def __init__(self, **given: object) -> None:
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise LimitsError(_in_words(error)) from None


class Limits(Allowance):
    """What a session may spend; `seconds` is here the wall time in which a process holds it, `steps` the protocol's rounds.

    `agents` and `phases` bound single ones besides, by agent id, by phase name (all its indices together) or `NAME/INDEX`; `"*"`
    gives every agent, or every phase at every index, as much.
    """

    steps: Count | None = None
    agents: dict[str, Allowance] = {}
    phases: dict[str, Allowance] = {}

    @field_validator("phases")
    @classmethod
    def _indices_are_numbers(cls, phases: dict[str, Allowance]) -> dict[str, Allowance]:
        for name in phases:
            phase, slash, index = name.partition("/")
            if slash and not (phase and index.isascii() and index.isdecimal()):
                raise ValueError(f"{name!r} names no phase: write NAME, or NAME/INDEX with a number")
        return phases


def _in_words(error: ValidationError) -> str:
    return "; ".join(_problem(".".join(map(str, p["loc"])), p) for p in error.errors(include_url=False))


def _problem(place: str, problem: ErrorDetails) -> str:
    """One of them; that of an allowance inside says its own."""
    inner = problem.get("ctx", {}).get("error")
    if isinstance(inner, LimitsError):
        return f"{place}: {inner.reason}"
    if isinstance(inner, ValueError):
        return str(inner)
    return f"{place}: {problem['msg']} (given: {problem['input']!r:.60})"


class Estimate(BaseModel):
    """Calls foreseen: `min` if all goes well and stops early, `max` at most, corrective and provider retries not counted."""

    model_config = ConfigDict(frozen=True)

    min: int
    max: int
