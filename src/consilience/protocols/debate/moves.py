"""The vocabulary of a debate: moves, stages, statuses, horizons and grades of seed 002, its invariants, and all in plain words.

All that is particular to a move stands in its row of `MOVES`; `prompts/full/moves.j2` describes it to capable models, and `turns`
says what it changes.

The invariants are constants: a structure that keeps a debate bounded, and no taste. Times are virtual milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from consilience.domain.messages import is_empty_remark
from consilience.domain.outcome import FailureKind

TurnKind = Literal["turn", "commit", "falsify", "steelman", "grade"]
"""Kinds of calls in which a debater speaks: its reply is published."""
Stage = Literal["DISCOVERY", "CRUX_LOCK", "EVIDENCE"]
ThreadStatus = Literal["DISCOVERY", "LOCKING", "LOCKED", "CONVERGED", "FAILED_LOCK", "STALE", "MERGED"]
Side = Literal["YES", "NO", "UNCERTAIN"]
FIRM: tuple[Side, Side] = ("YES", "NO")
TopSide = Literal["YES", "NO", "NUANCED"]
Horizon = Literal["1-3mo", "12-18mo", "5y", "10y+"]
Grade = Literal["PENDING", "ACCURATE", "INCOMPLETE", "WRONG"]
BlockReason = Literal[
    "stage_restriction",
    "steelman_required",
    "agent_cooldown",
    "reply_limit",
    "thread_rate_limit",
    "stage_budget",
    "thread_cap",
    "thread_closed",
]
Intervention = Literal[
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
    "review",
    "orbit",
    "settling",
]

QuestionForm = Literal["yes/no", "choose one", "how much", "open", "not disputable"]
GivesUpIf = Literal["YES", "NO", "either", "neither"]
"""The answer to a question that, once established, makes an agent give up its top claim."""


def would_flip(side: Side, gives_up_if: GivesUpIf) -> bool:
    """Return whether a top claim would change if the question came out otherwise than its agent answers it."""
    return gives_up_if == "either" or gives_up_if in {"YES": ("NO",), "NO": ("YES",), "UNCERTAIN": ("YES", "NO")}[side]


ClosingSide = Literal["YES", "NO", "UNDECIDED"]
CruxKind = Literal["identity", "causal", "value", "prediction", "measurement"]
"""What a crux asks. One of measurement is no crux: it asks what an instrument will read."""
CommonKind = Literal["factual", "empirical", "causal", "value"]
DependencyKind = Literal["ENTAILS", "CONTRADICTS", "SUPPORTS"]

HORIZONS: tuple[Horizon, ...] = get_args(Horizon)
"""From the shortest to the longest."""
MONTHS: frozenset[Horizon] = frozenset({"1-3mo", "12-18mo"})
"""Horizons of the shorter half."""
ACTIVE: frozenset[ThreadStatus] = frozenset({"DISCOVERY", "LOCKING", "LOCKED"})
"""Statuses in which agents may speak in a thread."""

MAX_QUESTION_CHARS = 400


def is_question(text: str) -> bool:
    """Whether a text can be a thread's question: some words, on one line."""
    return len(text.split()) >= 3 and len(text) <= MAX_QUESTION_CHARS


# --- the moves

