"""The map of the cruxes of a debate: how the answer to one bears on another, and which coalition says yes to each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from string import ascii_uppercase
from textwrap import wrap
from typing import Literal

from consilience.domain.sections import Block, Edge, Graph, GraphPanel, Node, Paragraph, Table, View
from consilience.protocols.debate.moves import SIDES, DependencyKind
from consilience.protocols.debate.records import Coalition, Dependency
from consilience.protocols.debate.state import DebateState

_LINES: dict[DependencyKind, tuple[str, Literal["plain", "dashed", "faint"]]] = {
    "ENTAILS": ("⇒", "plain"),
    "CONTRADICTS": ("✕", "dashed"),
    "SUPPORTS": ("+", "faint"),
}
_LEGEND = (
    "⇒ a yes entails a yes · ✕ a yes rules out a yes · + a yes makes a yes likelier; the mark is near the crux it starts from",
    "border and letter: the coalition that says yes to the crux",
)


LABEL_CHARS = 20
"""Of a question on a line of its box, which has two."""


def crux_map(state: DebateState, found: Sequence[Coalition], below: Iterable[Block] = ()) -> View:
    """Return the map, with the coalitions `found` so far and a table of its nodes; `below` that come the arguments of its edges."""
    threads = [crux.thread for crux in state.cruxes]
    coalitions = list(zip(ascii_uppercase, found, strict=False))
    related = [d for d in state.dependencies if d.source in threads and d.target in threads]
    levels = _levels(threads, related)
    nodes, rows = [], []
    for n, crux in enumerate(state.cruxes, 1):
        sides = [(letter, coalition.positions.get(crux.thread)) for letter, coalition in coalitions]
        said = [f"{letter} {SIDES[side]}" for letter, side in sides if side]
        first, *second = wrap(f"{n}. {crux.question}", LABEL_CHARS, max_lines=2, placeholder=" …")
        nodes.append(
            Node(
                id=crux.thread,
                label=first,
                note="\n".join((*second, " · ".join(said) or "no coalition agrees on it")),
                level=levels[crux.thread],
                tone="plain" if crux.validated else "quiet",
                tip=f"{n}. {crux.question}: {', '.join(said) or 'no coalition agrees on it'}",
                group="".join(letter for letter, side in sides if side == "YES"),
                refs=state.crux_refs(crux),
            )
        )
        rows.append((f"{n}. {crux.question}", *(SIDES[side] if side else "–" for _, side in sides)))
    panel = GraphPanel(nodes=tuple(nodes), edges=tuple(_edges(related, levels)))
    heads = ("crux", *(f"{letter}: {coalition.label}" for letter, coalition in coalitions))
    refs = tuple(node.refs for node in nodes)
    blocks = (
        *(Paragraph(lead=f"{letter}:", text=_members(coalition, state)) for letter, coalition in coalitions),
        Table(heads=heads, rows=tuple(rows), left=len(heads), refs=refs),
        *below,
    )
    return View(name="crux-map", heading="Crux map", blocks=blocks, picture=Graph(panels=(panel,), legend=_LEGEND))


def _members(coalition: Coalition, state: DebateState) -> str:
    return f"{coalition.label} ({', '.join(state.names[agent] for agent in coalition.members)})"


def _levels(threads: Sequence[str], related: Sequence[Dependency]) -> dict[str, int]:
    """Return the level of each crux: below those that bear on it, as far as they are no circle."""
    levels = dict.fromkeys(threads, 0)
    for _ in threads:
        for dependency in related:
            if levels[dependency.target] <= levels[dependency.source] < len(threads) - 1:
                levels[dependency.target] = levels[dependency.source] + 1
    return levels


def _edges(related: Sequence[Dependency], levels: dict[str, int]) -> Iterator[Edge]:
    """Yield the edges from top to bottom, each with its mark near the crux that it starts from."""
    for dependency in related:
        mark, tone = _LINES[dependency.kind]
        if levels[dependency.source] < levels[dependency.target]:
            yield Edge(
                source=dependency.source, target=dependency.target, near_source=mark, tone=tone, tip=dependency.sketch
            )
        else:
            yield Edge(
                source=dependency.target, target=dependency.source, near_target=mark, tone=tone, tip=dependency.sketch
            )
