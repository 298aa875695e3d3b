"""What follows from declared positions: crux score, validation, regime, and the graph of cruxes. All of it is arithmetic on
typed fields."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from consilience.protocols.debate.moves import FIRM, CruxKind, Side, dominant_horizon
from consilience.protocols.debate.records import (
    Contradiction,
    Crux,
    CruxChallenge,
    CruxPosition,
    CruxScore,
    Dependency,
    Extraction,
    Flip,
    FlipRecord,
)
from consilience.protocols.debate.threads import Thread

Regime = Literal["inconclusive", "polarized", "partial", "consensus"]

VAGUE = ("probably", "might", "seems", "feels", "generally")
MEASUREMENT = ("will correlation", "will volatility", "will price")
MIN_CRITERIA = MIN_FLIPS = 2
_HANGING = "top claims that hang on it"

_VAGUE = re.compile(rf"\b({'|'.join(VAGUE)})\b", re.IGNORECASE)


def crux_score(sides: Mapping[str, Side], flips: Mapping[str, Flip], agents: int) -> CruxScore:
    """The seed's DCG: coverage × polarity × impact. `flips` are agents' own declarations; `agents` counts all debaters."""
    flipping = [flip for flip in flips.values() if flip.would_flip]
    yes, no = (sum(side == firm for side in sides.values()) for firm in ("YES", "NO"))
    coverage = len(flipping) / agents if agents else 0.0
    polarity = 2 * min(yes, no) / (yes + no) if yes + no else 0.0
    impact = sum(flip.confidence for flip in flipping) / len(flipping) if flipping else 0.0
    return CruxScore(coverage=coverage, polarity=polarity, impact=impact, score=coverage * polarity * impact)


def written_failures(
    question: str, criteria: Sequence[str], kind: CruxKind | None = None, unclear: str = ""
) -> tuple[str, ...]:
    """Why the words of a crux fail the seed's tests, which other words may pass; empty if they do not."""
    failures: list[str] = []
    if unclear:
        failures.append(f"needs clarification: {unclear}")
    if len(criteria) < MIN_CRITERIA:
        failures.append(f"resolution criteria: {len(criteria)}, at least {MIN_CRITERIA} are needed")
    failures += [f'vague criterion: "{criterion}"' for criterion in criteria if _VAGUE.search(criterion)]
    if kind == "measurement" or any(phrase in question.casefold() for phrase in MEASUREMENT):
        failures.append("a question of measurement")
    return tuple(failures)


def validation_failures(
    question: str,
    sides: Collection[Side],
    criteria: Sequence[str],
    flips: Mapping[str, Flip],
    locked: bool,
    *,
    kind: CruxKind | None = None,
    unclear: str = "",
    thresholds: Sequence[str] = (),
    challenged: Sequence[str] = (),
) -> tuple[str, ...]:
    """Why a question is no valid crux, by the seed's tests; empty for one that is. `thresholds` are those of declared falsifiers,
    `challenged` the objections to its last extraction."""
    failures: list[str] = []
    if not locked:
        failures.append("not locked")
    if not {"YES", "NO"} <= set(sides):
        failures.append("no firm agent on each side")
    failures += written_failures(question, criteria, kind, unclear)
    known = set(criteria)
    failures += [f'vague falsifier: "{t}"' for t in thresholds if _VAGUE.search(t) and t not in known]
    flipping = sum(flip.would_flip for flip in flips.values())
    if flipping < MIN_FLIPS:
        failures.append(f"{_HANGING}: {flipping}, at least {MIN_FLIPS} are needed")
    failures += [f"challenged: {objection}" for objection in challenged]
    return tuple(failures)


def hanging_on(crux: Crux, records: Sequence[FlipRecord]) -> int:
    """Return how many top claims hang on a tested crux: what an agent declared, corrected by what its ballots showed. Those of an
    agent that the placebo moved as well show nothing."""
    declared = {agent: flip.would_flip for agent, flip in crux.flips.items()}
    shown = {r.agent: r.observed for r in records if r.observed is not None and not r.placebo}
    return sum((declared | shown).values())


def revalidated(crux: Crux, hanging: int) -> Crux:
    """Return a crux that was tested, valid or not by the top claims that hang on it in truth."""
    failures = [failure for failure in crux.validation_failures if not failure.startswith(_HANGING)]
    if hanging < MIN_FLIPS:
        failures.append(f"{_HANGING}: {hanging} when tested, at least {MIN_FLIPS} are needed")
    return crux.model_copy(update={"validated": not failures, "validation_failures": tuple(failures)})


