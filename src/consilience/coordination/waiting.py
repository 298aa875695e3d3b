"""Waiting for the results of outside agents: time limits, expiry of claims meanwhile, and a quorum.

Limits are counted on the waiter's own monotonic clock from what it observes, so that a wall clock that is put back or forward, or
another machine's clock, neither ends a wait nor prolongs it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal

from consilience.coordination.convergence import required_after_timeout
from consilience.coordination.records import Ticket, assigned_agent, is_human
from consilience.coordination.tickets import Result, fail, look, result, withdraw
from consilience.coordination.workspace import Workspace
from consilience.domain.errors import ClaimLost, WorkspaceError

TimeoutStrategy = Literal["per_agent", "total", "adaptive"]
"""`per_agent`: each agent has the whole timeout, from its claim. `total`: all agents share one limit, from the start. `adaptive`:
as `per_agent`, and an agent's timeout grows after each timeout."""
OnTimeout = Literal["leave", "requeue", "withdraw"]
"""What a waiter does with the ticket of an agent that is late. `leave`: nothing. `requeue`: end the claim, so that the ticket is
offered again while its `max_requeues` allows, then fails for good. `withdraw`: end the ticket."""

AGENT_TIMEOUT_SECONDS = 120.0
ADAPTIVE_FACTOR = 1.5
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.05, 1.0


def timeout_after(late: int, timeout: float, strategy: TimeoutStrategy) -> float:
    """Return the timeout of an agent that was late so often."""
    return timeout * ADAPTIVE_FACTOR**late if strategy == "adaptive" else timeout


class Timeouts:
    """Time limits of agents, in seconds. One object serves all iterations, so that `adaptive` remembers who was late."""

    def __init__(
        self,
        timeout: float = AGENT_TIMEOUT_SECONDS,
        strategy: TimeoutStrategy = "per_agent",
        *,
        shared: float | None = None,
    ) -> None:
        """`shared`: limit of the strategy `total`; default: the sum of the agents' timeouts."""
        self.strategy = strategy
        self._timeout = timeout
        self._shared = shared
        self._late: Counter[str] = Counter()

    def limit(self, agent: str) -> float:
        """Return how long an agent is waited for from its claim or, without a claim, from the start."""
        return timeout_after(self._late[agent], self._timeout, self.strategy)

    def shared(self, agents: Sequence[str]) -> float | None:
        """Return how long all agents are waited for together; None unless the strategy is `total`."""
        if self.strategy != "total":
            return None
        return self._timeout * len(agents) if self._shared is None else self._shared

    def record_timeout(self, agent: str) -> None:
        self._late[agent] += 1


@dataclass(frozen=True, slots=True)
class Waiter:
    """How a process waits. Tests replace both functions."""

    clock: Callable[[], float] = time.monotonic
    """Seconds; never goes back."""
    pause: Callable[[float], None] = time.sleep
    """Waits at most so many seconds."""
    wall: Callable[[], float] = time.time
    """Seconds since 1970, by which claims expire."""


@dataclass(frozen=True, slots=True)
class Seat:
    """An agent's part in an iteration."""

    ticket: Ticket | None = None
    """None if none was posted."""
    result: Result | None = None
    reason: str = ""
    """Why there is no result; "" if there is one, or may still be one."""

    @property
    def is_open(self) -> bool:
        return self.result is None and not self.reason


@dataclass(slots=True)
class Waited:
    """The end of a wait."""

    results: dict[str, Result] = field(default_factory=dict)
    """By agent."""
    missing: dict[str, str] = field(default_factory=dict)
    """Agents without a result, each with the reason."""
    timed_out: tuple[str, ...] = ()
    """Agents that were late at least once, in order."""
    is_quorum: bool = False
    """Whether the results are a quorum or, after a timeout, 80 % of it."""


def ticket_id(agent: str, iteration: int) -> str:
    """Return the id of an agent's ticket, as the strategies of this package name it."""
    return f"{agent}_{iteration}"


