"""What a debate came to, as data: messages, threads, commitments, steelmen, cruxes, ballots. The report is made of these."""

from __future__ import annotations

from typing import ClassVar, Literal

from consilience.domain.messages import Quotation, is_empty_remark
from consilience.domain.report import Frozen
from consilience.protocols.debate.moves import (
    ClosingSide,
    CommonKind,
    CruxKind,
    DependencyKind,
    GivesUpIf,
    Grade,
    Horizon,
    Move,
    QuestionForm,
    Side,
    Stage,
    ThreadStatus,
    TopSide,
)
from consilience.protocols.debate.reasons import Criterion, Flaw, Missing

Crystallized = Literal["", "crux", "null", "NEEDS_CLARIFICATION"]
"""Result of crystallizing a thread: a crux, no disagreement, or a dispute too confused to extract; empty before."""


class _Noted(Frozen):
    """A record that is a note as it is: without the values that are the default of their field."""

    sparse: ClassVar[bool] = True


class Falsifier(Frozen):
    """What would change an agent's mind."""

    metric: str
    threshold: str
    deadline: str = ""
    reasoning: str = ""
    """Why it would, where the moderator derived it."""
    derived: bool = False
    """Whether the moderator derived it from what its agent had said, since the agent declared none."""

    @property
    def finding(self) -> str:
        return f"{self.metric}: {self.threshold}"

    def words(self) -> str:
        """`metric: threshold, by deadline`."""
        return self.finding + ("" if is_empty_remark(self.deadline) else f", by {self.deadline}")


class Framing(_Noted):
    """How the task is disputed."""

    form: QuestionForm
    propositions: tuple[str, ...] = ()
    """Yes/no questions; none where nothing is disputed."""
    reason: str = ""
    given: bool = False
    """Whether the propositions were given by settings, without a call."""


class DebateBallot(Frozen):
    """A sealed position of one agent: `step` 0 before the exchange, 1 after it."""

    agent: str
    step: int
    positions: tuple[Side, ...]
    """On each proposition, in order."""
    questions: dict[str, Side] = {}
    """On the question of each thread that has one, by thread."""
    common: tuple[Side, ...] = ()
    """Whether each candidate for common ground holds, in order; a final ballot only."""
    confidence: float
    horizon: Horizon | None = None
    claim: str = ""
    reason: str = ""
    cause: str | None = None
    """The message that changed the position, in a final ballot."""
    falsifier: Falsifier | None = None
    told: int = 0
    """The number of the new fact on which it was cast; 0 for none."""

    @property
    def key(self) -> str:
        """The call that cast it."""
        return f"{f'told/{self.told}' if self.told else 'final' if self.step else 'opening'}/{self.agent}"


class Recheck(Frozen):
    """An answer of a final ballot that was asked again before it counted."""

    agent: str
    question: str
    """`p1` …, or a thread."""
    why: Literal["differs", "holds out"]
    """Its agent had answered otherwise before; or, near a consensus, it was alone with it or nearly."""
    before: dict[str, Side] = {}
    """What its agent had answered, by message or call, in order; the ballot apart."""
    ballot: Side
    again: Side | None = None
    """None without a reply."""
    counts: Side
    """`again` if it repeats an earlier answer, of a lone agent the one that counted until then; else UNCERTAIN."""
    reason: str = ""

    @property
    def key(self) -> str:
        """The call that asked again."""
        return f"recheck/{1 if self.why == 'differs' else 2}/{self.agent}"


class TurnData(Frozen):
    """What is known of a message besides its author, its words and what it answers. Times are virtual milliseconds."""

    thread: str
    at: int
    mentions: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    horizon: Horizon | None = None
    confidence: float | None = None
    attention: float | None = None
    """The attention score of the message that it answers, when its author chose it; None where the process asked for it."""
    refs: tuple[str, ...] = ()
    """Messages whose proposal it supports."""
    prior_side: Side | None = None
    """The position before, in UPDATE_POSITION and CONCEDE, where it changed."""
    new_side: Side | None = None
    top_claim: TopSide | None = None
    """The side of its author's top claim after it, where it changed."""
    quotations: tuple[Quotation, ...] = ()
    from_memory: bool = False
    """Whether it gives evidence without a verified quotation."""
    bears_on: str | None = None
    """The agent whose falsifier the evidence is about."""
    opposing: bool = False
    """Whether its author was asked to argue the other side."""


class DebateMessage(TurnData):
    """A published message."""

    id: str
    number: int
    label: str
    """By which prompts quote it: the letter of its author and its number."""
    agent: str
    move: Move
    reply_to: str | None = None
    targets: tuple[str, ...] = ()
    """Threads whose crux the message is about."""
    text: str
    parts: tuple[str, ...] = ()
    """What it declares in typed fields, in words, as it is quoted below its text: `Question: …`, `Concedes: …`."""

    @property
    def words(self) -> str:
        """Its text with what it declares."""
        return "\n".join((self.text, *self.parts))

    @property
    def by_moderator(self) -> bool:
        return self.label.startswith("M")


class Commitment(_Noted):
    """An agent's declared position on the question of a thread. A later one, or an update, replaces it."""

    agent: str
    side: Side
    statement: str = ""
    """The text of its message."""
    confidence: float
    horizon: Horizon
    falsifier: Falsifier | None = None
    would_flip: bool = False
    """Whether the agent's top claim would change if the question were answered the other way, by its own word."""
    gives_up_if: GivesUpIf | None = None
    """The answer that would change it, as declared; None where another version recorded the debate."""
    flip_confidence: float = 0.0
    why: str = ""
    message: str = ""