PEER = "peer"
"""Stands for the choice among `nobody` and the letters of the other participants."""
FIELDS: Mapping[str, tuple[Any, object]] = {
    "question": (str, ""),
    "bears_on": (PEER, "nobody"),
    "new_side": (Literal["unchanged", "YES", "NO", "UNCERTAIN"], "unchanged"),
    "conceded": (str, ""),
    "confidence": (Literal["unchanged", "unsure", "fairly sure", "certain"], "unchanged"),
    "metric": (str, ""),
    "threshold": (str, ""),
    "deadline": (str, ""),
    "top_claim": (Literal["unchanged", "YES", "NO", "NUANCED"], "unchanged"),
    "claim": (str, ""),
    "steelman_of": (PEER, "nobody"),
    "strongest_reason": (str, ""),
    "falsifier_represented": (str, ""),
}
"""Type and default of what a move of a free turn may declare beside its text, in the order of the reply."""
LEADS: Mapping[str, str] = {
    "question": "Question",
    "conceded": "Concedes",
    "new_side": "New position",
    "confidence": "Confidence",
    "top_claim": "Top claim",
    "claim": "Now argues for",
    "metric": "Would change its mind if",
    "strongest_reason": "Strongest reason",
    "corrections": "Corrections",
}
"""With what a declared part begins where a message is quoted, in that order. `metric` is quoted with its threshold and deadline."""
_SHIFT = ("new_side", "confidence", "metric", "threshold", "deadline", "top_claim", "claim")


@dataclass(frozen=True, slots=True)
class MoveRow:
    """All that is particular to a move, but for its description in the `full` prompts and its effect."""

    words: str
    """What its agent does, in a transcript."""
    stages: tuple[Stage, ...]
    """Where it is allowed."""
    heading: str = ""
    """Under what a crux lists such messages; empty if it does not."""
    fields: tuple[str, ...] = ()
    """What it may declare in a free turn, of `FIELDS`."""
    needs: tuple[tuple[str, Callable[[str], bool], str], ...] = ()
    """Fields without which it is not this move: name, whether a value is missing, and what to write."""
    interest: Literal["high", "medium", "low"] = "low"
    """How much attention it draws."""
    counted: bool = True
    """Whether the rate limit of a thread counts it."""
    delivered: bool = False
    """Whether it answers a request of the process: then no reply limit applies to it."""
    key: bool = False
    """Whether ballots and the closing call are shown it."""
    gives: Literal["", "evidence", "concession"] = ""
    """What its thread keeps of it."""
    gist: str = ""
    """What it is for, as the `brief` prompt of a turn names it; empty if no turn offers it."""


MOVES: Mapping[str, MoveRow] = {
    "CLAIM": MoveRow("claims", ("DISCOVERY",), interest="medium", gist="a new point"),
    "CHALLENGE": MoveRow("challenges", ("DISCOVERY",), interest="high", gist="say what is wrong in a message"),
    "CLARIFY": MoveRow("clarifies", ("DISCOVERY", "CRUX_LOCK"), gist="make something precise"),
    "REFRAME": MoveRow(
        "reframes", ("DISCOVERY",), fields=("question",), interest="medium", gist="it depends on something else"
    ),
    "PROPOSE_CRUX": MoveRow(
        "proposes a question",
        ("DISCOVERY", "EVIDENCE"),
        "Proposed:",
        fields=("question",),
        needs=(("question", lambda text: not is_question(text), "the yes/no question that you propose"),),
        interest="high",
        key=True,
        gist="the yes/no question that divides you",
    ),
    "COMMIT_POSITION": MoveRow(
        "commits", ("CRUX_LOCK", "EVIDENCE"), "Commitments:", counted=False, delivered=True, key=True
    ),
    "STEELMAN": MoveRow(
        "puts the other side's case",
        ("CRUX_LOCK", "EVIDENCE"),
        "Steelmen and grades:",
        fields=("steelman_of", "strongest_reason", "falsifier_represented"),
        needs=(
            ("steelman_of", lambda of: of == "nobody", "the participant whose position you put"),
            ("strongest_reason", is_empty_remark, "the strongest reason of that participant"),
        ),
        counted=False,
        delivered=True,
        gist="put the case of another as well as you can",
    ),
    "GRADE_STEELMAN": MoveRow(
        "grades a steelman", ("CRUX_LOCK", "EVIDENCE"), "Steelmen and grades:", counted=False, delivered=True
    ),
    "DECLARE_FALSIFIER": MoveRow("names a falsifier", ("CRUX_LOCK",), "Falsifiers:", delivered=True),
    "PROVIDE_EVIDENCE": MoveRow(
        "gives evidence",
        ("EVIDENCE",),
        "Evidence:",
        ("bears_on",),
        interest="medium",
        key=True,
        gives="evidence",
        gist="a fact or a case",
    ),
    "CHALLENGE_EVIDENCE": MoveRow(
        "challenges evidence",
        ("EVIDENCE",),
        "Challenges to evidence:",
        interest="high",
        key=True,
        gist="say what is wrong with somebody's evidence",
    ),
    "UPDATE_POSITION": MoveRow(
        "changes position",
        ("EVIDENCE",),
        "Changes of position:",
        fields=_SHIFT,
        needs=(("new_side", lambda side: side == "unchanged", "your new position; to keep it, choose another move"),),
        key=True,
        gist="your answer changes",
    ),
    "CONCEDE": MoveRow(
        "concedes",
        ("EVIDENCE",),
        "Concessions:",
        fields=("conceded", *_SHIFT),
        needs=(("conceded", is_empty_remark, "the exact proposition that you grant"),),
        interest="high",
        key=True,
        gives="concession",
        gist="the other side is right in one point",
    ),
}
"""The moves, in the order in which they are offered. Steelmen and grades stay open in the evidence stage, so that latecomers can
earn a challenge, and commitments, for which the agenda asks."""
if TYPE_CHECKING:
    Move: TypeAlias = str
