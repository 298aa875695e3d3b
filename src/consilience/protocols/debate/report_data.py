"""The data of a report of `debate`, as its sections and exports read it."""

from __future__ import annotations

from consilience.domain.report import Report
from consilience.protocols.debate.records import (
    Coalition,
    CommonGround,
    Contradiction,
    CruxTest,
    DebateBallot,
    DebateMessage,
    Dependency,
    FlipRecord,
    Framing,
    PlaceboTest,
    Recheck,
    SingleCall,
    SystemMetrics,
    ThreadRecord,
    ToldFact,
    UnopenedQuestion,
)
from consilience.protocols.debate.replies import ClosingSide
from consilience.protocols.debate.scoring import Regime


class DebateData(Report):
    """The header, and what a debate adds to it."""

    protocol: str = "debate"
    framing: Framing | None = None
    """None where the framing failed."""
    letters: dict[str, str] = {}
    """The letter of each debater, by which prompts name it."""
    attention_mode: str = ""
    """`keyword` or `embedding`."""
    ended_by: str = ""
    """`settled`, `stable`, `stalled`, `max_messages`, `max_duration`, or `limit` for a limit of the session."""
    duration: int = 0
    """Virtual milliseconds."""
    messages: tuple[DebateMessage, ...] = ()
    ballots: tuple[DebateBallot, ...] = ()
    """Opening ballots (step 0), then final ones (step 1), with the answers that count."""
    rechecks: tuple[Recheck, ...] = ()
    """Answers of final ballots that were asked again; the final ballots hold what they count as."""
    threads: tuple[ThreadRecord, ...] = ()
    decided: tuple[ClosingSide, ...] = ()
    """The answer's own side on each proposition; empty without an answer."""
    first_step: str = ""
    """What to find out before anything that cannot be undone, by the closing call."""
    regime: Regime = "inconclusive"
    regime_description: str = ""
    irreducible_cruxes: tuple[str, ...] = ()
    """Threads of validated cruxes on which final ballots are split, the highest score first."""
    primary_crux: str | None = None
    """The thread of the validated crux with the highest score, observed where it was tested."""
    primary_crux_reason: str = ""
    coalitions: tuple[Coalition, ...] = ()
    """By final ballots; preliminary where the exchange ended before they were stable."""
    coalition_finding: str = ""
    """Why there is no coalition, or why those found are preliminary; empty for stable ones."""
    common_ground: tuple[CommonGround, ...] = ()
    """Statements that every agent confirmed in its final ballot; none if a ballot is missing."""
    dependencies: tuple[Dependency, ...] = ()
    """Confirmed dependencies between cruxes, by thread."""
    duplicates: tuple[tuple[str, str], ...] = ()
    """Threads whose cruxes ask the same, the earlier first; the later one is left out of roots and irreducible cruxes."""
    contradictions: tuple[Contradiction, ...] = ()
    roots: dict[str, tuple[str, ...]] = {}
    """Cruxes that follow from no other, each with what follows downstream of it, by thread."""
    next_questions: tuple[str, ...] = ()
    """What to debate or find out next, if the debate were to go on."""
    unopened: tuple[UnopenedQuestion, ...] = ()
    """Questions that an agent proposed, another supported, and no thread asked."""
    tests: tuple[CruxTest, ...] = ()
    """Each tested crux with YES stipulated, then with NO."""
    placebo: PlaceboTest | None = None
    """None if no crux was tested."""
    flip_records: dict[str, tuple[FlipRecord, ...]] = {}
    """Declared, observed and placebo flips of every voter, by the thread of each tested crux."""
    told: tuple[ToldFact, ...] = ()
    """Facts told after the end, in order; the final ballots are those cast on the last one."""
    system_metrics: SystemMetrics = SystemMetrics()
    single_call: SingleCall | None = None
    """One structured call on the same documents; None where it was not asked for or failed."""
    added: str = ""
    """What the debate added to the single call, in a sentence that follows from the figures."""
