"""Coalitions: agents who answer the cruxes alike (seed 002, §6). All of it is arithmetic on declared positions.

Answers to the propositions are positions beside those on cruxes: agents who answer the task otherwise do not stand together,
whatever they share.

Agents are clustered by average linkage (Sokal & Michener 1958), merging the two most similar clusters while their mean
similarity reaches `MIN_SIMILARITY`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from consilience.domain.positions import exact
from consilience.protocols.debate.moves import FIRM, Side
from consilience.protocols.debate.records import Coalition, Crux, DebateBallot, DebateMessage

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
    found: dict[str, dict[str, Side]] = {}
    cast = {ballot.agent: ballot.questions for ballot in ballots}
    for crux in cruxes:
        for agent in sorted({*crux.positions, *cast}):
            side = cast.get(agent, {}).get(crux.thread)
            if side is None and agent in crux.positions:
                side = crux.positions[agent].side
            if side is not None:
                found.setdefault(agent, {})[crux.thread] = side
    return {agent: sides for agent, sides in sorted(found.items()) if len(sides) >= MIN_POSITIONS}


def crux_confidence(crux: Crux) -> float:
    """The weight of a crux: the mean declared confidence of those who took a position on it; 0 without any."""
    declared = [position.confidence for position in crux.positions.values()]
    return sum(declared) / len(declared) if declared else 0.0


def similarity(one: Mapping[str, Side], other: Mapping[str, Side], weights: Mapping[str, float]) -> float:
    """The weighted share of the cruxes that both answered on which they agree, 0 to 1; one UNCERTAIN is half an agreement. 0
    without a common crux."""
    common = [thread for thread in one if thread in other]
    total = sum(weights[thread] for thread in common)
    if not total:
        return 0.0
    alike = {
        thread: 0.5 if "UNCERTAIN" in (one[thread], other[thread]) else one[thread] == other[thread]
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


def _linkage(one: tuple[str, ...], other: tuple[str, ...], positions: Positions, weights: Mapping[str, float]) -> float:
    values = [similarity(positions[a], positions[b], weights) for a in one for b in other]
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
