"""The state of a run: its passes, and what they began with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from consilience.domain.messages import Message
from consilience.domain.outcome import Check, StopReason
from consilience.engine.work import Failure, Reply, exhaustion
from consilience.protocols.refinement.judging import Judged
from consilience.protocols.refinement.passes import PassResult
from consilience.protocols.refinement.protected import Draft
from consilience.protocols.refinement.replies import WHOLE, IntegratedReply


@dataclass
class Turn:
    """One pass: its pieces, the parts as one text, what the critic said; None for what was not reached.

    `base` is the index of the pass that it started from, 0 for none. `reached`: its quality is good enough; `silences` are the
    reasons why its `check` is not met all the same. `unchanged`: every part came back as it was.
    """

    index: int
    made: PassResult
    base: int = 0
    whole: Reply[IntegratedReply] | None = None
    judged: Judged | None = None
    check: Check | None = None
    reached: bool = False
    unchanged: bool = False
    silences: tuple[str, ...] = ()
    critiques: dict[str, Message] = field(default_factory=dict)
    """Those handed back for a later pass, by part."""

    @property
    def begun(self) -> bool:
        """Whether the pass produced any text. A pass whose first call hit a limit did not."""
        refused = all(failure.kind.is_limit for failure in self.made.failures)
        return self.whole is not None or any(piece.replied for piece in self.made.all) or not refused

    def rewrote(self, part: str) -> bool:
        """Whether a part became another text in it."""
        return any(piece.role == part and piece.written for piece in self.made.all)

    @property
    def spoke(self) -> frozenset[str]:
        """The authors and specialists who wrote something in it."""
        return frozenset(piece.role for piece in self.made.all if piece.replied)

    @property
    def worth(self) -> tuple[bool, int, int, int]:
        """Orders passes: good enough, then the sum of the marks (-1 without one), then fewer issues. Of equals the earlier is
        better; without any mark the last."""
        total = self.judged.total if self.judged is not None and self.check is not None else None
        issues = sum(map(len, self.judged.issues.values())) if self.judged is not None else 0
        met = self.check is not None and self.check.met
        return (met, -1, 0, self.index) if total is None else (met, total, -issues, -self.index)


@dataclass
class Course:
    """The passes so far, and their start. `given` is the message that quotes the draft, `drafted` its judgement, `critique`
    the message that hands on its issues."""

    draft: Draft
    given: Message | None = None
    drafted: Judged | None = None
    critique: Message | None = None
    distances: dict[str, dict[str, float]] = field(default_factory=dict)
    intent: Reply[str] | None = None
    turns: list[Turn] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def begun(self) -> list[Turn]:
        """The passes that produced something. The last may not have."""
        return [turn for turn in self.turns if turn.begun]

    @property
    def base(self) -> Turn | None:
        """The best pass that was judged, from which the next one starts; the last one while none has a mark."""
        return max((turn for turn in self.turns if turn.judged is not None), key=lambda turn: turn.worth, default=None)

    @property
    def edges(self) -> dict[tuple[str, str], float]:
        """Distances by pair of roles."""
        return {(a, b): d for a, row in self.distances.items() for b, d in row.items()}

    def is_draft_better(self, best: Turn | None) -> bool:
        """Whether the draft is the answer: it has a mark, and no pass has a better one for the whole."""
        if self.drafted is None or WHOLE not in self.drafted.scores:
            return False
        judged = best.judged if best is not None else None
        given = self.drafted.scores[WHOLE].overall
        return judged is None or WHOLE not in judged.scores or judged.scores[WHOLE].overall <= given

    def silences(self) -> Iterator[str]:
        """Who fell silent in the last pass, or gave not every reply: a seat that failed a call and spoke in this pass or the one
        before, all specialists, the coordinator."""
        turn, before = self.turns[-1], self.turns[-2] if len(self.turns) > 1 else None
        spoke = turn.spoke | (before.spoke if before is not None else frozenset())
        failed = [failure.agent for failure in turn.made.failures if failure.agent in spoke]
        if silent := dict.fromkeys(agent for agent in failed if agent not in turn.spoke):
            yield f"silent in pass {turn.index}: {', '.join(silent)}"
        if lacking := dict.fromkeys(agent for agent in failed if agent in turn.spoke):
            yield f"not every reply came in pass {turn.index}: {', '.join(lacking)}"
        asked = [piece for piece in turn.made.served.values() if piece.replied or piece.failures]
        if asked and not any(piece.replied for piece in asked):
            yield f"no specialist replied in pass {turn.index}"
        if self.intent is None and before is None:
            yield "the coordinator gave no intent"
        if turn.whole is None:
            yield "the coordinator put no whole together"

    @property
    def exhausted(self) -> StopReason | None:
        """What ran out, if a limit refused a call."""
        return exhaustion(self.failures)
