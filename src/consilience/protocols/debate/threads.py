"""A thread: one dispute from its discovery to its crux. Its state is what was published in it and what follows from that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from consilience.protocols.debate.attention import keywords
from consilience.protocols.debate.moves import (
    ACTIVE,
    EXTRA_DISCOVERY_MESSAGES,
    FIRM,
    MIN_DISCOVERY_MESSAGES,
    MOVES,
    ORBIT_MESSAGES,
    ORBIT_REPETITION,
    SHIFTING,
    STABLE_MESSAGES,
    THREAD_CAP,
    Horizon,
    Side,
    Stage,
    ThreadStatus,
    dominant_horizon,
)
from consilience.protocols.debate.records import (
    Commitment,
    Concession,
    Crux,
    CruxChallenge,
    Crystallized,
    DebateMessage,
    Evidence,
    Extraction,
    Flip,
    LockAttempt,
    StageRecord,
    SteelmanAttempt,
    ThreadRecord,
)

_STATUS_OF: dict[Stage, ThreadStatus] = {"DISCOVERY": "DISCOVERY", "CRUX_LOCK": "LOCKING", "EVIDENCE": "LOCKED"}


@dataclass(frozen=True)
class Budgets:
    """Messages of debaters that each stage has."""

    discovery: int
    evidence: int


@dataclass(eq=False)
class Thread:
    """A thread while the debate runs."""

    id: str
    topic: str
    created_at: int
    budgets: Budgets
    members: list[str]
    """Agents who are in it: they attend to it more, and speak in it."""
    parent: str | None = None
    question: str | None = None
    proposals: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    """Questions that were proposed in the discovery, by message, each with the agents that support it."""
    status: ThreadStatus = "DISCOVERY"
    stage: Stage = "DISCOVERY"
    messages: list[DebateMessage] = field(default_factory=list)
    spoken: list[DebateMessage] = field(default_factory=list)
    """Messages of debaters."""
    last_request: str = ""
    """The last message of the moderator."""
    replies: Counter[str] = field(default_factory=Counter)
    """Replies that count against the limit of a message, by message."""
    in_stage: int = 0
    """Messages of debaters in the current stage."""
    in_flight: int = 0
    """Replies being composed for it."""
    stage_since: int = 0
    stages: list[StageRecord] = field(default_factory=list)
    budget: int = 0
    """Messages of debaters that the current stage has left to begin with, and what it was granted since."""
    granted: int = 0
    """Messages granted beyond the first budgets."""
    last_at: int = 0
    commitments: dict[str, Commitment] = field(default_factory=dict)
    to_commit: list[str] = field(default_factory=list)
    """Participants whose commitment is due."""
    to_falsify: list[str] = field(default_factory=list)
    """Participants whose falsifier is due."""
    required: tuple[tuple[str, str], ...] | None = None
    """Pairs (from, of) whose steelman the lock requires; None until the last participant has committed."""
    steelmen: list[SteelmanAttempt] = field(default_factory=list)
    """Those on the present question."""
    past_steelmen: list[SteelmanAttempt] = field(default_factory=list)
    """Those on a question that was replaced."""
    lock_base: int = 0
    """Messages of the lock before the present question was put."""
    attempts: list[LockAttempt] = field(default_factory=list)
    locked_at: int | None = None
    concessions: list[Concession] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    flips: dict[str, Flip] = field(default_factory=dict)
    extraction: Extraction | None = None
    """The last that the crystallizer wrote down."""
    challenges: list[CruxChallenge] = field(default_factory=list)
    """Objections to what it wrote down."""
    locked_question: str | None = None
    """The question on which its participants committed themselves."""
    crystallized: Crystallized = ""
    control: str = ""
    """A question on its subject on which nobody's answer hangs, as the crystallizer wrote it."""
    orbited_at: int = 0
    """Messages of debaters when the moderator last remarked that it goes round in circles."""
    settling: bool = False
    """Whether the moderator has asked if it is settled, at a convergence signal below the threshold."""
    half: Literal["", "months", "years"] = ""
    """The half of a thread that was split by horizon."""
    left: frozenset[str] = frozenset()
    """Agents who have their own thread since a split by horizon."""
    horizon: Horizon | None = None
    """The horizon that the moderator aligned it to."""
    busy: bool = False
    """Whether a call of the moderator about it is under way."""
    framing_tried_at: int = -1
    """The number of debaters' messages at which a framing was last asked for; it is asked for once at each."""
    reframed: bool = False
    invited: bool = False
    """Whether agents from outside were asked to commit, since nobody in it takes one of the sides."""
    crux: Crux | None = None
    closed_at: int | None = None
    closed_by: str = ""
    called: bool = False
    """Whether the moderator has called on somebody since the last message of a debater."""
    held_at: int = 0
    """When too few of its members were last free to speak in it."""
    merged_into: str | None = None
    signal: float = 0.0
    alignments: int = 0
    _participants: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budget, self.stage_since, self.last_at = self.budgets.discovery, self.created_at, self.created_at
        if self.question is not None:  # those who wanted the thread support its question
            self.proposals[self.id] = (self.question, set(self.members))

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def participants(self) -> tuple[str, ...]:
        """Agents who spoke in it, in order of their first message."""
        return tuple(self._participants)

    @property
    def cap(self) -> int:
        """Messages of debaters that it may have in all."""
        return max(THREAD_CAP, self.budgets.discovery + self.budgets.evidence + self.granted)

    @property
    def has_room(self) -> bool:
        """Whether another free message may be composed: what is published and being composed is within budget and cap, and the
        stage has not found its end, which waits for what is being composed."""
        if self.ready_to_lock if self.stage == "DISCOVERY" else self.stage == "EVIDENCE" and self.is_stable:
            return False
        return self.in_stage + self.in_flight < self.budget and len(self.spoken) + self.in_flight < self.cap

    def is_other_half(self, other: Thread) -> bool:
        """Whether both come from a split by horizon and ask the same over different times."""
        return bool(self.half and other.half) and self.half != other.half

    def moves(self, last: int) -> list[str]:
        """The moves of the last messages of debaters."""
        return [message.move for message in self.spoken[-last:]]

    def add(self, message: DebateMessage) -> None:
        """Take in a published message."""
        self.messages.append(message)
        self.last_at = message.at
        if message.reply_to is not None and not MOVES[message.move].delivered:
            self.replies[message.reply_to] += 1
        if message.by_moderator:
            self.last_request = message.id
        else:
            self.spoken.append(message)
            self._participants.setdefault(message.agent)
            self.called = False
            self.in_stage += 1
            if message.agent not in self.members:
                self.members.append(message.agent)

    def enter(self, stage: Stage, at: int, budget: int) -> None:
        """Go on to another stage."""
        self.end_stage(at)
        self.stage, self.status, self.stage_since = stage, _STATUS_OF[stage], at
        self.in_stage, self.budget = 0, budget
        self.last_at = at

    def end_stage(self, at: int) -> None:
        """Record the current stage as ended."""
        self.stages.append(StageRecord(stage=self.stage, messages=self.in_stage, duration=at - self.stage_since))

    def grant(self, messages: int) -> None:
        """Add to the budget of the current stage."""
        self.budget += messages
        self.granted += messages

    def close(self, status: ThreadStatus, at: int, reason: str, into: str | None = None) -> None:
        """End it; its agents leave it."""
        self.end_stage(at)
        self.status, self.closed_at, self.closed_by, self.merged_into = status, at, reason, into
        self.members.clear()
        self.to_commit.clear()
        self.to_falsify.clear()

    # discovery

    def propose(self, message: DebateMessage, question: str) -> None:
        """Take in a proposed question. The one with most supporters is the thread's, ties to the latest."""
        self.proposals[message.id] = (question, {message.agent})
        self._adopt()

    def support(self, message: str, agent: str) -> None:
        """Count an agent as a supporter of a question that another has proposed here."""
        if message in self.proposals:
            self.proposals[message][1].add(agent)
            self._adopt()

    def _adopt(self) -> None:
        if self.stage == "DISCOVERY":
            ranked = enumerate(self.proposals.values())
            self.question = max(ranked, key=lambda entry: (len(entry[1][1]), entry[0]))[1][0]

    @property
    def ready_to_lock(self) -> bool:
        """Whether the discovery has found its question: framed, with two engaged agents, after its least length."""
        enough = min(MIN_DISCOVERY_MESSAGES, self.budgets.discovery)
        return bool(self.question) and len(self.participants) >= 2 and self.in_stage >= enough

    @property
    def discovery_spent(self) -> bool:
        return self.stage == "DISCOVERY" and self.in_stage >= self.budget

    @property
    def discovery_failed(self) -> bool:
        """Whether the extra messages, too, engaged fewer than two agents."""
        return self.discovery_spent and self.granted >= EXTRA_DISCOVERY_MESSAGES and len(self.participants) < 2

    @property
    def number(self) -> int:
        """The number in its id."""
        return int(self.id.rpartition("-")[2])

    @property
    def on_ballot(self) -> bool:
        """Whether final ballots answer its question: agents committed themselves on it, or it was crystallized."""
        return bool(self.question) and bool(self.commitments or self.crux)

    # lock

    @property
    def declared_sides(self) -> dict[str, Side]:
        """The side that each agent declared last: in private after the evidence, else in public."""
        sides: dict[str, Side] = {agent: commitment.side for agent, commitment in self.commitments.items()}
        return sides | {agent: flip.side for agent, flip in self.flips.items()}

    @property
    def is_disputed(self) -> bool:
        """Whether agents declared both sides."""
        return set(FIRM) <= set(self.declared_sides.values())

    def await_commitments(self) -> None:
        """Ask every participant for its commitment, in a thread split by horizon every member. Those who had left for another
        thread are in this one again."""
        self.to_commit = [
            agent for agent in (self.members if self.half else self.participants) if agent not in self.left
        ]
        self.members += [agent for agent in self.to_commit if agent not in self.members]

    def invite(self, agents: Sequence[str]) -> None:
        """Ask agents who are not in it for their commitment: those who wanted a thread may all be on one side of its question."""
        self.invited, self.required = True, None
        self.to_commit = list(agents)
        self.members += [agent for agent in agents if agent not in self.members]
        self.grant(len(agents) + 2)

    def replace_question(self, question: str, silent: Collection[str] = ()) -> None:
        """Put another question in place of one that could not be locked. Nothing that was declared on the old one holds for it.
        `silent` agents are not asked to commit themselves."""
        self.question, self.required = question, None
        self.past_steelmen += self.steelmen
        self.steelmen.clear()
        self.commitments.clear()
        self.to_falsify.clear()
        self.await_commitments()
        self.to_commit = [agent for agent in self.to_commit if agent not in silent]
        self.lock_base = self.in_stage
        self.grant(max(0, self.in_stage + len(self.to_commit) + 2 - self.budget))

    def side(self, agent: str) -> Side | None:
        commitment = self.commitments.get(agent)
        return commitment.side if commitment else None

    def latest_steelman(self, agent: str, of: str) -> SteelmanAttempt | None:
        return next((s for s in reversed(self.steelmen) if (s.agent, s.of) == (agent, of)), None)

    def ungraded_for(self, agent: str) -> SteelmanAttempt | None:
        """The first steelman of that agent's position that it has not graded."""
        return next((s for s in self.steelmen if s.of == agent and s.grade == "PENDING"), None)

    def passed(self, agent: str, of: str) -> bool:
        return any(s.grade == "ACCURATE" for s in self.steelmen if (s.agent, s.of) == (agent, of))

    # evidence

    @property
    def is_stable(self) -> bool:
        """Whether the last messages of the evidence stage brought no update, no concession and no new evidence, or its budget
        or that of the thread is spent."""
        moving = {*SHIFTING, "PROVIDE_EVIDENCE"}
        quiet = self.in_stage >= STABLE_MESSAGES and not moving & set(self.moves(STABLE_MESSAGES))
        return self.stage == "EVIDENCE" and (quiet or self.in_stage >= self.budget or len(self.spoken) >= self.cap)

    def horizons(self) -> list[Horizon]:
        return [commitment.horizon for commitment in self.commitments.values()]

    def record(self) -> ThreadRecord:
        own = {name: getattr(self, name) for name in ThreadRecord.model_fields if hasattr(self, name)}
        commitments, steelmen = tuple(self.commitments.values()), (*self.past_steelmen, *self.steelmen)
        return ThreadRecord(**own | {"lock_attempts": self.attempts, "commitments": commitments, "steelmen": steelmen})