class SteelmanAttempt(_Noted):
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
    message: str = ""
    """The call or message that declared it."""
    gives_up_if: GivesUpIf | None = None
    """The answer that would change its top claim, as declared; None of a test, or where another version recorded the debate."""

    def flips_on(self, answer: Side) -> bool:
        """Return whether that answer, once established, would change the top claim."""
        if self.gives_up_if is None:
            return self.would_flip and self.side != answer
        return self.gives_up_if in ("either", answer)


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


class Extraction(Frozen):
    """A thread as the crystallizer wrote it down: nothing in it is a position of an agent."""

    question: str
    kind: CruxKind
    criteria: tuple[str, ...] = ()
    """What would settle the question."""
    supporting: tuple[str, ...] = ()
    """Messages that show the dispute."""
    confidence: float
    """That the participants answered this question."""
    number: int
    """From 1."""
    unclear: str = ""
    """What has to be clarified before the dispute can be written down; empty if it could be."""


class CruxChallenge(Frozen):
    """An objection to a crystallized crux in its review window."""

    agent: str
    text: str
    extraction: int
    """The extraction that it is about, from 1."""
    message: str | None = None
    """The published CHALLENGE; None if the limit on messages was reached."""


class Crux(Frozen):
    """The question on which a thread ended, with what its agents declared."""

    thread: str
    question: str
    locked_question: str | None = None
    """The question as it was locked, if the crystallizer worded it otherwise."""
    kind: CruxKind | None = None
    """What the crystallizer takes the question to ask; None if it was not asked or failed."""
    confidence: float = 1.0
    """The crystallizer's confidence that participants answered this question; 1 without an extraction."""
    extractions: int = 0
    """Times that the crystallizer wrote it down: 1, and up to two more after challenges or failed tests."""
    challenges: tuple[CruxChallenge, ...] = ()
    """Objections of participants to any of its extractions."""
    positions: dict[str, CruxPosition]
    resolution_criteria: tuple[str, ...] = ()
    """What would settle it, as the crystallizer derived it from the falsifiers; without an extraction the falsifiers themselves."""
    flips: dict[str, Flip] = {}
    evidence: tuple[Evidence, ...] = ()
    supporting_messages: tuple[str, ...] = ()
    dominant_horizon: Horizon | None = None
    score: CruxScore
    """By the flips that its agents declared."""
    observed_score: CruxScore | None = None
    """By the flips that its test showed; None without a test."""
    locked: bool
    validated: bool
    """By the flips that its test showed, as far as it was tested, else by declared ones."""
    validation_failures: tuple[Flaw, ...] = ()

    @property
    def deciding_score(self) -> CruxScore:
        """The one when told so, where there is a test."""
        return self.observed_score or self.score


class Coalition(Frozen):
    """Agents who answer the cruxes alike."""

    label: str
    """Two or three words of its members, or `Coalition A`."""
    members: tuple[str, ...]
    positions: dict[str, Side]
    """The firm sides that all members share, by thread, and by `p1` … on propositions."""
    shared_beliefs: tuple[str, ...] = ()
    """What members declared for those sides."""
    cohesion: float
    """Mean similarity of its members in pairs, 0.7 to 1 as a rule; average linkage allows less."""


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
    touched: dict[str, int] = {}
    """For cruxes of which no question of its own asks the same: the number of one that has the subject in common."""
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
    """It succeeded if nothing failed."""

    at: int
    failures: tuple[Missing, ...] = ()

    @property
    def success(self) -> bool:
        return not self.failures

    @property
    def kinds(self) -> tuple[Criterion, ...]:
        """The criteria that failed."""
        return tuple(dict.fromkeys(missing.criterion for missing in self.failures))


class ThreadRecord(Frozen):
    id: str
    topic: str
    question: str | None
    status: ThreadStatus
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
    crystallized: Crystallized = ""
    closed_by: str = ""
    """Why it ended, in words."""


class CommonGround(Frozen):
    """A statement that every agent confirmed by a typed YES in its final ballot."""

    statement: str
    question: str = ""
    """The same as a yes/no question."""
    kind: CommonKind
    sources: tuple[str, ...] = ()
    """Messages from which it was taken."""


class Dependency(Frozen):
    """How the answer to one crux bears on another, as the crystallizer argues and the second opinion confirms."""

    source: str
    """The thread whose YES bears on `target`."""
    target: str
    kind: DependencyKind
    """ENTAILS: target is YES; CONTRADICTS: target is NO; SUPPORTS: YES is more likely."""
    confidence: float
    """At least 0.8; weaker ones are dropped."""
    sketch: str
    """The argument, at least 20 characters."""
    same_model: bool = False
    """Whether the second opinion came from the model that proposed it, and so is no independent check."""


class Contradiction(Frozen):
    """Two cruxes that some agents answer in a way which a dependency between them rules out."""

    source: str
    target: str
    agents: tuple[str, ...]
    """Agents whose last typed answers contradict each other."""


class UnopenedQuestion(Frozen):
    """A question that an agent proposed and another supported, and that no thread asked."""

    question: str
    message: str
    """That proposed it."""
    agent: str
    supports: tuple[str, ...]
    """Messages of other agents that support it."""
    reason: str
    """Why no thread was opened."""