def declared_flips(thread: Thread) -> dict[str, Flip]:
    """Whether top claims hang on the question, as agents declared last: after the evidence, else with their commitment."""
    return thread.flips or {
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


def crux_of(
    thread: Thread, agents: int, draft: Extraction | None = None, challenges: tuple[CruxChallenge, ...] = ()
) -> Crux:
    """The crux of a thread with a question: the words of the draft, and what its agents declared. Without a draft the question is
    the locked one, and the falsifiers are what would settle it."""
    flips, sides = declared_flips(thread), thread.declared_sides
    declared = tuple(dict.fromkeys(c.falsifier.words() for c in thread.commitments.values() if c.falsifier))
    criteria = draft.criteria if draft else declared
    supporting = draft.supporting if draft else ()
    question = thread.question or thread.topic
    failures = validation_failures(
        question,
        list(sides.values()),
        criteria,
        flips,
        thread.locked_at is not None,
        kind=draft.kind if draft else None,
        unclear=draft.unclear if draft else "",
        thresholds=declared,
        challenged=[c.text for c in challenges if draft and c.extraction == draft.number],
    )
    return Crux(
        thread=thread.id,
        question=question,
        locked_question=thread.locked_question if thread.locked_question != question else None,
        kind=draft.kind if draft else None,
        confidence=draft.confidence if draft else 1.0,
        extractions=draft.number if draft else 0,
        challenges=challenges,
        positions={agent: _position(thread, agent, side) for agent, side in sides.items()},
        resolution_criteria=criteria,
        flips=flips,
        evidence=tuple(thread.evidence),
        supporting_messages=supporting
        or tuple(dict.fromkeys(c.message for c in thread.commitments.values() if c.message)),
        dominant_horizon=dominant_horizon(thread.horizons()),
        score=crux_score(sides, flips, agents),
        locked=thread.locked_at is not None,
        validated=not failures,
        validation_failures=failures,
    )


def _position(thread: Thread, agent: str, side: Side) -> CruxPosition:
    """What an agent declared; of one that did not commit itself, only its side after the evidence."""
    commitment = thread.commitments.get(agent)
    if commitment is None:
        flip = thread.flips[agent]
        return CruxPosition(side=side, statement=flip.why, confidence=flip.confidence)
    return CruxPosition(
        side=side,
        statement=commitment.statement,
        confidence=commitment.confidence,
        horizon=commitment.horizon,
        falsifier=commitment.falsifier,
        concessions=tuple(concession.proposition for concession in thread.concessions if concession.agent == agent),
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


# --- the graph: what follows from what, contradictory answers, roots, irreducible cruxes


def acyclic(dependencies: Iterable[Dependency]) -> tuple[Dependency, ...]:
    """Return the dependencies as a directed acyclic graph: the most confident first, without those that would close a cycle."""
    kept: list[Dependency] = []
    for dependency in sorted(dependencies, key=lambda d: (-d.confidence, d.source, d.target)):
        if dependency.source not in downstream(dependency.target, kept):
            kept.append(dependency)
    return tuple(kept)


def downstream(thread: str, dependencies: Iterable[Dependency]) -> tuple[str, ...]:
    """Return a crux and everything that follows from it, in order of distance."""
    edges: dict[str, list[str]] = {}
    for dependency in dependencies:
        edges.setdefault(dependency.source, []).append(dependency.target)
    found = [thread]
    for reached in found:
        found += [target for target in sorted(edges.get(reached, ())) if target not in found]
    return tuple(found)


def roots_of(threads: Sequence[str], dependencies: Collection[Dependency]) -> dict[str, tuple[str, ...]]:
    """Return the cruxes that follow from no other, each with what follows downstream of it."""
    graph = acyclic(d for d in dependencies if d.source in threads and d.target in threads)
    targets = {dependency.target for dependency in graph}
    return {thread: downstream(thread, graph)[1:] for thread in threads if thread not in targets}


def irreducible_of(split: Sequence[str], dependencies: Iterable[Dependency]) -> list[str]:
    """Return the cruxes among `split` that no other of them would settle: none of those entails or excludes it."""
    graph = acyclic(d for d in dependencies if d.kind != "SUPPORTS" and d.source in split and d.target in split)
    settled = {dependency.target for dependency in graph}
    return [thread for thread in split if thread not in settled]


def contradictions_of(
    dependencies: Iterable[Dependency], answers: Mapping[str, Mapping[str, Side]]
) -> tuple[Contradiction, ...]:
    """Return the pairs of cruxes that agents answer in a way that a dependency rules out. `answers` is by thread, then agent."""
    found: list[Contradiction] = []
    for dependency in dependencies:
        if dependency.kind == "SUPPORTS":
            continue
        excluded: Side = "NO" if dependency.kind == "ENTAILS" else "YES"
        source, target = answers.get(dependency.source, {}), answers.get(dependency.target, {})
        agents = tuple(agent for agent, side in source.items() if side == "YES" and target.get(agent) == excluded)
        if agents:
            found.append(Contradiction(source=dependency.source, target=dependency.target, agents=agents))
    return tuple(found)


def is_split(sides: Collection[Side | None]) -> bool:
    """Return whether both firm sides are present."""
    return set(FIRM) <= set(sides)
