"""What requests to the server hold. A caller gives no path, no address, no key and no program."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, StopReason, ThinkingLevel
from consilience.domain.panels import Panel
from consilience.engine.runner import MAX_TASK_CHARS


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NewSession(Body):
    """A deliberation that is asked for."""

    task: str = Field(min_length=1, max_length=MAX_TASK_CHARS)
    """The question, or the piece of work."""
    protocol: str
    """Name of a protocol, or of a preset of the operator's."""
    settings: dict[str, Any] = {}
    """Settings of the protocol, by name."""
    panel: Panel | str | None = None
    """Personas, or the name of a shipped panel."""
    models: tuple[str, ...] | dict[str, str] = ()
    """Names of the server's models: to assign to the agents in turn, or by agent id; a person is `human`. Empty: the default."""
    sources: tuple[Source, ...] = ()
    """Documents."""
    limits: Limits = Limits()
    """Limits on calls, tokens, money, time and steps."""
    seed: int = 0
    quorum: float = Field(default=0.5, ge=0, le=1)
    """Share of agents that must reply in the first phase."""
    thinking: ThinkingLevel | None = None
    name: str = Field(default="", max_length=200)
    """What the caller calls the session."""
    require: tuple[StopReason, ...] = ()
    """Stop reasons of which the report must have one; the session says whether it has."""
    dry_run: bool = False
    """Return the plan without recording a session."""


class AnswerBody(Body):
    """An answer to an open question of a session."""

    key: str
    """Key of the call, or a name of it that is unique."""
    text: str = Field(min_length=1)


class CancelBody(Body):
    answer: bool = False
    """Let the closing call be made, for an answer."""


class CommentBody(Body):
    text: str = Field(min_length=1)
