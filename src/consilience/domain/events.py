"""What the journal holds: one model per type, one discriminated union.

An event has a *place*, where in the program it happened, and gets a `seq`, when it was committed. Places depend on the
program alone. What differs between two runs of one program (times, host, retries) stands in `volatile`. Large texts are
referred to by id (`text_id`) and stored once.
"""

from __future__ import annotations

import binascii
import hashlib
import json
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    TypeAdapter,
    ValidationInfo,
)

from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.outcome import Check, Estimate, FailureKind, Limits, StopReason, ThinkingLevel
from consilience.domain.topology import Topology

SCHEMA_VERSION = 2
"""Written into new sessions. 2 added `noted` and the stored presentation; sessions of schema 1 are read as before."""

CUT = "length"
"""The `finish` of a reply that ended at its token limit."""

Volatile = dict[str, str | int | float | None]

Place = str
"""Ordinals joined by dots: `"4.1.0"` is operation 0 of branch 1 of the gather or start at operation 4."""


MAX_CACHED_CHARS = 4_000
"""Results for longer texts are not cached: a cache bounded by entries alone would keep megabytes of text alive."""


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def text_id(text: str) -> str:
    """Content address: the first 16 bytes of the SHA-256 of the UTF-8 text, URL-safe base64 without padding."""
    return _short_text_id(text) if len(text) <= MAX_CACHED_CHARS else _digest_text(text)


