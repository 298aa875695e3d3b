"""The gate at publication: what was open when a reply was begun may have closed since. What it blocks, only its author is shown."""

from __future__ import annotations

from consilience.protocols.debate.lock import may_challenge
from consilience.protocols.debate.moves import (
    ALLOWED,
    DELIVERED,
    MAX_REPLIES_PER_MESSAGE,
    RATE_MESSAGES,
    RATE_WINDOW_MS,
    UNCOUNTED,
    BlockReason,
    Move,
)
from consilience.protocols.debate.records import DebateMessage
from consilience.protocols.debate.threads import Thread


def blocked(
    thread: Thread, agent: str, move: Move, at: int, *, target: DebateMessage | None, ready_at: int
) -> BlockReason | None:
    """Return why a reply may not be published now, or None. `target` is the message that it answers; `ready_at` is when the
    cooldown of its agent ends.

    Grades are exempt from cooldown, requested moves from the limit of replies. A message of the moderator takes a reply of
    everyone it names.
    """
    if not thread.active:
        return "thread_closed"
    if move not in ALLOWED[thread.stage]:
        return "stage_restriction"
    if move != "GRADE_STEELMAN" and at < ready_at:
        return "agent_cooldown"
    if move == "CHALLENGE_EVIDENCE" and (target is None or not _earned(thread, agent, target)):
        return "steelman_required"
    if move not in DELIVERED and target is not None and replies_to(thread, target) >= MAX_REPLIES_PER_MESSAGE:
        return "reply_limit"
    if move not in UNCOUNTED and is_over_rate(thread, at):
        return "thread_rate_limit"
    if len(thread.spoken) >= thread.cap:
        return "thread_cap"
    if move not in DELIVERED and thread.in_stage >= thread.budget:
        return "stage_budget"
    return None


def _earned(thread: Thread, agent: str, target: DebateMessage) -> bool:
    return target.by_moderator or may_challenge(thread, agent, target.agent)


def replies_to(thread: Thread, target: DebateMessage) -> int:
    """Replies that count against the limit of a message; none for a message of the moderator."""
    if target.by_moderator:
        return 0
    return sum(message.reply_to == target.id and message.move not in DELIVERED for message in thread.messages)


def is_over_rate(thread: Thread, at: int) -> bool:
    """Whether the thread has had its share of messages in the window that ends at `at`."""
    recent = [m for m in thread.spoken if m.move not in UNCOUNTED and at - m.at < RATE_WINDOW_MS]
    return len(recent) >= RATE_MESSAGES
