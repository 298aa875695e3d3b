"""The longest chain of dependent calls in a run of `emergence`: what no amount of parallelism can be faster than."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from functools import cache

from consilience.domain.events import CallCompleted
from consilience.domain.topology import Topology
from consilience.journal.store import Store

ROOT = "L1N1"
_KEY = re.compile(r"round-(\d+)/(leaf_respond|lateral|observe|signal)/(L\d+N\d+)\Z")


class Chain:
    """Which calls a call of `emergence` cannot start before, in a tree with nudges and without ballots or reviews."""

    def __init__(self, shape: Topology) -> None:
        self.shape = shape

    def before(self, key: str) -> tuple[str, ...]:
        """The calls this one waits for itself; an earlier one of the same agent goes without saying."""
        match = _KEY.match(key)
        if match is None:
            raise ValueError(f"no call of emergence has the key {key!r}")
        n, kind, agent = int(match[1]), match[2], match[3]
        if kind == "signal":  # the root's text is judged first: no call of the next round starts before that
            return (f"round-{n}/observe/{ROOT}",)
        if kind == "lateral":
            return tuple(self._first(n, peer) for peer in (agent, *self.shape.siblings(agent)))
        nudges = tuple(f"round-{n - 1}/signal/{parent}" for parent in self.shape.parents.get(agent, ()) if n > 1)
        children = self.shape.children[agent]
        return (*(self._last(n, child) for child in children), *nudges)

    def longest(self, keys: Iterable[str], seconds: Callable[[str], float]) -> float:
        """Seconds from the start of the run to the end of the call that can end last."""

        @cache
        def end(key: str) -> float:
            return seconds(key) + max((end(cause) for cause in self.before(key)), default=0.0)

        return max(end(key) for key in keys)

    async def sleep_through(self, keys: Iterable[str], seconds: Callable[[str], float]) -> None:
        """The waiting alone: for every call a task that sleeps once those before it have ended."""
        tasks: dict[str, asyncio.Task[None]] = {}

        async def one(key: str) -> None:
            for cause in self.before(key):
                await tasks[cause]
            await asyncio.sleep(seconds(key))

        for key in keys:
            tasks[key] = asyncio.create_task(one(key))
        await asyncio.gather(*tasks.values())

    def check(self, store: Store, session: str) -> None:
        """Every call must have been shown only what the calls in its chain said, or the protocol is not the one walked here."""
        for event in store.read(session):
            if not isinstance(event, CallCompleted):
                continue
            quoted = {part.split(":", 2)[2] for part in store.prompt(event.prompt) if part.startswith("q:")}
            causes = {re.sub(r"/objection-\d+\Z", "", id) for id in quoted}
            strange = causes - self._ancestors(event.key)
            if strange:
                raise RuntimeError(
                    f"{event.key} was shown {', '.join(sorted(strange))}, which it does not wait for here"
                )

    def _ancestors(self, key: str) -> set[str]:
        ancestors: set[str] = set()
        left = [key]
        while left:
            for cause in self.before(left.pop()):
                if cause not in ancestors:
                    ancestors.add(cause)
                    left.append(cause)
        return ancestors

    def _first(self, n: int, agent: str) -> str:
        return f"round-{n}/{'observe' if self.shape.children[agent] else 'leaf_respond'}/{agent}"

    def _last(self, n: int, agent: str) -> str:
        return f"round-{n}/lateral/{agent}" if self.shape.siblings(agent) else self._first(n, agent)