def convergence_signal(thread: Thread) -> float:
    """The seed's signal: 0.95 for a proposed crux that is acknowledged, 0.75 for three concessions that changed a top claim,
    0.6 for shrinking participation; 0 without a framed question, or with a new position in the last 5 messages or a new
    participant in the last 8. Only a CONCEDE that answers the proposal and changes a top claim acknowledges it."""
    spoken = thread.spoken
    if not thread.question or len(spoken) < 8:
        return 0.0
    recent = spoken[-8:]
    earlier = {message.agent for message in spoken[:-8]}
    if any(message.agent not in earlier for message in recent) and len(spoken) > 8:
        return 0.0
    if any(message.new_side for message in spoken[-5:]):
        return 0.0
    proposals = {message.id for message in recent if message.move == "PROPOSE_CRUX"}
    changed = {concession.message for concession in thread.concessions if not concession.cheap}
    if any(message.id in changed and message.reply_to in proposals for message in recent[-3:]):
        return 0.95
    if sum(message.id in changed for message in recent) >= 3:
        return 0.75
    if len({message.agent for message in recent}) <= 2 < len(thread.participants):
        return 0.6
    return 0.0


def is_orbiting(thread: Thread) -> bool:
    """Whether a thread goes round in circles: no CONCEDE and no PROPOSE_CRUX in its last 8 messages, and the same keywords again
    and again. Once for the same messages."""
    recent = thread.spoken[-ORBIT_MESSAGES:]
    if len(recent) < ORBIT_MESSAGES or len(thread.spoken) - thread.orbited_at < ORBIT_MESSAGES:
        return False
    if {"CONCEDE", "PROPOSE_CRUX"} & {message.move for message in recent}:
        return False
    words = [word for message in recent for word in keywords(message.text)]
    return bool(words) and len(words) / len(set(words)) > ORBIT_REPETITION


def aligned_horizon(stated: Sequence[Horizon]) -> Horizon | None:
    """The horizon to which a mismatch is aligned: the most frequent, ties to the shorter; None without a mismatch."""
    return dominant_horizon(stated) if len(set(stated)) > 1 else None
