"""The report of `debate`."""

from __future__ import annotations

from typing import ClassVar

from consilience.domain.report import Report, UnfinishedSession
from consilience.domain.sections import Presentation
from consilience.protocols.debate.records import (
    DebateBallot,
    DebateMessage,
    Framing,
    SystemMetrics,
    ThreadRecord,
)
from consilience.protocols.debate.replies import ClosingSide
from consilience.protocols.debate.scoring import Regime


class DebateReport(Report):
    """The header, and what a debate adds to it."""

    step: ClassVar[str] = "message"
    asides: ClassVar[frozenset[str]] = frozenset({"ballot", "framing", "comparison"})
    asks_for_dissent: ClassVar[bool] = True

    protocol: str = "debate"
    framing: Framing | None = None
    """None where the framing failed."""
    letters: dict[str, str] = {}
    """The letter of each debater, by which prompts name it."""
    attention_mode: str = ""
    """`keyword` or `embedding`."""
    ended_by: str = ""
    """`settled`, `stalled`, `max_messages`, `max_duration`, or `limit` for a limit of the session."""
    duration: int = 0
    """Virtual milliseconds."""
    messages: tuple[DebateMessage, ...] = ()
    ballots: tuple[DebateBallot, ...] = ()
    """Opening ballots (step 0), then final ones (step 1)."""
    threads: tuple[ThreadRecord, ...] = ()
    decided: tuple[ClosingSide, ...] = ()
    """The answer's own side on each proposition; empty without an answer."""
    regime: Regime = "inconclusive"
    regime_description: str = ""
    irreducible_cruxes: tuple[str, ...] = ()
    """Threads of validated cruxes on which final ballots are split, the highest score first."""
    primary_crux: str | None = None
    """The thread of the validated crux with the highest score."""
    primary_crux_reason: str = ""
    system_metrics: SystemMetrics = SystemMetrics()

    def presentation(self) -> Presentation:
        return super().presentation()

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        return cls._presentation()
