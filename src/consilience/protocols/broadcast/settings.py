"""What agents are asked to return, decisions first and one free text last; the settings, and what follows from them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from consilience.domain.detail import capped
from consilience.domain.messages import FreeText, Synthesis, is_empty_remark, is_no_finding
from consilience.domain.outcome import Estimate
from consilience.domain.positions import ConfidenceLevel
from consilience.protocols._common.answers import BallotPattern
from consilience.protocols._common.conclusion import AgainstReply, Conclusion, with_position
from consilience.protocols._common.trees import (
    AnonymousPeers,
    LoopInstructions,
    Perspectives,
    StrangeLoops,
    TreeProtocol,
    require_strange_loop,
)

MAX_FLAGS = 2
"""Flags of one reply. A grammar enforces it; without one, surplus flags are dropped and counted."""

Level = Literal["useless", "weak", "fair", "good", "excellent"]

LEVELS: Mapping[Level, float] = {"useless": 0.0, "weak": 0.3, "fair": 0.5, "good": 0.8, "excellent": 0.95}
"""Levels have names, since small models write every number as 5 or 10. The values are this project's own choice."""

MAX_POINTS = 10

TextLabel = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "reply"})]
"""The label of a text by another agent. Labels of goals, flags and disagreements are not allowed here."""

DisagreementLabel = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "disagreement"})]
"""The label of a disagreement (`A.1`)."""

Tag = Literal["unexpected_finding", "contradiction_detected", "resource_request", "goal_mismatch", "needs_reframing"]
TagSeverity = Literal["info", "warning", "critical"]

SEVERITY: Mapping[Tag, TagSeverity] = {
    "unexpected_finding": "info",
    "contradiction_detected": "warning",
    "resource_request": "warning",
    "goal_mismatch": "critical",
    "needs_reframing": "critical",
}
"""The seed's five; which of them send a parent back is a setting."""

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%|/\s*100|/\s*10|of\s+10|/\s*1)?\s*", re.IGNORECASE)


def read_rating(value: object) -> float | None:
    """Return a rating in [0, 1], or None if it cannot be read. A number is points of ten or a fraction of one.

    A whole 1 is one point of ten, and 1.0 is all of one. If a number may mean two things, the lower counts, so that no misreading
    satisfies a parent.
    """
    if isinstance(value, str) and (level := value.strip(" .").lower()) in LEVELS:
        return LEVELS[cast(Level, level)]
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value)):
        number, unit = float(match[1]), (match[2] or "").replace(" ", "").lower()
        scale = {"%": 100.0, "/100": 100.0, "/10": 10.0, "of10": 10.0, "/1": 1.0}.get(unit)
        if scale is not None:
            return number / scale if number <= scale else None
        value = number if "." in match[1] else int(number)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if 0 < value < 1 or (isinstance(value, float) and value == 1):
        return float(value)
    return value / MAX_POINTS if 0 <= value <= MAX_POINTS else None


Rating = Annotated[
    float | None,
    BeforeValidator(read_rating),
    WithJsonSchema({"type": "string", "enum": list(LEVELS)}),
]


def _to_tag(tag: object) -> object:
    """Return `Goal mismatch` as `goal_mismatch`."""
    return re.sub(r"[\s-]+", "_", tag.strip().lower()) if isinstance(tag, str) else tag


class FlagReply(BaseModel):
    """Something the parents must know, and why."""

    tag: Annotated[Tag, BeforeValidator(_to_tag)]
    text: str = ""


Flags = Annotated[list[FlagReply], Field(json_schema_extra={"maxItems": MAX_FLAGS})]


class Goal(BaseModel):
    """A broadcast."""

    text: FreeText


class RatedReply(BaseModel):
    """The rating of a text by its author. A reply without one is malformed; an unreadable one is None."""

    rating: Rating
    flags: Flags = Field(default_factory=list)

    @property
    def stated_flags(self) -> list[FlagReply]:
        """The flags without those whose text says that there is nothing."""
        return [flag for flag in self.flags if not flag.text.strip() or not is_no_finding(flag.text)]


class RatedBallotReply(RatedReply):
    """A rated reply with a sealed ballot."""

    position: str = ""
    confidence: ConfidenceLevel = "unsure"
    reason: str = ""


class Reflecting(BaseModel):
    """Criticism of a text by its author."""

    missing: str = ""
    """What is wrong or missing. Without a field of its own, small models write it into the revised text."""

    @property
    def has_missing(self) -> bool:
        return not is_no_finding(self.missing)


class Reflection(RatedReply, Reflecting):
    """`text` is the revised text; empty if the text stands."""

    text: str = ""


class SealedReflection(RatedBallotReply, Reflecting):
    """A reflection with a sealed ballot."""

    text: str = ""


class RootReflection(Conclusion, RatedReply, Reflecting):
    """The root's reflection. Its conclusion is filled with a revised text only."""

    text: str = ""


def is_revision(text: str) -> bool:
    """Return whether a reflection's `text` is a revised text. Small models write "None" for an empty one, or copy a quotation of
    their prompt with its fence. "No" may be an answer."""
    return (
        bool(text.strip())
        and not text.lstrip().startswith("<quote ")
        and (not is_empty_remark(text) or text.strip(" .!-\n").casefold() == "no")
    )


