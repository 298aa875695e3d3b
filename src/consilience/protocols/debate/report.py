"""The report of `debate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from consilience.domain.events import Noted
from consilience.domain.report import Forecast, Report, UnfinishedSession
from consilience.domain.sections import Presentation
from consilience.protocols.debate.export import camel_case, final_json
from consilience.protocols.debate.moves import FIRM, Side
from consilience.protocols.debate.progress import note_line, progress_parts
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
    SingleCall,
    SystemMetrics,
    ThreadRecord,
    ToldFact,
)
from consilience.protocols.debate.replies import ClosingSide
from consilience.protocols.debate.scoring import Regime
from consilience.protocols.debate.sections import presentation, state_of


class DebateReport(Report):
    """The header, and what a debate adds to it."""

    step: ClassVar[str] = "message"
    asides: ClassVar[frozenset[str]] = frozenset(
        {"ballot", "test", "framing", "comparison", "crystallization", "single"}
    )
    asks_for_dissent: ClassVar[bool] = True
    exports: ClassVar[Mapping[str, str]] = {"debate.json": "debate_json"}

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
    first_step: str = ""
    """What to find out before anything that cannot be undone, by the closing call."""
    regime: Regime = "inconclusive"
    regime_description: str = ""
    irreducible_cruxes: tuple[str, ...] = ()
    """Threads of validated cruxes on which final ballots are split, the highest score first."""
    primary_crux: str | None = None
    """The thread of the validated crux with the highest score."""
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

    def presentation(self) -> Presentation:
        return presentation(self)

    def debate_json(self) -> object:
        """Return the seed's final JSON, in its camelCase."""
        return camel_case(final_json(self))

    def final_state(self) -> dict[str, object]:
        """Return the seed's final JSON in snake_case."""
        return final_json(self)

    def forecasts(self) -> tuple[Forecast, ...]:
        """Return the propositions (`p1` …) with the falsifiers of opening ballots, then the cruxes (`crux-1` …), as numbered in the
        report."""
        state = state_of(self)
        falsifiers = tuple((b.agent, b.falsifier.finding, b.falsifier.deadline) for b in self.ballots if b.falsifier)
        found = [
            Forecast(
                id=f"p{n}",
                question=text,
                sides=_firm({b.agent: (b.positions[n - 1], b.confidence) for b in state.final.values()}),
                falsifiers=falsifiers if n == 1 else (),
            )
            for n, text in enumerate(state.propositions, 1)
        ]
        for n, crux in enumerate(state.cruxes, 1):
            ballots = [ballot for ballot in state.final.values() if crux.thread in ballot.questions]
            held = {agent: position.falsifier for agent, position in crux.positions.items() if position.falsifier}
            found.append(
                Forecast(
                    id=f"crux-{n}",
                    question=crux.question,
                    sides=_firm({b.agent: (b.questions[crux.thread], b.confidence) for b in ballots}),
                    falsifiers=tuple((agent, f.finding, f.deadline) for agent, f in held.items()),
                )
            )
        return tuple(found)

    @classmethod
    def progress(cls, progress: UnfinishedSession) -> Presentation:
        return cls._presentation().model_copy(update=progress_parts(progress))

    @classmethod
    def note_line(cls, note: Noted) -> str:
        return note_line(note)


def _firm(sides: Mapping[str, tuple[Side, float]]) -> dict[str, tuple[bool, float]]:
    return {agent: (side == "YES", sure) for agent, (side, sure) in sides.items() if side in FIRM}
