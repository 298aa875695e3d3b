"""What the server answers with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Answered(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class SessionAnswer(Answered):
    """The session that was acted on."""

    session: str


class BegunSession(Answered):
    """A new session, recorded, which runs when its turn comes."""

    session: str
    plan: dict[str, Any]
    """Agents, models, estimate of calls, bounds on tokens and money."""


class PlannedSession(Answered):
    """What a request would run. Nothing was recorded."""

    plan: dict[str, Any]


class StartedFork(Answered):
    """A new session that inherits from another, recorded, which runs when its turn comes."""

    session: str
    fork: dict[str, Any]
    """What is inherited and asked again."""


class PlannedFork(Answered):
    """What a fork would inherit and ask again. Nothing was recorded."""

    fork: dict[str, Any]


class SessionView(Answered):
    """How a session stands."""

    session: str
    state: str
    """`finished`, `running`, `waiting` (for an answer from outside) or `unfinished` (queued or interrupted)."""
    report: dict[str, Any]
    """The report of a finished session as stored, or the progress of another."""
    require_met: bool | None
    """Whether it stopped for a reason that its request requires; None without a requirement or a report."""


class QuestionView(Answered):
    """A call that waits for an answer from outside."""

    key: str
    agent: str
    person: str
    attempt: int
    text: str
    """What is asked, as its addressee reads it."""
    schema_: dict[str, Any] | None = Field(alias="schema")
    """JSON Schema of the answer; None for plain text."""
    answered: bool
    until: float | None
    """Deadline in seconds since the epoch."""
    ticket: str


class AnsweredQuestion(Answered):
    """The call whose answer was recorded."""

    session: str
    key: str


class ChoiceView(Answered):
    """How `ask` would work on a task."""

    choice: dict[str, Any] | None
    """Protocol, settings, rule and reason; None until the reading is finished."""
    sources: list[dict[str, Any]]
    """Which agents are to be given which of the documents, where they are dealt."""
    session: str
    """The session in which a model read the task; "" if none had to. While `choice` is null, ask again with it as `reading`."""


class ProtocolView(Answered):
    """A protocol, or a preset of the operator's."""

    name: str
    summary: str
    protocol: str
    """That of a preset; of a protocol its name."""
    settings: dict[str, Any]
    """JSON Schema of the settings, with descriptions and defaults."""
    defaults: dict[str, Any]
    """Of a preset, the settings that it fixes unless a request gives others."""
    estimate: dict[str, int]
    """Fewest and most calls with these settings."""


class PanelView(Answered):
    """A shipped panel of personas."""

    name: str
    description: str
    personas: list[dict[str, Any]]


class ModelView(Answered):
    """A model that callers may name."""

    name: str
    default: bool
    context_window: int | None
    """Tokens; None if it is not known."""
    paid: bool
    """Whether it costs money, or may."""


class ScoresView(Answered):
    """Mean Brier scores: 0 is perfect, 0.25 that of a coin, 1 certain and wrong. With fewer than `ranked_from` forecasts each, they
    rank nobody."""

    agents: list[dict[str, Any]]
    models: list[dict[str, Any]]
    ranked_from: int


class ResolvedView(Answered):
    """An outcome that was recorded."""

    session: str
    question: str
    text: str
    outcome: bool
    recorded: str
    """The day, ISO 8601."""
    agents: list[dict[str, Any]]
    """Their Brier scores on this question."""


class Health(Answered):
    """Whether the server can work."""

    status: str
