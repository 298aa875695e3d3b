"""Settings of `broadcast`, and what follows from them: the tree, the seats, the number of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from consilience.domain.outcome import Estimate
from consilience.protocols._common.answers import check_pattern
from consilience.protocols._common.trees import (
    AnonymousPeers,
    BallotPattern,
    LoopInstructions,
    Perspectives,
    StrangeLoops,
    TreeProtocol,
    require_strange_loop,
)
from consilience.protocols.broadcast.replies import SEVERITY, Tag

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
        check_pattern(self.answer_pattern)
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
        once = iterations * (1 + self.children * sub + talk + 1) + 2
        return once + self.strange_loops if level == 1 else once

    def need(self, level: int) -> int:
        """Return the max calls of one execution of a node on that level."""
        return self.calls(self.max_iterations, self.coordination_rounds, level)

    def estimate(self) -> Estimate:
        fewest = 0 if self.skip_when_satisfied else self.coordination_rounds
        return Estimate(min=self.calls(1, fewest), max=self.need(1))
