"""Delivers what is posted to sessions to the processes that run them. One thread per store looks for letters of all its runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from consilience.domain.errors import StoreUnusable
from consilience.domain.events import CallAwaited, CallCompleted, CallFailed, CallLost, Event, SessionParked
from consilience.journal.store import Letter, OnMail

POLL_SECONDS = 0.2
"""Interval at which the mailboxes are looked into. A letter posted by this process is delivered at once."""


class Mailroom:
    """Looks into the mailboxes while at least one session of this process receives letters."""

    def __init__(self, letters: Callable[[], Mapping[str, Sequence[Letter]]]) -> None:
        """`letters` reads what lies in the mailboxes of all sessions, by session. It blocks on the disk."""
        self._letters = letters
        self._receivers: dict[str, tuple[asyncio.AbstractEventLoop, OnMail]] = {}
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._posted = self._closed = False

    def receive(self, session: str, on_mail: OnMail | None) -> None:
        """Deliver the letters of a session on the running event loop; with None no more."""
        with self._wake:
            if on_mail is None:
                self._receivers.pop(session, None)
                return
            self._receivers[session] = (asyncio.get_running_loop(), on_mail)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="journal-mailroom", daemon=True)
                self._thread.start()
            elif len(self._receivers) == 1:
                self._wake.notify()

    def look(self) -> None:
        """Look now, since this process has posted a letter."""
        with self._wake:
            self._posted = True
            self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._receivers.clear()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._receivers or self._closed)
                self._wake.wait_for(lambda: self._posted or self._closed, POLL_SECONDS)
                self._posted = False
                if self._closed:
                    return
            try:
                found = self._letters()
            except StoreUnusable:  # the next commit of the run raises it
                continue
            for session, letters in found.items():
                with self._wake:
                    loop, on_mail = self._receivers.get(session, (None, None))
                if loop is not None and on_mail is not None and not loop.is_closed():
                    loop.call_soon_threadsafe(on_mail, letters)


def awaited_keys(events: Iterable[Event]) -> set[str]:
    """Return the keys of the calls that somebody outside was asked and that have not ended."""
    awaited: set[str] = set()
    for event in events:
        if isinstance(event, CallAwaited):
            awaited.add(event.key)
        elif isinstance(event, SessionParked):
            awaited.update(event.awaited)
        elif isinstance(event, CallCompleted | CallFailed | CallLost):
            awaited.discard(event.key)
    return awaited
