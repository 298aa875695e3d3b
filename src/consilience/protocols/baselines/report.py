"""Reports of the baselines."""

from __future__ import annotations

from typing import Literal

from consilience.domain.report import Frozen, Report


class Weighed(Frozen):
    """What one model says it weighed: its own account, which nobody else looked at."""

    options: tuple[str, ...] = ()
    cruxes: tuple[str, ...] = ()
    would_change: tuple[str, ...] = ()
    against: str = ""


class SoloReport(Report):
    """`position` is the extracted answer where an `answer_pattern` was set; `weighed` is there for a structured call."""

    protocol: Literal["solo"] = "solo"
    position: str | None = None
    weighed: Weighed | None = None


class Vote(Frozen):
    """One answer of the vote. `similarity` is its mean likeness (Jaccard) to the others, None where there is no other."""

    agent: str
    text: str
    position: str | None = None
    similarity: float | None = None


class VoteReport(Report):
    """`tally` counts the extracted answers, most first. `decided_by` says whether the majority of them chose the answer or,
    where none could be extracted, its likeness to all others (the medoid). With a `tie` the medoid chose among the tied."""

    protocol: Literal["vote"] = "vote"
    votes: tuple[Vote, ...] = ()
    tally: dict[str, int] = {}
    position: str | None = None
    decided_by: Literal["majority", "medoid"] | None = None
    tie: bool = False
