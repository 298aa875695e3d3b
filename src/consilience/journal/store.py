"""The ports of a store: `Journal` writes one session, `Reader` follows sessions without blocking, `Admin` removes them.

A store satisfies `Store` and passes the conformance suite in `tests/journal/conformance.py`. `thread_reader` makes its blocking
reads a `Reader`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, TypeVar

from consilience.domain.errors import SettingsError, check_unicode
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    BlindnessLifted,
    CallCompleted,
    CancelRequested,
    CommentPosted,
    Event,
    SessionStarted,
    id_of,
    text_id,
)

T = TypeVar("T")

MAX_NAME_BYTES = 120
"""Bytes of a session's id."""
_FILE_NAME = frozenset('/\\:*?"<>|')
"""What some system does not allow in the name of a file."""


@dataclass(frozen=True, slots=True)
class InFlightCall:
    """A call that was dispatched and has not ended."""

    key: str
    agent: str
    place: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """A reply that has arrived and is not recorded as an event yet, since that needs it to be read."""

    key: str
    attempt: int
    digest: str
    """Digest of the request."""
    completion: str
    """The completion as JSON."""


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """What a list shows of a session, and by what it is found."""

    session: str
    created: float
    """Seconds since the epoch."""
    finished: bool
    name: str
    """What its user calls it; "" without a name."""
    protocol: str
    """"" like `task` and `comparison` if the session was killed before its first commit."""
    task: str
    """Id of the text."""
    comparison: str
    """Id of the comparison that began it; "" for any other session."""


LetterKind = Literal["answer", "pass", "cancel", "comment", "lift"]
WITH_ANSWER = "answer"
"""The text of a cancel after which the closing call is still made."""


@dataclass(frozen=True, slots=True)
class Letter:
    """What somebody sent to a session: an answer to an open question or none, the wish to end or to see it, or a comment."""

    number: int
    """Letters of a store are numbered in the order in which they were posted."""
    kind: LetterKind
    key: str
    """Of an answer or a pass, the key of the call."""
    text: str
    """Of an answer or a comment, its words; of a cancel, `WITH_ANSWER` or nothing."""
    by: str
    """Who sent it, as they said."""

    def event(self) -> AnswerReceived | BlindnessLifted | CancelRequested | CommentPosted:
        """Return what is recorded when the letter is taken."""
        match self.kind:
            case "answer" | "pass":
                return AnswerReceived(key=self.key, text=text_id(self.text), passed=self.kind == "pass", by=self.by)
            case "lift":
                return BlindnessLifted(by=self.by)
            case "cancel":
                return CancelRequested(by=self.by, answer=self.text == WITH_ANSWER)
            case "comment":
                return CommentPosted(text=text_id(self.text), by=self.by)


LinkKind = Literal["seat", "share", "hearing"]
"""A `hearing` is a `share` by which the reader may also give an `Opinion`."""


@dataclass(frozen=True, slots=True)
class SessionLink:
    """Lets whoever has its token into a part of a session: a seat while it runs, or its page when it is finished."""

    number: int
    """Links of a store are numbered in the order in which they were made."""
    session: str
    kind: LinkKind
    agent: str
    """Of a seat, its agent; else ""."""
    digest: str
    """SHA-256 of the token, in hexadecimal. The token itself is stored nowhere."""
    until: float
    """When it ends, in seconds since the epoch; a withdrawn one has ended."""
    by: str
    """Who made it."""


