"""Sealed ballots and what follows from them, and the exact comparison of shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from consilience.domain.messages import Label

MAX_DENOMINATOR = 1_000_000


def exact(value: float) -> Fraction:
    """Return the number that a float stands for: the nearest fraction with a denominator of at most `MAX_DENOMINATOR`.

    Decimals of up to six places and ratios of small counts come back as they were: 0.7 as 7/10, 1/3 as 1/3. Two such numbers
    are equal after this if and only if they are equal by arithmetic.
    """
    return Fraction(value).limit_denominator(MAX_DENOMINATOR)


Confidence = Literal["unsure", "fairly sure", "certain"]

LEVELS: Mapping[Confidence, float] = {"unsure": 0.4, "fairly sure": 0.7, "certain": 0.95}
"""Named levels, since small models write numbers as 0 or 100; the numbers are this project's own choice."""

MOVED = 0.1
"""A confidence that moves by this much or more has moved (protocols §0)."""


class BallotReply(BaseModel):
    """What an agent is asked for, in private. `cause` is the label of the argument that changed its position, if one did."""

    position: Annotated[str, Field(min_length=1)]
    confidence: Confidence = "unsure"
    cause: Label | None = None
    reason: str = ""


class Ballot(BaseModel):
    """One agent's position after `step` (0: the opening ballot). `cause` is a message id, never one of its own."""

    model_config = ConfigDict(frozen=True)

    agent: str
    step: int
    position: str
    confidence: Confidence
    reason: str = ""
    cause: str | None = None


class PositionChange(BaseModel):
    """A change of position. Without a `cause` it is `conformity`: it cites no argument."""

    model_config = ConfigDict(frozen=True)

    agent: str
    before: str
    after: str
    step: int
    cause: str | None = None
    conformity: bool = False


def changes(ballots: Iterable[Ballot]) -> list[PositionChange]:
    """Every change between one agent's consecutive ballots, in order of step, then of the ballots given."""
    last: dict[str, Ballot] = {}
    found: list[PositionChange] = []
    for ballot in sorted(ballots, key=lambda b: b.step):
        before = last.get(ballot.agent)
        if before and before.position != ballot.position:
            found.append(
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
    return found


def pool(ballots: Sequence[Ballot]) -> dict[str, float]:
    """Share of each position over all ballots of all steps, weighted by confidence; largest first, ties by name."""
    weight: dict[str, float] = {}
    for ballot in ballots:
        weight[ballot.position] = weight.get(ballot.position, 0.0) + LEVELS[ballot.confidence]
    total = sum(weight.values())
    return {p: w / total for p, w in sorted(weight.items(), key=lambda item: (-exact(item[1]), item[0]))}


def last_of(ballots: Iterable[Ballot]) -> dict[str, Ballot]:
    """The last ballot of each agent, of ballots in the order in which they were cast."""
    return {ballot.agent: ballot for ballot in ballots}


def unchanged(before: Mapping[str, Ballot], after: Mapping[str, Ballot]) -> float:
    """Share of agents with a ballot in either who kept their position and moved their confidence by less than `MOVED`."""
    agents = before.keys() | after.keys()
    if not agents:
        return 0.0
    kept = sum(
        1
        for agent in agents
        if agent in before
        and agent in after
        and before[agent].position == after[agent].position
        and abs(LEVELS[before[agent].confidence] - LEVELS[after[agent].confidence]) < MOVED
    )
    return kept / len(agents)


def shortfall(position: str | None, ballots: Mapping[str, Ballot]) -> str | None:
    """Why an answer with that position, or without one, does not stand by the last ballots: it takes none, or most of them
    are for others; else None."""
    if position is None:
        return "the answer takes no position"
    against = [ballot.position for ballot in ballots.values() if ballot.position != position]
    if 2 * len(against) <= len(ballots):
        return None
    said = against[0] if len(set(against)) == 1 else "otherwise"
    return f"the answer says {position}; {len(against)} of {len(ballots)} final ballots say {said}"


def one_sided(ballots: Mapping[str, Ballot]) -> bool:
    """True when there is a ballot and all hold one position."""
    return len({ballot.position for ballot in ballots.values()}) == 1
