"""The cruxes of a debate as a graph: what follows from what, contradictory answers, roots, irreducible cruxes. Pure rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from consilience.protocols.debate.moves import FIRM, Side
from consilience.protocols.debate.records import Contradiction, Dependency


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