class DisagreementReply(BaseModel):
    """A point in which the author's text departs from a peer's on purpose, and why."""

    to: TextLabel
    text: str


Disagreements = Annotated[list[DisagreementReply], Field(json_schema_extra=capped("objections"))]


class Coordination(RatedReply):
    """A text revised after reading the siblings' texts. Prose alone is a text without a readable rating."""

    rating: Rating = None
    disagreements: Disagreements = Field(default_factory=list)
    text: FreeText


class SealedCoordination(RatedBallotReply):
    """A coordination with a sealed ballot; `cause` is the text that changed the position."""

    rating: Rating = None
    cause: TextLabel | None = None
    disagreements: Disagreements = Field(default_factory=list)
    text: FreeText


class Evaluation(BaseModel):
    """A parent's judgement of all its children's texts together. `satisfied=False` sends back; True alone decides nothing."""

    satisfied: bool | None = None
    text: FreeText


class DecidesDisagreements(BaseModel):
    """A synthesis that decides about disagreements among its texts: it names those it follows here, those it decides against in
    `against`. Without disagreements the field is not asked for."""

    followed: list[DisagreementLabel] = Field(default_factory=list)


class CoordinatorSynthesis(DecidesDisagreements):
    """A synthesis that goes up."""

    against: list[AgainstReply] = Field(default_factory=list)
    text: FreeText


class RootSynthesis(Conclusion, DecidesDisagreements):
    """A synthesis that may be the answer."""


PERSPECTIVES: Mapping[str, str] = {
    "use": "You take the place of the person who has to use the result: what do they need to do with it, and what first?",
    "risks": "You look for what goes wrong: mistakes, exceptions, and cases that have been overlooked.",
    "brevity": "You look for what can be left out, so that what matters stands out.",
    "evidence": "You ask what is known, what is only assumed, and what would have to be found out.",
}
"""They are not parts of the task: every text is a complete result."""

MAX_QUOTED_FLAGS = 12
"""In one prompt, critical ones first, so that the root of a large tree can still read the texts."""


class BroadcastSettings(TreeProtocol):
    """Settings of `broadcast`."""

    roles: ClassVar[tuple[str, str, str]] = ("integrator", "coordinator", "contributor")

    name: ClassVar[str] = "broadcast"
    summary: ClassVar[str] = (
        "contributors each work on the whole goal, rate their results and flag doubts, which can send the goal back"
    )

    coordination_rounds: Annotated[
        int, Field(ge=0, le=10, description="coordination rounds among siblings; 0 for none")
    ] = 1
    max_iterations: Annotated[int, Field(ge=1, le=20, description="max broadcasts of a parent per execution")] = 2
    satisfaction_threshold: Annotated[
        float, Field(ge=0, le=1, description="mean rating of the children that satisfies a parent")
    ] = 0.7
    critical_flags: Annotated[
        tuple[Tag, ...],
        Field(description=f"flags that send a parent back to broadcast again; of {', '.join(SEVERITY)}"),
    ] = ("goal_mismatch", "needs_reframing")
    skip_when_satisfied: Annotated[
        bool, Field(description="skip coordination if all siblings rate themselves above 0.9 without a flag")
    ] = True
    strange_loops: StrangeLoops = 0
    domain_instructions: LoopInstructions = ""
    answer_pattern: BallotPattern = ""
    perspectives: Perspectives = tuple(PERSPECTIVES)
    anonymous_peers: AnonymousPeers = True

    @model_validator(mode="after")
    def _possible(self) -> Self:
        require_strange_loop(self.strange_loops, self.domain_instructions)
        return self

    @property
    def ballots(self) -> bool:
        """Whether leaves cast ballots, which are fields of their other replies."""
        return bool(self.answer_pattern)

    @property
    def max_quoted_replies(self) -> int:
        """The children's texts with disagreements (one reply) or what they found missing; flags, goal, evaluation, own text and
        conclusion."""
        return self.children + MAX_QUOTED_FLAGS + 4

    @property
    def points_of_view(self) -> tuple[str, ...]:
        return self.perspectives

    def calls(self, iterations: int, rounds: int, level: int = 1) -> int:
        """Return the calls of one execution of a node and of all below it, for these numbers of iterations of every parent and of
        coordination rounds in each (protocols §2)."""
        if level == self.depth:
            return 2
        sub = self.calls(iterations, rounds, level + 1)
        talk = rounds * self.children if self.children > 1 else 0
        one_family = iterations * (1 + self.children * sub + talk + 1) + 2
        return one_family + self.strange_loops if level == 1 else one_family

    def need(self, level: int) -> int:
        """Return the max calls of one execution of a node on that level."""
        return self.calls(self.max_iterations, self.coordination_rounds, level)

    def estimate(self) -> Estimate:
        fewest = 0 if self.skip_when_satisfied else self.coordination_rounds
        return Estimate(min=self.calls(1, fewest), max=self.need(1))

    @property
    def reply_types(self) -> tuple[type[BaseModel], ...]:
        """The types of the replies of an iteration."""
        sealed = [with_position(reply, self.answer_pattern) for reply in (SealedReflection, SealedCoordination)]
        return (Goal, Synthesis, Reflection, Coordination, Evaluation, CoordinatorSynthesis, *sealed)