def _digest_text(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
    return binascii.b2a_base64(digest, newline=False).translate(_URL_SAFE)[:22].decode()


_short_text_id = lru_cache(maxsize=1024)(_digest_text)


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
    generations: int | None = None
    """Forks since a fork added the document; None if it is as old as the first session."""


class SessionStarted(Event):
    """`prices` are US dollars per token read and written, by agent; `repairs` the corrective retries a call may have.

    `steps` are the most steps that an agent with tools takes for one reply, by agent; for all others it is 1.
    With `cache`, replies to the very same requests in other sessions of the store are taken instead of asked for.
    A fork names its `parent` and the last event of it that was inherited, `forked_at`.
    """

    type: Literal["session_started"] = "session_started"
    schema_version: int = 1
    """As recorded; new sessions name `SCHEMA_VERSION`. The default never changes, so that no recorded digest does."""
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
    thinking: ThinkingLevel | None = None
    """What models that can think were asked for; None in sessions recorded before there was a choice."""
    detail: Detail = "brief"
    """Which set of prompts agents are shown; before there was a choice it was what is now the brief one."""
    thinking_tokens: dict[str, int] = {}
    """Tokens that one reply of an agent may take for thinking, on top of its size; agents that never think are left out."""
    windows: dict[str, int] = {}
    """Tokens of context of each agent's model, where they are known."""
    human_deadline: float | None = None
    """Seconds of wall time in which a person must answer; None for no limit."""
    fit: float = 1.0
    """Share of their size that replies may have, so that the first phase and the closing call fit into the limits."""
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
    tokens_thought: int = 0
    """The part of the tokens written that went into thinking."""

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

    @property
    def cut(self) -> bool:
        """It ended at its token limit."""
        return self.finish == CUT


class ReplyRejected(CallEvent):
    """A reply that could not be read, paid for all the same; the next attempt carries `error` back to the model, or more room if
    the reply was cut at its limit."""

    type: Literal["reply_rejected"] = "reply_rejected"
    text: str
    error: str
    finish: str = "stop"
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    reserve: bool = False

    @property
    def failure(self) -> FailureKind:
        """What the call comes to if this is its last attempt."""
        return FailureKind.TRUNCATED if self.finish == CUT else FailureKind.MALFORMED


class CallFailed(CallEvent):
    """Tokens and cost are those of a refusal that was paid for. `limit` names the agent or phase whose limit refused the call;
    empty for the session's own limit, and for other failures.

    `possibly_charged`: a limit on time ended the call while a request was in flight. What that request cost is unknown.
    """

    type: Literal["call_failed"] = "call_failed"
    default_requests: ClassVar[int] = 0
    failure: FailureKind
    detail: str = ""
    limit: str = ""
    possibly_charged: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    reserve: bool = False

    @property
    def unsent(self) -> bool:
        """Whether a limit refused the attempt before anything was sent. Its prompt is not recorded then."""
        return self.failure.is_limit and not self.prompt


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
    tokens_thought: int = 0
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
    asked_at: float = 0.0
    """When it was asked, in seconds since the epoch; 0 in sessions recorded before there was a deadline for people."""


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


class Noted(Event):
    """An event that the protocol defines. `data` is its model of that name as JSON; long texts in it are ids, listed in `texts`."""

    type: Literal["noted"] = "noted"
    name: str
    data: dict[str, Any] = {}
    texts: tuple[str, ...] = ()
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
    incidental: ClassVar[frozenset[str]] = frozenset({"volatile", "report", "presentation"})
    stop_reason: StopReason
    report: str
    report_digest: str
    presentation: str = ""
    """Id of the protocol's sections and views as JSON (`domain.sections.Presentation`); empty in sessions of schema 1."""


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
    | Noted
    | CheckRecorded
    | TextsEmbedded
    | SessionResumed
    | SessionParked
    | SessionFinished,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


@cache
def _all_fields(cls: type[Event]) -> set[str]:
    return set(cls.model_fields)


def decode_event(body: str, seq: int) -> AnyEvent:
    """Return a recorded event. Raises `ValidationError` for an invalid body.

    A journal may hold 50,000 events, so all events of a type share one set of assigned fields: 1.6 kB an event instead of 2.4.
    """
    event = EVENT.validate_json(body)
    event.__dict__["seq"] = seq
    object.__setattr__(event, "__pydantic_fields_set__", _all_fields(type(event)))
    return event


def canonical(events: Iterable[Event]) -> list[dict[str, object]]:
    """Events of canonical types by (place, type, attempt), without `seq`, incidental fields, and fields that hold their default.

    So a field that a later version adds changes no digest of a journal that was written before.
    """
    kept = [event for event in events if event.canonical]
    kept.sort(key=lambda event: (place_key(event.place), event.type, getattr(event, "attempt", 0)))
    return [_row(event) for event in kept]


def _row(event: Event) -> dict[str, object]:
    row = event.model_dump(mode="json", exclude=set(event.incidental), exclude_defaults=True)
    return {"type": event.type, **row}


def canonical_digest(events: Iterable[Event]) -> str:
    """SHA-256 (hex) of the canonical journal."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) for row in canonical(events))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


MAX_NOTE_CHARS = 16_000
"""JSON characters of a note, its long texts not counted."""

N = TypeVar("N", bound=BaseModel)


class _TextIds(dict[str, str]):
    """Texts by id, filled while a note is dumped."""


class _Lookup:
    def __init__(self, text: Callable[[str], str]) -> None:
        self.text = text


def _to_id(text: str, info: SerializationInfo) -> str:
    texts = info.context
    if not isinstance(texts, _TextIds):
        return text
    id = text_id(text)
    texts[id] = text
    return id


def _from_id(value: object, info: ValidationInfo) -> object:
    return info.context.text(str(value)) if isinstance(info.context, _Lookup) else value


LongText = Annotated[str, BeforeValidator(_from_id), PlainSerializer(_to_id)]
"""A field of a note that may be long: the event holds the text's id."""


def dump_note(data: BaseModel) -> tuple[dict[str, object], dict[str, str]]:
    """Return the note as the event holds it, and its long texts by id."""
    texts = _TextIds()
    return data.model_dump(mode="json", context=texts), texts


def load_note(model: type[N], event: Noted, text: Callable[[str], str]) -> N:
    """Return a recorded note with its long texts; `text` looks one up by id. Raises `ValidationError`."""
    return model.model_validate(event.data, context=_Lookup(text))
