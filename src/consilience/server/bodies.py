"""What requests to the server hold. A caller gives no path, no address, no key and no program."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, StringConstraints, model_validator

from consilience.documents.dealing import Deal
from consilience.domain.document_shares import DocumentShare, Purpose
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, StopReason, ThinkingLevel
from consilience.domain.panels import Panel
from consilience.engine.execution import MAX_INVENTORY_TOKENS
from consilience.engine.runner import MAX_TASK_CHARS

Words = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TASK_CHARS, pattern=r"\S")]
"""A text that is not empty."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SourceBody(Body):
    """A document."""

    text: str = Field(min_length=1)
    """Its whole text."""
    name: str = Field(default="", max_length=200)
    """What it is called."""
    agents: tuple[str, ...] | None = None
    """Ids of the only agents that may read it. None: all agents."""
    remarks: tuple[str, ...] = ()
    """In what the text differs from its file."""
    shares: tuple[DocumentShare, ...] = ()
    """Who is shown which of its lines, as `/api/choices` deals them. Empty: it is not dealt."""
    purpose: Purpose = ""
    """What it is for, if it is not the subject itself."""

    @model_validator(mode="after")
    def _shares_exist(self) -> Self:
        last = max(len(self.text.splitlines()), 1)
        ranges = [lines for share in self.shares for lines in (*share.lines, *share.related)]
        if not all(1 <= first <= end <= last for first, end in ranges):
            raise ValueError("a share has lines that the document does not have")
        return self


def _to_source(value: object) -> Source:
    return value if isinstance(value, Source) else Source(**SourceBody.model_validate(value).model_dump())


GivenSource = Annotated[
    Source,
    PlainValidator(_to_source, json_schema_input_type=SourceBody),
    PlainSerializer(lambda source: source.model_dump(mode="json")),
]
"""A document of a request."""
GivenSources = Annotated[tuple[GivenSource, ...], Field(max_length=1_000)]


class NewSession(Body):
    """A deliberation that is asked for."""

    task: Words
    """The question, or the piece of work."""
    protocol: str
    """Name of a protocol, or of a preset of the operator's."""
    settings: dict[str, Any] = {}
    """Settings of the protocol, by name."""
    panel: Panel | str | None = None
    """Personas, or the name of a shipped panel."""
    models: tuple[str, ...] | dict[str, str] = ()
    """Names of the server's models: to assign to the agents in turn, or by agent id; a person is `human`. Empty: the default."""
    sources: GivenSources = ()
    """Documents."""
    deal: Deal = "none"
    """How documents are dealt to the agents."""
    inventory_tokens: int | None = Field(default=None, ge=0, le=MAX_INVENTORY_TOKENS)
    """Max tokens of the inventory with which each reader of dealt documents begins; 0: no inventories. None: 2,000."""
    limits: Limits = Limits()
    """Limits on calls, tokens, money, time and steps."""
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)
    """Random seed."""
    quorum: float = Field(default=0.5, ge=0, le=1)
    """Share of agents that must reply in the first phase."""
    thinking: ThinkingLevel | None = None
    """How much models that can think do so. None: `low`."""
    name: str = Field(default="", max_length=200)
    """What the caller calls the session."""
    team: bool = False
    """Whether the caller's team owns the session: all of it see it and act on it, and it counts toward the team's bounds."""
    require: tuple[StopReason, ...] = ()
    """Stop reasons of which the report must have one; the session says whether it has."""
    dry_run: bool = False
    """Return the plan without recording a session."""


class AnswerBody(Body):
    """An answer to an open question of a session."""

    key: str
    """Key of the call, or a name of it that is unique."""
    text: Words
    """The answer: text, or the JSON of the question's schema."""


class CancelBody(Body):
    """The end of a session."""

    answer: bool = False
    """Let the closing call be made, for an answer."""


class CommentBody(Body):
    """A comment, which no agent reads."""

    text: Words
    """What is to be put on the record."""


class _Inheriting(Body):
    """What `fork` and `tell` change of a session. All else is as in it."""

    replace: dict[str, str] = {}
    """Models of single agents, by id: names of the server's models, or `human`."""
    sources: GivenSources = ()
    """Documents to add. One with the name of a document of the session replaces it."""
    limits: Limits | None = None
    """Limits on what the new session itself spends. None: those of the session."""
    name: str = Field(default="", max_length=200)
    """What the caller calls the new session."""
    dry_run: bool = False
    """Return what would be inherited and asked again, without recording a session."""


class ForkBody(_Inheriting):
    """A new session that inherits the replies of another up to a point."""

    at: int | str = "end"
    """The number of an event, the key of a call, PHASE/INDEX, or `end`."""
    settings: dict[str, Any] = {}
    """Settings of the protocol to change, by name."""
    perspectives: dict[str, str] = {}
    """Points of view of single agents, by id."""
    task: Words | None = None
    """Another task."""


class TellBody(_Inheriting):
    """A new fact for a finished session: agents give their final positions again, in a new session."""

    fact: Words
    """The fact, in a sentence."""


class ResolveBody(Body):
    """The outcome of a question of a session."""

    question: str = Field(max_length=200)
    """Id of a crux or proposition: `crux-1`, `p1`."""
    outcome: bool
    """Whether the answer turned out to be yes."""


class ChoicesBody(Body):
    """A task of which is asked how it would be worked on."""

    task: Words
    """The question, or the piece of work."""
    sources: GivenSources = ()
    """Documents."""
    models: tuple[str, ...] = ()
    """Names of the server's models at hand. Empty: the default."""
    personas: int = Field(default=0, ge=0, le=64)
    """Number of points of view that are named."""
    limits: Limits = Limits()
    """Limits on the reading, which is one call."""
    reading: str = ""
    """The session of a reading that was begun by an earlier request for this task."""
