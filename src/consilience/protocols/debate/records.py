"""What a debate came to, as data: messages, threads, commitments, steelmen, cruxes, ballots. The report is made of these."""

from __future__ import annotations

from consilience.domain.messages import Quotation
from consilience.domain.report import Frozen
from consilience.protocols.debate.moves import Grade, Horizon, Move, Side, Stage, Status, TopSide
from consilience.protocols.debate.replies import ClosingSide, Form


class Falsifier(Frozen):
    """What would change an agent's mind."""

    metric: str
    threshold: str
    deadline: str = ""
    derived: bool = False
    """Whether the moderator derived it from what its agent had said, since the agent declared none."""

    def words(self) -> str:
        """`metric: threshold, by deadline`."""
        return f"{self.metric}: {self.threshold}" + (f", by {self.deadline}" if self.deadline else "")


class Framing(Frozen):
    """How the task is disputed."""

    form: Form
    propositions: tuple[str, ...] = ()
    """Yes/no questions; none where nothing is disputed."""
    reason: str = ""
    given: bool = False
    """Whether the propositions were given by settings, without a call."""


class TopClaim(Frozen):
    """What an agent argues for."""

    statement: str
    side: TopSide
    """On the first proposition."""
    confidence: float


class DebateBallot(Frozen):
    """A sealed position of one agent: `step` 0 before the exchange, 1 after it."""

    agent: str
    step: int
    positions: tuple[Side, ...]
    """On each proposition, in order."""
    questions: dict[str, Side] = {}
    """On the question of each thread that has one, by thread."""
    confidence: float
    horizon: Horizon | None = None
    claim: str = ""
    reason: str = ""
    cause: str | None = None
    """The message that changed the position, in a final ballot."""
    falsifier: Falsifier | None = None


class DebateMessage(Frozen):
    """A published message. Times are virtual milliseconds since the debate began."""

    id: str
    number: int
    label: str
    """By which prompts quote it: the letter of its author and its number."""
    agent: str
    thread: str
    move: Move
    at: int
    text: str
    reply_to: str | None = None
    mentions: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    """Threads whose crux the message is about."""
    horizon: Horizon | None = None
    confidence: float | None = None
    prior_side: Side | None = None
    """The position before, in UPDATE_POSITION."""
    new_side: Side | None = None
    attention: float | None = None
    """The attention score of the message that it answers, when its author chose it; None where the process asked for it."""
    quotations: tuple[Quotation, ...] = ()
    from_memory: bool = False
    """Whether it gives evidence without a verified quotation."""
    bears_on: str | None = None
    """The agent whose falsifier the evidence is about."""
    opposing: bool = False
    """Whether its author was asked to argue the other side."""

    @property
    def by_moderator(self) -> bool:
        return self.label.startswith("M")


class Commitment(Frozen):
    """An agent's declared position on the question of a thread. A later one, or an update, replaces it."""

    agent: str
    side: Side
    statement: str
    confidence: float
    horizon: Horizon
    falsifier: Falsifier | None = None
    would_flip: bool = False
    """Whether the agent's top claim would change if the question were answered the other way, by its own word."""
    flip_confidence: float = 0.0
    why: str = ""
    message: str = ""


class SteelmanAttempt(Frozen):
    """A steelman with its grade."""

    agent: str
    of: str
    """The agent whose position it represents."""
    claim: str
    reason: str
    falsifier: str
    message: str
    grade: Grade = "PENDING"
    corrections: str = ""
    required: bool = False


class Concession(Frozen):
    """A granted proposition. It is cheap where the top claim stayed as it was; a cheap one counts toward no convergence."""

    agent: str
    proposition: str
    message: str
    top_claim: TopSide | None = None
    """The side of the top claim after it, where it changed."""
    before: TopSide | None = None

    @property
    def cheap(self) -> bool:
        return self.top_claim is None


class Evidence(Frozen):
    agent: str
    text: str
    message: str
    at: int
    bears_on: str | None = None
    verified: int = 0
    """Verified quotations in it."""