else:
    Move = Literal[tuple(MOVES)]  # a reply with another one is refused
SHIFTING: frozenset[Move] = frozenset(move for move, row in MOVES.items() if "new_side" in row.fields)
"""Moves by which an agent may change its answer to the question, or its top claim."""

# --- the invariants

MIN_AGENTS, MAX_AGENTS = 2, 12
MAX_REPLIES_PER_MESSAGE = 2
RATE_MESSAGES, RATE_WINDOW_MS = 12, 30_000
MAX_ACTIVE_THREADS = 4
MAX_THREADS = 8
"""Threads that one debate may open, which bounds its calls."""
SPAWN_MIN_AGENTS = SPAWN_MIN_MENTIONS = 2
MIN_DISCOVERY_MESSAGES = 6
"""Messages before which a proposed question does not end the discovery: the least of the seed's 6 to 10."""
EXTRA_DISCOVERY_MESSAGES = 4
MIN_STEELMAN_MESSAGES = 4
"""Messages by which two opponents state each other's case and grade it, if the first try is accurate."""
ALIGN_AFTER, SPLIT_AFTER, FRAME_AFTER = 12, 15, 20
"""Messages of a discovery after which horizons are aligned, a thread is split and a question is framed."""
THREAD_CAP = 40
STALE_MS = 30_000
STABLE_MESSAGES = 6
MAX_LOCK_ATTEMPTS = 4
MAX_REQUIRED_PAIRS = 4
MIN_CRYSTAL_MESSAGES = 12
"""Messages from which a thread that ends without a lock is crystallized."""
MAX_EXTRACTIONS = 3
"""The first extraction of a thread, and two after challenges or failed tests."""
MAX_RECHECKS = 2
"""Times that an agent is asked again for answers of its final ballot."""
RELATE_EVERY = 20
"""Messages of the debate after which cruxes are related to each other."""
COMMIT_EVERY = 10
"""Messages of the debate after which agents without a position on an active dispute are asked for one."""
MAX_DISPUTES = 2
MAX_BOOST = 0.2
"""Attention that the agenda adds to messages about the dispute with the highest score; half of it for the second."""
ORBIT_MESSAGES, ORBIT_REPETITION = 8, 2.0
"""A thread goes round in circles if its last messages hold no concession, no proposed crux, and every keyword more often."""
MIN_SPLIT_AGENTS = 4
"""Agents who judge over years, and over months, from which a thread is split by horizon: the seed's more than three."""
ADVOCATE_AFTER = 20
"""Messages of the debate without a challenge after which one agent is asked to argue the other side."""

