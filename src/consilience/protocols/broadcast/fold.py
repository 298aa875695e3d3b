"""Flags and iterations of a run, and the state of a session so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from consilience.domain.objections import Objection
from consilience.domain.report import Frozen
from consilience.protocols.broadcast.executions import (
    Disagreed,
    Disagreement,
    FlagRaised,
    GoalBroadcast,
    IterationEnded,
    Rated,
)
from consilience.protocols.broadcast.settings import Tag


class Flag(FlagRaised):
    """A flag that was raised."""

    stands: bool = False
    """At the root, when the run ended."""
    read: bool = False
    """Whether a later call was shown it."""


class Iteration(Frozen):
    """One iteration of a parent."""

    node: str
    path: tuple[int, ...]
    """The iterations of its ancestors and this one."""
    broadcast: str | None = None
    """The goal as broadcast."""
    caused_by: tuple[str, ...] = ()
    """What made it broadcast again: flags, what children found missing, and the evaluation of the iteration before."""
    ratings: dict[str, float | None] = {}
    mean: float | None = None
    coordination_rounds: int = 0
    flags: tuple[str, ...] = ()
    feedback: str | None = None
    """The evaluation."""
    said_satisfied: bool | None = None
    """What the evaluator says. Its yes alone decides nothing."""
    satisfied: bool = False
    """Computed: every rating readable, their `mean` at the threshold, no critical flag, no failed call, and no evaluator's no."""
    unmet: str = ""
    """Why it is not satisfied."""
    running: bool = False
    """In a session without a report: not judged yet."""

    @property
    def verdict(self) -> str:
        if self.running:
            return "running"
        decided = "satisfied" if self.satisfied else "not satisfied"
        contradicted = self.said_satisfied is not None and self.said_satisfied != self.satisfied
        return f"{decided}, the evaluator said otherwise" if contradicted else decided


@dataclass
class NoteFold:
    """The state of a session so far, from its notes."""

    parents: Mapping[str, tuple[str, ...]]
    iterations: dict[tuple[str, tuple[int, ...]], Iteration] = field(default_factory=dict)
    """By parent and path."""
    flags: list[Flag] = field(default_factory=list)
    ratings: dict[str, float | None] = field(default_factory=dict)
    _disagreements: dict[str, tuple[Disagreement, ...]] = field(default_factory=dict)
    """The latest of each agent."""

    @property
    def objections(self) -> tuple[Objection, ...]:
        """The disagreements of siblings. Parents rule on them in their texts, which a finished report reads."""
        return tuple(
            Objection(id=entry.id, agent=entry.agent, to=entry.to, text=entry.text, read=False, fate="unanswered")
            for entries in self._disagreements.values()
            for entry in entries
        )

    def add(self, note: object) -> None:
        match note:
            case GoalBroadcast():
                self._update(note.node, note.path, broadcast=note.text)
            case Rated():
                self.ratings[note.agent] = note.rating
                for parent in self.parents.get(note.agent, ()):
                    ratings = {**self._iteration(parent, note.path).ratings, note.agent: note.rating}
                    self._update(parent, note.path, ratings=ratings)
            case FlagRaised():
                self.flags.append(Flag(**note.model_dump()))
                for parent in self.parents.get(note.node, ()):
                    flags = (*self._iteration(parent, note.path).flags, note.id)
                    self._update(parent, note.path, flags=flags)
            case Disagreed():
                self._disagreements[note.agent] = note.entries
            case IterationEnded():
                self._update(note.node, note.path, **note.model_dump(exclude={"node", "path"}), running=False)

    def flags_of(self, agent: str) -> dict[Tag, bool]:
        """Return the tags that an agent raised, and whether each is critical."""
        return {flag.tag: flag.critical for flag in self.flags if flag.node == agent}

    def _iteration(self, node: str, path: tuple[int, ...]) -> Iteration:
        return self.iterations.get((node, path)) or Iteration(node=node, path=path, running=True)

    def _update(self, node: str, path: tuple[int, ...], **values: object) -> None:
        self.iterations[node, path] = self._iteration(node, path).model_copy(update=values)
