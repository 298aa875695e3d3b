"""Sealed ballots cast under something stipulated, as data: tests of cruxes, the placebo, and facts told after the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from consilience.domain.positions import PositionChange
from consilience.domain.report import Frozen
from consilience.domain.sections import Refs
from consilience.protocols.debate.moves import Side
from consilience.protocols.debate.records import DebateBallot


class StipulatedBallot(Frozen):
    """A sealed position cast after the final ballot, under something that the agent was to take as established."""

    positions: tuple[Side, ...]
    """On each proposition, in order."""
    confidence: float
    reason: str = ""


class CruxTest(Frozen):
    """The ballots cast with the question of a thread stipulated as answered."""

    thread: str
    stipulated: Literal["YES", "NO"]
    ballots: dict[str, StipulatedBallot] = {}
    """By agent; an agent without a reply is missing."""

    def keys(self, agents: Iterable[str]) -> Refs:
        """Return the calls that asked these agents."""
        return tuple(f"test/{self.thread}/{self.stipulated}/{agent}" for agent in agents)


class PlaceboTest(Frozen):
    """The ballots cast with a stipulated fact that all agents assume already: how many move for nothing."""

    fact: str
    ballots: dict[str, StipulatedBallot] = {}
    """By agent; an agent without a reply is missing."""


class FlipRecord(Frozen):
    """Whether one agent gives up its final position once a question is answered against it: by its word, and when tested."""

    agent: str
    declared: bool | None = None
    """By its own word; None if it declared nothing on the question."""
    observed: bool | None = None
    """When told the answer that it does not hold, an undecided agent either one; None without that ballot."""
    as_declared: bool | None = None
    """Whether it changed exactly for the answers for which it had said so; None if one of the two is not known, or
    if it was undecided on every proposition: it had no claim to give up."""
    placebo: bool | None = None
    """In the ballot on the placebo; None without that ballot."""


class ToldFact(Frozen):
    """A fact that the debate was told after its end (`consilience tell`)."""

    fact: str
    before: tuple[DebateBallot, ...] = ()
    """The final ballots before it."""
    ballots: tuple[DebateBallot, ...] = ()
    """Those cast on it; an agent without a reply is missing."""
    moved: tuple[PositionChange, ...] = ()
    """Agents whose typed answers it changed, to the propositions or to the questions of threads."""