IDLE_MS, PASS_MS, THINK_MS, COOLDOWN_MS = (2_000, 5_000), (5_000, 10_000), (3_000, 8_000), (6_000, 12_000)
HOLD_BACK_MESSAGES = 3
QUIET_MS = 18_000
"""Silence of a thread after which the moderator calls on the quietest agent: by then every cooldown has ended."""

MAX_CHARS = {"full": 1_200, "brief": 400}
"""Characters of a message, by detail."""

# --- in plain words, as reports, views and prompts show them

SIDES: Mapping[str, str] = {"YES": "yes", "NO": "no", "UNCERTAIN": "undecided", "UNDECIDED": "undecided"}
STAGES: Mapping[Stage, str] = {"DISCOVERY": "discovery", "CRUX_LOCK": "crux lock", "EVIDENCE": "evidence"}
STATUSES: Mapping[ThreadStatus, str] = {
    "DISCOVERY": "looking for its question",
    "LOCKING": "committing to positions",
    "LOCKED": "debating the evidence",
    "CONVERGED": "converged",
    "FAILED_LOCK": "failed to lock",
    "STALE": "went stale",
    "MERGED": "merged",
}
BLOCKED: Mapping[str, str] = {
    "stage_restriction": "a move that the stage does not allow",
    "steelman_required": "a challenge before an accepted steelman",
    "agent_cooldown": "spoken too soon after the agent's last message",
    "reply_limit": "a third reply to one message",
    "thread_rate_limit": "too many messages in the thread within 30 s",
    "stage_budget": "the messages of the stage were used up",
    "thread_cap": "the messages of the thread were used up",
    "thread_closed": "the thread had ended",
}
FAILURES: Mapping[FailureKind, str] = {
    FailureKind.BUDGET: "a limit refused the call",
    FailureKind.TIME: "a time limit refused or ended the call",
    FailureKind.CANCELLED: "the session was cancelled",
    FailureKind.DEADLINE: "no reply in time",
    FailureKind.QUORUM: "the call was withdrawn, since enough others had replied",
    FailureKind.LATE: "the call was withdrawn: its time was up, and nearly enough others had replied",
    FailureKind.MALFORMED: "the reply could not be read",
    FailureKind.TRUNCATED: "the reply was cut off",
    FailureKind.PROMPT_CUT: "the server cut the prompt",
    FailureKind.REFUSED: "the model refused to answer",
    FailureKind.RATE_LIMITED: "the rate limit of the provider",
    FailureKind.SERVER: "the provider failed",
    FailureKind.UNREACHABLE: "the provider could not be reached",
    FailureKind.REJECTED: "the provider rejected the request",
}
"""Why a call has no reply."""
CRITERIA: Mapping[str, str] = {
    "commitments": "fewer than two commitments",
    "sides": "nobody on one of the sides",
    "steelmen": "a steelman not accepted",
    "falsifiers": "no falsifier named",
}
REGIMES: Mapping[str, str] = {
    "consensus": "Agreement: on every question, all agents with a firm position are on one side.",
    "partial": "Partial: at least one question is split, and not all of the split is explained by a validated crux.",
    "polarized": "Polarized: every question is split, and a validated crux names what divides them.",
    "inconclusive": "Inconclusive: on no question do two agents hold a firm position.",
}
ENDINGS: Mapping[str, str] = {
    "settled": "every thread has ended",
    "stable": "no new crux and the same coalitions for 30 messages",
    "stalled": "the debate made no progress any more",
    "max_messages": "reached the limit on messages",
    "max_duration": "reached the limit on virtual time",
}


def dominant_horizon(horizons: Iterable[Horizon]) -> Horizon | None:
    """Return the most frequent horizon, ties to the shorter; None without any."""
    counted = list(horizons)
    if not counted:
        return None
    return max(HORIZONS, key=lambda horizon: (counted.count(horizon), -HORIZONS.index(horizon)))
