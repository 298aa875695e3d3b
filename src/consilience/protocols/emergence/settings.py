"""Settings of `emergence`, and what follows from them: the tree, the seats, the number of calls."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from consilience.domain.outcome import Estimate
from consilience.engine.conditions import StopCondition, TextStable
from consilience.protocols._common.answers import check_pattern
from consilience.protocols._common.conditions import Judged, PositionsSettled
from consilience.protocols._common.trees import MOST_AGENTS, ROOT, TreeProtocol

PERSPECTIVES: Mapping[str, str] = {
    "analytical": "You take the question apart and check whether the reasoning holds.",
    "creative": "You look for options that nobody has named yet.",
    "critical": "You doubt the obvious answer and look for what goes wrong and who pays for it.",
    "practical": "You ask what it takes to do this on Monday morning.",
    "theoretical": "You ask which general principle decides the case.",
    "empirical": "You ask what has been measured and what has not.",
    "ethical": "You ask who is affected and whether it is fair to them.",
    "systemic": "You look at side effects, feedback and the long run.",
}
"""The seed's eight in its order, each with one sentence of ours that says what it means."""

KINDS = ("declared", "jaccard", "embedding", "positions", "judge")


class Settings(TreeProtocol):
    """What can be set; see the descriptions."""

    roles: ClassVar[tuple[str, str, str]] = ("integrator", "coordinator", "specialist")

    name: ClassVar[str] = "emergence"
    summary: ClassVar[str] = "specialists think apart and talk; parents observe what arises; rounds until it is stable"
    must_be_read: ClassVar[frozenset[str]] = frozenset({"nudge"})

    max_rounds: Annotated[int, Field(ge=1, le=100, description="max rounds")] = 5
    threshold: Annotated[
        float, Field(ge=0, le=1, description="similarity at which jaccard, embedding or judge stops the run")
    ] = 0.85
    similarity: Annotated[
        str,
        Field(
            description="stop test: auto, declared, positions, jaccard, embedding or judge; several joined by & or |"
        ),
    ] = "auto"
    signals: Annotated[bool, Field(description="parents nudge their children between rounds")] = True
    strange_loops: Annotated[int, Field(ge=0, le=10, description="self-reviews of the root at the end")] = 0
    domain_instructions: Annotated[
        str, Field(max_length=20_000, description="instructions for one last review of the answer")
    ] = ""
    perspectives: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2_000)], ...],
        Field(min_length=1, max_length=MOST_AGENTS, description="perspectives assigned to the leaf agents in order"),
    ] = tuple(PERSPECTIVES)
    leaf_reask: Annotated[bool, Field(description="ask every leaf in every round, nudge or not")] = True
    answer_pattern: Annotated[
        str, Field(max_length=500, description="regular expression of an extractable answer; leaves then cast ballots")
    ] = ""
    anonymous_peers: Annotated[bool, Field(description="peers appear under neutral labels")] = True
    fallback: Annotated[Literal["none", "vote"], Field(description="how to decide if ballots stay split")] = "none"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        kinds = re.split(r"\s*[&|]\s*", self.similarity.strip())
        if kinds.count("judge") > 1:
            raise ValueError("similarity: one 'judge' is enough; asked twice it would be paid for twice")
        for kind in kinds:
            if kind not in ("auto", *KINDS):
                raise ValueError(f"similarity: {kind!r} is none of auto, {', '.join(KINDS)}")
            if kind == "positions" and not self.answer_pattern:
                raise ValueError("similarity 'positions' compares ballots, which need an answer_pattern")
        if self.fallback == "vote" and not self.answer_pattern:
            raise ValueError("fallback 'vote' counts ballots, which need an answer_pattern")
        check_pattern(self.answer_pattern)
        return self

    @property
    def ballots(self) -> bool:
        """Positions exist, so leaves cast ballots."""
        return bool(self.answer_pattern)

    @property
    def kind(self) -> str:
        """The similarity with `auto` decided."""
        return self.similarity.replace("auto", "positions" if self.ballots else "declared")

    @property
    def needs_encoder(self) -> bool:
        return "embedding" in self.kind

    @property
    def max_quoted_replies(self) -> int:
        """A text of every child, with objections that came in another reply where the children are parents; points and answers
        below these texts, a quarter of their length; own text and nudge, and at a coordinator an earlier text."""
        replies, own = (2, 4) if self.depth > 2 else (1, 2)
        return self.children * replies + math.ceil(self.children / 4) + own

    @property
    def points_of_view(self) -> tuple[str, ...]:
        return self.perspectives

    def condition(self, declared: StopCondition) -> StopCondition:
        """`declared` judges what agents declared in the round. `|` binds weaker than `&`, as in Python."""
        alternatives = [
            _all([self._single(kind.strip(), declared) for kind in part.split("&")]) for part in self.kind.split("|")
        ]
        found = alternatives[0]
        for other in alternatives[1:]:
            found = found | other
        return found

    def _single(self, kind: str, declared: StopCondition) -> StopCondition:
        if kind == "declared":
            return declared
        if kind == "positions":
            return PositionsSettled()
        if kind == "judge":
            return Judged(ROOT, self.threshold)
        return TextStable("embedding" if kind == "embedding" else "jaccard", self.threshold)

    def calls(self, rounds: int) -> int:
        """Calls of a run of that many rounds in which every call is answered and no text reused (protocols §1)."""
        leaves = self.on_levels(self.depth, self.depth)
        internal = self.on_levels(2, self.depth - 1)
        lateral = leaves + internal if self.children > 1 else 0
        nudges = internal + 1 if self.signals else 0
        total = rounds * (leaves + lateral + internal + 1) + (rounds - 1) * nudges
        total += self.strange_loops + bool(self.domain_instructions)
        total += self.kind.count("judge") * (rounds - 1)
        if self.ballots:
            total += leaves * (1 + rounds)
        return total

    def estimate(self) -> Estimate:
        """A text is reused unless a nudge or an objection asks for another, if `leaf_reask` is off."""
        rounds = min(2, self.max_rounds)
        reused = 0 if self.leaf_reask or self.signals else (rounds - 1) * self.on_levels(self.depth, self.depth)
        return Estimate(min=self.calls(rounds) - reused, max=self.calls(self.max_rounds))


def _all(conditions: list[StopCondition]) -> StopCondition:
    found = conditions[0]
    for other in conditions[1:]:
        found = found & other
    return found
