"""The lock of a crux and the gate at publication (seed 002, §3 and §4): what a thread requires, and what it lets through.

What was open when a reply was begun may have closed since. What the gate blocks, only its author is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from consilience.protocols.debate.moves import (
    FIRM,
    MAX_REPLIES_PER_MESSAGE,
    MAX_REQUIRED_PAIRS,
    MOVES,
    RATE_MESSAGES,
    RATE_WINDOW_MS,
    BlockReason,
    Move,
)
from consilience.protocols.debate.reasons import Missing
from consilience.protocols.debate.records import Commitment, DebateMessage
from consilience.protocols.debate.threads import Thread


def required_pairs(commitments: Mapping[str, Commitment]) -> tuple[tuple[str, str], ...]:
    """Return the ordered pairs (from, of) that must steelman: all of opposite sides while they are at most four, else one
    champion of each side both ways. A champion is the most confident of its side, ties to the first."""
    yes = [agent for agent, c in commitments.items() if c.side == "YES"]
    no = [agent for agent, c in commitments.items() if c.side == "NO"]
    if 2 * len(yes) * len(no) > MAX_REQUIRED_PAIRS:
        yes, no = ([max(side, key=lambda agent: commitments[agent].confidence)] for side in (yes, no))
    return tuple(pair for a in yes for b in no for pair in ((a, b), (b, a)))


def lock_budget(thread: Thread) -> int:
    """Messages of the lock since its question was put: its participants, those who declare their falsifier apart, two for each
    pair, and two."""
    pairs = len(thread.required or ())
    return thread.lock_base + len(thread.participants) + len(thread.to_falsify) + 2 * pairs + 2


def pending_pairs(thread: Thread) -> list[tuple[str, str]]:
    """Required pairs without an ACCURATE grade."""
    return [pair for pair in thread.required or () if not thread.passed(*pair)]


def is_due(thread: Thread) -> bool:
    """Whether the lock is to be attempted: all have committed and no required pair is ungraded, or the budget has ended and
    nothing is being composed."""
    is_budget_spent = thread.in_stage >= thread.budget and not thread.in_flight
    return thread.stage == "CRUX_LOCK" and (is_budget_spent or not awaits_delivery(thread))


def awaits_delivery(thread: Thread) -> bool:
    """Whether a commitment, falsifier, steelman or grade is still to come before the next attempt."""
    return bool(thread.to_commit or thread.to_falsify or thread.required is None or _awaits_grade(thread))


def without_falsifier(thread: Thread) -> list[str]:
    """Committed agents who take a side and have declared no falsifier."""
    return [agent for agent, c in thread.commitments.items() if c.side != "UNCERTAIN" and c.falsifier is None]


def owing(thread: Thread) -> set[tuple[str, str]]:
    """What the lock awaits: agents, each with `commit`, `falsify`, `steelman` or `grade`."""
    if thread.stage != "CRUX_LOCK":
        return set()
    due = {(agent, "commit") for agent in thread.to_commit} | {(agent, "falsify") for agent in thread.to_falsify}
    for agent, of in pending_pairs(thread):
        latest = thread.latest_steelman(agent, of)
        due.add((of, "grade") if latest is not None and latest.grade == "PENDING" else (agent, "steelman"))
    return due


def _awaits_grade(thread: Thread) -> bool:
    """Whether a required pair has no graded steelman since the last attempt."""
    since = thread.attempts[-1].at if thread.attempts else -1
    numbers = {message.id: message.at for message in thread.messages}
    for pair in pending_pairs(thread):
        latest = thread.latest_steelman(*pair)
        if latest is None or latest.grade == "PENDING" or numbers.get(latest.message, 0) <= since:
            return True
    return False


def missing_criteria(thread: Thread) -> tuple[Missing, ...]:
    """Return the criteria that do not hold, each named alone: two commitments; both sides; every required steelman ACCURATE;
    a falsifier of every committed agent that is not UNCERTAIN."""
    missing: list[Missing] = []
    sides = {commitment.side for commitment in thread.commitments.values()}
    if len(thread.commitments) < 2:
        missing.append(Missing(criterion="commitments", n=len(thread.commitments)))
    if missing_sides := tuple(side for side in FIRM if side not in sides):
        missing.append(Missing(criterion="sides", sides=missing_sides))
    pairs = required_pairs(thread.commitments) if thread.required is None else thread.required
    for agent, of in pairs:
        if not thread.passed(agent, of):
            latest = thread.latest_steelman(agent, of)
            missing.append(Missing(criterion="steelmen", agent=agent, of=of, grade=latest.grade if latest else None))
    missing += [Missing(criterion="falsifiers", agent=agent) for agent in without_falsifier(thread)]
    return tuple(missing)


def may_challenge(thread: Thread, agent: str, opponent: str) -> bool:
    """Return whether `agent` may challenge the evidence of `opponent`: after an ACCURATE steelman of that opponent, by itself
    or by the champion of its side of that side; the uncommitted and UNCERTAIN after one of either side."""
    own, other = thread.side(agent), thread.side(opponent)
    if own is None or own == "UNCERTAIN":
        return any(s.agent == agent and s.grade == "ACCURATE" for s in thread.steelmen)
    if own == other or thread.passed(agent, opponent):
        return True
    if other is None or other == "UNCERTAIN":
        return any(thread.passed(agent, of) for of in thread.commitments)
    return any(
        s.required and s.grade == "ACCURATE" and thread.side(s.agent) == own and thread.side(s.of) == other
        for s in thread.steelmen
    )


def may_challenge_somebody(thread: Thread, agent: str) -> bool:
    """Whether the move is open at all."""
    return any(may_challenge(thread, agent, other) for other in thread.participants if other != agent)


def blocked(
    thread: Thread, agent: str, move: Move, at: int, *, target: DebateMessage | None, ready_at: int
) -> BlockReason | None:
    """Return why a reply may not be published now, or None. `target` is the message that it answers; `ready_at` is when the
    cooldown of its agent ends.

    Grades are exempt from cooldown, requested moves from the limit of replies. A message of the moderator takes a reply of
    everyone it names.
    """
    row = MOVES[move]
    if not thread.active:
        return "thread_closed"
    if thread.stage not in row.stages:
        return "stage_restriction"
    if move != "GRADE_STEELMAN" and at < ready_at:
        return "agent_cooldown"
    if move == "CHALLENGE_EVIDENCE" and (target is None or not _may_answer(thread, agent, target)):
        return "steelman_required"
    if not row.delivered and target is not None and replies_to(thread, target) >= MAX_REPLIES_PER_MESSAGE:
        return "reply_limit"
    if row.counted and is_over_rate(thread, at):
        return "thread_rate_limit"
    if len(thread.spoken) >= thread.cap:
        return "thread_cap"
    if not row.delivered and thread.in_stage >= thread.budget:
        return "stage_budget"
    return None


def _may_answer(thread: Thread, agent: str, target: DebateMessage) -> bool:
    return target.by_moderator or may_challenge(thread, agent, target.agent)


def replies_to(thread: Thread, target: DebateMessage) -> int:
    """Replies that count against the limit of a message; none for a message of the moderator."""
    return 0 if target.by_moderator else thread.replies[target.id]


def is_over_rate(thread: Thread, at: int) -> bool:
    """Whether the thread has had its share of messages in the window that ends at `at`."""
    recent = takewhile(lambda message: at - message.at < RATE_WINDOW_MS, reversed(thread.spoken))
    return sum(MOVES[message.move].counted for message in recent) >= RATE_MESSAGES
