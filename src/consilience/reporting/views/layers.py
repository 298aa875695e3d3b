"""Layout of a layered graph: few edges cross, none runs through a node (Sugiyama, Tagawa and Toda 1981)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6

NodePair = tuple[str, str]
Position = tuple[float, float]
LayerNode = str | tuple[str, str, int]
"""A node, or the place that an edge takes on a level which it crosses."""


@dataclass(frozen=True)
class Layers:
    """Places of the nodes of a layered graph."""

    levels: Mapping[str, int]
    across: Mapping[str, float]
    """Place of each node on its level, from 0, in widths of a node."""
    routes: Mapping[NodePair, Sequence[tuple[float, int]]]
    """Points between the ends of each edge, as (across, level)."""

    def path(self, edge: NodePair, at: Callable[[float, int], Position], half: float) -> list[Position]:
        """Return the corners of an edge from the lower side of its source to the upper side of its target.

        `at` maps (across, level) to the middle of a node, `half` is half a node's height.
        """
        source, target = edge
        x, y = at(self.across[source], self.levels[source])
        points = [(x, y + half)]
        for x, y in (at(*between) for between in self.routes[edge]):
            points += [(x, y - half), (x, y + half)]
        x, y = at(self.across[target], self.levels[target])
        return [*points, (x, y - half)]


def layered(levels: Mapping[str, int], edges: Sequence[NodePair]) -> Layers:
    """Return the layout. `levels` grow along every edge; nodes of one level keep the order given unless edges change it."""
    rows: dict[int, list[LayerNode]] = {}
    for node, level in levels.items():
        rows.setdefault(level, []).append(node)
    above: dict[LayerNode, list[LayerNode]] = {}
    below: dict[LayerNode, list[LayerNode]] = {}
    for parent, child in edges:
        chain: list[LayerNode] = [parent]
        for level in range(levels[parent] + 1, levels[child]):
            chain.append((parent, child, level))
            rows.setdefault(level, []).append(chain[-1])
        chain.append(child)
        for upper, lower in pairwise(chain):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    ordered = _ordered([rows[level] for level in sorted(rows)], above, below)
    at = _placed(ordered, above, below)
    return Layers(
        levels,
        {node: at[node] for node in levels},
        {
            (parent, child): [(at[parent, child, level], level) for level in range(levels[parent] + 1, levels[child])]
            for parent, child in edges
        },
    )


Neighbours = Mapping[LayerNode, list[LayerNode]]


def _ordered(rows: list[list[LayerNode]], above: Neighbours, below: Neighbours) -> list[list[LayerNode]]:
    """Sort every row by the mean place of its neighbours, down and up in turn; return the order with the fewest crossings."""
    best, least = rows, _crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not least:
            break
        towards = above if sweep % 2 == 0 else below
        swept: list[list[LayerNode]] = []
        for row in rows if sweep % 2 == 0 else reversed(rows):
            place = {node: n for n, node in enumerate(swept[-1])} if swept else {}
            here = {node: n for n, node in enumerate(row)}
            middles = {node: _mean([place[other] for other in towards.get(node, ()) if other in place]) for node in row}
            wanted = {node: here[node] if middle is None else middle for node, middle in middles.items()}
            swept.append(sorted(row, key=wanted.__getitem__))
        rows = swept if sweep % 2 == 0 else swept[::-1]
        if (crossed := _crossings(rows, below)) < least:
            best, least = rows, crossed
    return best


def _crossings(rows: Sequence[Sequence[LayerNode]], below: Neighbours) -> int:
    crossings = 0
    for upper, lower in pairwise(rows):
        place = {node: n for n, node in enumerate(lower)}
        seen: list[int] = []
        for node in upper:
            ends = [place[other] for other in below.get(node, ()) if other in place]
            crossings += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return crossings


def _placed(rows: Sequence[Sequence[LayerNode]], above: Neighbours, below: Neighbours) -> dict[LayerNode, float]:
    """Return each node's place: as near to the mean of its neighbours as the order and the min distance allow."""
    at = {node: float(n) for row in rows for n, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 1
        for row in rows if down else reversed(rows):
            wanted = []
            for node in row:
                middle = _mean([at[other] for other in (above if down else below).get(node, ())])
                wanted.append(at[node] if middle is None else middle)
            at.update(zip(row, _apart(wanted), strict=True))
    left = min(at.values(), default=0.0)
    return {node: x - left for node, x in at.items()}


def _apart(wanted: Sequence[float]) -> list[float]:
    """Return places at least 1 apart: half-way between pushing all nodes to the right and all to the left."""
    right: list[float] = []
    for x in wanted:
        right.append(max(x, right[-1] + 1) if right else x)
    left: list[float] = []
    for x in reversed(wanted):
        left.append(min(x, left[-1] - 1) if left else x)
    return [(a + b) / 2 for a, b in zip(right, reversed(left), strict=True)]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
