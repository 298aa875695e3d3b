"""What the journal holds: one model per type, one discriminated union.

An event has a *place*, where in the program it happened, and gets a `seq`, when it was committed. Places depend on the
program alone. What differs between two runs of one program (times, host, retries) stands in `volatile`. Large texts are
referred to by id (`text_id`) and stored once.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from consilience.domain.agents import Agent
from consilience.domain.outcome import Check, Estimate, FailureKind, Limits, StopReason
from consilience.domain.topology import Topology

SCHEMA_VERSION = 1

Volatile = dict[str, str | int | float | None]

Place = str
"""Ordinals joined by dots: `"4.1.0"` is operation 0 of branch 1 of the gather or start at operation 4."""


@lru_cache(maxsize=1024)
def text_id(text: str) -> str:
    """Content address: the first 16 bytes of the SHA-256 of the UTF-8 text, URL-safe base64 without padding."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
    return base64.urlsafe_b64encode(digest)[:22].decode()


def place_key(place: Place) -> tuple[int, ...]:
    """Sorts places in program order."""
    return tuple(map(int, place.split("."))) if place else ()


class Event(BaseModel):
    """Base of all events. `canonical` types are those two runs of one program share, but for their `incidental` fields."""

    model_config = ConfigDict(extra="forbid")
    canonical: ClassVar[bool] = True
    incidental: ClassVar[frozenset[str]] = frozenset({"volatile"})

    type: str
    place: Place = ""
    seq: int = Field(default=0, exclude=True)
    volatile: Volatile = Field(default_factory=dict)


class SourceRef(BaseModel):
    id: str
    name: str
    text: str
    agents: tuple[str, ...] | None = None


class SessionStarted(Event):
    """`prices` are US dollars per token read and written, by agent; `repairs` the corrective retries a call may have.

    `steps` are the most steps that an agent with tools takes for one reply, by agent; for all others it is 1.
    With `cache`, replies to the very same requests in other sessions of the store are taken instead of asked for.
    A fork names its `parent` and the last event of it that was inherited, `forked_at`.
    """

    type: Literal["session_started"] = "session_started"
    schema_version: int = SCHEMA_VERSION
    prompt_format: int
    protocol: str
    protocol_version: int
    settings: dict[str, object]
    task: str
    sources: tuple[SourceRef, ...] = ()
    seed: int
    agents: tuple[Agent, ...]
    topology: Topology
    limits: Limits = Limits()
    quorum: float
    estimate: Estimate
    templates: dict[str, str]
    prices: dict[str, tuple[float, float]] = {}
    steps: dict[str, int] = {}
    repairs: int = 1
    cache: bool = False
    encoder: str | None = None
    temperature: float | None = None
    parent: str | None = None
    forked_at: int | None = None


def age_of(event: CallEvent | AnswerReceived) -> int:
    """How many forks ago a reply, or an answer from outside, was given; 0 in this session."""
    return 1 + event.generations if event.inherited else 0


class CallEvent(Event):
    """Common to what a call can come to. `digest` is the request's, `prompt` the id of its list of parts.

    An `inherited` one was made, and paid for, by the session this one is forked from, or where that is a fork itself by one that
    many `generations` before it; its place and digest are those there.
    `steps` are the requests to a model that an agent with tools needed, retries not counted. Where the model told no tokens they
    are `estimated` from the texts, and so is the cost.
    """

    default_requests: ClassVar[int] = 1

    key: str
    agent: str
    phase: tuple[str, int] | None = None
    kind: str = "reply"
    attempt: int = 1
    digest: str = ""
    prompt: str = ""
    inherited: bool = False
    generations: int = 0
    steps: int = 1
    estimated: bool = False

    @property
    def requests(self) -> int:
        """How many sendings it took; stands in `volatile` where it is not the ordinary number."""
        return int(self.volatile.get("requests", self.default_requests) or 0)


class CallStarted(CallEvent):
    """In flight. Seen by observers and kept beside the log until the call ends; never part of the log."""

    type: Literal["call_started"] = "call_started"
    canonical: ClassVar[bool] = False


class CallCompleted(CallEvent):
    """A `cached` one was answered by a recorded reply to the very same request, and cost nothing."""

    type: Literal["call_completed"] = "call_completed"
    audience: tuple[str, ...] = ()
    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    finish: str = "stop"
    cached: bool = False
    reserve: bool = False


