"""What a run has come to so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from consilience.domain.messages import Message
from consilience.domain.outcome import Check, StopReason
from consilience.engine.work import Failure, Reply, exhaustion
from consilience.protocols.refinement.judging import Judged
from consilience.protocols.refinement.passes import Yield
from consilience.protocols.refinement.protected import Draft
from consilience.protocols.refinement.replies import Whole


@dataclass
class Turn:
    """One pass: what was made, the parts as one text, what the critic said; None for what it did not come to. `requests` are
    the critiques handed back for the next pass, by part."""

    index: int
    made: Yield
    whole: Reply[Whole] | None = None
    judged: Judged | None = None
    check: Check | None = None
    requests: Mapping[str, Message] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        """Whether it came to anything at all: one that a limit refused from its first call on is none."""
        refused = all(failure.kind.is_limit for failure in self.made.failures)
        return self.whole is not None or any(piece.written for piece in self.made.all) or not refused

    @property
    def rank(self) -> tuple[float, int]:
        """Passes in order of worth: quality, then fewer issues. A pass without a quality is worth less than any with one."""
        quality = self.check.score if self.check is not None else None
        issues = sum(map(len, self.judged.issues.values())) if self.judged is not None else 0
        return (-1.0 if quality is None else quality, -issues)


@dataclass
class Course:
    """The passes so far, and what they began with."""

    draft: Draft
    distances: dict[str, dict[str, float]] = field(default_factory=dict)
    intent: Reply[str] | None = None
    turns: list[Turn] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def begun(self) -> list[Turn]:
        """The passes that came to anything. The last may not have; nothing is made of it."""
        return [turn for turn in self.turns if turn.begun]

    @property
    def edges(self) -> dict[tuple[str, str], float]:
        """Distances by pair of roles."""
        return {(a, b): d for a, row in self.distances.items() for b, d in row.items()}

    @property
    def whole(self) -> Reply[Whole] | None:
        """The latest whole text."""
        return next((turn.whole for turn in reversed(self.turns) if turn.whole is not None), None)

    @property
    def exhausted(self) -> StopReason | None:
        """What ran out, if a limit refused anything."""
        return exhaustion(self.failures)
