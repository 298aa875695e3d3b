"""The exception tree. A limit is an outcome (`StopReason`, `Failure`), never an exception.

ConsilienceError
├── UserError                 the user's mistake: one paragraph, exit code 2
│   ├── SettingsError         an invalid setting, size or file
│   │   └── AlreadyFinished   a session that has ended, where one is needed that goes on
│   ├── UnknownName           a model, panel, protocol or session that does not exist
│   │   └── UnknownSession
│   ├── UnavailableModel      a model without its key, extra or weights
│   ├── SourceError           a document that cannot be read
│   │   ├── UnreadableDocument    its content
│   │   └── EncodingError         its encoding
│   └── WorkspaceError        a workspace, ticket or file of one that is missing, damaged or not what it should be
│       └── ClaimLost         the claim of a ticket has ended: it expired, was withdrawn or belongs to another agent
├── ProviderError             a model's failure; `Session.ask` turns it into a `Failure`
│   ├── RateLimited           429, with the provider's `retry_after` if any
│   ├── Truncated             a prompt of which the server read only a part
│   ├── ServerError           5xx and overload
│   ├── Timeout               no answer within the deadline
│   ├── Unreachable           the connection failed
│   ├── Refused               content filter or refusal
│   └── Rejected              4xx that a retry cannot fix: key, model name, request size
├── JournalError              the store
│   ├── StoreUnusable         it cannot be read or written, or is not a journal
│   │   └── CommitFailed      something was not recorded, for want of room for example
│   ├── SessionBusy           another process runs this session; names it
│   ├── NewerSchema           written by a later version
│   ├── VersionMismatch       written by another version of the protocol
│   ├── RequestMismatch       the key is recorded with another request; names the difference
│   └── ReplayMiss            a replay needs a call that is not recorded
├── SessionWaiting            not a failure: the session is parked until a person or an outside process answers
├── SessionHeld               not a failure: the remaining calls are held back by `Options.hold`
└── ProtocolViolation         a defect in a protocol: a key used twice, a message shown to an agent outside its audience
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, NamedTuple, Self

from consilience.domain.stopping import FailureKind


def replace_surrogates(text: str) -> str:
    """Return `text` with lone surrogates, which JSON can contain, as question marks; UTF-8 cannot encode them."""
    return text.encode("utf-8", "replace").decode()


class ConsilienceError(Exception):
    """Base of all exceptions that this package raises deliberately."""


class Command(NamedTuple):
    """What leads on with a session; `str()` is what to type. `arguments` are by name: `{"at": "end"}`."""

    name: Literal["show", "events", "export", "resume", "fork"]
    session: str
    arguments: Mapping[str, object] = {}

    def __str__(self) -> str:
        if self.name == "events":
            return f"consilience show {self.session} --events"
        options = (f" {option_of(name)} {value}" for name, value in self.arguments.items())
        return f"consilience {self.name} {self.session}{''.join(options)}"


_OPTIONS = {"settings": "--set", "replace": "--replace-agent", "perspectives": "--perspective", "sources": "--source"}


def option_of(field: str) -> str:
    """Return the option that a field of a request is on the command line."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


class UserError(ConsilienceError):
    """A mistake of the user: what is wrong, in which `field` of the request, `where` else, what to `do`, and the `command` for it.

    A field is named as in Python and over HTTP. Each face words field and command in its own terms; `str()` is one paragraph.
    """

    def __init__(
        self, what: str, *, field: str = "", where: str = "", do: str = "", command: Command | None = None
    ) -> None:
        self.what, self.field, self.where, self.do, self.command = what, field, where, do, command
        super().__init__(self.paragraph())

    def __str__(self) -> str:
        return self.paragraph()

    def paragraph(self, spell: Callable[[str], str] = str) -> str:
        """Return what is wrong, where, and what to do, with the field spelled by `spell`."""
        place = self.place(spell).rstrip(".")
        parts = [self.what.rstrip(".") + ".", f"Where: {place}." if place else "", self.advice()]
        return " ".join(part for part in parts if part)

    def place(self, spell: Callable[[str], str] = str) -> str:
        return f"{spell(self.field)} {self.where}".strip() if self.field else self.where

    def advice(self, spell: Callable[[Command], str] = str) -> str:
        return f"{self.do}: {spell(self.command)}" if self.command else self.do


class SettingsError(UserError):
    pass


