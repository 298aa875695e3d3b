"""Checks, limits, estimates and thinking levels of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from consilience.domain.stopping import CUT_SHORT as CUT_SHORT
from consilience.domain.stopping import FailureKind as FailureKind
from consilience.domain.stopping import StopReason as StopReason
from consilience.domain.validation import Frozen, InvalidValues, describe_invalid

MAX_LIMIT = 2**63 - 1
"""Max value of a limit: a signed 64-bit integer."""

Count = Annotated[int, Field(ge=0, le=MAX_LIMIT)]
Quantity = Annotated[float, Field(ge=0, le=MAX_LIMIT, allow_inf_nan=False)]


Severity = Literal["critical", "major", "minor"]
"""How grave a finding of a review is, the worst first."""


EACH = "*"
"""In place of a name in limits: every agent, or every phase at every index, has a limit of its own."""

LimitUnit = Literal["", "calls", "tokens", "cost", "seconds"]
"""What a limit bounds, named like the field of `SpendingLimits` and the option `--max-…`; empty without a limit."""


class LimitOwner(Frozen):
    """The agent or phase for which a limit is. As text: `agent A`, `phase draft/1`, `each phase: draft/1`, `each agent`."""

    kind: Literal["agent", "phase"]
    name: str
    """The id of the agent, or the phase as `NAME` or `NAME/INDEX`."""
    each: bool = False
    """Whether every agent, or every phase at every index, has this limit."""

    def __str__(self) -> str:
        if not self.each:
            return f"{self.kind} {self.name}"
        return f"each {self.kind}: {self.name}" if self.name else f"each {self.kind}"


OptionalOwner = Annotated[LimitOwner | None, BeforeValidator(lambda owner: owner or None)]
"""The owner of a limit; None, for which some journals have an empty text, without one."""


class Check(Frozen):
    """The verdict of a stop condition."""

    met: bool
    kind: str
    """The kind of score; scores of different kinds cannot be compared."""
    score: float | None = None
    """The larger, the closer to a stop: of a distance d, 1 − d."""
    threshold: float | None = None
    """The least score that meets the check."""
    detail: str = ""
    parts: tuple[Check, ...] = ()
    """The checks of a composite, which has no score."""

    def vetoed(self, *reasons: str) -> Check:
        """Return the check as not met, with the reasons in its detail; unchanged without reasons."""
        if not reasons:
            return self
        return self.model_copy(update={"met": False, "detail": "; ".join(filter(None, (self.detail, *reasons)))})


LIMITS_FORM = "Give for example consilience.Limits(calls=20, cost=0.50); cost is in US dollars."


class SpendingLimits(BaseModel):
    """What one agent or one phase may spend. None is no limit; 0 is legal and refuses everything."""

    model_config = ConfigDict(extra="forbid")

    calls: Count | None = None
    """Requests to models, including retries."""
    tokens: Count | None = None
    """Input and output."""
    cost: Quantity | None = None
    """US dollars."""
    seconds: Quantity | None = None
    """Sum of the durations of its calls; of a session, the wall time in which a process holds it."""

    def of(self, unit: LimitUnit) -> float | None:
        """Return the limit on this unit; None without one."""
        value: float | None = getattr(self, unit) if unit else None
        return value

    if not TYPE_CHECKING:  # a type checker derives it from the fields

        def __init__(self, **limits: object) -> None:
            try:
                super().__init__(**limits)
            except ValidationError as error:
                what = f"invalid limits: {describe_invalid(error, model=type(self))}"
                raise InvalidValues(error, what, where="limits", do=LIMITS_FORM) from None


class Limits(SpendingLimits):
    """What a session may spend.

    Deliberation stops at 80 % of `seconds`, or 60 s before it, whichever is later. The rest is for the closing call. The run
    ends at `seconds`.
    """

    steps: Count | None = None
    """The protocol's rounds."""
    agents: dict[str, SpendingLimits] = {}
    """Further limits by agent id; `"*"` for every agent."""
    phases: dict[str, SpendingLimits] = {}
    """Further limits by phase name (all its indices together) or `NAME/INDEX`; `"*"` for every phase at every index."""

    def of_call(self, agent: str, phase: tuple[str, int] | None) -> Iterator[tuple[LimitOwner, SpendingLimits]]:
        """Yield the limits of agents and phases under which a call falls, each with its owner."""
        if agent in self.agents:
            yield LimitOwner(kind="agent", name=agent), self.agents[agent]
        if EACH in self.agents:
            yield LimitOwner(kind="agent", name=agent, each=True), self.agents[EACH]
        if phase is None:
            return
        name, once = phase[0], f"{phase[0]}/{phase[1]}"
        if name in self.phases:
            yield LimitOwner(kind="phase", name=name), self.phases[name]
        if EACH in self.phases:
            yield LimitOwner(kind="phase", name=once, each=True), self.phases[EACH]
        if once in self.phases:
            yield LimitOwner(kind="phase", name=once), self.phases[once]

    def named(self) -> Iterator[tuple[LimitOwner, SpendingLimits]]:
        """Yield the limits of agents and phases, each with its owner; that of every agent or phase has no name."""
        for name, limit in self.agents.items():
            yield LimitOwner(kind="agent", name=name if name != EACH else "", each=name == EACH), limit
        for name, limit in self.phases.items():
            yield LimitOwner(kind="phase", name=name if name != EACH else "", each=name == EACH), limit

    @field_validator("phases")
    @classmethod
    def _indices_are_numbers(cls, phases: dict[str, SpendingLimits]) -> dict[str, SpendingLimits]:
        for name in phases:
            phase, slash, index = name.partition("/")
            if slash and not (phase and index.isascii() and index.isdecimal()):
                raise ValueError(f"{name!r} is not a phase: write NAME, or NAME/INDEX with a number")
        return phases


class Estimate(Frozen):
    """Range of calls, without retries."""

    min: int
    """With the earliest stop."""
    max: int
    """Under any replies."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """Calls of one size in a run."""

    calls: int
    """At most, without retries."""
    reply: int
    """Max tokens of the answer."""
    request: int
    """Tokens of what is asked, without documents and quoted replies."""
    documents: tuple[str, ...] = ()
    """What each of them is shown of the documents, as references (`S4:120-380`)."""
    quoted: int = 0
    """Max tokens of the replies that each quotes, without their marks."""
    usual_reply: tuple[int, float] | None = None
    """Tokens of the answer that its documents call for: so many, and so many for each token of them. None if nothing follows."""
    closing: bool = False


ThinkingLevel = Literal["off", "minimal", "low", "medium", "high"]
"""How much models that can think are asked to think (`--thinking`)."""

DEFAULT_THINKING: ThinkingLevel = "low"

Thinks = Literal["never", "optionally", "always"]
"""Whether a model thinks: never, if asked, or even if asked not to. An unknown model counts as `always`."""

THINKING_TOKENS: Mapping[ThinkingLevel, int] = {
    "off": 0,
    "minimal": 2_048,
    "low": 4_096,
    "medium": 16_384,
    "high": 32_768,
}
"""Max thinking tokens per reply by level, on top of the size of the answer."""


def thinking_tokens(level: ThinkingLevel, thinks: Thinks) -> int:
    """Return the max thinking tokens of a model at `level`; one that always thinks has at least those of `minimal`."""
    if thinks == "never":
        return 0
    if thinks == "always":
        return max(THINKING_TOKENS[level], THINKING_TOKENS["minimal"])
    return THINKING_TOKENS[level]
