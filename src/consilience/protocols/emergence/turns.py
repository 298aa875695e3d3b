"""What agents did in a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from consilience.domain.positions import BallotReply
from consilience.engine.work import Failure, Pending, Reply
from consilience.protocols.emergence.objections import ObjectionMet, ObjectionRaised
from consilience.protocols.emergence.replies import Declaring, PeerReply, Stance

TextReply = Reply[Any]
"""A reply whose value has a `text`, which others may read."""

Nudge = Pending[Reply[str] | Failure]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one agent did in one round."""

    agent: str
    response: TextReply | None = None
    """Its first text of the round: a leaf's own, or the observation of a parent."""
    lateral: Reply[PeerReply] | None = None
    nudge: Reply[str] | None = None
    """What its parent sent it before the round."""
    text: TextReply | None = None
    """The text it leaves the round with: its latest, of an earlier round if need be."""
    before: TextReply | None = None
    """The text with which it went into lateral talk."""
    points: tuple[str, ...] = ()
    """Points of its first text of the round. They go with that text: one revised in lateral talk holds them."""
    objections: tuple[ObjectionRaised, ...] = ()
    met: tuple[ObjectionMet, ...] = ()
    void: int = 0
    surplus: int = 0
    failures: tuple[Failure, ...] = ()

    @property
    def replied(self) -> bool:
        return self.response is not None or self.lateral is not None

    @property
    def spoke(self) -> bool:
        """Whether it replied, or its earlier text was reused without a call."""
        return self.replied or (self.text is not None and not self.failures)

    @property
    def stance(self) -> Stance | None:
        """What its last reply of the round declares; None without a declaration."""
        last = self.lateral or self.response
        return last.value.stance if last is not None and isinstance(last.value, Declaring) else None

    @property
    def changed(self) -> bool:
        """Whether any of its replies of the round declares a change."""
        values = [reply.value for reply in (self.response, self.lateral) if reply is not None]
        return any(isinstance(value, Declaring) and value.stance == "changed" for value in values)

    @property
    def kept(self) -> bool:
        """Whether it declared its answer unchanged, or its text was reused. A missing declaration counts as a change."""
        return self.stance == "kept" if self.replied else self.spoke


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """What a branch made: the turn of its top node, the turns below it, and ballots still being cast, by step and leaf."""

    top: Turn
    below: tuple[Turn, ...] = ()
    ballots: Mapping[tuple[int, str], Pending[Reply[BallotReply] | Failure]] = field(default_factory=dict)

    @property
    def turns(self) -> tuple[Turn, ...]:
        return (self.top, *self.below)


def first_turn(
    agent: str,
    reply: TextReply | Failure,
    before: TextReply | None = None,
    nudge: Reply[str] | None = None,
    points: tuple[str, ...] = (),
) -> Turn:
    """The turn of an agent after its first call of the round; without a reply its earlier text stands."""
    if isinstance(reply, Failure):
        return Turn(agent, nudge=nudge, text=before, failures=(reply,))
    return Turn(agent, response=reply, nudge=nudge, text=reply, points=points)
