"""Virtual time: a discrete-event scheduler in integer milliseconds.

An agent wakes at *t*, starts its call at once (`session.start`) and schedules, at *t* + think, the action that awaits
it. So calls of agents that compose at the same virtual time overlap in real time, while the order of actions depends
on the program alone: by time, then the agent's index, then the order of scheduling.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Sequence

Action = Callable[[], Awaitable[None]]


class Schedule:
    """`now` is the virtual time of the action that runs. `pace` seconds of real time pass per virtual second, 0 for none."""

    def __init__(self, agents: Sequence[str], pace: float = 0.0) -> None:
        self.now = 0
        self._index = {agent: i for i, agent in enumerate(agents)}
        self._queue: list[tuple[int, int, int, Action]] = []
        self._ordinal = 0
        self._pace = pace
        self._stopped = False

    def at(self, time: int, agent: str, action: Action) -> None:
        """Run `action` for `agent` at that virtual time, which must not have passed."""
        if time < self.now:
            raise ValueError(f"virtual time {time} has passed; it is {self.now}")
        heapq.heappush(self._queue, (time, self._index[agent], self._ordinal, action))
        self._ordinal += 1

    def stop(self) -> None:
        """Run no further action; what is scheduled is dropped."""
        self._stopped = True
        self._queue.clear()

    async def run(self) -> None:
        """Run actions in order until none is left or `stop` was called. They run one after the other, in the caller's branch."""
        self._stopped = False
        while self._queue and not self._stopped:
            time, _, _, action = heapq.heappop(self._queue)
            if self._pace:
                await _pass((time - self.now) / 1000 * self._pace)
            self.now = time
            await action()


async def _pass(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)
