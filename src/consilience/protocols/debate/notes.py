"""The events that a debate records beside its messages: twelve of the seed's fifteen, and those that it needs besides.

Of the other three, `message_published` is the message itself, to which the note `turn` adds what it lacks, as what a message of the
moderator is for (`moderator_intervention`), and `debate_complete` is the end of the session. Where an event is a record, the
record is the note. A debate is the fold of all of them (`fold.py`). Times are virtual milliseconds; values that are the default of
their field are not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel

from consilience.domain.report import Frozen
from consilience.protocols.debate.moves import BlockReason, Grade, Intervention, Move, Stage, ThreadStatus, TopSide
from consilience.protocols.debate.reasons import Flaw, Missing
from consilience.protocols.debate.records import (
    Coalition,
    Commitment,
    CommonGround,
    CruxChallenge,
    CruxScore,
    Dependency,
    Extraction,
    Flip,
    Framing,
    Recheck,
    SteelmanAttempt,
    TurnData,
)


class _Note(Frozen):
    sparse: ClassVar[bool] = True
    at: int


class _ThreadNote(_Note):
    thread: str


class Said(TurnData):
    """What a published message lacks. Its words are a lead, its text, and its parts on lines of their own."""

    sparse: ClassVar[bool] = True
    message: str
    lead: int = 0
    """Characters of the words before the text."""
    parts: tuple[int, ...] = ()
    """Characters of each part."""
    question: str = ""
    """The question that it proposes."""
    conceded: str = ""
    """What a concession grants."""
    before: TopSide | None = None
    """The side of its author's top claim before a concession that changed it."""
    intervention: Intervention | None = None
    """What a message of the moderator is for."""


class QuestionFramed(_ThreadNote):
    """A question that the moderator framed: the first of its thread, or one that replaces a question that could not be locked."""

    question: str
    replaces: bool = False
    silent: tuple[str, ...] = ()
    """Agents that are not asked to commit themselves on it."""


class FlipsDeclared(_ThreadNote):
    """What participants declared in the review of a crux."""

    flips: tuple[Flip, ...]


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
    budget: int
    """Messages of debaters."""


class SteelmanGraded(_Note):
    """The grade of the steelman in a message."""

    message: str
    grade: Grade
    corrections: str = ""


class CruxLocked(_ThreadNote):
    question: str
    attempt: int


class CruxLockFailed(_ThreadNote):
    attempt: int
    failures: tuple[Missing, ...]


class CruxExtracted(_ThreadNote):
    """A thread has its crux: what was declared and, with an extraction, what was written."""

    written: bool = False
    """Whether it has the words of the last extraction."""
    failures: tuple[Flaw, ...] = ()
    """Why it is not validated."""


class CrystallizedNote(_ThreadNote):
    """What the crystallizer wrote down of a thread, before its review."""

    outcome: Literal["crux", "null", "NEEDS_CLARIFICATION"]
    extraction: Extraction


class CruxChallenged(CruxChallenge, _ThreadNote):
    """An objection to a crux that was published back."""


class RelationsNote(_Note):
    """A comparison of cruxes: the pairs that were new, relations proposed, and those confirmed."""

    pairs: tuple[tuple[str, str], ...]
    proposed: int
    dependencies: tuple[Dependency, ...] = ()
    duplicates: tuple[tuple[str, str], ...] = ()


class CandidatesNote(_Note):
    """Candidates for common ground, before the final ballots vote on them, and what to ask next."""

    candidates: tuple[CommonGround, ...] = ()
    next_questions: tuple[str, ...] = ()


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
    hanging: int
    """Top claims that hang on it."""


class PlaceboTested(_Note):
    """How many agents moved for a fact that has nothing to do with the task."""

    moved: int
    tested: int


class FactTold(_Note):
    fact: str
    moved: tuple[str, ...]


NOTES: Mapping[str, type[BaseModel]] = {
    "turn": Said,
    "committed": Commitment,
    "question_framed": QuestionFramed,
    "flips_declared": FlipsDeclared,
    "framed": Framing,
    "thread_created": ThreadCreated,
    "stage_transition": StageTransition,
    "steelman_attempt": SteelmanAttempt,
    "steelman_graded": SteelmanGraded,
    "crux_locked": CruxLocked,
    "crux_lock_failed": CruxLockFailed,
    "crux_extracted": CruxExtracted,
    "crystallized": CrystallizedNote,
    "crux_challenged": CruxChallenged,
    "cruxes_related": RelationsNote,
    "common_ground_proposed": CandidatesNote,
    "agenda": AgendaNote,
    "dcg_calculated": DcgCalculated,
    "crux_promoted": CruxPromoted,
    "coalition_detected": CoalitionDetected,
    "thread_converged": ThreadConverged,
    "thread_closed": ThreadClosed,
    "spawn_proposed": SpawnProposed,
    "message_blocked": MessageBlocked,
    "global_convergence": GlobalConvergence,
    "ballots_rechecked": BallotsRechecked,
    "crux_tested": CruxTested,
    "placebo_tested": PlaceboTested,
    "fact_told": FactTold,
}
NAMES: Mapping[type[BaseModel], str] = {kind: name for name, kind in NOTES.items()}
