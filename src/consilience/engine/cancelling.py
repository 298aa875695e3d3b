"""Cancelling a session: a recorded input, after which live calls fail as `cancelled` and the run ends by its ordinary path."""

from __future__ import annotations

import asyncio


class Cancellation:
    """Whether somebody has cancelled the session."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._answer = False

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def request(self, *, answer: bool) -> None:
        """Forbid all live calls from now on; with `answer` the closing call is still made. The last request counts."""
        self._answer = answer
        self._requested.set()

    def forbids(self, *, closing: bool) -> bool:
        """Return whether a live call may not be made, or may not go on."""
        return self.is_requested and not (closing and self._answer)

    async def pause(self, seconds: float) -> None:
        """Sleep, at most until the session is cancelled."""
        try:
            async with asyncio.timeout(seconds):
                await self._requested.wait()
        except TimeoutError:
            pass
