"""How runs end, the limits under which they run, and the tokens that thinking may take on top of the answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from consilience.domain.errors import SettingsError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_LIMIT = 2**63 - 1
"""The greatest limit there is: what a machine's own numbers hold."""

Count = Annotated[int, Field(ge=0, le=MAX_LIMIT)]
Quantity = Annotated[float, Field(ge=0, le=MAX_LIMIT, allow_inf_nan=False)]


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

    def unless(self, unmet: Collection[str]) -> StopReason:
        """Return it, or `inconclusive` for a run that counts as converged although something is unmet."""
        return StopReason.INCONCLUSIVE if self is StopReason.CONVERGED and unmet else self


class FailureKind(StrEnum):
    """Why a call gave no reply. `BUDGET` and `TIME` are limits; the others are lasting failures of the seat."""

    BUDGET = "budget"
    TIME = "time"
    DEADLINE = "deadline"
    MALFORMED = "malformed"
    TRUNCATED = "truncated"
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

    def vetoed(self, *reasons: str) -> Check:
        """Return it as not met, with the reasons in its detail; unchanged without any."""
        if not reasons:
            return self
        return self.model_copy(update={"met": False, "detail": "; ".join(filter(None, (self.detail, *reasons)))})


class LimitsError(SettingsError, ValueError):
    """Limits that cannot be, and the `reason`. A `ValueError` too, so that in a journal it is damage like any other."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"these limits cannot be: {reason}", where="limits", do="Give consilience.Limits(calls=20), for instance."
        )


class SpendingLimits(BaseModel):
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


class Limits(SpendingLimits):
    """What a session may spend; `seconds` is here the wall time in which a process holds it, `steps` the protocol's rounds.
    Deliberation stops at 80 % of `seconds`, or 60 s before it, whichever is later. The rest is for the closing call. The run
    ends at `seconds`.

    `agents` and `phases` bound single ones besides, by agent id, by phase name (all its indices together) or `NAME/INDEX`; `"*"`
    gives every agent, or every phase at every index, as much.
    """

    steps: Count | None = None
    agents: dict[str, SpendingLimits] = {}
    phases: dict[str, SpendingLimits] = {}

    @field_validator("phases")
    @classmethod
    def _indices_are_numbers(cls, phases: dict[str, SpendingLimits]) -> dict[str, SpendingLimits]:
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


ThinkingLevel = Literal["off", "minimal", "low", "medium", "high"]
"""What a session asks of models that think, from `--thinking`."""

DEFAULT_THINKING: ThinkingLevel = "low"

Thinks = Literal["never", "optionally", "always"]
"""Whether a model thinks: never, as asked, or also when asked not to. A model of which nothing is known counts as `always`."""

THINKING_TOKENS: Mapping[ThinkingLevel, int] = {
    "off": 0,
    "minimal": 2_048,
    "low": 4_096,
    "medium": 16_384,
    "high": 32_768,
}
"""Tokens that one reply may take for thinking, by level. They come on top of the size of the answer."""


def thinking_tokens(level: ThinkingLevel, thinks: Thinks) -> int:
    """Tokens for the thinking of a model at `level`; a model that always thinks has at least those of `minimal`."""
    if thinks == "never":
        return 0
    if thinks == "always":
        return max(THINKING_TOKENS[level], THINKING_TOKENS["minimal"])
    return THINKING_TOKENS[level]
