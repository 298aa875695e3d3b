"""What follows from declared positions: the crux score, validation, the regime. All of it is arithmetic on typed fields."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from consilience.protocols.debate.moves import Side, dominant_horizon
from consilience.protocols.debate.records import Crux, CruxPosition, CruxScore, Flip
from consilience.protocols.debate.threads import Thread

Regime = Literal["inconclusive", "polarized", "partial", "consensus"]

VAGUE = ("probably", "might", "seems", "feels", "generally")
MEASUREMENT = ("will correlation", "will volatility", "will price")
MIN_CRITERIA = MIN_FLIPS = 2

_VAGUE = re.compile(rf"\b({'|'.join(VAGUE)})\b", re.IGNORECASE)


def crux_score(sides: Mapping[str, Side], flips: Mapping[str, Flip], agents: int) -> CruxScore:
    """The seed's DCG: coverage × polarity × impact. `flips` are agents' own declarations; `agents` counts all debaters."""
    flipping = [flip for flip in flips.values() if flip.would_flip]
    yes, no = (sum(side == firm for side in sides.values()) for firm in ("YES", "NO"))
    coverage = len(flipping) / agents if agents else 0.0
    polarity = 2 * min(yes, no) / (yes + no) if yes + no else 0.0
    impact = sum(flip.confidence for flip in flipping) / len(flipping) if flipping else 0.0
    return CruxScore(coverage=coverage, polarity=polarity, impact=impact, score=coverage * polarity * impact)


def validation_failures(
    question: str, sides: Collection[Side], criteria: Sequence[str], flips: Mapping[str, Flip], locked: bool
) -> tuple[str, ...]:
    """Why a question is no valid crux, by the seed's tests; empty for one that is."""
    failures: list[str] = []
    if not locked:
        failures.append("not locked")
    if not {"YES", "NO"} <= set(sides):
        failures.append("no firm agent on each side")
    if len(criteria) < MIN_CRITERIA:
        failures.append(f"resolution criteria: {len(criteria)}, at least {MIN_CRITERIA} are needed")
    failures += [f'vague criterion: "{criterion}"' for criterion in criteria if _VAGUE.search(criterion)]
    flipping = sum(flip.would_flip for flip in flips.values())
    if flipping < MIN_FLIPS:
        failures.append(f"top claims that hang on it: {flipping}, at least {MIN_FLIPS} are needed")
    if any(phrase in question.casefold() for phrase in MEASUREMENT):
        failures.append("a question of measurement")
    return tuple(failures)


def crux_of(thread: Thread, agents: int) -> Crux:
    """The crux of a thread with a question, from what its agents declared."""
    flips = thread.flips or {
        agent: Flip(
            agent=agent,
            side=c.side,
            would_flip=c.would_flip,
            confidence=c.flip_confidence,
            why=c.why,
            message=c.message,
        )
        for agent, c in thread.commitments.items()
    }
    sides = {agent: flips[agent].side if agent in flips else c.side for agent, c in thread.commitments.items()}
    criteria = tuple(dict.fromkeys(falsifier.words() for _, falsifier in thread.falsifiers()))
    question = thread.question or thread.topic
    failures = validation_failures(question, list(sides.values()), criteria, flips, thread.locked_at is not None)
    return Crux(
        thread=thread.id,
        question=question,
        positions={
            agent: CruxPosition(
                side=sides[agent],
                statement=c.statement,
                confidence=c.confidence,
                horizon=c.horizon,
                falsifier=c.falsifier,
                concessions=tuple(
                    concession.proposition for concession in thread.concessions if concession.agent == agent
                ),
            )
            for agent, c in thread.commitments.items()
        },
        resolution_criteria=criteria,
        flips=flips,
        evidence=tuple(thread.evidence),
        supporting_messages=tuple(dict.fromkeys(c.message for c in thread.commitments.values() if c.message)),
        dominant_horizon=dominant_horizon(thread.horizons()),
        score=crux_score(sides, flips, agents),
        locked=thread.locked_at is not None,
        validated=not failures,
        validation_failures=failures,
    )


def regime_of(questions: Mapping[str, Sequence[Side]], validated: Collection[str]) -> Regime:
    """The regime from final ballots: `questions` holds the side of each agent on each question by its id, `validated` the ids of
    validated cruxes. The first that applies; split ballots are never consensus."""
    firm = {id: [side for side in sides if side in ("YES", "NO")] for id, sides in questions.items()}
    firm = {id: sides for id, sides in firm.items() if len(sides) >= 2}
    if not firm:
        return "inconclusive"
    split = {id for id, sides in firm.items() if len(set(sides)) == 2}
    if not split:
        return "consensus"
    if len(split) == len(firm) and split & set(validated):
        return "polarized"
    return "partial"
