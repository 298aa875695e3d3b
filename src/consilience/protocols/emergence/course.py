"""What a run has come to so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from consilience.domain.outcome import Check, StopReason
from consilience.domain.positions import Ballot, last_of
from consilience.domain.report import StrangeLoop
from consilience.engine.work import Failure, Reply, exhaustion
from consilience.protocols.emergence.objections import ObjectionBook
from consilience.protocols.emergence.replies import RootRevision
from consilience.protocols.emergence.turns import Turn


@dataclass
class Course:
    """What a run has come to so far, round by round; `nudges` of a round are those it began with.

    `silences` are the reasons for which no test can be met in the last round.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    """The addresses of agents in prompts."""
    rounds: list[dict[str, Turn]] = field(default_factory=list)
    nudges: list[dict[str, Reply[str]]] = field(default_factory=list)
    checks: list[Check | None] = field(default_factory=list)
    ballots: list[dict[str, Ballot]] = field(default_factory=list)
    texts: list[Reply[Any]] = field(default_factory=list)
    reviews: list[Reply[RootRevision]] = field(default_factory=list)
    book: ObjectionBook = field(default_factory=ObjectionBook)
    loops: list[StrangeLoop] = field(default_factory=list)
    silences: tuple[str, ...] = ()
    failures: list[Failure] = field(default_factory=list)
    closing: Reply[Any] | None = None

    @property
    def held(self) -> dict[str, Ballot]:
        """What each leaf held last, by its own ballot."""
        return last_of(ballot for cast in self.ballots for ballot in cast.values())

    @property
    def exhausted(self) -> StopReason | None:
        """What ran out, if a limit refused anything."""
        return exhaustion(self.failures)
