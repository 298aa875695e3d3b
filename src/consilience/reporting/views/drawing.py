"""Pictures of boxes, lines and words as SVG, the measuring of text, and the layout of graphs.

Text is escaped; every picture has a title and a description. Colours are distinguishable for the colour-blind, on light and
dark ground, and never carry meaning alone.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

from consilience.reporting.formatting import escape_xml
from consilience.reporting.styles import style_sheet
from consilience.reporting.terminal import fitted

_EMS: Mapping[float, str] = {
    0.30: "ijlIJ'ł",
    0.34: " .,:;/\\|·‘’",
    0.41: "frt()[]-!",
    0.55: 'scz?"*_`–“”',
    0.82: "w&#<=>+~^",
    1.0: "mMW%@—…æœÆŒ",
}
"""Letters by their width in DejaVu Sans, in ems; accented letters count as their base."""
_BOLD = 1.15


def pixels(text: str, style: str = "") -> float:
    """Return the max width of a text in a picture: in DejaVu Sans, the widest of the fonts in its style."""
    size = 11 if "cv-small" in style else 14 if "cv-head" in style else 13
    bold = _BOLD if "cv-strong" in style or "cv-head" in style else 1.0
    return size * bold * sum(map(_em, text))


@lru_cache(maxsize=10_000)
def _em(letter: str) -> float:
    """Return the width of a letter in ems, rounded up."""
    plain = letter if letter.isascii() else unicodedata.normalize("NFD", letter)[0]
    for em, letters in _EMS.items():
        if plain in letters:
            return em
    if unicodedata.combining(plain):
        return 0.0
    if unicodedata.east_asian_width(plain) in "WF":
        return 1.0
    return 0.64 if "a" <= plain <= "z" or plain.isdigit() else 0.79 if plain.isascii() else 0.88


class Drawing:
    """Shapes in the order in which they are drawn."""

    def __init__(
        self, name: str, title: str, description: str, href: Callable[[Sequence[str]], str] = lambda refs: ""
    ) -> None:
        """`name` makes the ids of this picture unique on a page; `href` returns where on it some refs lead, "" for nowhere."""
        self.name = name
        self.title = title
        self.description = description
        self._href = href
        self._has_links = False
        self._shapes: list[str] = []
        self._right = 0.0
        self._bottom = 0.0

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: str = "cv-box",
        round: float = 6,
        tip: str = "",
        shade: float = 1,
    ) -> None:
        """`shade`: opacity of its colour, from 0 to 1."""
        self._extend_to(x + width, y + height)
        shaded = f' fill-opacity="{shade:.2f}"' if shade < 1 else ""
        body = f"{shaded}><title>{escape_xml(tip)}</title></rect>" if tip else f"{shaded}/>"
        self._shapes.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round:g}"{body}'
        )

    @contextmanager
    def link(self, refs: Sequence[str], name: str) -> Iterator[None]:
        """What is drawn within is a link of that name, if its refs lead anywhere."""
        href = self._href(refs)
        self._shapes += [f'<a href="{escape_xml(href)}" aria-label="{escape_xml(name)}">'] if href else []
        yield
        self._shapes += ["</a>"] if href else []
        self._has_links = self._has_links or bool(href)

    def line(self, points: Iterable[tuple[float, float]], style: str = "cv-line") -> None:
        placed = list(points)
        for x, y in placed:
            self._extend_to(x, y)
        self._shapes.append(
            f'<polyline class="{style}" points="{" ".join(f"{round(x, 1):g},{round(y, 1):g}" for x, y in placed)}"/>'
        )

    def dot(self, x: float, y: float, style: str = "cv-dot", radius: float = 5) -> None:
        self._extend_to(x + radius, y + radius)
        self._shapes.append(f'<circle class="{style}" cx="{round(x, 1):g}" cy="{round(y, 1):g}" r="{radius:g}"/>')

    def words(
        self, x: float, y: float, text: str, style: str = "", anchor: str = "start", room: float = 0, within: float = 0
    ) -> None:
        """`y`: base line. `room`: width kept for the text, default its max width. `within`: the width at which it is cut."""
        if not text:
            return
        if within:
            text = fitted(text, within, partial(pixels, style=style))
        width = room or pixels(text, style)
        right = {"start": x + width, "middle": x + width / 2, "end": x}[anchor]
        self._extend_to(right, y + 4)
        classed = f' class="{style}"' if style else ""
        anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._shapes.append(
            f'<text{classed} x="{round(x, 1):g}" y="{round(y, 1):g}"{anchored}>{escape_xml(text)}</text>'
        )

    def lines(
        self, x: float, y: float, texts: Sequence[str], style: str = "", step: float = 16, room: float = 0
    ) -> None:
        for n, text in enumerate(texts):
            self.words(x, y + n * step, text, style, room=room)

    def svg(self, *, styled: bool = True) -> str:
        """Return the picture with its style, as a file; without it, for a page that has it (`charts.css`).

        One with links is no image: what is inside an image cannot be reached.
        """
        width, height = self._right + 16, self._bottom + 16
        title, description = f"{self.name}-title", f"{self.name}-description"
        role = "group" if self._has_links else "img"
        style = f"<style>{style_sheet('charts')}</style>" if styled else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="cv" role="{role}" aria-labelledby="{title} {description}" '
            f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
            f'<title id="{title}">{escape_xml(self.title)}</title><desc id="{description}">{escape_xml(self.description)}</desc>'
            f'{style}<rect class="cv-ground" width="100%" height="100%"/>{"".join(self._shapes)}</svg>\n'
        )

    def _extend_to(self, x: float, y: float) -> None:
        self._right = max(self._right, x)
        self._bottom = max(self._bottom, y)


# --- layout of a layered graph: few edges cross, none runs through a node (Sugiyama, Tagawa and Toda 1981)

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
    place = _placed(ordered, above, below)
    return Layers(
        levels,
        {node: place[node] for node in levels},
        {
            (parent, child): [
                (place[parent, child, level], level) for level in range(levels[parent] + 1, levels[child])
            ]
            for parent, child in edges
        },
    )


Neighbours = Mapping[LayerNode, list[LayerNode]]


def _ordered(rows: list[list[LayerNode]], above: Neighbours, below: Neighbours) -> list[list[LayerNode]]:
    """Sort every row by the mean place of its neighbours, down and up in turn; return the order with the fewest crossings."""
    best, min_crossings = rows, _crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not min_crossings:
            break
        towards = above if sweep % 2 == 0 else below
        swept: list[list[LayerNode]] = []
        for row in rows if sweep % 2 == 0 else reversed(rows):
            place = {node: n for n, node in enumerate(swept[-1])} if swept else {}
            index = {node: n for n, node in enumerate(row)}
            middles = {
                node: _mean([place[neighbour] for neighbour in towards.get(node, ()) if neighbour in place])
                for node in row
            }
            target = {node: index[node] if middle is None else middle for node, middle in middles.items()}
            swept.append(sorted(row, key=target.__getitem__))
        rows = swept if sweep % 2 == 0 else swept[::-1]
        if (crossed := _crossings(rows, below)) < min_crossings:
            best, min_crossings = rows, crossed
    return best


def _crossings(rows: Sequence[Sequence[LayerNode]], below: Neighbours) -> int:
    crossings = 0
    for upper, lower in pairwise(rows):
        place = {node: n for n, node in enumerate(lower)}
        ends_so_far: list[int] = []
        for node in upper:
            ends = [place[neighbour] for neighbour in below.get(node, ()) if neighbour in place]
            crossings += sum(len(ends_so_far) - bisect_left(ends_so_far, end + 1) for end in ends)
            for end in ends:
                insort(ends_so_far, end)
    return crossings


def _placed(rows: Sequence[Sequence[LayerNode]], above: Neighbours, below: Neighbours) -> dict[LayerNode, float]:
    """Return each node's place: as near to the mean of its neighbours as the order and the min distance allow."""
    x_of = {node: float(n) for row in rows for n, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 1
        for row in rows if down else reversed(rows):
            targets = []
            for node in row:
                middle = _mean([x_of[neighbour] for neighbour in (above if down else below).get(node, ())])
                targets.append(x_of[node] if middle is None else middle)
            x_of.update(zip(row, _space_out(targets), strict=True))
    left = min(x_of.values(), default=0.0)
    return {node: x - left for node, x in x_of.items()}


def _space_out(targets: Sequence[float]) -> list[float]:
    """Return places at least 1 apart: half-way between pushing all nodes to the right and all to the left."""
    right: list[float] = []
    for x in targets:
        right.append(max(x, right[-1] + 1) if right else x)
    left: list[float] = []
    for x in reversed(targets):
        left.append(min(x, left[-1] - 1) if left else x)
    return [(a + b) / 2 for a, b in zip(right, reversed(left), strict=True)]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
