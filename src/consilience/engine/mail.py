"""Taking what is posted to a session while this process runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from consilience.engine.state import State
from consilience.journal.store import Letter


class MailTaker:
    """Takes the letters of a running session, one after another in their order."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._last = 0
        """Number of the last letter that was or is being taken."""
        self._taking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Receive letters from now on. In a replay nothing is received."""
        if not self._state.recorder.replay:
            self._state.recorder.journal.receive(self._on_mail)

    async def look(self) -> bool:
        """Take what was posted since the last delivery, and return whether there was anything."""
        journal, last = self._state.recorder.journal, self._last
        if self._state.recorder.replay:
            return False
        self._on_mail(await journal.store.reader.run(lambda records: records.mail(journal.session)))
        if self._taking is not None:
            await self._taking
        return self._last > last

    async def end(self) -> None:
        """Receive no more letters, once the last one has been taken."""
        self._state.recorder.journal.receive(None)
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)

    def _on_mail(self, letters: Sequence[Letter]) -> None:
        new = [letter for letter in letters if letter.number > self._last]
        if new:
            self._last = new[-1].number
            self._taking = asyncio.get_running_loop().create_task(self._take(new, self._taking))

    async def _take(self, letters: Sequence[Letter], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        for letter in letters:
            await take(self._state, letter)


async def take(state: State, letter: Letter) -> None:
    """Record a letter, and act on it: an answer wakes its call, a cancel ends all calls in flight."""
    await state.recorder.take(letter)
    apply_cancel(state)


def apply_cancel(state: State) -> None:
    """Make the recorded cancel of a session hold for this run, if there is one."""
    if (cancel := state.recorder.cancel) is not None:
        state.cancellation.request(answer=cancel.answer)
        state.in_flight.cancel()
