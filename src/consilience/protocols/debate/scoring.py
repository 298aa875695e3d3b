"""What follows from declared positions: crux score, validation, regime, the graph of cruxes, coalitions. All of it is arithmetic
on typed fields.

Coalitions are agents who answer the cruxes alike (seed 002, §6). Answers to the propositions are positions beside those on cruxes:
agents who answer the task otherwise do not stand together, whatever they share. Agents are clustered by average linkage (Sokal &
Michener 1958), merging the two most similar clusters while their mean similarity reaches `MIN_SIMILARITY`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from consilience.domain.positions import exact
from consilience.protocols.debate.moves import FIRM, ClosingSide, CruxKind, Side, dominant_horizon
from consilience.protocols.debate.reasons import MIN_CRITERIA, MIN_FLIPS, Flaw
from consilience.protocols.debate.records import (
    Coalition,
    Contradiction,
    Crux,
    CruxPosition,
    CruxScore,
    DebateBallot,
    DebateMessage,
    Dependency,
    Flip,
    Recheck,
)
from consilience.protocols.debate.stipulated import FlipRecord
from consilience.protocols.debate.threads import Thread

Regime = Literal["inconclusive", "polarized", "partial", "consensus"]

VAGUE = ("probably", "might", "seems", "feels", "generally")
MEASUREMENT = ("will correlation", "will volatility", "will price")

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
) -> tuple[Flaw, ...]:
    """Why the words of a crux fail the seed's tests, which other words may pass; empty if they do not."""
    failures: list[Flaw] = []
    if unclear:
        failures.append(Flaw(kind="unclear", text=unclear))
    if len(criteria) < MIN_CRITERIA:
        failures.append(Flaw(kind="criteria", n=len(criteria)))
    failures += [Flaw(kind="vague_criterion", text=criterion) for criterion in criteria if _VAGUE.search(criterion)]
    if kind == "measurement" or any(phrase in question.casefold() for phrase in MEASUREMENT):
        failures.append(Flaw(kind="measurement"))
    return tuple(failures)


def validation_failures(
    question: str,
    sides: Collection[Side],
    criteria: Sequence[str],
    flips: Mapping[str, Flip],
    locked: bool,
    *,
    attempts: int = 0,
    kind: CruxKind | None = None,
    unclear: str = "",
    thresholds: Sequence[str] = (),
    challenged: Sequence[str] = (),
) -> tuple[Flaw, ...]:
    """Why a question is no valid crux, by the seed's tests; empty for one that is. `attempts` are those to lock it, `thresholds`
    those of declared falsifiers, `challenged` the objections to its last extraction."""
    failures: list[Flaw] = []
    if not locked:
        failures.append(Flaw(kind="unlocked", n=attempts) if attempts else Flaw(kind="untried"))
    if not is_split(sides):
        failures.append(Flaw(kind="one_sided"))
    failures += written_failures(question, criteria, kind, unclear)
    known_criteria = set(criteria)
    vague = (t for t in thresholds if _VAGUE.search(t) and t not in known_criteria)
    failures += [Flaw(kind="vague_falsifier", text=threshold) for threshold in vague]
    flipping = sum(flip.would_flip for flip in flips.values())
    if flipping < MIN_FLIPS:
        failures.append(Flaw(kind="hanging", n=flipping))
    failures += [Flaw(kind="challenged", text=objection) for objection in challenged]
    return tuple(failures)


def hanging_on(crux: Crux, records: Sequence[FlipRecord]) -> int:
    """Return how many top claims hang on a tested crux: what an agent declared, corrected by what its ballots showed. Those of an
    agent that the placebo moved as well show nothing."""
    declared = {agent: flip.would_flip for agent, flip in crux.flips.items()}
    shown = {r.agent: r.observed for r in records if r.observed is not None and not r.placebo}
    return sum((declared | shown).values())


def revalidated(crux: Crux, hanging: int) -> Crux:
    """Return a crux that was tested, valid or not by the top claims that hang on it in truth."""
    failures = [flaw for flaw in crux.validation_failures if flaw.kind != "hanging"]
    if hanging < MIN_FLIPS:
        failures.append(Flaw(kind="hanging_tested", n=hanging))
    return crux.model_copy(update={"validated": not failures, "validation_failures": tuple(failures)})


