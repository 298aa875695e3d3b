"""Sealed ballots, changes of position, and the exact comparison of shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from consilience.domain.messages import Label
from consilience.domain.validation import Frozen

MAX_DENOMINATOR = 1_000_000


def exact(value: float) -> Fraction:
    """Return the number that a float represents: the nearest fraction with a denominator of at most `MAX_DENOMINATOR`.

    Decimals of up to six places and ratios of small counts are restored: 0.7 as 7/10, 1/3 as 1/3. Two such numbers
    are equal after this if and only if they are equal by arithmetic.
    """
    return Fraction(value).limit_denominator(MAX_DENOMINATOR)


ConfidenceLevel = Literal["unsure", "fairly sure", "certain"]

LEVELS: Mapping[ConfidenceLevel, float] = {"unsure": 0.4, "fairly sure": 0.7, "certain": 0.95}
"""Named levels, because small models write only 0 or 100; the numbers are this project's choice."""

MIN_CONFIDENCE_CHANGE = 0.1
"""Smaller changes of confidence do not count (protocols §0)."""


class BallotReply(BaseModel):
    """The private position of an agent, as its reply."""

    position: Annotated[str, Field(min_length=1)]
    confidence: ConfidenceLevel = "unsure"
    cause: Label | None = None
    """The label of the argument that changed its position."""
    reason: str = ""


class Ballot(Frozen):
    """The private position of an agent after a step."""

    agent: str
    step: int
    """0 for the opening ballot."""
    position: str
    """In the spelling of the first ballot with this position."""
    confidence: ConfidenceLevel
    reason: str = ""
    cause: str | None = None
    """Id of the message that changed the position, never one of its own."""


class PositionChange(Frozen):
    """A change of position."""

    agent: str
    before: str
    after: str
    step: int
    cause: str | None = None
    conformity: bool = False
    """It cites no argument."""


def position_key(position: str) -> str:
    """Return what equal positions have in common: letter case makes no difference."""
    return position.lower()


class Spellings:
    """The spelling of each position: the first one that was read, in program order."""

    def __init__(self, positions: Iterable[str] = ()) -> None:
        self._by_key: dict[str, str] = {}
        for position in positions:
            self.of(position)

    def of(self, position: str) -> str:
        """Return the spelling of a position, which is this one if none was read before."""
        return self._by_key.setdefault(position_key(position), position)


def changes(ballots: Iterable[Ballot]) -> list[PositionChange]:
    """Return the changes between consecutive ballots of each agent, by step, then in the order of the ballots."""
    last: dict[str, Ballot] = {}
    changes: list[PositionChange] = []
    for ballot in sorted(ballots, key=lambda b: b.step):
        before = last.get(ballot.agent)
        if before and before.position != ballot.position:
            changes.append(
                PositionChange(
                    agent=ballot.agent,
                    before=before.position,
                    after=ballot.position,
                    step=ballot.step,
                    cause=ballot.cause,
                    conformity=ballot.cause is None,
                )
            )
        last[ballot.agent] = ballot
    return changes


def pool(ballots: Sequence[Ballot]) -> dict[str, float]:
    """Return the share of each position over all ballots, weighted by confidence; largest first, ties by name."""
    weight: dict[str, float] = {}
    for ballot in ballots:
        weight[ballot.position] = weight.get(ballot.position, 0.0) + LEVELS[ballot.confidence]
    total = sum(weight.values())
    ordered = sorted(weight.items(), key=lambda item: (-exact(item[1]), position_key(item[0])))
    return {position: weight / total for position, weight in ordered}


def last_of(ballots: Iterable[Ballot]) -> dict[str, Ballot]:
    """Return the last ballot of each agent; `ballots` are in the order in which they were cast."""
    return {ballot.agent: ballot for ballot in ballots}


def unchanged(before: Mapping[str, Ballot], after: Mapping[str, Ballot]) -> float:
    """Return the share of agents that kept their position and changed their confidence by less than `MIN_CONFIDENCE_CHANGE`."""
    agents = before.keys() | after.keys()
    if not agents:
        return 0.0
    unchanged_count = sum(
        1
        for agent in agents
        if agent in before
        and agent in after
        and before[agent].position == after[agent].position
        and abs(LEVELS[before[agent].confidence] - LEVELS[after[agent].confidence]) < MIN_CONFIDENCE_CHANGE
    )
    return unchanged_count / len(agents)


def shortfall(position: str | None, ballots: Mapping[str, Ballot]) -> str | None:
    """Return why the last ballots do not support an answer with that position: it takes none, or most ballots are for others.

    None if they support it.
    """
    if position is None:
        return "the answer takes no position"
    against = [ballot.position for ballot in ballots.values() if ballot.position != position]
    if 2 * len(against) <= len(ballots):
        return None
    other_position = against[0] if len(set(against)) == 1 else "otherwise"
    return f"the answer says {position}; {len(against)} of {len(ballots)} final ballots say {other_position}"


def one_sided(ballots: Mapping[str, Ballot]) -> bool:
    """Return whether there are ballots and all have the same position."""
    return len({ballot.position for ballot in ballots.values()}) == 1
