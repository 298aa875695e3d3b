"""What the JSON files of a workspace hold. Unknown keys are kept. Times are seconds since 1970."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from consilience.coordination.files import MAX_ID_CHARS, is_id
from consilience.domain.errors import replace_surrogates
from consilience.domain.outcome import FailureKind

TicketState = Literal["pending", "active", "completed", "failed", "permanently_failed"]
"""The state of a ticket; `completed` and `permanently_failed` are final."""
TicketType = Literal["initial_analysis", "iteration", "synthesis", "meta"]
"""What a ticket asks for."""
WorkspaceReviewType = Literal["skill", "code", "architecture", "documentation"]
STATES: tuple[TicketState, ...] = ("pending", "active", "completed", "failed", "permanently_failed")
FINAL_STATES: tuple[TicketState, ...] = ("completed", "permanently_failed")

DEFAULT_TTL_SECONDS = 300.0
TTL_SECONDS: Mapping[TicketType, float] = {"iteration": 180.0, "synthesis": 600.0}
"""Time from a claim to its expiry, by type, unless the ticket names another; `DEFAULT_TTL_SECONDS` for other types."""
MAX_COUNT = 100_000
"""Max iteration and number of requeues."""
HUMAN = "human"
"""`assigned_to` of a ticket for a person; `human:NAME` for one of several. Such tickets do not expire."""


def _name(value: str) -> str:
    if not is_id(value):
        raise ValueError(
            f"must be an id of letters, digits, '.', '_' and '-', at most {MAX_ID_CHARS}, not {value!r:.60}"
        )
    return value


def _assignee(value: str) -> str:
    prefix, separator, name = value.partition(":")
    if prefix == HUMAN:
        return value if not separator else f"{HUMAN}:{_name(name)}"
    return _name(value) if value else value


RecordName = Annotated[str, AfterValidator(_name)]


MAX_TTL_SECONDS = 366 * 86_400


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _can_be_written(cls, value: object) -> object:
        return replace_surrogates(value) if isinstance(value, str) else value


class FailedAttempt(Record):
    """One attempt at a ticket that brought no result."""

    failed_at: float
    failure_reason: str
    requeued: bool
    """Whether the ticket was offered again."""
    agent: str = ""
    """Agent that had claimed the ticket; "" if none had."""
    expired: bool = False
    """Whether its claim had expired; else the ticket was given back or withdrawn."""


class TicketResult(Record):
    """The result of a ticket, as its claimer submitted it."""

    artifact_path: str
    """Path relative to the workspace."""
    summary: str = ""
    gates_passed: tuple[str, ...] = ()
    needs_iteration: bool = False
    iteration_reason: str = ""
    sha256: str
    """Of the artifact."""
    bytes: int
    """Size of the artifact."""
    submitted_by: str
    submitted_at: float


class Ticket(Record):
    """A task for one agent, as one of its records in `tickets/history` holds it."""

    id: RecordName
    session_id: str = ""
    """Workspace it belongs to; `post` fills it in."""
    type: TicketType = "initial_analysis"
    iteration: int = Field(default=1, ge=0, le=MAX_COUNT)
    assigned_to: Annotated[str, AfterValidator(_assignee)] = ""
    """Name of the agent, `human` or `human:NAME`; "" lets any agent claim it."""
    assigned_by: str = ""
    topic: str = ""
    specific_focus: str = ""
    prior_context: str = ""
    instructions: str = ""
    convergence_gates: tuple[str, ...] = ()
    """Ids of the gates by which the artifact will be judged."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """Anything else the asker wants to hand over or to recognise the ticket by."""
    state: TicketState = "pending"
    created_at: float = 0.0
    """`post` fills it in."""
    ttl_seconds: float = Field(default=0.0, ge=0, le=MAX_TTL_SECONDS)
    """Time from a claim to its expiry; 0 becomes the default of the ticket's type."""
    requeue_count: int = Field(default=0, ge=0, le=MAX_COUNT)
    max_requeues: int = Field(default=1, ge=0, le=MAX_COUNT)
    failure_history: tuple[FailedAttempt, ...] = ()
    result: TicketResult | None = None
    revision: int = Field(default=0, ge=0)
    """Number of this record in the ticket's history, from 1."""
    claimed_by: str = ""
    claimed_at: float | None = None
    claim_token: str = ""
    """Tells the current claim from earlier and later ones."""
    withdrawn: str = ""
    """Why the asker withdrew it; "" if it did not."""
    withdrawn_as: FailureKind | None = None
    """As which failure the withdrawal counts in the session that asked; None outside a session, or if its user withdrew it."""

    @model_validator(mode="before")
    @classmethod
    def _with_default_ttl(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("ttl_seconds"):
            kind = data.get("type")
            seconds = next((seconds for name, seconds in TTL_SECONDS.items() if name == kind), DEFAULT_TTL_SECONDS)
            return {**data, "ttl_seconds": seconds}
        return data

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def expires_at(self) -> float | None:
        """None unless it is active and can expire."""
        if self.state != "active" or self.claimed_at is None or is_human(self.assigned_to):
            return None
        return self.claimed_at + self.ttl_seconds


class GateStatus(Record):
    """A criterion of convergence."""

    id: str
    description: str = ""
    met: bool = False


class ConvergenceRecord(Record):
    """`convergence.json`."""

    session_id: str = ""
    review_type: WorkspaceReviewType = "code"
    max_iterations: int = 3
    current_iteration: int = 1
    convergence_gates: tuple[GateStatus, ...] = ()
    quality_threshold: float = 0.8
    current_quality: float = 0.0
    converged: bool = False
    convergence_reason: str = ""


class AgentState(Record):
    """`agents/NAME/state.json`."""

    agent: RecordName
    status: str = "idle"
    last_heartbeat: float = 0.0
    current_ticket: str = ""
    """Id of the claimed ticket; "" if there is none."""


class SessionMetadata(Record):
    """`session_metadata.json`."""

    session_id: str
    review_type: WorkspaceReviewType = "code"
    created_at: float
    agents: tuple[RecordName, ...] = ()
    config: dict[str, JsonValue] = Field(default_factory=dict)
    layout: int = 1
    """Version of the files of a workspace."""


class CustomHooks(Record):
    """Functions of the lead's process: each an entry point, or `module:function`, decorated with `hook`; "" for none."""

    pre_ticket_creation: str = ""
    """Takes a ticket before it is posted; returns the one to post, or None to post it as it is."""
    post_agent_result: str = ""
    """Takes each result that the lead collects."""
    custom_gate_evaluator: str = ""
    """Takes the id of a gate and a text; returns whether the text meets it, or None for a gate that it does not know."""


class Extensions(Record):
    """Settings that change how the lead waits."""

    quorum_percentage: float | None = Field(default=None, ge=1, le=100)
    """Share of the agents, in percent, whose results are enough; None leaves it to the strategy."""
    priority_agents: tuple[str, ...] = ()
    """Agents whose results a quorum needs until the timeout, and whose tickets are posted first."""
    timeout_multiplier: float = Field(default=1.0, gt=0, le=1000)
    """Factor of every timeout."""

    def quorum_of(self, agents: int, configured: int | None = None) -> int:
        """Return how many of so many agents are a quorum: the configured number, else `quorum_percentage` rounded up, else all."""
        if configured is not None:
            return min(configured, agents)
        return math.ceil(agents * (self.quorum_percentage or 100) / 100)


class ProtocolFile(Record):
    """`protocol.json`: how a session is coordinated."""

    version: int | str = 1
    custom_hooks: CustomHooks = CustomHooks()
    extensions: Extensions = Extensions()


def is_human(assignee: str) -> bool:
    return assignee.partition(":")[0] == HUMAN


def assigned_agent(assignee: str) -> str:
    """Return the name in `assigned_to`; "" if it names no one agent or person."""
    return assignee.partition(":")[2] if is_human(assignee) else assignee


def wall_time(now: float | None) -> float:
    """Return `now`, by default the current time."""
    return time.time() if now is None else now
