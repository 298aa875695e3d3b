"""Where the nodes of a layered graph stand: few edges cross, none runs through a node (Sugiyama, Tagawa and Toda 1981)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6

Edge = tuple[str, str]
Node = str | tuple[str, str, int]
"""A node, or the place that an edge keeps for itself on a level which it crosses."""


@dataclass(frozen=True)
class Layers:
    """`across` counts widths of a node from 0; `routes` holds for each edge the points between its ends, as (across, level)."""

    across: Mapping[str, float]
    routes: Mapping[Edge, Sequence[tuple[float, int]]]


def layered(levels: Mapping[str, int], edges: Sequence[Edge]) -> Layers:
    """`levels` grow along every edge from parent to child; those of one level stand in the order given where no edge says
    otherwise."""
    rows: dict[int, list[Node]] = {}
    for node, level in levels.items():
        rows.setdefault(level, []).append(node)
    above: dict[Node, list[Node]] = {}
    below: dict[Node, list[Node]] = {}
    for parent, child in edges:
        chain: list[Node] = [parent]
        for level in range(levels[parent] + 1, levels[child]):
            chain.append((parent, child, level))
            rows.setdefault(level, []).append(chain[-1])
        chain.append(child)
        for one, other in pairwise(chain):
            below.setdefault(one, []).append(other)
            above.setdefault(other, []).append(one)
    ordered = _ordered([rows[level] for level in sorted(rows)], above, below)
    at = _placed(ordered, above, below)
    return Layers(
        {node: at[node] for node in levels},
        {
            (parent, child): [(at[parent, child, level], level) for level in range(levels[parent] + 1, levels[child])]
            for parent, child in edges
        },
    )


Neighbours = Mapping[Node, list[Node]]


def _ordered(rows: list[list[Node]], above: Neighbours, below: Neighbours) -> list[list[Node]]:
    """Every row sorted by the middle of its neighbours, down and up in turn; the order with the fewest crossings."""
    best, least = rows, _crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not least:
            break
        towards = above if sweep % 2 == 0 else below
        swept: list[list[Node]] = []
        for row in rows if sweep % 2 == 0 else reversed(rows):
            place = {node: n for n, node in enumerate(swept[-1])} if swept else {}
            here = {node: n for n, node in enumerate(row)}
            middles = {node: _mean([place[one] for one in towards.get(node, ()) if one in place]) for node in row}
            wanted = {node: here[node] if middle is None else middle for node, middle in middles.items()}
            swept.append(sorted(row, key=wanted.__getitem__))
        rows = swept if sweep % 2 == 0 else swept[::-1]
        if (crossed := _crossings(rows, below)) < least:
            best, least = rows, crossed
    return best


def _crossings(rows: Sequence[Sequence[Node]], below: Neighbours) -> int:
    found = 0
    for upper, lower in pairwise(rows):
        place = {node: n for n, node in enumerate(lower)}
        seen: list[int] = []
        for node in upper:
            ends = [place[one] for one in below.get(node, ()) if one in place]
            found += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return found


def _placed(rows: Sequence[Sequence[Node]], above: Neighbours, below: Neighbours) -> dict[Node, float]:
    """Every node as near to the middle of its neighbours as its order and a width between any two allow."""
    at = {node: float(n) for row in rows for n, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 1
        for row in rows if down else reversed(rows):
            wanted = []
            for node in row:
                middle = _mean([at[one] for one in (above if down else below).get(node, ())])
                wanted.append(at[node] if middle is None else middle)
            at.update(zip(row, _apart(wanted), strict=True))
    left = min(at.values(), default=0.0)
    return {node: x - left for node, x in at.items()}


def _apart(wanted: Sequence[float]) -> list[float]:
    """Half-way between pushing everything to the right and everything to the left until each has its width."""
    right: list[float] = []
    for x in wanted:
        right.append(max(x, right[-1] + 1) if right else x)
    left: list[float] = []
    for x in reversed(wanted):
        left.append(min(x, left[-1] - 1) if left else x)
    return [(a + b) / 2 for a, b in zip(right, reversed(left), strict=True)]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
