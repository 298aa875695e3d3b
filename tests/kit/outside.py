"""Outside agents as a test tells them to act, and a waiter whose time passes by what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from consilience.coordination import Ticket, Workspace, claim, submit
from consilience.coordination.waiting import Waiter, find_tickets


@dataclass
class FakeTime:
    """Seconds that pass only while somebody waits; `at` says what happens when."""

    now: float = 0.0
    begun_at: float = 1_000_000.0
    """Wall-clock time at 0."""
    plan: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        self.plan.append((seconds, act))
        self.plan.sort(key=lambda entry: entry[0])

    def wall(self) -> float:
        return self.begun_at + self.now

    def pause(self, seconds: float) -> None:
        assert seconds > 0
        until = self.now + seconds
        while self.plan and self.plan[0][0] <= until:
            self.now, act = max(self.now, self.plan[0][0]), self.plan.pop(0)[1]
            act()
        self.now = until

    @property
    def waiter(self) -> Waiter:
        return Waiter(clock=lambda: self.now, pause=self.pause, wall=self.wall)


def take(workspace: Workspace, agent: str, iteration: int = 1, *, now: float = 1_000_000.0) -> Ticket:
    """Claim an agent's ticket of an iteration."""
    ticket_id = find_tickets(workspace, [agent], iteration)[agent].id
    claimed = claim(workspace, ticket_id, agent, now=now)
    assert claimed is not None
    return claimed


def work(workspace: Workspace, agent: str, text: str, iteration: int = 1, *, now: float = 1_000_000.0) -> Ticket:
    """Claim an agent's ticket of an iteration and hand in a text."""
    return submit(workspace, take(workspace, agent, iteration, now=now), text, now=now)
