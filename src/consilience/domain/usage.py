"""What a session used, beside what was estimated."""

from __future__ import annotations

from consilience.domain.outcome import Estimate
from consilience.domain.validation import Frozen


class UsageTotals(Frozen):
    """What a session used. Inherited, cached and lost calls are in no other field."""

    calls: int = 0
    """Calls that ended, including failed ones and each step of a tool agent."""
    requests: int = 0
    """Requests sent to models, including retries and repairs."""
    retries: int = 0
    """Requests repeated after a failure of the provider."""
    repairs: int = 0
    """Requests repeated because a reply was invalid or cut."""
    fallbacks: int = 0
    """Calls answered by an alternative model."""
    lost: int = 0
    """Calls in flight when a process ended. They may have been charged."""
    timed_out: int = 0
    """Calls ended by a time limit or a cancel while a request was in flight. They may have been charged; their tokens and cost are
    unknown."""
    inherited: int = 0
    """Calls made by the session from which this one was forked."""
    cached: int = 0
    """Calls answered by a recorded reply to the same request."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_thought: int = 0
    """The part of `tokens_out` spent on thinking."""
    tokens_cached: int = 0
    """The part of `tokens_in` that the provider had cached."""
    estimated: int = 0
    """Replies whose tokens are estimated, because the model reported none."""
    cost: float | None = None
    """US dollars; None if any price is unknown."""
    known_cost: float = 0.0
    """The part of the cost that is known, if `cost` is None."""
    unpriced: int = 0
    """Calls of unknown price."""
    seconds: float = 0.0
    """Time during which a process held the session."""


class LedgerReport(Frozen):
    """Estimated and actual usage."""

    estimated: Estimate
    actual: UsageTotals
    reserve_drawn: bool = False
    """Whether the reserve paid for the closing call."""
    held_back: int = 0
    """Calls of the limit that were reserved for the closing call and not needed."""
    next_tokens: int = 0
    """Max tokens of one further call and the closing call; a fork's limit must cover them."""
    next_cost: float = 0.0
    """The same in US dollars, at known prices."""
    next_thinking: int = 0
    """The part of `next_tokens` for thinking."""