def declared_flips(thread: Thread) -> dict[str, Flip]:
    """Whether top claims hang on the question, as each agent declared last: after the evidence, else with its commitment."""
    committed = {
        agent: Flip(
            agent=agent,
            side=c.side,
            would_flip=c.would_flip,
            gives_up_if=c.gives_up_if,
            confidence=c.flip_confidence,
            why=c.why,
            message=c.message,
        )
        for agent, c in thread.commitments.items()
    }
    return committed | thread.flips


def crux_of(thread: Thread, agents: int, *, written: bool = False) -> Crux:
    """The crux of a thread with a question: what its agents declared and, if `written`, the words of its extraction. Without them
    the question is the locked one, and the falsifiers are what would settle it."""
    draft, challenges = (thread.extraction, tuple(thread.challenges)) if written else (None, ())
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
        attempts=len(thread.attempts),
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


def regime_of(
    questions: Mapping[str, Sequence[Side]], validated: Collection[str], *, split_when_cast: bool = False
) -> Regime:
    """The regime from final ballots: `questions` holds the side of each agent on each question by its id, `validated` the ids of
    validated cruxes. The first that applies; ballots that are split, or were when they were cast, are never consensus."""
    firm = {id: [side for side in sides if side in ("YES", "NO")] for id, sides in questions.items()}
    firm = {id: sides for id, sides in firm.items() if len(sides) >= 2}
    if not firm:
        return "inconclusive"
    split = {id for id, sides in firm.items() if len(set(sides)) == 2}
    if not split:
        return "partial" if split_when_cast else "consensus"
    if len(split) == len(firm) and split & set(validated):
        return "polarized"
    return "partial"


def as_cast(final: Sequence[DebateBallot], rechecks: Sequence[Recheck]) -> dict[str, dict[str, Side]]:
    """The side of each agent by question, as its ballot was cast; `final` counts what was answered again."""
    sides: dict[str, dict[str, Side]] = {}
    for ballot in final:
        for n, side in enumerate(ballot.positions, 1):
            sides.setdefault(f"p{n}", {})[ballot.agent] = side
        for thread, side in ballot.questions.items():
            sides.setdefault(thread, {})[ballot.agent] = side
    for check in reversed(rechecks):  # the first says what the ballot was
        sides.get(check.question, {})[check.agent] = check.ballot
    return sides


class Held(NamedTuple):
    """A final ballot against the answer on a proposition."""

    ballot: DebateBallot
    n: int
    """The proposition, from 1."""
    side: Side
    only_when_cast: bool
    """Whether the ballot counts as undecided since it was cast again."""


def dissenting(
    answer: Sequence[ClosingSide], final: Iterable[DebateBallot], cast: Mapping[str, Mapping[str, Side]]
) -> Iterator[Held]:
    """Yield the final ballots against the answer on each proposition; where it is undecided, against the most frequent firm side,
    on a tie those of both. A ballot that counts as undecided since it was cast again is listed as it was `cast`."""
    ballots = list(final)
    for n, decided in enumerate(answer):
        firm = [ballot.positions[n] for ballot in ballots if ballot.positions[n] != "UNCERTAIN"]
        yes, no = firm.count("YES"), firm.count("NO")
        accepted = {decided} if decided != "UNDECIDED" else {"YES"} if yes > no else {"NO"} if no > yes else set()
        for ballot in ballots:
            side = ballot.positions[n]
            again = side == "UNCERTAIN"
            if again:
                side = cast.get(f"p{n + 1}", {}).get(ballot.agent, side)
            if side != "UNCERTAIN" and side not in accepted:
                yield Held(ballot, n + 1, side, again)


# --- the graph: what follows from what, contradictory answers, roots, irreducible cruxes


def acyclic(dependencies: Iterable[Dependency]) -> tuple[Dependency, ...]:
    """Return the dependencies as a directed acyclic graph: the most confident first, without those that would close a cycle."""
    kept_edges: list[Dependency] = []
    for dependency in sorted(dependencies, key=lambda d: (-d.confidence, d.source, d.target)):
        if dependency.source not in downstream(dependency.target, kept_edges):
            kept_edges.append(dependency)
    return tuple(kept_edges)


def downstream(thread: str, dependencies: Iterable[Dependency]) -> tuple[str, ...]:
    """Return a crux and everything that follows from it, in order of distance."""
    edges: dict[str, list[str]] = {}
    for dependency in dependencies:
        edges.setdefault(dependency.source, []).append(dependency.target)
    reached_threads = [thread]
    for reached in reached_threads:
        reached_threads += [target for target in sorted(edges.get(reached, ())) if target not in reached_threads]
    return tuple(reached_threads)


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
    contradictions: list[Contradiction] = []
    for dependency in dependencies:
        if dependency.kind == "SUPPORTS":
            continue
        excluded: Side = "NO" if dependency.kind == "ENTAILS" else "YES"
        source, target = answers.get(dependency.source, {}), answers.get(dependency.target, {})
        agents = tuple(agent for agent, side in source.items() if side == "YES" and target.get(agent) == excluded)
        if agents:
            contradictions.append(Contradiction(source=dependency.source, target=dependency.target, agents=agents))
    return tuple(contradictions)


