"""Searches with a pattern of the user: off the event loop, for a bounded time, with the same result in every replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import regex

from consilience.domain.events import SearchExpired, text_id
from consilience.engine.state import State

T = TypeVar("T")

MAX_SEARCH_SECONDS = 0.5
"""Max duration of one search. Without a bound a pattern such as `(a+)+$` takes time exponential in the length of a reply."""
MAX_EXPIRED_SECONDS = 5.0
"""Max duration of all expired searches of a session. From then on, and at its time limit, each gets `MIN_SEARCH_SECONDS`."""
MIN_SEARCH_SECONDS = 0.01
"""An ordinary search takes less than a hundredth of this."""
REPEATED_FACTOR = 10
"""A search that was done in time is given that much more in a replay, on a machine that may be slower."""


class Searches:
    """The searches of a session. That one expired is an input, recorded before it has effect."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._expired_seconds = 0.0

    async def run(self, name: str, work: Callable[[float], T]) -> T | None:
        """Return the result of `work`, made in a thread; None if it is not done in time.

        `work` gets the seconds it may take and raises `TimeoutError` if it takes longer. That is recorded: a replay, or another
        search of that `name`, finds nothing either. The name stands for the pattern and the text together.
        """
        recorder, search = self._state.recorder, text_id(name)
        if search in recorder.expired:
            return None
        seconds = MAX_SEARCH_SECONDS * REPEATED_FACTOR
        if recorder.live:
            left = min(MAX_EXPIRED_SECONDS - self._expired_seconds, self._state.ledger.seconds_left(closing=True))
            seconds = max(MIN_SEARCH_SECONDS, min(MAX_SEARCH_SECONDS, left))
        try:
            return await asyncio.to_thread(work, seconds)
        except TimeoutError:
            self._expired_seconds += seconds
            recorder.expired.add(search)
            if not recorder.replay:
                await recorder.commit(SearchExpired(search=search))
            return None


def matches_of(pattern: regex.Pattern[str], text: str, seconds: float = MAX_SEARCH_SECONDS) -> list[regex.Match[str]]:
    """Return all matches in a text. The interpreter lock is released meanwhile.

    Raises `TimeoutError` if a search takes `seconds` of CPU time of this thread. `regex` counts the CPU time of all threads: a
    search that ends because of others' is begun anew with a longer bound.
    """
    bound = seconds
    while True:
        started = time.thread_time()
        try:
            return list(pattern.finditer(text, timeout=bound))
        except TimeoutError:
            if time.thread_time() - started >= seconds:
                raise
            bound *= 2
