"""Why a question is no validated crux, and what the lock of one lacks: data, and the words for it, which are only here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from consilience.domain.report import Frozen
from consilience.protocols.debate.moves import SIDES, Grade, Side

FlawKind = Literal[
    "untried",
    "unlocked",
    "one_sided",
    "unclear",
    "criteria",
    "vague_criterion",
    "measurement",
    "vague_falsifier",
    "hanging",
    "hanging_tested",
    "challenged",
]
Criterion = Literal["commitments", "sides", "steelmen", "falsifiers"]

MIN_CRITERIA = MIN_FLIPS = 2
_FLAWS: Mapping[FlawKind, tuple[str, str]] = {
    "untried": ("not locked", "no lock was tried on it"),
    "unlocked": ("not locked", "its lock failed at attempt {n}"),
    "one_sided": (
        "no firm agent on each side",
        "at the end of its thread no agent held one of the two sides firmly",
    ),
    "unclear": ("needs clarification: {text}", "the dispute needs clarification: {text}"),
    "criteria": (
        f"resolution criteria: {{n}}, at least {MIN_CRITERIA} are needed",
        "two findings that would settle it are needed, {n} {were} named",
    ),
    "vague_criterion": ('vague criterion: "{text}"', 'a finding that would settle it is vague: "{text}"'),
    "measurement": ("a question of measurement", "it asks for a measurement"),
    "vague_falsifier": ('vague falsifier: "{text}"', 'what would change a mind is vague: "{text}"'),
    "hanging": (
        f"top claims that hang on it: {{n}}, at least {MIN_FLIPS} are needed",
        "by their own word the top claims of {n} of its agents depend on it, two are needed",
    ),
    "hanging_tested": (
        f"top claims that hang on it: {{n}} when tested, at least {MIN_FLIPS} are needed",
        "{n} of its agents {change} position over it when tested, two are needed",
    ),
    "challenged": ("challenged: {text}", "a participant objects that it misrepresents the dispute: {text}"),
}
"""As `debate.json` and the crystallizer's prompt name a flaw, and as a clause of the report."""
_PLAIN: Mapping[str, str] = {**SIDES, "INCOMPLETE": "incomplete", "WRONG": "wrong", "PENDING": "not graded"}


class Flaw(Frozen):
    """Why a question is no validated crux."""

    kind: FlawKind
    n: int = 0
    """What was counted: attempts, findings or top claims."""
    text: str = ""
    """What is vague, unclear or objected."""

    @property
    def name(self) -> str:
        return _FLAWS[self.kind][0].format(n=self.n, text=self.text)

    @property
    def words(self) -> str:
        were, change = ("was", "changes") if self.n == 1 else ("were", "change")
        return _FLAWS[self.kind][1].format(n=self.n, text=self.text, were=were, change=change)


class Missing(Frozen):
    """A criterion of the lock that does not hold."""

    criterion: Criterion
    n: int = 0
    """Commitments, where there are too few."""
    sides: tuple[Side, ...] = ()
    """To which nobody commits."""
    agent: str = ""
    """Who declares no falsifier, or whose steelman of `of` is not accepted."""
    of: str = ""
    grade: Grade | None = None
    """Of that steelman; None if it was not given."""

    def words(self, names: Mapping[str, str], plain: Mapping[str, str] = _PLAIN) -> str:
        """Return it for readers, who know agents by `names`, else by id; with `plain` empty as prompts name sides and grades."""
        match self.criterion:
            case "commitments":
                return f"commitments: {self.n}, at least 2 are needed"
            case "sides":
                return f"nobody commits to {' and '.join(plain.get(side, side) for side in self.sides)}"
            case "steelmen":
                grade = plain.get(self.grade, self.grade) if self.grade else "not given"
                return f"steelman of {names.get(self.of, self.of)} by {names.get(self.agent, self.agent)}: {grade}"
            case "falsifiers":
                return f"{names.get(self.agent, self.agent)} declares no falsifier"