def is_split(sides: Collection[Side | None]) -> bool:
    """Return whether both firm sides are present."""
    return set(FIRM) <= set(sides)


def sides_by_question(ballots: Iterable[DebateBallot]) -> dict[str, list[Side]]:
    """Return the sides of ballots on every question, by proposition (`p1`) or thread."""
    sides: dict[str, list[Side]] = {}
    for ballot in ballots:
        positions = {f"p{n}": side for n, side in enumerate(ballot.positions, 1)}
        for question, side in {**positions, **ballot.questions}.items():
            sides.setdefault(question, []).append(side)
    return sides


# --- coalitions

MIN_CRUXES = MIN_POSITIONS = 3
MIN_SIMILARITY = Fraction(7, 10)
STABLE_AFTER = 30
"""Messages for which coalitions must be unchanged before they count as stable."""

Positions = Mapping[str, Mapping[str, Side]]
"""The side of each agent on each crux, by agent and thread; that on a proposition under `p1` …"""


@dataclass(frozen=True)
class Coalitions:
    """The coalitions of a debate, or why there are none."""

    found: tuple[Coalition, ...] = ()
    finding: str = ""
    """Why there is no coalition, or why those found are preliminary."""

    @property
    def partition(self) -> frozenset[frozenset[str]]:
        """Who stands with whom, without labels and positions."""
        return frozenset(frozenset(coalition.members) for coalition in self.found)

    def at_the_end(self, *, settled: bool, unchanged_for: int | None) -> Coalitions:
        """Mark coalitions as preliminary where the exchange did not end by itself, or they changed in its last messages.
        `unchanged_for` counts messages; None where nobody looked before the end."""
        if not self.found:
            return self
        if not settled:
            return Coalitions(self.found, "preliminary: the exchange was ended before its threads were closed")
        if unchanged_for is not None and unchanged_for < STABLE_AFTER:
            since = f"{unchanged_for} messages before the end, fewer than {STABLE_AFTER}"
            return Coalitions(self.found, f"preliminary: they last changed {since}")
        return self


def detect_coalitions(
    cruxes: Sequence[Crux], ballots: Sequence[DebateBallot] = (), messages: Sequence[DebateMessage] = ()
) -> Coalitions:
    """Return the coalitions over all cruxes; of those with the same words the first counts. `ballots` are the final ones, before
    the end the opening ones: a position is that of the ballot, without one the last declared in the thread. Labels come from the
    topics of `messages`."""
    cruxes = list({crux.question.casefold(): crux for crux in reversed(cruxes)}.values())[::-1]
    if len(cruxes) < MIN_CRUXES:
        return Coalitions(finding=f"too few cruxes for coalitions: {len(cruxes)}, at least {MIN_CRUXES} are needed")
    positions = _positions(cruxes, ballots)
    if len(positions) < 2:
        return Coalitions(finding=f"no coalition: fewer than two agents answered {MIN_POSITIONS} cruxes")
    weights = _proposition_weights(ballots) | {crux.thread: crux_confidence(crux) for crux in cruxes}
    for ballot in ballots:
        if ballot.agent in positions:
            positions[ballot.agent] |= {f"p{n}": side for n, side in enumerate(ballot.positions, 1)}
    groups = [group for group in cluster(positions, weights) if len(group) > 1]
    if not groups:
        least = round(100 * MIN_SIMILARITY)
        return Coalitions(finding=f"no stable coalition: no two agents agree on {least} % of what they answered")
    labels = _labels(groups, messages)
    return Coalitions(
        tuple(_coalition(group, label, cruxes, positions, weights) for group, label in zip(groups, labels, strict=True))
    )


def _proposition_weights(ballots: Sequence[DebateBallot]) -> dict[str, float]:
    """Each proposition weighs like a crux: the mean declared confidence."""
    count = max((len(ballot.positions) for ballot in ballots), default=0)
    return {f"p{n}": sum(b.confidence for b in ballots) / len(ballots) for n in range(1, count + 1)}


