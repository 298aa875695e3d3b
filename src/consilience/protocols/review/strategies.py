"""Strategies of a review, as data: who reviews which parts, who judges whose findings, and how often they iterate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.coordination.convergence import ReviewerRole, StrategyName
from consilience.domain.topology import Topology, hierarchy, star

ReviewType = Literal["code", "skill", "documentation", "parallel_analysis", "architecture"]
LEAD, RED, BLUE = "lead", "red", "blue"
MAX_GROUP = 4
"""Max reviewers under one sub-lead."""

ROLES: Mapping[str, ReviewerRole] = {
    RED: ReviewerRole(
        focus="Find what breaks.",
        deepen="Test it harder: say under which input, order of events or failure each weak place goes wrong.",
    ),
    BLUE: ReviewerRole(
        focus="Say what is missing or unsound in how it is built and verified.",
        deepen="Expand on implementation details: how each recommendation is built, and how it is verified.",
    ),
}
"""What red and blue are asked to add. Neither has read the other, so that a defect that both find is found twice."""

CODE_LENSES = (
    "Follow the values: wrong results, bounds, types, units, off-by-one, states that should not occur.",
    "Look for what a hostile or careless user can do: injection, leaked secrets, paths, permissions, resources.",
    "Look for what happens when something fails or happens twice: errors swallowed, cleanup, races, retries, partial writes.",
    "Compare what is said with what is done: names, docstrings, documents, tests and messages against the code.",
)
TEXT_LENSES = (
    "Check the facts: figures, names, commands and examples, against each other and against the code if it is shown.",
    "Follow it as its reader who does what it says: steps that are missing, in the wrong order, or cannot be done.",
    "Look for contradictions: between sections, between text and table, between a promise and its limits.",
    "Look for what it leaves out that its reader will run into: conditions, errors, limits, security.",
)
DESIGN_LENSES = (
    "Follow the dependencies: what knows what, what has to change together, where a boundary is crossed.",
    "Look for what happens under load, failure and growth: single points of failure, queues, retries, data that diverges.",
    "Look for trust and data: who may do what, where secrets and personal data go, what is validated where.",
    "Ask how it is built, tested, operated and changed: what cannot be verified, migrated or undone.",
)
LENSES: Mapping[ReviewType, tuple[str, ...]] = {
    "code": CODE_LENSES,
    "skill": TEXT_LENSES,
    "documentation": TEXT_LENSES,
    "parallel_analysis": CODE_LENSES,
    "architecture": DESIGN_LENSES,
}
"""What reviewers of the same part look for, in order, so that they do not all look for the same."""


@dataclass(frozen=True)
class ReviewPlan:
    """Who does what in a review."""

    name: StrategyName
    reviewers: tuple[str, ...]
    judges: Mapping[str, tuple[str, ...]]
    """The authors whose findings an agent judges, by agent."""
    topology: Topology
    is_iterative: bool = False
    """Whether gates are judged, and who misses one is asked again."""

    def parts_of(self, agent: str, parts: int) -> tuple[int, ...]:
        """Return the parts, from 1, that an agent reviews: all of them if it iterates, else its share."""
        if self.is_iterative:
            return tuple(range(1, parts + 1))
        n = self.reviewers.index(agent)
        return tuple(range(n + 1, parts + 1, len(self.reviewers))) or (n % parts + 1,)

    def lens(self, agent: str, parts: int, review_type: ReviewType) -> str:
        """Return what an agent looks for in particular; "" for all that is wrong. Fewer readers than lenses share all of them."""
        n = self.reviewers.index(agent)
        readers = len(self.readers_of(n % parts + 1, parts))
        if self.is_iterative or len(self.reviewers) <= parts or readers == 1:
            return ""
        lenses = LENSES[review_type]
        return " ".join(lenses[n // parts % len(lenses) :: readers])

    def question(self, agent: str, parts: int, review_type: ReviewType) -> str:
        """Return what an agent is asked to look for in particular: red and blue by their roles, other readers by lens."""
        return ROLES[agent].focus if self.is_iterative else self.lens(agent, parts, review_type)

    def readers_of(self, part: int, parts: int) -> tuple[str, ...]:
        """Return the agents that review a part."""
        return tuple(agent for agent in self.reviewers if part in self.parts_of(agent, parts))

    def judges_of(self, authors: Sequence[str]) -> tuple[str, ...]:
        """Return the agents that judge a finding by these authors. Nobody judges a finding of its own."""
        return tuple(
            judge
            for judge, of in self.judges.items()
            if judge not in authors and any(author in of for author in authors)
        )


def make_plan(name: StrategyName, reviewers: int) -> ReviewPlan:
    """Return the strategy of that name; red and blue are two, whatever `reviewers` says."""
    if name == "adversarial_review":
        sides = (RED, BLUE)
        topology = star(LEAD, sides).model_copy(update={"circles": (sides,)})
        return ReviewPlan(name, sides, {RED: (BLUE,), BLUE: (RED,)}, topology, is_iterative=True)
    readers = tuple(f"R{n}" for n in range(1, reviewers + 1))
    if name == "parallel_decomposition":
        return ReviewPlan(name, readers, {}, star(LEAD, readers))
    groups = -(-reviewers // MAX_GROUP)
    teams = {f"S{n + 1}": readers[n::groups] for n in range(groups)}
    return ReviewPlan(name, readers, teams, hierarchy({LEAD: tuple(teams), **teams}))
