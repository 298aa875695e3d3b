"""What every store offers. A store holds many sessions; a `Journal` is one of them, leased for writing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from consilience.domain.errors import SettingsError
from consilience.domain.events import AnyEvent, CallCompleted, Event, SessionStarted

MOST_NAME = 120
"""Bytes of a session's id."""
_FILE_NAME = frozenset('/\\:*?"<>|')
"""What some system does not allow in the name of a file."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A call that was dispatched and has not ended."""

    key: str
    agent: str
    place: str


@dataclass(frozen=True)
class PromptParts:
    """A prompt as references. The first `shared` parts open other prompts too and are stored as a list of their own."""

    parts: tuple[str, ...]
    shared: int = 0

    @cached_property
    def prefixes(self) -> list[bytes]:
        """Content address, 16 bytes, of every prefix, shortest first; linear in the length of the list."""
        running = hashlib.sha256()
        found = []
        for part in self.parts:
            running.update(part.encode("utf-8", "surrogatepass"))
            running.update(b"\x1e")
            found.append(running.digest()[:16])
        return found

    @cached_property
    def id(self) -> str:
        """Content address of the whole list, as `text_id` writes it."""
        return base64.urlsafe_b64encode(self.prefixes[-1])[:22].decode()


def check_name(session: str) -> None:
    """Raise `SettingsError` unless this can be the id of a session, which is also the name of a file on any system."""
    fits = 0 < len(session.encode("utf-8", "replace")) <= MOST_NAME and session.isprintable() and not session.isspace()
    if not fits or session.startswith(".") or not _FILE_NAME.isdisjoint(session):
        raise SettingsError(
            f"{session[:80]!r} cannot be the id of a session",
            do=f"Give 1 to {MOST_NAME} printable characters, without a dot in front and without {' '.join(sorted(_FILE_NAME))}.",
        )


class Journal(Protocol):
    """One session, leased to this process. Order of `append` is order of commit; `seq` starts at 1."""

    session: str

    def append(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """Hand over for the next commit without waiting. `texts` are stored by content; `prompt` is a list of parts.

        A `CallStarted` is kept beside the log until its call ends and gets no `seq`. Raises `StoreUnusable` once a
        commit has failed.
        """
        ...

    async def commit(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """`append`, and return when it, and all before it, would survive a power cut."""
        ...

    async def commit_all(self, events: Sequence[Event], *, texts: Iterable[str] = ()) -> None:
        """Several as one: after a power cut all of them are there, or none."""
        ...

    def read(self) -> list[AnyEvent]:
        """All committed events in order of `seq`."""
        ...

    def flights(self) -> list[Flight]: ...

    def text(self, id: str) -> str: ...

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        """Many at once, by id."""
        ...

    def prompt(self, id: str) -> tuple[str, ...]:
        """The list of parts stored under this id."""
        ...

    def reply(self, digest: str) -> CallCompleted | None:
        """The latest call, in any session of the store, that replied to a request of this digest; None where there is none.

        The first call makes an index over all that is recorded; later ones are quick, also for what came since.
        """
        ...

    async def close(self) -> None:
        """Commit what was appended and give the lease back."""
        ...

    def abandon(self) -> None:
        """Give everything up as a killed process would: what is not committed is gone."""
        ...


class Store(Protocol):
    def create(self, session: str) -> Journal:
        """A new session, leased. Raises `SettingsError` for an id that is taken or cannot be one, `StoreUnusable`."""
        ...

    def open(self, session: str) -> Journal:
        """Lease an existing session. Raises `UnknownName`, `SessionBusy` (saying who holds it), `NewerSchema`."""
        ...

    def sessions(self) -> list[str]:
        """Ids, oldest first."""
        ...

    def read(self, session: str) -> list[AnyEvent]:
        """A session's events without a lease. Raises `UnknownName`."""
        ...

    def flights(self, session: str) -> list[Flight]: ...

    def beginning(self, session: str) -> SessionStarted | None:
        """How a session began, without reading the rest; None for one that was killed before."""
        ...

    def parents(self) -> dict[str, str]:
        """Forks, each with the session it was forked from; which may be gone."""
        ...

    def created(self, session: str) -> float:
        """When the session was created, in seconds since the epoch."""
        ...

    def holder(self, session: str) -> str | None:
        """Who runs the session now, in words; None when nobody does."""
        ...

    def text(self, id: str) -> str: ...

    def texts(self, ids: Collection[str]) -> dict[str, str]: ...

    def prompt(self, id: str) -> tuple[str, ...]: ...

    def answer(self, session: str, key: str, text: str, by: str = "") -> None:
        """Append an outside answer under its key. Raises `SessionBusy` while a process runs the session."""
        ...

    def remove(self, sessions: Collection[str]) -> None:
        """Remove these sessions, all or none, with the texts and prompts that no other session refers to.

        Raises `UnknownName`, and `SessionBusy` while one of them is being run. What is removed cannot be had back.
        """
        ...

    def weight(self, sessions: Collection[str]) -> int:
        """Bytes of what removing these sessions together would remove. Raises `UnknownName`."""
        ...

    def compact(self) -> int:
        """Give back the space of what was removed; returns how many bytes that was. Takes time in proportion to what is left."""
        ...

    def close(self) -> None: ...
