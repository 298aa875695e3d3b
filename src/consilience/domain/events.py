"""The events of a journal: one model per type, one discriminated union.

The *place* of an event is its position in the program and depends on the program alone; its `seq` is the order of commit. Data
that differs between two runs of one program (times, host, retries) is in `volatile`. Large texts are stored once and referred to
by id (`text_id`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from consilience.domain.agents import Agent
from consilience.domain.content import id_of as id_of
from consilience.domain.content import text_id as text_id
from consilience.domain.detail import Detail
from consilience.domain.document_shares import DocumentShare, Purpose
from consilience.domain.outcome import (
    Check,
    Estimate,
    FailureKind,
    Limits,
    LimitUnit,
    OptionalOwner,
    StopReason,
    ThinkingLevel,
)
from consilience.domain.places import Place as Place
from consilience.domain.places import place_key as place_key
from consilience.domain.topology import Topology

SCHEMA_VERSION = 7
"""Schema of sessions and of the tables of a journal. From the first release on, journals of released schemas stay readable."""

CUT = "length"
"""`finish` of a reply that ended at its token limit."""

Volatile = dict[str, str | int | float | None]


class Event(BaseModel):
    """Base of all events."""

    model_config = ConfigDict(extra="forbid")
    canonical: ClassVar[bool] = True
    """Whether two runs of one program have equal events of this type, except for `incidental` fields."""
    incidental: ClassVar[frozenset[str]] = frozenset({"volatile"})

    type: str
    place: Place = ""
    seq: int = Field(default=0, exclude=True)
    """Order of commit, from 1."""
    volatile: Volatile = Field(default_factory=dict)


class SourceRef(BaseModel):
    """A source document of a session."""

    id: str
    name: str
    text: str
    """Id of the text."""
    agents: tuple[str, ...] | None = None
    """Ids of the only agents that may read it; None: all agents."""
    generations: int | None = None
    """Forks since a fork added the document; None if the first session had it."""
    remarks: tuple[str, ...] = ()
    """What of its file or directory the text does not show."""
    shares: tuple[DocumentShare, ...] = ()
    """Who is shown which lines, if it is dealt."""
    purpose: Purpose = ""
    """What it is for, if it is not the subject itself."""


class SessionStarted(Event):
    """The first event of a session: all that its run depends on."""

    type: Literal["session_started"] = "session_started"
    schema_version: int
    """`SCHEMA_VERSION`, as recorded."""
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
    replaced_templates: tuple[str, ...] = ()
    """Names of those that come from a directory of the user."""
    warnings: tuple[str, ...] = ()
    """Warnings of the report that were known before the first call."""
    prices: dict[str, tuple[float, float]] = {}
    """US dollars per input and output token, by agent."""
    steps: dict[str, int] = {}
    """Max steps per reply, by agent with tools; 1 for other agents."""
    repairs: int = 1
    """Max corrective retries per call."""
    cache: bool = False
    """Whether recorded replies to identical requests in other sessions of the store are reused."""
    encoder: str | None = None
    temperature: float | None = None
    thinking: ThinkingLevel | None = None
    """Level asked of models that can think."""
    detail: Detail = "full"
    """The set of prompts."""
    thinking_tokens: dict[str, int] = {}
    """Max thinking tokens per reply, on top of its size, by agent; without agents that never think."""
    windows: dict[str, int] = {}
    """Context size of the model in tokens, by agent; without unknown ones."""
    deadline: float | None = None
    """Max seconds per request to a model, if chosen."""
    human_deadline: float | None = None
    """Max seconds per answer of a person; None for no limit."""
    fit: float = 1.0
    """Share of their size that replies may have for the first phase and the closing call to fit the limits."""
    deliveries: dict[str, str] = {}
    """Options of the command that began it, by which a resume delivers the report, unless it is given others."""
    comparison: str = ""
    """The comparison that began it, an id that its sessions share."""
    inventory_tokens: int = 0
    """Max tokens of the inventory with which each reader of dealt documents begins; 0 without inventories."""
    parent: str | None = None
    """The session from which this one was forked."""
    forked_at: int | None = None
    """Number of the last event inherited from it."""


def age_of(event: CallEvent | AnswerReceived) -> int:
    """Return the number of forks since a reply or an answer from outside; 0 in this session."""
    return 1 + event.generations if event.inherited else 0


class CallEvent(Event):
    """Base of the events of a call."""

    default_requests: ClassVar[int] = 1

    key: str
    agent: str
    phase: tuple[str, int] | None = None
    kind: str = "reply"
    attempt: int = 1
    digest: str = ""
    """Of the request."""
    prompt: str = ""
    """Id of the list of its parts."""
    inherited: bool = False
    """Made and paid for by the session from which this one was forked; place and digest are those recorded there."""
    generations: int = 0
    """Forks between this session's parent and the session that made an inherited call."""
    steps: int = 1
    """Requests to the model that an agent with tools needed, without retries."""
    estimated: bool = False
    """Whether tokens and cost are estimated from the texts, because the model reported none."""
    tokens_thought: int = 0
    """The part of the output tokens spent on thinking."""

    @property
    def requests(self) -> int:
        """Requests that were sent; in `volatile` if it is not the default number."""
        return int(self.volatile.get("requests", self.default_requests) or 0)


