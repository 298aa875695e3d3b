"""What a phase declares for outside agents: how long their claims last, and how many replies are enough.

At the quorum the outstanding tickets are withdrawn. Only tickets are withdrawn: agents in this process and people are always
awaited. Which ones depends on who replies first, so each withdrawal is recorded as a `Failure(quorum)`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import Field

from consilience.coordination.convergence import required_after_timeout
from consilience.coordination.waiting import AGENT_TIMEOUT_SECONDS, TimeoutStrategy, timeout_after
from consilience.domain.errors import ProviderError
from consilience.domain.outcome import FailureKind
from consilience.domain.validation import check_fields
from consilience.engine.activity import Phase
from consilience.engine.work import Failure, Reply, current_phase

T = TypeVar("T")
Flush = Callable[[], Awaitable[None]]
"""Makes durable what was recorded so far."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """What a protocol declares for a phase: `session.phase("read", 1, quorum=Quorum(10))`."""

    agents: Annotated[int, Field(ge=1)]
    """Agents that must reply."""
    timeout: Annotated[float, Field(gt=0)] = AGENT_TIMEOUT_SECONDS
    """Seconds after which 80 % of them suffice."""
    strategy: TimeoutStrategy = "per_agent"
    """`per_agent` and `adaptive` count an agent's time from its claim, `total` counts from the first ticket of the phase;
    `adaptive` gives an agent half as much time again after each timeout."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Claims:
    """How long outside agents are waited for in a phase. Without it, their tickets have the defaults of the workspace."""

    seconds: Mapping[str, float]
    """Time from a claim to its expiry, by agent, before the `timeout_multiplier` of the workspace."""
    max_requeues: int = 1
    """How often a ticket is offered again after its claim has expired."""


class QuorumReached(ProviderError):
    """The ticket was withdrawn: enough agents of its phase had replied."""

    kind = FailureKind.QUORUM


class LateForQuorum(QuorumReached):
    """The ticket was withdrawn after the timeout of its phase, at which 80 % of the quorum suffice."""

    kind = FailureKind.LATE


class PhaseReplies:
    """The agents that have replied in a phase with a quorum."""

    def __init__(self, quorum: Quorum, timeouts: Counter[str], flush: Flush | None = None) -> None:
        """`timeouts`: how often agents were too late in this session. `flush`: called before a withdrawal."""
        self._quorum = quorum
        self._timeouts = timeouts
        self._flush = flush
        self._opened_at: float | None = None
        self._replied: set[str] = set()
        self._changed = asyncio.Event()

    def add(self, result: Reply[Any] | Failure) -> None:
        if isinstance(result, Reply):
            self._replied.add(result.agent)
            self._changed.set()
            self._changed = asyncio.Event()
        elif result.kind in (FailureKind.DEADLINE, FailureKind.LATE):
            self._timeouts[result.agent] += 1

    def post(self, created_at: float) -> None:
        """Note when a ticket of the phase was posted, in seconds since the epoch."""
        self._opened_at = min(created_at, self._opened_at or created_at)

    def withdrawal(self, agent: str, began_at: float, now: float) -> QuorumReached | None:
        """Return why the ticket of `agent`, claimed (or else posted) at `began_at`, is not needed any more; None if it is."""
        required, replied = self._quorum.agents, len(self._replied)
        if replied >= required:
            return QuorumReached(f"the quorum of {required} agents was reached")
        began_at = self._opened_at or began_at if self._quorum.strategy == "total" else began_at
        timeout = timeout_after(self._timeouts[agent], self._quorum.timeout, self._quorum.strategy)
        if now < began_at + timeout or replied < required_after_timeout(required):
            return None
        return LateForQuorum(f"the time was up, and 80 % of the quorum of {required} agents was reached")

    async def flush(self) -> None:
        if self._flush is not None:
            await self._flush()

    async def wait(self, seconds: float) -> None:
        """Return when another agent has replied, after `seconds` at the latest."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)


current_replies: ContextVar[PhaseReplies | None] = ContextVar("current_replies", default=None)
"""Replies of the current phase, if it has a quorum."""

current_claims: ContextVar[Claims | None] = ContextVar("current_claims", default=None)
"""How long claims of tickets of the current phase last, if it declares that."""


def count_reply(result: Reply[T] | Failure) -> Reply[T] | Failure:
    """Count the result of a call toward the quorum of its phase, if it has one; return the result."""
    if (replies := current_replies.get()) is not None:
        replies.add(result)
    return result


@contextmanager
def in_phase(
    phase: Phase,
    quorum: Quorum | None,
    timeouts: Counter[str],
    flush: Flush | None = None,
    *,
    claims: Claims | None = None,
) -> Iterator[None]:
    """Label the calls made inside, count their replies toward the quorum, and set the duration of claims."""
    replies = PhaseReplies(quorum, timeouts, flush) if quorum else None
    tokens = current_phase.set(phase), current_replies.set(replies), current_claims.set(claims)
    try:
        yield
    finally:
        current_phase.reset(tokens[0])
        current_replies.reset(tokens[1])
        current_claims.reset(tokens[2])