def find_tickets(
    workspace: Workspace, agents: Sequence[str], iteration: int | None = None, *, others: set[str] | None = None
) -> dict[str, Ticket]:
    """Return the tickets of agents in an iteration, by default the last one that each has a ticket of; the newest of several.

    A ticket is an agent's if it is assigned to it or claimed by it. Agents without one are left out. `others`: ids of tickets that
    are not read; those that can never become one of these agents' are added.
    """
    by_agent: dict[str, Ticket] = {}
    if iteration is not None:
        for agent in agents:
            with suppress(WorkspaceError):  # its poster chose another id
                ticket = workspace.ticket(ticket_id(agent, iteration))
                if ticket.iteration == iteration and _is_of(ticket, agent):
                    by_agent[agent] = ticket
    if rest := [agent for agent in agents if agent not in by_agent]:
        tickets = workspace.tickets(skip=others or ())
        for ticket in sorted(tickets, key=lambda ticket: (ticket.iteration, ticket.created_at)):
            if iteration in (None, ticket.iteration):
                by_agent |= {agent: ticket for agent in rest if _is_of(ticket, agent)}
        if others is not None:
            others |= {ticket.id for ticket in tickets if not _may_become(ticket, rest, iteration)}
    return by_agent


def _is_of(ticket: Ticket, agent: str) -> bool:
    return ticket.assigned_to in (agent, f"human:{agent}") or ticket.claimed_by == agent


def _may_become(ticket: Ticket, agents: Sequence[str], iteration: int | None) -> bool:
    """Whether one of these agents may claim a ticket of this iteration, or has."""
    if iteration not in (None, ticket.iteration):
        return False
    can_be_claimed = not ticket.is_final and not assigned_agent(ticket.assigned_to)
    return can_be_claimed or any(_is_of(ticket, agent) for agent in agents)


def seats_of(workspace: Workspace, agents: Sequence[str], iteration: int | None = None) -> dict[str, Seat]:
    """Return each agent's part in an iteration. A result whose artifact was changed or removed is no result."""
    tickets = find_tickets(workspace, agents, iteration)
    return {agent: _seat(workspace, tickets.get(agent)) for agent in agents}


def _seat(workspace: Workspace, ticket: Ticket | None) -> Seat:
    if ticket is None or not ticket.is_final:
        return Seat(ticket)
    if ticket.state == "completed":
        try:
            submitted = result(workspace, ticket.id, ticket.iteration)
        except WorkspaceError as error:
            return Seat(ticket, reason=f"its artifact is unusable: {error.what}")
        if submitted is not None:
            return Seat(ticket, submitted)
    last = ticket.failure_history[-1].failure_reason if ticket.failure_history else ""
    return Seat(ticket, reason=last or "its ticket failed")


def wait_for_agent_result(
    agent: str,
    session_dir: str | PathLike[str],
    timeout: float = AGENT_TIMEOUT_SECONDS,
    *,
    iteration: int | None = None,
    waiter: Waiter | None = None,
) -> Result | None:
    """Return an agent's result of an iteration, by default of the last one it has a ticket of; None if there will be none or it
    took longer than `timeout` seconds from its claim. Its claim is swept meanwhile; nothing else is changed.
    """
    waited = wait_for_results(
        Workspace.open(session_dir), [agent], iteration=iteration, timeouts=Timeouts(timeout), waiter=waiter
    )
    return waited.results.get(agent)


def wait_for_results(
    workspace: Workspace,
    agents: Sequence[str],
    *,
    iteration: int | None = None,
    quorum: int | None = None,
    priority: Sequence[str] = (),
    timeouts: Timeouts | None = None,
    on_timeout: OnTimeout = "leave",
    waiter: Waiter | None = None,
) -> Waited:
    """Wait until a quorum of agents (default all) has handed in its results, or each of the others failed or was late.

    A quorum needs the results of the `priority` agents too. Unless `on_timeout` is `leave`, tickets that a quorum makes needless
    are withdrawn. Tickets of people are never ended.
    """
    wait = _Wait(workspace, agents, iteration, timeouts or Timeouts(), on_timeout, waiter or Waiter())
    needed = len(agents) if quorum is None else quorum
    while True:
        wait.look()
        waited = wait.waited
        waited.is_quorum = len(waited.results) >= needed and waited.results.keys() >= set(priority)
        if waited.is_quorum or not wait.open:
            break
        wait.pause()
    if not waited.is_quorum and (waited.missing or waited.timed_out):
        waited.is_quorum = len(waited.results) >= required_after_timeout(needed)
    for agent in list(wait.open):
        wait.dismiss(agent, "the other results are a quorum")
    return waited


