"""Strategies of a review, as data: who reviews which parts, who judges whose findings, and how often they iterate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from consilience.coordination.convergence import REVIEW_TYPES, ReviewerRole, StrategyName
from consilience.domain.topology import Topology, hierarchy, independent, star

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

Effort = Literal["quick", "normal", "thorough"]
"""`quick`: one reviewer, and a second where it found something; nobody judges. `normal`: the strategy of the type of review.
`thorough`: a reviewer of every part for each duty, who judge each other's findings."""

CODE_DUTIES: Mapping[str, str] = {
    "contracts": "Follow what others rely on: signatures, names, types, promises of docstrings and interfaces, and every caller "
    "that would have to know.",
    "data": "Follow the values: wrong results, bounds, types, units, formats, states that should not occur; and errors that are "
    "swallowed, misreported or not cleaned up.",
    "concurrency": "Look for what happens twice, at once or in another order: races, retries, partial writes; and for what is "
    "leaked, grows or blocks: files, memory, time.",
    "security": "Look for what a hostile or careless user can do: injection, leaked secrets, paths, permissions, what is "
    "trusted without a check.",
    "tests": "Compare what is said with what is done: tests, documents, examples and messages against the code; tests that would "
    "pass without it, and behaviour that no test would notice the loss of.",
}
TEXT_DUTIES: Mapping[str, str] = {
    "facts": "Check the facts: figures, names, commands and examples, against each other and against the code if it is shown.",
    "use": "Follow it as its reader who does what it says: steps that are missing, in the wrong order, or cannot be done.",
    "contradictions": "Look for contradictions: between sections, between text and table, between a promise and its limits.",
    "gaps": "Look for what it leaves out that its reader will run into: conditions, errors, limits, security.",
}
DESIGN_DUTIES: Mapping[str, str] = {
    "dependencies": "Follow the dependencies: what knows what, what has to change together, where a boundary is crossed.",
    "load": "Look for what happens under load, failure and growth: single points of failure, queues, retries, data that diverges.",
    "trust": "Look for trust and data: who may do what, where secrets and personal data go, what is validated where.",
    "operation": "Ask how it is built, tested, operated and changed: what cannot be verified, migrated or undone.",
}
DUTIES: Mapping[ReviewType, Mapping[str, str]] = {
    "code": CODE_DUTIES,
    "skill": TEXT_DUTIES,
    "documentation": TEXT_DUTIES,
    "parallel_analysis": CODE_DUTIES,
    "architecture": DESIGN_DUTIES,
}
"""What reviewers of the same part look for, by name, so that they do not all look for the same."""


@dataclass(frozen=True)
class ReviewPlan:
    """Who does what in a review."""

    name: StrategyName
    reviewers: tuple[str, ...]
    judges: Mapping[str, tuple[str, ...]]
    """The authors whose findings an agent judges, by agent."""
    topology: Topology
    is_iterative: bool = False
    """Whether every reviewer reads every part, and may be asked again."""
    spares_readers: bool = False
    """Whether the first reviewer decides of each part whether the others read it, who are therefore asked as it is."""

    def parts_of(self, agent: str, parts: int) -> tuple[int, ...]:
        """Return the parts, from 1, that an agent reviews: all of them if it iterates, else its share."""
        if self.is_iterative:
            return tuple(range(1, parts + 1))
        n = self.reviewers.index(agent)
        return tuple(range(n + 1, parts + 1, len(self.reviewers))) or (n % parts + 1,)

    @property
    def has_lead(self) -> bool:
        """Whether a lead writes the review."""
        return LEAD in self.topology.agents

    def side(self, agent: str) -> str:
        """Return whether an agent is asked as red or as blue; "" if it is neither, or if both are asked alike."""
        return agent if agent in ROLES and not self.spares_readers else ""

    def lens(self, agent: str, parts: int, review_type: ReviewType) -> str:
        """Return what an agent looks for in particular; "" for all that is wrong. Fewer readers than duties share all of them."""
        duties = DUTIES[review_type]
        if self.is_iterative:
            return duties.get(agent, "")
        n = self.reviewers.index(agent)
        readers = len(self.readers_of(n % parts + 1, parts))
        if len(self.reviewers) <= parts or readers == 1:
            return ""
        return " ".join(list(duties.values())[n // parts % len(duties) :: readers])

    def question(self, agent: str, parts: int, review_type: ReviewType) -> str:
        """Return what an agent is asked to look for in particular: red and blue by their roles, others by duty."""
        return ROLES[agent].focus if self.side(agent) else self.lens(agent, parts, review_type)

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


def make_plan(
    review_type: ReviewType,
    strategy: StrategyName | Literal["auto"],
    effort: Effort,
    duties: Sequence[str],
    reviewers: int,
) -> ReviewPlan:
    """Return who does what. This is the one place where an effort decides.

    The reviewers are red and blue, or one for each duty, whatever `reviewers` says, if they read every part; each judges the
    findings of the one before it. With the effort `quick` nobody judges, and there is no lead.
    """
    if effort == "quick":
        pair = (RED, BLUE)
        return ReviewPlan("adversarial_review", pair, {}, independent(pair), is_iterative=True, spares_readers=True)
    name = REVIEW_TYPES[review_type] if strategy == "auto" else strategy
    if effort == "thorough":
        duties = duties or tuple(DUTIES[review_type])
    if duties:
        name = "adversarial_review"
    if name == "adversarial_review":
        sides = tuple(duties) or (RED, BLUE)
        judges = {side: (sides[n - 1],) for n, side in enumerate(sides)}
        topology = star(LEAD, sides).model_copy(update={"circles": (sides,)})
        return ReviewPlan(name, sides, judges, topology, is_iterative=True)
    readers = tuple(f"R{n}" for n in range(1, reviewers + 1))
    if name == "parallel_decomposition":
        return ReviewPlan(name, readers, {}, star(LEAD, readers))
    groups = -(-reviewers // MAX_GROUP)
    teams = {f"S{n + 1}": readers[n::groups] for n in range(groups)}
    return ReviewPlan(name, readers, teams, hierarchy({LEAD: tuple(teams), **teams}))
