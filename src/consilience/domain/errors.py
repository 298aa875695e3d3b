"""The one exception tree. A limit is an outcome (`StopReason`, `Failure`), never an exception.

ConsilienceError
├── UserError                 the user's mistake: one paragraph, exit code 2
│   ├── SettingsError         a setting, size or file that cannot be
│   ├── UnknownName           no model, panel, protocol or session of that name
│   ├── UnavailableModel      a model that is named but cannot be reached: key, extra, weights
│   └── SourceError           a document that cannot be read
├── ProviderError             a model's failure; `Session.ask` turns it into a `Failure`
│   ├── RateLimited           429, with `retry_after` if the provider said so
│   ├── ServerError           5xx and overload
│   ├── Timeout               no answer within the deadline
│   ├── Unreachable           the connection failed
│   ├── Refused               content filter or refusal
│   └── Rejected              4xx that no retry mends: key, model name, request size
├── JournalError              the store
│   ├── StoreUnusable         the place cannot be written or read, or is no journal
│   ├── SessionBusy           another process runs this session; says who
│   ├── NewerSchema           written by a later version
│   ├── VersionMismatch       written by another version of the protocol
│   ├── RequestMismatch       the key is recorded with another request; says the difference
│   └── ReplayMiss            a replay asked for a call that is not recorded
├── SessionWaiting            not an error of anyone's: a person or an outside process is awaited, the session is parked
├── SessionHeld               nor this: what is left to ask is held back by who runs the session
└── ProtocolViolation         a defect in a protocol: a key used twice, a message shown to an agent outside its audience
"""

from __future__ import annotations

from collections.abc import Mapping


def storable(text: str) -> str:
    """`text` with a question mark for every half of a character pair, which JSON can bring and no journal can hold."""
    return text.encode("utf-8", "replace").decode()


class ConsilienceError(Exception):
    """Base of everything this package raises on purpose."""


class UserError(ConsilienceError):
    """What was wrong, `where` it stands, and what to `do`; `str()` is one paragraph of the three."""

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        self.what, self.where, self.do = what, where, do
        parts = [what.rstrip(".") + ".", f"Where: {where.rstrip('.')}." if where else "", do]
        super().__init__(" ".join(part for part in parts if part))


class SettingsError(UserError):
    pass


class UnknownName(UserError):
    pass


class UnavailableModel(UserError):
    pass


class SourceError(UserError):
    pass


class ProviderError(ConsilienceError):
    """A request that failed. `transient` says whether the same request may succeed later.

    `retries` is how often it is worth asking again where that is known. `requests` counts the sendings of the call that failed,
    `waited` the seconds between them; a limiter fills them in.
    `completion` is what came and was paid for all the same, where something did.
    """

    transient = False
    retries: int | None = None
    requests: int = 1
    waited: float = 0.0
    completion: object | None = None

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        self.detail = storable(detail) or type(self).__name__
        self.retry_after = retry_after
        super().__init__(self.detail)


class RateLimited(ProviderError):
    transient = True


class ServerError(ProviderError):
    transient = True


class Timeout(ProviderError):
    pass


class Unreachable(ProviderError):
    transient = True


class Refused(ProviderError):
    pass


class Rejected(ProviderError):
    pass


class JournalError(ConsilienceError):
    pass


class StoreUnusable(JournalError, UserError):
    pass


class SessionBusy(JournalError, UserError):
    pass


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
    """The session is parked until what it awaits under `awaited` is answered and it is resumed; nothing is lost."""

    def __init__(self, session: str, awaited: tuple[str, ...]) -> None:
        self.session, self.awaited = session, awaited
        super().__init__(f"session {session} waits for an answer to {', '.join(awaited)}; then resume it")


class SessionHeld(ConsilienceError):
    """Every call that is left belongs to a phase that `Options.hold` holds back; `held` has them by key. Resume to go on."""

    def __init__(self, session: str, held: Mapping[str, tuple[str, int] | None]) -> None:
        self.session, self.held = session, dict(held)
        super().__init__(f"session {session} is held before {', '.join(self.held)}; resume it")
