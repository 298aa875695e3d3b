"""Why a run stopped, and why a call gave no reply."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class StopReason(StrEnum):
    """Why a run stopped. Running out of something is never `converged`."""

    CONVERGED = "converged"
    """The protocol's stop condition was met: the answer stopped changing, or its authors and evaluators are satisfied."""
    SETTLED = "settled"
    """The protocol has no stop condition and made all its calls, or there was nothing left to do."""
    EXHAUSTED_STEPS = "exhausted_steps"
    """The rounds, iterations or passes ran out before the stop condition was met."""
    EXHAUSTED_BUDGET = "exhausted_budget"
    """A limit on calls, tokens or cost refused a call."""
    EXHAUSTED_TIME = "exhausted_time"
    """A limit on time refused or ended a call."""
    STALLED = "stalled"
    """Positions stopped changing without agreement."""
    INCONCLUSIVE = "inconclusive"
    """The stop condition was met, but something in `unmet` forbids to count the run as converged."""
    CANCELLED = "cancelled"
    """The session was cancelled."""
    FAILED = "failed"
    """Fewer agents than the quorum replied, or nothing could be concluded."""

    def unless(self, unmet: Collection[str]) -> StopReason:
        """Return the reason; `inconclusive` instead of `converged` if something is unmet."""
        return StopReason.INCONCLUSIVE if self is StopReason.CONVERGED and unmet else self


CUT_SHORT = (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME, StopReason.CANCELLED)
"""A limit or a cancel ended the run before the protocol did."""


class FailureKind(StrEnum):
    """Why a call gave no reply. `BUDGET` and `TIME` are limits; the others but `CANCELLED` are permanent failures of the seat."""

    BUDGET = "budget"
    """A limit on calls, tokens or cost refused it."""
    TIME = "time"
    """A limit on time refused it, or ended it in flight."""
    CANCELLED = "cancelled"
    """The session was cancelled before the call, or while it was in flight."""
    DEADLINE = "deadline"
    """The model did not answer within the seconds of one request, or the ticket of an outside agent expired."""
    QUORUM = "quorum"
    """The ticket of an outside agent was withdrawn: enough agents of the phase had replied."""
    LATE = "late"
    """The ticket of an outside agent was withdrawn: its time was up, and 80 % of the quorum had replied."""
    MALFORMED = "malformed"
    """The reply could not be read as the type asked for, also when it was asked for again."""
    TRUNCATED = "truncated"
    """The reply was cut at its token limit and is unusable, or thinking left no room for it."""
    PROMPT_CUT = "prompt_cut"
    """The server read only a part of the prompt."""
    REFUSED = "refused"
    """The model or its content filter refused to answer."""
    RATE_LIMITED = "rate_limited"
    """The provider refused the last retry for its rate limit."""
    SERVER = "server"
    """The provider failed, is overloaded, or sent no readable completion."""
    UNREACHABLE = "unreachable"
    """No connection to the provider."""
    REJECTED = "rejected"
    """The provider rejected the request: key, model name, quota, length or settings."""

    @property
    def is_limit(self) -> bool:
        """Whether the run was not to go on: a limit or a cancel, which say nothing of the agent."""
        return self in (FailureKind.BUDGET, FailureKind.TIME, FailureKind.CANCELLED)

    @property
    def is_withdrawn(self) -> bool:
        """Whether enough other agents had replied, so that nobody waited for this one."""
        return self in (FailureKind.QUORUM, FailureKind.LATE)

    @property
    def is_of_reply(self) -> bool:
        """Whether the model answered, but nothing that could be used: it would most likely do so again."""
        return self in (FailureKind.MALFORMED, FailureKind.TRUNCATED, FailureKind.REFUSED)

    @property
    def exhaustion(self) -> StopReason:
        """The stop reason of a run that this limit or cancel ended."""
        endings = {FailureKind.TIME: StopReason.EXHAUSTED_TIME, FailureKind.CANCELLED: StopReason.CANCELLED}
        return endings.get(self, StopReason.EXHAUSTED_BUDGET)
