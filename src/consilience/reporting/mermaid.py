"""The tree and who read whom as Mermaid, for Markdown that is shown where Mermaid is drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from consilience.reporting.views.reads import Reads
from consilience.reporting.views.tree import Seat, Tree
from consilience.reporting.words import one_line

MOST = 250
"""Nodes or edges beyond which there is no diagram: Mermaid refuses 500 edges, and long before that nobody can read it."""


def tree_diagram(tree: Tree) -> str:
    """Empty where it would be too large."""
    joined = sum(len(circle) - 1 for circle in tree.circles)
    if not tree.seats or len(tree.seats) + joined > MOST:
        return ""
    ids = {seat.id: f"n{n}" for n, seat in enumerate(tree.seats)}
    lines = ["flowchart TB"]
    lines += [f'  {ids[seat.id]}["{label(_named(seat))}"]' for seat in tree.seats]
    lines += [f"  {ids[parent]} --- {ids[seat.id]}" for seat in tree.seats for parent in seat.parents if parent in ids]
    for circle in tree.circles:
        seated = [ids[id] for id in circle if id in ids]
        lines += [f"  {one} <-.-> {other}" for one, other in pairwise(seated)]
    return _fenced(lines)


def _named(seat: Seat) -> str:
    return seat.id if seat.stands_for == seat.id else f"{seat.id} · {seat.stands_for}"


def reads_diagram(reads: Reads, names: Mapping[str, str]) -> str:
    """From author to reader, with how many messages were shown; one's own words are left out. Empty where too large."""
    edges = {pair: n for pair, n in reads.edges.items() if pair[0] != pair[1]}
    if not edges or len(edges) > MOST:
        return ""
    ids = {id: f"n{n}" for n, id in enumerate(dict.fromkeys([*reads.authors, *reads.readers]))}
    shown = {id for pair in edges for id in pair}
    lines = ["flowchart LR"]
    lines += [f'  {node}["{label(names.get(id, id))}"]' for id, node in ids.items() if id in shown]
    lines += [f'  {ids[author]} -->|"{n}"| {ids[reader]}' for (reader, author), n in edges.items()]
    return _fenced(lines)


def label(text: str) -> str:
    """Words for a node: whatever is neither letter, digit nor plain punctuation becomes a character code of Mermaid's."""
    return re.sub(r"[^\w .,()·–-]", lambda found: f"#{ord(found[0])};", one_line(text, 60))


def _fenced(lines: list[str]) -> str:
    return "```mermaid\n" + "\n".join(lines) + "\n```"