class _Wait:
    """The state of a wait."""

    def __init__(
        self,
        workspace: Workspace,
        agents: Sequence[str],
        iteration: int | None,
        timeouts: Timeouts,
        on_timeout: OnTimeout,
        waiter: Waiter,
    ) -> None:
        self.waited = Waited()
        self.open = dict.fromkeys(agents, ("", waiter.clock()))
        """Agents that are waited for, each with the last change of its ticket that was observed, and when."""
        self._workspace, self._iteration, self._timeouts = workspace, iteration, timeouts
        self._on_timeout, self._waiter = on_timeout, waiter
        self._began = waiter.clock()
        self._shared = timeouts.shared(agents)
        self._poll = MIN_POLL_SECONDS
        self._tickets: dict[str, str] = {}
        """Ids of tickets, once found."""
        self._others: set[str] = set()
        """Ids of tickets that need not be read again."""

    def look(self) -> None:
        """Take the results that are there, and give up agents that failed or are late."""
        now = self._waiter.clock()
        for agent, seat in self._seats(list(self.open)).items():
            change, since = self.open[agent]
            if seat.result is not None:
                self._take(agent, seat.result)
            elif not seat.is_open:
                self._give_up(agent, seat.reason)
            elif (current := _change_of(seat.ticket)) != change:
                is_claimed = seat.ticket is not None and seat.ticket.state == "active"
                self.open[agent] = (current, now if change or is_claimed else since)
                self._poll = MIN_POLL_SECONDS
            elif self._is_late(agent, since, now):
                self._end(agent, seat.ticket)

    def pause(self) -> None:
        """Wait for a moment, which grows while nothing happens, but not beyond the next limit."""
        now = self._waiter.clock()
        ends = [since + self._timeouts.limit(agent) for agent, (_, since) in self.open.items()]
        if self._shared is not None:
            ends = [self._began + self._shared]
        self._waiter.pause(max(min(self._poll, min(ends) - now), MIN_POLL_SECONDS / 10))
        self._poll = min(self._poll * 1.5, MAX_POLL_SECONDS)

    def dismiss(self, agent: str, reason: str) -> None:
        """Give up an agent without a timeout."""
        seat = self._seats([agent])[agent]
        if seat.ticket is not None and self._on_timeout != "leave" and not is_human(seat.ticket.assigned_to):
            self._withdraw(agent, seat.ticket, reason)
        if agent in self.open:
            self._give_up(agent, f"not waited for: {reason}")

    def _is_late(self, agent: str, since: float, now: float) -> bool:
        if self._shared is not None:
            return now - self._began >= self._shared
        return now - since >= self._timeouts.limit(agent)

    def _end(self, agent: str, ticket: Ticket | None) -> None:
        """Deal with an agent that is late."""
        limit = self._timeouts.limit(agent) if self._shared is None else self._shared
        is_claimed = ticket is not None and ticket.state == "active"
        reason = f"no result within {limit:g} s" + (" of its claim" if is_claimed and self._shared is None else "")
        self.waited.timed_out = tuple(dict.fromkeys((*self.waited.timed_out, agent)))
        self._timeouts.record_timeout(agent)
        if ticket is None or self._on_timeout == "leave" or is_human(ticket.assigned_to):
            self._give_up(agent, reason)
        elif self._on_timeout == "requeue" and is_claimed and self._shared is None:
            with suppress(ClaimLost):  # it was handed in, or swept, at this moment; the next look sees which
                fail(self._workspace, ticket, reason)
        else:
            self._withdraw(agent, ticket, reason)

    def _withdraw(self, agent: str, ticket: Ticket, reason: str) -> None:
        seat = _seat(self._workspace, withdraw(self._workspace, ticket.id, reason))
        if seat.result is None:
            self._give_up(agent, reason)
        else:  # it was handed in at this moment
            self._take(agent, seat.result)

    def _take(self, agent: str, result: Result) -> None:
        self.waited.results[agent] = result
        del self.open[agent]

    def _seats(self, agents: Sequence[str]) -> dict[str, Seat]:
        unknown = [agent for agent in agents if agent not in self._tickets]
        new = find_tickets(self._workspace, unknown, self._iteration, others=self._others)
        self._tickets |= {agent: ticket.id for agent, ticket in new.items()}
        now = self._waiter.wall()
        tickets = {a: look(self._workspace, id, now=now) for a, id in self._tickets.items() if a in agents}
        return {agent: _seat(self._workspace, tickets.get(agent)) for agent in agents}

    def _give_up(self, agent: str, reason: str) -> None:
        self.waited.missing[agent] = reason
        del self.open[agent]


def _change_of(ticket: Ticket | None) -> str:
    """Return a text that changes when a ticket is posted, claimed or offered again, but not when a claim is renewed."""
    return f"{ticket.id} {ticket.requeue_count} {ticket.claim_token}" if ticket else ""
