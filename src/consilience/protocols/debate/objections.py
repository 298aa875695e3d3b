"""Objections and how they were met, from the published messages alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from consilience.domain.report import Objection, ObjectionFate
from consilience.protocols.debate.records import DebateMessage

OBJECTING = ("CHALLENGE", "CHALLENGE_EVIDENCE")
YIELDING = ("CONCEDE", "UPDATE_POSITION")


def objections_of(messages: Sequence[DebateMessage], shown: Collection[str]) -> Iterator[Objection]:
    """Yield every challenge to a message of another agent, with its fate; `shown` are the messages that a prompt quoted.

    It yielded if its target conceded or changed its position in a reply to it. A target, or somebody else, who replied otherwise
    answered it (`refuted`). A challenge that nobody but its author replied to is unanswered.
    """
    by_id = {message.id: message for message in messages}
    for message in messages:
        target = by_id.get(message.reply_to or "")
        if message.move not in OBJECTING or target is None or target.agent == message.agent or message.by_moderator:
            continue
        replies = [m for m in messages if m.reply_to == message.id and m.agent != message.agent and not m.by_moderator]
        yielded = next((m for m in replies if m.agent == target.agent and m.move in YIELDING), None)
        own = [m for m in replies if m.agent == target.agent]
        met = yielded or next(iter((*own, *replies)), None)
        fate: ObjectionFate = "yielded" if yielded else "refuted" if met else "unanswered"
        yield Objection(
            id=message.id,
            agent=message.agent,
            to=target.agent,
            text=message.text,
            read=message.id in shown,
            fate=fate,
            how=met.text if met else "",
            answer=met.id if met else None,
        )
