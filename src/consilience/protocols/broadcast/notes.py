"""Notes of `broadcast`: from them a session without a report shows goals, ratings, flags and satisfaction."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from consilience.domain.events import LongText
from consilience.protocols.broadcast.replies import Severity, Tag


class GoalBroadcast(BaseModel):
    """A parent stated its goal. `path`: iterations of its ancestors and its own, the root's first."""

    node: str
    path: tuple[int, ...]
    text: LongText


class Rated(BaseModel):
    """An agent rated its text in the reply `call`. None: the rating could not be read."""

    agent: str
    path: tuple[int, ...]
    call: str
    rating: float | None


class FlagRaised(BaseModel):
    """An agent raised a flag, published as the message `id`."""

    id: str
    tag: Tag
    severity: Severity
    critical: bool
    node: str
    path: tuple[int, ...]
    text: LongText


class IterationEnded(BaseModel):
    """A parent judged its children's texts. `unmet`: why it is not satisfied."""

    node: str
    path: tuple[int, ...]
    ratings: dict[str, float | None]
    mean: float | None
    coordination_rounds: int
    flags: tuple[str, ...]
    """Ids of the flags that stand, up to those that a prompt may quote."""
    feedback: LongText
    said_satisfied: bool | None
    satisfied: bool
    unmet: LongText


NOTES: Mapping[str, type[BaseModel]] = {
    "goal": GoalBroadcast,
    "rating": Rated,
    "flag": FlagRaised,
    "iteration": IterationEnded,
}
