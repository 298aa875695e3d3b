"""The events that a debate records beside its messages: thirteen of the seed's fifteen, and those that it needs besides.

Of the other two, `message_published` is the message itself, whose typed fields are the note `turn`, and `debate_complete` the end
of the session. Times are virtual milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from consilience.domain.report import Frozen
from consilience.protocols.debate.moves import BlockReason, Grade, Horizon, Move, Side, Stage, Status
from consilience.protocols.debate.records import Coalition, CruxScore, Framing


class _Note(Frozen):
    at: int


class TurnNote(_Note):
    """The typed fields of a published message."""

    message: str
    thread: str
    agent: str
    move: Move
    label: str
    reply_to: str | None = None
    mentions: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    horizon: Horizon | None = None
    confidence: float | None = None
    side: Side | None = None
    attention: float | None = None


class FramedNote(_Note):
    """The propositions of the debate."""

    framing: Framing


class ThreadCreated(_Note):
    thread: str
    topic: str
    question: str | None = None
    parent: str | None = None
    members: tuple[str, ...] = ()


class StageTransition(_Note):
    thread: str
    before: Stage
    after: Stage
    reason: str
    question: str | None = None


class SteelmanNote(_Note):
    thread: str
    agent: str
    of: str
    message: str
    required: bool


class SteelmanGraded(_Note):
    thread: str
    agent: str
    of: str
    grade: Grade
    corrections: str = ""


class CruxLocked(_Note):
    thread: str
    question: str
    attempt: int


class CruxLockFailed(_Note):
    thread: str
    attempt: int
    failures: tuple[str, ...]


class CruxExtracted(_Note):
    thread: str
    question: str
    validated: bool
    failures: tuple[str, ...] = ()


class DcgCalculated(_Note):
    thread: str
    score: CruxScore


class CruxPromoted(_Note):
    """The crux with the highest score so far."""

    thread: str
    score: float


class CoalitionDetected(_Note):
    """Who stands with whom, each time that it changes while the debate runs."""

    coalitions: tuple[Coalition, ...]
    finding: str = ""
    """Why there is none."""


class ThreadConverged(_Note):
    thread: str
    reason: str


class ThreadClosed(_Note):
    """A thread that ended otherwise: stale, failed or merged. Its agents have left it."""

    thread: str
    status: Status
    reason: str
    into: str | None = None


class ModeratorIntervention(_Note):
    thread: str
    kind: Literal[
        "open",
        "horizon",
        "commit",
        "retry",
        "falsifier",
        "binary",
        "steelman",
        "call",
        "advocate",
        "split",
        "spawn",
        "evidence",
    ]
    message: str


class SpawnProposed(_Note):
    """A proposed thread. Recorded when it is proposed, and again when it is decided."""

    question: str
    parent: str
    supporters: tuple[str, ...]
    mentions: int
    status: Literal["PROPOSED", "APPROVED", "REJECTED"]
    reason: str = ""


class MessageBlocked(_Note):
    """A reply that the gate kept from being published; no agent is shown it."""

    key: str
    thread: str
    agent: str
    move: Move
    reason: BlockReason


class GlobalConvergence(_Note):
    """Why the exchange ended."""

    reason: str


class CruxTested(_Note):
    """How many agents gave up their position once the question was taken as answered against them."""

    thread: str
    declared: int
    observed: int
    tested: int
    """Agents with the ballots that it takes."""
    score: CruxScore
    """On observed flips."""


class PlaceboTested(_Note):
    """How many agents moved for a fact that has nothing to do with the task."""

    moved: int
    tested: int


class FactTold(_Note):
    fact: str
    moved: tuple[str, ...]


class RegimeNote(_Note):
    regime: str
    description: str


NOTES: Mapping[str, type[BaseModel]] = {
    "turn": TurnNote,
    "framed": FramedNote,
    "thread_created": ThreadCreated,
    "stage_transition": StageTransition,
    "steelman_attempt": SteelmanNote,
    "steelman_graded": SteelmanGraded,
    "crux_locked": CruxLocked,
    "crux_lock_failed": CruxLockFailed,
    "crux_extracted": CruxExtracted,
    "dcg_calculated": DcgCalculated,
    "crux_promoted": CruxPromoted,
    "coalition_detected": CoalitionDetected,
    "thread_converged": ThreadConverged,
    "thread_closed": ThreadClosed,
    "moderator_intervention": ModeratorIntervention,
    "spawn_proposed": SpawnProposed,
    "message_blocked": MessageBlocked,
    "global_convergence": GlobalConvergence,
    "crux_tested": CruxTested,
    "placebo_tested": PlaceboTested,
    "fact_told": FactTold,
    "regime": RegimeNote,
}