class CallStarted(CallEvent):
    """A call in flight, for observers. It is stored until the call ends and is never part of the journal."""

    type: Literal["call_started"] = "call_started"
    canonical: ClassVar[bool] = False


class CallCompleted(CallEvent):
    """A call with a valid reply."""

    type: Literal["call_completed"] = "call_completed"
    audience: tuple[str, ...] = ()
    text: str
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    finish: str = "stop"
    cached: bool = False
    """Answered by a recorded reply to the same request, at no cost."""
    reserve: bool = False
    """Paid from the reserve."""

    @property
    def cut(self) -> bool:
        """Whether the reply ended at its token limit."""
        return self.finish == CUT


class ReplyRejected(CallEvent):
    """An invalid reply, which costs as any other. The next attempt returns `error` to the model, or has a higher token limit if
    the reply was cut."""

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
        """The failure of the call if this is its last attempt."""
        return FailureKind.TRUNCATED if self.finish == CUT else FailureKind.MALFORMED


class CallFailed(CallEvent):
    """A call without a reply. Tokens and cost are those of a refusal that was charged."""

    type: Literal["call_failed"] = "call_failed"
    default_requests: ClassVar[int] = 0
    failure: FailureKind
    detail: str = ""
    no_further_attempt: bool = False
    """Whether its share of the limits allowed no other one."""
    limit: OptionalOwner = None
    """The agent or phase whose limit refused or ended the call; None for the session's limit and for other failures."""
    exhausted: LimitUnit = ""
    """What the limit that refused or ended the call bounds."""
    possibly_charged: bool = False
    """A time limit, a deadline or a cancel ended the call while a request was in flight, whose cost is unknown."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0
    reserve: bool = False

    @property
    def reason(self) -> str:
        """Why there is no reply."""
        cause = "its share of the limits allowed no further attempt; " if self.no_further_attempt else ""
        return cause + self.detail

    @property
    def unsent(self) -> bool:
        """Whether a limit refused the attempt before a request was sent. Its prompt is not recorded."""
        return self.failure.is_limit and not self.prompt


Ended = CallCompleted | ReplyRejected | CallFailed
"""The events that end an attempt at a call."""


class StepCompleted(Event):
    """A step of an agent with tools: a request to its model, or the result of a tool.

    The `key` is `CALL/step-N`, or `CALL/step-N/tool-I` for the result of the I-th tool of that step; the place is below that of the
    call. The event that ends the call has the total cost of its steps. The text of a response contains times and ids, so it is
    incidental; its content is in the digest of the next step.
    """

    type: Literal["step_completed"] = "step_completed"
    incidental: ClassVar[frozenset[str]] = frozenset({"volatile", "text"})
    key: str
    call: str
    """Key of the call."""
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
    """A call in flight when its process ended; it may have been charged."""

    type: Literal["call_lost"] = "call_lost"
    canonical: ClassVar[bool] = False
    key: str
    agent: str


class CallAwaited(Event):
    """A call to a person or an outside process, with all that is needed to answer it after this process has ended."""

    type: Literal["call_awaited"] = "call_awaited"
    canonical: ClassVar[bool] = False
    key: str
    agent: str
    attempt: int = 1
    prompt: str
    """Id of the list of its parts."""
    form: str = ""  # id of the JSON Schema of a typed reply; "" for free text
    prose: str = ""
    """The field of the reply that plain text fills; "" for none."""
    quoted: tuple[str, ...] = ()  # ids of the texts that the prompt quotes, in order; of a reply not always its words
    asked_at: float
    """Seconds since the epoch."""
    ticket: str = ""
    """Id of the ticket in the workspace that the agent's model names; "" for other agents."""


class CancelRequested(Event):
    """Somebody ended the session. From here on every live call fails as `cancelled`, those in flight too."""

    type: Literal["cancel_requested"] = "cancel_requested"
    canonical: ClassVar[bool] = False
    by: str = ""
    answer: bool = False
    """Whether the closing call is made nevertheless."""


