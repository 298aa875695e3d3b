"""The report of `debate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from consilience.domain.events import Noted
from consilience.domain.report import Forecast, UnfinishedSession
from consilience.domain.sections import Presentation
from consilience.protocols.debate.export import camel_case, final_json
from consilience.protocols.debate.moves import FIRM, Side
from consilience.protocols.debate.progress import note_line, progress_parts
from consilience.protocols.debate.report_data import DebateData
from consilience.protocols.debate.sections import presentation, state_of


class DebateReport(DebateData):
    """The header, and what a debate adds to it."""

    step: ClassVar[str] = "message"
    asides: ClassVar[frozenset[str]] = frozenset(
        {"ballot", "test", "framing", "comparison", "crystallization", "single"}
    )
    asks_for_dissent: ClassVar[bool] = True
    exports: ClassVar[Mapping[str, str]] = {"debate.json": "debate_json"}

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