class ReplyRejected(CallEvent):
    """A reply that could not be read, paid for all the same; the next attempt carries `error` back to the model."""

    type: Literal["reply_rejected"] = "reply_rejected"
    text: str
    error: str
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    reserve: bool = False


class CallFailed(CallEvent):
    """Tokens and cost are those of a refusal that was paid for. `limit` names the agent or phase whose limit refused the call;
    empty for the session's own limit, and for other failures."""

    type: Literal["call_failed"] = "call_failed"
    default_requests: ClassVar[int] = 0
    failure: FailureKind
    detail: str = ""
    limit: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    reserve: bool = False


Ended = CallCompleted | ReplyRejected | CallFailed
"""What ends an attempt at a call."""


class StepCompleted(Event):
    """A step of an agent with tools inside the call `call`: a request to its model, or a tool's result.

    Its `key` is `CALL/step-N`, and `CALL/step-N/tool-I` for the result of the I-th tool asked for in that step; its place lies
    beneath the call's. What the steps of a call cost together stands in the call that they end in. The text of a response holds
    times and ids of its own; what it says is in the digest of the next step.
    """

    type: Literal["step_completed"] = "step_completed"
    incidental: ClassVar[frozenset[str]] = frozenset({"volatile", "text"})
    key: str
    call: str
    agent: str
    phase: tuple[str, int] | None = None
    attempt: int = 1
    kind: Literal["model", "tool"]
    digest: str
    text: str
    form: Literal["text", "json", "retry"] = "text"
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None


class CallLost(Event):
    """A call that was in flight when the process that made it ended; it may have been paid for."""

    type: Literal["call_lost"] = "call_lost"
    canonical: ClassVar[bool] = False
    key: str
    agent: str


class CallAwaited(Event):
    """A call whose answer comes from a person or an outside process, with all they need to give it, also after this process.

    `prompt` is the id of its list of parts; `form` that of the JSON Schema of a typed reply, and `prose` the field of it that
    words alone fill; both empty where there is none.
    """

    type: Literal["call_awaited"] = "call_awaited"
    canonical: ClassVar[bool] = False
    key: str
    agent: str
    attempt: int = 1
    prompt: str
    form: str = ""
    prose: str = ""


class AnswerReceived(Event):
    """What a person or an outside process answered under a key while nobody ran the session."""

    type: Literal["answer_received"] = "answer_received"
    canonical: ClassVar[bool] = False
    key: str
    text: str
    by: str = ""
    inherited: bool = False
    generations: int = 0


class MessagePublished(Event):
    type: Literal["message_published"] = "message_published"
    id: str
    sender: str
    kind: str
    text: str
    audience: tuple[str, ...] = ()
    reply_to: str | None = None
    phase: tuple[str, int] | None = None


class CheckRecorded(Event):
    type: Literal["check_recorded"] = "check_recorded"
    index: int
    check: Check


class TextsEmbedded(Event):
    """Vectors of texts: one line of hexadecimal int8 each, in the order of `texts`, as a stored text; or the `error` instead."""

    type: Literal["texts_embedded"] = "texts_embedded"
    encoder: str
    texts: tuple[str, ...]
    vectors: str = ""
    error: str = ""
    inherited: bool = False


class SessionResumed(Event):
    type: Literal["session_resumed"] = "session_resumed"
    canonical: ClassVar[bool] = False
    lost: int = 0


class SessionParked(Event):
    """Only people or outside processes are awaited, under these keys."""

    type: Literal["session_parked"] = "session_parked"
    canonical: ClassVar[bool] = False
    awaited: tuple[str, ...]


class SessionFinished(Event):
    type: Literal["session_finished"] = "session_finished"
    incidental: ClassVar[frozenset[str]] = frozenset({"volatile", "report"})
    stop_reason: StopReason
    report: str
    report_digest: str


AnyEvent = Annotated[
    SessionStarted
    | CallStarted
    | CallCompleted
    | ReplyRejected
    | CallFailed
    | StepCompleted
    | CallLost
    | CallAwaited
    | AnswerReceived
    | MessagePublished
    | CheckRecorded
    | TextsEmbedded
    | SessionResumed
    | SessionParked
    | SessionFinished,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