class Flip(Frozen):
    """What an agent declared after the evidence: its position, and whether its top claim hangs on the question."""

    agent: str
    side: Side
    would_flip: bool
    confidence: float
    why: str = ""


class CruxScore(Frozen):
    """Seed 002's disagreement compression gain: `score` = coverage × polarity × impact, each in [0, 1]."""

    coverage: float
    """Share of all agents whose top claim would change."""
    polarity: float
    """2·min(YES, NO) ÷ (YES + NO), 0 without a firm side."""
    impact: float
    """Mean flip confidence of those whose top claim would change, 0 without any."""
    score: float


class CruxPosition(Frozen):
    side: Side
    statement: str
    confidence: float
    horizon: Horizon | None = None
    falsifier: Falsifier | None = None
    concessions: tuple[str, ...] = ()


class Crux(Frozen):
    """The question on which a thread ended, with what its agents declared."""

    thread: str
    question: str
    positions: dict[str, CruxPosition]
    resolution_criteria: tuple[str, ...] = ()
    """What would settle it: the falsifiers."""
    flips: dict[str, Flip] = {}
    evidence: tuple[Evidence, ...] = ()
    supporting_messages: tuple[str, ...] = ()
    dominant_horizon: Horizon | None = None
    score: CruxScore
    locked: bool
    validated: bool
    validation_failures: tuple[str, ...] = ()


class SingleCall(Frozen):
    """One structured call on the task and the documents, which saw nothing of the debate."""

    key: str
    """Of the call."""
    model: str
    positions: tuple[ClosingSide, ...]
    """Its answer to each proposition."""
    confidence: float
    answer: str
    cruxes: tuple[str, ...] = ()
    """The questions that decide, by its own account."""
    against: tuple[str, ...] = ()
    would_change: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    named: dict[str, int | None] = {}
    """For each crux of the debate, by thread: the number from 1 of its own question that asks the same, None if none does. Empty
    if the questions were not compared."""
    compared_by: str = ""
    """The key of the call that compared the questions."""
    cut: bool = False
    """Whether its reply ended at the token limit."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    """US dollars; None if the price is unknown."""


class StageRecord(Frozen):
    stage: Stage
    messages: int
    """By debaters."""
    duration: int
    """Virtual milliseconds."""


class LockAttempt(Frozen):
    at: int
    success: bool
    failures: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The criteria that failed: `commitments`, `sides`, `steelmen`, `falsifiers`."""


class ThreadRecord(Frozen):
    id: str
    topic: str
    question: str | None
    status: Status
    stage: Stage
    parent: str | None = None
    merged_into: str | None = None
    created_at: int
    closed_at: int | None = None
    participants: tuple[str, ...] = ()
    """Agents who spoke in it, in order of their first message."""
    stages: tuple[StageRecord, ...] = ()
    lock_attempts: tuple[LockAttempt, ...] = ()
    commitments: tuple[Commitment, ...] = ()
    steelmen: tuple[SteelmanAttempt, ...] = ()
    concessions: tuple[Concession, ...] = ()
    signal: float = 0.0
    """The seed's convergence signal at the last message, 0 to 1."""
    crux: Crux | None = None
    closed_by: str = ""
    """Why it ended, in words."""


class SystemMetrics(Frozen):
    """The seed's figures of how the mechanics worked."""

    messages_blocked: int = 0
    reasons_blocked: dict[str, int] = {}
    crux_lock_attempts: int = 0
    crux_lock_successes: int = 0
    crux_lock_failures: int = 0
    failure_reasons: dict[str, int] = {}
    steelman_attempts: int = 0
    steelman_retries: int = 0
    steelman_accuracy_rate: float | None = None
    """Share of graded steelmen that were ACCURATE; None without a grade."""
    dcg_promotions: int = 0
    horizon_mismatches: int = 0
    horizon_alignments: int = 0
    attempts: int = 0
    """Replies that were asked for in threads, blocked and failed ones included."""
    failed_turns: int = 0
    attended: int = 0
    """Messages that answer a message which their author chose."""
    attended_highly: int = 0
    """Those of them whose message had an attention score of 0.7 or more."""