def check_unicode(text: str, label: str) -> None:
    """Raise `SettingsError` for lone surrogates, such as bytes of a command line that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(
            f"{label} contains {text[error.start]!r} at character {error.start + 1}, which is not valid Unicode",
            do="Write it in UTF-8.",
        ) from None


class PromptFailed(SettingsError):
    """A template failed with the values of a call. Its session cannot be resumed, since it keeps its templates."""


class UnknownName(UserError):
    pass


class UnknownSession(UnknownName):
    """There is no session of this id, or it belongs to another owner."""


class AlreadyFinished(SettingsError):
    """The session has ended."""


class UnavailableModel(UserError):
    pass


class SourceError(UserError):
    """A document that cannot be read."""

    reason: str = ""
    """What is wrong, without naming the document, for a list of documents; "" where one is never listed."""


class UnreadableDocument(SourceError):
    """A document whose content cannot be read. `label` names it in the sentence."""

    def __init__(self, label: str, why: str, *, where: str = "", do: str = "") -> None:
        self.reason = f"cannot be read: {why}"
        super().__init__(f"{label} {self.reason}", where=where, do=do)


class EncodingError(SourceError):
    """A text in an encoding that is not read."""

    reason = "not UTF-8 text"

    def __init__(self, label: str, *, where: str = "", do: str = "") -> None:
        super().__init__(f"{label} is {self.reason}", where=where, do=do)


class WorkspaceError(UserError):
    """A workspace, a ticket or another of its files cannot be used as asked."""


class ClaimLost(WorkspaceError):
    """A claim ended before its result was submitted: it expired, or the ticket has another result."""


class ProviderError(ConsilienceError):
    """A request that failed."""

    kind: ClassVar[FailureKind] = FailureKind.REJECTED
    """As which failure the call counts."""
    transient = False
    """Whether the same request may succeed later."""
    retries: int | None = None
    """How many retries are worth trying; None if unknown."""
    requests: int = 1
    """Requests of the failed call, set by the limiter."""
    waited: float = 0.0
    """Seconds between these requests, set by the limiter."""
    completion: object | None = None
    """A reply that was received and paid for nevertheless."""
    cost_unknown: bool = False
    """Whether the failed request may have cost money that nobody reports."""

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        self.detail = replace_surrogates(detail) or type(self).__name__
        self.retry_after = retry_after
        super().__init__(self.detail)

    def with_detail(self, detail: str) -> Self:
        """Return a copy with another detail; a model may raise the same object each time."""
        copied = self.__class__.__new__(self.__class__, detail)  # __init__ may take other arguments
        vars(copied).update(vars(self), detail=detail)
        return copied


class RateLimited(ProviderError):
    kind = FailureKind.RATE_LIMITED
    transient = True


class ServerError(ProviderError):
    kind = FailureKind.SERVER
    transient = True
    loading = False
    """Whether the server is still loading its model. It is asked again until it has, without counting requests or retries."""


class Timeout(ProviderError):
    kind = FailureKind.DEADLINE


class Unreachable(ProviderError):
    kind = FailureKind.UNREACHABLE
    transient = True


class Refused(ProviderError):
    kind = FailureKind.REFUSED


class Rejected(ProviderError):
    pass


class Truncated(ProviderError):
    """The server read a part of the prompt, and answered that."""

    kind = FailureKind.PROMPT_CUT


class JournalError(ConsilienceError):
    pass


class StoreUnusable(JournalError, UserError):
    pass


class CommitFailed(StoreUnusable):
    """Something was not recorded, for example on a full disk. What was committed before is kept; later commits may succeed."""


class SessionBusy(JournalError, UserError):
    pass


class OverAllowance(UserError):
    """The owner of a session may not run another one now."""


class NewerSchema(JournalError, UserError):
    pass


class VersionMismatch(JournalError, UserError):
    pass


class RequestMismatch(JournalError):
    pass


class ReplayMiss(JournalError):
    pass


class ProtocolViolation(ConsilienceError):
    pass


class SessionWaiting(ConsilienceError):
    """The session is parked until the calls in `awaited` are answered and it is resumed; nothing is lost.

    `tickets`: ids of the tickets that outside agents answer, by key of the call; `people`: names of those who are asked.
    """

    def __init__(self, session: str, awaited: tuple[str, ...], tickets: Mapping[str, str] | None = None) -> None:
        self.session, self.awaited, self.tickets = session, awaited, dict(tickets or {})
        self.people: dict[str, str] = {}
        super().__init__(f"session {session} waits for an answer to {', '.join(awaited)}; then resume it")


class SessionHeld(ConsilienceError):
    """Every remaining call belongs to a phase that `Options.hold` holds back; `held` has their phases by key."""

    def __init__(self, session: str, held: Mapping[str, tuple[str, int] | None]) -> None:
        self.session, self.held = session, dict(held)
        super().__init__(f"session {session} is held before {', '.join(self.held)}; resume it")
