"""The events that a debate records beside its messages: thirteen of the seed's fifteen, and those that it needs besides.

Of the other two, `message_published` is the message itself, whose typed fields are the note `turn`, and `debate_complete` the end
of the session. Times are virtual milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from consilience.domain.report import Frozen
from consilience.protocols.debate.moves import BlockReason, Grade, Intervention, Move, Side, Stage, ThreadStatus
from consilience.protocols.debate.records import (
    Coalition,
    CommonGround,
    CruxChallenge,
    CruxScore,
    Dependency,
    Extraction,
    Framing,
    Recheck,
    TurnData,
)


class _Note(Frozen):
    at: int


class _ThreadNote(_Note):
    thread: str


class TurnNote(TurnData):
    """The typed fields of a published message."""

    message: str
    side: Side | None = None


class FramedNote(_Note):
    """The propositions of the debate."""

    framing: Framing


class ThreadCreated(_ThreadNote):
    topic: str
    question: str | None = None
    parent: str | None = None
    members: tuple[str, ...] = ()


class StageTransition(_ThreadNote):
    before: Stage
    after: Stage
    reason: str
    question: str | None = None


class SteelmanNote(_ThreadNote):
    agent: str
    of: str
    message: str
    required: bool


class SteelmanGraded(_ThreadNote):
    agent: str
    of: str
    grade: Grade
    corrections: str = ""


class CruxLocked(_ThreadNote):
    question: str
    attempt: int


class CruxLockFailed(_ThreadNote):
    attempt: int
    failures: tuple[str, ...]


class CruxExtracted(_ThreadNote):
    question: str
    validated: bool
    failures: tuple[str, ...] = ()


class CrystallizedNote(_ThreadNote):
    """What the crystallizer wrote down of a thread, before its review."""

    outcome: Literal["crux", "null", "NEEDS_CLARIFICATION"]
    extraction: Extraction


class CruxChallenged(CruxChallenge, _ThreadNote):
    """An objection to a crux that was published back."""


class RelationsNote(_Note):
    """A comparison of cruxes: the pairs that were new, relations proposed, and all that is confirmed so far."""

    pairs: tuple[tuple[str, str], ...]
    proposed: int
    dependencies: tuple[Dependency, ...] = ()
    duplicates: tuple[tuple[str, str], ...] = ()


class CandidatesNote(_Note):
    """Candidates for common ground, before the final ballots vote on them, and what to ask next."""

    candidates: tuple[CommonGround, ...] = ()
    next_questions: tuple[str, ...] = ()


class CommonGroundNote(_Note):
    """The candidates that every final ballot confirmed."""

    confirmed: tuple[CommonGround, ...] = ()


class AgendaNote(_Note):
    """The active disputes, the one with the highest crux score first."""

    active: tuple[str, ...]
    scores: tuple[float, ...]


class DcgCalculated(_ThreadNote):
    score: CruxScore


class CruxPromoted(_ThreadNote):
    """The locked crux with the highest score now: the first of the active disputes."""

    score: float


class CoalitionDetected(_Note):
    """Who stands with whom, each time that it changes while the debate runs."""

    coalitions: tuple[Coalition, ...]
    finding: str = ""
    """Why there is none."""


class ThreadConverged(_ThreadNote):
    reason: str


class ThreadClosed(_ThreadNote):
    """A thread that ended otherwise: stale, failed or merged. Its agents have left it."""

    status: ThreadStatus
    reason: str
    into: str | None = None


class ModeratorIntervention(_ThreadNote):
    kind: Intervention
    message: str


class SpawnProposed(_Note):
    """A proposed thread. Recorded when it is proposed, and again when it is decided."""

    question: str
    parent: str
    supporters: tuple[str, ...]
    mentions: int
    status: Literal["PROPOSED", "APPROVED", "REJECTED"]
    reason: str = ""


class MessageBlocked(_ThreadNote):
    """A reply that the gate kept from being published; no agent is shown it."""

    key: str
    agent: str
    move: Move
    reason: BlockReason


class GlobalConvergence(_Note):
    """Why the exchange ended."""

    reason: str


class BallotsRechecked(_Note):
    """Answers of final ballots that were asked again, and what they count as."""

    rechecks: tuple[Recheck, ...]


class CruxTested(_ThreadNote):
    """How many agents gave up their position once the question was taken as answered against them."""

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
    "crystallized": CrystallizedNote,
    "crux_challenged": CruxChallenged,
    "cruxes_related": RelationsNote,
    "common_ground_proposed": CandidatesNote,
    "common_ground": CommonGroundNote,
    "agenda": AgendaNote,
    "dcg_calculated": DcgCalculated,
    "crux_promoted": CruxPromoted,
    "coalition_detected": CoalitionDetected,
    "thread_converged": ThreadConverged,
    "thread_closed": ThreadClosed,
    "moderator_intervention": ModeratorIntervention,
    "spawn_proposed": SpawnProposed,
    "message_blocked": MessageBlocked,
    "global_convergence": GlobalConvergence,
    "ballots_rechecked": BallotsRechecked,
    "crux_tested": CruxTested,
    "placebo_tested": PlaceboTested,
    "fact_told": FactTold,
    "regime": RegimeNote,
}
NAMES: Mapping[type[BaseModel], str] = {kind: name for name, kind in NOTES.items()}