class CommentPosted(Event):
    """What somebody said about the session while it was open. No agent is shown it."""

    type: Literal["comment_posted"] = "comment_posted"
    canonical: ClassVar[bool] = False
    text: str
    by: str = ""


class BlindnessLifted(Event):
    """The owner of the session, who has a seat in it, chose to see all of it before its end."""

    type: Literal["blindness_lifted"] = "blindness_lifted"
    canonical: ClassVar[bool] = False
    by: str = ""


class AnswerReceived(Event):
    """The answer of a person or an outside process, posted to the session's mailbox."""

    type: Literal["answer_received"] = "answer_received"
    canonical: ClassVar[bool] = False
    key: str
    text: str
    passed: bool = False  # they do not answer; the text is empty
    by: str = ""
    inherited: bool = False
    generations: int = 0


class SearchExpired(Event):
    """A search for a pattern in a text that was not done in time, which counts as one without a match."""

    type: Literal["search_expired"] = "search_expired"
    canonical: ClassVar[bool] = False
    search: str
    """Text id of the pattern and the text."""


class MessagePublished(Event):
    """A message; see `domain.messages.Message`."""

    type: Literal["message_published"] = "message_published"
    id: str
    sender: str
    kind: str
    text: str
    audience: tuple[str, ...] = ()
    reply_to: str | None = None
    phase: tuple[str, int] | None = None


class Noted(Event):
    """An event defined by the protocol."""

    type: Literal["noted"] = "noted"
    name: str
    data: dict[str, Any] = {}
    """The protocol's model of that name as JSON, with ids for long texts."""
    body: str | None = None
    """The id of the text that holds the JSON instead of `data`, where that would be long."""
    texts: tuple[str, ...] = ()
    """The ids of all these texts."""
    phase: tuple[str, int] | None = None


class CheckRecorded(Event):
    """The check of a stop condition after step `index`."""

    type: Literal["check_recorded"] = "check_recorded"
    index: int
    check: Check


class Settled(Event):
    """A round of a protocol has ended. A resume takes its result from here and does not execute it again; a replay and a fork do.

    The place is that of the first operation of the round.
    """

    type: Literal["settled"] = "settled"
    name: str
    index: int
    until: int
    """The ordinal of the first operation after the round."""
    calls: int = 0
    """Upper bound on the calls that the run still makes, if limits are divided by it."""
    body: str
    """Id of a text of two lines of JSON: the result of the round, and what its calls left in the session."""


class TextsEmbedded(Event):
    """The vectors of texts, or the error of the encoder."""

    type: Literal["texts_embedded"] = "texts_embedded"
    encoder: str
    texts: tuple[str, ...]
    vectors: str = ""
    """Id of a text with one line of hexadecimal int8 per text."""
    error: str = ""
    inherited: bool = False


class SessionResumed(Event):
    """A process resumed the session; `lost` calls were in flight."""

    type: Literal["session_resumed"] = "session_resumed"
    canonical: ClassVar[bool] = False
    lost: int = 0


class SessionParked(Event):
    """The session waits only for people or outside processes, under these keys."""

    type: Literal["session_parked"] = "session_parked"
    canonical: ClassVar[bool] = False
    awaited: tuple[str, ...]


class SessionFinished(Event):
    """The last event, with the ids of what is shown of the session. `volatile` has `ended_at`, in seconds since the epoch."""

    type: Literal["session_finished"] = "session_finished"
    incidental: ClassVar[frozenset[str]] = frozenset({"volatile", "report", "presentation", "forecasts"})
    stop_reason: StopReason
    report: str
    report_digest: str
    presentation: str
    """Id of `domain.sections.Presentation` as JSON."""
    forecasts: str = ""
    """Id of the report's forecasts as JSON, which are read without the report; "" if it has none."""


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
    | CancelRequested
    | CommentPosted
    | BlindnessLifted
    | SearchExpired
    | MessagePublished
    | Noted
    | CheckRecorded
    | Settled
    | TextsEmbedded
    | SessionResumed
    | SessionParked
    | SessionFinished,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def canonical(events: Iterable[Event]) -> list[dict[str, object]]:
    """Return events of canonical types by (place, type, attempt), without `seq`, incidental fields, and fields with their default:
    a field added by a later version does not change the digest of an older journal."""
    canonical_events = [event for event in events if event.canonical]
    canonical_events.sort(key=lambda event: (place_key(event.place), event.type, getattr(event, "attempt", 0)))
    return [
        {"type": event.type, **event.model_dump(mode="json", exclude=set(event.incidental), exclude_defaults=True)}
        for event in canonical_events
    ]


def canonical_digest(events: Iterable[Event]) -> str:
    """Return the SHA-256 (hex) of the canonical journal."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) for row in canonical(events))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