ReaderVote = Literal["agree", "disagree", "unsure"]


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a reader gave by a link to a finished session. It stands beside the report, which does not know it."""

    link: int
    """Number of the link, which gives one opinion."""
    vote: ReaderVote
    """On the answer of the report."""
    objection: str
    """"" for none."""
    given: float
    """When, in seconds since the epoch."""


@dataclass(slots=True)
class PromptParts:
    """A prompt as references. The first `shared` parts open other prompts too and are stored as a list of their own."""

    parts: tuple[str, ...]
    shared: int = 0
    _id: str | None = field(default=None, init=False, repr=False, compare=False)

    def prefixes(self, lengths: Iterable[int]) -> dict[int, bytes]:
        """Return the content addresses, 16 bytes, of the prefixes of these lengths that there are, by length."""
        running = hashlib.sha256()
        digests: dict[int, bytes] = {}
        done = 0
        for length in sorted(lengths):
            if done < length <= len(self.parts):
                new_text = "\x1e".join(self.parts[done:length])
                running.update(new_text.encode("utf-8", "surrogatepass") + b"\x1e")
                digests[length] = running.digest()[:16]
                done = length
        return digests

    @property
    def id(self) -> str:
        """Content address of the whole list, as `text_id` writes it."""
        if self._id is None:
            joined = "\x1e".join((*self.parts, ""))
            self._id = id_of(hashlib.sha256(joined.encode("utf-8", "surrogatepass")).digest()[:16])
        return self._id


def check_name(session: str) -> None:
    """Raise `SettingsError` unless this can be the id of a session, which is also the name of a file on any system."""
    fits = (
        0 < len(session.encode("utf-8", "replace")) <= MAX_NAME_BYTES
        and session.isprintable()
        and not session.isspace()
    )
    if not fits or session.startswith(".") or not _FILE_NAME.isdisjoint(session):
        raise SettingsError(
            f"invalid session id: {session[:80]!r}",
            do=f"Give 1 to {MAX_NAME_BYTES} printable characters, without a dot in front and without "
            f"{' '.join(sorted(_FILE_NAME))}.",
        )


def checked_title(name: str) -> str:
    """Return what a user calls a session, on one line. Raises `SettingsError` for lone surrogates."""
    check_unicode(name, "the name of the session")
    return " ".join(name.split())


OnCommit = Callable[[Event], None]
"""Receives committed events in order of `seq`, on the event loop of the run."""
OnMail = Callable[[Sequence[Letter]], None]
"""Receives all letters of a session that lie in its mailbox, in order, on the event loop of the run."""


class Journal(Protocol):
    """One session, leased to this process for writing. `seq` starts at 1 and follows the order of `append`."""

    session: str
    on_commit: OnCommit | None
    """Receives each event once it is durable, before `commit` of that event returns. A `CallStarted` comes without a `seq`."""

    @property
    def store(self) -> Store:
        """The store that holds the session."""
        ...

    def append(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """Queue an event for the next commit. `texts` are stored by content; `prompt` is a list of parts.

        A `CallStarted` is stored beside the log until its call ends and gets no `seq`. Raises `StoreUnusable` after a
        commit has failed.
        """
        ...

    async def commit(self, event: Event, *, texts: Iterable[str] = (), prompt: PromptParts | None = None) -> None:
        """`append`, and return when the event and all events before it would survive a power cut."""
        ...

    async def commit_all(self, events: Sequence[Event], *, texts: Iterable[str] = ()) -> None:
        """Commit several events in one transaction: after a power cut all of them are stored, or none."""
        ...

    def receive(self, on_mail: OnMail | None) -> None:
        """Call `on_mail` within 0.5 s of every post to this session, until another function is given, or None, or it is closed.

        A letter that is not taken yet is delivered again.
        """
        ...

    async def take(self, letter: Letter, event: Event) -> None:
        """Commit the event of a letter, which leaves the mailbox in the same transaction."""
        ...

    async def keep(self, arrival: Arrival) -> None:
        """Store a reply beside the log until its call ends; durable on return. It replaces an earlier one of its call."""
        ...

    def note_seconds(self, seconds: float) -> None:
        """Store how long processes have held the session in total, without waiting for the commit."""
        ...

    def seconds(self) -> float:
        """Return the value stored by the last `note_seconds`, or 0."""
        ...

    async def close(self) -> None:
        """Commit what was appended and release the lease."""
        ...

    def abandon(self) -> None:
        """Drop what is not committed and release the lease, as a killed process would. The store is closed too."""
        ...


class Records(Protocol):
    """Reads of committed data. They need no lease. Each method blocks on the disk: an event loop reads through `Reader`."""

    path: str
    """Where they are: of a file the absolute path without links, or `:memory:`."""

    def sessions(self) -> list[str]:
        """Ids, oldest first."""
        ...

    def read(self, session: str, *, after: int = 0) -> list[AnyEvent]:
        """Return a session's committed events with a `seq` above `after`, in order of `seq`. Raises `UnknownName`."""
        ...

    def last(self, session: str) -> int:
        """Return the `seq` of the last committed event; 0 if there is none. Raises `UnknownName`."""
        ...

    def flights(self, session: str) -> list[InFlightCall]:
        """Calls in flight: started and not ended. Raises `UnknownName`."""
        ...

    def arrivals(self, session: str) -> list[Arrival]:
        """Replies of calls in flight that have arrived. Raises `UnknownName`."""
        ...

    def mail(self, session: str) -> list[Letter]:
        """Letters that no process has taken yet, in order. Raises `UnknownName`."""
        ...

    def links(self, session: str) -> list[SessionLink]:
        """Return all links into the session, those that have ended too, in order. Raises `UnknownName`."""
        ...

    def opinions(self, session: str) -> list[Opinion]:
        """Return what readers gave by links, in the order of these. Raises `UnknownName`."""
        ...

    def link(self, digest: str) -> SessionLink | None:
        """Return the link whose token has this digest, into whosesoever session; None if there is none."""
        ...

    def beginning(self, session: str) -> SessionStarted | None:
        """Return the first event without reading the others; None if the session was killed before its commit."""
        ...

    def ending(self, session: str) -> AnyEvent | None:
        """Return the last event without reading the others; None as in `beginning`. That of a finished session is its end."""
        ...

    def entries(self) -> list[SessionEntry]:
        """Return an entry per session, oldest first, in one query."""
        ...

    def parents(self) -> dict[str, str]:
        """The parent of each forked session. The parent may have been removed."""
        ...

    def of(self, owner: str, *others: str) -> Self:
        """Return the same records as their `owner` sees them: only sessions of the owner and of `others` are there."""
        ...

    def owner(self, session: str) -> str:
        """Return whom the session belongs to; "" for one that was created without `of`. Raises `UnknownName`."""
        ...

    def created(self, session: str) -> float:
        """When the session was created, in seconds since the epoch."""
        ...

    def holder(self, session: str) -> str | None:
        """Describe the process that runs the session; None if no process does."""
        ...

    def text(self, id: str) -> str: ...

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        """Return texts by id, in one query per 500 ids. Raises `StoreUnusable` for a missing or damaged one."""
        ...

    def prompt(self, id: str) -> tuple[str, ...]: ...

    def prompts(self, ids: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return lists of parts by id. Rows that several prompts share are read once. Raises `StoreUnusable`."""
        ...


class Reader(Protocol):
    """Asynchronous reads on a thread of their own, for servers and pages. They never block the event loop of a run."""

    async def run(self, work: Callable[[Records], T]) -> T:
        """Return `work(records)`, executed on the reading thread. One at a time."""
        ...

    def of(self, owner: str, *others: str) -> Self:
        """As `Records.of`, on the same thread."""
        ...

    def tail(self, session: str, *, after: int = 0) -> AsyncGenerator[AnyEvent]:
        """Yield committed events with a `seq` above `after` as they appear, whichever process writes them.

        Any number of readers of a session cost one poll, and each reads at its own pace.

        Ends after `SessionFinished`. Raises `UnknownName` if the session does not exist or is removed.
        """
        ...


class Admin(Protocol):
    """Removal. Blocks on the disk."""

    def remove(self, sessions: Collection[str]) -> None:
        """Remove these sessions, all or none, with the texts and prompts that no other session refers to.

        Raises `UnknownName`, and `SessionBusy` if a process runs one of them. Cannot be undone.
        """
        ...

    def weight(self, sessions: Collection[str]) -> int:
        """Return the bytes that removing these sessions together would remove. Raises `UnknownName`."""
        ...

    def compact(self) -> int:
        """Return the space of removed data to the file system, and its size in bytes. Time is proportional to what is left."""
        ...


class Store(Records, Protocol):
    """Creates and opens journals. What `of(owner)` returns creates sessions of that owner, and its `close` closes the whole store.

    A text or prompt is found by its id whoever refers to it: a face that takes ids from a caller asks for the session too.
    """

    @property
    def reader(self) -> Reader: ...

    @property
    def admin(self) -> Admin: ...

    def create(self, session: str, *, deferred: bool = False, name: str = "") -> Journal:
        """Create a session and lease it; `name` as for `rename`. Raises `SettingsError` for an invalid or existing id,
        `StoreUnusable`.

        It is durable on return; if `deferred`, with its first commit, before which nobody else sees it.
        """
        ...

    def open(self, session: str) -> Journal:
        """Lease an existing session. Raises `UnknownName`, `SessionBusy` (which names the holder), `NewerSchema`."""
        ...

    def rename(self, session: str, name: str) -> None:
        """Give a session a name for lists and searches, on one line, or none (""); needs no lease. Raises `UnknownName`."""
        ...

    def reply(self, digest: str) -> CallCompleted | None:
        """Return the latest completed call with this request digest, of any session that is there; None if there is none.

        The first call builds an index over all events. The index is then kept up to date.
        """
        ...

    def post(self, session: str, kind: LetterKind, key: str = "", text: str = "", by: str = "") -> None:
        """Put a letter into the session's mailbox; durable on return. It needs no lease.

        The process that runs the session takes it within 0.5 s and records it; if none does, it is recorded here. Raises
        `UnknownName` for an answer to a call that nobody outside is asked, `SettingsError` if the session is finished.
        """
        ...

    def add_link(self, session: str, kind: LinkKind, *, agent: str = "", digest: str, until: float, by: str) -> None:
        """Store a link into a session, durably; it is removed with the session. Raises `UnknownName`."""
        ...

    def add_opinion(self, link: SessionLink, vote: ReaderVote, objection: str, at: float) -> bool:
        """Record what a reader gave by a link. Return whether it was recorded: False if the link has given one before."""
        ...

    def end_link(self, session: str, number: int, at: float) -> None:
        """Let a link end then, durably, unless it ends earlier. Raises `UnknownName` for a session or link that is not there."""
        ...

    def check_writable(self) -> None:
        """Raise `StoreUnusable` if nothing can be written. After a commit that failed it tries whether there is room again.

        Sessions that were in that commit write no more under this lease, since their record lacks what was not committed. Opened
        again, they go on from what is.
        """
        ...

    def close(self) -> None: ...