def _positions(cruxes: Sequence[Crux], ballots: Sequence[DebateBallot]) -> dict[str, dict[str, Side]]:
    """Positions of the agents who have at least `MIN_POSITIONS`, in order of their ids."""
    positions: dict[str, dict[str, Side]] = {}
    cast = {ballot.agent: ballot.questions for ballot in ballots}
    for crux in cruxes:
        for agent in sorted({*crux.positions, *cast}):
            side = cast.get(agent, {}).get(crux.thread)
            if side is None and agent in crux.positions:
                side = crux.positions[agent].side
            if side is not None:
                positions.setdefault(agent, {})[crux.thread] = side
    return {agent: sides for agent, sides in sorted(positions.items()) if len(sides) >= MIN_POSITIONS}


def crux_confidence(crux: Crux) -> float:
    """The weight of a crux: the mean declared confidence of those who took a position on it; 0 without any."""
    declared = [position.confidence for position in crux.positions.values()]
    return sum(declared) / len(declared) if declared else 0.0


def similarity(first: Mapping[str, Side], other: Mapping[str, Side], weights: Mapping[str, float]) -> float:
    """The weighted share of the cruxes that both answered on which they agree, 0 to 1; one UNCERTAIN is half an agreement. 0
    without a common crux."""
    common = [thread for thread in first if thread in other]
    total = sum(weights[thread] for thread in common)
    if not total:
        return 0.0
    alike = {
        thread: 0.5 if "UNCERTAIN" in (first[thread], other[thread]) else first[thread] == other[thread]
        for thread in common
    }
    return sum(weights[thread] * alike[thread] for thread in common) / total


def cluster(positions: Positions, weights: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Cluster agents by average linkage. The result, singletons included, is in order of the agents; ties merge the first."""
    groups: list[tuple[str, ...]] = [(agent,) for agent in positions]
    while len(groups) > 1:
        pairs = [(a, b) for n, a in enumerate(groups) for b in groups[n + 1 :]]
        linked = {pair: exact(_linkage(*pair, positions, weights)) for pair in pairs}
        first, second = max(pairs, key=linked.__getitem__)
        if linked[first, second] < MIN_SIMILARITY:
            break
        groups[groups.index(first)] = (*first, *second)
        groups.remove(second)
    return [tuple(sorted(group)) for group in groups]


def _linkage(
    first: tuple[str, ...], other: tuple[str, ...], positions: Positions, weights: Mapping[str, float]
) -> float:
    values = [similarity(positions[a], positions[b], weights) for a in first for b in other]
    return sum(values) / len(values)


def _coalition(
    members: tuple[str, ...], label: str, cruxes: Sequence[Crux], positions: Positions, weights: Mapping[str, float]
) -> Coalition:
    """A coalition with what its members have in common: the firm sides of all, and the statements they declared for them."""
    common: dict[str, Side] = {}
    for name in weights:
        sides = {positions[agent].get(name) for agent in members}
        if len(sides) == 1 and (side := sides.pop()) in FIRM:
            common[name] = side
    declared = [
        crux.positions[agent].statement
        for crux in cruxes
        for agent in members
        if agent in crux.positions and crux.positions[agent].side == common.get(crux.thread)
    ]
    pairs = [(a, b) for n, a in enumerate(members) for b in members[n + 1 :]]
    return Coalition(
        label=label,
        members=members,
        positions=common,
        shared_beliefs=tuple(dict.fromkeys(filter(None, declared))),
        cohesion=sum(similarity(positions[a], positions[b], weights) for a, b in pairs) / len(pairs),
    )


def _labels(groups: Sequence[tuple[str, ...]], messages: Sequence[DebateMessage]) -> list[str]:
    """A label for each coalition: the topic of two or three words that most of its messages share, declared by at least two members
    and by nobody else; without one `Coalition A`, `Coalition B` … in order."""
    users: dict[str, set[str]] = {}
    uses: Counter[str] = Counter()
    for message in messages:
        for topic in dict.fromkeys(" ".join(topic.casefold().split()) for topic in message.topics):
            if len(topic.split()) in (2, 3) and not message.by_moderator:
                users.setdefault(topic, set()).add(message.agent)
                uses[topic] += 1
    labels = []
    for number, members in enumerate(groups):
        own = [topic for topic, agents in users.items() if len(agents) > 1 and agents <= set(members)]
        best = min(own, key=lambda topic: (-len(users[topic]), -uses[topic], topic), default=None)
        labels.append(best.capitalize() if best else f"Coalition {chr(ord('A') + number)}")
    return labels
